"""Define the JSON file of a sweep, whose rows are written one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.ledger.schema import FileKind
from costproof.ledger.workload import ConfigValue


@dataclass(frozen=True, slots=True)
class SweptTarget:
    """The target of a sweep, with the configuration and settings that do not vary."""

    name: str
    config: dict[str, ConfigValue]
    """The target's own value; parameters that vary have their values in the rows."""


@dataclass(frozen=True, slots=True)
class RefusedPoints:
    """Points of a sweep that were refused for the same reason: their number, and one as an example."""

    example: dict[str, ConfigValue]
    says: str
    """The target's error message for the example."""
    count: int


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep with all of its rows."""

    target: SweptTarget
    workload: dict[str, ConfigValue]
    """The preset and the settings that are the same at all points."""
    environment: dict[str, str]
    columns: tuple[str, ...]
    """Names of columns: the parameters that vary, then the costs: ``prefill.flops``, or ``flops`` of the whole run."""
    points: int
    rows: int
    """Points that are models; the others are refused."""
    refused: dict[str, RefusedPoints]
    """Rejected points, grouped by reason."""
    data: tuple[tuple[ConfigValue, ...], ...]
    """A row for each point, under ``columns``; costs are integers of any size."""
    counted: str = ""
    """The conditions of the count, such as unused keys and work that is not counted, in words."""


COUNTED: Final = "counted"
"""Name of the last column of a CSV file, whose first row states the conditions of the count."""
SWEEP: Final = FileKind(name="costproof/sweep", version=(1, 1), type=SweepFile)
