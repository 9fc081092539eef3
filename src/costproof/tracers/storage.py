"""Count the bytes that a checkpoint stores of each module, and those that a loaded model holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Final

from costproof.ledger.metrics import STORAGE, Metric
from costproof.ledger.workload import ITEM_BYTES, Dtype, Workload
from costproof.models.native import NOT_KNOWN, Configured
from costproof.models.stored_module import model_facts, stored_modules
from costproof.models.target import Target, WithStorage
from costproof.opgraph.tally import ParameterShapes
from costproof.storage.scheme import PLAIN, Scheme, UnknownFormat
from costproof.storage.tensors import STORED_AS
from costproof.tracers.paths import Paths, dtype_name, unwrapped

if TYPE_CHECKING:
    import torch
    from torch import nn

Costs = dict[Metric, int | None]


@dataclass(frozen=True, slots=True)
class ModuleStorage:
    """Storage metrics by module path; metrics that are unknown for a module are omitted."""

    modules: Mapping[str, Costs] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    notes: tuple[str, ...] = ()


def storage_by_layout(
    target: Target, model: nn.Module, workload: Workload, parameters: ParameterShapes, buffers: Mapping[str, int | None]
) -> ModuleStorage:
    """Return the storage metrics by the layout of the checkpoint, for the static source.

    Args:
        model: the model of the run.
        parameters: its parameters, each once.
        buffers: full name -> bytes that are not counted under another name.
    """
    stored, dtypes = model, dict[str, str]()
    try:
        scheme = _scheme(target, model)
        if isinstance(target, WithStorage) and target.dtype not in (None, workload.dtype):
            if isinstance(target, Configured):
                dtypes[STORED_AS[workload.dtype]] = STORED_AS[target.dtype]
            else:  # some of its parameters may have a dtype of their own
                stored = target.build_stored()
        modules = list(stored_modules(stored, scheme, dtypes))
    except UnknownFormat as error:
        return ModuleStorage(notes=(f"{NOT_KNOWN}: {error.name}: {error.why}",))
    found: dict[str, Costs] = {}
    for module in modules:
        tensors = (*module.quantised, *module.plain)
        known = not module.undetermined
        resident = sum(t.bytes for t in module.quantised if t.is_held)
        found[module.path] = {
            "stored_bytes": sum(t.bytes for t in tensors) if known else None,
            "stored_elements": sum(t.elements for t in tensors) if known else None,
            "resident_bytes": resident - module.replaced * ITEM_BYTES[workload.dtype],
        }
    held = [(name, prod(shape) * ITEM_BYTES[dtype]) for name, (shape, dtype) in parameters.items()]
    for name, size in (*held, *buffers.items()):
        _hold(found, name, size)
    return _known(found, scheme)


def storage_of_run(target: Target, model: nn.Module, workload: Workload) -> ModuleStorage:
    """Return the storage metrics of a running model's tensors; empty if a quantised checkpoint runs unquantised."""
    try:
        if _scheme(target, model) != PLAIN:
            return ModuleStorage()
    except UnknownFormat as error:
        return ModuleStorage(notes=(f"{NOT_KNOWN}: {error.name}: {error.why}",))
    paths = Paths(model)
    tensors = {**paths.parameters, **paths.buffers}
    stored_dtype: Dtype | None = target.dtype if isinstance(target, WithStorage) else None
    persistent = {paths.parameter(unwrapped(name)) for name in model.state_dict(keep_vars=True)}
    found: dict[str, Costs] = {}
    for name, size in resident_bytes(tensors).items():
        _hold(found, name, size)
        costs, tensor = found[name.rpartition(".")[0]], tensors[name]
        if name in persistent and size != 0:
            dtype = dtype_name(tensor.dtype)
            cast = stored_dtype is not None and dtype == workload.dtype and name in paths.parameters
            stored = stored_dtype if cast and stored_dtype is not None else dtype
            costs["stored_bytes"] = (costs["stored_bytes"] or 0) + tensor.numel() * ITEM_BYTES[stored]
            costs["stored_elements"] = (costs["stored_elements"] or 0) + tensor.numel()
    return _known(found, PLAIN)


def _scheme(target: Target, model: nn.Module) -> Scheme:
    return target.stored.scheme(model_facts(model).model_type) if isinstance(target, WithStorage) else PLAIN


def _hold(found: dict[str, Costs], name: str, size: int | None) -> None:
    """Add a tensor's bytes to the resident bytes of the module that owns it."""
    costs = found.setdefault(name.rpartition(".")[0], dict.fromkeys(STORAGE, 0))
    before = costs["resident_bytes"]
    costs["resident_bytes"] = None if before is None or size is None else before + size


def _known(found: Mapping[str, Costs], scheme: Scheme) -> ModuleStorage:
    """Return the metrics that are known for every module, without zeros."""
    unknown = {metric for costs in found.values() for metric, cost in costs.items() if cost is None}
    metrics = tuple(metric for metric in STORAGE if metric not in unknown)
    modules = {
        path: own
        for path, costs in found.items()
        if (own := {metric: costs[metric] for metric in metrics if costs[metric] != 0})
    }
    return ModuleStorage(modules, metrics, _notes(scheme) if unknown else ())


def _notes(scheme: Scheme) -> tuple[str, ...]:
    undetermined: Iterable[str] = (text for rule in scheme.rules for text in rule.format.undetermined())
    return tuple(f"{NOT_KNOWN} of {text}" for text in dict.fromkeys(undetermined))


_MOST_MARKED: Final = 2**26
"""Bytes of memory in which tensors with gaps are looked up one by one."""


def resident_bytes(buffers: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """Return the bytes of memory that the buffers of a running module occupy, by name.

    Memory that several buffers share counts for the first of them. The static source counts the buffers of a program
    with code of its own, so that a mistake in either shows.

    Returns:
        ``None`` for a buffer that does not say where its elements are: a sparse one, or a tensor subclass.
    """
    import torch

    found: dict[str, int | None] = {}
    memory: dict[int, list[tuple[int, int, str]]] = {}
    for name, buffer in buffers.items():
        plain = type(buffer) in (torch.Tensor, torch.nn.Parameter) and buffer.layout is torch.strided
        if not plain or (buffer.numel() > 0 and (buffer.is_quantized or buffer.is_conj() or buffer.is_neg())):
            found[name] = None
            continue
        found[name] = 0
        if buffer.numel() > 0:
            size = buffer.element_size()
            first = int(buffer.storage_offset()) * size
            steps = zip(buffer.shape, buffer.stride(), strict=True)
            length = size * (1 + sum((n - 1) * step for n, step in steps))
            memory.setdefault(buffer.untyped_storage()._cdata, []).append((first, first + length, name))
    order = {name: i for i, name in enumerate(buffers)}
    for pieces in memory.values():
        together: list[str] = []
        start = end = 0
        for first, last, name in (*sorted(pieces), (_BEYOND, _BEYOND, "")):
            if together and first >= end:
                together.sort(key=order.__getitem__)
                found[together[0]] = _occupied([buffers[n] for n in together], start, end)
                together = []
            start, end = (start, max(end, last)) if together else (first, last)
            together.append(name)
    return found


_BEYOND: Final = 2**63


def _occupied(tensors: list[torch.Tensor], start: int, end: int) -> int | None:
    """Return the bytes in [start, end) of one memory block that elements of these tensors occupy."""
    import torch

    # Along a dimension of step 0 all elements are one.
    tensors = [t[tuple(slice(None) if step else 0 for step in t.stride())] for t in tensors]
    if any(t.is_contiguous() and t.nbytes == end - start for t in tensors):
        return end - start
    if end - start > _MOST_MARKED:
        return None
    marks = torch.zeros(end - start, dtype=torch.bool)
    for tensor in tensors:
        size = tensor.element_size()
        shape, strides = (*tensor.shape, size), (*(step * size for step in tensor.stride()), 1)
        marks.as_strided(shape, strides, int(tensor.storage_offset()) * size - start).fill_(True)
    return int(marks.sum())
