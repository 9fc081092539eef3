"""Determine which tensors a checkpoint stores for each module, and count them in the headers of its files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, StatedDifference
from costproof.ledger.plural import plural
from costproof.ledger.workload import Workload
from costproof.models.native import NOT_KNOWN, Configured
from costproof.models.target import Exportable, Target, WithFormulas, WithStorage, options_of
from costproof.storage.checkpoint import HeaderMismatch, mismatches
from costproof.storage.gguf import CORRECTIONS
from costproof.storage.headers import read_checkpoint
from costproof.storage.scheme import PLAIN, Scheme, UnknownFormat
from costproof.storage.tensors import STORED_AS, StoredTensor
from costproof.tracers.stored_module import (
    StoredModule,
    checkpoint_names,
    gguf_layout,
    model_facts,
    model_names,
    named_as_class,
    stored_modules,
)
from costproof.weights.library_reading import LibraryReading, library_reading

if TYPE_CHECKING:
    from torch import nn

HEADERS: Final = "headers"
"""Name of the source that counts the headers of checkpoint files."""
_METRICS: Final[tuple[Metric, ...]] = ("stored_bytes", "stored_elements")


def scheme_of(target: Target, model: nn.Module) -> Scheme:
    """Return the quantisation scheme of a target's checkpoint."""
    return target.stored.scheme(model_facts(model).model_type) if isinstance(target, WithStorage) else PLAIN


def layout_of(target: Target, model: nn.Module, workload: Workload) -> tuple[Scheme, list[StoredModule]]:
    """Return the quantisation scheme of a checkpoint, and its tensors by module.

    Raises:
        UnknownFormat: the layout is not known.
    """
    stored, dtypes = model, dict[str, str]()
    scheme = scheme_of(target, model)
    if isinstance(target, WithStorage) and target.dtype not in (None, workload.dtype):
        if isinstance(target, Configured):
            dtypes[STORED_AS[workload.dtype]] = STORED_AS[target.dtype]
        else:  # some of its parameters may have a dtype of their own
            stored = target.build_stored()
    reading = library_reading(target.stored, stored) if isinstance(target, WithStorage) else LibraryReading()
    modules = list(stored_modules(stored, reading, dtypes))
    if not isinstance(target, WithFormulas):  # whose formulas use the other reading of the configuration
        for one, other in zip_longest(modules, stored_modules(stored, scheme, dtypes)):
            if one != other:
                path = (one or other).path[:80]
                raise UnknownFormat(scheme.method, f"two readings of the configuration differ at {path}")
    return scheme, modules


def has_headers(target: Target) -> bool:
    """Return whether the weights of a target's checkpoint are beside its configuration."""
    return isinstance(target, WithStorage) and isinstance(target, Exportable) and bool(target.stored.folder)


def headers_ledger(target: Target, workload: Workload) -> Ledger:
    """Return a ledger of each module's stored bytes and elements, read from the headers of its checkpoint.

    Sizes are those of the headers, and do not depend on a layout. The layout only names tensors that it does not have,
    and those that the headers do not have: the known causes become differences that the ledger states. Tensors of
    modules that are cut off are left out.

    Raises:
        BadInput: the files are not a checkpoint, or shards are missing.
        Incomplete: the size of a dtype is not known.
    """
    assert isinstance(target, WithStorage)
    assert isinstance(target, Exportable)
    files = read_checkpoint(Path(target.stored.folder))
    cut = options_of(target).layers is not None
    every: Any = target
    whole: WithStorage = every.uncut() if cut else every
    model = whole.build_stored()
    notes = [f"headers of {plural(len(files), 'file')}: {plural(sum(map(len, files.values())), 'tensor')}"]
    tensors = tuple(chain.from_iterable(files.values()))
    metrics = _METRICS
    expected: list[StoredTensor] | None
    undetermined: dict[str, None] = {}
    try:
        if all(name.endswith(".gguf") for name in files):
            modules, expected, names = gguf_layout(model, tensors)
            places, metrics = _Places(modules), (*_METRICS, "params")
        else:
            tensors, names = named_as_class(tensors, model), model_names(model)
            expected, places, undetermined = _layout(target, model, notes)
    except UnknownFormat as error:
        what = f"headers of {error.name} are not compared"
        raise BadInput(what, where=target.stored.folder, got=error.why) from error
    left_out = {path for path, _ in model.named_modules()} if cut else set()
    left_out -= {path for path, _ in target.build_stored().named_modules()} if cut else set()
    found: dict[str, Counter[Metric]] = defaultdict(Counter)
    forms: dict[str, dict[str, None]] = defaultdict(dict)
    for tensor in tensors:
        path = places.module(tensor.name)
        found[path].update({"stored_bytes": tensor.bytes, "stored_elements": tensor.elements})
        found[path].update({"params": 0 if tensor.name.endswith(CORRECTIONS) else tensor.elements})
        forms[path][f"{tensor.name.rpartition('.')[2]} {tensor.dtype}"] = None
    stated: tuple[StatedDifference, ...] = ()
    if expected is not None:
        stated = _stated(mismatches(expected, tensors, names, undetermined), metrics, places, left_out)
    nodes = [
        CostNode(stage, "", path, "", {m: costs[m] for m in metrics}, owner=HEADERS, evidence=tuple(forms[path]))
        for path, costs in found.items()
        if path not in left_out
        for stage in target.stages_of(path, workload)
    ]
    return Ledger(HEADERS, tuple(nodes), metrics, target.info().stages, notes=tuple(notes), differences=stated)


def _layout(
    target: WithStorage, model: nn.Module, notes: list[str]
) -> tuple[list[StoredTensor] | None, _Places, dict[str, None]]:
    """Return the tensors of a checkpoint's layout, their modules, and name suffixes of tensors of unknown size."""
    try:
        scheme, known = target.stored.scheme(model_facts(model).model_type), True
        layout = list(stored_modules(model, library_reading(target.stored, model)))
    except UnknownFormat as error:
        scheme, layout, known = PLAIN, list(stored_modules(model, PLAIN)), False
        notes.append(f"{NOT_KNOWN} by a layout: {error.name}: {error.why}")
    undetermined = {text: None for rule in scheme.rules for text in rule.format.undetermined()}
    expected = [tensor for module in layout for tensor in (*module.quantised, *module.plain)]
    return expected if known else None, _Places.of(model, layout), undetermined


def _stated(
    found: Iterable[HeaderMismatch], metrics: Iterable[Metric], places: _Places, left_out: set[str]
) -> tuple[StatedDifference, ...]:
    """Return the amounts of the mismatches with a known cause, by module, metric and cause."""
    amounts: Counter[tuple[str, Metric, str]] = Counter()
    for one in found:
        path = places.module(one.got.name if one.got is not None else one.key)
        if one.cause and path not in left_out:
            for metric in metrics:
                amounts[path, metric, one.cause] += one.bytes if metric == "stored_bytes" else one.elements
    return tuple(StatedDifference(*key, amount) for key, amount in amounts.items() if amount)


@dataclass(frozen=True, slots=True)
class _Places:
    """The module of a model that each tensor of its checkpoint belongs to."""

    tensors: Mapping[str, str]
    """Path of a tensor's module, by tensor name."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Path of a module in the model, by its path in the checkpoint."""
    holders: frozenset[str] = frozenset()
    """Paths of the modules with tensors of their own."""

    @classmethod
    def of(cls, model: nn.Module, layout: Iterable[StoredModule]) -> _Places:
        """Return the modules by names of their tensors, including tensors that only the checkpoint's layout has."""
        names = checkpoint_names(model)
        held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
        tensors = {names.parameter(path): path.rpartition(".")[0] for path, _ in held}
        for module in layout:
            tensors |= {tensor.name: module.path for tensor in (*module.quantised, *module.plain)}
        modules = {names.module(path): path for path, _ in model.named_modules() if path}
        return cls(tensors, modules, frozenset(tensors.values()))

    def module(self, name: str) -> str:
        """Return the path of the module that a tensor belongs to.

        That is the innermost module of the model around it if this has tensors of its own, as a stack of experts; else
        the tensor is of a module that the model does not have, whose path is the rest of the name.
        """
        if name in self.tensors:
            return self.tensors[name]
        parts = name.split(".")[:-1]
        for length in range(len(parts), 0, -1):
            path = self.modules.get(".".join(parts[:length]))
            if path is not None:
                return path if path in self.holders else ".".join((path, *parts[length:]))
        return ".".join(parts)
