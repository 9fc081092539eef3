"""The cost of a stage by formula: each typeset, with the numbers put in and what the graphs have there."""

from __future__ import annotations

from collections.abc import Iterator

from costproof.reports.explain import ExplainedCall, Explanation, Part
from costproof.reports.explain_texts import match_words
from costproof.reports.html.document import Html, h, joined, table
from costproof.reports.html.mathml import mathml
from costproof.reports.html.parts import folded
from costproof.reports.numbers import exact, plural
from costproof.reports.quantities import EXPLAINED

_HEAD = ("Modules", "×", "Formula of", "Formula", "With", "Each", "Together", "Graph")


def explanation_body(found: Explanation) -> Iterator[Html]:
    """The calls with their formulas, then symbols and derivations."""
    unit = EXPLAINED[found.metric].unit
    if not found.calls:
        yield h("p", "This stage does not run at this workload.")
    yield from (_call(call, unit) for call in found.calls)
    if found.symbols:
        rows = [(h("code", s), meaning) for s, meaning in found.symbols.items()]
        yield folded(plural(len(rows), "symbol"), table(("Symbol", "Meaning"), rows, align="l"))
    for doc in found.docs.values():
        source = h("p", f"Source: {doc.source}.", class_="note") if doc.source else None
        yield folded(f"Derivation: {doc.title}", *(h("p", line) for line in doc.derivation.splitlines()), source)


def _call(call: ExplainedCall, unit: str) -> Html:
    sizes = joined(*(piece for s, v in sorted(call.symbols.items()) for piece in (" ", h("code", s), f" = {exact(v)}")))
    title = h("h3", call.place + (f": {plural(call.calls, 'call')}" if call.id else ""), h("small", sizes))
    whole = h("div", Html(mathml(call.formula.at_config, {})), class_="equation") if call.formula is not None else None
    said = h("p", "= ", h("b", exact(call.total)), f" {unit}") if whole is not None or not call.parts else None
    parts = table(_HEAD, map(_part, call.parts), align="lrlllrrl") if call.parts else None
    return h("div", title, whole, said, parts)


def _part(part: Part) -> tuple[str, ...]:
    return (
        h("code", part.modules),
        exact(part.count),
        ", ".join(filter(None, (part.owner, part.kind))) or "—",
        Html(mathml(part.formula.expression, {})),
        ", ".join(f"{s} = {exact(v)}" for s, v in part.numbers.items()),
        exact(part.each),
        exact(part.total),
        "; ".join(match_words(part, m) for m in part.matches) or "—",
    )
