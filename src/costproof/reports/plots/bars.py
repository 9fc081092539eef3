"""Draw bar charts: costs by stage, peaks of live activations, and third-party counters against our count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from costproof.compare.findings import CounterFinding
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import METRICS, Metric
from costproof.ledger.node import CostNode, Ledger, total
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.plots.figure import colour, ink, new_figure, render_figure, style
from costproof.views.counters import CounterReport
from costproof.views.numbers import human, share, truncate
from costproof.views.quantities import ledgers, provides

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from costproof.views.results import Results

_WIDTH: Final = 10.0
_ROW: Final = 0.34
"""Height of a bar with its gap, in inches."""
_LETTER: Final = 0.0125
"""Estimated width of a letter, as a fraction of the widest bar's width."""


@dataclass(frozen=True, slots=True)
class BarPiece:
    """A section of a bar: its size, colour and hatching."""

    size: float
    colour: str
    label: str
    """Text on the section, shown only if it fits."""
    hatch: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its label."""

    name: str
    pieces: tuple[BarPiece, ...]
    said: str
    """Text next to the bar: its total, or the reason why it has no sections."""
    below: bool = False
    """Whether the bar belongs to the one above it."""


def bars(
    title: str,
    rows: Sequence[Bar],
    legend: Sequence[tuple[str, str, bool]],
    axis: str,
    kind: str,
    *,
    percent: bool = False,
    unit: str = "",
    line: tuple[float, str] | None = None,
) -> bytes:
    """Return a picture of horizontal bars, drawn from top to bottom.

    Args:
        legend: name, colour, hatched.
        axis: what the sizes are.
        line: a size that is marked through all rows, and its name.
    """
    from matplotlib.ticker import EngFormatter, PercentFormatter

    with style():
        figure = new_figure(_WIDTH, 1.5 + _ROW * len(rows), title)
        panel = figure.add_subplot()
        widest = max([1.0 if percent else 0.0, *(sum(p.size for p in row.pieces) for row in rows)]) or 1.0
        at = 0.0
        places: list[float] = []
        for row in rows:
            at += 0.0 if row.below or not places else 0.35
            places.append(at)
            _bar(panel, row, at, widest)
            at += 1.0
        panel.set_yticks(places, [row.name for row in rows])
        panel.set_ylim(at - 0.4, -0.7)
        panel.set_xlim(0, widest * 1.18)
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0) if percent else EngFormatter(unit))
        if percent:
            panel.set_xticks([t for t in panel.get_xticks() if 0 <= t <= max(1.0, widest)])
        panel.set_xlabel(axis)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        if line is not None:
            panel.axvline(line[0], color="#111111", linewidth=1.0, linestyle="--")
            panel.text(line[0], -0.75, line[1], ha="center", va="bottom", fontsize=8)
        _legend(figure, legend)
        return render_figure(figure, kind)


def _bar(panel: Axes, row: Bar, at: float, widest: float) -> None:
    left = 0.0
    for piece in row.pieces:
        hatch = "///" if piece.hatch else None
        panel.barh(at, piece.size, left=left, height=0.8, color=piece.colour, edgecolor="white", lw=0.5, hatch=hatch)
        if piece.label and piece.size / widest > _LETTER * (len(piece.label) + 1):
            where = left + piece.size / 2
            dark = {"color": "#111111", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}}
            looks = dark if piece.hatch else {"color": ink(piece.colour)}
            panel.text(where, at, piece.label, ha="center", va="center", fontsize=8, **looks)
        left += piece.size
    panel.text(left + 0.008 * widest, at, row.said, ha="left", va="center", fontsize=8)


def _legend(figure: object, legend: Sequence[tuple[str, str, bool]]) -> None:
    from matplotlib.patches import Patch

    if legend:
        handles = [Patch(facecolor=c, label=n, hatch="///" if h else None, edgecolor="white") for n, c, h in legend]
        columns = min(6, len(handles))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)  # type: ignore[attr-defined]


_LEFT_OUT: Final = ("calls", "params_active")
"""Metrics whose distribution over stages is meaningless."""
_PIECE_UNITS: Final = {"bytes": "B", "FLOP": "FLOP", "elements": "", "scores": ""}
_LONGEST_NAME: Final = 24


@dataclass(frozen=True, slots=True)
class Shares:
    """A metric and its value for each stage."""

    metric: Metric
    parts: dict[tuple[str, ...], int | None]
    """Value by stage, or by the stages that share modules; the values sum to the whole."""
    whole: int | None


def shares(capture: Capture) -> tuple[Shares, ...]:
    """Return the metrics to draw that are not 0 throughout, each from the first source that has it for all stages."""
    found = []
    for metric in (m for m in METRICS if m not in _LEFT_OUT):
        speaking = (x for x in ledgers(capture) if all(provides(x, metric, stage) for stage in capture.target.stages))
        ledger = next(speaking, None)
        if ledger is not None and (one := _shares(ledger, metric, capture.target.stages)).parts:
            found.append(one)
    return tuple(found)


def _shares(ledger: Ledger, metric: Metric, stages: tuple[str, ...]) -> Shares:
    modules: dict[str, dict[str, None]] = {}
    wide = METRICS[metric].stage_wide
    nodes = [n for n in ledger.nodes if metric in n.costs or metric in n.exprs]
    for node in nodes:
        modules.setdefault(node.module, {})[node.stage] = None

    def where(node: CostNode) -> tuple[str, ...]:
        return tuple(s for s in stages if s in modules[node.module]) if wide else (node.stage,)

    groups: dict[tuple[str, ...], list[CostNode]] = {}
    for node in nodes:
        groups.setdefault(where(node), []).append(node)
    ordered = sorted(groups, key=lambda group: (stages.index(group[0]), len(group)))
    sums = {group: total(groups[group], metric) for group in ordered}
    return Shares(metric, {g: v for g, v in sums.items() if v != 0}, ledger.total(metric))


def draw_shares(report: Results, kind: str) -> bytes:
    """Return a picture with one bar of 100 % for each metric, divided by stage."""
    capture = report.capture
    found = shares(capture)
    groups = list(dict.fromkeys(group for one in found for group in one.parts))
    colours = {group: colour(capture.target.stages.index(group[0])) for group in groups}
    rows = []
    for one in found:
        pieces = [
            BarPiece(v / one.whole, colours[g], share(v, one.whole), hatch=len(g) > 1)
            for g, v in one.parts.items()
            if v is not None and one.whole
        ]
        info = METRICS[one.metric]
        rows.append(
            Bar(info.title, tuple(pieces), human(one.whole, _PIECE_UNITS[info.unit]) if one.whole else "not known")
        )
    legend = [(truncate(visible(" + ".join(g)), _LONGEST_NAME), colours[g], len(g) > 1) for g in groups]
    title = f"{visible(capture.target.title)} at {visible(capture.workload.name)}: where the cost sits"
    return bars(title, rows, legend, "share of the whole run", kind, percent=True)


_NAMED: Final = 6
"""Maximum number of tensors of a peak that are drawn as separate sections of a bar."""
_LOOKS: Final = {
    "by the graph": ("#2b5b84", "#4477aa", "#6a94bf", "#8fb0d0", "#b3cbe1", "#d3e1ee"),
    "as written": ("#a8434d", "#cc5966", "#ee6677", "#f28c99", "#f6b0b8", "#fad3d8"),
}
_REST: Final = "#e4e4e4"


def draw_peaks(title: str, calls: Sequence[CallPeaks], kind: str) -> bytes:
    """Return a picture with two bars for each call, graph and eager, divided by the largest live tensors."""
    rows = []
    for call in calls:
        part = f" {call.part}" if call.part else ""
        name = visible(f"{call.stage}[{call.invocation}]{part}")
        for number, (way, peak) in enumerate((("by the graph", call.graph), ("as written", call.eager))):
            rows.append(_peak_bar(f"{name} {way}" if not number else way, way, peak, below=bool(number)))
    legend = [(way, colours[1], False) for way, colours in _LOOKS.items()]
    legend.append(("what is smaller", _REST, False))
    return bars(title, rows, legend, "bytes that are alive at the peak; parameters not among them", kind, unit="B")


def _peak_bar(name: str, way: str, peak: Peak | None, *, below: bool) -> Bar:
    if peak is None:
        return Bar(name, (), "not known", below)
    largest = sorted(peak.alive, key=lambda t: -t.bytes)[:_NAMED]
    pieces = [
        BarPiece(float(t.bytes), _LOOKS[way][i], visible(f"{t.name} {human(t.bytes, 'B', places=1)}"))
        for i, t in enumerate(largest)
    ]
    rest = len(peak.alive) - len(largest)
    left = float(peak.bytes) - sum(p.size for p in pieces)
    pieces += [BarPiece(left, _REST, f"{plural(rest, 'more tensor')}")] if rest else []
    return Bar(name, tuple(pieces), human(peak.bytes, "B"), below)


_LONGEST_ERROR: Final = 60
"""Maximum number of characters of an error message in a chart."""


def draw_counters(found: CounterReport, kind: str) -> bytes:
    """Return a picture with a bar for the total of each counter and a point for each call of a stage."""
    from matplotlib.ticker import PercentFormatter

    title = f"{visible(found.target.title)} at {visible(found.workload.name)}: third-party counters against the truth"
    ran = [f for f in found.compared.totals if f.value is not None or f.error is not None]
    stages = list(dict.fromkeys(f.stage for f in found.compared.findings))
    with style():
        figure = new_figure(10.0, 1.6 + 0.46 * len(ran), title)
        panel = figure.add_subplot()
        for at, total in enumerate(ran):
            mine = [f for f in found.compared.findings if f.counter == total.counter]
            _counter_row(panel, at, total, mine, stages)
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
        return render_figure(figure, kind)


def _counter_row(
    panel: Axes, at: int, total: CounterFinding, mine: Sequence[CounterFinding], stages: list[str]
) -> None:
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
    panel.text(max(1.0, *reached) + 0.03, at, _counter_label(total), va="center", fontsize=8)


def _ratio(f: CounterFinding) -> float | None:
    return None if f.normalised is None or not f.truth else f.normalised / f.truth


def _counter_label(total: CounterFinding) -> str:
    if total.normalised is None or total.truth is None:
        return truncate(visible(f"no sum: {total.error or 'the truth is unknown'}"), _LONGEST_ERROR)
    percent = share(total.normalised, total.truth)
    return f"{percent}: {human(total.normalised, 'FLOP')} of {human(total.truth, 'FLOP')}"
