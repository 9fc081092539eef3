"""Report the cost of a stage by formula, with values substituted, next to the counts of graphs."""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Code,
    Details,
    Document,
    DocumentSection,
    Equation,
    Form,
    Markup,
    Note,
    Table,
    TableRow,
    subject_lines,
)
from costproof.reports.escape import markdown, visible
from costproof.reports.html.document import Html, h, join_markup
from costproof.reports.html.mathml import mathml
from costproof.views.explanation import ExplainedCall, Explanation, FormulaPart, GraphMatch
from costproof.views.numbers import exact, human
from costproof.views.quantities import EXPLAINED

_WIDTH: Final = 110
_LABELS: Final = 3


def document(found: Explanation, form: Form) -> Document:
    """Return the report: the exact formulas of each call, then symbols and derivations."""
    info = EXPLAINED[found.metric]
    about = subject_lines(found.target, found.workload, form)
    idle = [] if found.calls else ["This stage does not run at this workload."]
    sentence = f"{found.metric}, in {info.unit}: {info.meaning}."
    attention = found.attention[:1].upper() + found.attention[1:] + "."
    if form == "text":
        title = f"{found.target.title}: {found.metric} of {found.stage} ({info.unit})"
        about += [f"{found.metric}: {info.meaning}"]
        about += [f"modules: {found.module}"] if found.module is not None else []
        about += _wrap_lines("attention: ", found.attention) if found.attention else []
        lines = [line for one in idle for line in ("", one)]
        lines += [line for call in found.calls for line in ("", *_call_lines(call, info.unit))]
        if found.symbols:
            longest = max(map(len, found.symbols))
            lines += ["", "Symbols", *(f"  {s:<{longest}}  {meaning}" for s, meaning in found.symbols.items())]
        for name, doc in found.docs.items():
            derivation = (f"  {line}".rstrip() for line in doc.derivation.splitlines())
            lines += ["", f"{name}: {doc.title}", *derivation]
            lines += [f"  source: {doc.source}"] if doc.source else []
        return Document(title, lines, about=about)
    title = f"{found.target.title}: {info.title} of {found.stage}"
    docs = [(name, doc, [f"Source: {doc.source}."] if doc.source else []) for name, doc in found.docs.items()]
    symbols = Table(("Symbol", "Meaning"), "ll", [(Code(s), meaning) for s, meaning in found.symbols.items()])
    if form in ("html", "cell"):
        about += [f"Modules that match {found.module}."] if found.module is not None else []
        about += [attention] if found.attention else []
        body: list[Block] = [*idle, *(block for call in found.calls for block in _call_blocks(call, info.unit))]
        body += [Details(plural(len(found.symbols), "symbol"), [symbols])] if found.symbols else []
        body += [Details(f"Derivation: {doc.title}", [*doc.derivation.splitlines(), *map(Note, source)])
                 for _, doc, source in docs]  # fmt: skip
        return Document(title, [DocumentSection("Formulas", body, id="formulas")], "", sentence, about)
    body = [("Modules that match ", Code(found.module), ".")] if found.module is not None else []
    body += [attention] if found.attention else []
    body += [*idle, *(_call_section(call, info.unit) for call in found.calls)]
    body += [DocumentSection("Symbols", [symbols])] if found.symbols else []
    body += [
        Details(
            (Code(name), f": {doc.title}"), [Markup("\n".join(map(markdown, doc.derivation.splitlines()))), *source]
        )
        for name, doc, source in docs
    ]
    return Document(title, body, "", sentence, about)


def _call_lines(call: ExplainedCall, unit: str) -> list[str]:
    # Stage-wide quantities have no sizes of a call to list.
    sizes = ", ".join(f"{s} = {exact(v)}" for s, v in sorted(call.symbols.items()))
    many = f": {plural(call.calls, 'call')}" if call.id else ""
    lines = [call.place + many + (f", {sizes}" if sizes else "")]
    if call.formula is not None:
        lines += _wrap_lines("  sum      ", f"{call.formula.at_config}")
        lines.append(f"           = {exact(call.total)} {unit} ({human(call.total)}), version {call.formula.version}")
    elif not call.parts:
        lines.append(f"  sum      = {exact(call.total)} {unit} ({human(call.total)})")
    for part in call.parts:
        lines += ["", *_part_lines(part, unit)]
    return lines


def _part_lines(part: FormulaPart, unit: str) -> list[str]:
    many = f" ({part.count} modules)" if part.count != 1 else ""
    kind = f", {part.kind}" if part.kind else ""
    lines = [f"  {part.modules}{many}: formula {part.owner or '(unnamed)'}{kind}"]
    lines += _wrap_lines("    formula  ", part.formula.expression)
    if part.numbers:
        lines += _wrap_lines("    with     ", ", ".join(f"{s} = {v}" for s, v in part.numbers.items()))
    times = f" x {part.count} modules = {exact(part.total)}" if part.count != 1 else ""
    lines.append(f"    result   {exact(part.each)}{times} {unit}")
    for match in part.matches:
        lines += _wrap_lines("    graph    ", match_words(part, match))
    return lines


def match_words(part: FormulaPart, match: GraphMatch) -> str:
    """Describe, unescaped, how a graph counts one part of a formula: ``static: equal, aten.linear (aten.linear_1)``."""
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


def _wrap_lines(label: str, text: str) -> list[str]:
    rows = wrap(visible(text), _WIDTH - len(label), break_long_words=False, break_on_hyphens=False) or [""]
    return [label + rows[0], *(" " * len(label) + row for row in rows[1:])]


def _call_section(call: ExplainedCall, unit: str) -> DocumentSection:
    """Return the Markdown section of a call: its sizes, its formula, and a table of the formula's summands."""
    body: list[Block] = []
    if call.symbols:
        sizes = [piece for s, v in sorted(call.symbols.items()) for piece in (", ", Code(s), f" = {exact(v)}")]
        body.append((*sizes[1:], "."))
    if call.formula is not None:
        version = Code(call.formula.version)
        body.append(Equation(call.formula.at_config, call.formula.latex))
        body.append((f"= {exact(call.total)} {unit} (version ", version, ")."))
    elif not call.parts:
        body.append(f"= {exact(call.total)} {unit}.")
    head = ("Modules", "Number", "Formula of", "Formula", "With", "Each", "Together", "Graph")
    rows = []
    for part in call.parts:
        owner = Code(part.owner) if part.owner else "—"
        numbers = [piece for s, v in part.numbers.items() for piece in (", ", Code(s), f" = {exact(v)}")]
        rows.append((
            Code(part.modules), exact(part.count), (owner, f", {part.kind}" if part.kind else ""),
            Code(part.formula.expression), tuple(numbers[1:]), exact(part.each), exact(part.total), _matches(part),
        ))  # fmt: skip
    body += [Table(head, "lrlllrrl", rows)] if rows else []
    return DocumentSection((call.place, f": {plural(call.calls, 'call')}" if call.id else ""), body)


def _call_blocks(call: ExplainedCall, unit: str) -> list[Block]:
    """Return the blocks of an HTML page on one call, with typeset formulas."""
    sizes = join_markup(
        *(piece for s, v in sorted(call.symbols.items()) for piece in (" ", h("code", s), f" = {exact(v)}"))
    )
    title = h("h3", call.place + (f": {plural(call.calls, 'call')}" if call.id else ""), h("small", sizes))
    whole = None
    if call.formula is not None:
        whole = h("div", Html(mathml(call.formula.at_config, {})), class_="equation", tabindex=0)
    said = h("p", "= ", h("b", exact(call.total)), f" {unit}") if whole is not None or not call.parts else None
    rows = []
    for part in call.parts:
        # The script copies the text of a formula, in which a power is still a power.
        typeset = h("data", Html(mathml(part.formula.expression, {})), value=part.formula.expression)
        numbers = ", ".join(f"{s} = {exact(v)}" for s, v in part.numbers.items())
        formula = join_markup(typeset, h("p", numbers, class_="note") if numbers else None)
        owner = ", ".join(filter(None, (part.owner, part.kind))) or "—"
        cells = (exact(part.each), exact(part.total), _matches(part))
        rows.append(TableRow((Code(part.modules), exact(part.count), owner, formula, *cells)))
    head = ("Modules", "×", "Formula of", "Formula", "Each", "Together", "Graph")
    table = Table(head, "lrllrrl", rows, noun="formula", rest="the text", searchable=True)
    return [Markup(join_markup(title, whole, said)), *([table] if rows else [])]


def _matches(part: FormulaPart) -> str:
    return "; ".join(match_words(part, m) for m in part.matches) or "—"
