"""Check a head's costs against base and policy; unknown, missing or differently counted numbers never pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

from costproof.compare.diff.changes import (
    FORMULA_SOURCE,
    OF_THE_WORKLOAD,
    WORKLOAD,
    Differences,
    check_unpacking,
    differences,
    in_flops,
    in_metrics_of,
)
from costproof.compare.diff.diff import not_comparable, side_of, silences
from costproof.compare.diff.types import Change
from costproof.compare.gate.policy import WILD, Allowance, Limit, Policy, PolicyPlace
from costproof.compare.gate.types import AllowanceUse, Check, CheckStatus, Gate, State
from costproof.ledger.baseline import Baseline, BaselineRow, Folded
from costproof.ledger.environment import COUNTING, FORMULAS, RULES
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.metrics import OF_BOUNDS, PROVEN, STAGE_WIDE, Metric
from costproof.ledger.node import exact_sum
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.workload import ConfigValue, quantised_clause, unknown_bytes

_LET: Final = "inputs: any in the policy lets them be"
_BUILD: Final = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
"""Matches the suffix of a torch version that names the build's device (``+cu128``), which changes no count."""
_MOST: Final = 6
"""Maximum number of changes that a reason lists."""


def judge(base: Baseline, head: Baseline, policy: Policy, today: date) -> Gate:
    """Check the costs of the head against the limits of a policy relative to the base.

    Args:
        today: date on which allowances must not have expired.

    Raises:
        Problems: the policy names stages or roles that neither side has.
    """
    base, head = in_flops(base), in_flops(head)
    base, head = in_metrics_of(base, head), in_metrics_of(head, base)
    check_unpacking(base, head)
    changed = differences(base, head)
    sources = policy.sources or tuple(s for s in ALL_SOURCES if s in base.sources) or tuple(base.sources)
    incomplete = [*_gaps(base, head, changed, policy, sources)]
    both = [s for s in sources if s in base.sources and s in head.sources]
    pairs = []
    for s in both:
        sides = [_Of(side.sources[s], side.target.stages, tuple(side.sources[s].items())) for side in (base, head)]
        pairs.append(_Pair(s, sides[0], sides[1], not_comparable(base, head, s)))
    problems = [*_nowhere(policy, pairs)] if pairs else []
    if problems:
        raise Problems(f"the policy {policy.file} does not fit what is compared", problems)
    checks: list[Check] = []
    live, gone = ([a for a in policy.allowed if (a.until < today) is over] for over in (False, True))
    credit = {
        p.source: (Credits(live, p.base.value, p.head.value), Credits(gone, p.base.value, p.head.value)) for p in pairs
    }
    for limit in policy.limits:
        giving = [p for p in pairs if any(limit.place.metric in side.folded.metrics for side in p.sides)]
        if not giving and pairs:
            incomplete.append(f"no source gives {limit.place.metric}")
        before = len(checks)
        for pair in giving:
            for place in pair.places(limit.place):
                checks += _checks(pair, limit, place, *credit[pair.source])
        if giving and len(checks) == before:
            incomplete.append(f"the limit in line {limit.place.line} checks nothing: {limit.place} is nowhere")
        if policy.inputs == "same" and (role := limit.place.role) and any(pair.lost(limit.place) for pair in giving):
            incomplete.append(f"the head has no {role}, which the limit in line {limit.place.line} is about")
    for name, of in (("base", base), ("head", head)):
        if unknown_bytes(of.target, of.workload) & {c.metric for c in checks}:
            incomplete.append(f"{name}: {quantised_clause(of.target, of.workload)}")
    used = {line for c in checks for line in c.allowed_by}
    statuses = {c.status for c in checks}
    same_work = policy.inputs == "same" or not (changed.workload.changed or changed.implementation.changed)
    silent = tuple(silences(base, head, both).values()) if same_work else ()
    if same_work:
        silent += tuple(text for source in both for text in _lost(base, head, source))
    verdict: Literal["passed", "over", "incomplete"] = "over" if silent else "passed"
    if "over" in statuses:
        verdict = "over"
    elif incomplete or "unknown" in statuses:
        verdict = "incomplete"
    return Gate(
        base=side_of(base),
        head=side_of(head),
        policy=policy.file,
        verdict=verdict,
        checks=tuple(checks),
        allowances=tuple(_use(a, today, used) for a in policy.allowed),
        config=changed.config,
        workload=changed.workload,
        incomplete=tuple(incomplete),
        silent=silent,
    )


def _gaps(
    base: Baseline, head: Baseline, changed: Differences, policy: Policy, sources: Sequence[str]
) -> Iterator[str]:
    """Yield the reasons why base and head cannot be compared under the policy."""
    if not sources:
        yield "the base has no source"
    both = [s for s in sources if s in base.sources and s in head.sources]
    way = f" (sources: [{', '.join(both)}] in the policy decides by what both have)" if both else ""
    for side, found in (("base", base), ("head", head)):
        if missing := [s for s in sources if s not in found.sources]:
            yield f"the {side} has no {' and no '.join(missing)} source{way}"
        for source in (s for s in sources if s in found.sources):
            folded = found.sources[source]
            if not folded.stages:
                yield f"the {source} source of the {side} counts no stage"
            for stage in (s for s in folded.stages if not any(folded.rows.get(s, {}).values())):
                yield f"the {source} source of the {side} counts nothing in {stage}"
    if policy.inputs == "same":
        yield from _other_work(base, head, changed, both)
    if policy.versions == "same" and (other := [*_other_versions(changed, sources)]):
        let = "versions: any in the policy lets them be"
        yield f"base and head are counted by different versions ({_listed(other)}); {let}"


def _other_work(base: Baseline, head: Baseline, changed: Differences, sources: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why base and head do not run the same workload of the same model."""
    if base.target.name != head.target.name:
        yield f"the base is of {base.target.name}, the head of {head.target.name}"
    for side, cut, other in (("base", base.target.cut, head.target.cut), ("head", head.target.cut, base.target.cut)):
        if cut and cut != other:
            yield f"the {side} is a part of its model: {', '.join(f'{k} {v}' for k, v in sorted(cut.items()))}"
    for stage in base.target.stages:
        if base.target.name == head.target.name and stage not in head.target.stages:
            yield f"the head has no stage {stage}"
    if changed.workload.changed:
        yield f"base and head are of different workloads ({_listed(changed.workload.changed)}); {_LET}"
    if changed.implementation.changed:
        yield f"base and head are of different implementations ({_listed(changed.implementation.changed)}); {_LET}"
    if not changed.workload.changed and not changed.implementation.changed:
        # Differences that follow from neither were counted differently under the same name.
        conventions = [*dict.fromkeys(c for s in sources for c in _other_conventions(base, head, s))]
        if conventions:
            yield f"base and head have different conventions ({_listed(conventions)}); {_LET}"


def _lost(base: Baseline, head: Baseline, source: str) -> Iterator[str]:
    """Yield metrics, model parts and time bounds that only the base counts, whose loss would look like a saving.

    Metrics are those that verdicts require; of formulas of one configuration all metrics and parts. Stages are those of
    both sides.
    """
    if base.sources[source].bounds and not head.sources[source].bounds:
        yield f"{source} gives metrics of time bounds in the base and not in the head"
    same = (base.target.config, base.target.config_hash) == (head.target.config, head.target.config_hash)
    by_formulas = source == FORMULA_SOURCE and same and base.target.config is not None
    old, new = base.sources[source], head.sources[source]
    for stage in (s for s in old.stages if s in new.stages):
        counted = [
            {
                m
                for kinds in side.rows.get(stage, {}).values()
                for costs in kinds.values()
                for m in costs
                if costs[m] != 0
            }
            for side in (old, new)
        ]
        for metric in sorted(counted[0] - counted[1]):
            given = metric in new.metrics or (metric in OF_BOUNDS and new.bounds)
            if given and (by_formulas or metric in PROVEN):
                yield f"{source} counts {metric} in {stage} of the base and none in the head"
        for part in sorted(new.rows.get(stage, {}).keys() ^ old.rows.get(stage, {}).keys()) if by_formulas else ():
            without = "head" if part in old.rows.get(stage, {}) else "base"
            yield f"{source} has no {part} in {stage} of the {without}; the configurations are equal"


def _other_conventions(base: Baseline, head: Baseline, source: str) -> Iterator[Change]:
    own = [{**asdict(side.conventions), **side.sources[source].conventions} for side in (base, head)]
    yield from (Change(name, own[0][name], own[1][name]) for name in OF_THE_WORKLOAD if own[0][name] != own[1][name])


def _other_versions(changed: Differences, sources: Sequence[str]) -> Iterator[Change]:
    """Yield the changed package versions that may have changed numbers of these sources."""
    graphs = any(s != FORMULA_SOURCE for s in sources)
    every = (*changed.formulas.changed, *(changed.libraries.changed if graphs else ()))
    for change in every:
        base, head = (_BUILD.sub("", str(version)) for version in (change.base, change.head))
        if change.key == "costproof" or (graphs and change.key in {*COUNTING, RULES} - {*FORMULAS} and base != head):
            yield change


def _listed(changes: Sequence[Change]) -> str:
    shown = [f"{c.key.removeprefix(WORKLOAD)}: {_plain(c.base)} → {_plain(c.head)}" for c in changes[:_MOST]]
    return ", ".join(shown) + (f", and {more} more" if (more := len(changes) - _MOST) > 0 else "")


def _plain(value: ConfigValue) -> str:
    return "none" if value is None else "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _use(allowance: Allowance, today: date, used: set[int]) -> AllowanceUse:
    place = allowance.place
    state: State = "expired" if allowance.until < today else "used" if place.line in used else "unused"
    until = allowance.until.isoformat()
    return AllowanceUse(str(place), allowance.increase.text, allowance.reason, until, state, place.line)


@dataclass(frozen=True, slots=True)
class _Of:
    """The numbers of one source on one side, base or head."""

    folded: Folded
    stages: tuple[str, ...]
    """All stages of the side, including those that the source does not count."""
    rows: tuple[tuple[BaselineRow, int | None], ...]

    def value(self, place: PolicyPlace) -> int | None:
        """Return the cost of a place; 0 without such a stage or role, ``None`` if the source does not count it."""
        wanted = [place.stage] if place.stage else self.stages
        if place.metric not in self.folded.metrics or any(s in self.stages for s in {*wanted} - {*self.folded.stages}):
            return None
        if not place.role:
            return self.folded.total(place.metric, place.stage or None) if place.stage in ("", *self.stages) else 0
        return exact_sum(
            value
            for row, value in self.rows
            if row.metric == place.metric
            and place.stage in ("", row.stage)
            and (row.part == place.role or (not place.alone and row.part.startswith(f"{place.role}.")))
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The numbers of one source in base and head."""

    source: str
    base: _Of
    head: _Of
    apart: dict[Metric, str]
    """Reasons why metrics cannot be compared, as the sides count them differently, by metric."""

    @property
    def sides(self) -> tuple[_Of, _Of]:
        return self.base, self.head

    def stages(self) -> list[str]:
        return list(dict.fromkeys((*self.head.stages, *self.base.stages)))

    def parts(self, stage: str, metric: Metric | None = None) -> set[str]:
        """Return the roles that have a value of a metric (default: any) in a stage (empty: all stages)."""
        rows = (row for side in self.sides for row, _ in side.rows)
        return {row.part for row in rows if metric in (None, row.metric) and stage in ("", row.stage)}

    def lost(self, place: PolicyPlace) -> bool:
        """Return whether only the base has a role, as a renamed role would otherwise evade its limits."""
        base, head = ({r.part for r, _ in s.rows if fnmatchcase(r.stage, place.stage or "*")} for s in self.sides)
        inside = [{p for p in parts if f"{p}.".startswith(f"{place.role}.")} for parts in (base, head)]
        return bool(inside[0]) and not inside[1]

    def places(self, wanted: PolicyPlace) -> Iterator[PolicyPlace]:
        """Yield the places that match a place with a pattern in the policy."""
        stages = [s for s in self.stages() if fnmatchcase(s, wanted.stage)] if wanted.stage else [""]
        for stage in stages:
            if any(c in wanted.role for c in WILD):
                parts = sorted(p for p in self.parts(stage, wanted.metric) if fnmatchcase(p, wanted.role))
                yield from (replace(wanted, stage=stage, role=part, alone=True) for part in parts)
            else:
                yield replace(wanted, stage=stage)


class _Said(NamedTuple):
    """Outcome of a check: its status, the reason, and the allowances that apply."""

    status: CheckStatus
    why: str = ""
    allowed_by: tuple[int, ...] = ()


def _checks(pair: _Pair, limit: Limit, place: PolicyPlace, credit: Credits, gone: Credits) -> Iterator[Check]:
    """Yield the checks of a limit at one place: first of its increase, then of its budget.

    Args:
        credit: allowances that have not expired.
        gone: allowances that have expired.
    """
    base, head = (side.value(place) for side in pair.sides)
    delta = None if base is None or head is None else head - base

    def check(limit: str, most: int | None, said: _Said) -> Check:
        where = (place.metric, place.stage, place.role, pair.source)
        return Check(*where, base, head, delta, limit, most, said.status, said.why, place.line, said.allowed_by)

    silent = [name for name, value in (("head", head), ("base", base)) if value is None]
    if limit.increase is not None:
        most = None if base is None else base + limit.increase.of(base)
        if place.metric in pair.apart:
            said = _Said("unknown", pair.apart[place.metric])
        elif head is None or most is None:
            said = _Said("unknown", f"the {silent[0]} does not tell it")
        else:
            said = _Said("passed") if head <= most else _allowed(place, head - most, credit, gone)
        yield check(f"increase {limit.increase.text}", most, said)
    if limit.budget is not None:
        said = _Said("unknown", "the head does not tell it")
        if place.metric in pair.apart and place.metric in pair.base.folded.metrics:
            said = _Said("unknown", pair.apart[place.metric])
        elif head is not None:
            said = _Said("passed" if head <= limit.budget else "over")
        yield check(f"budget {limit.budget:,}", limit.budget, said)


def _allowed(place: PolicyPlace, over: int, credit: Credits, gone: Credits) -> _Said:
    """Check whether allowances cover the ``over`` units above a limit, and describe those that apply."""
    spent = credit.cover(place, over)
    live = credit.about(place) if spent is None else spent
    told = []
    for a in live:
        elsewhere = credit.elsewhere(place, a) if spent is None else 0
        more = f", of which {elsewhere:,} are spent elsewhere" if elsewhere else ""
        told.append(f"an allowance of {a.increase.text} until {a.until} ({a.reason}){more}")
    if spent is None:
        told += [f"an allowance of {a.increase.text} ran out on {a.until} ({a.reason})" for a in gone.about(place)]
    return _Said("over" if spent is None else "allowed", "; ".join(told), tuple(a.place.line for a in live))


def _nowhere(policy: Policy, pairs: Sequence[_Pair]) -> Iterator[CostproofError]:
    """Yield an error for each stage or role in the policy that neither side has in any source."""
    stages = list(dict.fromkeys(s for p in pairs for s in p.stages()))
    for place in (*(x.place for x in policy.limits), *(x.place for x in policy.allowed)):
        where = f"{policy.file}, line {place.line}"
        if place.stage and not any(fnmatchcase(s, place.stage) for s in stages):
            fix = did_you_mean(place.stage, stages)
            yield BadInput(
                "no such stage", where=where, expected="one of " + ", ".join(stages), got=place.stage, fix=fix
            )
        elif place.role:
            inside = [s for s in stages if fnmatchcase(s, place.stage)] if place.stage else [""]
            parts = {part for p in pairs for s in inside for part in p.parts(s)}
            known = {*parts, *(part[:i] for part in parts for i, c in enumerate(part) if c == ".")}
            if not any(fnmatchcase(part, place.role) for part in known):
                fix = did_you_mean(place.role, known)
                yield BadInput("no such role", where=where, expected="a role of the model", got=place.role, fix=fix)


@dataclass(slots=True)
class Credits:
    """Ledger of a policy's allowances, which tracks how much of each is used by the numbers of one source.

    Disjoint places share one allowance: the stages, and the places that a limit with a pattern expands to. Nested
    places, and separate limits on roles, concern the same increase, so each of them can use the whole allowance.
    """

    allowed: Sequence[Allowance]
    """Allowances that have not expired."""
    base: Callable[[PolicyPlace], int | None]
    head: Callable[[PolicyPlace], int | None]
    spent: dict[Any, dict[PolicyPlace, dict[int, int]]] = field(default_factory=dict)
    """Used units, by group of places that share allowances, by place, and by index of the allowance."""

    def cover(self, place: PolicyPlace, over: int) -> tuple[Allowance, ...] | None:
        """Use allowances for the units by which a place exceeds a limit.

        Returns:
            the allowances used; ``None`` if they do not suffice, in which case nothing is spent.
        """
        shared = self.spent.setdefault(_group(place), {})
        here = _itself(place)
        mine = dict(shared.get(here, {}))
        for number, allowance in self._narrowest_first():
            rest = over - sum(mine.values())
            if rest <= 0:
                break
            left = self.amount(allowance) - self.elsewhere(place, allowance)
            known = mine.get(number, 0)
            mine[number] = max(known, min(known + rest, left, self._happened(number, here, mine)))
        if sum(mine.values()) < over:
            return None
        shared[here] = mine
        return tuple(self.allowed[number] for number, units in sorted(mine.items()) if units > 0)

    def about(self, place: PolicyPlace) -> tuple[Allowance, ...]:
        """Return the allowances that apply to a place, whether they suffice or not."""
        return tuple(a for i, a in enumerate(self.allowed) if self.amount(a) and self._happened(i, place, {}) > 0)

    def elsewhere(self, place: PolicyPlace, allowance: Allowance) -> int:
        """Return the units of an allowance that other places of the same group have used."""
        number, shared = self.allowed.index(allowance), self.spent.get(_group(place), {})
        return sum(units.get(number, 0) for where, units in shared.items() if where != _itself(place))

    def amount(self, allowance: Allowance) -> int:
        """Return the size of an allowance in units; 0 if its place has no number in the base."""
        whole = self.base(allowance.place)
        return 0 if whole is None else allowance.increase.of(whole)

    def _narrowest_first(self) -> list[tuple[int, Allowance]]:
        # Allowances that only one place can use are spent before those that others can use too.
        return sorted(enumerate(self.allowed), key=lambda p: (-bool(p[1].place.stage), -len(p[1].place.role), p[0]))

    def _happened(self, number: int, place: PolicyPlace, mine: dict[int, int]) -> int:
        """Return the cost growth where an allowance and a place overlap, minus units of other allowances used there."""
        where = meeting(self.allowed[number].place, place)
        if where is None:
            return 0
        base, head = self.base(where), self.head(where)
        if base is None or head is None:
            return 0
        others = sum(
            units for other, units in mine.items() if other != number and meeting(self.allowed[other].place, where)
        )
        return max(0, head - base - others)


def meeting(one: PolicyPlace, other: PolicyPlace) -> PolicyPlace | None:
    """Return the intersection of two places, such as a role within a stage; ``None`` if they are disjoint."""
    stages, roles = {one.stage, other.stage} - {""}, {one.role, other.role} - {""}
    inner = max(roles, key=len, default="")
    if (
        one.metric != other.metric
        or len(stages) > 1
        or any(inner != role and not inner.startswith(f"{role}.") for role in roles)
        or any(p.alone and inner != p.role for p in (one, other))
    ):
        return None
    return replace(other, stage="".join(stages), role=inner, alone=one.alone or other.alone)


def _itself(place: PolicyPlace) -> PolicyPlace:
    """Return the place without its line in the policy file, so that equal places compare equal."""
    return replace(place, line=0)


def _group(place: PolicyPlace) -> tuple[object, ...]:
    """Return a key that is equal for disjoint places that share allowances."""
    if not place.stage and not place.role:
        return (place.metric,)
    # A module that works in two stages has its parameters in both.
    stage = place.stage if place.metric in STAGE_WIDE else ""
    return (place.metric, stage, place.line if place.role else -1)
