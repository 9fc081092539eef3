"""Random configurations and runs of one family, each counted three ways; see :mod:`benchmarks.families`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from costproof.ledger.errors import CostproofError, first_line
from costproof.models.proof import Piece, Provable, WithProof
from costproof.models.registry import load_target
from costproof.processes import Say

TRIED: Final = 60
"""Draws at most, for so many pairs as are asked for."""
SOURCES: Final = ("analytic", "static", "dynamic")
REFUSED: Final = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one pair of a configuration and a run."""

    family: str
    number: int
    outcome: str
    """The verdict over the three sources, or that transformers does not run it."""
    quantities: int = 0
    """Compared: of a module in a stage, and sums."""
    layers: int = 0
    seconds: float = 0
    why: str = ""


def draws(family: str, seed: int) -> list[Piece[Provable]]:
    """Random configurations, each with a run."""
    target = load_target(family)
    assert isinstance(target, WithProof), family
    return [p for p in target.proof(TRIED, seed).pieces if p.phase == "draws"]


def counted(family: str, seed: int, pairs: int, known: Sequence[Row], say: Say) -> int:
    """Count so many pairs of a family that run, beside those that are known; each is said as soon as it is there."""
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    done = {row.number: row for row in known}
    ran = 0
    for piece in draws(family, seed):
        if ran == pairs:
            break
        number = int(piece.id.rpartition(" ")[2])
        if number not in done:
            began = time.perf_counter()
            done[number] = replace(_row(family, number, piece), seconds=round(time.perf_counter() - began, 1))
            say(done[number])
        ran += done[number].outcome != REFUSED
    return ran


def _row(family: str, number: int, piece: Piece[Provable]) -> Row:
    from costproof.compare.compare import compare
    from costproof.run.capture import count_sources
    from costproof.run.prepare import Prepared

    target, work = piece.target, piece.workload
    sizes = target.info().symbols
    depth = max(value for name, value in sizes.items() if name.endswith("_layers"))
    row = Row(family, number, REFUSED, layers=depth)
    try:
        target.check(work)
        target.build(work)
    except Exception as error:  # transformers' own code raises what it likes
        return replace(row, why=_line(error))
    try:
        # One after another, each alone: the run is the last, and brings what torch's own counter says of it.
        captures = [count_sources(Prepared(target, work, (source,), no_cache=True)).capture for source in SOURCES]
    except Exception as error:
        return replace(row, outcome="failed", why=_line(error))
    together = replace(captures[-1], ledgers=tuple(x for capture in captures for x in capture.ledgers))
    found = compare(together)
    compared = [f for f in found.findings if len(f.values) == len(SOURCES)]
    wrong = next((f"{f.id}: {f.values}" for f in found.findings if f.status != "exact"), "")
    return replace(row, outcome=found.verdict, quantities=len(compared), why=wrong or "; ".join(found.incomplete))


def _line(error: Exception) -> str:
    return (error.line if isinstance(error, CostproofError) else first_line(error))[:240]
