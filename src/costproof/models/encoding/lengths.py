"""Lengths of sequences that are packed into one, as attention asks for them: numbers, which need no tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lengths:
    """Ends of packed sequences, or the grids of images: differences of ends are lengths, products of a grid are too."""

    numbers: tuple[int, ...]

    def __getitem__(self, which: slice) -> Lengths:
        """All ends but the first, or but the last."""
        return self

    def __sub__(self, other: Lengths) -> Lengths:
        """The lengths."""
        return self

    def prod(self, dim: int) -> Lengths:
        """Patches of every grid."""
        return self

    def __floordiv__(self, merged: int) -> Lengths:
        """Tokens, each of ``merged`` patches."""
        return Lengths(tuple(n // merged for n in self.numbers))

    def tolist(self) -> list[int]:
        """The lengths as numbers."""
        return list(self.numbers)
