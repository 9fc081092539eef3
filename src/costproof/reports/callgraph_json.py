"""``callgraph.json``: what the dynamic run called, how often, on which shapes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from costproof.ledger.callgraph import CallGraph, Event
from costproof.ledger.capture import Capture
from costproof.ledger.conventions import Conventions
from costproof.ledger.errors import Incomplete
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, TensorSpec, Workload


@dataclass(frozen=True, slots=True)
class CallGraphFile:
    """``callgraph.json``: the header of every file, then the fields of the capture's callgraph."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    call_counts: dict[str, int]
    edges: dict[str, int]
    op_call_counts: dict[str, dict[str, int]]
    module_children: dict[str, tuple[str, ...]]
    module_types: dict[str, str]
    constructor_params: dict[str, dict[str, int | float | str | bool | None]]
    input_metadata: dict[str, tuple[TensorSpec, ...]]
    output_metadata: dict[str, tuple[TensorSpec, ...]]
    events: tuple[Event, ...]


CALLGRAPH: Final = FileKind(name="costproof/callgraph", version=(1, 0), type=CallGraphFile)


def callgraph_file(capture: Capture) -> CallGraphFile:
    """The callgraph of a capture under the common header.

    Raises:
        Incomplete: the capture was made without the dynamic source.
    """
    if capture.callgraph is None:
        raise Incomplete(
            "the capture has no callgraph",
            where="$.callgraph",
            expected="a capture with the dynamic source",
            got="sources " + (", ".join(x.source for x in capture.ledgers) or "none"),
            fix="costproof capture TARGET --sources analytic,static,dynamic -o FILE",
        )
    return CallGraphFile(
        capture.conventions,
        capture.target,
        capture.workload,
        capture.environment,
        **{f.name: getattr(capture.callgraph, f.name) for f in fields(CallGraph)},
    )
