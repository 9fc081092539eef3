"""The closed form of a subject: exported with symbols, costed, and checked against fresh counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, Final

from costproof.graph.account import account
from costproof.graph.costed import costed
from costproof.graph.merge import merge_nodes
from costproof.graph.paths import renamer
from costproof.graph.sized import bounded
from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.ledger.evaluate import evaluate
from costproof.ledger.node import CostNode, rule_wanted, unknown_clause
from costproof.ledger.symbols import parse
from costproof.models.jobs import ExportJob
from costproof.tracers.derive.subject import Subject
from costproof.tracers.export_cache import kept_export
from costproof.tracers.exported import Exported
from costproof.tracers.exported_sizes import resized
from costproof.tracers.guards import holds_at

POINTS: Final = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One comparison with a run: the sizes, what the formula gives, what the run did."""

    sizes: dict[str, int]
    derived: int
    counted: int
    differing: tuple[str, ...]
    """Modules whose own work differs, at most five."""

    @property
    def equal(self) -> bool:
        """Whether they agree, module by module."""
        return self.derived == self.counted and not self.differing


def derive(subject: Subject, *, points: int = POINTS, seed: int = 1) -> tuple[tuple[CostNode, ...], tuple[Point, ...]]:
    """Export, cost, and compare with fresh counts at random sizes.

    Returns:
        What was read off the graph, and the comparisons.

    Raises:
        Incomplete: it does not export with these symbols, an operator has no rule, or a fresh count
            cannot be made or has an operator without a rule.
    """
    job, exported = subject.job, kept_export(subject.job)
    work = costed(exported.graph)
    found = account(work, job.place)
    if found.unknown:
        unknown = bounded(found.unknown, work, _examples(job))
        raise Incomplete(
            "an operator of the graph has no rule",
            where=subject.name,
            got="; ".join(sorted({f"{o.op}, {unknown_clause([o])}: {o.why}" for o in unknown})[:5]),
            fix=rule_wanted(found.unknown) or "costproof ops lists the rules",
        )
    nodes, rng = merge_nodes(found.nodes), random.Random(f"costproof:{seed}")
    of_stage = tuple(n for n in nodes if n.stage == subject.stage)
    return of_stage, tuple(_check(exported, nodes, _sizes(exported, rng, subject.steps)) for _ in range(points))


def _examples(job: ExportJob) -> dict[str, int]:
    """The sizes at which the export was made."""
    args: Any = job.args
    plain = (s for s in job.sizes if s.symbol.isidentifier())  # and not one more than another
    return {s.symbol: int(reduce(getitem, s.argument, args).shape[s.dim]) for s in plain}


def _sizes(exported: Exported, rng: random.Random, steps: Mapping[str, int]) -> dict[str, int]:
    """Random sizes; where some are multiples of a step, such as the graph stands for."""
    names = sorted({s.name for size in exported.job.sizes for s in parse(size.symbol).free_symbols})

    def drawn(name: str) -> int:
        if name in steps:
            return steps[name] * rng.randint(4, 16)
        return rng.randint(2, 5) if name in ("B", "n") else rng.randint(8, 64)

    while True:
        sizes = {name: drawn(name) for name in names}
        if not steps or holds_at(exported, [sizes])[0]:
            return sizes


def _check(exported: Exported, nodes: tuple[CostNode, ...], sizes: dict[str, int]) -> Point:
    from costproof.tracers.derive.fresh import fresh_flops

    job = exported.job
    try:
        made = resized(job, sizes)
        counted, unknown = fresh_flops(made.module, made.args)
    except CostproofError:
        raise
    except Exception as error:
        raise Incomplete(
            "the model does not run at random sizes on meta, so the formula is unchecked",
            where=f"{job.id} at {sizes}",
            got=first_line(error),
        ) from error
    if unknown:
        raise Incomplete("an operator of the fresh run has no rule", where=job.id, got=", ".join(sorted(unknown)[:5]))
    fresh: Counter[str] = Counter()
    rename = renamer(job.prefix)
    for path, flops in counted.items():
        fresh[path if (here := rename(path)) is None else here] += flops
    derived: Counter[str] = Counter()
    for node in nodes:
        expr = node.exprs.get("flops") or (None if (known := node.cost("flops")) is None else str(known))
        if expr is not None:
            derived[node.module] += evaluate(parse(expr), sizes)
    total, done = derived.total(), fresh.total()
    differing = [m or "(root)" for m in {**derived, **fresh} if derived[m] != fresh[m]]
    if (differing or total != done) and not holds_at(exported, [sizes])[0]:
        raise Incomplete(
            "the graph is that of some sizes only: the model takes another way at others",
            where=f"{job.id} at {sizes}",
            got=f"{total:,} FLOPs by the graph, {done:,} counted in a run",
        )
    return Point(sizes, total, done, tuple(differing[:5]))
