"""What another distribution may offer under the entry point group of the renderers."""

from __future__ import annotations

from costproof.reports.formats import Format
from costproof.reports.report import Report


def _one_line(report: Report) -> str:
    return f"{report.capture.target.name}: {report.verdict}\n"


FORMAT = Format("one-line", "line.txt", "name and verdict", lambda: _one_line)
NOT_A_FORMAT = "one-line"
