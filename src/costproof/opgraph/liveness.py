"""Determine which tensors are alive at each moment of a run, and compute peaks of live memory, also as formulas.

The order of the operators of a graph does not depend on the sizes, so the live bytes at a moment are a sum of symbolic
sizes. Most moments never exceed another one, whatever the sizes; they are dropped, and the rest is a maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
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
    module: str = ""
    """Path of the module that runs the operator."""


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


def released_peak(program: MemoryProgram) -> int:
    """Return the most bytes alive at once if each block, an input too, is released when no reader of it is left.

    A second count beside :func:`timeline`: it knows no last readers, but counts those that are left.
    """
    left = Counter(block for step in program.steps for block in {*step.reads})
    alive, kept = {*program.inputs}, {*program.outputs}
    held = most = sum(program.tensors[block].bytes for block in alive)
    for step in program.steps:
        for event in step.events:
            (alive.add if event.made else alive.remove)(event.tensor)
            held += program.tensors[event.tensor].bytes * (1 if event.made else -1)
            most = max(most, held)
        left.subtract({*step.reads})
        for block in {*step.reads, *(event.tensor for event in step.events)} & alive:
            if left[block] == 0 and block not in kept:
                alive.remove(block)
                held -= program.tensors[block].bytes
    return most


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


@dataclass(frozen=True, slots=True)
class LayerStack:
    """Stack of layers in a truncated model, which are the first layers of a stack in the whole model."""

    path: str
    kept: int
    """Number of layers of the truncated model."""
    kinds: tuple[int, ...]
    """Kind of each layer of the whole model, as a number."""

    def layer(self, module: str) -> int | None:
        """Return the layer that a module path is in; ``None`` outside of this stack."""
        index, _, _ = module.removeprefix(f"{self.path}.").partition(".")
        return int(index) if module.startswith(f"{self.path}.") and index.isdecimal() else None

    def moved(self, module: str, layer: int | str) -> str:
        """Return the path of the module at the same place in another layer; unchanged outside of this stack."""
        own = self.layer(module)
        return module if own is None else f"{self.path}.{layer}{module.removeprefix(f'{self.path}.{own}')}"

    def like(self, layer: int) -> int:
        """Return the layer of the truncated model that stands for a layer of the whole one: itself, if it remains."""
        return layer if layer < self.kept else max(i for i in range(self.kept) if self.kinds[i] == self.kinds[layer])


class ComposedProgram(NamedTuple):
    """Memory program of a whole model, composed from that of a truncated one."""

    program: MemoryProgram
    origin: tuple[int, ...]
    """For each block, the block of the truncated model that it is a copy of, or is itself."""


def composed(
    program: MemoryProgram,
    stacks: Sequence[LayerStack],
    sizes: Sequence[Size] = (),
    constants: Mapping[int, int] | None = None,
) -> ComposedProgram | None:
    """Compose the memory program of a model with all layers from that of a model with the first ones.

    An omitted layer uses memory as the last remaining layer of its kind: it has blocks of its own, such as its
    activations and cache, reads those that the layer before hands on, and those that are outside of the layers. When a
    block is released follows from the readers in the whole program. ``None`` unless remaining layers of one kind do
    the same, step by step and block by block, and each layer runs once, in order.

    Args:
        program: that of the truncated model.
        stacks: its stacks of layers.
        sizes: bytes of each block as expressions, if they are to be compared in place of the numbers.
        constants: number of further constants that the graph of the whole model copies outside of its layers, by bytes;
            by default those for one layer alone.
    """
    try:
        return _Composition(program, stacks, sizes).whole(constants)
    except _NotComposedError:
        return None


class _NotComposedError(Exception):
    """Raised if the layers of a program cannot be copied."""


class _Run(NamedTuple):
    """Consecutive steps of a program, in one layer or outside of all."""

    stack: int
    """Number of the stack; -1 outside."""
    layer: int
    steps: list[ProgramStep]


_Token = tuple[str, int]
"""What a block is to a layer: its own, an input for it alone, handed on by the layer before, or shared; and which."""


_LARGE: Final = 2**20
"""Least value of a symbol at which sizes are compared, beyond branches for small sizes such as ``Max(1, S)``."""


@lru_cache(maxsize=4096)
def _at_some_size(size: Size) -> int:
    """Return the value of a size at large symbols: a layer may state another form of the same size."""
    if isinstance(size, int):
        return size
    symbols = sorted(size.free_symbols, key=str)
    return int(size.xreplace({symbol: sympy.Integer(_LARGE + 60 * i + 1) for i, symbol in enumerate(symbols)}))


class _Composition:
    """A program by layers, and the whole program that is composed of copies of them."""

    def __init__(self, program: MemoryProgram, stacks: Sequence[LayerStack], sizes: Sequence[Size]) -> None:
        self.program, self.stacks = program, stacks
        self.sizes = [_at_some_size(size) for size in sizes] or [t.bytes for t in program.tensors]
        self.runs = self._runs()
        self.maker = dict.fromkeys(program.inputs, -1)
        self.readers: dict[int, dict[int, None]] = {}
        for at, run in enumerate(self.runs):
            for step in run.steps:
                for event in step.events:
                    if event.made:
                        self.maker[event.tensor] = at
                    elif self.maker[event.tensor] != at:
                        raise _NotComposedError
                for block in step.reads:
                    self.readers.setdefault(block, {})[at] = None
        self.own: list[list[int]] = [[] for _ in self.runs]
        for block, at in self.maker.items():
            if at >= 0:
                self.own[at].append(block)
        self.given: list[list[int]] = [[] for _ in self.runs]
        self.prepared: list[list[int]] = [[] for _ in self.runs]
        self.carried: list[list[int]] = [[] for _ in self.runs]
        for at in range(len(self.runs)):
            self._classify(at)
        self._give_unread()
        self.handed = [self._handed(at) for at in range(len(self.runs))]
        self.tokens = [self._tokens(at) for at in range(len(self.runs))]
        self._check_kinds()
        self.tensors: list[LiveTensor] = []
        self.origin: list[int] = []
        self.steps: list[ProgramStep] = []
        self.outputs: list[int] = []
        self.first: dict[int, int] = {}
        """Number in the whole program of each block of the truncated one."""

    def _runs(self) -> list[_Run]:
        """Return the steps in runs of one layer; steps between two layers belong to the first of them."""
        runs: list[_Run] = []
        for step in self.program.steps:
            places = ((i, stack.layer(step.module)) for i, stack in enumerate(self.stacks))
            stack, layer = next(((i, n) for i, n in places if n is not None), (-1, 0))
            if len(runs) > 1 and runs[-1].stack < 0 <= stack == runs[-2].stack and layer - runs[-2].layer in (0, 1):
                between = runs.pop()
                runs[-1].steps.extend(between.steps)
            if not runs or (runs[-1].stack, runs[-1].layer) != (stack, layer):
                runs.append(_Run(stack, layer, []))
            runs[-1].steps.append(step)
        for number, of in enumerate(self.stacks):
            where = [(at, run.layer) for at, run in enumerate(runs) if run.stack == number]
            first = where[0][0] if where else 0
            if where and where != [(first + i, i) for i in range(of.kept)]:
                raise _NotComposedError
        return runs

    def _layer_runs(self, stack: int) -> list[int]:
        return [at for at, run in enumerate(self.runs) if run.stack == stack]

    def _classify(self, at: int) -> None:
        """Find the blocks that a layer alone is given, and those that the layer before hands on."""
        run = self.runs[at]
        if run.stack < 0:
            return
        for block in dict.fromkeys(block for step in run.steps for block in step.reads):
            maker = self.maker[block]
            if maker == -1 and [*self.readers[block]] == [at]:
                self.given[at].append(block)
            elif self._is_prepared(block, at):
                self.prepared[at].append(block)
            elif run.layer > 0 and maker == at - 1:
                self.carried[at].append(block)
            elif run.layer == 0 and 0 <= maker < at and self.runs[maker].stack != run.stack:
                later = [i for i in self.readers[block] if self.runs[i].stack == run.stack and i != at]
                if not later:  # as the embeddings; what later layers read too is shared
                    self.carried[at].append(block)

    def _give_unread(self) -> None:
        """Give each layer the inputs that nothing reads and that come after one of its own: states of its cache."""
        places = {block: at for at, blocks in enumerate(self.given) for block in blocks}
        at, stem = None, ""
        for block in self.program.inputs:
            name = self.program.tensors[block].name.rpartition(".")[0]
            if block in self.readers:
                at, stem = places.get(block), name
            elif at is not None and name and name == stem:
                self.given[at].append(block)

    def _is_prepared(self, block: int, at: int | None) -> bool:
        """Return whether a block is made for one layer alone, outside of it and from nothing: a number of its cache.

        Args:
            at: the run of the layer; ``None`` for no layer.
        """
        maker = self.maker[block]
        readers = {maker} if at is None else {maker, at}
        if maker < 0 or self.runs[maker].stack >= 0 or {*self.readers[block]} != readers:
            return False
        steps = (step for step in self.runs[maker].steps if block in step.reads)
        return all(step.reads == (block,) and all(e.tensor == block for e in step.events) for step in steps)

    def _handed(self, at: int) -> tuple[int, ...]:
        """Return which of a layer's own blocks the next layer reads, or whatever follows the last layer, in order."""
        run = self.runs[at]
        if run.stack < 0:
            return ()
        last = run.layer == self.stacks[run.stack].kept - 1
        if not last:
            allowed, found = {at, at + 1}, self.carried[at + 1]
        else:
            allowed = {at} | {i for i, other in enumerate(self.runs) if other.stack != run.stack}
            after = (block for other in self.runs[at + 1 :] for step in other.steps for block in step.reads)
            found = [block for block in dict.fromkeys(after) if self.maker[block] == at]
        if any(self.readers.get(block, {}).keys() - allowed for block in self.own[at]):
            raise _NotComposedError
        return tuple(self.own[at].index(block) for block in found)

    def _tokens(self, at: int) -> dict[int, _Token]:
        """Return what the blocks of a layer are to it; all others are shared."""
        parts = {"own": self.own, "given": self.given, "prepared": self.prepared, "carried": self.carried}
        every = [(block, (name, i)) for name, blocks in parts.items() for i, block in enumerate(blocks[at])]
        return dict(reversed(every))  # of a block in several parts, the first decides

    def _token(self, block: int, at: int) -> _Token:
        return self.tokens[at].get(block, ("shared", block))

    def _check_kinds(self) -> None:
        """Check that layers of one kind are alike, and that an omitted layer is like at least two."""
        for number, of in enumerate(self.stacks):
            runs = self._layer_runs(number)
            if not runs:
                continue
            alike: dict[int, list[object]] = {}
            for at in runs:
                alike.setdefault(of.kinds[self.runs[at].layer], []).append(self._layer(at, of))
            if any(len(alike.get(kind, [])) < 2 for kind in of.kinds[of.kept :]):
                raise _NotComposedError
            if any(one != same[0] for same in alike.values() for one in same):
                raise _NotComposedError
            # A layer of any kind can take what one of another hands on.
            handed = {tuple(self._block(self.own[at][i])[1:] for i in self.handed[at]) for at in runs}
            # The first layer is given the embeddings, and what no other layer of its kind would read.
            taking = runs if of.kinds[0] in of.kinds[of.kept :] else runs[1:]
            if len(handed) != 1 or any(len(self.carried[at]) != len(self.handed[runs[0]]) for at in taking):
                raise _NotComposedError

    def _block(self, block: int) -> tuple[object, ...]:
        tensor = self.program.tensors[block]
        # In symbols the shape of the example is none of the block.
        return tensor.name, tensor.dtype, self.sizes[block]

    def _layer(self, at: int, of: LayerStack) -> object:
        """Return what a layer does, without its number."""
        steps = tuple(
            (
                of.moved(step.module, "*"),
                tuple(self._token(block, at) for block in step.reads),
                tuple((self._token(event.tensor, at), event.made) for event in step.events),
            )
            for step in self.runs[at].steps
        )
        kept = tuple(i for i, block in enumerate(self.own[at]) if block in self.program.outputs)
        returned = tuple(i for i, block in enumerate(self.given[at]) if block in self.program.outputs)
        given = tuple(self._block(block)[1:] for block in self.given[at])
        made = (*self.own[at], *self.prepared[at])
        return steps, tuple(map(self._block, made)), given, kept, returned, self.handed[at]

    def loose(self) -> list[int]:
        """Return the constants that only steps outside of the layers use, the last of each size: numbers of a cache."""
        found = {
            self.program.tensors[block].bytes: block
            for block, at in self.maker.items()
            if at >= 0 and self.program.tensors[block].operator == CONSTANT and self._is_prepared(block, None)
        }
        return [*found.values()]

    def whole(self, constants: Mapping[int, int] | None) -> ComposedProgram:
        """Return the program of all layers."""
        to = {block: self._add(block) for block in self.program.inputs}
        extra: dict[tuple[int, int], dict[int, int]] = {}
        copies: dict[int, list[dict[int, int]]] = {}
        for number, of in enumerate(self.stacks):
            runs = self._layer_runs(number)
            for layer in range(of.kept, len(of.kinds) if runs else 0):
                like = runs[of.like(layer)]
                here = extra[number, layer] = {block: self._add(block, of, layer) for block in self.given[like]}
                for block in self.prepared[like]:
                    copies.setdefault(block, []).append(here)
        if constants is not None:
            tensors = self.program.tensors
            left = Counter(constants)
            for block, made in copies.items():
                left[tensors[block].bytes] -= len(made) if tensors[block].operator == CONSTANT else 0
            for block in self.loose():
                copies[block] = [{} for _ in range(left.pop(tensors[block].bytes, 0))]
            if any(left.values()):
                raise _NotComposedError
        for at, run in enumerate(self.runs):
            for step in run.steps:
                self._copy([step], to)
                for there in copies.get(step.reads[0], ()) if run.stack < 0 and len(step.reads) == 1 else ():
                    self._copy([step], there)
            if run.stack < 0 or run.layer < self.stacks[run.stack].kept - 1:
                continue
            of, runs = self.stacks[run.stack], self._layer_runs(run.stack)
            before, hands = to, runs[-1]
            for layer in range(of.kept, len(of.kinds)):
                like = runs[of.like(layer)]
                handed = (before[self.own[hands][i]] for i in self.handed[hands])
                own = {k: v for k, v in to.items() if self.maker[k] not in runs}
                own |= dict(zip(self.carried[like], handed, strict=True)) | extra[run.stack, layer]
                self._copy(self.runs[like].steps, own, of, layer)
                kept = (*self.own[like], *self.given[like])
                self.outputs += [own[block] for block in kept if block in self.program.outputs]
                before, hands = own, like
            # What follows reads that of the last layer.
            to |= {
                self.own[at][i]: before[self.own[hands][j]]
                for i, j in zip(self.handed[at], self.handed[hands], strict=True)
            }
        self.outputs += [self.first[block] for block in self.program.outputs]
        every = tuple(at for at, block in enumerate(self.origin) if self.maker[block] == -1)
        program = MemoryProgram(tuple(self.tensors), every, tuple(self.steps), tuple(dict.fromkeys(self.outputs)))
        return ComposedProgram(program, tuple(self.origin))

    def _add(self, block: int, of: LayerStack | None = None, layer: int = 0) -> int:
        tensor = self.program.tensors[block]
        self.tensors.append(tensor if of is None else replace(tensor, module=of.moved(tensor.module, layer)))
        self.origin.append(block)
        self.first.setdefault(block, len(self.tensors) - 1)
        return len(self.tensors) - 1

    def _copy(
        self, steps: Iterable[ProgramStep], to: dict[int, int], of: LayerStack | None = None, layer: int = 0
    ) -> None:
        """Add steps to the whole program, with the numbers of blocks there; blocks that they make get new ones."""
        for step in steps:
            for event in step.events:
                if event.made:
                    to[event.tensor] = self._add(event.tensor, of, layer)
            self.steps.append(
                ProgramStep(
                    tuple(to[block] for block in step.reads),
                    tuple(MemoryEvent(to[event.tensor], event.made) for event in step.events),
                    step.module if of is None else of.moved(step.module, layer),
                )
            )


OUTSIDE: Final = (-1, 0)
"""Key of what is outside of all layers, in place of (stack, layer)."""


CONSTANT: Final = "aten.lift_fresh_copy.default"
"""Operator of a graph that copies a constant of the code; a run has ``lift_fresh`` in its place."""


class LayerEvent(NamedTuple):
    """Allocation or release of a block by a run, with the same name in all layers of a kind."""

    made: bool
    name: str
    operator: str
    module: str
    """Path of the module, with ``*`` for the number of the layer."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def events_by_layer(line: Timeline, stacks: Sequence[LayerStack]) -> dict[tuple[int, int], list[LayerEvent]]:
    """Return what a run allocates outside of layers, and what it allocates and releases in each, by (stack, layer).

    Inputs are left out, and so are releases of what another layer made.
    """
    found: dict[tuple[int, int], list[LayerEvent]] = {}
    here = OUTSIDE
    places: dict[int, tuple[int, int]] = {}
    for event in line.events:
        tensor = line.tensors[event.tensor]
        if not tensor.operator:
            continue
        if event.made:
            layers = ((i, of.layer(tensor.module)) for i, of in enumerate(stacks))
            here = next(((i, layer) for i, layer in layers if layer is not None), OUTSIDE)
            places[event.tensor] = here
        elif here[0] < 0 or places[event.tensor] != here:
            continue
        module = tensor.module if here[0] < 0 else stacks[here[0]].moved(tensor.module, "*")
        found.setdefault(here, []).append(
            LayerEvent(event.made, tensor.name, tensor.operator, module, tensor.shape, tensor.dtype, tensor.bytes)
        )
    return found


def predicted(few: Mapping[tuple[int, int], T], stacks: Sequence[LayerStack]) -> dict[tuple[int, int], T]:
    """Return what a run of the whole model does, by (stack, layer), if layers of one kind do the same."""
    every = {key: value for key, value in few.items() if key[0] < 0}
    for number, of in enumerate(stacks):
        layers = {i: few[number, of.like(i)] for i in range(len(of.kinds)) if (number, of.like(i)) in few}
        every |= {(number, i): value for i, value in layers.items()}
    return every


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


def outside_constants(program: MemoryProgram, stacks: Sequence[LayerStack]) -> Counter[int]:
    """Return the number of constants that a graph copies outside of its layers, by their bytes."""
    outside = (t for t in program.tensors if all(of.layer(t.module) is None for of in stacks))
    return Counter(t.bytes for t in outside if t.bytes and t.operator == CONSTANT)
