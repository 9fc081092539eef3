"""Report the costs of each stage: sums, calls, sources and formulas; for a truncated model, also of all layers.

For a run on several devices, report the ranks too: their costs, their collectives, and what they hold copies of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from costproof.ledger.capture import Padding, WholeModel
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.mesh import EP_BATCHES, Parallel
from costproof.ledger.metrics import COMM, EVERY_METRIC, FVCORE, METRICS, PEAK_METRICS, Metric
from costproof.ledger.peaks import largest
from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Equation,
    Form,
    Items,
    Markdown,
    Note,
    Number,
    Prose,
    Strong,
    Table,
    code_list,
    conventions_foot,
    subject_lines,
)
from costproof.views.formulas import FormulaText
from costproof.views.numbers import exact, human, human_or_bound, share
from costproof.views.quantities import SHOWN, UNITS
from costproof.views.results import Results
from costproof.views.static_compute import InvocationCompute, StaticCompute

MAX_STAGES: Final = 13
"""Maximum number of stages in the first table, so that the table fits one screen."""
GIVEN: Final = "The configuration's numbers are put in; the JSON file has the same formulas in symbols."
DERIVED: Final = (
    "Derived, not given: read off the exported graph with its sizes in symbols. ",
    "The run agrees with them at this workload as far as the verdict says; ",
    Code("costproof derive"),
    " checks them at others.",
)
WORKED_OUT: Final = "The whole model, worked out of its first layers"
EVALUATED: Final = "The whole model, by its formulas"
LOUD: Final = (
    "These are MACs in the convention of fvcore 0.1.5.post20221221, which calls them flops. They are not FLOPs: a"
    " multiply-accumulate is 1, a norm is 5 per element, fused attention and grouped experts are 0."
)
PADDING: Final = "Waste of padding, by the formulas"
PADDED: Final = ("Stage", "Layers", "Window", "Blocks a layer", "Tokens a layer", "Held", "Used", "Waste", "Of held")
BLOCKS: Final = (
    "Bytes of the call that holds most. A layer with a window gives back whole blocks before it when the next call "
    "begins. No prefix is shared. No other number includes the waste."
)
TOKENS: Final = (
    "Padded tokens run through linear layers, routers and experts, not through attention and lm_head. "
    "Their vector work is not included."
)
_SIDES: Final = {"isolated": "isolated", "dynamic": "extracted"}
CONVENTION: Final = ("Stage", *(f"{name} {side}" for name in ("MACs", "Activations") for side in _SIDES.values()))
HELD: Final[tuple[Metric, ...]] = ("params", "weight_bytes")
DONE: Final[tuple[Metric, ...]] = ("flops", "kv_cache_bytes", "comm_bytes", "comm_payload_bytes", "messages")
RING: Final = (
    "A rank sends 2 (n - 1) chunks of an all-reduce over n ranks, and n - 1 of the others: the ring algorithm. A chunk"
    " has ceil(elements / n) elements. A send has the whole tensor, and is not counted again where it is received."
    " The payload is the full tensor, whatever the algorithm."
)
DISPATCH: Final = (
    "Ways in which tokens reach the experts of other ranks; the costs of this report are those of {counted}."
    " bound: the most that any routing needs; uniform: the mean if every choice that the router may make is equally"
    " likely.{given} A rank sends copies of its tokens, and the results of the copies that it gets. Nodes of by-node"
    " are those of {nodes}; ranks with the same place in their node exchange. Left out: the numbers and weights of"
    " chosen experts, collectives along tp, and copies inside a node of by-node. A low-latency copy has a header of 16"
    " B."
)
ROUTED: Final = (
    " given: exact for the routing file, by a formula and by a second count token by token; {run} the graph and the run"
    " count."
)
SUMS: Final = (
    "Of these metrics all ranks together have what one device has for the same batch, and these copies; nothing is left"
    " over: {metrics}."
)
NOT_SUMMED: Final = " The sums of other metrics are not split into copies: {metrics}."


def document(found: Results, form: Form) -> Document:
    """Return the report: an overview by stage, then exact numbers and formulas, folded."""
    static = found.static
    body = _overview(static)
    if static.whole is not None:
        head, rows = whole_rows(static.whole, digits=True)
        said = tuple(f"{line}." for line in (*stack_sentences(static.whole), *unknown_sentences(static.whole)))
        body.append(DocumentSection(whole_title(static.whole), [Items(said), Table(head, "lr", rows)]))
    if (of_ranks := ranks_section(found.capture.parallel)) is not None:
        body.append(of_ranks)
    if (padding := padding_section(static.padding)) is not None:
        body.append(padding)
    body += [
        Details("Exact numbers", [_exact(static)]),
        Details("Calls, shapes and operator kinds", _calls(static)),
        Details("Every source by itself", _sources(static)),
    ]
    if rows := convention_rows(static):
        body.append(Details("The convention of fvcore", [Strong(LOUD), Table(CONVENTION, "lr", rows)]))
    body.append(Details("Formulas", _formulas(static)))
    body.append(Details("Not counted", [Items(tuple(f"{n.what}: {n.why}" for n in static.not_counted))]))
    about = subject_lines(static.target, static.workload, form)
    foot = conventions_foot(static.conventions, static.environment)
    return Document(f"What {static.target.title} computes", body, found.verdict, found.sentence, about, foot)


def _overview(static: StaticCompute) -> list[Block]:
    given = _given(static)
    columns = [(m, i.column, UNITS.get(i.unit, "")) for m, i in METRICS.items() if i.column and m in given]
    total = static.totals.get("flops")
    sizes = {i.column: [getattr(s, m) for s in static.stages] for m, i in PEAK_METRICS.items()}
    peaked = any(size is not None for column in sizes.values() for size in column)
    titles = tuple(sizes) if peaked else ()
    rows: list[tuple[Cell, ...]] = []
    for at, s in enumerate(static.stages[:MAX_STAGES]):
        cells = (human_or_bound(s.costs[name], s.at_least.get(name), unit) for name, _, unit in columns)
        peaks = (human(sizes[title][at], "B") for title in titles)
        rows.append((s.id, share(s.costs["flops"], total), *cells, *peaks))
    if len(static.stages) > MAX_STAGES:
        rows.append((f"… and {len(static.stages) - MAX_STAGES} more", "", *[""] * (len(columns) + len(titles))))
    low = static.totals_at_least
    sums = (human_or_bound(static.totals.get(name), low.get(name), unit) for name, _, unit in columns)
    ran = [at for at, s in enumerate(static.stages) if "calls" not in s.costs or s.costs["calls"] != 0]
    most = (human(largest(sizes[title][at] for at in ran), "B") for title in titles)
    if not static.one_stage:
        rows.append((Strong("total"), "", *sums, *most))
    head = ("Stage", "Share of FLOPs", *(title for _, title, _ in columns), *titles)
    shared = " Parameters of a module that works in two stages count once in the total."
    last = ": those are the peaks, of which the total is the largest." if peaked else "."
    note = (
        f"k = 1000, for bytes too.{'' if static.one_stage else shared} ", Markdown("`?`"), " is unknown or disputed, ",
        Markdown("`≥`"), " is the part that is known. ",
        "Activations written are a sum over the stage, not what is alive at once", last,
    )  # fmt: skip
    return [Table(head, "lr", rows), note]


def _given(static: StaticCompute) -> set[str]:
    """Return the table columns to show: those whose metrics some source gives."""
    given = {metric for said in static.sources.values() for metric in said}
    return {name for name, shown in SHOWN.items() if given.issuperset(shown.of)}


def _exact(static: StaticCompute) -> Table:
    total = [] if static.one_stage else [static.totals]
    head = ("Quantity", *(s.id for s in static.stages), *("total" for _ in total))
    given = _given(static)
    rows = [
        (shown.title, *(exact(s.costs[name]) for s in static.stages), *(exact(t.get(name)) for t in total))
        for name, shown in SHOWN.items()
        if shown.title and name in given
    ]
    return Table(head, "lr", rows)


def _calls(static: StaticCompute) -> list[Block]:
    rows = []
    for s in static.stages:
        for i in s.invocations:
            inputs = code_list("x".join(map(str, t.shape)) + f" {t.dtype}" for t in i.inputs) or "—"
            rows.append((s.id, i.id, exact(i.calls), inputs, exact(i.costs["flops"])))
    idle = [s.id for s in static.stages if not s.invocations]
    kinds = [
        (s.id, Code(kind), exact(flops), share(flops, s.costs["flops"]))
        for s in static.stages
        for kind, flops in sorted(s.flops_by_kind.items(), key=lambda item: (-(item[1] or 0), item[0]))
    ]
    body: list[Block] = [Table(("Stage", "Call", "Times", "Inputs", "FLOPs"), "llrlr", rows)]
    body += [f"Not executed in this run: {', '.join(idle)}."] if idle else []
    return [*body, Table(("Stage", "Operator kind", "FLOPs", "Share"), "llrr", kinds)]


def _sources(static: StaticCompute) -> list[Block]:
    shown = ("params", "flops", "vector_flops", "output_bytes")
    rows = [
        (s.id, source, *(exact(said[m]) if m in said else "—" for m in shown))
        for s in static.stages
        for source, said in sorted(s.sources.items())
    ]
    head = ("Stage", "Source", "Params", "FLOPs", "Vector FLOPs", "Activation bytes")
    return [Table(head, "llr", rows), (Markdown("`—`"), ": the source does not give this quantity.")]


def convention_rows(static: StaticCompute) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`CONVENTION`; empty if the run was not counted by that convention."""
    if not any(metric in said for said in static.sources.values() for metric in FVCORE):
        return []
    named = [(s.id, s.sources) for s in static.stages]
    named += [] if static.one_stage else [("total", static.sources)]
    return [
        (name, *(exact(sources.get(side, {}).get(metric)) for metric in FVCORE for side in _SIDES))
        for name, sources in named
    ]


def _formulas(static: StaticCompute) -> list[Block]:
    body: list[Block] = [DERIVED if static.formulas_of == "derived" else GIVEN]
    for stage in static.stages:
        for call in stage.invocations:
            for metric, formula in call.formulas.items():
                if formula.at_config == "0":
                    continue
                name = SHOWN[metric].title
                title = f"{stage.id}, {call.id}: {name[:1].upper()}{name[1:]} (version "
                body += [(title, Code(formula.version), ")"), Equation(formula.at_config, formula.latex)]
                body += [_put_in(call, formula, metric)] if formula.symbols else []
    if static.symbols:
        rows = [(Markdown(f"${doc.latex}$"), Code(name), doc.meaning) for name, doc in sorted(static.symbols.items())]
        body.append(Table(("Symbol", "Name", "Meaning"), "lll", rows))
    return body


def _put_in(call: InvocationCompute, formula: FormulaText, metric: str) -> Prose:
    """Return a sentence that shows a formula with its values and its result."""
    values = [piece for s in formula.symbols for piece in (", ", Code(s), f" = {exact(call.symbols.get(s))}")]
    result = call.costs[metric]
    if result is None:
        return ("With ", *values[1:], ".")
    return ("With ", *values[1:], f": {exact(result)}" + (f" ({human(result)})." if result >= 1000 else "."))


def padding_section(found: Padding | None) -> DocumentSection | None:
    """Return the section on memory that only padding to blocks takes; ``None`` without padding."""
    if found is None:
        return None
    rows: list[tuple[Cell, ...]] = [
        (row.stage, exact(row.layers), exact(row.window) if row.window else "", exact(row.blocks), exact(row.tokens),
         exact(row.held_bytes), exact(row.used_bytes), exact(row.waste_bytes), share(row.waste_bytes, row.held_bytes))
        for row in found.cache
    ]  # fmt: skip
    blocks: list[Block] = [Table(PADDED, "lr", rows), Note(BLOCKS)] if rows else []
    return DocumentSection(
        PADDING, [Items(tuple(padding_lines(found))), *blocks, *([Note(TOKENS)] if found.batch else [])]
    )


def padding_lines(found: Padding) -> Iterator[str]:
    """Yield lines on the bytes that the cache of each stage takes in blocks, and how many of them are padding."""
    for stage in dict.fromkeys(row.stage for row in found.cache):
        held, waste = found.of_stage(stage)
        size = plural(found.cache[0].block, "token")
        part = f", {share(waste, held)} of them" if waste else ""
        yield f"{stage}: the cache holds {exact(held)} B in blocks of {size}; waste {exact(waste)} B{part}"
    for row in found.batch:
        calls = f", in {plural(row.calls, 'call')}" if row.calls > 1 else ""
        padded = f"{plural(row.tokens, 'token')} padded to {exact(row.size)}"
        said = f"waste {exact(row.flops)} FLOP"
        check_recounts([Recount(row.stage, "padded tokens", said, int(re.sub(r"\D", "", said)), row.flops)])
        yield f"{row.stage}: {padded}{calls}; {said}"


def whole_title(whole: WholeModel) -> str:
    """Return the title of the section on all layers, which are extrapolated or computed by formulas."""
    return WORKED_OUT if whole.times else EVALUATED


def stack_sentences(whole: WholeModel) -> list[str]:
    """Return a sentence for each stack of layers: those counted, those they stand for, and how that was checked.

    Another where all layers were not run beside.
    """
    stacks = [
        f"{path}: {len(times)} of {sum(times)} layers were counted and stand for {_join_counts(times)};"
        f" checked with {whole.checked.get(path, len(times))}"
        for path, times in sorted(whole.times.items())
    ]
    return [*stacks, f"not checked with a run of all layers: {whole.not_run}"] if whole.not_run else stacks


def _join_counts(times: tuple[int, ...]) -> str:
    """Join numbers of layers as text: ``1, 1 and 30``."""
    *first, last = map(str, times)
    return f"{', '.join(first)} and {last}" if first else last


def whole_rows(whole: WholeModel, *, digits: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows, per stage and in total, of the costs of all layers; ``?`` if unknown."""
    shown = [(m, i) for m, i in METRICS.items() if i.column and m in whole.totals.keys() | whole.left_out.keys()]
    rows = [
        (
            name,
            *(
                exact(costs.get(m)) if digits else human_or_bound(costs.get(m), None, UNITS.get(i.unit, ""))
                for m, i in shown
            ),
        )
        for name, costs in (*whole.stages.items(), *([("total", whole.totals)] if len(whole.stages) != 1 else []))
    ]
    return ("Stage", *(i.column for _, i in shown)), rows


def unknown_sentences(whole: WholeModel) -> list[str]:
    """Return sentences on unknown costs of all layers with the reasons; equal reasons share a sentence."""
    reasons: dict[str, list[str]] = {}
    for metric in METRICS:
        if metric in whole.left_out:
            reasons.setdefault(whole.left_out[metric], []).append(METRICS[metric].title)
    return [f"not known: {', '.join(titles)}: {why}" for why, titles in reasons.items()]


def ranks_section(found: Parallel | None) -> DocumentSection | None:
    """Return the section on ranks, collectives and copies; ``None`` for a run on one device."""
    if found is None:
        return None
    body: list[Block] = [
        Note(f"By the formulas, split as in {found.plan}. Other sections are of rank {found.rank}."),
        Table(("Stage", "Of each rank", "Smallest", "Ranks", "Largest", "Ranks"), "llrlrl", rank_rows(found)),
    ]
    if found.collectives:
        rows = collective_rows(found)
        head = ("Stage", "Call", "Module", "Collective", "Group", "Dtype", "Times", "Payload", "Sent")
        body += [Table(head, "llllllr", rows, title=f"Collectives of rank {found.rank}"), Note(RING)]
    if found.duplicates:
        body += [
            Table(("Copies", "Stage", "Of", "Amount"), "lllr", copy_rows(found), title="Copies"),
            Note(_sums(found)),
        ]
    if found.dispatches:
        rows = dispatch_rows(found)
        sent = ("Sent", "Received", "Sent, fp8 dispatch")
        columns = ("Stage", "Call", "Form", "Routing", "Copies", *sent, "FLOPs of experts")
        body.append(Table(columns, "llllrrrrr", rows, title=f"Dispatch to experts, rank {found.rank}"))
        if to := receiver_rows(found):
            heads = ("Stage", "Call", "Form", "Copies to each")
            body.append(Table(heads, "llll", to, title=f"Copies of tokens of rank {found.rank} by receiver, as given"))
        pairs = any(c.kind == "all_to_all" and c.group in (EP_BATCHES, "ep") for c in found.collectives)
        given = ROUTED.format(run="all-to-all is also what" if pairs else "it is none of what") if to else ""
        counted = "all-to-all" if pairs else "all-gather, which hold for any routing"
        sizes = {d.node for d in found.dispatches} - {None}
        nodes = (found.nodes_of or "h100-sxm") + "".join(f", of {size} ranks" for size in sizes)
        body.append(Note(DISPATCH.format(counted=counted, given=given, nodes=nodes)))
    return DocumentSection(f"Ranks: {plural(found.mesh.world, 'device')}, {found.mesh.text}", body, id="ranks")


def _sums(found: Parallel) -> str:
    """Return the sentence that names the metrics whose sums over ranks the copies explain."""
    known = {metric for costs in found.ranks[0].stages.values() for metric in costs} - {*COMM}
    named, others = (
        [i.title for m, i in EVERY_METRIC.items() if m in of] for of in (found.summed, known - {*found.summed})
    )
    check_recounts([Recount("", "the sentence on sums over ranks", "metrics", len(named) + len(others), len(known))])
    more = NOT_SUMMED.format(metrics="; ".join(others)) if others else ""
    return SUMS.format(metrics="; ".join(named)) + more


def rank_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each cost: its minimum and maximum over the ranks, and which ranks have them."""
    # A file lists stages by name, its collectives in the order of the run.
    called = (c.stage for c in found.collectives if c.stage in found.ranks[0].stages)
    stages, world = tuple(dict.fromkeys((*called, *filter(None, found.ranks[0].stages)))), found.mesh.world
    rows: list[tuple[Cell, ...]] = []
    for stage, metric in (*(("", m) for m in HELD), *((s, m) for s in stages for m in DONE)):
        (least, with_least), (most, with_most) = found.extremes(stage, metric)
        if most:
            name = "" if metric in HELD else stage
            title = EVERY_METRIC[metric].title
            rows.append((name, title, _of_metric(least, metric), ranks_text(with_least, world),
                         _of_metric(most, metric), ranks_text(with_most, world)))  # fmt: skip
    return rows


def collective_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return the collectives of the counted rank, one row for equal ones."""
    return [
        (c.stage, c.invocation, Code(c.module), c.kind, f"{c.group}, {plural(len(c.ranks), 'rank')}", c.dtype,
         exact(c.count), _of_metric(c.bytes, "comm_payload_bytes"), _of_metric(c.sent_bytes, "comm_bytes"))
        for c in found.collectives
    ]  # fmt: skip


def dispatch_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each method that can send tokens to the experts of other ranks."""
    return [
        (d.stage, d.invocation, d.form, d.routing, f"{float(Fraction(d.copies)):.4g}",
         *("" if n is None else _of_metric(n, "comm_bytes") for n in (d.sent_bytes, d.received_bytes, d.fp8_bytes)),
         _of_metric(d.expert_flops, "flops"))
        for d in found.dispatches
    ]  # fmt: skip


def receiver_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each method with the copies to each rank, or node, under a given routing."""
    first = found.mesh.group("ep", found.rank)[0] if found.dispatches else 0
    named = {"by-node": "nodes"}
    return [
        (d.stage, d.invocation, d.form,
         # Receivers divide the ranks of the group evenly: the first node is that of the first rank.
         f"{named.get(d.form, 'ranks')} from {first * len(to) // found.mesh.ep}: {', '.join(map(exact, to))}")
        for d in found.dispatches if (to := d.sent_to)
    ]  # fmt: skip


def copy_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each kind of work or memory that is duplicated on several ranks."""
    return [
        (d.what, d.stage, EVERY_METRIC[d.metric].title, _of_metric(d.amount, d.metric))
        for d in found.duplicates
    ]  # fmt: skip


def ranks_lines(found: Parallel) -> Iterator[str]:
    """Yield short lines on the ranks for the summary on a terminal."""
    own = next(row.stages for row in found.ranks if found.rank in row.ranks)

    def check(stage: str, metric: Metric, number: int, again: int) -> None:
        check_recounts([Recount(stage, "the line on ranks", metric, number, again)])

    def of_all(stage: str, metric: Metric) -> list[int]:
        return [row.stages[stage][metric] for row in found.ranks for _ in row.ranks if stage in row.stages]

    for stage in filter(None, found.ranks[0].stages):
        sent = {c.kind: 0 for c in found.collectives if c.stage == stage}
        for c in found.collectives:
            if c.stage == stage:
                sent[c.kind] += c.count
        _, (most, who) = found.extremes(stage, "comm_bytes")
        check(stage, "messages", sum(sent.values()), own[stage]["messages"])
        check(stage, "comm_bytes", most, max(of_all(stage, "comm_bytes")))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sent.items()) or "no collectives"
        most_of = "a rank sends" if ranks_text(tuple(who), found.mesh.world) == "all" else "a rank sends at most"
        yield f"{stage}: {kinds}; {most_of} {human(most, 'B')}{_only_rank(who, found)}"
    (least, _), (most, who) = found.extremes("", "weight_bytes")
    at_most = f"{human(least, 'B')} to " if least != most else ""
    yield f"weights of a rank: {at_most}{human(most, 'B')}{_only_rank(who, found)}"
    held = sum(d.amount for d in found.duplicates if not d.stage and d.metric == "weight_bytes")
    whole = found.one_device.get("", {}).get("weight_bytes", 0)
    every = of_all("", "weight_bytes")
    check("", "weight_bytes", whole + held, sum(every))
    check("", "weight_bytes", most - least, max(every) - min(every))
    yield f"weights of all ranks: {human(whole, 'B')} of one device and {human(held, 'B')} of copies"


def _only_rank(who: Iterable[int], found: Parallel) -> str:
    named = ranks_text(tuple(who), found.mesh.world)
    if named == "all":
        return ""
    return f" (rank {named})" if named.isdecimal() else f" (each of ranks {named})"


def _of_metric(value: int, metric: Metric) -> Number:
    unit = UNITS.get(EVERY_METRIC[metric].unit, "")
    return Number(value, exact(value) + (f" {unit}" if unit else ""))


def ranks_text(ranks: tuple[int, ...], world: int) -> str:
    """Return a set of ranks out of ``world`` as text, with consecutive ones joined: ``0 to 3, 7``."""
    if len(ranks) == world:
        return "all"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
