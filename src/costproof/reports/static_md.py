"""``static_compute.md``: what each stage costs, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import WholeModel
from costproof.ledger.metrics import METRICS, PEAK_METRICS
from costproof.ledger.peaks import largest
from costproof.reports.convention import HEAD, LOUD, convention_rows
from costproof.reports.escape import code, details, foot, head, markdown, table
from costproof.reports.whole_words import how, not_known, whole_rows, whole_title
from costproof.views.formulas import FormulaText
from costproof.views.numbers import bounded, exact, human, share
from costproof.views.quantities import SHOWN, UNITS
from costproof.views.static_compute import InvocationCompute, StaticCompute

if TYPE_CHECKING:
    from costproof.reports.report import Report

MAX_STAGES = 13
"""Rows of the first table besides the total: a person reads one screen."""


def static_md(found: Report) -> str:
    """The report."""
    static = found.static
    lines = [
        *head(f"What {markdown(static.target.title)} computes", found.sentence, static.target, static.workload),
        *_overview(static),
        "",
        *(_whole(static.whole) if static.whole is not None else ()),
        *details("Exact numbers", _exact(static)),
        *details("Calls, shapes and operator kinds", _calls(static)),
        *details("Every source by itself", _sources(static)),
        *_convention(static),
        *details("Formulas", _formulas(static)),
        *details("Not counted", [f"- {markdown(n.what)}: {markdown(n.why)}" for n in static.not_counted]),
        *foot(static.conventions, static.environment),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _overview(static: StaticCompute) -> list[str]:
    given = _given(static)
    columns = [(m, i.column, UNITS.get(i.unit, "")) for m, i in METRICS.items() if i.column and m in given]
    total = static.totals.get("flops")
    sizes = {i.column: [getattr(s, m) for s in static.stages] for m, i in PEAK_METRICS.items()}
    peaked = any(size is not None for column in sizes.values() for size in column)
    titles = tuple(sizes) if peaked else ()
    rows: list[tuple[str, ...]] = []
    for at, s in enumerate(static.stages[:MAX_STAGES]):
        cells = (bounded(s.costs[name], s.at_least.get(name), unit) for name, _, unit in columns)
        peaks = (human(sizes[title][at], "B") for title in titles)
        rows.append((markdown(s.id), share(s.costs["flops"], total), *cells, *peaks))
    if len(static.stages) > MAX_STAGES:
        rows.append((f"… and {len(static.stages) - MAX_STAGES} more", "", *[""] * (len(columns) + len(titles))))
    low = static.totals_at_least
    sums = (bounded(static.totals.get(name), low.get(name), unit) for name, _, unit in columns)
    ran = [at for at, s in enumerate(static.stages) if s.costs.get("calls") != 0]
    most = (human(largest(sizes[title][at] for at in ran), "B") for title in titles)
    if not static.one_stage:
        rows.append(("**total**", "", *sums, *most))
    head = ("Stage", "Share of FLOPs", *(title for _, title, _ in columns), *titles)
    note = (
        "k = 1000, for bytes too."
        + ("" if static.one_stage else " Parameters of a module that works in two stages count once in the total.")
        + " `?` is unknown or disputed, `≥` is the part that is known."
        " Activations written are a sum over the stage, not what is alive at once"
        + (": those are the peaks, of which the total is the largest." if peaked else ".")
    )
    return [*table(head, "l" + "r" * (len(head) - 1), rows), "", note]


def _whole(whole: WholeModel) -> list[str]:
    head, rows = whole_rows(whole, digits=True)
    cells = [tuple(map(markdown, row)) for row in rows]
    said = [f"- {markdown(line)}." for line in (*how(whole), *not_known(whole))]
    return [f"## {whole_title(whole)}", "", *said, "", *table(head, "l" + "r" * (len(head) - 1), cells), ""]


def _given(static: StaticCompute) -> set[str]:
    """Quantities that some source gives; for the others an unknown would be no news."""
    given = {metric for said in static.sources.values() for metric in said}
    return {name for name, shown in SHOWN.items() if given.issuperset(shown.of)}


def _exact(static: StaticCompute) -> list[str]:
    total = [] if static.one_stage else [static.totals]
    head = ("Quantity", *(markdown(s.id) for s in static.stages), *("total" for _ in total))
    given = _given(static)
    rows = [
        (shown.title, *(exact(s.costs[name]) for s in static.stages), *(exact(t.get(name)) for t in total))
        for name, shown in SHOWN.items()
        if shown.title and name in given
    ]
    return table(head, "l" + "r" * (len(head) - 1), rows)


def _calls(static: StaticCompute) -> list[str]:
    rows = [
        (
            markdown(s.id),
            markdown(i.id),
            exact(i.calls),
            ", ".join(code("x".join(map(str, t.shape)) + " " + t.dtype) for t in i.inputs) or "—",
            exact(i.costs["flops"]),
        )
        for s in static.stages
        for i in s.invocations
    ]
    idle = [s.id for s in static.stages if not s.invocations]
    lines = table(("Stage", "Call", "Times", "Inputs", "FLOPs"), "llrlr", rows)
    if idle:
        lines += ["", "Not executed in this run: " + ", ".join(map(markdown, idle)) + "."]
    kinds = [
        (markdown(s.id), code(kind), exact(flops), share(flops, s.costs["flops"]))
        for s in static.stages
        for kind, flops in sorted(s.flops_by_kind.items(), key=lambda item: (-(item[1] or 0), item[0]))
    ]
    return [*lines, "", *table(("Stage", "Operator kind", "FLOPs", "Share"), "llrr", kinds)]


def _sources(static: StaticCompute) -> list[str]:
    rows = [
        (
            markdown(s.id),
            markdown(source),
            *(exact(said[m]) if m in said else "—" for m in ("params", "flops", "vector_flops", "output_bytes")),
        )
        for s in static.stages
        for source, said in sorted(s.sources.items())
    ]
    head = ("Stage", "Source", "Params", "FLOPs", "Vector FLOPs", "Activation bytes")
    return [*table(head, "llrrrr", rows), "", "`—`: the source does not give this quantity."]


def _convention(static: StaticCompute) -> list[str]:
    rows = [(markdown(name), *cells) for name, *cells in convention_rows(static)]
    body = [f"**{markdown(LOUD)}**", "", *table(HEAD, "lrrrr", rows)]
    return details("The convention of fvcore", body) if rows else []


GIVEN: Final = "The configuration's numbers are put in; the JSON file has the same formulas in symbols."
DERIVED: Final = (
    "Derived, not given: read off the exported graph with its sizes in symbols. The run agrees with them at this "
    "workload as far as the verdict says; `costproof derive` checks them at others."
)


def _formulas(static: StaticCompute) -> list[str]:
    lines: list[str] = [DERIVED if static.formulas_of == "derived" else GIVEN]
    for stage in static.stages:
        for call in stage.invocations:
            for metric, formula in call.formulas.items():
                if formula.at_config == "0":
                    continue
                name = SHOWN[metric].title
                title = f"{markdown(stage.id)}, {markdown(call.id)}: {name[:1].upper()}{name[1:]}"
                lines += ["", f"{title} (version {code(formula.version)})", "", "$$", formula.latex, "$$"]
                lines += ["", _put_in(call, formula, metric)] if formula.symbols else []
    if static.symbols:
        rows = [(f"${doc.latex}$", code(name), markdown(doc.meaning)) for name, doc in sorted(static.symbols.items())]
        lines += ["", *table(("Symbol", "Name", "Meaning"), "lll", rows)]
    return lines


def _put_in(call: InvocationCompute, formula: FormulaText, metric: str) -> str:
    values = ", ".join(f"{code(s)} = {exact(call.symbols.get(s))}" for s in formula.symbols)
    result = call.costs[metric]
    if result is None:
        return f"With {values}."
    return f"With {values}: {exact(result)}" + (f" ({human(result)})." if result >= 1000 else ".")
