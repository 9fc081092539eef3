"""The answer of ``costproof explain`` as Markdown."""

from __future__ import annotations

from costproof.reports.describe import head
from costproof.reports.escape import code, details, markdown, table
from costproof.reports.explain import ExplainedCall, Explanation, Part
from costproof.reports.explain_text import match_words
from costproof.reports.numbers import exact, plural
from costproof.reports.quantities import EXPLAINED


def explain_md(found: Explanation) -> str:
    """The explanation: a table of formulas for each call, then symbols and derivations."""
    info = EXPLAINED[found.metric]
    title = f"{markdown(found.target.name)}: {info.title} of {markdown(found.stage)}"
    lines = head(title, f"{found.metric}, in {info.unit}: {info.meaning}.", found.target, found.workload)
    if found.module is not None:
        lines += [f"Modules that match {code(found.module)}.", ""]
    if found.attention:
        lines += [markdown(found.attention[:1].upper() + found.attention[1:]) + ".", ""]
    if not found.calls:
        lines += ["This stage does not run at this workload.", ""]
    for call in found.calls:
        lines += [*_call(found, call, info.unit), ""]
    if found.symbols:
        rows = [(code(s), markdown(meaning)) for s, meaning in found.symbols.items()]
        lines += ["## Symbols", "", *table(("Symbol", "Meaning"), "ll", rows), ""]
    for name, doc in found.docs.items():
        source = ["", f"Source: {markdown(doc.source)}."] if doc.source else []
        text = [markdown(line) for line in doc.derivation.splitlines()]
        lines += details(f"{code(name)}: {markdown(doc.title)}", [*text, *source])
    return "\n".join(lines).rstrip() + "\n"


def _call(found: Explanation, call: ExplainedCall, unit: str) -> list[str]:
    lines = [f"## {markdown(call.place)}" + (f": {plural(call.calls, 'call')}" if call.id else ""), ""]
    if call.symbols:
        lines += [", ".join(f"{code(s)} = {exact(v)}" for s, v in sorted(call.symbols.items())) + ".", ""]
    if call.formula is not None:
        lines += ["$$", call.formula.latex, "$$", ""]
        lines += [f"= {exact(call.total)} {unit} (version {code(call.formula.version)}).", ""]
    elif not call.parts:
        lines += [f"= {exact(call.total)} {unit}.", ""]
    head_ = ("Modules", "Number", "Formula of", "Formula", "With", "Each", "Together", "Graph")
    return [*lines, *table(head_, "lrlllrrl", [_row(p) for p in call.parts])] if call.parts else lines


def _row(part: Part) -> tuple[str, ...]:
    kind = f", {markdown(part.kind)}" if part.kind else ""
    return (
        code(part.modules),
        exact(part.count),
        (code(part.owner) if part.owner else "—") + kind,
        code(part.formula.expression),
        ", ".join(f"{code(s)} = {exact(v)}" for s, v in part.numbers.items()),
        exact(part.each),
        exact(part.total),
        "; ".join(markdown(match_words(part, m)) for m in part.matches) or "—",
    )
