"""Follow which tensors are alive after each event of a run, and compare the peaks of two runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import NamedTuple

from costproof.ledger.peaks import STRETCHES, GapPart, LiveTensor, Moment, Peak


class Event(NamedTuple):
    """A piece of memory is made, or given back."""

    tensor: int
    """Its number."""
    made: bool


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a graph, in the order of execution."""

    reads: tuple[int, ...]
    """Pieces of memory that its arguments and its results are in."""
    events: tuple[Event, ...]
    """What it makes, and of that what it gives back before it ends: an operator may be made of several."""


@dataclass(frozen=True, slots=True)
class Program:
    """A graph as far as memory goes."""

    tensors: tuple[LiveTensor, ...]
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Pieces of memory, and when each is made and given back."""

    tensors: tuple[LiveTensor, ...]
    events: tuple[Event, ...]

    def held(self) -> list[int]:
        """Bytes that are alive after each event."""
        return list(accumulate(self.tensors[e.tensor].bytes * (1 if e.made else -1) for e in self.events))

    def alive(self, event: int) -> list[int]:
        """Numbers of what is alive after an event, in the order in which they were made."""
        found: dict[int, None] = {}
        for one in self.events[: event + 1]:
            if one.made:
                found[one.tensor] = None
            else:
                del found[one.tensor]
        return list(found)

    def highest(self) -> int:
        """The event after which most bytes are alive, the first of them; -1: nothing is ever made."""
        held = self.held()
        return held.index(max(held)) if held else -1


def timeline(program: Program) -> Timeline:
    """When a graph makes what, and gives it back: as soon as nothing reads it any more."""
    return Timeline(program.tensors, tuple(_events(program)))


def _events(program: Program) -> Iterator[Event]:
    last = {tensor: at for at, step in enumerate(program.steps) for tensor in (*step.reads, *_left(step.events))}
    kept = {*program.inputs, *program.outputs}
    ends: dict[int, list[int]] = {}
    for tensor, at in last.items():
        if tensor not in kept:
            ends.setdefault(at, []).append(tensor)
    yield from (Event(tensor, made=True) for tensor in program.inputs)
    for at, step in enumerate(program.steps):
        yield from step.events
        yield from (Event(tensor, made=False) for tensor in sorted(ends.get(at, ())))


def _left(events: Sequence[Event]) -> Iterable[int]:
    """What is made and not given back."""
    gone = {e.tensor for e in events if not e.made}
    return (e.tensor for e in events if e.made and e.tensor not in gone)


def peak_of(line: Timeline) -> Peak:
    """The first moment at which most bytes are alive."""
    at = line.highest()
    if at < 0:
        return Peak(0, "", "", ())
    last = line.tensors[line.events[at].tensor]
    alive = tuple(line.tensors[i] for i in line.alive(at))
    return Peak(sum(t.bytes for t in alive), last.operator, last.module, alive, len(line.events), _curve(line))


def _curve(line: Timeline) -> tuple[Moment, ...]:
    """What is held over the whole execution, as :attr:`~costproof.ledger.peaks.Peak.curve` has it."""
    held, modules, module = line.held(), list[str](), ""
    for event in line.events:
        module = line.tensors[event.tensor].module if event.made else module
        modules.append(module)
    most = min(len(held), STRETCHES)
    ends = [len(held) * i // most for i in range(most + 1)]
    highest = (max(range(a, b), key=held.__getitem__) for a, b in pairwise(ends))
    return tuple(Moment(at, held[at], modules[at]) for at in highest)


def gap_parts(
    graph: Timeline, eager: Timeline, holders: Callable[[int, Collection[int]], Mapping[int, tuple[str, ...]]]
) -> tuple[GapPart, ...]:
    """The parts of the eager peak less the graph peak; they sum to it.

    The graph is looked at where it makes the tensor at which the module has its peak, or the last one before that
    the two have in common. What the module holds there and the graph does not, and the other way round, are the parts;
    and how far the graph is from its own peak there.

    Args:
        holders: (event of the module's run, numbers of tensors) -> the variables that hold them then.
    """
    same = _same(graph, eager)
    at = eager.highest()
    here = max((_made(graph)[same[e.tensor]] for e in eager.events[: at + 1] if e.tensor in same), default=-1)
    mine, its = eager.alive(at), set(graph.alive(here))
    common = {n: same[n] for n in mine if same.get(n) in its}
    held = [n for n in mine if n in same and n not in common]
    by = holders(at, [n for n in mine if n not in common])
    parts = [GapPart("held", eager.tensors[n].bytes, eager.tensors[n], tuple(by.get(n, ()))) for n in held]
    alone = [n for n in mine if n not in same]
    parts += [GapPart("eager only", eager.tensors[n].bytes, eager.tensors[n], tuple(by.get(n, ()))) for n in alone]
    others = sorted(its - set(common.values()))
    parts += [GapPart("graph only", -graph.tensors[n].bytes, graph.tensors[n]) for n in others]
    top = graph.highest()
    beyond = (graph.held()[here] if here >= 0 else 0) - (graph.held()[top] if top >= 0 else 0)
    if beyond:
        parts.append(GapPart("elsewhere", beyond, None, where=graph.tensors[graph.events[top].tensor].module))
    return tuple(parts)


def _made(line: Timeline) -> dict[int, int]:
    """Tensor -> the event that makes it."""
    return {e.tensor: at for at, e in enumerate(line.events) if e.made}


def _same(graph: Timeline, eager: Timeline) -> dict[int, int]:
    """Tensors of the run -> tensors of the graph that the same operator makes at the same place of the same order."""
    mine, its = (tuple(map(_key, line.tensors)) for line in (eager, graph))
    return dict(_pairs(SequenceMatcher(None, mine, its, autojunk=False)))


def _pairs(found: SequenceMatcher[tuple[object, ...]]) -> Iterator[tuple[int, int]]:
    for block in found.get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _key(tensor: LiveTensor) -> tuple[object, ...]:
    return (tensor.module, tensor.operator, tensor.name, tensor.shape, tensor.dtype, tensor.bytes)
