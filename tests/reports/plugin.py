"""What another distribution may offer under the entry point group ``costproof.outputs``."""

from __future__ import annotations

from costproof.reports.outputs import Output
from costproof.reports.report import Report


def _one_line(found: Report) -> str:
    return f"{found.capture.target.name}: {found.verdict}\n"


OUTPUT = Output("one-line", "line.txt", "name and verdict", lambda report: report, lambda: _one_line)
NOT_AN_OUTPUT = "one-line"
