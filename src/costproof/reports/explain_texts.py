"""The answer of ``costproof explain`` as plain text and as Markdown."""

from __future__ import annotations

from textwrap import indent, wrap
from typing import Final

from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.escape import code, details, head, markdown, table, visible
from costproof.reports.screen import folded
from costproof.views.describe import model_line, workload_line
from costproof.views.explanation import ExplainedCall, Explanation, Match, Part
from costproof.views.numbers import exact, human
from costproof.views.quantities import EXPLAINED

_WIDTH: Final = 110
_LABELS: Final = 3


def explain_text(found: Explanation, width: int | None = None) -> str:
    """The explanation; every number in it is an exact integer."""
    unit = EXPLAINED[found.metric].unit
    lines = [
        f"{visible(found.target.title)}: {found.metric} of {visible(found.stage)} ({unit})",
        f"model: {visible(model_line(found.target))}",
        f"workload: {visible(found.workload.name)}: {visible(workload_line(found.workload))}",
        visible(counted_line(found.target, found.workload)),
        f"{found.metric}: {EXPLAINED[found.metric].meaning}",
    ]
    if found.module is not None:
        lines.append(f"modules: {visible(found.module)}")
    if found.attention:
        lines += _wrapped("attention: ", found.attention)
    if not found.calls:
        lines += ["", "This stage does not run at this workload."]
    for call in found.calls:
        lines += ["", *_call(call, unit)]
    if found.symbols:
        lines += ["", "Symbols"]
        longest = max(map(len, found.symbols))
        lines += [f"  {visible(s):<{longest}}  {visible(meaning)}" for s, meaning in found.symbols.items()]
    for name, doc in found.docs.items():
        lines += ["", f"{visible(name)}: {visible(doc.title)}"]
        lines += [indent(visible(line), "  ").rstrip() for line in doc.derivation.splitlines()]
        lines += [f"  source: {visible(doc.source)}"] if doc.source else []
    return "".join(f"{part.rstrip()}\n" for line in lines for part in folded(line, width))


def _call(call: ExplainedCall, unit: str) -> list[str]:
    # Stage-wide quantities have no sizes of a call to list.
    sizes = ", ".join(f"{s} = {exact(v)}" for s, v in sorted(call.symbols.items()))
    many = f": {plural(call.calls, 'call')}" if call.id else ""
    lines = [visible(call.place) + many + (f", {sizes}" if sizes else "")]
    if call.formula is not None:
        lines += _wrapped("  sum      ", f"{call.formula.at_config}")
        lines.append(f"           = {exact(call.total)} {unit} ({human(call.total)}), version {call.formula.version}")
    elif not call.parts:
        lines.append(f"  sum      = {exact(call.total)} {unit} ({human(call.total)})")
    for part in call.parts:
        lines += ["", *_part(part, unit)]
    return lines


def _part(part: Part, unit: str) -> list[str]:
    many = f" ({part.count} modules)" if part.count != 1 else ""
    kind = f", {visible(part.kind)}" if part.kind else ""
    lines = [f"  {visible(part.modules)}{many}: formula {visible(part.owner) or '(unnamed)'}{kind}"]
    lines += _wrapped("    formula  ", part.formula.expression)
    if part.numbers:
        lines += _wrapped("    with     ", ", ".join(f"{s} = {v}" for s, v in part.numbers.items()))
    times = f" x {part.count} modules = {exact(part.total)}" if part.count != 1 else ""
    lines.append(f"    result   {exact(part.each)}{times} {unit}")
    for match in part.matches:
        lines += _wrapped("    graph    ", match_words(part, match))
    return lines


def match_words(part: Part, match: Match) -> str:
    """What a graph source has there: ``static: equal, aten.linear (aten.linear_1, aten.linear_6)``; not escaped."""
    if match.value is None:
        same = "unknown"
    elif match.value == part.total:
        same = "equal"
    else:
        # Several formulas of ours may share one module, so a difference here is not a verdict.
        same = f"{exact(match.value)} over all formulas of these modules"
    ops = "".join(f", {kind}" for kind in match.kinds)
    shown = ", ".join(match.evidence[:_LABELS])
    more = f", … {len(match.evidence) - _LABELS} more" if len(match.evidence) > _LABELS else ""
    return f"{match.source}: {same}{ops}" + (f" ({shown}{more})" if shown else "")


def _wrapped(label: str, text: str) -> list[str]:
    rows = wrap(visible(text), _WIDTH - len(label), break_long_words=False, break_on_hyphens=False) or [""]
    return [label + rows[0], *(" " * len(label) + row for row in rows[1:])]


def explain_md(found: Explanation) -> str:
    """The explanation: a table of formulas for each call, then symbols and derivations."""
    info = EXPLAINED[found.metric]
    title = f"{markdown(found.target.title)}: {info.title} of {markdown(found.stage)}"
    lines = head(title, f"{found.metric}, in {info.unit}: {info.meaning}.", found.target, found.workload)
    if found.module is not None:
        lines += [f"Modules that match {code(found.module)}.", ""]
    if found.attention:
        lines += [markdown(found.attention[:1].upper() + found.attention[1:]) + ".", ""]
    if not found.calls:
        lines += ["This stage does not run at this workload.", ""]
    for call in found.calls:
        lines += [*_section(call, info.unit), ""]
    if found.symbols:
        rows = [(code(s), markdown(meaning)) for s, meaning in found.symbols.items()]
        lines += ["## Symbols", "", *table(("Symbol", "Meaning"), "ll", rows), ""]
    for name, doc in found.docs.items():
        source = ["", f"Source: {markdown(doc.source)}."] if doc.source else []
        text = [markdown(line) for line in doc.derivation.splitlines()]
        lines += details(f"{code(name)}: {markdown(doc.title)}", [*text, *source])
    return "\n".join(lines).rstrip() + "\n"


def _section(call: ExplainedCall, unit: str) -> list[str]:
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
