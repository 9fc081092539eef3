"""Report the operators that a capture's sources met, and those without a rule."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import inf

from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode, Ledger, at_most, exact_sum, total
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.screen import align_table, fill_lines
from costproof.views.numbers import exact, share


def coverage_text(capture: Capture, glob: str = "*", width: int | None = None) -> str:
    """Return a table per source (operator kind, modules, FLOPs, share, vector FLOPs), then the unknown operators."""
    lines: list[str] = []
    for ledger in capture.ledgers:
        if "flops" in ledger.metrics:
            lines += [*_table(ledger, glob, width), ""]
    unknown = [(x.source, op) for x in capture.ledgers for op in x.unknown_ops if fnmatchcase(op.op, glob)]
    for source, op in unknown:
        lines.append(
            f"no rule: {source} {visible(op.op)} in {op.stage} {visible(op.module)}, {plural(op.count, 'call')}, "
            f"{at_most(op.bound_flops)} ({visible(op.why)})"
        )
    lines += [] if unknown else ["Every operator that computes has a rule."]
    return fill_lines(lines, width)


def _table(ledger: Ledger, glob: str, width: int | None) -> list[str]:
    kinds: dict[str, list[CostNode]] = {}
    for n in ledger.nodes:
        if n.kind and fnmatchcase(n.kind, glob):
            kinds.setdefault(n.kind, []).append(n)
    sums = {kind: (total(nodes, "flops"), total(nodes, "vector_flops")) for kind, nodes in kinds.items()}
    # What is unknown stands first: it may be the largest.
    ordered = sorted(sums.items(), key=lambda item: (*(-x if x is not None else -inf for x in item[1]), item[0]))
    whole = exact_sum(flops for flops, _ in sums.values())
    rows = [
        (visible(k), exact(len({n.module for n in kinds[k]})), exact(flops), share(flops, whole), exact(vector))
        for k, (flops, vector) in ordered
    ]
    return align_table((ledger.source, "modules", "FLOPs", "share", "vector FLOPs"), rows, width=width)
