"""Attribute every FLOP of the difference between a third-party counter and costproof's count to a named cause.

Both sides are rows of (module, operator). Matrix products of a module are matched by operator kind; then a generic
product (``bmm``) is matched with any set of kinds that it may carry out and that has exactly its size. The remaining
rows are matched in the same manner over the whole stage, for tools that give figures without a module. An unmatched row
of the truth is an operator that the tool has no rule for; a row of the tool that is not a product is vector work. A row
whose size differs from the truth's is never explained by its size, and remains a residual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, combinations
from typing import Final

from costproof.compare.findings import Cause, CauseKind, CounterComparison, CounterFinding, CounterTool
from costproof.compare.kinds import CARRIED_OUT_BY_MATMUL, GENERIC, kind_of, same_operator
from costproof.ledger.counter import UNATTRIBUTED, CounterCall, CounterInfo, CounterRecord
from costproof.ledger.node import CostNode, exact_sum, total

PRODUCTS: Final = CARRIED_OUT_BY_MATMUL | {"conv", GENERIC}
_MOST: Final = 6
_EVIDENCE: Final = 3

_Key = tuple[CauseKind, str]


@dataclass(slots=True)
class _Found:
    amounts: Counter[_Key] = field(default_factory=Counter)
    evidence: dict[_Key, list[str]] = field(default_factory=dict)
    covered: int = 0

    def add(self, kind: CauseKind, note: str, amount: int, *evidence: str) -> None:
        self.amounts[kind, note] += amount
        self.evidence.setdefault((kind, note), []).extend(evidence)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Return the causes, in descending order of their absolute amount."""
        return tuple(
            Cause(kind, amount, tuple(self.evidence[kind, note][:_EVIDENCE]), note=note)
            for (kind, note), amount in sorted(self.amounts.items(), key=lambda item: (-abs(item[1]), item[0]))
            if amount
        )


KindSums = dict[str, int]


def explain_counter(info: CounterInfo, call: CounterCall, truth: Sequence[CostNode] | None) -> CounterFinding:
    """Compare one call of a counter with costproof's count of the same forward, which is ``None`` if unknown."""
    expected = None if truth is None else total(truth, "flops")
    value = call.value
    factor = 2 if info.unit == "mac" else 1
    error = "a row is unknown" if value is None and call.error is None else call.error
    normalised = None if value is None else factor * value
    blank = CounterFinding(
        info.name, call.stage, call.invocation, value, normalised, expected, None, (), None, None, error, call.notes
    )
    if truth is None or expected is None or value is None:
        return blank
    found = _Found()
    tool = _by_module(call.nodes, factor)
    true = _by_module(truth, 1)
    where = f"{call.stage}[{call.invocation}]"
    calls: dict[str, KindSums] = {}
    for n in truth:
        calls.setdefault(n.module, {})[n.kind] = len(n.evidence)
    left_tool: Counter[str] = Counter()
    left_true: dict[str, KindSums] = {}
    for module in dict.fromkeys((*true, *tool)):
        ours, theirs = dict(true.get(module, {})), dict(tool.get(module, {}))
        _vector(found, theirs, f"{where}/{module}", bool(ours), module)
        _match(found, theirs, ours)
        if info.einsum != "exact":
            _rounded(found, theirs, ours, calls.get(module, {}), f"{where}/{module}")
        if info.rows == "first":
            _first_rows(found, theirs, ours, f"{where}/{module}")
        left_tool.update(theirs)
        if ours:
            left_true[module] = ours
    _stage_wide(found, left_tool, left_true)
    for module, ours in left_true.items():
        for kind, flops in ours.items():
            if not any(same_operator(kind, k) or k == "" for k in left_tool):
                found.add("uncounted_operator", f"does not count {kind}", -flops, f"{where}/{module}:{kind}")
    if factor == 2:
        found.add("convention", "counts a multiply-accumulate as 1 (unit = mac)", -value, where)
    delta, causes = value - expected, found.causes
    residual = delta - sum(c.amount for c in causes)
    return replace(blank, delta=delta, causes=causes, residual=residual, covered=found.covered)


def _by_module(nodes: Iterable[CostNode], factor: int) -> dict[str, KindSums]:
    found: dict[str, KindSums] = {}
    for n in nodes:
        if flops := n.cost("flops"):
            row = found.setdefault(n.module, {})
            row[n.kind] = row.get(n.kind, 0) + factor * flops
    return found


def _vector(found: _Found, theirs: KindSums, where: str, products: bool, module: str) -> None:
    """Convert rows of a counter with vector work, or with products counted twice, into causes."""
    for kind in list(theirs):
        if ">" in kind:
            outer, _, inner = kind.rpartition(">")
            note = f"counts {outer}, and {inner} inside it again" if outer else f"counts {inner} again for every parent"
            if kind_of(inner) in PRODUCTS:
                found.add("double_counting", note, theirs.pop(kind), where)
            else:
                found.add("vector_counted", f"counts {inner}", theirs.pop(kind), where)
        elif kind and kind_of(kind) not in PRODUCTS:
            found.add("vector_counted", f"counts {kind}", theirs.pop(kind), where)
        elif not kind and not products and module != UNATTRIBUTED:
            found.add("vector_counted", "counts modules without products (norms, tables)", theirs.pop(kind), where)


def _match(found: _Found, theirs: KindSums, ours: KindSums) -> None:
    """Remove equal amounts from the rows of both sides, and add them to the covered FLOPs.

    First kinds with the same total on both sides, then a row of theirs that equals the sum of several kinds of ours.
    """
    names: dict[str, list[str]] = {}
    for kind in theirs:
        names.setdefault(kind_of(kind) if kind else "", []).append(kind)
    for common, kinds in names.items():
        mine = [k for k in ours if kind_of(k) == common]
        total = sum(theirs[k] for k in kinds)
        if mine and total == sum(ours[k] for k in mine):
            found.covered += total
            _drop(theirs, kinds)
            _drop(ours, mine)
    for kind in list(theirs):
        candidates = [k for k in ours if not kind or same_operator(kind, k)]
        few = candidates[:_MOST]
        for chosen in chain.from_iterable(combinations(few, size) for size in range(1, len(few) + 1)):
            if sum(ours[k] for k in chosen) == theirs[kind]:
                found.covered += theirs.pop(kind)
                _drop(ours, chosen)
                break


def _first_rows(found: _Found, theirs: KindSums, ours: KindSums, where: str) -> None:
    """Explain the difference of a counter that takes dimension 0 of an output as the rows of a matrix product."""
    value, flops = theirs.get("", 0), sum(ours.values())
    if value and flops > value and flops % value == 0:
        found.covered += value
        found.add("workload_shape", "takes the first dimension for all rows (rows = first)", value - flops, where)
        theirs.clear()
        ours.clear()


def _rounded(found: _Found, theirs: KindSums, ours: KindSums, calls: KindSums, where: str) -> None:
    """Explain the difference of a counter that rounds the FLOPs of each einsum to four digits."""
    for kind in [k for k in theirs if kind_of(k) == "einsum" and k in ours]:
        count = calls.get(kind, 0)
        if not count or ours[kind] % count:
            continue
        printed = int(Decimal(f"{Decimal(ours[kind] // count):.3e}"))
        if theirs[kind] == 2 * count * (printed // 2):
            found.covered += min(theirs[kind], ours[kind])
            note = "takes the FLOPs of an einsum from a text of four digits"
            found.add("convention", note, theirs.pop(kind) - ours.pop(kind), where)


def _stage_wide(found: _Found, theirs: Counter[str], ours: dict[str, KindSums]) -> None:
    """Match the FLOPs of whole stages, for counters that do not report FLOPs by module."""
    sums: Counter[str] = Counter()
    for row in ours.values():
        sums.update(row)
    mine = dict(sums)
    _match(found, theirs, mine)
    for gone in sums.keys() - mine.keys():
        for row in ours.values():
            row.pop(gone, None)


def _drop(sums: KindSums, kinds: Iterable[str]) -> None:
    for kind in kinds:
        del sums[kind]


def compare_counters(record: CounterRecord) -> CounterComparison:
    """Compare every call of every counter with costproof's count of the same forward."""
    truth = {(c.stage, c.invocation, c.cut): c.nodes for c in record.truth if c.error is None}
    findings: list[CounterFinding] = []
    totals: list[CounterFinding] = []
    for run in record.runs:
        found = [explain_counter(run.info, c, truth.get((c.stage, c.invocation, c.cut))) for c in run.calls]
        findings += found
        skipped = CounterFinding(run.info.name, "total", "", None, None, None, None, (), None, None)
        totals.append(together(found) if found else skipped)
    return CounterComparison(
        tools=tuple(CounterTool(run.info, run.version) for run in record.runs),
        totals=tuple(totals),
        findings=tuple(findings),
        checked=record.checked,
        unknown=_by_reason((f"{c.stage}[{c.invocation}]", c.error) for c in record.truth if c.error is not None),
    )


def _by_reason(failed: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Group failed calls by reason: ``prefill[prompt], decode[steps]: took longer than 4 s``."""
    places: dict[str, list[str]] = {}
    for place, why in failed:
        places.setdefault(why, []).append(place)
    return tuple(f"{', '.join(dict.fromkeys(found))}: {why}" for why, found in places.items())


def together(findings: Sequence[CounterFinding]) -> CounterFinding:
    """Sum the findings of one counter, with their causes; a sum with an unknown summand is unknown."""
    first, merged = findings[0], _Found()
    for c in (c for f in findings for c in f.causes):
        merged.add(c.kind, c.note, c.amount, *c.evidence)
    stages = dict.fromkeys(f.stage for f in findings)
    calls = dict.fromkeys(f.invocation for f in findings)
    return CounterFinding(
        first.counter,
        first.stage if len(stages) == 1 else "total",
        first.invocation if len(calls) == 1 else "",
        exact_sum(f.value for f in findings),
        exact_sum(f.normalised for f in findings),
        exact_sum(f.truth for f in findings),
        exact_sum(f.delta for f in findings),
        merged.causes,
        exact_sum(f.residual for f in findings),
        exact_sum(f.covered for f in findings),
        "; ".join(_by_reason((f"{f.stage}[{f.invocation}]", f.error) for f in findings if f.error is not None)) or None,
    )
