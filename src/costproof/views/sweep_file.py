"""Define the JSON file of a sweep, which is written row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.ledger.schema import FileKind
from costproof.ledger.workload import ConfigValue


@dataclass(frozen=True, slots=True)
class SweptTarget:
    """What was swept."""

    name: str
    config: dict[str, ConfigValue]
    """Of the target as it stands; what varies has its values in the rows."""


@dataclass(frozen=True, slots=True)
class RefusedPoints:
    """Points that are not a model, or not a run of it, for one reason."""

    example: dict[str, ConfigValue]
    says: str
    """What the target says of the example."""
    count: int


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep with all of its rows."""

    target: SweptTarget
    workload: dict[str, ConfigValue]
    """The preset and the settings that are the same at all points."""
    environment: dict[str, str]
    columns: tuple[str, ...]
    """What varies, then the costs: ``prefill.flops``, or ``flops`` of the whole run."""
    points: int
    rows: int
    """Points that are models; the others are refused."""
    refused: dict[str, RefusedPoints]
    """By reason."""
    data: tuple[tuple[ConfigValue, ...], ...]
    """A row for each point, under ``columns``; costs are integers of any size."""
    counted: str = ""
    """What the numbers leave out, in words."""


COUNTED: Final = "counted"
"""The last column of a CSV file, which says in its first row what the numbers leave out."""
SWEEP: Final = FileKind(name="costproof/sweep", version=(1, 1), type=SweepFile)
