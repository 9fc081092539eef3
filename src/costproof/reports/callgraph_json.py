"""``callgraph.json``: what the dynamic run called, how often, on which shapes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from costproof.ledger.callgraph import CallGraph, Event, Setting, ValueAt
from costproof.ledger.capture import Capture
from costproof.ledger.conventions import Conventions
from costproof.ledger.schema import FileKind, load
from costproof.ledger.workload import TargetInfo, Workload
from costproof.reports.absent import callgraph_of


@dataclass(frozen=True, slots=True)
class CallGraphFile:
    """``callgraph.json``: the header of every file, then the fields of the capture's callgraph.

    Only the calls themselves are needed; what a file was written without is empty when it is read.
    """

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    call_counts: dict[str, int]
    edges: dict[str, int]
    op_call_counts: dict[str, dict[str, int]]
    module_children: dict[str, tuple[str, ...]]
    module_types: dict[str, str]
    constructor_params: dict[str, dict[str, Setting]] = field(default_factory=dict)
    input_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    output_metadata: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    data_edges: dict[str, int] = field(default_factory=dict)
    module_aliases: dict[str, str] = field(default_factory=dict)
    tied_parameters: dict[str, str] = field(default_factory=dict)

    def callgraph(self) -> CallGraph:
        """The callgraph without the header."""
        return CallGraph(**{f.name: getattr(self, f.name) for f in fields(CallGraph)})


CALLGRAPH: Final = FileKind(name="costproof/callgraph", version=(1, 1), type=CallGraphFile)


def read_callgraph(path: Path) -> CallGraphFile:
    """Read ``callgraph.json``.

    Raises:
        BadInput: the file is no callgraph of a version that this costproof reads.
    """
    return load(path, CALLGRAPH, make_again="costproof render CAPTURE -f callgraph-json")


def callgraph_file(capture: Capture) -> CallGraphFile:
    """The callgraph of a capture under the common header.

    Raises:
        Absent: the capture was made without the dynamic source.
    """
    graph = callgraph_of(capture)
    return CallGraphFile(
        capture.conventions,
        capture.target,
        capture.workload,
        capture.environment,
        **{f.name: getattr(graph, f.name) for f in fields(CallGraph)},
    )
