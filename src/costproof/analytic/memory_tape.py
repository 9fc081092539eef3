"""Record the operators of a call with the bytes of their results as formulas, and find the peak of live bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import sympy

from costproof.algebra.evaluation import ExactNumber, evaluate
from costproof.algebra.identity import Factors, Terms, expression_of, terms_of, undominated
from costproof.algebra.symbols import sym
from costproof.analytic.costs import Size

Piece = int
"""Index of an allocation on a memory tape."""


@dataclass(slots=True)
class MemoryTape:
    """Operators in execution order, with the memory that they allocate and read; memory is freed after its last read.

    Views and results in place are not recorded: their readers read the piece that they share. Inputs and results of the
    call are alive as its caller holds them. Parameters and buffers are not recorded.
    """

    sizes: list[Size] = field(default_factory=list)
    """Bytes of each allocation, by index."""
    steps: list[tuple[Piece | None, tuple[Piece, ...]]] = field(default_factory=list)
    """For each operator, the index of its allocation, if any, and the indices of the allocations that it reads."""
    inputs: list[Piece] = field(default_factory=list)
    results: set[Piece] = field(default_factory=set)
    _moves: dict[tuple[int, ...], tuple[tuple[Piece, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Memoized allocations and releases, by the recorded steps and by whether inputs are held."""

    def give(self, size: Size) -> Piece:
        """Add an input of the call; return the index of its memory."""
        self.inputs.append(self._piece(size))
        return self.inputs[-1]

    def make(self, size: Size, *reads: Piece) -> Piece:
        """Record an operator that reads some allocations; return the index of its own allocation."""
        made = self._piece(size)
        self.steps.append((made, reads))
        return made

    def read(self, *reads: Piece) -> None:
        """Record an operator that reads allocations and makes none."""
        self.steps.append((None, reads))

    def keep(self, *pieces: Piece) -> None:
        """Mark allocations as results of the call, which stay alive."""
        self.results.update(pieces)

    def _piece(self, size: Size) -> Piece:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def given(self) -> sympy.Expr:
        """Return the bytes of the call's inputs."""
        return sympy.Add(*(sympy.sympify(self.sizes[piece]) for piece in self.inputs))

    def peak(self, known: Mapping[str, int], *, inputs_held: bool = True) -> tuple[sympy.Expr, ...]:
        """Return the live bytes at each moment that may be the highest at some sizes; the peak is their maximum.

        Args:
            known: values of symbols, such as those of a configuration; others stay symbols.
            inputs_held: as for :meth:`peak_bytes`.
        """
        return tuple(map(expression_of, undominated(self._moments(known, inputs_held))))

    def _moments(self, known: Mapping[str, int], inputs_held: bool) -> Iterator[Terms]:
        """Yield the live bytes after each allocation, as a sum of products of symbols.

        Branches: the sign tells an allocation from a release.
        """
        numbers = {sym(name): sympy.Integer(value) for name, value in known.items()}
        terms = [terms_of(sympy.sympify(size).xreplace(numbers)) for size in self.sizes]
        alive: dict[Factors, ExactNumber] = {}
        for piece, sign in self._events(inputs_held):
            for of, n in terms[piece].items():
                alive[of] = alive.get(of, 0) + sign * n
            if sign > 0:
                yield {of: n for of, n in alive.items() if n}

    def peak_bytes(self, values: Mapping[str, int], *, inputs_held: bool = True) -> int:
        """Return the peak in bytes at given sizes.

        Args:
            values: values of all symbols.
            inputs_held: whether inputs stay alive to the end; otherwise each is released after its last reader, as a
                run releases the cache of a layer once the extended one exists.

        Branches: a peak is the largest of its moments.
        """
        known = {size: size if isinstance(size, int) else evaluate(size, values) for size in {*self.sizes}}
        sizes = [known[size] for size in self.sizes]
        return max(accumulate((sign * sizes[piece] for piece, sign in self._events(inputs_held)), initial=0))

    def _events(self, inputs_held: bool) -> tuple[tuple[Piece, int], ...]:
        """Return (index, 1) for each allocation and (index, -1) for each release, in order."""
        recorded = len(self.steps), len(self.inputs), len(self.results), int(inputs_held)
        if recorded not in self._moves:
            self._moves[recorded] = tuple(self._each_event(inputs_held))
        return self._moves[recorded]

    def _each_event(self, inputs_held: bool) -> Iterator[tuple[Piece, int]]:
        last = {
            piece: at for at, (made, reads) in enumerate(self.steps) for piece in (*reads, made) if piece is not None
        }
        held = self.results.union(self.inputs if inputs_held else ())
        ends: dict[int, list[Piece]] = {}
        for piece, at in last.items():
            if piece not in held:
                ends.setdefault(at, []).append(piece)
        yield from ((piece, 1) for piece in self.inputs)
        for at, (made, _) in enumerate(self.steps):
            if made is not None:
                yield made, 1
            yield from ((piece, -1) for piece in ends.get(at, ()))
