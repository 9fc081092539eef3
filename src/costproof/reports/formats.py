"""The formats a capture can be rendered to: a lazy registry that other distributions can add to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import CAPTURE
from costproof.ledger.errors import BadInput

if TYPE_CHECKING:
    from costproof.reports.report import Report

ENTRY_POINTS: Final = "costproof.renderers"


Render = Callable[["Report"], str]


@dataclass(frozen=True, slots=True)
class Format:
    """One renderer.

    A plug-in gives an object of this type under the entry point group ``costproof.renderers``.
    """

    name: str
    file: str
    """The usual name of the file."""
    meaning: str
    load: Callable[[], Render]
    states_verdict: bool = True
    """Whether the text says how the comparison ended, so that the exit code says it too."""
    owner: str = "costproof"


def _capture_json() -> Render:
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import to_data

    return lambda found: json_text(to_data(CAPTURE, found.capture))


def _static_json() -> Render:
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import to_data
    from costproof.reports.static_compute import STATIC_COMPUTE

    return lambda found: json_text(to_data(STATIC_COMPUTE, found.static))


def _static_md() -> Render:
    from costproof.reports.static_md import static_md

    return lambda found: static_md(found.static, found.sentence)


def _discrepancy_json() -> Render:
    from costproof.compare.findings import DISCREPANCY
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import to_data

    return lambda found: json_text(to_data(DISCREPANCY, found.discrepancy))


def _discrepancy_md() -> Render:
    from costproof.reports.discrepancy_md import discrepancy_md

    return lambda found: discrepancy_md(found.capture, found.discrepancy, found.sentence)


def _macs_json() -> Render:
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import to_data
    from costproof.reports.macs import MACS, macs

    return lambda found: json_text(to_data(MACS, macs(found.capture, found.discrepancy)))


def _macs_md() -> Render:
    from costproof.reports.macs import macs
    from costproof.reports.macs_md import macs_md

    return lambda found: macs_md(macs(found.capture, found.discrepancy), found.sentence)


def _callgraph_json() -> Render:
    from costproof.ledger.files import json_text
    from costproof.ledger.schema import to_data
    from costproof.reports.callgraph_json import CALLGRAPH, callgraph_file

    return lambda found: json_text(to_data(CALLGRAPH, callgraph_file(found.capture)))


def _graph(kind: str) -> Callable[[], Render]:
    def load() -> Render:
        from costproof.reports.graph.view import graph_view
        from costproof.reports.graph.writers import writer

        return lambda found: writer(kind)(graph_view(found.capture))

    return load


def _summary() -> Render:
    from costproof.reports.summary import summary_text

    return lambda found: summary_text(found)


BUILT_IN: Final[tuple[Format, ...]] = (
    Format("capture-json", "capture.json", "the capture itself, normalised", _capture_json, states_verdict=False),
    Format("static-json", "static_compute.json", "what each stage costs, for programs", _static_json),
    Format("static-md", "static_compute.md", "what each stage costs, for people", _static_md),
    Format("discrepancy-json", "discrepancy.json", "every comparison and its causes, for programs", _discrepancy_json),
    Format("discrepancy-md", "discrepancy.md", "the comparison, for people", _discrepancy_md),
    Format("macs-json", "macs.json", "the stages in fvcore's convention, for programs", _macs_json),
    Format("macs-md", "macs.md", "the stages in fvcore's convention, for people", _macs_md),
    Format(
        "callgraph-json",
        "callgraph.json",
        "what called what, how often, on which shapes",
        _callgraph_json,
        states_verdict=False,
    ),
    Format(
        "graph-dot", "callgraph.dot", "the callgraph in families, for Graphviz", _graph("dot"), states_verdict=False
    ),
    Format(
        "graph-svg", "callgraph.svg", "the callgraph in families, as a picture", _graph("svg"), states_verdict=False
    ),
    Format("graph-mmd", "callgraph.mmd", "the callgraph in families, for Mermaid", _graph("mmd"), states_verdict=False),
    Format("summary", "summary.txt", "the table that the report command prints", _summary),
)


def formats() -> dict[str, Format]:
    """All formats by name, those of other distributions included.

    Raises:
        BadInput: two owners claim one name, or a plug-in gives no :class:`Format`.
    """
    found: dict[str, Format] = {}
    for item in (*BUILT_IN, *_plugged()):
        if item.name in found:
            raise BadInput(
                "two renderers have the same name",
                where=item.name,
                expected="one owner",
                got=f"{found[item.name].owner} and {item.owner}",
                fix="uninstall one of the two distributions",
            )
        found[item.name] = item
    return found


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        BadInput: there is none.
    """
    from costproof.reports.near import near

    known = formats()
    if name not in known:
        raise BadInput(
            "no such format",
            where=name,
            expected="one of " + ", ".join(sorted(known)),
            fix=near(name, known, "did you mean {}?"),
        )
    return known[name]


def _plugged() -> tuple[Format, ...]:
    from dataclasses import replace
    from importlib.metadata import entry_points

    plugged: list[Format] = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda p: (p.name, p.value)):
        owner = point.dist.name if point.dist is not None else point.value
        item = point.load()
        if not isinstance(item, Format):
            raise BadInput(
                "a renderer plug-in gives no Format",
                where=f"{point.name} of {owner}",
                expected="a costproof.reports.formats.Format",
                got=type(item).__name__,
                fix=f"uninstall {owner} or ask its authors",
            )
        plugged.append(replace(item, owner=owner))
    return tuple(plugged)
