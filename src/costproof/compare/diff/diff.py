"""Compare two files or targets in every common source, and attribute every cost difference to changes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Final

from costproof.compare.diff.attribution import Attribution, Player, Point, Split, Term, attribute
from costproof.compare.diff.changes import (
    FORMULA_SOURCE,
    MAC,
    Differences,
    check_unpacking,
    differences,
    in_flops,
    in_metrics_of,
    matched,
)
from costproof.compare.diff.parts import Parts, parts_of
from costproof.compare.diff.types import (
    CODE,
    FORMULAS,
    IMPLEMENTATION,
    LIBRARIES,
    UNNAMED,
    Changes,
    Diff,
    Quantity,
    Side,
    SourceDiff,
    StageDiff,
)
from costproof.ledger.baseline import PEAK_SOURCE, Baseline, Folded
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import (
    COMM,
    EVERY_METRIC,
    KEPT,
    KEPT_FLOPS,
    METRICS,
    PEAK_METRICS,
    TRAFFIC,
    UNFUSED,
    Metric,
)
from costproof.ledger.plural import plural
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.workload import counted_line, quantised_clause, unknown_bytes

StageMetric = tuple[str, Metric]
"""(stage, metric); an empty stage means all stages."""
NOTHING: Final = Folded((), (), {})
_PER_CALL: Final = ("flops", *KEPT, "vector_flops", *TRAFFIC, UNFUSED)
_AFFECTED: Final[Mapping[str, tuple[Metric, ...]]] = {
    "unit": ("flops", KEPT_FLOPS, "vector_flops"),  # FLOPs of MACs are known: two each
    "causal": ("flops", "vector_flops"),
    "window_padding": _PER_CALL,
    "vector": ("vector_flops",),
    "activations": ("input_bytes", "output_bytes", "kv_read_bytes", UNFUSED),
}
"""Metrics whose meaning depends on a convention, by convention."""


@dataclass(frozen=True, slots=True)
class Levers:
    """Formulas that can be evaluated with any changes of the head applied to the base."""

    keys: tuple[str, ...]
    """Names of the changes that can be applied separately, or one joint name if they can only change together."""
    point: Point[StageMetric]
    """Function that returns the formulas' totals when a given set of changes is applied to the base."""
    implementation: bool
    """Whether the attention or expert kernels also changed."""
    one_sided: Parts | None = None
    """Parts that only one of two model families has, which :attr:`point` omits."""


def diff(base: Baseline, head: Baseline, levers: Levers | None = None) -> Diff:
    """Compare two sides, and attribute each cost difference to the changes between them.

    Args:
        levers: ``None`` if no formulas describe mixtures of the sides; then a difference has one term for all changes
            together.

    Raises:
        Incomplete: the two have no source in common.
    """
    base, head = in_flops(base), in_flops(head)
    base, head = in_metrics_of(base, head), in_metrics_of(head, base)
    check_unpacking(base, head)
    changed = differences(base, head)
    both = [s for s in dict.fromkeys((*ALL_SOURCES, *base.sources)) if s in base.sources and s in head.sources]
    sources = [s for s in both if s in ALL_SOURCES] or both
    # Peaks accompany the counting sources and never come before one.
    sources += [PEAK_SOURCE] if PEAK_SOURCE in both and PEAK_SOURCE not in sources else []
    if not sources:
        raise Incomplete(
            "the two sides have no source in common",
            where=f"{base.name}, {head.name}",
            got=f"{', '.join(base.sources)} and {', '.join(head.sources)}",
            fix="count both with the same sources",
        )
    between = _Between(base, head, changed, levers)
    if between.reproduces(base, head):
        # The same code made both sides, so differences between their formulas follow from the keys.
        between.changed = changed = replace(changed, formulas=Changes())
    found = {s: _source(base, head, s, between) for s in sources}
    first = next((s for s, part in found.items() if part.rows), sources[0])
    others = [s for s in found if s != first]
    apart = {s: not_comparable(base, head, s) for s in found}
    one_sided = silences(base, head, sources)
    silent = () if changed.implementation.changed else tuple(one_sided.values())
    hidden = {(s, m): f"{m}: {why}" for s, found_ in apart.items() for m, why in found_.items()}
    incomplete = list(dict.fromkeys(why for place, why in hidden.items() if _counts(place, one_sided, silent)))
    for source, part in found.items():
        unknown = [r for r in part.rows if r.delta is None]
        if unknown:
            more = f" and {plural(len(unknown) - 1, 'more row')}" if len(unknown) > 1 else ""
            incomplete.append(f"the {source} source does not know {unknown[0].metric} of {unknown[0].id}{more}")
    for name, side in (("base", base), ("head", head)):
        told = {m for folded in side.sources.values() for m in folded.metrics}
        if told & unknown_bytes(side.target, side.workload):
            incomplete.append(f"{name}: {quantised_clause(side.target, side.workload)}")
    return Diff(
        base=side_of(base),
        head=side_of(head),
        config=changed.config,
        workload=changed.workload,
        modules=Changes(parts.changes if (parts := between.changed_parts) else ()),
        implementation=changed.implementation,
        libraries=changed.libraries,
        formulas=changed.formulas,
        conventions=changed.conventions,
        players=between.players,
        source=first,
        totals=found[first].totals,
        stages=found[first].stages,
        rows=found[first].rows,
        same_rows=found[first].same_rows,
        others={s: found[s] for s in others},
        not_comparable=apart[first] | _one_sided_peaks(base, head),
        incomplete=tuple(incomplete),
        complete=not incomplete,
        silent=silent,
    )


def silences(base: Baseline, head: Baseline, sources: Iterable[str]) -> dict[tuple[str, Metric], str]:
    """Return a sentence for each metric that a source has on one side only, by (source, metric).

    Args:
        sources: sources that both sides have.
    """
    found = {}
    for source in sources:
        sides = [side.sources[source].metrics for side in (base, head)]
        for metric in (m for m in METRICS if (m in sides[0]) != (m in sides[1]) and not METRICS[m].optional):
            gave, not_ = ("base", "head") if metric in sides[0] else ("head", "base")
            found[source, metric] = f"{source} gives {metric} in the {gave} and not in the {not_}"
    return found


def _counts(place: tuple[str, Metric], one_sided: Container[tuple[str, Metric]], silent: Sized) -> bool:
    """Return whether a metric that only one side has makes the diff incomplete.

    Communication does although it is optional: every mesh has it, and one device has zeros in its place.
    """
    optional = EVERY_METRIC[place[1]].optional and place[1] not in COMM
    return not optional and (not silent or place not in one_sided)


def side_of(side: Baseline) -> Side:
    target, workload = side.target, side.workload
    sources = tuple(side.sources)
    return Side(
        target.title,
        target.implementation,
        workload.name,
        workload.what,
        target.config_hash,
        sources,
        side.environment,
        counted_line(target, workload),
        side.notes,
    )


def not_comparable(base: Baseline, head: Baseline, source: str) -> dict[Metric, str]:
    """Return the reasons why metrics of a source cannot be compared between the sides, by metric.

    Args:
        base: converted to FLOPs by :func:`~costproof.compare.diff.changes.in_flops`.
        head: likewise.
    """
    sides = [b.sources[source] for b in (base, head)]
    found: dict[Metric, str] = {}
    for name, metrics in _AFFECTED.items():
        own = [b.sources[source].conventions.get(name, getattr(b.conventions, name)) for b in (base, head)]
        if own[0] == own[1]:
            continue
        alike = name == "unit" and {*own} == {MAC, "flop"}
        why = f"{name} is {own[0]} in the base, {own[1]} in the head"
        found |= dict.fromkeys((m for m in metrics if not (alike and m == "flops")), why)
    for metric in EVERY_METRIC:
        has = [metric in side.metrics for side in sides]
        if has[0] != has[1]:
            found[metric] = f"the {'head' if has[0] else 'base'} does not have it"
    return {m: found[m] for m in EVERY_METRIC if m in found and any(m in side.metrics for side in sides)}


def _one_sided_peaks(base: Baseline, head: Baseline) -> dict[Metric, str]:
    """Return the reason why peak metrics are not compared, by metric; this leaves the comparison complete."""
    has = [PEAK_SOURCE in side.sources for side in (base, head)]
    why = f"the {'head' if has[0] else 'base'} has none"
    return dict.fromkeys(PEAK_METRICS, why) if has[0] != has[1] else {}


def _source(base: Baseline, head: Baseline, source: str, between: _Between) -> SourceDiff:
    old, new = base.sources[source], head.sources[source]
    hidden = not_comparable(base, head, source)
    metrics = [m for m in EVERY_METRIC if m in old.metrics and m in new.metrics and m not in hidden]
    rows, same = matched(old, new, metrics)
    stages = list(dict.fromkeys((*new.stages, *old.stages)))
    totals = {m: between.quantity(("", m), old, new) for m in metrics}
    found = []
    for stage in stages:
        there = [stage in side.stages for side in (old, new)]
        numbers = {m: between.quantity((stage, m), old, new) for m in metrics}
        fate = "added" if not there[0] else "removed" if not there[1] else "changed"
        if fate == "changed" and not any(r.stage == stage for r in rows):
            fate = "same"
        found.append(StageDiff(stage, fate, numbers))  # type: ignore[arg-type]
    return SourceDiff(totals, tuple(found), rows, same)


def _of(side: Folded, metric: Metric, stage: str) -> int | None:
    """Return a metric of one side, summed over a stage; 0 if the side lacks the stage."""
    return side.total(metric, stage or None) if stage in ("", *side.stages) else 0


class _Between:
    """Attributes the cost differences between base and head to the changes between them."""

    def __init__(self, base: Baseline, head: Baseline, changed: Differences, levers: Levers | None) -> None:
        self.changed = changed
        self.why_not = ""
        self.parts = parts_of(base, head, self._inputs(), self._model(base, head))
        if self.parts is not None and len(changed.keys) == 1 == len(changed.config.changed):
            # A single key is more informative than the shapes that follow from it. A number of layers may have no key.
            self.parts = None if all(fate == "other" for fate in self.parts.fates.values()) else self.parts
        self.found: Attribution[StageMetric] | None = None
        self.kernels: Mapping[StageMetric, int | None] = {}
        self.start: Mapping[StageMetric, int | None] = {}
        self.end: Mapping[StageMetric, int | None] = {}
        self.one_sided = levers.one_sided if levers is not None else None
        if levers is not None:
            try:
                self._split(levers)
            except BadInput as error:  # a side of another version that our formulas reject
                self.why_not = error.line

    def _inputs(self) -> tuple[str, ...]:
        """Return the names of changes to the run, not the model: workload, libraries, kernels."""
        kernels = [c for c in self.changed.implementation.changed if c.key != "classes"]
        kinds = ((LIBRARIES, self.changed.libraries.changed), (IMPLEMENTATION, kernels))
        return (*(p.name for p in self._joined(self.changed.workload)), *(name for name, found in kinds if found))

    def _model(self, base: Baseline, head: Baseline) -> tuple[str, ...]:
        """Return the names of changes to the model other than its modules: configuration keys, or else its code."""
        keys = tuple(p.name for p in self._joined(self.changed.config))
        return keys or ((CODE,) if base.target.config_hash != head.target.config_hash else ())

    def _joined(self, *kinds: Changes) -> tuple[Player, ...]:
        """Return the changed keys of some kinds as a single joint change; empty without changes."""
        keys = tuple(c.key for changes in kinds for c in changes.changed)
        why = self.why_not or ("no formulas describe what lies between" if len(keys) > 1 else "")
        return (Player(" + ".join(keys), keys, why),) if keys else ()

    def _split(self, levers: Levers) -> None:
        point, keys = levers.point, levers.keys
        self.start = point(frozenset())
        before: frozenset[str] = frozenset()
        if levers.implementation:
            try:
                self.kernels = point(frozenset({IMPLEMENTATION}))
                before = frozenset({IMPLEMENTATION})
            except BadInput:  # the base cannot run with the head's kernels: treat them as a key
                keys = (*keys, IMPLEMENTATION)
        self.found = attribute(keys, lambda changed: point(changed | before))
        self.end = point(before | frozenset(keys))

    def reproduces(self, base: Baseline, head: Baseline) -> bool:
        """Return whether the formulas of this version reproduce the numbers of both sides."""
        sides = ((base, self.start), (head, self.end))
        return all(
            values
            and FORMULA_SOURCE in side.sources
            and all(self._common(side.sources[FORMULA_SOURCE], place) == v for place, v in values.items())
            for side, values in sides
        )

    def _common(self, side: Folded, place: StageMetric) -> int | None:
        """Return a metric of one side, summed without the parts that only one of the two model families has."""
        stage, metric = place
        whole = side.total(metric, stage or None)
        own = self.one_sided.terms(stage, metric, NOTHING, side) if self.one_sided else {}
        return None if whole is None or own is None else whole - sum(own.values())

    @property
    def players(self) -> tuple[Player, ...]:
        """Return the changed keys and model parts to which differences are attributed."""
        parts = self.changed_parts
        return (*self._keys, *(Player(name, (name,)) for name in (parts.names if parts else ())))

    @property
    def _keys(self) -> tuple[Player, ...]:
        """Return the changed configuration keys and settings to which differences are attributed."""
        if self.found is not None:
            return self.found.players
        kinds = (self.changed.config, self.changed.workload)
        return self._joined(*kinds) if self.parts is None else tuple(p for kind in kinds for p in self._joined(kind))

    @property
    def changed_parts(self) -> Parts | None:
        """Return the model parts that changed, or those that only one of two model families has."""
        return self.parts or self.one_sided

    def quantity(self, place: StageMetric, old: Folded, new: Folded) -> Quantity:
        """Return a cost in base and head, with the difference attributed to changes."""
        stage, metric = place
        base, head = (_of(side, metric, stage) for side in (old, new))
        if base is None or head is None:
            return Quantity(base, head, None)
        split = Split()
        if head != base:
            by_part = self.parts.terms(stage, metric, old, new) if self.parts else None
            own = (self.one_sided.terms(stage, metric, old, new) if self.one_sided else None) or {}
            split = self._of(place, head - base, own) if by_part is None else _split_of(by_part)
        return Quantity(base, head, head - base, split.terms, split.shares)

    def _of(self, place: StageMetric, delta: int, own: Mapping[tuple[str, ...], int]) -> Split:
        """Return the difference attributed by the formulas, with a term for the remainder that no key explains.

        Args:
            own: terms of the parts that only one of two families has.
        """
        split = Split() if self.found is None else self.found.splits.get(place, Split())
        start, end, kernels = (x.get(place, 0) for x in (self.start, self.end, self.kernels or self.start))
        known = self.found is not None and None not in (start, end, kernels)
        by_part = _split_of(own)
        terms, shares = [*split.terms, *by_part.terms], {**split.shares, **by_part.shares}
        if known and self.kernels and (amount := (kernels or 0) - (start or 0)):
            terms.append(Term((IMPLEMENTATION,), amount))
            shares[IMPLEMENTATION] = amount
        rest = delta - sum(t.amount for t in terms)
        if rest:
            names = self._causes(keys=self.found is None)
            terms.append(Term(names, rest))
            name = " + ".join(names)
            shares[name] = shares.get(name, 0) + rest
        return Split(tuple(terms), shares)

    def _causes(self, *, keys: bool) -> tuple[str, ...]:
        """Return the possible origins of a remainder that no key explains, in a fixed order."""
        kinds = (
            (LIBRARIES, self.changed.libraries.changed),
            (IMPLEMENTATION, [c for c in self.changed.implementation.changed if keys or c.key == "classes"]),
            (FORMULAS, self.changed.formulas.changed),
        )
        named = [p.name for p in self._keys] if keys else []
        return (*named, *(name for name, changes in kinds if changes)) or (UNNAMED,)


def _split_of(amounts: Mapping[tuple[str, ...], int]) -> Split:
    """Return an attribution in which each set of names has a given amount as its term and as its share."""
    terms = tuple(Term(names, amount) for names, amount in amounts.items())
    return Split(terms, {" + ".join(names): amount for names, amount in amounts.items()})


def adds_up(found: Diff) -> Iterable[str]:
    """Return a description of each term, share or row that does not sum to its total; empty unless there is a bug."""
    for source, part in found.by_source.items():
        for stage, numbers in (("", part.totals), *((s.id, s.totals) for s in part.stages)):
            for metric, q in numbers.items():
                sums = [sum(t.amount for t in q.terms), sum(q.shares.values())]
                if q.delta is not None and sums != [q.delta, q.delta]:
                    yield f"{source} {stage or 'total'} {metric}: {sums}, not {q.delta}"
                rows: Sequence[int | None] = [r.delta for r in part.rows if (r.stage, r.metric) == (stage, metric)]
                if stage and q.delta is not None and sum(r or 0 for r in rows) != q.delta:
                    yield f"{source} {stage} {metric}: rows add up to {sum(r or 0 for r in rows)}, not {q.delta}"
