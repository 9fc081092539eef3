"""Report the certificate of a proof: its verdict, claims, domain and method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import sympy

from costproof.algebra.symbols import factored, parse, text
from costproof.compare.proof.certificate import Certificate, Counterexample
from costproof.ledger.plural import plural
from costproof.ledger.workload import proved_line
from costproof.reports.document import (
    Block,
    Code,
    Document,
    DocumentSection,
    Equation,
    Form,
    Items,
    Prose,
    Table,
    TableRow,
    code_list,
    conventions_foot,
)
from costproof.reports.html.document import Html
from costproof.reports.html.mathml import mathml
from costproof.views.describe import model_line, versions_line
from costproof.views.numbers import exact, first_names, truncate

SENTENCE: Final = {
    "proved": "Proved: every formula equals the graph, over the domain below.",
    "refuted": "Refuted: at least one formula differs from the graph.",
    "incomplete": "Incomplete: some pieces could not be carried out, so nothing is claimed about them.",
}
MOST_EXAMPLES: Final = 10
_OF_ROWS: Final = "identity of rows"
_LONGEST: Final = 120
_METHOD: Final = {
    "identity": "The difference of formula and graph, both symbolic, expands to 0: it holds for all values of the "
    "free symbols.",
    "identity per size": "The same with the size as a number: at each size that was exported by itself, the "
    "difference expands to 0 for all values of the other symbols. The formulas in certificate.json are those at the "
    "sizes of the runs.",
    "identity of rows": "The difference of two formulas, of a batch of rows and of the runs that are named with it, "
    "expands to 0: it holds for all sizes on the same sides of a window. Kept scores of random batches were compared "
    "with pairs that were counted one by one.",
    "enumeration": "The graph loops over its inputs and has no symbols, so it was exported for every input listed, and "
    "the integers are equal.",
}
_EXPORTER: Final = (
    "torch.export takes a symbol to be 2 or more. Sizes of 1 are among the random configurations and, for ",
    Code("N"),
    ", in every run.",
)
_DRAWN: Final = (
    "{samples:,} random configurations (seed {seed}) were built, exported and compared as integers in every stage, "
    "module and operator kind."
)
_WHY: Final = (
    "Why that settles it: formula minus graph is a polynomial in the parameters below. A polynomial of degree d in one "
    "variable that is not zero has at most d zeros, so if a parameter is drawn from s values, at most d of the s hide "
    "a mistake; going through the parameters one by one, a single draw shows a mistake with at least the chance in the "
    "table (DeMillo-Lipton, Schwartz, Zippel). The draws are independent, so the chance that all of them miss it is "
    "that small. This takes for granted that the graph's count has, in each parameter, no higher degree than the "
    "formula's, and no parameters that the formulas of its stage do not have. The table is about configurations "
    "that have the part in question; how many of those drawn have which is listed below it."
)


def document(c: Certificate, form: Form) -> Document:
    """Return the report of a proof's certificate: its verdict, claims, domain and method."""
    title, again = "Certificate: ", "costproof prove --verify certificate.json"
    if form == "md":
        body: list[Block] = [("Model ", Code(c.target.name), f": {model_line(c.target)}."), f"{proved_line(c.target)}."]
        body += [DocumentSection(name, blocks) for name, blocks in sections(c)]
        body.append(DocumentSection("Made with", [f"{versions_line(c.environment)}."]))
        body.append(("Repeat it with ", Code(again), "."))
        return Document((title, Code(c.target.name)), body, c.verdict, SENTENCE[c.verdict])
    body = []
    for name, blocks in sections(c):
        if name == "FLOPs of this configuration":
            body += [
                DocumentSection("Claims", [_every_claim(c)], id="claims"),
                DocumentSection(name, [_sums(c), *blocks[1:]]),
            ]
        else:
            body.append(DocumentSection(name, blocks, flagged=name in ("Counterexamples", "Not carried out")))
    foot = conventions_foot(c.conventions, c.environment, f"Repeat it with {again}.")
    return Document(
        title + c.target.name, body, c.verdict, SENTENCE[c.verdict], [model_line(c.target), proved_line(c.target)], foot
    )


def _every_claim(c: Certificate) -> Table:
    """Return the searchable table of all claims of a certificate, each with its typeset formula."""
    head = ("Stage", "Call", "Modules", "×", "Operator", "Metric", "Method", "Formula")
    rows = []
    for x in c.claims:
        cells = (x.stage, x.invocation, Code(x.module), exact(x.modules), x.kind, x.metric, x.method)
        free = tuple((Code(s), f": {c.symbols[s].meaning}" if s in c.symbols else "") for s in x.free)
        more: tuple[Block, ...] = (
            Equation(x.at_config, mathml=mathml(x.at_config, c.symbols)),
            ("Shown for ", "; ".join(x.runs), ", version ", Code(x.version), "."),
            *(("For all values of", Items(free)) if free else ()),
        )
        formula, title = Code(truncate(x.formula, _LONGEST)), "At this configuration, and for which values"
        rows.append(TableRow((*cells, formula), x.method, more, title))
    return Table(head, "lllrllll", rows, noun="claim", rest="certificate.json", searchable=True)


def _sums(c: Certificate) -> Table:
    """Return the table of FLOPs per stage, each a typeset formula that sums the certificate's claims."""
    rows = [(stage, Html(mathml(text(factored(total)), c.symbols))) for stage, total in totals(c).items()]
    return Table(("Stage", "FLOPs, 2 per multiply-accumulate"), "l", rows)


def sections(c: Certificate) -> Iterator[tuple[str, list[Block]]]:
    """Yield (title, blocks) of the sections of the report; refutations come first."""
    mistakes = c.mistakes()
    if mistakes:
        told = [block for examples in mistakes[:MOST_EXAMPLES] for block in example(examples)]
        more = len(mistakes) - MOST_EXAMPLES
        yield (
            "Counterexamples",
            [*told, *([f"{more} more quantities differ: see certificate.json."] if more > 0 else [])],
        )
    if c.missing:
        yield "Not carried out", [Items(tuple(map(Code, c.missing)))]
    yield "What is claimed", _claimed(c)
    yield "FLOPs of this configuration", _headline(c)
    used = {x.method for x in c.claims}
    yield "Methods", [Items(tuple((Code(name), f": {said}") for name, said in _METHOD.items() if name in used))]
    yield "Domain", [Items(tuple(_domain(c)))]
    if c.bounds:
        yield "Configurations", list(_configurations(c))
    yield "Not claimed", [Items(c.every_not_claimed)]


def _claimed(c: Certificate) -> list[Block]:
    rows = []
    for stage, method in dict.fromkeys((x.stage, x.method) for x in c.claims):
        claims = [x for x in c.claims if (x.stage, x.method) == (stage, method)]
        metrics = ", ".join(sorted({x.metric for x in claims}))
        rows.append((stage, method, str(len(claims)), str(len({x.version for x in claims})), metrics))
    formulas = len({x.version for x in c.claims})
    counts = f"{plural(len(c.claims), 'claim')}, {plural(formulas, 'different formula')}"
    said = f"{counts}, with their versions in certificate.json."
    grid = Table(("Stage", "Method", "Claims", "Formulas", "Metrics"), "llrrl", tuple(rows))
    return [grid, f"Each claim is one quantity of one pattern of modules: {said}"]


def totals(c: Certificate) -> dict[str, sympy.Expr]:
    """Return the FLOPs of each stage as one expression in the free symbols, summed over the claims."""
    found = {}
    for stage in c.target.stages:
        mine = [x for x in c.claims if x.stage == stage and x.metric == "flops" and x.method != _OF_ROWS]
        by_run = [[x for x in mine if run in x.runs] for run in c.coverage.runs]
        shown = [x for x in mine if x.invocation == "any"] or next(filter(None, by_run), [])
        if shown:
            found[stage] = sympy.Add(*(x.modules * parse(x.at_config) for x in shown))
    return found


def _headline(c: Certificate) -> list[Block]:
    sums = totals(c)
    used = {s.name for total in sums.values() for s in total.free_symbols}
    rows = tuple((stage, Code(text(factored(total)))) for stage, total in sums.items())
    symbols = [(s, d.meaning) for s, d in sorted(c.symbols.items()) if s in used]
    return [Table(("Stage", "FLOPs, 2 per multiply-accumulate"), "ll", rows), (*_meanings(symbols, " ", ""), ".")]


def _meanings(symbols: Sequence[tuple[str, str]], before: str, after: str) -> tuple[str, ...]:
    pieces = (p for i, (s, said) in enumerate(symbols) for p in (", " if i else "", Code(s), f"{before}{said}{after}"))
    return tuple(pieces)


def _domain(c: Certificate) -> Iterator[Prose]:
    cover, free = c.coverage, {s for claim in c.claims for s in claim.free}
    named = [(s, d.meaning) for s, d in sorted(c.symbols.items()) if s in free]
    yield (*_meanings(named, " (", ")"), ": all positive integers. ", *_EXPORTER)
    if cover.sizes:
        yield f"Sizes, one by one: {_sizes(cover.sizes)}."
    if cover.symbolic_sizes:
        others = sorted(set(cover.tried_sizes) - set(cover.symbolic_sizes))
        left = sorted(set(others) - set(cover.sizes))
        rest = (
            f"nothing is claimed at {_few(left)}" if left else "these are among the sizes that were exported one by one"
        )
        yield (
            f"Sizes, as a symbol: the conditions under which the graphs hold were looked at for "
            f"{_sizes(cover.tried_sizes)}. They are fulfilled at {len(cover.symbolic_sizes)} of them; at "
            f"{_few(others)} the model takes another branch, and {rest}."
        )
    if names := cover.workloads:
        shown = ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]}, …, {names[-1]}"
        yield f"Inputs without symbols, one by one: {len(names)}, {shown}."
    yield f"Runs: {'; '.join(cover.runs)}."
    if rows := dict.fromkeys(run for claim in c.claims if claim.method == _OF_ROWS for run in claim.runs):
        yield f"Rows (sequences x new tokens + past): {'; '.join(rows)}."
    yield (
        "Configuration: ",
        Code(c.target.config_hash),
        f" for the identities; {plural(cover.samples, 'random one')} beside it.",
    )
    yield f"Quantities compared: {', '.join(f'{n:,} in {phase}' for phase, n in sorted(cover.rows.items()))}."


def _few(sizes: Sequence[int]) -> str:
    return first_names([*map(str, sizes)], 12) or "none"


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) < 3:
        return ", ".join(map(str, sizes))
    return f"all {len(sizes)} from {sizes[0]} to {sizes[-1]} in steps of {sizes[1] - sizes[0]}"


def _configurations(c: Certificate) -> Iterator[Block]:
    yield _DRAWN.format(samples=c.coverage.samples, seed=c.settings.seed)
    yield _WHY
    rows = []
    for b in c.bounds:
        degrees = [(p.name, f"{p.degree}/{p.values}") for p in b.parameters]
        rows.append((b.stage, _meanings(degrees, " ", ""), f"≥ {b.caught}", f"≤ 1 in 10^{b.missed_exponent}"))
    head = ("Stage", "Parameters (degree / values)", "One draw shows a mistake", "All draws miss it")
    yield Table(head, "llrr", tuple(rows))
    if fixed := sorted({name for b in c.bounds for name in b.fixed}):
        yield ("Symbols of formulas that are not drawn numbers: ", *code_list(fixed), ".")
    # A file has them by name, and a proof as it met them: the same text is made of both.
    ordered = sorted(c.coverage.choices.items(), key=lambda choice: (-choice[1], choice[0]))
    choices = ", ".join(f"{name} {count}" for name, count in ordered)
    yield f"Of {c.coverage.samples:,} configurations: {choices}."
    yield "In common, and why:"
    yield Items(c.coverage.not_varied)
    yield Items(tuple(_seen(c)))


def _seen(c: Certificate) -> Iterator[Prose]:
    """Yield a sentence for each configuration key: its range over the random configurations, or that it is constant."""
    seen = c.coverage.seen
    ranges = [(k, f"{s.least:,} to {s.greatest:,}") for k, s in seen.items() if s.values > 1 and s.least is not None]
    others = [(k, f"{s.values} values") for k, s in seen.items() if s.values > 1 and s.least is None]
    if ranges:
        yield ("Numbers seen: ", *_meanings(ranges, " ", ""), ".")
    if others:
        yield ("Of other kinds: ", *_meanings(others, " ", ""), ".")
    if never := [k for k, s in seen.items() if s.values == 1]:
        yield ("Never varied: ", *code_list(never), ".")


def place(e: Counterexample) -> str:
    """Return the cost node of a counterexample as text: ``sam[crops]/sam.layers.0.lin:linear``."""
    where = f"{e.stage}[{e.invocation}]/{e.module}" if e.invocation else f"{e.stage}/{e.module}"
    return where + (f":{e.kind}" if e.kind else "")


def example(found: Sequence[Counterexample]) -> list[Block]:
    """Return the blocks about a quantity in which formula and graph differ, with its simplest counterexample."""
    e, *others = found
    return [(Code(place(e)), f": {e.metric}"), Items((*_example(e), *_elsewhere(others)))]


def _example(e: Counterexample) -> Iterable[Prose]:
    sides = ("rows", "equal to") if e.found_in.startswith("rows: ") else ("analytic", "static")
    yield from ((f"{of}: ", Code(said)) for of, said in
                (("formula", e.formula), (sides[0], e.analytic), (sides[1], e.static)))  # fmt: skip
    if e.difference == "unknown":
        yield "one of the two does not have this quantity"
    elif parse(e.difference).could_extract_minus_sign():
        yield ("missing in the formula: ", Code(text(-parse(e.difference))))
    else:
        yield ("extra in the formula: ", Code(e.difference))
    if e.smallest:
        yield ("smallest sizes that show it: ", *_meanings([(k, f"{v:,}") for k, v in e.smallest.items()], " = ", ""))
    if e.config:
        yield "drawn configuration: " + ", ".join(f"{k} = {v}" for k, v in sorted(e.config.items()))


def _elsewhere(others: Sequence[Counterexample]) -> Iterator[Prose]:
    if others:
        places = sorted({e.found_in for e in others})
        yield (
            f"found {plural(len(others), 'time')} more, in ",
            *code_list(places[:4]),
            " …" if len(places) > 4 else "",
        )
