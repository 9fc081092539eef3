"""Determine which tensors are alive at each moment of a run, and compute peaks of live memory, also as formulas.

The order of the operators of a graph does not depend on the sizes, so the live bytes at a moment are a sum of symbolic
sizes. Most moments never exceed another one, whatever the sizes; they are dropped, and the rest is a maximum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

import sympy

from costproof.algebra.evaluation import ExactNumber
from costproof.algebra.identity import Factors, Terms, expression_of, terms_of, undominated
from costproof.ledger.errors import Incomplete
from costproof.ledger.peaks import STRETCHES, GapPart, LiveTensor, Moment, Peak
from costproof.opgraph.graph import Size

T = TypeVar("T")


class MemoryEvent(NamedTuple):
    """Allocation or release of a block of memory."""

    tensor: int
    """Number of the block."""
    made: bool


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """Memory blocks that one operator of a graph allocates and reads."""

    reads: tuple[int, ...]
    """Numbers of the blocks that hold arguments and results of the operator."""
    events: tuple[MemoryEvent, ...]
    """Allocations and releases during the operator, which may consist of several operations."""


@dataclass(frozen=True, slots=True)
class MemoryProgram:
    """Memory blocks that a graph uses, and the operators that use them, as steps."""

    tensors: tuple[LiveTensor, ...]
    inputs: tuple[int, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Memory blocks, with their allocations and releases in order."""

    tensors: tuple[LiveTensor, ...]
    events: tuple[MemoryEvent, ...]

    def held(self) -> list[int]:
        """Return the bytes that are alive after each event."""
        return list(accumulate(self.tensors[e.tensor].bytes * (1 if e.made else -1) for e in self.events))

    def alive(self, event: int) -> list[int]:
        """Return the numbers of the blocks that are alive after an event, in order of allocation."""
        found: dict[int, None] = {}
        for one in self.events[: event + 1]:
            if one.made:
                found[one.tensor] = None
            else:
                del found[one.tensor]
        return list(found)

    def highest(self) -> int:
        """Return the first event after which the most bytes are alive; -1 if there is no event."""
        held = self.held()
        return held.index(max(held)) if held else -1


def timeline(program: MemoryProgram, *, inputs_held: bool = True) -> Timeline:
    """Return the timeline of a graph that releases each memory block after its last reader.

    Args:
        inputs_held: whether inputs stay alive to the end, since the caller of a separate stage holds them.
    """
    return Timeline(program.tensors, tuple(_events(program, inputs_held)))


def _events(program: MemoryProgram, inputs_held: bool) -> Iterator[MemoryEvent]:
    last = {tensor: at for at, step in enumerate(program.steps) for tensor in (*step.reads, *_survivors(step.events))}
    kept = {*(program.inputs if inputs_held else ()), *program.outputs}
    ends: dict[int, list[int]] = {}
    for tensor, at in last.items():
        if tensor not in kept:
            ends.setdefault(at, []).append(tensor)
    yield from (MemoryEvent(tensor, made=True) for tensor in program.inputs)
    for at, step in enumerate(program.steps):
        yield from step.events
        yield from (MemoryEvent(tensor, made=False) for tensor in sorted(ends.get(at, ())))


def _survivors(events: Sequence[MemoryEvent]) -> Iterable[int]:
    """Return the numbers of the blocks that are allocated and never released."""
    gone = {e.tensor for e in events if not e.made}
    return (e.tensor for e in events if e.made and e.tensor not in gone)


def peak_of(line: Timeline) -> Peak:
    """Return the memory peak: the first moment at which the most bytes are alive."""
    at = line.highest()
    if at < 0:
        return Peak(0, "", "", ())
    last = line.tensors[line.events[at].tensor]
    alive = tuple(line.tensors[i] for i in line.alive(at))
    return Peak(sum(t.bytes for t in alive), last.operator, last.module, alive, len(line.events), _curve(line))


def _curve(line: Timeline) -> tuple[Moment, ...]:
    """Return samples of the live bytes over the run, as :attr:`~costproof.ledger.peaks.Peak.curve` stores them."""
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
    """Explain the difference between the memory peaks of the eager run and of the graph as a sum of parts.

    The graph is evaluated where it creates the tensor that the eager module creates at its peak, or the last tensor
    before that both create. Parts are the tensors that only one of the two holds there, and the distance of the graph
    from its own peak.

    Args:
        holders: returns the variables that hold tensors, from an event of the eager run and the tensors' numbers.
    """
    same = _match_tensors(graph, eager)
    at = eager.highest()
    here = max(
        (_creation_events(graph)[same[e.tensor]] for e in eager.events[: at + 1] if e.tensor in same), default=-1
    )
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
    return _in_order_of_names(parts)


def _in_order_of_names(parts: Sequence[GapPart]) -> tuple[GapPart, ...]:
    """Return the parts with the holders of equal parts in the order of their names.

    A model that loops over a set of strings, as Gemma 3 over the types of its layers, creates equal tensors in an order
    that changes with the seed of Python's hashes.
    """
    held: dict[GapPart, list[tuple[str, ...]]] = {}
    for part in parts:
        held.setdefault(replace(part, holders=()), []).append(part.holders)
    names = {part: iter(sorted(found)) for part, found in held.items()}
    return tuple(replace(part, holders=next(names[replace(part, holders=())])) for part in parts)


def _creation_events(line: Timeline) -> dict[int, int]:
    """Return the index of the event that creates each tensor."""
    return {e.tensor: at for at, e in enumerate(line.events) if e.made}


def _match_tensors(graph: Timeline, eager: Timeline) -> dict[int, int]:
    """Match each tensor of the eager run to a tensor of the graph by operator, module, shape and order."""
    mine, its = (tuple(map(_key, line.tensors)) for line in (eager, graph))
    return dict(_matched_pairs(SequenceMatcher(None, mine, its, autojunk=False)))


def _matched_pairs(found: SequenceMatcher[tuple[object, ...]]) -> Iterator[tuple[int, int]]:
    for block in found.get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _key(tensor: LiveTensor) -> tuple[object, ...]:
    return (tensor.module, tensor.operator, tensor.name, tensor.shape, tensor.dtype, tensor.bytes)


class MemoryStep(NamedTuple):
    """Allocation or release of a memory block, with the same name in all equal layers."""

    made: bool
    tensor: tuple[str, ...]
    """Name, operator, module and dtype of the tensor in the block, with ``*`` for layer numbers."""
    size: str
    """Bytes, or the text of an expression for them."""


def repeated(growing: Iterable[Sequence[T]], more: int) -> list[T] | None:
    """Extrapolate three growing sequences: return the sequence with ``more`` further copies of the repeated blocks.

    The second must be the first with blocks inserted, and the third the first with two copies of each at the same
    places: x y, x A y B, x A A y B B. ``None`` if they are not, if they are in several ways that do not all give the
    same sequence, or if there are too many ways to look at.
    """
    first, second, third = map(list, growing)
    if len(third) - len(second) != len(second) - len(first):
        return None
    found: list[T] | None = None
    ways: list[tuple[int, int, int, tuple[tuple[int, list[T]], ...]]] = [(0, 0, 0, ())]
    for _ in range(_MOST_WAYS):
        if not ways:
            return found
        i, j, k, blocks = ways.pop()
        while i < len(first) and j < len(second) and k < len(third) and first[i] == second[j] == third[k]:
            i, j, k = i + 1, j + 1, k + 1
        if (i, j, k) == (len(first), len(second), len(third)):
            made = _with_blocks(first, blocks, 2 + more)
            if found is not None and made != found:
                return None
            found = made
        # A block that begins earlier is equal to one that begins where the sequences differ, rotated.
        for size in range(len(second) - j - (len(first) - i), 0, -1):
            block = second[j : j + size]
            if third[k : k + 2 * size] == [*block, *block]:
                ways.append((i, j + size, k + 2 * size, (*blocks, (i, block))))
    return None


_MOST_WAYS: Final = 10_000


def _with_blocks(first: Sequence[T], blocks: Iterable[tuple[int, list[T]]], copies: int) -> list[T]:
    made, at = list[T](), 0
    for i, block in blocks:
        made += [*first[at:i], *copies * block]
        at = i
    return [*made, *first[at:]]


def memory_steps(line: Timeline, sizes: Sequence[Size] = ()) -> list[MemoryStep]:
    """Return the allocations and releases of a graph or a run, with the bytes as expressions if ``sizes`` has them."""
    names = [tuple(_LAYER.sub("*", name) for name in (t.name, t.operator, t.module, t.dtype)) for t in line.tensors]
    bytes_of = [str(size) for size in sizes] or [str(t.bytes) for t in line.tensors]
    return [MemoryStep(e.made, names[e.tensor], bytes_of[e.tensor]) for e in line.events]


_LAYER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


MOST: Final = 8
"""Maximum number of moments in a symbolic peak; a formula with more moments is unreadable."""


def peak_form(events: Iterable[MemoryEvent], sizes: Sequence[Size], most: float = MOST) -> sympy.Expr:
    """Return the peak of live bytes as a formula, for all sizes at which the graph is valid.

    Args:
        events: allocations and releases, by the number of the memory block.
        sizes: bytes of each memory block.
        most: maximum number of moments in the formula.

    Raises:
        Incomplete: more moments can be the highest.
    """
    found = undominated(_moments(events, sizes))
    if len(found) > most:
        raise Incomplete(
            "too many moments of the graph may be its peak of memory, depending on the sizes",
            expected=f"at most {most}", got=len(found), fix="costproof peaks TARGET counts the peak at one workload",
        )  # fmt: skip
    return sympy.Max(*map(expression_of, found or [{}]))


def _moments(events: Iterable[MemoryEvent], sizes: Sequence[Size]) -> Iterable[Terms]:
    """Yield the live bytes after each allocation, as a sum of products of symbols."""
    terms = [terms_of(size) for size in sizes]
    alive: dict[Factors, ExactNumber] = {}
    for event in events:
        for of, n in terms[event.tensor].items():
            alive[of] = alive.get(of, 0) + (n if event.made else -n)
        if event.made:
            yield {of: n for of, n in alive.items() if n}
