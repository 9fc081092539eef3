"""What a run found, as one object that reads well in a console and in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from costproof.ledger.capture import Capture
from costproof.ledger.files import write_texts
from costproof.reports.absent import Absent
from costproof.reports.folder import remove
from costproof.reports.outputs import OUTPUTS, REGISTRY

if TYPE_CHECKING:
    import pandas as pd

    from costproof.compare.findings import Discrepancy
    from costproof.ledger.counter import Spent
    from costproof.ledger.profile import Profile
    from costproof.reports.callgraph_json import CallGraphFile
    from costproof.reports.counters import CounterReport
    from costproof.reports.graph.view import GraphView
    from costproof.reports.macs import Macs
    from costproof.reports.static_compute import StaticCompute

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A capture and what follows from it: the data half of every output, computed once, when it is first asked for."""

    capture: Capture
    """All ledgers of the run."""
    profile: Profile | None = None
    """Measured times, if the run was measured."""
    chrome_trace: str = ""
    spent: dict[str, Spent] = field(default_factory=dict)
    """What each third-party counter needed, if they ran."""

    @cached_property
    def discrepancy(self) -> Discrepancy:
        """Every finding of the comparison of the capture's sources."""
        from costproof.compare.compare import compare

        return compare(self.capture)

    @cached_property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        from costproof.compare.verdict import verdict_sentence

        return verdict_sentence(self.discrepancy)

    @cached_property
    def static(self) -> StaticCompute:
        """What each stage costs."""
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict)

    @cached_property
    def figures(self) -> StaticCompute:
        """:attr:`static` without its formulas, which take most of the time."""
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict, formulas=False)

    @cached_property
    def macs(self) -> Macs:
        """The stages in fvcore's convention. Raises :class:`Absent` if no source counted it."""
        from costproof.reports.macs import macs

        return macs(self.capture, self.discrepancy)

    @cached_property
    def callgraph(self) -> CallGraphFile:
        """What called what. Raises :class:`Absent` without the dynamic source."""
        from costproof.reports.callgraph_json import callgraph_file

        return callgraph_file(self.capture)

    @cached_property
    def picture(self) -> GraphView:
        """The callgraph in families. Raises :class:`Absent` without the dynamic source."""
        from costproof.reports.graph.view import graph_view

        return graph_view(self.capture)

    @cached_property
    def counters(self) -> CounterReport:
        """Third-party counters. Raises :class:`Absent` if none ran."""
        from costproof.reports.counters import counter_report

        return counter_report(self.capture, self.discrepancy.counters, self.spent)

    def measured(self, found: T | None) -> T:
        """What was measured. Raises :class:`Absent` if nothing was."""
        if found is None:
            raise Absent(
                "the run was not measured",
                expected="a run with a profile",
                fix="costproof report TARGET --run cpu --profile 3",
            )
        return found

    @property
    def verdict(self) -> str:
        """``exact``, ``explained``, ``unexplained`` or ``incomplete``."""
        return self.discrepancy.verdict

    @property
    def exit_code(self) -> int:
        """0 exact or explained, 1 unexplained, 3 incomplete."""
        from costproof.compare.verdict import exit_code

        return exit_code(self.discrepancy)

    def render(self, name: str) -> str:
        """The text of an output, such as ``static-md``; ``costproof render --list`` names them all.

        Raises:
            BadInput: there is no such output.
            Absent: the run has no data for it.
        """
        output = REGISTRY.load(name)
        assert output.data is not None
        return output.text(output.data(self))

    def stages(self) -> pd.DataFrame:
        """One row per stage."""
        from costproof.reports.frames import frame

        return frame(self.figures)

    def findings(self) -> pd.DataFrame:
        """One row per finding."""
        from costproof.reports.frames import frame

        return frame(self.discrepancy)

    def nodes(self) -> pd.DataFrame:
        """One row per source and cost node."""
        from costproof.reports.frames import frame

        return frame(self.capture)

    def modules(self) -> pd.DataFrame:
        """One row per module of the callgraph."""
        from costproof.reports.absent import callgraph_of
        from costproof.reports.frames import frame

        return frame(callgraph_of(self.capture))

    def __repr__(self) -> str:
        return self.render("summary").rstrip("\n")

    def _repr_markdown_(self) -> str:
        return self.render("static-md")


class Written(NamedTuple):
    """What became of a folder."""

    files: tuple[Path, ...]
    removed: tuple[Path, ...]
    """Files of an earlier run, which do not belong to this capture."""


def write_report(
    found: Report, folder: Path, progress: Callable[[str, int, int], None] = lambda phase, done, total: None
) -> Written:
    """Write all files of a report, all or none; then remove those of an earlier run that this run does not have.

    Raises:
        BadInput: the folder cannot be made or written.
    """
    texts: dict[Path, str] = {}
    old: list[Path] = []
    earlier = (folder / "capture.json").exists()
    for done, output in enumerate(OUTPUTS):
        progress("write", done, len(OUTPUTS))
        if output.folder in ("report", "measured") and output.data is not None:
            try:
                texts[folder / output.file] = output.text(output.data(found))
                continue
            except Absent:
                pass
        if output.folder and earlier:
            old.append(folder / output.file)
    write_texts(texts)
    removed = remove(old)
    progress("write", len(OUTPUTS), len(OUTPUTS))
    return Written(tuple(texts), removed)
