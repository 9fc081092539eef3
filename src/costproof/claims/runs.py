"""What claims ask a target about its other runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import sympy

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation


@dataclass(frozen=True, slots=True)
class Run:
    """Another run: its calls with the values of their symbols, and the formulas that hold there."""

    calls: tuple[Invocation, ...]
    ledger: Ledger


class Runs(Protocol):
    """The runs of a target that differ in numbers that a run chooses."""

    own: Mapping[str, int]
    """Setting -> its value in the run of the claims."""

    def at(self, changed: Mapping[str, int]) -> Run | None:
        """The run with these settings; ``None``: the target takes no such run."""
        ...

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """What a symbol of a call is in settings, each of them a symbol; ``None``: no setting changes it."""
        ...

    def sizes(self, setting: str) -> tuple[int, int]:
        """The least value of a setting, and the step to the next."""
        ...

    def ends(self, setting: str) -> tuple[int, ...]:
        """The values of a setting from which on other formulas hold."""
        ...
