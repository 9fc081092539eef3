"""Build the page of a capture: verdict, shares, sources, a tree of modules with formulas, and the callgraph."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.algebra.symbols import FUNCTIONS
from costproof.ledger.errors import Absent
from costproof.ledger.metrics import COMM, STAGE_WIDE, SUMMED, Metric
from costproof.ledger.plural import plural, verb
from costproof.reports import peaks, roofline
from costproof.reports.document import plain_text
from costproof.reports.graph.svg import inline
from costproof.reports.graph.view import GraphChoice, graph_view
from costproof.reports.html.document import Html, h, page, table
from costproof.reports.html.mathml import mathml, symbol
from costproof.reports.html.printer import (
    MOST_FINDINGS,
    MOST_IN_A_CELL,
    HtmlPrinter,
    about,
    chips,
    details,
    finding,
    foot,
    head,
    reasons,
    shares,
    status,
    swatch,
)
from costproof.reports.roofline import time_chip, time_metric
from costproof.reports.static import (
    DERIVED,
    padding_section,
    ranks_section,
    stack_sentences,
    unknown_sentences,
    whole_rows,
    whole_title,
)
from costproof.views.describe import run_line
from costproof.views.module_tree import FormulaTable, ModuleRows, metrics_of
from costproof.views.numbers import exact, human_or_bound, share
from costproof.views.quantities import UNITS, ledgers, quantity
from costproof.views.results import open_findings, tally

if TYPE_CHECKING:
    from costproof.ledger.capture import Capture
    from costproof.views.results import Results

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_LINK: Final = "#at/{path}"


def capture_page(found: Results) -> str:
    """Return the HTML page of a capture."""
    capture, compared = found.capture, found.discrepancy
    metrics = _metrics(capture)
    picture, boxes = _picture(found)
    formulas = FormulaTable()
    rows = ModuleRows(found, formulas, boxes).rows
    _stage_formulas(found, formulas, rows)
    opened = open_findings(compared)
    bad = {f.id for f in opened}
    others = [f for f in compared.findings if (f.status != "exact" and f.id not in bad) or (f.causes and f.delta)]
    numbers = {f.id: i for i, f in enumerate(compared.findings)}
    listed = partial(_findings, numbers)
    return page(
        f"{capture.target.title}: {compared.verdict}",
        head(capture.target.title, compared.verdict, found.sentence, [about(capture.target, capture.workload)]),
        (
            listed(f"{plural(len(opened), 'open finding')}", opened, closed=False),
            reasons("Why the result is incomplete", compared.incomplete),
            _cost(found, metrics),
            _whole(capture),
            h("p", h("b", "Not counted: "), "; ".join(what for what, _ in capture.not_counted) + ".", class_="not"),
            listed(f"{plural(len(others), 'other comparison')} that are not plainly equal", others, closed=True),
            _modules(tally(compared), plain_text(DERIVED) if found.static.formulas_of == "derived" else ""),
            *map(
                HtmlPrinter().block,
                filter(
                    None,
                    (
                        ranks_section(capture.parallel),
                        padding_section(capture.padding),
                        roofline.section(found.roofline),
                        peaks.section(capture.peaks),
                    ),
                ),
            ),
            picture,
        ),
        foot(capture.conventions, capture.environment, run_line(capture.run)),
        _data(found, metrics, rows, formulas),
    )


def capture_cell(found: Results) -> Iterator[Html | None]:
    """Yield the blocks of a notebook cell: findings, and a table per metric, folded except the first."""
    capture, compared = found.capture, found.discrepancy
    opened = open_findings(compared)
    numbers = {f.id: i for i, f in enumerate(compared.findings)}
    yield _findings(numbers, f"{plural(len(opened), 'open finding')}", opened[:MOST_IN_A_CELL], closed=False)
    yield reasons("Why the result is incomplete", compared.incomplete)
    metrics = _metrics(capture)
    first = _first(metrics)
    yield _metric(found, first)
    yield from (details(SUMMED[m].title, _metric(found, m)) for m in metrics if m != first)
    yield _whole(capture)
    yield h("p", h("b", "Not counted: "), "; ".join(what for what, _ in capture.not_counted) + ".", class_="not")


def _metrics(capture: Capture) -> list[Metric]:
    return [m for m in metrics_of(capture) if m != "calls" and any(m in x.metrics for x in capture.ledgers)]


def _cost(found: Results, metrics: list[Metric]) -> Html:
    """Return a table per metric; a script shows the chosen one, and all are visible without scripts."""
    static = found.figures
    low = static.totals_at_least
    values = [
        (m, SUMMED[m].title, human_or_bound(_amount(found, m), low.get(m), UNITS.get(SUMMED[m].unit, "")))
        for m in metrics
    ]
    if found.roofline is not None:
        values.append(time_chip(found.roofline))
    return h(
        "section",
        h("h2", "Where the cost sits"),
        chips(values, _first(metrics)),
        (_metric(found, m) for m in metrics),
        None if found.roofline is None else time_metric(found.roofline, found.capture.target.stages),
        id="cost",
    )


def _first(metrics: list[Metric]) -> Metric:
    return "flops" if "flops" in metrics else metrics[0]


def _amount(found: Results, metric: Metric, stage: str | None = None) -> int | None:
    """Return the headline number of a metric in a stage, or in all; of communication, of the counted rank."""
    if metric in COMM:
        settled = found.discrepancy.verdict in ("exact", "explained")
        return quantity(found.capture, metric, stage, settled=settled).value
    costs = found.figures.totals if stage is None else next(s.costs for s in found.figures.stages if s.id == stage)
    return costs.get(metric)


def _metric(found: Results, metric: Metric) -> Html:
    static, compared, info = found.figures, found.discrepancy, SUMMED[metric]
    unit = UNITS.get(info.unit, "")
    values = [_amount(found, metric, s.id) for s in static.stages]
    whole = _amount(found, metric)
    sources = [
        x.source for x in found.capture.ledgers if any(metric in s.sources.get(x.source, {}) for s in static.stages)
    ]
    said = {f.stage: str(f.status) for f in compared.findings if f.level in ("stage", "total") and f.metric == metric}
    parts = [(s.id, value, s.at_least, s.sources) for s, value in zip(static.stages, values, strict=True)]
    if not static.one_stage:
        parts.append(("total", whole, static.totals_at_least, static.sources))
    rows = []
    for i, (name, value, low, given) in enumerate(parts):
        last = i == len(static.stages)
        rows.append(
            (
                h("b", name) if last else h("span", swatch(i), h("a", name, href=f"#{name}/")),
                "" if last else share(value, whole),
                h("b", human_or_bound(value, low.get(metric), unit)),
                *(exact(given[s][metric]) if metric in given.get(s, {}) else "—" for s in sources),
                status(said.get(name, "—")),
            )
        )
    twice = None not in values and whole is not None and sum(v or 0 for v in values) > whole
    note = "Stages share modules, which count once in the total: shares add up to more than 100 %." if twice else ""
    if disputed := [s.id for s, value in zip(static.stages, values, strict=True) if value is None]:
        note = f"Unknown or disputed, so not in the bar: {', '.join(disputed)}."
    return h(
        "div",
        h("h3", info.title),
        h("p", f"{info.unit}: {info.meaning}.", class_="note"),
        shares([(s.id, value) for s, value in zip(static.stages, values, strict=True)]),
        table(("Stage", "Share", "Together", *sources, "Status"), rows, class_="cost"),
        h("p", note, class_="note") if note else None,
        class_="metric",
        data_metric=metric,
    )


def _whole(capture: Capture) -> Html | None:
    """Return the section on all layers of a model that was counted with its first layers only."""
    if capture.whole is None:
        return None
    said = (*stack_sentences(capture.whole), *unknown_sentences(capture.whole))
    return h(
        "section",
        h("h2", whole_title(capture.whole)),
        h("ul", [h("li", f"{line}.") for line in said]),
        table(*whole_rows(capture.whole, digits=True)),
        id="whole",
    )


def _findings(numbers: dict[str, int], title: str, found: list[Any], *, closed: bool) -> Html | None:
    if not found:
        return None
    shown = [finding(numbers[f.id], f) for f in found[:MOST_FINDINGS]]
    more = len(found) - len(shown)
    rest = h("p", f"{more:,} more {verb(more)} in discrepancy.json.") if more > 0 else None
    body = (h("ul", shown, class_="findings"), rest)
    if closed:
        return h("details", h("summary", title), *body, class_="findings")
    return h("section", h("h2", title), *body, class_="open", id="findings")


def _modules(compared: str, formulas: str) -> Html:
    """Return the frame in which the script builds the tree of modules.

    Args:
        formulas: whose they are, where they are not ours.
    """
    return h(
        "section",
        h("h2", "Modules"),
        h("p", compared + ". Equal layers are folded into one row, whose numbers are of all of them.", class_="note"),
        h("p", "Formulas of stages: ", formulas, class_="note") if formulas else None,
        h("noscript", h("p", "The tree needs scripts; discrepancy.md has its numbers as tables.")),
        h("div", id="tools", class_="tools"),
        h("div", h("div", id="tree", class_="wide"), h("section", id="detail", aria_label="Details"), class_="split"),
        id="modules",
    )


def _picture(found: Results) -> tuple[Html | None, dict[str, str]]:
    """Return the folded callgraph, and for each module the id of the box that shows it or an enclosing module."""
    try:
        view = graph_view(found.capture, GraphChoice(link=_LINK))
    except Absent:
        return None, {}
    home = {path: n.id for n in view.nodes for path in n.instances}
    boxes = {}
    for path in {n.module for x in found.capture.ledgers for n in x.nodes}:
        near = path
        while near and near not in home:
            near = near.rpartition(".")[0]
        boxes[path] = home.get(near or "(root)", "")
    drawn = h("div", Html(inline(view)), class_="graph", tabindex=0, role="region", aria_label="Callgraph, scrollable")
    zoom = h("p", id="zoom", class_="tools")
    return h("section", h("h2", "Callgraph"), zoom, drawn, id="callgraph"), boxes


def _stage_formulas(found: Results, formulas: FormulaTable, rows: list[dict[str, Any]]) -> None:
    """Add the formula of each stage call to the row of its stage."""
    stages = {s.id: s for s in found.static.stages}
    for row in rows:
        if row["parent"] is None:
            row["formulas"].extend(
                [call.id, "", "", metric, formulas.at(f.at_config), call.costs[metric]]
                for call in stages[row["stage"]].invocations
                for metric, f in call.formulas.items()
                if not f.at_config.isdecimal()
            )


def _data(found: Results, metrics: list[Metric], rows: list[dict[str, Any]], formulas: FormulaTable) -> dict[str, Any]:
    capture = found.capture
    names = [sorted({n for n in _NAME.findall(e) if n not in FUNCTIONS}) for e in formulas.places]
    used = sorted({n for some in names for n in some})
    owners = {f[2] for row in rows for f in row["formulas"]}
    return {
        "title": f"{capture.target.title} at {capture.workload.name}",
        "first": _first(metrics),
        "metrics": {
            m: {"title": SUMMED[m].title, "unit": UNITS.get(SUMMED[m].unit, ""), "wide": m in STAGE_WIDE}
            for m in (*metrics, "calls")
        },
        "stages": list(capture.target.stages),
        "gives": {
            stage: {
                m: [x.source for x in ledgers(capture) if stage in x.stages and m in x.metrics]
                for m in metrics_of(capture)
            }
            for stage in capture.target.stages
        },
        "rows": rows,
        "math": [[mathml(e, capture.symbols), some] for e, some in zip(formulas.places, names, strict=True)],
        "symbols": {
            n: [f"<math>{symbol(n, doc.latex if doc else '')}</math>", doc.meaning if doc else ""]
            for n in used
            for doc in [capture.symbols.get(n)]
        },
        "values": {n: v for n, v in sorted(capture.target.symbols.items()) if n in used},
        "calls": {
            f"{c.stage}[{c.id}]": [c.calls, {n: v for n, v in sorted(c.symbols.items()) if n in used}]
            for c in capture.invocations
        },
        "docs": {
            name: [doc.title, doc.derivation, doc.source]
            for name, doc in sorted(capture.formulas.items())
            if name in owners
        },
    }
