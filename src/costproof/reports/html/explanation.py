"""The cost of a stage by formula: each typeset, with the numbers put in and what the graphs have there."""

from __future__ import annotations

from collections.abc import Iterator

from costproof.ledger.plural import plural
from costproof.reports.explain_texts import match_words
from costproof.reports.html.document import Html, h, joined, page, table
from costproof.reports.html.mathml import mathml
from costproof.reports.html.parts import MOST, Item, about, folded, head, sifted
from costproof.views.explanation import ExplainedCall, Explanation, Part
from costproof.views.numbers import exact
from costproof.views.quantities import EXPLAINED

_HEAD = ("Modules", "×", "Formula of", "Formula", "Each", "Together", "Graph")


def explanation_page(found: Explanation) -> str:
    """The file."""
    title, sentence, told = explanation_head(found)
    formulas = h("section", h("h2", "Formulas"), *explanation_body(found), id="formulas")
    return page(title, head(title, "", sentence, told), [formulas], h("footer"))


def explanation_head(found: Explanation) -> tuple[str, str, list[str]]:
    """What is broken down: a title, the metric in a sentence, model and workload."""
    info = EXPLAINED[found.metric]
    told = [about(found.target, found.workload)]
    told += [f"Modules that match {found.module}."] if found.module is not None else []
    told += [f"{found.attention[:1].upper()}{found.attention[1:]}."] if found.attention else []
    title = f"{found.target.title}: {info.title} of {found.stage}"
    return title, f"{found.metric}, in {info.unit}: {info.meaning}.", told


def explanation_body(found: Explanation, most: int = MOST) -> Iterator[Html]:
    """The calls with their formulas, then symbols and derivations."""
    unit = EXPLAINED[found.metric].unit
    if not found.calls:
        yield h("p", "This stage does not run at this workload.")
    yield from (_call(call, unit, most) for call in found.calls)
    if found.symbols:
        rows = [(h("code", s), meaning) for s, meaning in found.symbols.items()]
        yield folded(plural(len(rows), "symbol"), table(("Symbol", "Meaning"), rows, align="l"))
    for doc in found.docs.values():
        source = h("p", f"Source: {doc.source}.", class_="note") if doc.source else None
        yield folded(f"Derivation: {doc.title}", *(h("p", line) for line in doc.derivation.splitlines()), source)


def _call(call: ExplainedCall, unit: str, most: int) -> Html:
    sizes = joined(*(piece for s, v in sorted(call.symbols.items()) for piece in (" ", h("code", s), f" = {exact(v)}")))
    title = h("h3", call.place + (f": {plural(call.calls, 'call')}" if call.id else ""), h("small", sizes))
    whole = (
        h("div", Html(mathml(call.formula.at_config, {})), class_="equation", tabindex=0)
        if call.formula is not None
        else None
    )
    said = h("p", "= ", h("b", exact(call.total)), f" {unit}") if whole is not None or not call.parts else None
    items = [Item(_part(part), "") for part in call.parts]
    parts = sifted(_HEAD, items, name="formula", align="lrllrrl", most=most, file="the text") if items else None
    return h("div", title, whole, said, parts)


def _part(part: Part) -> tuple[str, ...]:
    return (
        h("code", part.modules),
        exact(part.count),
        ", ".join(filter(None, (part.owner, part.kind))) or "—",
        _formula(part),
        exact(part.each),
        exact(part.total),
        "; ".join(match_words(part, m) for m in part.matches) or "—",
    )


def _formula(part: Part) -> Html:
    """Typeset, with the numbers put in below; the script copies its text, in which a power is one still."""
    typeset = h("data", Html(mathml(part.formula.expression, {})), value=part.formula.expression)
    numbers = ", ".join(f"{s} = {exact(v)}" for s, v in part.numbers.items())
    return joined(typeset, h("p", numbers, class_="note") if numbers else None)
