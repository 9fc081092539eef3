"""What a run found, as one object that reads well in a console and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from costproof.ledger.capture import Capture
from costproof.ledger.files import json_text
from costproof.ledger.progress import Progress, silent
from costproof.ledger.schema import to_data
from costproof.ledger.seconds import limited
from costproof.ledger.shown import Shown
from costproof.ledger.writing import write_texts
from costproof.reports.absent import Absent
from costproof.reports.manifest import MANIFEST, NAME, manifest, named_files
from costproof.reports.outputs import OUTPUTS, REGISTRY

if TYPE_CHECKING:
    import pandas as pd

    from costproof.compare.findings import Discrepancy
    from costproof.estimate.roofline import Roofline
    from costproof.ledger.counter import Spent
    from costproof.ledger.profile import Profile
    from costproof.reports.static_compute import StaticCompute


SECONDS: Final = 120
"""Of the processor, to render one output of a capture."""


@dataclass(frozen=True, eq=False, repr=False)
class Report(Shown):
    """A capture and what follows from it: computed once, when it is first asked for."""

    capture: Capture
    """All ledgers of the run."""
    profile: Profile | None = None
    """Measured times, if the run was measured."""
    chrome_trace: str = ""
    spent: dict[str, Spent] = field(default_factory=dict)
    """What each third-party counter needed, if they ran."""
    roofline: Roofline | None = None
    """The run under the roof of a device, if one was named."""

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
        return self._static(formulas=True)

    @cached_property
    def figures(self) -> StaticCompute:
        """:attr:`static` without its formulas, which take most of the time."""
        return self._static(formulas=False)

    def _static(self, *, formulas: bool) -> StaticCompute:
        from costproof.reports.static_compute import static_compute

        return static_compute(self.capture, self.discrepancy.verdict, formulas=formulas)

    @property
    def verdict(self) -> str:
        """``exact``, ``explained``, ``unexplained`` or ``incomplete``."""
        return self.discrepancy.verdict

    @property
    def exit_code(self) -> int:
        """0 exact or explained, 1 unexplained, 3 incomplete."""
        from costproof.compare.verdict import exit_code

        return exit_code(self.discrepancy)

    def render(self, name: str, width: int | None = None) -> str:
        """The text of an output, such as ``static-md``; ``costproof render --list`` names them all.

        Args:
            width: columns of the screen that it is read on; ``None`` is a file.

        Raises:
            BadInput: there is no such output.
            Absent: the run has no data for it.
        """
        output = REGISTRY.load(name)
        assert output.data is not None
        with limited(SECONDS, "the capture takes too long to render", where=name):
            return output.text(output.data(self), width)

    def stages(self) -> pd.DataFrame:
        """One row per stage."""
        return _frame(self.figures)

    def findings(self) -> pd.DataFrame:
        """One row per finding."""
        return _frame(self.discrepancy)

    def nodes(self) -> pd.DataFrame:
        """One row per source and cost node."""
        return _frame(self.capture)

    def modules(self) -> pd.DataFrame:
        """One row per module, with what each source counts in it and everything inside it."""
        from costproof.reports.frames import module_rows

        return _frame(module_rows(self.capture))

    def __repr__(self) -> str:
        return self.render("summary").rstrip("\n")

    def _repr_markdown_(self) -> str:
        return self.render("static-md")


def _frame(value: object) -> pd.DataFrame:
    from costproof.reports.frames import frame

    return frame(value)


class Written(NamedTuple):
    """What became of a folder."""

    files: tuple[Path, ...]
    removed: tuple[Path, ...]
    """Files of an earlier run, which do not belong to this capture."""


def write_report(found: Report, folder: Path, progress: Progress = silent, *, source: str = "") -> Written:
    """Write all files of a report, all or none; then remove those of an earlier run that this run does not have.

    Of an earlier run are the files that its manifest names, and the pictures of its callgraph. Other files stay.
    The manifest is replaced first: from then on the folder is refused until all its files are there.

    Args:
        source: what the manifest says was counted.

    Raises:
        BadInput: the folder cannot be made or written.
    """
    texts: dict[Path, str] = {}
    old: list[Path] = []
    named = named_files(folder)
    for done, output in enumerate(OUTPUTS):
        progress("write", done, len(OUTPUTS))
        if output.folder in ("report", "measured") and output.data is not None:
            try:
                texts[folder / output.file] = output.text(output.data(found))
                continue
            except Absent:
                pass
        if output.file in named or (named and output.folder == "later"):
            old.append(folder / output.file)
    files = {folder / NAME: json_text(to_data(MANIFEST, manifest(texts, source))), **texts}
    removed = write_texts(files, gone=[p for p in old if p not in files])
    progress("write", len(OUTPUTS), len(OUTPUTS))
    return Written(tuple(files), removed)
