"""Find the causes that explain a difference between the counts of two sources.

A cause is accepted only if a source states it or other sources confirm it, because a wrong formula can look like any
convention: half the FLOPs look like MACs. A convention explains a difference only if the ledger states that it follows
the convention; an operator without a rule, only if the ledger lists the operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace

from costproof.algebra.evaluation import shared_values
from costproof.algebra.identity import at, free_symbols, unrounded
from costproof.compare.align import AlignedRow, Spot
from costproof.compare.findings import Cause, CauseKind
from costproof.compare.kinds import kind_of
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import BYTES, KEPT, KEPT_FLOPS, STAGE_WIDE, STORAGE, Conventions
from costproof.ledger.node import StatedDifference, UnknownOp, exact_sum
from costproof.ledger.plural import plural
from costproof.ledger.workload import FLOAT_BYTES

Call = tuple[str, str]
"""(stage, invocation)."""


@dataclass(frozen=True, slots=True)
class Context:
    """Lookup tables of one capture for the rules that find causes."""

    common: Conventions
    """The conventions of the capture, to which all numbers are converted."""
    conventions: dict[str, Conventions]
    """Conventions by source: the capture's, with the overrides of the source."""
    own_invocations: dict[str, frozenset[str]]
    """Invocations that a source says it counted, as ``stage[invocation]``, by source; absent if it does not say."""
    calls: dict[Spot, dict[str, int | None]]
    unknown: dict[tuple[str, str, str], tuple[UnknownOp, ...]]
    """Operators without a rule, by (source, stage, module)."""
    running: frozenset[str]
    """Stages that the workload runs."""
    executed: frozenset[tuple[str, str]]
    """(stage, module) pairs for which some source counts calls or operator costs."""
    sees_parameters: frozenset[tuple[str, str]]
    """(source, stage) pairs for which the source counts parameters of some module, and so of all modules."""
    values: dict[Call, dict[str, int]]
    """Values of all symbols by call; the key ``("", "")`` has those that are equal in all calls."""
    free: dict[Call, frozenset[str]]
    """Symbols that stay symbolic in the static source, by call."""
    concrete: frozenset[Spot]
    """Modules whose static graph has no symbols, so that values can be compared only at this workload."""
    differences: dict[tuple[str, str, str], tuple[StatedDifference, ...]]
    """Known differences that a source declares, by (source, module, metric)."""
    all_logits: bool
    """Whether the prefill computes logits of all positions, so that the symbols L and S are equal."""

    def binding(
        self, row: AlignedRow
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], frozenset[str]]:
        """Return fixed symbols with values, pairs of equal symbols, and free symbols, for comparing formulas."""
        call = (row.stage, row.invocation)
        values = self.values.get(call, self.values[("", "")])
        free = self.free.get(call, frozenset())
        alias = {"L": "S"} if self.all_logits and "S" in free and "L" in values.keys() - free else {}
        fixed = tuple(sorted((k, v) for k, v in values.items() if k not in free and k not in alias))
        return fixed, tuple(alias.items()), free


def context(capture: Capture, rows: Iterable[AlignedRow]) -> Context:
    """Build the lookup tables of a capture."""
    rows = list(rows)
    names = {f.name for f in fields(Conventions)}
    calls = {
        (r.stage, r.invocation, r.module): {s: c.value for s, c in r.cells.items()} for r in rows if r.metric == "calls"
    }
    unknown: dict[tuple[str, str, str], tuple[UnknownOp, ...]] = defaultdict(tuple)
    for ledger in capture.ledgers:
        for op in ledger.unknown_ops:
            unknown[ledger.source, op.stage, op.module] += (op,)
    differences: dict[tuple[str, str, str], tuple[StatedDifference, ...]] = defaultdict(tuple)
    for ledger in capture.ledgers:
        for stated in ledger.differences:
            differences[ledger.source, stated.module, stated.metric] += (stated,)
    free: dict[Call, frozenset[str]] = defaultdict(frozenset)
    symbolic: dict[Spot, bool] = defaultdict(bool)
    config = frozenset(capture.target.symbols)
    for row in rows:
        cell = row.cells.get("static")
        if cell is None or not cell.exprs or row.metric in STAGE_WIDE:
            continue
        found = frozenset(name for e in cell.exprs for name in free_symbols(e)) - config
        free[row.stage, row.invocation] |= found
        symbolic[row.stage, row.invocation, row.module] |= bool(found)
    common = {**shared_values(i.symbols for i in capture.invocations), **capture.target.symbols}
    return Context(
        common=capture.conventions,
        conventions={
            x.source: replace(capture.conventions, **{k: v for k, v in x.conventions.items() if k in names})
            for x in capture.ledgers
        },
        own_invocations={
            x.source: frozenset(p.strip() for p in x.conventions["invocations"].split(","))
            for x in capture.ledgers
            if "invocations" in x.conventions
        },
        calls=calls,
        unknown=unknown,
        running=frozenset(i.stage for i in capture.invocations),
        executed=frozenset(
            (r.stage, r.module)
            for r in rows
            if r.metric not in STAGE_WIDE and any(c.value != 0 for c in r.cells.values())
        ),
        sees_parameters=frozenset(
            (source, r.stage)
            for r in rows
            if r.metric in STAGE_WIDE and r.metric not in STORAGE  # a file holds what nothing runs
            for source, c in r.cells.items()
            if c.value != 0
        ),
        values={("", ""): common, **{(i.stage, i.id): capture.values(i) for i in capture.invocations}},
        free=free,
        concrete=frozenset(spot for spot, has in symbolic.items() if not has),
        differences=dict(differences),
        all_logits=capture.workload.logits == "all",
    )


@dataclass(frozen=True, slots=True)
class SourcePair:
    """Two differing values of one row, with their sources."""

    row: AlignedRow
    source: str
    value: int
    other: str
    target: int
    """The value of the other source."""

    @property
    def delta(self) -> int:
        return self.value - self.target

    def turned(self) -> SourcePair:
        """Return the pair with its sources exchanged."""
        return SourcePair(self.row, self.other, self.target, self.source, self.value)


Adjustment = tuple[CauseKind, int, str]
"""(cause, amount that converts a source's value to the capture's conventions, reason)."""

CauseRule = Callable[[SourcePair, Context], Adjustment | None]


def causes_of(pair: SourcePair, ctx: Context) -> tuple[Cause, ...]:
    """Return the accepted causes of a difference; their amounts sum to the part that is explained."""
    causes: list[Cause] = []
    if pair.delta == 0:
        return ()
    for rule in (*_RULES, *_stated_differences(pair, ctx)):
        for sign in (-1, 1):
            side = pair if sign < 0 else pair.turned()
            found = rule(side, ctx) if side.delta else None
            if found is None or found[1] == 0:
                continue
            kind, added, why = found
            side = replace(side, value=side.value + added)
            pair = side if sign < 0 else side.turned()
            evidence = tuple(f"{side.source}: {i}" for i in side.row.cells[side.source].ids[:3])
            causes.append(Cause(kind, sign * added, evidence=evidence, note=f"{side.source}: {why}"))
    return tuple(causes)


def _stated_differences(pair: SourcePair, ctx: Context) -> Iterator[CauseRule]:
    """Yield a rule for each known difference that either source declares for this module and metric."""
    for source in (pair.source, pair.other):
        for stated in ctx.differences.get((source, pair.row.module, pair.row.metric), ()):
            adjustment: Adjustment = ("checkpoint_contents", -stated.amount, stated.why)
            yield lambda side, _, source=source, found=adjustment: found if side.source == source else None  # type: ignore[misc]


def _unit(side: SourcePair, ctx: Context) -> Adjustment | None:
    if (
        side.row.metric not in ("flops", KEPT_FLOPS)
        or ctx.conventions[side.source].unit != "mac"
        or ctx.common.unit != "flop"
    ):
        return None
    return "convention", side.value, "counts a multiply-accumulate as 1 (unit = mac)"


def _causal(side: SourcePair, ctx: Context) -> Adjustment | None:
    if side.row.metric != "flops" or "attention" not in side.row.kind:
        return None
    if ctx.conventions[side.source].causal != "triangle" or ctx.common.causal != "full":
        return None
    length = _symbol(side.row, ctx, "S")
    value = side.value
    # The triangle holds S(S+1)/2 of S*S scores: v * 2S/(S+1) is the full square.
    if not length or value * (length - 1) % (length + 1):
        return None
    missing = value * (length - 1) // (length + 1)
    return "convention", missing, "counts only the triangle of causal scores (causal = triangle)"


def _logits(side: SourcePair, ctx: Context) -> Adjustment | None:
    mine, theirs = ctx.conventions[side.source].logits, ctx.common.logits
    if mine == theirs or side.row.role.rpartition(".")[2] != "lm_head" or side.row.metric in STAGE_WIDE:
        return None
    length, value = _symbol(side.row, ctx, "S"), side.value
    if not length:
        return None
    if mine == "last":
        return "convention", value * (length - 1), "maps only the last position (logits = last)"
    one, rest = divmod(value, length)
    return None if rest else ("convention", one - value, "maps every position (logits = all)")


def _dtype(side: SourcePair, ctx: Context) -> Adjustment | None:
    mine, theirs = ctx.conventions[side.source].dtype, ctx.common.dtype
    if side.row.metric not in BYTES or mine == theirs or not {mine, theirs} <= FLOAT_BYTES.keys():
        return None
    value = side.value
    scaled, rest = divmod(value * FLOAT_BYTES[theirs], FLOAT_BYTES[mine])
    return None if rest else ("convention", scaled - value, f"counts bytes of {mine} (dtype = {mine})")


def _padding(side: SourcePair, ctx: Context) -> Adjustment | None:
    """Explain a difference by a source that does not count the padding to whole attention windows.

    Evidence is a formula that rounds up to whole windows: without the rounding it must give the source's value.
    """
    if ctx.conventions[side.source].window_padding == "counted" or ctx.common.window_padding != "counted":
        return None
    value, target = side.value, side.target
    values = ctx.values.get((side.row.stage, side.row.invocation), {})
    for cell in side.row.cells.values():
        if cell.value == target and cell.exprs and at(map(unrounded, cell.exprs), values) == value:
            return "padding", target - value, "leaves out the padding of windows (window_padding = left out)"
    return None


def _invocations(side: SourcePair, ctx: Context) -> Adjustment | None:
    stated = ctx.own_invocations.get(side.source)
    here = f"{side.row.stage}[{side.row.invocation}]"
    if stated is None or here in stated or side.value != 0 or side.row.metric in STAGE_WIDE:
        return None
    why = f"does not count this invocation (invocations = {', '.join(sorted(stated))})"
    return "workload_shape", side.target, why


def _uncounted(side: SourcePair, ctx: Context) -> Adjustment | None:
    ops = ctx.unknown.get((side.source, side.row.stage, side.row.module), ())
    missing = side.target - side.value
    if not ops or missing <= 0 or side.row.metric not in ("flops", *KEPT, "vector_flops"):
        return None
    if side.row.metric in ("flops", KEPT_FLOPS):
        named = {kind_of(o.op) for o in ops}
        if side.value and not named & set(side.row.kind.split("+")):
            return None
        bound = exact_sum(o.bound_flops for o in ops)
        if bound is not None and missing > bound:
            return None
    return "uncounted_operator", missing, "has no rule for " + ", ".join(sorted({o.op for o in ops}))


def other_calls(pair: SourcePair, ctx: Context) -> str | None:
    """Return a sentence if the sources counted different numbers of calls of the module for an unknown reason."""
    calls = ctx.calls.get((pair.row.stage, pair.row.invocation, pair.row.module), {})
    a, b = calls.get(pair.source), calls.get(pair.other)
    if pair.row.metric in STAGE_WIDE or not a or not b or a == b or pair.value * b != pair.target * a:
        return None
    ours, theirs = plural(a, "time"), plural(b, "time")
    return f"{pair.source} runs the module {ours}, {pair.other} {theirs}, at the same cost per call"


def _looped(side: SourcePair, ctx: Context) -> Adjustment | None:
    """Explain more calls of an expert by a loop over experts, with one call for each expert that received a token."""
    if side.row.metric != "calls" or ctx.conventions[side.source].expert_kernel != "eager":
        return None
    experts = _symbol(side.row, ctx, f"{side.row.tower}_experts")
    inside = "experts" in side.row.role.split(".")[:-1]
    if ctx.conventions[side.other].expert_kernel == "eager" or not inside or not experts:
        return None
    calls, turns = side.target, side.value
    if not calls <= turns <= calls * experts:
        return None
    why = f"loops over experts that received tokens: {turns} of at most {calls * experts} turns (expert_kernel = eager)"
    return "expert_kernel", calls - turns, why


def _unexecuted(side: SourcePair, ctx: Context) -> Adjustment | None:
    if side.row.metric not in STAGE_WIDE or side.value != 0:
        return None
    blind = (
        side.source not in ("analytic", "checkpoint", "headers")
        and (side.source, side.row.stage) not in ctx.sees_parameters
    )
    if side.row.stage not in ctx.running and blind:
        return "unexecuted_parameters", side.target, "sees only what runs, and the stage does not run here"
    holders = [s for s, c in side.row.cells.items() if c.value != 0]
    # If any source runs the module, its parameters are read, and a missing number is an error.
    if holders != ["checkpoint"] or (side.row.stage, side.row.module) in ctx.executed:
        return None
    why = "has no such module; the checkpoint holds it, and nothing runs it"
    return "unexecuted_parameters", side.target, why


_RULES: tuple[CauseRule, ...] = (
    _unit, _causal, _logits, _dtype, _padding, _invocations, _uncounted, _unexecuted, _looped,
)  # fmt: skip


def _symbol(row: AlignedRow, ctx: Context, name: str) -> int | None:
    return ctx.values.get((row.stage, row.invocation), {}).get(name)
