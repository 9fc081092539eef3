"""How many routed experts a call touches, and so reads: as a bound, on average, or as a given routing says.

A token chooses k different ones of E experts. T tokens choose at most min(E, T k) together, whatever the router does.
Where every choice of k experts is equally likely and tokens choose independently of each other, a token leaves an
expert out with probability 1 - k/E, all tokens do with (1 - k/E)^T, and so on average

    E (1 - (1 - k/E)^T)

experts are touched. A trained router is neither: what it touches is counted, from its choices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

from costproof.ledger.errors import BadInput

Routing = Literal["bound", "uniform", "given"]
ROUTINGS: Final[tuple[Routing, ...]] = ("bound", "uniform")
"""Those that need no file."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The experts of one layer in one stage."""

    stage: str
    part: str
    layer: int
    """Among the layers with experts, from 0."""
    experts: int
    top_k: int
    tokens: int
    """Of one call."""
    calls: int
    touched: str
    """Experts in a call, on average over the calls, exact: ``64*(1 - (29/32)**913)``, ``127/2``."""
    bytes: int
    """Weights that all calls read, rounded up to a whole byte."""


def uniform(experts: int, top_k: int, tokens: int) -> Fraction:
    """E (1 - (1 - k/E)^T): how many experts uniform routing touches on average."""
    return experts * (1 - Fraction(experts - top_k, experts) ** tokens)


def uniform_text(experts: int, top_k: int, tokens: int) -> str:
    """The same as a closed form, since its digits grow with the tokens."""
    left = Fraction(experts - top_k, experts)
    return f"{experts}*(1 - ({left})**{tokens})"


def known_stages(data: Any, stages: Iterable[str], where: str) -> None:
    """Refuse a given routing that has something beside the stages with experts: nobody would read it.

    Raises:
        BadInput: it has.
    """
    known = tuple(stages)
    if isinstance(data, dict) and (more := [key for key in data if key not in known]):
        expected = " or ".join(known)
        raise BadInput("no stage with routed experts is called so", where=where, expected=expected, got=more[0][:60])


def given(data: Any, stage: str, place: tuple[int, int], sizes: tuple[int, int, int, int], where: str) -> Fraction:
    """How many experts a layer touches in a call of a given routing, on average over the calls.

    Args:
        data: stage -> calls -> layers with experts -> tokens -> the numbers of the experts that the token passes.
        place: the layer, and how many there are.
        sizes: experts, top-k, tokens of a call, calls.
        where: the file, for errors.

    Raises:
        BadInput: the routing is not one of this run.
    """
    layer, layers = place
    experts, top_k, tokens, calls = sizes
    if not isinstance(data, dict) or stage not in data:
        raise BadInput("the routing does not say what this stage chooses", where=f"{where}, $.{stage}")
    total = 0
    for i, call in enumerate(_list(data[stage], calls, "calls", f"{where}, $.{stage}")):
        at = f"{where}, $.{stage}[{i}]"
        mine = _list(call, layers, "layers with experts", at)[layer]
        rows = _list(mine, tokens, "tokens", f"{at}[{layer}]")
        for j, row in enumerate(rows):
            _chosen(row, experts, top_k, f"{at}[{layer}][{j}]")
        total += len({expert for row in rows for expert in row})
    return Fraction(total, calls)


def _list(value: Any, length: int, what: str, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        got = f"{len(value):,}" if isinstance(value, list) else type(value).__name__
        raise BadInput(f"another number of {what} than the run has", where=where, expected=f"{length:,}", got=got)
    return value


def _chosen(row: Any, experts: int, top_k: int, where: str) -> None:
    """One token's choice."""
    if (
        not isinstance(row, list)
        or len(row) != top_k
        or not all(type(e) is int and 0 <= e < experts for e in row)
        or len({*row}) < top_k
    ):
        expected = f"{top_k} different numbers from 0 to {experts - 1}"
        raise BadInput("this is not a choice of experts", where=where, expected=expected, got=str(row)[:60])
