"""The certificate for people: the verdict first, then what is claimed, over which domain, by which method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import sympy

from costproof.compare.proof.certificate import Certificate, Counterexample
from costproof.ledger.symbols import factored, parse, text
from costproof.reports.describe import model_line
from costproof.reports.escape import code, markdown, table
from costproof.reports.numbers import some

_SENTENCE: Final = {
    "proved": "Proved: every formula equals the graph, over the domain below.",
    "refuted": "Refuted: at least one formula differs from the graph.",
    "incomplete": "Incomplete: some pieces could not be carried out, so nothing is claimed about them.",
}
_METHOD: Final = {
    "identity": "The difference of formula and graph, both symbolic, expands to 0: it holds for all values of the "
    "free symbols.",
    "identity per size": "The same with the size as a number: at each size that was exported by itself, the "
    "difference expands to 0 for all values of the other symbols. The formulas in certificate.json are those at the "
    "sizes of the runs.",
    "enumeration": "The graph loops over its inputs and has no symbols, so it was exported for every input listed, and "
    "the integers are equal.",
}
_EXPORTER: Final = (
    "torch.export takes a symbol to be 2 or more. Sizes of 1 are among the random configurations and, for `N`, in "
    "every run."
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


def certificate_md(c: Certificate) -> str:
    """Markdown text of a certificate."""
    lines = [f"# Certificate: {code(c.target.name)}", "", f"**{_SENTENCE[c.verdict]}**", ""]
    lines += [f"Model {code(c.target.name)}: {markdown(model_line(c.target))}.", ""]
    mistakes = c.mistakes()
    if mistakes:
        lines += ["## Counterexamples", ""]
        for examples in mistakes[:10]:
            lines += [*_example(examples[0]), *_elsewhere(examples[1:]), ""]
        if len(mistakes) > 10:
            lines += [f"{len(mistakes) - 10} more quantities differ: see certificate.json.", ""]
    if c.missing:
        lines += ["## Not carried out", "", *(f"- {code(m)}" for m in c.missing), ""]
    lines += ["## What is claimed", "", *_table(c), ""]
    lines += ["## FLOPs of this configuration", "", *_headline(c), ""]
    lines += ["## Methods", ""]
    lines += [f"- **{name}**: {_METHOD[name]}" for name in _METHOD if any(x.method == name for x in c.claims)]
    lines += ["", "## Domain", "", *_domain(c), ""]
    if c.bounds:
        lines += ["## Configurations", "", *_configurations(c), ""]
    lines += ["## Not claimed", "", *(f"- {item}" for item in c.not_claimed), ""]
    lines += ["## Made with", "", ", ".join(f"{k} {v}" for k, v in sorted(c.environment.items())) + ".", ""]
    lines += ["Repeat it with `costproof prove --verify certificate.json`."]
    return "\n".join(lines) + "\n"


def _table(c: Certificate) -> list[str]:
    rows = []
    for stage, method in dict.fromkeys((x.stage, x.method) for x in c.claims):
        claims = [x for x in c.claims if (x.stage, x.method) == (stage, method)]
        metrics = ", ".join(sorted({x.metric for x in claims}))
        rows.append((stage, method, str(len(claims)), str(len({x.version for x in claims})), metrics))
    formulas = len({x.version for x in c.claims})
    said = f"{len(c.claims):,} claims, {formulas:,} different formulas, with their versions in certificate.json."
    lines = table(("Stage", "Method", "Claims", "Formulas", "Metrics"), "llrrl", rows)
    return [*lines, "", f"Each claim is one quantity of one pattern of modules: {said}"]


def _headline(c: Certificate) -> list[str]:
    """The sums of the claims about FLOPs, stage by stage: what a reader will look for first."""
    rows = []
    used: set[str] = set()
    for stage in c.target.stages:
        mine = [x for x in c.claims if x.stage == stage and x.metric == "flops"]
        by_run = [[x for x in mine if run in x.runs] for run in c.coverage.runs]
        shown = [x for x in mine if x.invocation == "any"] or next(filter(None, by_run), [])
        if shown:
            total = sympy.Add(*(x.modules * parse(x.at_config) for x in shown))
            used |= {s.name for s in total.free_symbols}
            rows.append((stage, code(text(factored(total)))))
    lines = table(("Stage", "FLOPs, 2 per multiply-accumulate"), "ll", rows)
    return [*lines, "", ", ".join(f"{code(s)} {markdown(d.meaning)}" for s, d in c.symbols.items() if s in used) + "."]


def _domain(c: Certificate) -> list[str]:
    cover, free = c.coverage, {s for claim in c.claims for s in claim.free}
    named = ", ".join(f"{code(s)} ({markdown(d.meaning)})" for s, d in c.symbols.items() if s in free)
    lines = [f"- {named}: all positive integers. {_EXPORTER}", *_size_lines(c)]
    if names := cover.workloads:
        shown = ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]}, …, {names[-1]}"
        lines.append(f"- Inputs without symbols, one by one: {len(names)}, {markdown(shown)}.")
    compared = ", ".join(f"{n:,} in {phase}" for phase, n in cover.rows.items())
    return [
        *lines,
        f"- Runs: {'; '.join(cover.runs)}.",
        f"- Configuration: {code(c.target.config_hash)} for the identities; {cover.samples:,} random ones beside it.",
        f"- Quantities compared: {compared}.",
    ]


def _size_lines(c: Certificate) -> list[str]:
    cover = c.coverage
    lines = [f"- Sizes, one by one: {_sizes(cover.sizes)}."] if cover.sizes else []
    if cover.symbolic_sizes:
        others = sorted(set(cover.tried_sizes) - set(cover.symbolic_sizes))
        left = sorted(set(others) - set(cover.sizes))
        rest = "these are among the sizes that were exported one by one"
        if left:
            rest = f"nothing is claimed at {_listed(left)}"
        lines.append(
            f"- Sizes, as a symbol: the conditions under which the graphs hold were looked at for "
            f"{_sizes(cover.tried_sizes)}. They are fulfilled at {len(cover.symbolic_sizes)} of them; at "
            f"{_listed(others)} the model takes another way, and {rest}."
        )
    return lines


def _listed(sizes: Sequence[int]) -> str:
    return some([*map(str, sizes)], 12) or "none"


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) < 3:
        return ", ".join(map(str, sizes))
    return f"all {len(sizes)} from {sizes[0]} to {sizes[-1]} in steps of {sizes[1] - sizes[0]}"


def _configurations(c: Certificate) -> list[str]:
    rows = []
    for b in c.bounds:
        parameters = ", ".join(f"{code(p.name)} {p.degree}/{p.values}" for p in b.parameters)
        rows.append((b.stage, parameters, f"≥ {b.caught}", f"≤ 1 in 10^{b.missed_exponent}"))
    head = ("Stage", "Parameters (degree / values)", "One draw shows a mistake", "All draws miss it")
    drawn = _DRAWN.format(samples=c.coverage.samples, seed=c.settings.seed)
    lines = [drawn, "", _WHY, "", *table(head, "llrr", rows)]
    fixed = sorted({name for b in c.bounds for name in b.fixed})
    if fixed:
        lines += ["", f"Symbols of formulas that are not drawn numbers: {', '.join(code(n) for n in fixed)}."]
    choices = ", ".join(f"{name} {count}" for name, count in c.coverage.choices.items())
    lines += ["", f"Of {c.coverage.samples:,} configurations: {choices}.", "", "In common, and why:", ""]
    return [*lines, *(f"- {item}" for item in c.coverage.not_varied), "", *_seen(c)]


def _seen(c: Certificate) -> list[str]:
    """Which keys the draws varied how far, and which never."""
    seen = c.coverage.seen
    ranges = [
        f"{code(k)} {s.least:,} to {s.greatest:,}" for k, s in seen.items() if s.values > 1 and s.least is not None
    ]
    others = [f"{code(k)} {s.values} values" for k, s in seen.items() if s.values > 1 and s.least is None]
    never = [code(k) for k, s in seen.items() if s.values == 1]
    said = (("Numbers seen", ranges), ("Of other kinds", others), ("Never varied", never))
    return [f"- {what}: {', '.join(names)}." for what, names in said if names]


def _elsewhere(others: Sequence[Counterexample]) -> list[str]:
    places = sorted({code(e.found_in) for e in others})
    more = " …" if len(places) > 4 else ""
    return [f"- found {len(others)} times more, in {', '.join(places[:4])}{more}"] if others else []


def _example(e: Counterexample) -> Iterable[str]:
    where = f"{e.stage}[{e.invocation}]/{e.module}" if e.invocation else f"{e.stage}/{e.module}"
    yield from (f"### {code(where + (':' + e.kind if e.kind else ''))}: {e.metric}", "")
    yield from (f"- {of}: {code(getattr(e, of))}" for of in ("formula", "analytic", "static"))
    if e.difference == "unknown":
        yield "- one of the two does not have this quantity"
    elif parse(e.difference).could_extract_minus_sign():
        yield f"- missing in the formula: {code(text(-parse(e.difference)))}"
    else:
        yield f"- extra in the formula: {code(e.difference)}"
    if e.smallest:
        yield "- smallest sizes that show it: " + ", ".join(f"{code(k)} = {v}" for k, v in e.smallest.items())
    if e.config:
        yield "- drawn configuration: " + ", ".join(f"{k} = {v}" for k, v in sorted(e.config.items()))
