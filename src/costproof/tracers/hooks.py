"""Trace a run by forward hooks on every module, as a second dynamic tracer that is independent of TorchLens.

Hooks count calls and caller-callee edges, record the shapes and dtypes of inputs and outputs, and measure how much the
cache grows in each module, while the formulas of ``FlopCounterMode`` count operators. All hooks are removed at the end.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import sub
from typing import TYPE_CHECKING, Any, Final, Literal

from costproof.ledger.attributes import attribute
from costproof.ledger.callgraph import Event, JsonScalar, PlainAt, TensorAt, ValueAt
from costproof.models.generic.caches import by_layer, caches_of, held, is_cache
from costproof.models.specs import BUFFER, Run
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected, hooked
from costproof.patches.nested import rows_of
from costproof.patches.patch import patched
from costproof.patches.tensor import STACK_INDEX_ROWS
from costproof.snapshots.copies import attribute_tensors
from costproof.tracers.flop_counter_ledger import DispatchedFlops
from costproof.tracers.paths import Paths, dtype_name, tensors_by_place

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.tracers.kept_pairs import Elements

ROOT: Final = "(root)"
MAX_EVENTS: Final = 20_000
_MOST_KEPT: Final = 2**20
"""Number of elements from which floating-point numbers that hide no score are not copied, such as tables of angles."""


@dataclass(slots=True)
class _CacheFill:
    """Caches that one module call received, their bytes before the call, and their growth in nested calls."""

    caches: tuple[Any, ...]
    before: int
    grown: int
    """Bytes by which all caches had grown when the call began."""
    inside: int = 0


@dataclass(slots=True)
class Hooked:
    """Records of the hooks in one run, which do not change the run."""

    run: Run
    all_calls: bool
    paths: dict[int, str]
    """Path of a module, by ``id`` of the module."""
    call_counts: Counter[str] = field(default_factory=Counter)
    edges: Counter[tuple[str, str]] = field(default_factory=Counter)
    inputs: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    """Inputs of a module's first call, or of all its calls, by path."""
    outputs: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    left_out: int = 0
    """Number of events beyond the maximum, which are not recorded."""
    cache_growth: Counter[str] = field(default_factory=Counter)
    """Bytes by which the caches grew, by the module that wrote them."""
    stack: list[tuple[str, int, BaseException | None]] = field(default_factory=list)
    filling: list[_CacheFill] = field(default_factory=list)
    """Caches that each active call received, in the order of the call stack."""
    marked: set[str] = field(default_factory=set)
    judged: DispatchedFlops = field(default_factory=DispatchedFlops)
    """FLOPs of the operators inside each call, by torch's own formulas."""

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        path = self.paths[id(module)]
        self.call_counts[path] += 1
        call = self.call_counts[path]
        if self.stack:
            self.edges[self.stack[-1][0], path] += 1
        if call == 1 or self.all_calls:
            self.inputs[path] = (*self.inputs.get(path, ()), *describe_arguments(args, kwargs, call))
        self.note("enter", path, {"call": call})
        self.stack.append((path, call, sys.exception()))
        caches = tuple(v for v in (*args, *kwargs.values()) if is_cache(v))
        self.filling.append(_CacheFill(caches, held(*caches), self.cache_growth.total()))
        for mark in self.run.marks:
            if (mark.module or ROOT) == path and mark.name not in self.marked:
                data = mark.read(module, args, kwargs)
                if data:
                    self.marked.add(mark.name)
                    self.note("mark", mark.name, dict(data))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path, call, before = self.stack.pop()
        filled = self.filling.pop()
        outer = next((f for f in reversed(self.filling) if f.caches), None)
        if filled.caches:
            grown = held(*filled.caches) - filled.before
            self.cache_growth[path] += grown - filled.inside
            if outer is not None:
                outer.inside += grown
        elif outer is None and (made := caches_of(output)):
            # What nested calls did not write into the cache that this call created, it wrote itself.
            self.cache_growth[path] += max(0, held(made) - self.cache_growth.total() + filled.grown)
        error = sys.exception()
        if error is not None and error is not before:
            self.note("exit", path, {"call": call, "raised": type(error).__name__})
            return
        if path not in self.outputs or self.all_calls:
            self.outputs[path] = (*self.outputs.get(path, ()), *describe_output(output, call))
        self.note("exit", path, {"call": call})

    def returns_tensors(self, path: str) -> bool:
        """Return whether any recorded call of a module returned a tensor."""
        return any(isinstance(v, TensorAt) for v in self.outputs.get(path, ()))

    def note(self, event: str, name: str, data: dict[str, Any]) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(len(self.events), event, name, data))
        else:
            self.left_out += 1


def trace_hooks(run: Run, *, all_calls: bool = False) -> Hooked:
    """Run the model once with hooks on every module, and remove them.

    Args:
        all_calls: record inputs and outputs of every call, not only of each module's first.
    """
    from costproof.tracers.flop_counter_mode import FlopCounterJudge, LocalJudge
    from costproof.tracers.kept_pairs import PLAIN, hides

    kwargs = run.inputs()
    paths = Paths(run.model)
    seen = Hooked(run, all_calls, {key: path or ROOT for key, path in paths.by_id.items()})
    if run.context is None:
        seen.note("mark", run.id, {"run": run.id})
    else:
        seen.note("mark", "decode_step", {"run": run.id, "context": run.context})
    past = caches_of(kwargs)
    before, layers = held(past), by_layer(past.get("past_key_values"))
    hooks = hooked(paths.modules.values(), seen.enter, seen.leave, with_kwargs=True)
    judge = (LocalJudge if run.dispatched else FlopCounterJudge)(seen.stack, ROOT)
    seen.judged = judge.seen
    for parameter in run.model.parameters():
        own = getattr(parameter, "_local_tensor", parameter)  # of a rank, the part that operators take
        judge.values.add(own, PLAIN, weight=True)
    for place, content in run.masks.items():
        if (tensor := dict(tensors_by_place(kwargs)).get(place)) is not None and tensor.is_meta:
            judge.values.add(tensor, causal_mask(tensor, content.window))
    known = dict(tensors_by_place(run.known))
    parameters = {f"{BUFFER}{name}": tensor for name, tensor in run.model.named_parameters(remove_duplicate=False)}
    every = chain(attribute_tensors(run.model), run.model.named_buffers(remove_duplicate=False))
    own_tensors = parameters | {f"{BUFFER}{name}": tensor for name, tensor in every}
    for place, tensor in (*tensors_by_place(kwargs), *own_tensors.items()):
        own = known.get(place)
        if own is None or own.is_meta or own.shape != tensor.shape:
            continue
        if not (tensor.is_meta or place in parameters):
            continue
        if own.is_floating_point() and (place not in own_tensors or own.numel() > _MOST_KEPT) and not hides(own):
            if place in own_tensors:
                judge.values.add(tensor, PLAIN)
        else:
            judge.values.add(tensor, own.detach().cpu().clone())
    with (
        inference_context(run.model),
        patched(*STACK_INDEX_ROWS),
        hooks,
        forward_redirected(run.model),
        judge.watching(),
    ):
        result = run.model(**kwargs)
    left, grown = caches_of(result), seen.cache_growth
    after = by_layer(left.get("past_key_values"))
    if run.attention_paths and len(run.attention_paths) == len(after):
        added = map(sub, after, layers or [0] * len(after))
        grown = Counter(dict(zip(run.attention_paths, added, strict=True)))
    elif left:
        grown[ROOT] += held(left) - before - grown.total()
    seen.cache_growth = Counter({path: size for path, size in grown.items() if size and (left or past)})
    if seen.left_out:
        seen.events.append(Event(len(seen.events), "mark", "left_out", {"events": seen.left_out}))
    return seen


def causal_mask(tensor: torch.Tensor, window: int) -> Elements:
    """Return the values of a causal mask with the shape of ``tensor`` [.., queries, keys].

    The last query is aligned with the last key, as after a filled cache.

    Args:
        tensor: the mask input; boolean, or to be added to scores.
        window: number of keys that a query attends to; 0 for all.
    """
    import torch

    from costproof.tracers.kept_pairs import Elements

    shape = tuple(tensor.shape)
    queries, keys = shape[-2:]

    def rows(first: int, end: int) -> torch.Tensor:
        own, key = torch.arange(first, end).unsqueeze(1) + (keys - queries), torch.arange(keys)
        left = (key <= own) & (key > own - (window or keys))
        left = left.view((1,) * (len(shape) - 2) + (end - first, keys))
        return left if tensor.dtype == torch.bool else torch.where(left, 0.0, -torch.inf)

    return Elements(shape, rows, None, ("causal", shape, window, tensor.dtype))


MAX_VALUES: Final = 1_000
"""Maximum number of values that are recorded for one call."""
MAX_PLAIN: Final = 16
"""Maximum length of a list of plain values that is written out."""
MAX_TEXT: Final = 80
MAX_DEPTH: Final = 12


def describe_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], call: int = 1) -> tuple[ValueAt, ...]:
    """Describe everything in the arguments of a call: ``args[0]``, ``kwargs.mask``, …"""
    walk = _Walk(call)
    walk.items(args, "args")
    walk.mapping(kwargs, "kwargs")
    return walk.result("args")


def describe_output(output: Any, call: int = 1) -> tuple[ValueAt, ...]:
    """Describe everything in the result of a call: ``output``, ``output[0]``, ``output.logits``, …"""
    walk = _Walk(call)
    walk.value(output, "output")
    return walk.result("output")


class _Walk:
    """One pass over nested values that describes each; a repeated tensor refers to its first occurrence."""

    def __init__(self, call: int) -> None:
        import torch

        self.tensor = torch.Tensor
        self.named = (torch.dtype, torch.device)
        self.call = call
        self.found: list[ValueAt] = []
        self.places: dict[int, str] = {}
        self.open: list[int] = []
        self.left_out = 0

    def result(self, root: str) -> tuple[ValueAt, ...]:
        """Return the descriptions, followed by the number of values that were left out."""
        if self.left_out:
            self.found.append(PlainAt("left out", self.left_out, root, self.call))
        return tuple(self.found)

    def value(self, value: Any, place: str) -> None:
        """Describe a value and all values inside it."""
        if isinstance(value, self.tensor):
            self._tensor(rows_of(value), place)
        elif value is None or isinstance(value, bool | int | float | str):
            self._plain(type(value).__name__, _small(value), place)
        elif isinstance(value, self.named):
            self._plain(type(value).__name__, dtype_name(value), place)
        elif id(value) in self.open or len(self.open) >= MAX_DEPTH:
            self._plain(type(value).__name__, None, place)
        else:
            self.open.append(id(value))
            self._container(value, place)
            self.open.pop()

    def items(self, values: Iterable[Any], place: str) -> None:
        """Describe each item of a sequence, with its index added to the path."""
        for i, item in enumerate(values):
            self.value(item, f"{place}[{i}]")

    def mapping(self, values: Mapping[Any, Any], place: str) -> None:
        """Describe each value of a mapping, with its key added to the path."""
        for key, item in values.items():
            shown = str(key)
            self.value(item, f"{place}.{shown}" if shown.isidentifier() else f"{place}[{shown[:MAX_TEXT]!r}]")

    def _container(self, value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            self.mapping(value, place)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            self.mapping(dict(zip(value._fields, value, strict=True)), place)
        elif isinstance(value, list | tuple):
            if len(value) > MAX_PLAIN and all(v is None or isinstance(v, bool | int | float | str) for v in value):
                self._plain(f"{type(value).__name__}[{len(value)}]", None, place)
            else:
                self.items(value, place)
        elif dataclasses.is_dataclass(value):
            self.mapping({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}, place)
        else:
            self._object(value, place)

    def _object(self, value: Any, place: str) -> None:
        """Describe an object by its type's name; for a cache, describe its tensors too."""
        self._plain(type(value).__name__, None, place)
        for where, tensor in self._held(value, place):
            self._tensor(tensor, where, "cache")

    def _held(self, cache: Any, place: str) -> Iterator[tuple[str, Any]]:
        """Yield (path, tensor) for a cache with layers, or with lists of keys and values (transformers before 4.54)."""
        layers = getattr(cache, "layers", None)
        if isinstance(layers, list | tuple):
            for i, layer in enumerate(layers):
                for name, tensor in sorted(attribute(layer, "__dict__", {}).items()):
                    if isinstance(tensor, self.tensor) and not name.startswith("_"):
                        yield f"{place}.layers[{i}].{name}", tensor
            return
        for name in ("key_cache", "value_cache"):
            tensors = getattr(cache, name, None)
            if isinstance(tensors, list | tuple):
                for i, tensor in enumerate(tensors):
                    if isinstance(tensor, self.tensor):
                        yield f"{place}.{name}[{i}]", tensor

    def _tensor(self, tensor: Any, place: str, kind: Literal["tensor", "cache"] = "tensor") -> None:
        first = self.places.setdefault(id(tensor), place)
        if first != place:
            self._plain("same tensor", first, place)
        elif self._room():
            dtype = dtype_name(tensor.dtype)
            self.found.append(TensorAt(tuple(int(s) for s in tensor.shape), dtype, place, self.call, kind))

    def _plain(self, kind: str, value: JsonScalar, place: str) -> None:
        if self._room():
            self.found.append(PlainAt(kind, value, place, self.call))

    def _room(self) -> bool:
        room = len(self.found) < MAX_VALUES
        self.left_out += not room
        return room


def _small(value: JsonScalar) -> JsonScalar:
    """Return a scalar that is short and valid in JSON; ``None`` for other values."""
    if isinstance(value, str):
        return str(value) if len(value) <= MAX_TEXT else None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) < 2**63 else None
    return value
