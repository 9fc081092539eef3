"""What a third-party counter says: its own rows as a ledger, and how the run went."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.ledger.node import CostNode, Ledger, total

SOURCE = "counter:"
"""What the name of a counter's ledger begins with."""
UNATTRIBUTED = "[unattributed]"
"""Module of what a counter adds to its total without saying where."""


@dataclass(frozen=True, slots=True)
class CounterInfo:
    """A counter as data: what it is called, what it counts, which versions were tested."""

    name: str
    package: str
    """The distribution that holds it, whose version is reported."""
    tested: tuple[str, ...]
    """Versions of the package that the adapter's tests passed with, oldest first."""
    unit: str
    """``flop`` (a multiply-accumulate is 2) or ``mac`` (it is 1)."""
    level: str
    """The finest level that it gives: ``operator``, ``module`` or ``total``."""
    rows: str = "all"
    """``first`` for a counter that takes the first dimension of an output for all of its rows."""
    einsum: str = "exact"
    """``four digits`` for a counter that reads the cost of an einsum from numpy's rounded text."""

    @property
    def conventions(self) -> dict[str, str]:
        """Where the counter departs from our conventions."""
        stated = {"unit": (self.unit, "flop"), "rows": (self.rows, "all"), "einsum": (self.einsum, "exact")}
        return {name: value for name, (value, ours) in stated.items() if value != ours}

    @property
    def tested_text(self) -> str:
        """``0.7.3 to 0.7.5``; a name that stands for one version is that version."""
        ends = dict.fromkeys((*self.tested[:1], *self.tested[-1:]))
        return " to ".join(ends) or "none"


@dataclass(frozen=True, slots=True)
class CounterCall:
    """A counter on one invocation of one stage."""

    stage: str
    invocation: str
    nodes: tuple[CostNode, ...] = ()
    """Its rows, in its own words and unit; they sum to its total."""
    error: str | None = None
    """Why there is no number: what the tool raised, or how its process ended."""
    notes: tuple[str, ...] = ()
    cut: str = ""
    """The part of the stage that was counted, where a stage is counted in parts."""

    @property
    def value(self) -> int | None:
        """The tool's total, in its unit."""
        return None if self.error is not None else total(self.nodes, "flops")


@dataclass(frozen=True, slots=True)
class CounterRun:
    """A counter on all stages."""

    info: CounterInfo
    version: str | None
    calls: tuple[CounterCall, ...]

    def ledger(self) -> Ledger:
        """The counter's rows as the source ``counter:NAME``, in its own unit; what failed is absent, and noted."""
        done = [c for c in self.calls if c.error is None]
        failed = {c.stage: c for c in self.calls if c.error is not None}
        return Ledger(
            source=f"{SOURCE}{self.info.name}",
            nodes=tuple(n for c in done if c.stage not in failed for n in c.nodes),
            metrics=("flops",),
            stages=tuple(dict.fromkeys(c.stage for c in done if c.stage not in failed)),
            notes=tuple(f"{stage}[{c.invocation}]: {c.error}" for stage, c in failed.items()),
            conventions=self.info.conventions,
        )


@dataclass(frozen=True, slots=True)
class CounterRecord:
    """What counters say beside our own count of the same forwards. Decode is one step, the first."""

    truth: tuple[CounterCall, ...]
    runs: tuple[CounterRun, ...]
    checked: tuple[str, ...] = ()
    """Where the truth was compared with the closed formulas, and how that ended."""


@dataclass(frozen=True, slots=True)
class CounterUsage:
    """What a counter needed for all its calls. It is measured, so it stands in no file that must not vary."""

    milliseconds: int
    """Time in calls; loading Python, torch and the model is not part of it."""
    peak_bytes: int
    """Largest resident size of its process."""
