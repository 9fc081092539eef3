"""Derive the closed form of a subject from its symbolic graph, and check it against separate counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.algebra.conditions import Condition, all_hold
from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.ledger.node import CostNode, rule_wanted, unknown_clause
from costproof.opgraph.account import account
from costproof.opgraph.costed import bound_unknown, cost_graph
from costproof.opgraph.graph import path_renamer
from costproof.opgraph.merge import merge_nodes
from costproof.tracers.cache import cached_export
from costproof.tracers.derive.subject import SizeSampler, Subject, example_sizes, size_limits
from costproof.tracers.exporting import with_sizes

POINTS: Final = 5


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A comparison at some sizes of the derived formula with a separate count."""

    sizes: dict[str, int]
    derived: int
    counted: int
    differing: tuple[str, ...]
    """Modules whose own work differs, at most five."""

    @property
    def equal(self) -> bool:
        """Return whether derived and separate counts agree, module by module."""
        return self.derived == self.counted and not self.differing


@dataclass(frozen=True, slots=True)
class Derived:
    """The derived cost nodes, the comparisons, and the conditions under which they hold."""

    nodes: tuple[CostNode, ...]
    points: tuple[SizeCheck, ...]
    holds: tuple[Condition, ...]


def derive(subject: Subject, *, points: int = POINTS, seed: int = 1) -> Derived:
    """Export, cost, and compare with separate counts at random sizes, some large, and at the limits of validity.

    Raises:
        Incomplete: it cannot be exported with these symbols, an operator has no rule, its conditions are unknown, or a
            separate count fails or has an operator without a rule.
    """
    job, exported = subject.job, cached_export(subject.job)
    work = cost_graph(exported.graph)
    found = account(work, job.place)
    if found.unknown:
        unknown = bound_unknown(found.unknown, work, example_sizes(job))
        raise Incomplete(
            "an operator of the graph has no rule",
            where=subject.name,
            got="; ".join(sorted({f"{o.op}, {unknown_clause([o])}: {o.why}" for o in unknown})[:5]),
            fix=rule_wanted(found.unknown) or "costproof ops lists the rules",
        )
    nodes, draw = merge_nodes(found.nodes), SizeSampler(subject, exported, seed)
    holds = size_limits(exported, subject.steps)
    made = [draw.point(far=i % 2 == 1) for i in range(points)]
    if points:
        made += [end for end in draw.ends(holds) if end not in made]
    checked = tuple(_check(subject, nodes, sizes) for sizes in made)
    if points:
        holds += tuple(_above_one(subject, nodes, made[0], holds))
    return Derived(tuple(n for n in nodes if n.stage == subject.stage), checked, holds)


def _above_one(
    subject: Subject, nodes: tuple[CostNode, ...], usual: Mapping[str, int], holds: tuple[Condition, ...]
) -> Iterator[Condition]:
    """Yield a condition for each symbol that must exceed 1, or one step, as the exporter assumes without a guard."""
    for name in usual:
        least = subject.steps.get(name, 1)
        sizes = {**usual, name: least}
        if not all_hold(holds, sizes):
            continue  # reported already
        try:
            equal = not subject.runs(sizes) or _check(subject, nodes, sizes).equal
        except Incomplete:
            equal = False
        if not equal:
            yield Condition(f"{name} >= {2 * least}", f"{name} - {2 * least}")


def _check(subject: Subject, nodes: tuple[CostNode, ...], sizes: dict[str, int]) -> SizeCheck:
    from costproof.tracers.derive.fresh import fresh_flops

    job = subject.job
    try:
        made = subject.at(sizes) or with_sizes(job, sizes)
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
    rename = path_renamer(job.prefix)
    for path, flops in counted.items():
        fresh[path if (here := rename(path)) is None else here] += flops
    derived: Counter[str] = Counter()
    for node in nodes:
        expr = node.exprs.get("flops") or (None if (known := node.cost("flops")) is None else str(known))
        if expr is not None:
            derived[node.module] += evaluate(parse(expr), sizes)
    total, done = derived.total(), fresh.total()
    differing = [m or "(root)" for m in {**derived, **fresh} if derived[m] != fresh[m]]
    return SizeCheck(sizes, total, done, tuple(differing[:5]))
