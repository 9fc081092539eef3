"""Causes that explain a difference: only what a source states about itself, or what others witness.

A wrong formula can look like any convention (half is MAC for FLOP), so a number that merely fits is
never enough. A convention explains a difference only if the ledger says that it follows it; an
operator without a rule only if the ledger lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costproof.compare.align import Row
from costproof.compare.context import Context
from costproof.compare.findings import Cause, CauseKind
from costproof.compare.identity import at, unrounded
from costproof.compare.kinds import kind_of
from costproof.ledger.metrics import BYTES, STAGE_WIDE
from costproof.ledger.node import exact_sum
from costproof.ledger.workload import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sources' values of one row; ``first - second`` is to be explained."""

    row: Row
    first: str
    second: str
    a: int
    b: int

    @property
    def delta(self) -> int:
        return self.a - self.b

    def other(self, source: str) -> int:
        """The value that ``source`` is compared with."""
        return self.b if source == self.first else self.a

    def value(self, source: str) -> int:
        return self.a if source == self.first else self.b

    def evidence(self, *sources: str) -> tuple[str, ...]:
        """Ids of the nodes of the sources."""
        return tuple(f"{s}: {i}" for s in sources for i in self.row.cells[s].ids[:3])


Adjustment = tuple[CauseKind, int, str]
"""(cause, what must be added to a source's value to bring it to the capture's conventions, why)"""

Rule = Callable[[Pair, str, Context], Adjustment | None]


def causes_of(pair: Pair, ctx: Context) -> tuple[Cause, ...]:
    """Accepted causes of a difference; their amounts add up to what they explain of it."""
    if pair.delta == 0:
        return ()
    causes: list[Cause] = []
    left = {pair.first: pair.a, pair.second: pair.b}
    for rule in _RULES:
        for source, sign in ((pair.first, -1), (pair.second, 1)):
            now = Pair(pair.row, pair.first, pair.second, left[pair.first], left[pair.second])
            if now.delta == 0:
                continue
            found = rule(now, source, ctx)
            if found is None or found[1] == 0:
                continue
            kind, added, why = found
            left[source] += added
            causes.append(Cause(kind, sign * added, evidence=pair.evidence(source), note=f"{source}: {why}"))
    return tuple(causes)


def _unit(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    if pair.row.metric != "flops" or ctx.conventions[source].unit != "mac" or ctx.common.unit != "flop":
        return None
    return "convention", pair.value(source), "counts a multiply-accumulate as 1 (unit = mac)"


def _causal(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    if pair.row.metric != "flops" or "attention" not in pair.row.kind:
        return None
    if ctx.conventions[source].causal != "triangle" or ctx.common.causal != "full":
        return None
    length = _symbol(pair.row, ctx, "S")
    value = pair.value(source)
    # The triangle holds S(S+1)/2 of S*S scores: v * 2S/(S+1) is the full square.
    if not length or value * (length - 1) % (length + 1):
        return None
    missing = value * (length - 1) // (length + 1)
    return "convention", missing, "counts the triangle of causal scores alone (causal = triangle)"


def _logits(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    mine, theirs = ctx.conventions[source].logits, ctx.common.logits
    if mine == theirs or pair.row.role.rpartition(".")[2] != "lm_head" or pair.row.metric in STAGE_WIDE:
        return None
    length, value = _symbol(pair.row, ctx, "S"), pair.value(source)
    if not length:
        return None
    if mine == "last":
        return "convention", value * (length - 1), "maps the last position alone (logits = last)"
    one, rest = divmod(value, length)
    return None if rest else ("convention", one - value, "maps every position (logits = all)")


def _dtype(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    mine, theirs = ctx.conventions[source].dtype, ctx.common.dtype
    if pair.row.metric not in BYTES or mine == theirs or not {mine, theirs} <= FLOAT_BYTES.keys():
        return None
    value = pair.value(source)
    scaled, rest = divmod(value * FLOAT_BYTES[theirs], FLOAT_BYTES[mine])
    return None if rest else ("convention", scaled - value, f"counts bytes of {mine} (dtype = {mine})")


def _padding(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    """Windows are padded to whole ones: a formula rounds up there, and gives the source's value where it does not."""
    if ctx.conventions[source].window_padding == "counted" or ctx.common.window_padding != "counted":
        return None
    value, target = pair.value(source), pair.other(source)
    values = ctx.values.get((pair.row.stage, pair.row.invocation), {})
    for cell in pair.row.cells.values():
        if cell.value == target and cell.exprs and at(map(unrounded, cell.exprs), values) == value:
            return "padding", target - value, "leaves out the padding of windows (window_padding = left out)"
    return None


def _invocations(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    stated = ctx.own_invocations.get(source)
    here = f"{pair.row.stage}[{pair.row.invocation}]"
    if stated is None or here in stated or pair.value(source) != 0 or pair.row.metric in STAGE_WIDE:
        return None
    why = f"does not count this invocation (invocations = {', '.join(sorted(stated))})"
    return "workload_shape", pair.other(source), why


def _uncounted(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    ops = ctx.unknown.get((source, pair.row.stage, pair.row.module), ())
    missing = pair.other(source) - pair.value(source)
    if not ops or missing <= 0 or pair.row.metric not in ("flops", "vector_flops"):
        return None
    if pair.row.metric == "flops":
        named = {kind_of(o.op) for o in ops}
        if pair.value(source) and not named & set(pair.row.kind.split("+")):
            return None
        bound = exact_sum(o.bound_flops for o in ops)
        if bound is not None and missing > bound:
            return None
    return "uncounted_operator", missing, "has no rule for " + ", ".join(sorted({o.op for o in ops}))


def other_calls(pair: Pair, ctx: Context) -> str | None:
    """How a module that runs a different number of times explains the pair, and what stays open is why it does."""
    calls = ctx.calls.get((pair.row.stage, pair.row.invocation, pair.row.module), {})
    a, b = calls.get(pair.first), calls.get(pair.second)
    if pair.row.metric in STAGE_WIDE or not a or not b or a == b or pair.a * b != pair.b * a:
        return None
    return f"{pair.first} runs the module {a} times, {pair.second} {b} times, at the same cost per call"


def _looped(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    """A loop over experts calls what is inside it once for every expert that received a token."""
    if pair.row.metric != "calls" or ctx.conventions[source].expert_kernel != "eager":
        return None
    other = pair.second if source == pair.first else pair.first
    experts = _symbol(pair.row, ctx, f"{pair.row.tower}_experts")
    inside = "experts" in pair.row.role.split(".")[:-1]
    if ctx.conventions[other].expert_kernel == "eager" or not inside or not experts:
        return None
    calls, turns = pair.other(source), pair.value(source)
    if not calls <= turns <= calls * experts:
        return None
    why = f"loops over experts that received tokens: {turns} of at most {calls * experts} turns (expert_kernel = eager)"
    return "expert_kernel", calls - turns, why


def _unexecuted(pair: Pair, source: str, ctx: Context) -> Adjustment | None:
    if pair.row.metric not in STAGE_WIDE or pair.value(source) != 0:
        return None
    blind = source not in ("analytic", "checkpoint") and (source, pair.row.stage) not in ctx.sees_parameters
    if pair.row.stage not in ctx.running and blind:
        return "unexecuted_parameters", pair.other(source), "sees only what runs, and the stage does not run here"
    holders = [s for s, c in pair.row.cells.items() if c.value != 0]
    # A module that any source runs has parameters that are read: then a missing number is an error.
    if holders != ["checkpoint"] or (pair.row.stage, pair.row.module) in ctx.executed:
        return None
    why = "has no such module; the checkpoint holds it, and nothing runs it"
    return "unexecuted_parameters", pair.other(source), why


_RULES: tuple[Rule, ...] = (
    _unit, _causal, _logits, _dtype, _padding, _invocations, _uncounted, _unexecuted, _looped,
)  # fmt: skip


def _symbol(row: Row, ctx: Context, name: str) -> int | None:
    return ctx.values.get((row.stage, row.invocation), {}).get(name)
