"""Which operators a capture's sources met, and what no rule covers."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

from costproof.ledger.capture import Capture
from costproof.ledger.node import Ledger
from costproof.reports.escape import visible
from costproof.reports.numbers import aligned, exact, share


def coverage_text(capture: Capture, glob: str = "*") -> str:
    """One table per source: operator kind, modules, FLOPs, share, vector FLOPs; then what is unknown."""
    lines: list[str] = []
    for ledger in capture.ledgers:
        if "flops" in ledger.metrics:
            lines += [*_table(ledger, glob), ""]
    unknown = [(x.source, op) for x in capture.ledgers for op in x.unknown_ops if fnmatchcase(op.op, glob)]
    for source, op in unknown:
        lines.append(
            f"no rule: {source} {visible(op.op)} in {op.stage} {visible(op.module)}, {op.count} calls, "
            f"at most {exact(op.bound_flops)} FLOP ({visible(op.why)})"
        )
    lines += [] if unknown else ["Every operator that computes has a rule."]
    return "\n".join(lines) + "\n"


def _table(ledger: Ledger, glob: str) -> list[str]:
    flops: Counter[str] = Counter()
    vector: Counter[str] = Counter()
    modules: dict[str, set[str]] = {}
    for n in ledger.nodes:
        if n.kind and fnmatchcase(n.kind, glob):
            flops[n.kind] += n.cost("flops") or 0
            vector[n.kind] += n.cost("vector_flops") or 0
            modules.setdefault(n.kind, set()).add(n.module)
    total = sum(flops.values())
    rows = [
        (visible(k), exact(len(modules[k])), exact(flops[k]), share(flops[k], total), exact(vector[k]))
        for k in sorted(modules, key=lambda k: (-flops[k], -vector[k], k))
    ]
    return aligned((ledger.source, "modules", "FLOPs", "share", "vector FLOPs"), rows)
