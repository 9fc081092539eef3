"""Time every distinct operator call of a forward in isolation, without the time between operators.

The operators of each stage are recorded with the shapes, strides and dtypes of their tensors
(:mod:`costproof.tracers.operator_log`). Each distinct call is then repeated with tensors of the same form and random
values. Weights are evicted from the caches before each call, because in a forward all other weights are read in
between. If the forward ran, indices and masks are its own and weights are the model's, taken in turn from the calls
that used different ones. If it did not, they are generated.

The cost of an operator may depend on generated integers: an index must be inside the dimension that it indexes and
decides what is read; offsets decide which experts of a grouped product are read. Indices are drawn uniformly, offsets
are those of uniform routing, masks hide nothing, and a mask that selects elements selects as many as there are values.
All other integers are 0, divisors 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from costproof.ledger.errors import first_line
from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.specs import Run
from costproof.tracers.operator_log import (
    CallPosition,
    LoggedCall,
    OperatorLog,
    TensorForm,
    log_operators,
    log_operators_without_values,
)
from costproof.tracers.profiled_calls import Marks, ProfiledWork, raw_events, read_calls, work_of
from costproof.tracers.timing import (
    NOWHERE,
    Stage,
    first_launch,
    new_events,
    sleep_device,
    time_events,
    timed_device,
    unlogged_profiler,
)
from costproof.weights.loading import free_bytes

_MOST: Final = 2_000_000_000
"""Nanoseconds of a call's total time above which the call is not repeated."""
_FLUSHED: Final = 2**28
"""Number of bytes that are written to evict the caches of a CPU."""
_ASLEEP: Final = 2_000_000
"""Cycles of a GPU's sleep, about a millisecond: longer than the dispatch of an operator takes."""
_HOT: Final = 5
"""Number of further calls after the timed one, in which only the host is timed."""
_SHORT: Final = 1_000_000
"""Nanoseconds of device time up to which a call is repeated to time the host."""
_LONGER: Final = 16
"""Factor by which the sleep is lengthened for a call whose dispatch takes longer."""
_DRAWN: Final = 2**20
"""Number of random values that are generated for a tensor; larger tensors repeat them."""


@dataclass(frozen=True, slots=True)
class IsolatedTime:
    """Times of a distinct operator call in isolation, one per repetition."""

    device: Timing
    """Time of the call's work on the device; on a CPU, of the call itself."""
    host: Timing
    """Time from the call to its return, without synchronising; on a CPU, the same as ``device``."""
    first: Timing
    """Host time of the first call after other work; on a CPU, the same as ``device``."""


TimeOrReason = IsolatedTime | str
"""Times of a distinct call, or the reason why it could not be repeated."""


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """A distinct operator call of a module, with its measured durations."""

    stage: Stage
    module: str
    """Path of the innermost module that makes the call."""
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the call's tensor arguments."""
    order: tuple[CallPosition, ...]
    """Positions of the identical calls in the forward, with the module calls before each."""
    alone: Timing | None
    """Time of one call on the device; ``None`` if the call could not be repeated."""
    why: str = ""
    """Reason why the call could not be repeated."""
    enqueue: EnqueuedCall | None = None
    """Times of one call on host and device, outside of any forward; ``None`` if the call could not be repeated."""
    first: EnqueuedCall | None = None
    """Like :attr:`enqueue`, with the host time of a call whose code is not in the CPU's caches."""

    @property
    def calls(self) -> int:
        """Return how often the forward makes this call."""
        return len(self.order)


def replay_operators(run: Run, count: int, progress: Progress = silent) -> tuple[ReplayedCall, ...]:
    """Run a forward once, and time each of its distinct calls ``count`` times after one warm-up call."""
    return _replay_distinct({run.id: log_operators(run)}, count, timed_device(run.model), progress)[run.id]


def predict_operators(
    runs: Sequence[Run], device: str, count: int, progress: Progress = silent
) -> dict[str, tuple[ReplayedCall, ...]]:
    """Time each operator in meta traces as it would run on ``cpu`` or ``cuda``; return the results by run.

    Only one call's tensors are in memory at a time. A call of several forwards is timed once.

    Raises:
        Incomplete: a forward needs concrete values.
    """
    found: dict[str, OperatorLog] = {}
    for i, run in enumerate(runs):
        progress("note the operators", i, len(runs))
        found[run.id] = log_operators_without_values(run, device)
    progress("note the operators", len(runs), len(runs))
    return _replay_distinct(found, count, device, progress)


def _replay_distinct(
    runs: Mapping[str, OperatorLog], count: int, device: str, progress: Progress
) -> dict[str, tuple[ReplayedCall, ...]]:
    flush = torch.empty(_FLUSHED, dtype=torch.uint8, device=device)
    distinct = {key: call for notes in runs.values() for key, call in notes.distinct.items()}
    what = f"replay {next(iter(runs))}" if len(runs) == 1 else "replay"
    spent: dict[Any, TimeOrReason] = {}
    with torch.no_grad():
        idle = time_events(lambda nothing: None, lambda: None, 1, 9, queued=True).median if device == "cuda" else 0
        work = _enqueued_work(distinct.values(), flush, progress) if device == "cuda" else {}
        for i, (key, call) in enumerate(distinct.items()):
            progress(what, i, len(distinct))
            known = work.get(id(call))
            spent[key] = _time_call(call, count, flush, device, known is not None and known.waits, idle)
    progress(what, len(distinct), len(distinct))

    def of(stage: Stage, module: str, key: Any, order: list[CallPosition]) -> ReplayedCall:
        call, took = distinct[key], spent[key]
        shapes = tuple(tuple(form.shape) for form in call.tensors)
        about = (stage, module, str(key[0]), shapes, tuple(order))
        if isinstance(took, str):
            return ReplayedCall(*about, None, took)
        on_clocks = partial(_on_both_clocks, str(key[0]), module, took.device.median, work=work.get(id(call)))
        hot, first = on_clocks(took.host.median), on_clocks(took.first.median)
        return ReplayedCall(*about, took.device, "", hot, first)

    return {run: tuple(of(*where, order) for where, order in notes.calls.items()) for run, notes in runs.items()}


def _on_both_clocks(operator: str, module: str, device: int, host: int, work: ProfiledWork | None) -> EnqueuedCall:
    """Combine a call's isolated times and the device work that the profiler saw into host and device times.

    A call that waits for the device has the host time of the profiler, without the waiting.
    """
    if work is None:
        return EnqueuedCall(operator, module, 0, host, 0, 0, 0, False)
    host = work.host if work.waits else host
    launch = work.launch * host // max(1, work.host)
    device = device if work.launches else 0  # of a view the events around it take a while
    return EnqueuedCall(operator, module, 0, host - launch, launch, work.launches, device, work.waits)


def _enqueued_work(calls: Collection[LoggedCall], flush: torch.Tensor, progress: Progress) -> dict[int, ProfiledWork]:
    """Return the device work that the profiler sees each call enqueue, by ``id`` of the call; skip failing calls."""
    from torch.profiler import ProfilerActivity, profile

    marks = Marks()
    with unlogged_profiler(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        first_launch()
        for i, call in enumerate(calls):
            progress("count the launches", i, len(calls))
            if _reason_not_to_run(call, "cuda"):
                continue
            with suppress(Exception):  # _time_call reports it
                _call_marked(call, flush, marks)
            marks.passed(NOWHERE, "")
        torch.cuda.synchronize()
    progress("count the launches", len(calls), len(calls))
    pieces = read_calls(raw_events(profiler), marks.places)
    return {int(p.place[0][0]): work_of(p) for p in pieces if p.place[0] != NOWHERE}


def _call_marked(call: LoggedCall, flush: torch.Tensor, marks: Marks) -> None:
    one = _bind_tensors(call, 0, flush)
    torch.cuda.synchronize()
    marks.passed((str(id(call)), ""), "")
    one()


def _reason_not_to_run(call: LoggedCall, device: str) -> str:
    """Return the reason why a call cannot be repeated; empty if it can be."""
    if not can_make_integers(call.function, call.leaves):
        return "what it does with integers is not known"
    wanted, room = (
        sum(t.bytes for t in call.tensors if isinstance(t, TensorForm)) + (call.results or 0),
        free_bytes(torch.device(device)),
    )
    # The rest is for temporaries of the operator. Memory of a view's base is never written.
    if room is not None and wanted > room * 4 // 5 and not call.views:
        return f"it takes {wanted:,} bytes, more than four fifths of the {room:,} that are free"
    return ""


def _time_call(call: LoggedCall, count: int, flush: torch.Tensor, device: str, waits: bool, idle: int) -> TimeOrReason:
    if reason := _reason_not_to_run(call, device):
        return reason
    spent, host, first = list[int](), list[int](), list[int]()
    more = 0
    try:
        for i in range(1 + count):
            # No variable keeps the tensors of one turn alive while those of the next are made.
            times = _clock(device, waits, idle, more, _bind_tensors(call, i, flush))
            more = _HOT if times[0] < _SHORT and not waits else 0
            if i:
                spent.append(times[0])
                host.append(times[1])
                first.append(times[2])
            if sum(spent) > _MOST:
                break
    except Exception as error:  # an operator may raise anything
        return first_line(error)
    return IsolatedTime(*(Timing(tuple(times)) for times in (spent, host, first)))


def _bind_tensors(call: LoggedCall, turn: int, flush: torch.Tensor) -> Callable[[], Any]:
    """Return a function that makes the call with evicted weights, and with other tensors as in a forward."""
    given: tuple[Any, Any] = tree_unflatten(call.leaves, call.spec)
    make = integer_maker(call.function, *given, flush.device)
    weights = {i: leaf for i, leaf in enumerate(call.leaves) if isinstance(leaf, TensorForm) and leaf.weight}
    if call.weights:
        found = dict(zip(weights, call.weights[turn % len(call.weights)], strict=True))
    else:
        found = {i: _make_tensor(form, flush.device, empty=call.views) for i, form in weights.items()}
    if found and not call.views:
        flush.fill_(turn % 2)

    def tensor(form: TensorForm) -> torch.Tensor:
        return _make_tensor(form, flush.device) if form.dtype.is_floating_point or form.dtype.is_complex else make(form)

    leaves = [
        found[i] if i in found else tensor(leaf) if isinstance(leaf, TensorForm) else leaf
        for i, leaf in enumerate(call.leaves)
    ]
    args, kwargs = tree_unflatten(leaves, call.spec)
    return partial(call.function, *args, **kwargs)


def _make_tensor(form: TensorForm, device: torch.device, *, empty: bool = False) -> torch.Tensor:
    """Return a tensor with this shape, strides and dtype, uninitialised or filled with small values."""
    made = torch.empty(form.size, dtype=form.dtype, device=device)
    if form.size and not empty:
        drawn = torch.rand(min(form.size, _DRAWN), device=device, generator=torch.Generator(device).manual_seed(0))
        drawn = drawn.mul_(0.1).to(form.dtype)
        full = form.size // len(drawn) * len(drawn)
        made[:full].view(-1, len(drawn)).copy_(drawn)
        made[full:] = drawn[: form.size - full]
    return made.as_strided(form.shape, form.stride)


def _clock(device: str, waits: bool, idle: int, more: int, one: Callable[[], Any]) -> tuple[int, int, int]:
    """Time a call: return nanoseconds on the device, on the host until it returns, and on the host at the first call.

    Args:
        device: ``cpu`` or ``cuda``.
        waits: whether the call waits for the device.
        idle: nanoseconds between two events of the device without work.
        more: number of further calls, of which the fastest gives the host time, as code is in the caches in a forward.
        one: function that makes the call.
    """
    if device != "cuda":
        start = time.perf_counter_ns()
        one()
        spent = time.perf_counter_ns() - start
        return spent, spent, spent
    cycles = _ASLEEP
    begin, end = new_events(2)
    while True:
        torch.cuda.synchronize()
        # The device sleeps until the call has been dispatched; otherwise it would wait for that between the events.
        sleep_device(cycles)
        begin.record()
        start = time.perf_counter_ns()
        one()
        host = first = time.perf_counter_ns() - start
        end.record()
        for _ in range(more):
            start = time.perf_counter_ns()
            one()
            host = min(host, time.perf_counter_ns() - start)
        torch.cuda.synchronize()
        if waits or 2 * first < cycles or cycles > _ASLEEP:  # a cycle takes half a nanosecond at least
            return max(0, round(begin.elapsed_time(end) * 1e6) - idle), host, first
        cycles *= _LONGER


CallArguments = Mapping[str, Any]
"""Values of a call's arguments by name, with descriptions in place of tensors."""
_SEED: Final = 0

_INDICES: Final[Mapping[str, tuple[str, str, str | int]]] = {
    "embedding": ("indices", "weight", 0),
    "_embedding_bag": ("indices", "weight", 0),
    "_embedding_bag_forward_only": ("indices", "weight", 0),
    "index_select": ("index", "self", "dim"),
    "gather": ("index", "self", "dim"),
    "scatter": ("index", "self", "dim"),
    "scatter_add": ("index", "self", "dim"),
    "scatter_reduce": ("index", "self", "dim"),
    "index_add": ("index", "self", "dim"),
    "index_copy": ("index", "self", "dim"),
    "index_fill": ("index", "self", "dim"),
    "index_reduce": ("index", "self", "dim"),
    "nll_loss_forward": ("target", "self", 1),
    "nll_loss2d_forward": ("target", "self", 1),
}
"""Argument with indices, the argument that they index, and the dimension, by operator."""

_LISTED: Final = frozenset({"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"})
"""Operators whose ``indices`` list has a tensor or ``None`` for each dimension of ``self``."""

_FLAT: Final = frozenset({"take", "put"})
"""Operators whose ``index`` counts through all elements of ``self`` as if ``self`` were flat."""

_OFFSETS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "_flash_attention_forward": {"cum_seq_q": ("query", 0), "cum_seq_k": ("key", 0)},
    "_efficient_attention_forward": {"cu_seqlens_q": ("query", 1), "cu_seqlens_k": ("key", 1)},
    "_embedding_bag": {"offsets": ("indices", 0)},
    "_embedding_bag_forward_only": {"offsets": ("indices", 0)},
}
"""For each operator, the arguments with offsets from 0, the argument that each divides, and the dimension."""

_GROUPED: Final = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
"""Operators whose argument ``offs`` contains the end of each group."""

_SORTED: Final = frozenset({"sort", "argsort", "topk", "kthvalue", "unique_dim", "searchsorted", "bucketize"})
"""Operators whose cost depends on the order of integers."""

_DIVIDING: Final = frozenset({"div", "floor_divide", "remainder", "fmod", "divide"})
"""Operators whose argument ``other`` must not be 0."""

_PICKED: Final[Mapping[str, str]] = {
    "masked_scatter": "source", "index_put": "values", "_index_put_impl": "values", "_unsafe_index_put": "values",
}  # fmt: skip
"""Argument that has a value for each element that a mask selects, by operator."""


def can_make_integers(function: Any, tensors: list[Any]) -> bool:
    """Return whether valid integer arguments can be generated for a call, which is impossible for custom operators."""
    return function.namespace == "aten" or not any(isinstance(t, TensorForm) and not _real(t) for t in tensors)


def integer_maker(function: Any, args: Any, kwargs: Any, device: torch.device) -> Callable[[TensorForm], torch.Tensor]:
    """Return a function that generates the integer and mask tensors of a call with these arguments."""
    name = function._schema.name.split("::")[1].removesuffix("_")  # as the in-place variant
    given: CallArguments = {**dict(zip([a.name for a in function._schema.arguments], args, strict=False)), **kwargs}
    source = torch.Generator(device).manual_seed(_SEED)

    def drawn(form: TensorForm, below: int) -> torch.Tensor:
        below = max(1, min(below, torch.iinfo(form.dtype).max))
        return torch.randint(0, below, (form.size,), generator=source, device=device).to(form.dtype)

    def made(form: TensorForm) -> torch.Tensor:
        if form.dtype == torch.bool:
            flat = torch.ones(form.size, dtype=torch.bool, device=device)
            flat[_picked(name, given, form) :] = False
        elif (most := _most(name, given, form)) is not None:
            flat = drawn(form, most)
        elif (shares := _shares(name, given, form)) is not None:
            flat = torch.tensor(shares, dtype=form.dtype, device=device)
        else:
            ones = name in _DIVIDING and form is given.get("other")
            flat = torch.full((form.size,), int(ones), dtype=form.dtype, device=device)
        return flat.as_strided(form.shape, form.stride)

    return made


def _real(form: TensorForm) -> bool:
    return form.dtype.is_floating_point or form.dtype.is_complex


def _most(name: str, given: CallArguments, form: TensorForm) -> int | None:
    """Return the exclusive upper limit of an index tensor's values, or of integers to be sorted; else ``None``."""
    if name in _INDICES:
        argument, into, dim = _INDICES[name]
        at = given[dim] if isinstance(dim, str) else min(dim, len(given[into].shape) - 1)
        return _length(given[into], at) if form is given.get(argument) else None
    if name in _LISTED:
        return _below(given, form)
    if name in _FLAT:
        return prod(given["self"].shape) if form is given.get("index") else None
    return prod(form.shape) if name in _SORTED else None


def _below(given: CallArguments, form: TensorForm) -> int | None:
    """Return the size of the dimension that an index tensor in a list of indices selects from."""
    at = 0
    for index in given["indices"]:
        if index is form:
            return _length(given["self"], at)
        at += len(index.shape) if isinstance(index, TensorForm) and index.dtype == torch.bool else 1
    return None


def _length(form: TensorForm, dim: int) -> int:
    return form.shape[dim] if form.shape else 1


def _shares(name: str, given: CallArguments, form: TensorForm) -> list[int] | None:
    """Return offsets that divide rows or tokens evenly, for a tensor of this form; ``None`` if it has no offsets."""
    if name in _GROUPED and form is given.get("offs"):
        a, b = given["self"].shape, given["mat2"].shape
        return routed(b[1] if len(a) == 3 else a[0] if len(b) == 3 else a[1], form.size)
    argument = next((a for a in _OFFSETS.get(name, {}) if form is given.get(a)), None)
    if argument is None:
        return None
    into, dim = _OFFSETS[name][argument]
    return [i * _length(given[into], dim) // max(1, form.size - 1) for i in range(form.size)]


def routed(rows: int, groups: int) -> list[int]:
    """Return the end offset of each expert's rows under uniform routing.

    Of E groups, R rows that are routed independently touch E (1 - (1 - 1/E)^R) on average.
    """
    touched = min(rows, round(groups * (1 - (1 - 1 / groups) ** rows)))
    return [(group + 1) * touched // groups * rows // max(1, touched) for group in range(groups)]


def _picked(name: str, given: CallArguments, form: TensorForm) -> int:
    """Return how many leading elements of a mask must be true."""
    values = next((v for v in tree_leaves(given.get(_PICKED.get(name, ""))) if isinstance(v, TensorForm)), None)
    if values is None:
        return form.size
    if name == "masked_scatter":
        # Each stored element of a mask that is expanded over the features selects a row of them.
        return int(prod(values.shape) * form.size // max(1, prod(given["self"].shape)))
    rest = len(given["self"].shape) - len(form.shape)
    return int(values.shape[0]) if len(values.shape) > rest and values.shape[0] > 1 else form.size
