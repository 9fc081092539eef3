"""A measured time as parts that add up to it, in nanoseconds.

    measured = floor + traffic + shapes + other + dispatch + movement + experts + residual + jitter

*Floor*: the products at the peak, or what crosses the border of the stage once at the bandwidth. *Traffic*: what the
modules one after another take beyond it at the roof. The next five are what the operators take beyond the roof, each
made alone (:mod:`costproof.tracers.replay`). *Dispatch*: every operator takes at least as long as the fastest of the
stage, which on a processor is its way through the dispatcher, on a GPU the least that a kernel takes; so much of each
call is this. Of the rest, *shapes* is that of products (the peak that these shapes do not reach), *movement* that of
copies, casts, views and look-ups, *experts* that of all operators in modules of routed experts, *other* that of the
remaining ones. The time at the roof of a module is taken off the first of products, experts, other and movement that it
has.

*Residual*: the fastest run less the operators: launch and Python between them; less what caches and overlap save.
*Jitter*: the median less the fastest run.

All but the floor, dispatch and jitter may be negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.roofline import Rational
from costproof.ledger.profile import Timing

Kind = Literal["products", "experts", "other", "movement"]
KINDS: Final[tuple[Kind, ...]] = ("products", "experts", "other", "movement")
"""In the order in which they take the time at the roof of their module."""
_PRODUCTS: Final = frozenset({"matmul", "conv", "attention", "experts"})
_MOVEMENT: Final = frozenset({"movement", "lookup"})


@dataclass(frozen=True, slots=True)
class Split:
    """Nanoseconds that add up to the measured median, or, where nothing ran, to the replay."""

    floor: Rational
    traffic: Rational
    shapes: Rational
    other: Rational
    dispatch: Rational
    movement: Rational
    experts: Rational
    residual: Rational | None
    """``None`` where nothing ran."""
    jitter: Rational | None
    """``None`` where nothing ran."""


@dataclass(frozen=True, slots=True)
class Work:
    """A distinct call of a module, made alone."""

    module: str
    kind: Kind
    calls: int
    alone: int | None
    """Nanoseconds of one call; ``None`` if it could not be made."""

    @property
    def spent(self) -> int | None:
        """Nanoseconds of all calls."""
        return None if self.alone is None else self.calls * self.alone


def kind_of(subject: str, in_experts: bool) -> Kind:
    """What an operator is, by the subject of its rule (:func:`costproof.opgraph.rules.registry.subject_of`)."""
    if in_experts:
        return "experts"
    return "products" if subject in _PRODUCTS else "movement" if subject in _MOVEMENT else "other"


def split(floor: Fraction, roofs: Mapping[str, Fraction], works: Iterable[Work], time: Timing | None) -> Split | None:
    """The parts; ``None`` if a call could not be made.

    Args:
        roofs: nanoseconds at the roof of each module.
        time: ``None`` where nothing ran.
    """
    least, replay = None, 0
    done = list(works)
    for work in done:
        if work.alone is None:
            return None
        replay += work.calls * work.alone
        least = work.alone if least is None else min(least, work.alone)
    dispatch = (least or 0) * sum(work.calls for work in done)
    beyond: Counter[Kind] = Counter()
    there: dict[str, set[Kind]] = {}
    for work in done:
        beyond[work.kind] += work.calls * ((work.alone or 0) - (least or 0))
        there.setdefault(work.module, set()).add(work.kind)
    parts: dict[Kind, Fraction] = {kind: Fraction(beyond[kind]) for kind in KINDS}
    for module, roof in roofs.items():
        parts[next((kind for kind in KINDS if kind in there.get(module, ())), "other")] -= roof
    fastest = None if time is None else min(time.runs)
    return Split(
        str(floor), str(sum(roofs.values()) - floor), str(parts["products"]), str(parts["other"]), str(dispatch),
        str(parts["movement"]), str(parts["experts"]),
        None if fastest is None else str(fastest - replay),
        None if time is None or fastest is None else str(time.median - fastest),
    )  # fmt: skip
