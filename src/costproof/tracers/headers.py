"""Count what a checkpoint stores of each module from the headers of its files, as a source of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, StatedDifference
from costproof.ledger.plural import plural
from costproof.ledger.workload import Workload
from costproof.models.stored_formulas import NOT_KNOWN
from costproof.models.stored_module import (
    StoredModule,
    checkpoint_names,
    model_facts,
    model_names,
    named_as_class,
    stored_modules,
)
from costproof.models.target import Exportable, Target, WithStorage, options_of
from costproof.storage.headers import read_checkpoint
from costproof.storage.mismatches import HeaderMismatch, mismatches
from costproof.storage.scheme import PLAIN, UnknownFormat

if TYPE_CHECKING:
    from torch import nn

HEADERS: Final = "headers"
"""Name of the source."""
_METRICS: Final[tuple[Metric, ...]] = ("stored_bytes", "stored_elements")


def has_headers(target: Target) -> bool:
    """Return whether the weights of a target's checkpoint are beside its configuration."""
    return isinstance(target, WithStorage) and isinstance(target, Exportable) and bool(target.stored.folder)


def headers_ledger(target: Target, workload: Workload) -> Ledger:
    """Return the stored bytes and elements of each module by the headers of its checkpoint.

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
    layout: list[StoredModule] = []
    scheme, known = PLAIN, True
    try:
        scheme = target.stored.scheme(model_facts(model).model_type)
        layout = list(stored_modules(model, scheme))
    except UnknownFormat as error:
        layout, known = list(stored_modules(model, PLAIN)), False
        notes.append(f"{NOT_KNOWN} by a layout: {error.name}: {error.why}")
    tensors = named_as_class(chain.from_iterable(files.values()), model)
    places = _Places(model, layout)
    left_out = {path for path, _ in model.named_modules()} if cut else set()
    left_out -= {path for path, _ in target.build_stored().named_modules()} if cut else set()
    found: dict[str, Counter[Metric]] = defaultdict(Counter)
    forms: dict[str, dict[str, None]] = defaultdict(dict)
    for tensor in tensors:
        path = places.module(tensor.name)
        found[path] += Counter({"stored_bytes": tensor.bytes, "stored_elements": tensor.elements})
        forms[path][f"{tensor.name.rpartition('.')[2]} {tensor.dtype}"] = None
    stated: tuple[StatedDifference, ...] = ()
    if known:
        undetermined = {text: None for rule in scheme.rules for text in rule.format.undetermined()}
        expected = (tensor for module in layout for tensor in (*module.quantised, *module.plain))
        stated = _stated(mismatches(expected, tensors, model_names(model), undetermined), places, left_out)
    return Ledger(
        source=HEADERS,
        nodes=tuple(
            CostNode(stage, "", path, "", dict(costs), owner=HEADERS, evidence=tuple(forms[path]))
            for path, costs in found.items()
            if path not in left_out
            for stage in target.stages_of(path, workload)
        ),
        metrics=_METRICS,
        stages=target.info().stages,
        notes=tuple(notes),
        differences=stated,
    )


def _stated(found: Iterable[HeaderMismatch], places: _Places, left_out: set[str]) -> tuple[StatedDifference, ...]:
    """Return the amounts of the mismatches with a known cause, by module, metric and cause."""
    amounts: Counter[tuple[str, Metric, str]] = Counter()
    for one in found:
        path = places.module(one.got.name if one.got is not None else one.key)
        if one.cause and path not in left_out:
            amounts[path, "stored_bytes", one.cause] += one.bytes
            amounts[path, "stored_elements", one.cause] += one.elements
    return tuple(StatedDifference(*key, amount) for key, amount in amounts.items() if amount)


class _Places:
    """The modules of a model by the names of their tensors in its checkpoint."""

    def __init__(self, model: nn.Module, layout: Iterable[StoredModule]) -> None:
        names = checkpoint_names(model)
        self._tensors: dict[str, str] = {}
        for path, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
            self._tensors[names.parameter(path)] = path.rpartition(".")[0]
        for module in layout:
            self._tensors |= {tensor.name: module.path for tensor in (*module.quantised, *module.plain)}
        self._holders = set(self._tensors.values())
        self._modules: Mapping[str, str] = {names.module(path): path for path, _ in model.named_modules() if path}

    def module(self, name: str) -> str:
        """Return the path of the module that a tensor belongs to.

        That is the innermost module of the model around it if this has tensors of its own, as a stack of experts; else
        the tensor is of a module that the model does not have, whose path is the rest of the name.
        """
        if name in self._tensors:
            return self._tensors[name]
        parts = name.split(".")[:-1]
        for length in range(len(parts), 0, -1):
            path = self._modules.get(".".join(parts[:length]))
            if path is not None:
                return path if path in self._holders else ".".join((path, *parts[length:]))
        return ".".join(parts)
