"""``macs.md``: fvcore's convention, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costproof.reports.describe import foot, head
from costproof.reports.escape import code, details, markdown, table
from costproof.reports.macs import Macs, macs
from costproof.reports.macs_text import LOUD, cells, heads, left_out
from costproof.reports.numbers import exact, human

if TYPE_CHECKING:
    from costproof.reports.report import Report


def macs_md(found: Report) -> str:
    """The report."""
    data = macs(found.capture, found.discrepancy)
    title = f"{markdown(data.target.name)} in the convention {markdown(data.convention)}"
    lines = [
        *head(title, found.sentence, data.target, data.workload),
        *_overview(data),
        "",
        f"**{markdown(LOUD)}**",
        "",
        *(f"- {markdown(left_out(s))}" for s in data.stages if s.left_out),
        "",
        "`isolated` is the stage traced alone, `extracted` its part of the trace of the whole model.",
        "`exact`: they agree operator by operator, and so does the exported graph where it is counted.",
        "",
        *details("Calls of the stages", _calls(data)),
        *details("Operators", _operators(data)),
        *details("Every source by itself", _sources(data)),
        *foot(data.conventions, data.environment, [*_meanings(data), "", "What is left out is counted in ours:", ""]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _overview(data: Macs) -> list[str]:
    rows = [(markdown(s.id), human(s.params), *cells(s.macs, s.activations, human), s.status) for s in data.stages]
    rows.append(("**total**", human(data.params), *cells(data.totals["macs"], data.totals["activations"], human), ""))
    return table(("Stage", "Params", *heads(), "Status"), "lrrrrrl", rows)


def _calls(data: Macs) -> list[str]:
    rows = [(markdown(s.id), markdown(i.id), *cells(i.macs, i.activations)) for s in data.stages for i in s.invocations]
    return table(("Stage", "Call", *heads()), "llrrrr", rows)


def _operators(data: Macs) -> list[str]:
    rows = [(markdown(s.id), code(o.kind), *cells(o.macs, o.activations)) for s in data.stages for o in s.operators]
    out = [(markdown(s.id), code(k), exact(flops)) for s in data.stages for k, flops in s.left_out.items()]
    return [
        *table(("Stage", "Operator kind", *heads()), "llrrrr", rows),
        "",
        *table(("Stage", "Left out", "FLOPs, 2 per multiply-accumulate"), "llr", out),
    ]


def _sources(data: Macs) -> list[str]:
    rows = [
        (markdown(s.id), markdown(source), exact(s.macs[source]), exact(s.activations.get(source)))
        for s in data.stages
        for source in s.macs
    ]
    return table(("Stage", "Source", "MACs", "Activations"), "llrr", rows)


def _meanings(data: Macs) -> list[str]:
    rows = [(code(name), markdown(meaning)) for name, meaning in data.meaning.items()]
    return table(("Quantity", "Meaning"), "ll", rows)
