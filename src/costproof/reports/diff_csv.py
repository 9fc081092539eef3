"""A diff as a table for other programs: sums and rows that changed, with exact integers."""

from __future__ import annotations

import csv
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from costproof.compare.diff.types import Diff

COLUMNS: Final = (
    "source", "level", "stage", "part", "kind", "metric", "base", "head", "delta", "change", "moved",
)  # fmt: skip


def diff_rows(found: Diff) -> list[dict[str, Any]]:
    """Totals, stages and rows of every source; ``None`` is unknown. Sums that are the same are there too."""
    rows: list[dict[str, Any]] = []
    for source, part in found.by_source.items():
        sums = (("total", "", "", part.totals), *(("stage", s.id, s.change, s.totals) for s in part.stages))
        for level, stage, change, totals in sums:
            for metric, q in totals.items():
                numbers = {"base": q.base, "head": q.head, "delta": q.delta}
                rows.append({"source": source, "level": level, "stage": stage, "metric": metric, **numbers})
                rows[-1]["change"] = "same" if q.delta == 0 else change or "changed"
        for r in part.rows:
            own = {name: getattr(r, name) for name in COLUMNS[2:]}
            rows.append({"source": source, "level": "row", **own})
    return [{name: row.get(name, "") for name in COLUMNS} for row in rows]


def diff_csv(found: Diff) -> str:
    """The table; an unknown number is empty."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(diff_rows(found))
    return out.getvalue()
