"""Third-party counters against the truth: what share of the FLOPs of each call every counter sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from costproof.compare.findings import CounterFinding
from costproof.reports.escape import visible
from costproof.reports.plots.figure import begin, colour, style, written
from costproof.views.counters import CounterReport
from costproof.views.numbers import cut, human, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WHY: Final = 60
"""Letters of an error."""


def draw(found: CounterReport, kind: str) -> bytes:
    """The picture: a bar for the whole of each counter, a point for each call of a stage."""
    from matplotlib.ticker import PercentFormatter

    title = f"{visible(found.target.title)} at {visible(found.workload.name)}: third-party counters against the truth"
    ran = [f for f in found.compared.totals if f.value is not None or f.error is not None]
    stages = list(dict.fromkeys(f.stage for f in found.compared.findings))
    with style():
        figure = begin(10.0, 1.6 + 0.46 * len(ran), title)
        panel = figure.add_subplot()
        for at, total in enumerate(ran):
            mine = [f for f in found.compared.findings if f.counter == total.counter]
            _row(panel, at, total, mine, stages)
        for i, stage in enumerate(stages):
            panel.scatter([], [], s=36, color=colour(i), edgecolor="white", label=visible(stage))
        panel.set_yticks(range(len(ran)), [visible(f.counter) for f in ran])
        panel.set_ylim(len(ran) - 0.4, -0.6)
        panel.tick_params(axis="y", length=0)
        shown = [_ratio(f) or 0.0 for f in (*ran, *found.compared.findings)]
        # Beside 100 % there is room for the words of every row.
        panel.set_xlim(0, max([1.0, *shown]) * 1.45)
        panel.axvline(1.0, color="#111111", linewidth=1.0, linestyle="--")
        panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        panel.set_xlabel("FLOPs in percent of the truth: a bar for all calls, a point for each; 100 % is our own count")
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=6, frameon=False)
        return written(figure, kind)


def _row(panel: Axes, at: int, total: CounterFinding, mine: Sequence[CounterFinding], stages: list[str]) -> None:
    whole = _ratio(total)
    if whole is not None:
        panel.barh(at, whole, height=0.6, color="#d5dbe3")
    reached = [whole or 0.0]
    for f in mine:
        ratio = _ratio(f)
        if ratio is not None:
            # Each stage at a height of its own: equal ratios would lie on each other.
            number = stages.index(f.stage)
            height = at + 0.42 * ((number + 0.5) / len(stages) - 0.5)
            panel.scatter([ratio], [height], s=30, color=colour(number), edgecolor="white", lw=0.6, zorder=3)
            reached.append(ratio)
    panel.text(max(1.0, *reached) + 0.03, at, _said(total), va="center", fontsize=8)


def _ratio(f: CounterFinding) -> float | None:
    return None if f.normalised is None or not f.truth else f.normalised / f.truth


def _said(total: CounterFinding) -> str:
    if total.normalised is None or total.truth is None:
        return cut(visible(f"no sum: {total.error or 'the truth is unknown'}"), _WHY)
    percent = share(total.normalised, total.truth)
    return f"{percent}: {human(total.normalised, 'FLOP')} of {human(total.truth, 'FLOP')}"
