"""Break down a stage's cost by formula, with substituted values and the matching counts of graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from costproof.compare.patterns import Mask, patterns, template
from costproof.ledger.capture import Capture, FormulaDoc
from costproof.ledger.errors import BadInput, Incomplete, did_you_mean, no_such
from costproof.ledger.mesh import one_device
from costproof.ledger.metrics import COMM, METRICS, PEAK_METRICS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger, bearing, not_given, total
from costproof.ledger.notebook import ReportRepr
from costproof.ledger.peaks import Peaks, by_stage
from costproof.ledger.run import GRAPH_SOURCES
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.views.describe import mixed_attention
from costproof.views.formulas import FormulaText, nodes_formula
from costproof.views.quantities import EXPLAINED, TOTAL, with_quantity


@dataclass(frozen=True, slots=True)
class GraphMatch:
    """A graph source's count of the modules to which a formula applies."""

    source: str
    kinds: tuple[str, ...]
    value: int | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormulaPart:
    """A formula for one part of a stage's cost, and the modules to which the formula applies."""

    modules: str
    """Pattern of module paths; ``(root)`` for the model itself."""
    count: int
    kind: str
    owner: str
    """Name of the layer that defines the formula."""
    formula: FormulaText
    """The formula for a single module."""
    numbers: dict[str, int]
    """Values of the formula's symbols."""
    each: int | None
    total: int | None
    matches: tuple[GraphMatch, ...]


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """Costs of one invocation of a stage; ``id`` is empty for costs independent of invocations, such as parameters."""

    id: str
    place: str
    """Name of the call: ``sam[crops]``; ``sam`` for costs independent of invocations, such as parameters."""
    calls: int
    symbols: dict[str, int]
    formula: FormulaText | None
    total: int | None
    parts: tuple[FormulaPart, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(ReportRepr):
    """The result of ``costproof explain``; its ``repr`` is the text of the command."""

    target: TargetInfo
    workload: Workload
    stage: str
    metric: Metric
    module: str | None
    calls: tuple[ExplainedCall, ...]
    docs: dict[str, FormulaDoc]
    symbols: dict[str, str]
    """Meanings of the symbols that occur, by symbol."""
    attention: str = ""
    """The attention kernel of each part of the model as text; empty if all parts run the same one."""


def no_formulas(name: str, why: str, address: str, stage: str) -> BadInput:
    """Return the error for a target without formulas, which only its graph describes.

    Args:
        address: what names the target on a command line.
    """
    return BadInput("there are no formulas to explain", where=name, got=why, fix=_from_graph(address, stage))


def _from_graph(address: str, stage: str) -> str:
    """Return a hint that names the commands that report a stage of a target by its exported graph."""
    listing = "" if stage == TOTAL else f"costproof explain {address} {stage} --graph lists its operators; "
    return f"{listing}costproof derive {address} reads closed forms off its graph"


def explain(
    capture: Capture, stage: str, *, module: str | None = None, metric: Metric = "flops", graph: Capture | None = None
) -> Explanation:
    """Break down one metric of a stage by formula.

    Args:
        stage: a stage; or ``total``, the sums of all calls of all stages.
        metric: one of :data:`~costproof.views.quantities.EXPLAINED`.
        capture: holds the analytic ledger; the graph sources are not needed.
        module: glob on module paths; ``None`` for all.
        graph: a capture of the same target and workload with graph sources to point at.

    Raises:
        BadInput: no such stage or metric, or no module that the glob picks.
        Incomplete: the capture has no analytic ledger, or it leaves the metric unknown.
    """
    check_stage(stage, capture.target.stages)
    analytic = capture.by_source.get("analytic")
    if analytic is None and (why := capture.lacking.get("analytic")):
        raise no_formulas(capture.target.name, why, "TARGET", stage)
    if analytic is None:
        raise Incomplete(
            "the capture has no formulas",
            where="$.ledgers",
            expected="an analytic ledger",
            got=capture.source_list,
            fix="capture again with --sources analytic,static,dynamic; if the target has no formulas, "
            + _from_graph("TARGET", stage),
        )
    if metric in PEAK_METRICS:
        raise BadInput("no formula gives a peak", where="--metric", got=metric, fix="costproof peaks TARGET finds it")
    if metric not in EXPLAINED:
        raise no_such("metric", metric, (*EXPLAINED, *PEAK_METRICS))
    if metric in COMM and metric not in analytic.metrics:
        raise one_device(metric, where="--metric")
    if metric not in METRICS | COMM:
        analytic = with_quantity(analytic, metric)
        graph = graph and replace(graph, ledgers=tuple(with_quantity(x, metric) for x in graph.ledgers))
    if metric not in analytic.metrics:
        raise not_given(metric, analytic.source, where="--metric")
    inside = (n for n in analytic.nodes if stage in (n.stage, TOTAL))
    nodes = [n for n in inside if metric in n.exprs or metric in n.costs]
    picked = nodes if module is None else [n for n in nodes if fnmatchcase(n.module or "(root)", module)]
    if module is not None and not picked:
        paths = sorted({n.module or "(root)" for n in nodes})
        raise BadInput(
            f"no module of stage {stage} has {metric} and matches the glob",
            where=f"--module {module}",
            expected="a glob on paths such as " + (paths[0] if paths else "(none has this metric)"),
            fix=did_you_mean(module, paths) or "use * as in '*mlp*'",
        )
    stages = capture.target.stages if stage == TOTAL else (stage,)
    per_call = [(i.stage, i) for i in capture.invocations if i.stage in stages]
    invocations = [(s, None) for s in stages] if metric in STAGE_WIDE else per_call
    calls = tuple(_call(capture, s, i, picked, metric, graph) for s, i in invocations)
    if stage == TOTAL:
        whole = bearing(picked, metric)
        # A symbol such as the side of a view has a value of its own in each call, so their formulas have no sum.
        shared = metric in STAGE_WIDE
        formula = nodes_formula(whole, metric, capture.target.symbols, capture.symbols) if shared else None
        sums = (replace(call, parts=()) for call in calls)
        calls = (*sums, ExplainedCall("", TOTAL, 1, {}, formula, total(whole, metric), ()))
    used = {s for c in calls for p in c.parts for s in p.numbers}
    owners = {p.owner for c in calls for p in c.parts}
    return Explanation(
        target=capture.target,
        workload=capture.workload,
        stage=stage,
        metric=metric,
        module=module,
        calls=calls,
        docs={name: doc for name, doc in sorted(capture.formulas.items()) if name in owners},
        symbols={name: doc.meaning for name, doc in sorted(capture.symbols.items()) if name in used},
        attention=mixed_attention(capture.conventions),
    )


def peaks_in(capture: Capture, stage: str) -> Peaks:
    """Return the peaks of the calls of a stage, or of all stages, from a capture.

    Raises:
        BadInput: no such stage.
        Incomplete: the capture has none.
    """
    check_stage(stage, capture.target.stages)
    calls = tuple(c for c in capture.peaks if stage in (c.stage, TOTAL))
    if not calls:
        raise Incomplete(
            "the capture has no peaks" + (f" of stage {stage}" if capture.peaks else ""),
            where="$.peaks",
            fix="capture again with --peaks; costproof peaks TARGET finds them without a capture",
        )
    header = (capture.conventions, capture.target, capture.workload, capture.environment)
    return Peaks(*header, by_stage(calls), calls)


def check_stage(stage: str, known: tuple[str, ...]) -> None:
    """Raise :class:`BadInput` for a stage that the target does not have."""
    if stage not in (*known, TOTAL):
        raise no_such("stage", stage, (*known, TOTAL))


def _call(
    capture: Capture, stage: str, call: Invocation | None, nodes: list[CostNode], metric: Metric, graph: Capture | None
) -> ExplainedCall:
    name = call.id if call else ""
    inside = [n for n in nodes if (n.stage, n.invocation) == (stage, name)]
    values = capture.values(call)
    groups: dict[tuple[Mask, str, str, str, int | None], list[CostNode]] = {}
    for n in inside:
        key = (template(n.module)[0], n.kind, n.owner, n.exprs.get(metric, ""), n.cost(metric))
        groups.setdefault(key, []).append(n)
    parts = (part for group in groups.values() for part in _parts(capture, group, metric, values, graph))
    return ExplainedCall(
        id=name,
        place=f"{stage}[{name}]" if call else stage,
        calls=call.calls if call else 1,
        symbols=dict(call.symbols) if call else {},
        formula=nodes_formula(inside, metric, capture.target.symbols, capture.symbols),
        total=total(inside, metric),
        parts=tuple(p for p in parts if p.total != 0),
    )


def _parts(
    capture: Capture, group: list[CostNode], metric: Metric, values: dict[str, int], graph: Capture | None
) -> list[FormulaPart]:
    """Return one part for each pattern of module paths among nodes with equal formulas.

    Paths whose numbers are not all combinations of their ranges (layers 0 to 3 with experts 0 to 7) give several parts.
    """
    first = group[0]
    formula = nodes_formula([first], metric, capture.target.symbols, capture.symbols)
    if formula is None:
        return []
    from costproof.algebra.symbols import parse

    names = sorted(s.name for s in parse(first.exprs[metric]).free_symbols)
    ledgers = [graph.by_source[s] for s in GRAPH_SOURCES if s in graph.by_source] if graph is not None else []
    each = first.cost(metric)
    return [
        FormulaPart(
            modules=pattern or "(root)",
            count=len(paths),
            kind=first.kind,
            owner=first.owner,
            formula=formula,
            numbers={s: values[s] for s in names if s in values},
            each=each,
            total=None if each is None else each * len(paths),
            matches=tuple(_match(x, first, frozenset(paths), metric) for x in ledgers if metric in x.metrics),
        )
        for pattern, paths in patterns(n.module for n in group)
    ]


def _match(ledger: Ledger, like: CostNode, paths: frozenset[str], metric: Metric) -> GraphMatch:
    here = (n for n in ledger.nodes if (n.stage, n.invocation) == (like.stage, like.invocation))
    nodes = [n for n in here if n.module in paths and n.cost(metric) != 0]
    kinds = tuple(sorted({n.kind for n in nodes if n.kind}))
    return GraphMatch(ledger.source, kinds, total(nodes, metric), tuple(label for n in nodes for label in n.evidence))
