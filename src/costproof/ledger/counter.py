"""Describe third-party FLOP counters and their results, and convert results to ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.ledger.node import CostNode, Ledger, total

SOURCE = "counter:"
"""Prefix of the source name of a third-party counter's ledger."""
UNATTRIBUTED = "[unattributed]"
"""Module name for amounts that a counter adds to its total without attributing them to a module."""


@dataclass(frozen=True, slots=True)
class CounterInfo:
    """A third-party FLOP counter: its name, the work that it counts, and the tested versions."""

    name: str
    package: str
    """Distribution that provides the counter, whose version is reported."""
    tested: tuple[str, ...]
    """Package versions with which the adapter's tests passed, oldest first."""
    unit: str
    """``flop`` (a multiply-accumulate is 2) or ``mac`` (it is 1)."""
    level: str
    """Finest level of the counter's results: ``operator``, ``module`` or ``total``."""
    rows: str = "all"
    """``first`` if the counter takes the first dimension of an output as the rows of a matrix product."""
    einsum: str = "exact"
    """``four digits`` if the counter parses the cost of an einsum from numpy's rounded text."""

    @property
    def conventions(self) -> dict[str, str]:
        """Return the counter's deviations from costproof's conventions."""
        stated = {"unit": (self.unit, "flop"), "rows": (self.rows, "all"), "einsum": (self.einsum, "exact")}
        return {name: value for name, (value, ours) in stated.items() if value != ours}

    @property
    def tested_text(self) -> str:
        """Return the range of tested versions, such as ``0.7.3 to 0.7.5``."""
        ends = dict.fromkeys((*self.tested[:1], *self.tested[-1:]))
        return " to ".join(ends) or "none"


@dataclass(frozen=True, slots=True)
class CounterCall:
    """Result of a third-party counter for one invocation of one stage."""

    stage: str
    invocation: str
    nodes: tuple[CostNode, ...] = ()
    """Rows of the counter under its own names and in its own unit, which sum to the counter's total."""
    error: str | None = None
    """Reason why there is no number: the counter's exception, or the end of its process."""
    notes: tuple[str, ...] = ()
    cut: str = ""
    """Name of the counted part, if a stage is counted in parts."""

    @property
    def value(self) -> int | None:
        """Return the counter's total in the counter's unit."""
        return None if self.error is not None else total(self.nodes, "flops")


@dataclass(frozen=True, slots=True)
class CounterRun:
    """Results of a third-party counter for all stages."""

    info: CounterInfo
    version: str | None
    calls: tuple[CounterCall, ...]

    def ledger(self) -> Ledger:
        """Return the results as source ``counter:NAME``, in the counter's unit; failed stages are absent and noted."""
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
    """Results of third-party counters and of costproof's count on the same forwards, with a single decode step."""

    truth: tuple[CounterCall, ...]
    runs: tuple[CounterRun, ...]
    checked: tuple[str, ...] = ()
    """Results of comparing costproof's count with the closed formulas, one sentence per comparison."""


@dataclass(frozen=True, slots=True)
class CounterUsage:
    """Time and memory of a counter, which vary between runs and are left out of reproducible files."""

    milliseconds: int
    """Time of the counter's calls, without loading Python, torch and the model."""
    peak_bytes: int
    """Largest resident set size of the counter's process."""
