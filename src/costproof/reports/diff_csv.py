"""A diff as a table for other programs: sums and rows that changed, with exact integers."""

from __future__ import annotations

import csv
from io import StringIO

from costproof.compare.diff.types import Diff
from costproof.views.frames import DIFF_COLUMNS, diff_rows


def diff_csv(found: Diff) -> str:
    """The table; an unknown number is empty."""
    out = StringIO()
    writer = csv.DictWriter(out, DIFF_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(diff_rows(found))
    return out.getvalue()
