"""What a run found, as one object that reads well in a console and in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import Capture
from costproof.reports.folder import write_texts
from costproof.reports.formats import format_named

if TYPE_CHECKING:
    import pandas as pd

    from costproof.compare.findings import Discrepancy
    from costproof.ledger.counter import Spent
    from costproof.ledger.profile import Profile
    from costproof.reports.static_compute import StaticCompute

REPORT_FORMATS: Final = (
    "capture-json",
    "static-json",
    "static-md",
    "discrepancy-json",
    "discrepancy-md",
    "macs-json",
    "macs-md",
    "callgraph-json",
)
"""The files of a report, in the order in which they are written."""


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A capture and what follows from it; each part is computed once, when it is first asked for."""

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
        """:attr:`static` without its formulas."""
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict, formulas=False)

    def profile_texts(self) -> dict[str, str]:
        """File name -> text of what was measured; nothing without a measurement."""
        if self.profile is None:
            return {}
        from costproof.ledger.files import json_text
        from costproof.ledger.profile import PROFILE
        from costproof.ledger.schema import to_data
        from costproof.reports.profile_md import profile_md

        return {
            "profile.json": json_text(to_data(PROFILE, self.profile)),
            "profile.md": profile_md(self.profile),
            "profile_trace.json": self.chrome_trace,
        }

    def counter_texts(self) -> dict[str, str]:
        """File name -> text of other people's counters; nothing if none ran."""
        compared = self.discrepancy.counters
        if compared is None:
            return {}
        from costproof.ledger.files import json_text
        from costproof.ledger.schema import to_data
        from costproof.reports.counters import COUNTERS, CounterReport, counters_md

        found = self.capture
        made = CounterReport(found.conventions, found.target, found.workload, found.environment, compared, self.spent)
        return {"counters.json": json_text(to_data(COUNTERS, made)), "counters.md": counters_md(made)}

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
        """The text of a format, such as ``static-md``; ``costproof.formats()`` names them all."""
        return format_named(name).load()(self)

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
        from costproof.reports.callgraph_json import callgraph_file
        from costproof.reports.frames import frame

        callgraph_file(self.capture)  # says what is missing, if it is
        return frame(self.capture.callgraph)

    def __repr__(self) -> str:
        return self.render("summary").rstrip("\n")

    def _repr_markdown_(self) -> str:
        return self.render("static-md")


def write_report(
    found: Report, folder: Path, progress: Callable[[str, int, int], None] = lambda phase, done, total: None
) -> tuple[Path, ...]:
    """Write all report files of a folder, all or none; gives their paths.

    Raises:
        BadInput: the folder cannot be made or written.
    """
    from costproof.reports.macs import counted

    lacking = {"callgraph-json"} if found.capture.callgraph is None else set()
    lacking |= set() if counted(found.capture) else {"macs-json", "macs-md"}
    names = [n for n in REPORT_FORMATS if n not in lacking]
    texts: dict[Path, str] = {}
    for done, name in enumerate(names):
        progress("write", done, len(names))
        texts[folder / format_named(name).file] = found.render(name)
    texts |= {folder / name: text for name, text in (found.profile_texts() | found.counter_texts()).items()}
    write_texts(texts)
    progress("write", len(names), len(names))
    return tuple(texts)
