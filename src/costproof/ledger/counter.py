"""What somebody else's counter says: its own rows as a ledger, and how the run went."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.ledger.node import CostNode, Ledger, exact_sum

UNATTRIBUTED = "[unattributed]"
"""Module of what a counter adds to its total without saying where."""


@dataclass(frozen=True, slots=True)
class CounterInfo:
    """A counter as data: what it is called, what it counts, what it was tried with."""

    name: str
    package: str
    """The distribution that holds it, whose version is reported."""
    tried: str
    """Versions that the adapter was tried with: ``0.1.5.post20221221``."""
    unit: str
    """``flop`` (a multiply-accumulate is 2) or ``mac`` (it is 1)."""
    level: str
    """The finest level that it gives: ``operator``, ``module`` or ``total``."""
    rows: str = "all"
    """``first`` for a counter that takes the first dimension of an output for all of its rows."""
    einsum: str = "exact"
    """``four digits`` for a counter that reads the cost of an einsum from numpy's rounded text."""
    extra: str = "costproof"
    """What to install for it: ``costproof``, or ``costproof[counters]``."""

    @property
    def conventions(self) -> dict[str, str]:
        """Where the counter departs from our conventions."""
        stated = {"unit": (self.unit, "flop"), "rows": (self.rows, "all"), "einsum": (self.einsum, "exact")}
        return {name: value for name, (value, ours) in stated.items() if value != ours}


@dataclass(frozen=True, slots=True)
class CounterCall:
    """A counter on one invocation of one stage."""

    stage: str
    invocation: str
    nodes: tuple[CostNode, ...] = ()
    """Its rows, in its own words and unit; they sum to its total."""
    error: str | None = None
    """Why there is no number: what the tool raised, or how its process ended."""
    milliseconds: int = 0
    peak_bytes: int = 0
    """Largest resident size of the counter's process so far."""
    notes: tuple[str, ...] = ()
    cut: str = ""
    """The part of the stage that was counted, where a stage is counted in parts."""

    @property
    def value(self) -> int | None:
        """The tool's total, in its unit."""
        return None if self.error is not None else exact_sum(n.costs.get("flops") for n in self.nodes)


@dataclass(frozen=True, slots=True)
class CounterRun:
    """A counter on all stages."""

    info: CounterInfo
    version: str | None
    calls: tuple[CounterCall, ...]

    def ledger(self) -> Ledger:
        """The rows as a source ``counter:NAME`` that can be put into a capture."""
        done = [c for c in self.calls if c.error is None]
        return Ledger(
            source=f"counter:{self.info.name}",
            nodes=tuple(n for c in done for n in c.nodes),
            metrics=("flops",),
            stages=tuple(dict.fromkeys(c.stage for c in done)),
            notes=tuple(f"{c.stage}[{c.invocation}]: {c.error}" for c in self.calls if c.error is not None),
            conventions=self.info.conventions,
        )
