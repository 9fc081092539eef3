"""Run the pieces of a proof (export, cost, compare with formulas), and assemble a certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import CACHED, CONTEXT, STEPS
from costproof.algebra.symbols import parse, sym, text
from costproof.analytic.symbols import PAST_SYMBOLS
from costproof.compare.align import bound_metrics
from costproof.compare.proof.certificate import (
    Certificate,
    Claim,
    Counterexample,
    Coverage,
    Seen,
    bound,
    degrees,
    verdict_of,
)
from costproof.compare.proof.judge import Answer, judge
from costproof.configs.config import keys_of
from costproof.ledger.environment import environment
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import EVERY_METRIC, FLOOR, KEPT_SCORES, OF_QUANTISED, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import ROWS_INVOCATION, SettingValue, Workload
from costproof.models.native import Native, stored_formulas
from costproof.models.proof import Piece, Proof, Provable, RowIdentity, SymbolicRun
from costproof.models.reader_check import check_reader, written
from costproof.models.specs import ExportJob
from costproof.models.target import Runnable, Sharded, WithFormulas, WithMemory
from costproof.opgraph.rules.files import versions_in_force
from costproof.parametric.targets import compare_ranks
from costproof.processes import Say
from costproof.tracers.equal_layers import count_every_step
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.exporting import with_sizes
from costproof.tracers.guards import conditions, holds_at
from costproof.tracers.static import exported_ledger

if TYPE_CHECKING:
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape


def carry_out_piece(piece: Piece[Provable], say: Say | None = None) -> Answer:
    """Export the run of one piece of a proof, compare the graphs with the formulas, and return an answer.

    Raises:
        Incomplete: a part cannot be exported, an operator has no cost rule, or the family reads another configuration
            from a file of a drawn one.
    """
    if piece.phase == "peaks":
        return compare_peaks(piece)
    if piece.phase == "ranks":
        return compare_ranks(cast(Sharded, piece.target), piece.workload, symbolic=piece.sizes is None)
    if piece.identity is not None:
        return compare_rows(piece, piece.identity)
    if piece.phase == "draws" and isinstance(piece.target, Native):
        check_reader(written(piece.target.config))
    graphs: dict[str, Exported] = {}
    found = count_piece(piece, graphs).judged(stored_formulas(piece.target, piece.workload))
    drawn = piece.sizes is not None or piece.phase == "runs"
    config = piece.target.info().symbols if drawn else {}
    return Answer(
        rows=found.rows,
        claims=tuple(
            replace(c, invocation=_call(piece, c.invocation)) for c in found.claims if piece.phase == "identities"
        ),
        counterexamples=tuple(
            replace(c, found_in=piece.id, invocation=_call(piece, c.invocation), config=config)
            for c in found.counterexamples
        ),
        formulas=found.formulas if piece.phase == "draws" else (),
        sizes={g.job.stage: _held(piece, g) for g in graphs.values()} if piece.asked else {},
        conditions=tuple(dict.fromkeys(_conditions(piece, graphs.values()))),
    )


def _conditions(piece: Piece[Provable], graphs: Iterable[Exported]) -> Iterator[str]:
    """Yield the conditions under which a symbolic graph does not describe the model; claims exclude these sizes."""
    for graph in graphs if piece.phase == "identities" and not piece.asked else ():
        for condition in conditions(graph):
            yield f"{piece.id.partition(': ')[2]}: {graph.job.stage} at sizes where not {condition}"


def _call(piece: Piece[Provable], invocation: str) -> str:
    """Return the name of a call in a piece's answer: with its random workload, ``any`` for all sizes, or unchanged."""
    if piece.sizes is not None:
        return f"{invocation} of {piece.workload.name}"
    return ANY if piece.asked and invocation else invocation


@dataclass(frozen=True, slots=True)
class CountedPiece:
    """A piece of a proof after its exports or run were counted, before the comparison with formulas."""

    piece: Piece[Provable]
    static: Ledger
    values: Mapping[tuple[str, str], Mapping[str, int]]
    fixed: frozenset[tuple[str, str, str]]
    """(stage, module, metric) of costs from exports without symbols, which hold only for the inputs of this run."""

    def judged(self, formulas: Ledger) -> Answer:
        """Compare the formulas of the piece's run with its graphs."""
        piece, static, ran = self.piece, self.static, self.piece.phase == "runs"
        config = piece.target.info().symbols
        full = evaluate_ledger(formulas, self.values, config)
        lacking = {*OF_QUANTISED} - ({*static.metrics} & {*full.metrics})  # no format, or an unknown one
        static, full = (ledger.without(lacking) for ledger in (static, full))
        return judge(
            Ledger(full.source, full.nodes, static.metrics if ran else full.metrics, static.stages, bounds=not ran),
            static, self.values, config,
            alias={"L": "S"} if piece.workload.logits == "all" else {},
            fixed=self.fixed, only_fixed=piece.phase == "workloads",
            steps=piece.steps, integers=ran or piece.sizes is not None,
            bounds=bound_metrics(piece.workload.dtype, [full]),
        )  # fmt: skip


def count_piece(piece: Piece[Provable], graphs: dict[str, Exported]) -> CountedPiece:
    """Export and count the run of a piece, or in the phase ``runs`` execute it and count every decode step.

    Args:
        piece: the piece.
        graphs: receives every export by the name of its job.

    Raises:
        Incomplete: a part cannot be exported, or an operator has no cost rule.
    """
    target, workload, sizes = piece.target, piece.workload, piece.sizes
    values = {(i.stage, i.id): {**i.symbols, **(sizes or {})} for i in target.invocations(workload)}
    if piece.phase == "runs":
        return CountedPiece(piece, count_every_step(cast(Runnable, target), workload, "static"), values, frozenset())
    kernels = (workload.dtype, workload.attention, workload.experts)
    names = {s.name for s in target.settings() if s.choices}
    own = tuple((name, value) for name, value in workload.inputs.items() if name in names)
    once = sizes is None and workload.mesh.one  # a rank has a model of its own
    model = _built(cast(Hashable, target), *kernels, own) if once else target.build(workload)

    def export(job: ExportJob) -> Exported:
        if job.id not in graphs:
            graphs[job.id] = export_graph(job)
        return graphs[job.id]

    def ledger(jobs: Sequence[ExportJob]) -> Ledger:
        stages = [s for s in target.info().stages if s in {job.stage for job in jobs}]
        return exported_ledger(target, workload, model, jobs, stages, values, export=export, whole=True)

    jobs = [job for job in target.export_jobs(model, workload) if not piece.stages or job.stage in piece.stages]
    fixed = [job for job in jobs if not job.sizes]
    if sizes is not None:
        jobs = [one for job in jobs for one in _at(job, values)]
    static = ledger(fixed if piece.phase == "workloads" else jobs)
    if static.unknown_ops:
        raise Incomplete(
            "an operator has no cost rule, so nothing is proved",
            where=", ".join(sorted({f"{o.stage}/{o.module}" for o in static.unknown_ops})),
            got=", ".join(sorted({o.op for o in static.unknown_ops})),
        )
    # Results of exports without symbols hold for the inputs of this run; other pieces cover the rest.
    shown = ledger(fixed).nodes if fixed and sizes is None else ()
    here = {(n.stage, n.module, m) for n in shown for m in n.costs if m != "calls" and m not in STAGE_WIDE}
    if piece.phase == "workloads":  # without the other parts of a stage, the traffic across its boundary is incomplete
        here = {row for row in here if row[2] != FLOOR}
    return CountedPiece(piece, static, values, frozenset(here))


def compare_rows(piece: Piece[Provable], identity: RowIdentity) -> Answer:
    """Compare two sums of formulas of a batch, in symbols or at the sizes of a randomly drawn batch.

    Raises:
        Incomplete: a layer whose pairs were counted has no formula for its kept scores.
    """
    config, values = piece.target.info().symbols, dict(identity.example)
    left, right = (_summed(piece.target, runs, identity.metrics) for runs in (identity.left, identity.right))
    heads = parse("text_heads")
    for layer, pairs in enumerate(identity.pairs):
        found = [key for key in left if key[2] == KEPT_SCORES and f".{layer}." in f"{key[0]}."]
        if len(found) != 1:
            raise Incomplete("a layer needs one formula of kept scores", where=f"layer {layer}", got=len(found))
        right[found[0]] = right.get(found[0], sympy.Integer(0)) + heads * parse(pairs)
    ledgers = []
    for source, side in (("analytic", left), ("static", right)):
        exprs: dict[tuple[str, str], dict[Metric, str]] = {}
        for module, kind, metric in dict.fromkeys((*left, *right)):
            exprs.setdefault((module, kind), {})[metric] = text(side.get((module, kind, metric), sympy.Integer(0)))
        nodes = tuple(
            CostNode("prefill", ROWS_INVOCATION, module, kind, {}, of) for (module, kind), of in exprs.items()
        )
        ledgers.append(Ledger(source, nodes, identity.metrics, ("prefill",)))
    calls = {("prefill", ROWS_INVOCATION): values}
    formulas, equal = (evaluate_ledger(ledger, calls, config) for ledger in ledgers)
    answer = judge(formulas, equal, calls, config, integers=piece.sizes is not None)
    return replace(
        answer,
        claims=tuple(replace(c, method="identity of rows") for c in answer.claims if piece.sizes is None),
        counterexamples=tuple(
            replace(c, found_in=piece.id, config={} if piece.sizes is None else config) for c in answer.counterexamples
        ),
        formulas=(),
    )


def _summed(
    target: Provable, runs: Sequence[SymbolicRun], metrics: Collection[Metric]
) -> dict[tuple[str, str, Metric], sympy.Expr]:
    """Return the formulas summed over several runs, by (module, kind, metric), in the symbols of an identity.

    The kind is empty for metrics of a module as a whole.
    """
    found: dict[tuple[str, str, Metric], sympy.Expr] = {}
    for run in runs:
        sizes = {sym(name): parse(size) for name, size in run.sizes.items()}
        for node in target.formulas(run.workload).nodes:
            for metric in metrics if node.stage == run.stage and node.invocation else ():
                if metric in node.exprs:
                    key = node.module, node.kind if EVERY_METRIC[metric].by_kind else "", metric
                    found[key] = found.get(key, sympy.Integer(0)) + _resized(node.exprs[metric], tuple(sizes.items()))
    return found


@lru_cache(maxsize=4096)
def _resized(expr: str, sizes: tuple[tuple[sympy.Symbol, sympy.Expr], ...]) -> sympy.Expr:
    return parse(expr).xreplace(dict(sizes))


def compare_peaks(piece: Piece[Provable]) -> Answer:
    """Compare live peaks by formula with those of exported graphs, in symbols or at the sizes of a randomly drawn run.

    A graph in symbols is of two or more sequences and tokens. Other sizes than the context of a step are those of
    the run: some operators copy an argument unless a size is 1.
    """
    from costproof.tracers.peaks.calls import symbolic_peak  # imports torch

    target, workload, sizes = piece.target, piece.workload, piece.sizes
    assert isinstance(target, WithMemory)
    run = workload if sizes is not None else replace(workload, batch=max(2, workload.batch))
    in_symbols, at_sizes, config = target.memory(run), target.memory(workload), target.info().symbols
    found: dict[str, list[CostNode]] = {"analytic": [], "static": []}
    left_out = []
    calls = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload), workload):
        for call in job.invocations:
            values = {**config, **calls[job.stage, call]}
            tape = (in_symbols if job.sizes else at_sizes)[job.stage, call, job.id]
            if job.repeated:
                past = (sizes or {}).get(str(CONTEXT), values[str(CONTEXT)])
                values[str(CONTEXT)] = past + values[str(STEPS)] - 1
            peaks = _peaks_at(tape, job, values) if sizes is not None else None
            if peaks is None:
                graph = symbolic_peak(job)
                if graph.why:
                    left_out.append(f"the live peak of {job.stage}: {graph.why}")
                    continue
                peaks = _peaks_in_symbols(tape, job, values), parse(graph.peak)
            for nodes, peak in zip(found.values(), peaks, strict=True):
                nodes.append(_peak_node(job.stage, call, peak, values))
    stages = tuple(dict.fromkeys(n.stage for n in found["static"]))
    analytic, static = (Ledger(source, tuple(nodes), (_PEAK,), stages) for source, nodes in found.items())
    config = config if sizes is not None else {}
    answer = judge(analytic, static, calls, target.info().symbols, integers=sizes is not None)
    wrong = tuple(replace(c, found_in=piece.id, config=config) for c in answer.counterexamples)
    claims = answer.claims if sizes is None else ()
    return replace(answer, claims=claims, counterexamples=wrong, formulas=(), conditions=tuple(left_out))


_PEAK: Final = "graph_peak_bytes"


def _peaks_at(tape: MemoryTape, job: ExportJob, values: Mapping[str, int]) -> tuple[sympy.Expr, sympy.Expr]:
    """Return (peak by formula, peak of the graph) at given sizes.

    Inputs are held to the end of the call; if the peaks are equal, those with inputs that are released are compared.
    """
    from costproof.opgraph.liveness import timeline
    from costproof.tracers.peaks.program import exported_memory, on_fake_cpu  # imports torch

    program = exported_memory(on_fake_cpu(with_sizes(job, values))).program
    pairs = [
        (tape.peak_bytes(values, inputs_held=held), max(timeline(program, inputs_held=held).held()))
        for held in (True, False)
    ]
    formula, graph = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return sympy.Integer(formula), sympy.Integer(graph)


def _peaks_in_symbols(tape: MemoryTape, job: ExportJob, values: Mapping[str, int]) -> sympy.Expr:
    """Return the peak by formula in the symbols of the graph; for decode, that of the last step."""
    free = {str(symbol) for size in job.sizes for symbol in parse(size.symbol).free_symbols}
    peak = sympy.Max(*tape.peak({name: value for name, value in values.items() if name not in free}))
    return peak.xreplace({CONTEXT: CONTEXT + STEPS - 1}) if job.repeated else peak


def _peak_node(stage: str, call: str, peak: sympy.Expr, values: Mapping[str, int]) -> CostNode:
    exprs = {} if peak.is_Integer else {_PEAK: text(peak)}
    return CostNode(stage, call, "", "", {_PEAK: evaluate(peak, values)}, exprs)


def _at(job: ExportJob, values: Mapping[tuple[str, str], Mapping[str, int]]) -> Iterator[ExportJob]:
    """Yield one export job for each of the sizes at which a call runs, and for each decode step.

    A symbolic graph may stand for calls of several sizes; there is one job for each of them.
    """
    calls: dict[tuple[int, ...], list[str]] = {}
    for call in job.invocations:
        known = values[job.stage, call]
        calls.setdefault(tuple(evaluate(parse(s.symbol), known) for s in job.sizes), []).append(call)
    for alike in calls.values():
        sizes, name = values[job.stage, alike[0]], job.id if len(calls) == 1 else f"{job.id} of {alike[0]}"
        past, steps = (sizes[str(CONTEXT)], sizes[str(STEPS)]) if job.repeated else (0, 1)
        for i in range(steps):
            resized_job = with_sizes(job, {**sizes, str(CONTEXT): past + i} if job.repeated else sizes)
            yield replace(resized_job, id=f"{name} at {past + i}" if job.repeated else name, invocations=tuple(alike))


def _held(piece: Piece[Provable], exported: Exported) -> tuple[int, ...]:
    """Return those sizes of a piece for which the guards of an export hold at all points to check."""
    points = [(size, point) for size, asked in piece.asked.items() for point in asked]
    holds = holds_at(exported, [dict(point) for _, point in points])
    fails = {size for (size, _), held in zip(points, holds, strict=True) if not held}
    return tuple(size for size in piece.asked if size not in fails)


@lru_cache(maxsize=2)
def _built(
    target: Hashable, dtype: str, attention: str, experts: str, own: tuple[tuple[str, SettingValue], ...]
) -> nn.Module:
    """Return a model of the target, memoized, since one process exports the model dozens of times.

    Args:
        target: the target.
        dtype, attention, experts: settings that decide the modules.
        own: the target's own choices; its own sizes do not affect the modules.
    """
    workload = Workload("build", 1, 1, 1, dtype, attention, "all", experts, dict(own))  # type: ignore[arg-type]
    return cast(Provable, target).build(workload)


ANY = "any"
"""Name of the call in claims that hold at all enumerated sizes."""

NOT_CLAIMED = (
    "that the graph is the model: the dynamic source traces runs, and costproof report compares it with both",
    "the kept FLOPs that bounds of time leave out (skippable_flops), and the dtype of each product",
    "time, and peaks of memory other than graph peaks with a formula",
)


def assemble_certificate(
    answers: Sequence[tuple[str, str, Answer | str]], target: WithFormulas, proof: Proof
) -> Certificate:
    """Assemble the answers of pieces, given as (phase, id, answer or error), into a certificate."""
    missing = tuple(f"{name}: {' '.join(a.split())}" for _, name, a in answers if isinstance(a, str))
    rows: Counter[str] = Counter()
    by_stage: Counter[str] = Counter()
    formulas: dict[str, dict[str, None]] = {}
    wrong: list[Counterexample] = []
    right: dict[tuple[str, ...], list[tuple[str, Claim]]] = {}
    left_out: dict[str, None] = {}
    symbolic: dict[str, set[int]] = {stage: set() for stage in proof.sized}
    for phase, name, answer in answers:
        if isinstance(answer, str):
            continue
        for stage, count in answer.rows.items():
            rows[phase] += count
            by_stage[stage] += count
        for stage, sizes in answer.sizes.items():
            symbolic[stage] |= set(sizes)
        for stage, formula in answer.formulas:
            formulas.setdefault(stage, {})[formula] = None
        for claim in answer.claims:
            right.setdefault((*claim.key, claim.at_config), []).append((name.partition(": ")[2], claim))
        wrong += answer.counterexamples
        left_out |= dict.fromkeys(answer.conditions)
    info, samples = target.info(), proof.settings.samples
    made = Certificate(
        conventions=target.conventions(proof.usual),
        target=info,
        environment=environment() | versions_in_force(),
        verdict=verdict_of(wrong, missing),
        settings=proof.settings,
        coverage=Coverage(
            **proof_domain(proof),
            symbolic_sizes=tuple(sorted(set.intersection(*symbolic.values()) if symbolic else ())),
            runs=tuple(name.partition(": ")[2] for phase, name, _ in answers if phase == "identities"),
            drawn=dict(proof.ranges),
            choices=dict(proof.choices),
            not_varied=proof.not_varied,
            seen=count_drawn_values(proof),
            rows=dict(rows),
            rows_by_stage=dict(by_stage),
        ),
        bounds=tuple(
            bound(s, degrees(formulas[s], proof.independent), proof.ranges, samples)
            for s in info.stages
            if s in formulas and samples and proof.ranges  # sizes that a mesh must divide are not independent
        ),
        claims=tuple(_claim(found, proof.sized) for found in right.values()),
        counterexamples=tuple(sorted(wrong, key=_size)),
        missing=missing,
        symbols={s: d for s, d in target.symbol_docs().items() if s not in info.symbols}
        | (PAST_SYMBOLS if any(CACHED.name in claim.free for found in right.values() for _, claim in found) else {}),
        not_claimed=(NOT_CLAIMED[0], *proof.not_claimed, *left_out, *NOT_CLAIMED[1:]),
    )
    return replace(made, not_claimed=made.every_not_claimed)


def proof_domain(proof: Proof) -> dict[str, Any]:
    """Return the settings that determine the pieces of a proof, as a certificate states them."""
    return {
        "sizes": proof.sizes,
        "tried_sizes": proof.tried_sizes,
        "workloads": proof.workloads,
        "samples": proof.settings.samples,
    }


_NOT_OF_A_RUN: Final = ("name", "what", "inputs", "arguments")


def count_drawn_values(proof: Proof) -> dict[str, Seen]:
    """Return the ranges of random values that decide a cost: configuration keys, settings and sizes.

    If some draws leave a choice at its default, that counts as one more value.
    """
    found: dict[str, dict[str, Any]] = {}
    given, draws = Counter[str](), [piece for piece in proof.pieces if piece.phase == "draws"]
    for piece in draws:
        keys: dict[str, Any] = dict(piece.target.info().config or {})
        keys |= {k: v for k, v in keys_of(piece.workload).items() if k not in _NOT_OF_A_RUN}
        for key, value in {**keys, **piece.workload.inputs, **(piece.sizes or {})}.items():
            found.setdefault(key, {})[repr(value)] = value
            given[key] += 1
    for key, values in found.items():
        if given[key] < len(draws) and all(isinstance(value, str) for value in values.values()):
            values[""] = None
    return {key: _drawn_values(list(values.values())) for key, values in sorted(found.items())}


def _drawn_values(values: Sequence[Any]) -> Seen:
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    return Seen(len(values), min(numbers), max(numbers)) if len(numbers) == len(values) else Seen(len(values))


def _claim(found: Sequence[tuple[str, Claim]], sized: Sequence[str]) -> Claim:
    """Merge the claims of several runs about the same quantity into one."""
    claim = found[0][1]
    method = claim.method
    if method == "identity" and claim.stage in sized and claim.invocation not in ("", ANY):
        method = "identity per size"
    return replace(claim, runs=tuple(name for name, _ in found), method=method)


def _size(c: Counterexample) -> tuple[int, int, int, int, str, str]:
    """Return a sort key of counterexamples: formulas before numbers, general ones first, small ones first."""
    numbers, general = sum(c.config.values()), len(c.smallest)
    return (numbers, -general, sum(c.smallest.values()), len(c.difference), c.stage, c.module)
