"""Every distinct operator of a forward, timed alone: what the work takes without what lies between the operators.

The operators of each stage are noted with the shapes, strides and types of what they take
(:mod:`costproof.tracers.noted`). Then each distinct call is made again, some times, with tensors of the same form.
Their numbers are random; weights are out of the caches before each call, for in a forward all other weights pass
through them since. Of a forward that ran, indices and masks are its own, and weights are the model's, taken in turns
from the calls that had other ones; of one that did not they are made (:mod:`costproof.tracers.indices`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch.utils._pytree import tree_unflatten

from costproof.ledger.errors import first_line
from costproof.ledger.profile import Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.jobs import Run
from costproof.models.memory import free_bytes
from costproof.tracers.indices import knows, numbers
from costproof.tracers.noted import Call, Form, Notes, noted, noted_unrun
from costproof.tracers.stage_clock import Stage

_MOST: Final = 2_000_000_000
"""Nanoseconds: a call that took longer in all is not made again."""
_FLUSHED: Final = 2**28
"""Bytes that are written to empty the caches of a processor."""
_ASLEEP: Final = 2_000_000
"""Cycles of a GPU, about a millisecond: longer than an operator takes to be dispatched."""
_DRAWN: Final = 2**20
"""Numbers that are drawn; larger tensors repeat them."""

Spent = Timing | str
"""Of one distinct call, or why it could not be made."""


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
    alone: Timing | None
    """Of one call; ``None`` if it could not be made."""
    why: str = ""
    """It could not."""


def replayed(run: Run, count: int, progress: Progress = silent) -> tuple[Replayed, ...]:
    """The distinct calls of a forward, which runs once, each made ``count`` times alone after one to warm up."""
    device = next(run.model.parameters()).device
    return _alone({run.id: noted(run)}, count, device, progress)[run.id]


def predicted(
    runs: Sequence[Run], device: str, count: int, progress: Progress = silent
) -> dict[str, tuple[Replayed, ...]]:
    """Run -> the same of forwards on meta that never run, as they would on ``cpu`` or ``cuda``.

    Only one call's tensors are held at a time. A call that several forwards make is made for one of them.

    Raises:
        Incomplete: a forward needs numbers.
    """
    found: dict[str, Notes] = {}
    for i, run in enumerate(runs):
        progress("note the operators", i, len(runs))
        found[run.id] = noted_unrun(run, device)
    progress("note the operators", len(runs), len(runs))
    return _alone(found, count, torch.device(device), progress)


def _alone(
    runs: Mapping[str, Notes], count: int, device: torch.device, progress: Progress
) -> dict[str, tuple[Replayed, ...]]:
    flush = torch.empty(_FLUSHED, dtype=torch.uint8, device=device)
    distinct = {key: call for notes in runs.values() for key, call in notes.distinct.items()}
    what = f"replay {next(iter(runs))}" if len(runs) == 1 else "replay"
    spent: dict[Any, Spent] = {}
    with torch.no_grad():
        for i, (key, call) in enumerate(distinct.items()):
            progress(what, i, len(distinct))
            spent[key] = _timed(call, count, flush)
    progress(what, len(distinct), len(distinct))

    def of(stage: Stage, module: str, key: Any, calls: int) -> Replayed:
        took = spent[key]
        shapes = tuple(tuple(form.shape) for form in distinct[key].tensors)
        done, why = (took, "") if isinstance(took, Timing) else (None, took)
        return Replayed(stage, module, str(key[0]), shapes, calls, done, why)

    return {run: tuple(of(*where, calls) for where, calls in notes.calls.items()) for run, notes in runs.items()}


def _timed(call: Call, count: int, flush: torch.Tensor) -> Spent:
    if not knows(call.function, call.leaves):
        return "what it does with integers is not known"
    wanted, room = (
        sum(t.bytes for t in call.tensors if isinstance(t, Form)) + (call.results or 0),
        free_bytes(flush.device),
    )
    # The rest is for what the operator takes for itself. Memory that a view only describes is never written.
    if room is not None and wanted > room * 4 // 5 and not call.views:
        return f"it takes {wanted:,} bytes, more than four fifths of the {room:,} that are free"
    found: list[int] = []
    try:
        for i in range(1 + count):
            # No name holds the tensors of one turn while those of the next are made.
            spent = _clocked(_bound(call, i, flush), flush.device.type)
            if i:
                found.append(spent)
            if sum(found) > _MOST:
                break
    except Exception as error:  # an operator raises what it likes
        return first_line(error)
    return Timing(tuple(found))


def _bound(call: Call, turn: int, flush: torch.Tensor) -> Callable[[], Any]:
    """The call with tensors: weights out of the caches, all others as warm as the operators before left theirs."""
    given: tuple[Any, Any] = tree_unflatten(call.leaves, call.spec)
    make = numbers(call.function, *given, flush.device)
    weights = {i: leaf for i, leaf in enumerate(call.leaves) if isinstance(leaf, Form) and leaf.weight}
    if call.weights:
        found = dict(zip(weights, call.weights[turn % len(call.weights)], strict=True))
    else:
        found = {i: _made(form, flush.device, empty=call.views) for i, form in weights.items()}
    if found and not call.views:
        flush.fill_(turn % 2)

    def tensor(form: Form) -> torch.Tensor:
        return _made(form, flush.device) if form.dtype.is_floating_point or form.dtype.is_complex else make(form)

    leaves = [
        found[i] if i in found else tensor(leaf) if isinstance(leaf, Form) else leaf
        for i, leaf in enumerate(call.leaves)
    ]
    args, kwargs = tree_unflatten(leaves, call.spec)
    return partial(call.function, *args, **kwargs)


def _made(form: Form, device: torch.device, *, empty: bool = False) -> torch.Tensor:
    """A tensor of that form with small numbers, or any; those that lie in memory several times lie there so again."""
    made = torch.empty(form.size, dtype=form.dtype, device=device)
    if form.size and not empty:
        drawn = torch.rand(min(form.size, _DRAWN), device=device, generator=torch.Generator(device).manual_seed(0))
        drawn = drawn.mul_(0.1).to(form.dtype)
        full = form.size // len(drawn) * len(drawn)
        made[:full].view(-1, len(drawn)).copy_(drawn)
        made[full:] = drawn[: form.size - full]
    return made.as_strided(form.shape, form.stride)


def _clocked(one: Callable[[], Any], device: str) -> int:
    if device != "cuda":
        start = time.perf_counter_ns()
        one()
        return time.perf_counter_ns() - start
    new_event: Any = torch.cuda.Event
    begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
    torch.cuda.synchronize()
    # The device is busy until the call has been dispatched: else it would wait for that between the two events.
    sleep: Any = torch.cuda._sleep
    sleep(_ASLEEP)
    begin.record()
    one()
    end.record()
    torch.cuda.synchronize()
    spent: float = begin.elapsed_time(end)
    return round(spent * 1e6)
