"""Read and build ``callgraph.json``, and define the JSON file of a sweep, whose rows are written one by one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

from costproof.ledger.callgraph import CallGraph, check_levels
from costproof.ledger.capture import Capture, parse_capture
from costproof.ledger.errors import Absent
from costproof.ledger.files import read_json
from costproof.ledger.metrics import Conventions
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.workload import ConfigValue, TargetInfo, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGraphFile(CallGraph):
    """``callgraph.json``: a callgraph with the header that all files share.

    Only the calls themselves are needed; what a file was written without is empty when it is read.
    """

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]


CALLGRAPH: Final = FileKind(name="costproof/callgraph", version=(2, 3), type=CallGraphFile)
_MAKE_AGAIN: Final = "costproof render CAPTURE -f callgraph-json"

Drawable: TypeAlias = Capture | CallGraph
"""Files from which pictures are drawn; a callgraph without ledgers gives pictures without costs."""


def read_drawable(path: Path) -> Drawable:
    """Read a file that can be drawn: a capture or a callgraph.

    Raises:
        BadInput: the file is neither.
        Problems: it is damaged.
    """
    data = read_json(path, what="capture")
    if isinstance(data, dict) and data.get("schema") == CALLGRAPH.name:
        graph = from_data(data, CALLGRAPH, where=str(path), make_again=_MAKE_AGAIN)
        check_levels(graph, str(path))
        return graph
    return parse_capture(data, where=str(path))


def callgraph_of(capture: Capture) -> CallGraph:
    """Return the callgraph of a capture.

    Raises:
        Absent: the capture was made without the dynamic source.
    """
    if capture.callgraph is None:
        raise Absent(
            "the capture has no callgraph",
            where="$.callgraph",
            expected="a capture with the dynamic source",
            got=capture.source_list,
            fix="costproof capture TARGET --sources analytic,static,dynamic -o FILE",
        )
    return capture.callgraph


def callgraph_file(capture: Capture) -> CallGraphFile:
    """Return the callgraph of a capture as a file with the common header.

    Raises:
        Absent: the capture was made without the dynamic source.
    """
    graph = callgraph_of(capture)
    return CallGraphFile(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        **{f.name: getattr(graph, f.name) for f in fields(CallGraph)},
    )


@dataclass(frozen=True, slots=True)
class SweptTarget:
    """The target of a sweep, with the parts of its configuration and settings that do not vary."""

    name: str
    config: dict[str, ConfigValue]
    """Configuration of the target; keys that vary have their values in the rows."""


@dataclass(frozen=True, slots=True)
class RefusedPoints:
    """Points of a sweep that were refused for the same reason: their number and an example."""

    example: dict[str, ConfigValue]
    says: str
    """The target's error message for the example."""
    count: int


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep with all of its rows."""

    target: SweptTarget
    workload: dict[str, ConfigValue]
    """The preset and the settings that are equal at all points."""
    environment: dict[str, str]
    columns: tuple[str, ...]
    """Column names: varying parameters, then costs (``prefill.flops``, or ``flops`` for the whole run)."""
    points: int
    rows: int
    """Number of points with a valid model; the others are refused."""
    refused: dict[str, RefusedPoints]
    """Refused points, grouped by reason."""
    data: tuple[tuple[ConfigValue, ...], ...]
    """Values of ``columns``, one row per point; costs are integers of any size."""
    counted: str = ""
    """Description of the count's conditions, such as unused keys and work that is not counted."""


COUNTED: Final = "counted"
"""Name of the last column of a CSV file, whose first row states the conditions of the count."""
SWEEP: Final = FileKind(name="costproof/sweep", version=(1, 1), type=SweepFile)
