"""What the search for causes needs to know about a capture beside the row it looks at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from costproof.algebra.evaluation import shared_values
from costproof.algebra.identity import free_symbols
from costproof.compare.align import Row, Spot
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import STAGE_WIDE, Conventions
from costproof.ledger.node import UnknownOp

Call = tuple[str, str]
"""(stage, invocation)"""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts of one capture, looked up many times."""

    common: Conventions
    """The conventions of the capture: all numbers are brought to these."""
    conventions: dict[str, Conventions]
    """By source: those of the capture, with what the source states differently."""
    own_invocations: dict[str, frozenset[str]]
    """Sources that state which invocations they counted, as ``stage[invocation]``."""
    calls: dict[Spot, dict[str, int | None]]
    unknown: dict[tuple[str, str, str], tuple[UnknownOp, ...]]
    """(source, stage, module) -> operators without a rule."""
    running: frozenset[str]
    """Stages that run at this workload."""
    executed: frozenset[tuple[str, str]]
    """(stage, module) that some source calls or does work in."""
    sees_parameters: frozenset[tuple[str, str]]
    """(source, stage) where the source gives parameters of some module: then it sees those of all."""
    values: dict[Call, dict[str, int]]
    """Values of all symbols; the key ``("", "")`` holds those that are the same in all invocations."""
    free: dict[Call, frozenset[str]]
    """The symbols that the static source keeps as symbols in an invocation."""
    concrete: frozenset[Spot]
    """Modules whose static graph has no symbol: there only the point can be checked."""
    all_logits: bool
    """Whether all positions of the prefill get logits, so that L equals S there."""

    def binding(self, row: Row) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...], frozenset[str]]:
        """For an identity test: fixed symbols with values, aliases, and the symbols that stay free."""
        call = (row.stage, row.invocation)
        values = self.values.get(call, self.values[("", "")])
        free = self.free.get(call, frozenset())
        alias = {"L": "S"} if self.all_logits and "S" in free and "L" in values.keys() - free else {}
        fixed = tuple(sorted((k, v) for k, v in values.items() if k not in free and k not in alias))
        return fixed, tuple(alias.items()), free


def context(capture: Capture, rows: Iterable[Row]) -> Context:
    """Look everything up once."""
    rows = list(rows)
    names = {f.name for f in fields(Conventions)}
    calls = {
        (r.stage, r.invocation, r.module): {s: c.value for s, c in r.cells.items()} for r in rows if r.metric == "calls"
    }
    unknown: dict[tuple[str, str, str], tuple[UnknownOp, ...]] = defaultdict(tuple)
    for ledger in capture.ledgers:
        for op in ledger.unknown_ops:
            unknown[ledger.source, op.stage, op.module] += (op,)
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
            (source, r.stage) for r in rows if r.metric in STAGE_WIDE for source, c in r.cells.items() if c.value != 0
        ),
        values={("", ""): common, **{(i.stage, i.id): capture.values(i) for i in capture.invocations}},
        free=free,
        concrete=frozenset(spot for spot, has in symbolic.items() if not has),
        all_logits=capture.workload.logits == "all",
    )
