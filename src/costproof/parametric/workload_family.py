"""Other runs of a target than the one that claims are about: its sizes and its formulas there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import gcd
from typing import Final

import sympy

from costproof.algebra.crossing import FAR
from costproof.algebra.symbols import sym
from costproof.claims.runs import Run
from costproof.compare.diff.changes import WORKLOAD, settings
from costproof.ledger.baseline import Baseline
from costproof.ledger.workload import Invocation
from costproof.models.target import WithKeys
from costproof.parametric.blend import BlendedTarget
from costproof.parametric.branch_limits import branch_limit
from costproof.parametric.concolic import SizeExpr, evaluate_size, variables_of
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.regimes import PointChoices, Regime

_PROBES: Final = (*range(1, 9), *(2**i for i in range(4, 31)))
_MOST_ENDS: Final = 16
_SIZES: Final = 256
"""Values of a setting from 1 on that are tried to learn which ones the target takes."""


class WorkloadFamily:
    """All runs of a target that differ from one in numbers that a run chooses: a batch, a length, a side.

    Args:
        side: the one run.
        target: of its configuration.
    """

    def __init__(self, side: Baseline, target: WithKeys) -> None:
        given = settings(side)
        self.own: Mapping[str, int] = {k.removeprefix(WORKLOAD): v for k, v in given.items() if type(v) is int}
        self._config = target.config.symbols().keys()
        self._evaluator = Evaluator(BlendedTarget(target, side, side, False))
        self._sizes: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, tuple[int, ...]] = {}
        self._runs: dict[tuple[tuple[str, int], ...], Run | None] = {}

    def at(self, changed: Mapping[str, int]) -> Run | None:
        """The run with these settings in place of its own; ``None``: the target takes no such run."""
        key = tuple(sorted({**self.own, **changed}.items()))
        if key not in self._runs:
            regime, numbers = self._regime(changed)
            self._runs[key] = None if regime.ledger is None else self._run(regime, numbers)
        return self._runs[key]

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """What a symbol of a call is in settings; ``None``: no setting changes it."""
        expr = self._places.get((stage, call), {}).get(symbol, ("int", 0))
        return _in_settings(expr) if variables_of(expr) else None

    def sizes(self, setting: str) -> tuple[int, int]:
        """The least value of a setting that the target takes, and the step to the next."""
        if setting not in self._sizes:
            taken = [v for v in range(1, _SIZES + 1) if self.at({setting: v}) is not None]
            known = taken if len(taken) > 1 else [self.own[setting]]
            self._sizes[setting] = known[0], gcd(*(v - known[0] for v in known))
        return self._sizes[setting]

    def ends(self, setting: str) -> tuple[int, ...]:
        """The values of a setting from which on other formulas hold, or runs are refused, the others as they are."""
        if setting not in self._ends:
            self._ends[setting] = tuple(self._each_end(setting))
        return self._ends[setting]

    def _each_end(self, setting: str) -> list[int]:
        found: dict[int, None] = {}
        probes, at = list(_PROBES), 1
        while len(found) < _MOST_ENDS:
            regime, numbers = self._regime({setting: at})
            way = next(way for way in regime.paths if way.holds(numbers))
            end = branch_limit(way, _variable(setting), at)
            if end is not None and at + 1 < end <= FAR:
                found[end] = None
            elif end is None or end > FAR:
                break
            # A way of one value says nothing about the next ones: they are looked at here and there.
            at = end if end > at + 1 else next((p for p in probes if p > at), FAR)
            if at >= FAR:
                break
        return list(found)

    @cached_property
    def _places(self) -> Mapping[tuple[str, str], Mapping[str, SizeExpr]]:
        return self._regime({})[0].places

    def _regime(self, changed: Mapping[str, int]) -> tuple[Regime, dict[str, int]]:
        values = {f"{WORKLOAD}{k}": v for k, v in {**self.own, **changed}.items()}
        return self._evaluator.regime(PointChoices({}, None, values))

    def _run(self, regime: Regime, numbers: Mapping[str, int]) -> Run:
        known: dict[SizeExpr, int] = {}
        calls = tuple(
            Invocation(stage, call, 1, {
                n: evaluate_size(e, numbers, known) for n, e in symbols.items() if n not in self._config
            }, ())
            for (stage, call), symbols in regime.places.items() if stage
        )  # fmt: skip
        assert regime.ledger is not None
        return Run(calls, regime.ledger)


def _variable(setting: str) -> str:
    return f"setting:{WORKLOAD}{setting}"


def _in_settings(expr: SizeExpr) -> sympy.Expr:
    """A size as an expression of the settings, each a symbol."""
    how, *parts = expr
    if how == "int":
        return sympy.Integer(parts[0])
    if how == "var":
        return sym(parts[0].removeprefix(_variable("")))
    left, right = (_in_settings(part) for part in parts)
    if how in ("//", "%"):
        whole = sympy.floor(left / right)
        return whole if how == "//" else left - right * whole
    return left + right if how == "+" else left - right if how == "-" else left * right
