"""Every distinct operator of a forward, timed alone: what the work takes without what lies between the operators.

A forward runs once at the dispatcher's side, which notes the operators of each stage with the shapes, strides and types
of what they take. Then each distinct call is made again, some times, with tensors of the same form: numbers are random,
indices and masks are those of the forward. Weights are the model's own, taken in turns from the calls that had other
ones, and out of the caches before each call, for in the forward all other weights passed through them since.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from costproof.ledger.profile import Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.jobs import Run
from costproof.tracers.stage_clock import NOWHERE, Stage, entered

_WEIGHTS_KEPT: Final = 8
"""Of a distinct call: so many sets of weights take turns."""
_MOST: Final = 2_000_000_000
"""Nanoseconds: a call that took longer in all is not made again."""
_FLUSHED: Final = 2**28
"""Bytes that are written to empty the caches of a processor."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A distinct call of a module."""

    stage: Stage
    module: str
    """Path of the innermost module that makes it."""
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    """Of the tensors that it takes."""
    calls: int
    alone: Timing
    """Of one call."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    weight: bool


@dataclass(slots=True)
class _Call:
    function: Any
    spec: Any
    leaves: list[Any]
    """Forms, tensors of indices, and all that is not a tensor."""
    weights: list[list[torch.Tensor]] = field(default_factory=list)


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a forward calls, by stage and module."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: tuple[Stage, str] = (NOWHERE, "")
        self.calls: Counter[tuple[Stage, str, Any]] = Counter()
        self.distinct: dict[Any, _Call] = {}
        self._weights = weights

    def passed(self, stage: Stage, module: str) -> None:
        """The work goes on here."""
        self.place = (stage, module)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves, spec = tree_flatten((args, kwargs or {}))
        key = (
            func,
            str(spec),
            *(self._form(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves),
        )
        self.calls[*self.place, key] += 1
        if key not in self.distinct:
            self.distinct[key] = _Call(func, spec, [self._kept(leaf) for leaf in leaves])
        own = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and self._form(leaf).weight]
        if own and len(self.distinct[key].weights) < _WEIGHTS_KEPT:
            self.distinct[key].weights.append(own)
        return func(*args, **(kwargs or {}))

    def _form(self, tensor: torch.Tensor) -> _Form:
        weight = tensor.is_floating_point() and tensor.untyped_storage().data_ptr() in self._weights
        return _Form(tuple(tensor.shape), tensor.stride(), tensor.dtype, weight)

    def _kept(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return self._form(leaf) if leaf.is_floating_point() or leaf.is_complex() else leaf.detach().clone()


def replayed(run: Run, count: int, progress: Progress = silent) -> tuple[Replayed, ...]:
    """The distinct calls of a forward, each made ``count`` times alone after one to warm up.

    Raises:
        RuntimeError: an operator cannot be called with tensors of the same form.
    """
    device = next(run.model.parameters()).device
    notes = _Notes({p.untyped_storage().data_ptr() for p in run.model.parameters()})
    kwargs = run.inputs()
    everywhere = [path for path, _ in run.model.named_modules()]
    with entered(run, everywhere, notes.passed), torch.no_grad(), run.around(), notes:
        run.model(**kwargs)
    del kwargs
    flush = torch.empty(_FLUSHED, dtype=torch.uint8, device=device)
    spent: dict[Any, tuple[int, ...]] = {}
    with torch.no_grad():
        for i, (key, call) in enumerate(notes.distinct.items()):
            progress(f"replay {run.id}", i, len(notes.distinct))
            spent[key] = _timed(call, count, flush)
    progress(f"replay {run.id}", len(notes.distinct), len(notes.distinct))
    return tuple(
        Replayed(
            stage, module, str(key[0]), tuple(f.shape for f in _forms(notes.distinct[key])), calls, Timing(spent[key])
        )
        for (stage, module, key), calls in notes.calls.items()
    )


def _forms(call: _Call) -> list[Any]:
    return [leaf for leaf in call.leaves if isinstance(leaf, _Form | torch.Tensor)]


def _timed(call: _Call, count: int, flush: torch.Tensor) -> tuple[int, ...]:
    found: list[int] = []
    for i in range(1 + count):
        one = _bound(call, i, flush)
        spent = _clocked(one, flush.device.type)
        if i:
            found.append(spent)
        if sum(found) > _MOST:
            break
    return tuple(found)


def _bound(call: _Call, turn: int, flush: torch.Tensor) -> Callable[[], Any]:
    """The call with tensors, those that the operators before it made as warm as they left them."""
    weights = call.weights[turn % len(call.weights)] if call.weights else []
    if weights:
        flush.fill_(turn % 2)
    own = iter(weights)
    leaves = [
        leaf if not isinstance(leaf, _Form) else next(own) if leaf.weight else _made(leaf, flush.device)
        for leaf in call.leaves
    ]
    args, kwargs = tree_unflatten(leaves, call.spec)
    return partial(call.function, *args, **kwargs)


def _made(form: _Form, device: torch.device) -> torch.Tensor:
    """A tensor of that form with small numbers; those that lie in memory several times lie there so again."""
    size = 1 + sum((n - 1) * abs(s) for n, s in zip(form.shape, form.stride, strict=True)) if all(form.shape) else 0
    numbers = torch.rand(size, device=device, generator=torch.Generator(device).manual_seed(0))
    return numbers.mul_(0.1).to(form.dtype).as_strided(form.shape, form.stride)


def _clocked(one: Callable[[], Any], device: str) -> int:
    if device != "cuda":
        start = time.perf_counter_ns()
        one()
        return time.perf_counter_ns() - start
    new_event: Any = torch.cuda.Event
    begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    one()
    end.record()
    torch.cuda.synchronize()
    spent: float = begin.elapsed_time(end)
    return round(spent * 1e6)
