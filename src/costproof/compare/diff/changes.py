"""Find the differences between two sides of a diff: inputs, versions, conventions, and rows of costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from costproof.compare.diff.types import Change, Changes, RowDiff
from costproof.ledger.baseline import Baseline, BaselineRow, Folded
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.metrics import COMM, KEPT_FLOPS, OF_QUANTISED, Metric
from costproof.ledger.workload import ConfigValue, Workload

WORKLOAD: Final = "workload."
INPUTS: Final = "inputs."
FORMULA_SOURCE: Final = "analytic"
_KERNELS: Final = ("attention", "experts")
_NO_SETTINGS: Final = (*_KERNELS, "name", "inputs", "what", "arguments")
SETTINGS: Final = tuple(f.name for f in fields(Workload) if f.name not in _NO_SETTINGS)
"""Names of the settings that every workload has, besides the inputs that a target defines."""
OF_THE_WORKLOAD: Final = ("attention", "dtype", "expert_kernel", "logits", "mla")
"""Conventions that follow from a workload or an implementation."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The changes between two sides by kind; only the first two kinds are inputs that formulas can vary."""

    config: Changes
    workload: Changes
    conventions: Changes
    libraries: Changes
    implementation: Changes
    formulas: Changes

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the inputs that changed."""
        return tuple(c.key for c in (*self.config.changed, *self.workload.changed))


def differences(base: Baseline, head: Baseline) -> Differences:
    """Return the differences between the two sides."""
    versions = [dict(side.environment) for side in (base, head)]
    own = [{"costproof": v.pop("costproof", None)} for v in versions]
    formulas = [
        side.sources[FORMULA_SOURCE].formulas if FORMULA_SOURCE in side.sources else {} for side in (base, head)
    ]
    # A formula that only one side uses, or that describes other classes, has not changed.
    alike = base.target.implementation == head.target.implementation
    both = formulas[0].keys() & formulas[1].keys() if alike else frozenset[str]()
    targets = base.target, head.target
    # Without keys the sizes show the changes; in addition to keys they would repeat them.
    described = [t.config is not None for t in targets]
    alike_described = described[0] == described[1]
    keys = [(t.config if all(described) else t.symbols if alike_described else {}) or {} for t in targets]
    config = _changes(*keys)
    arguments = [_inputs(side.workload.arguments) if alike_described else {} for side in (base, head)]
    workload = _changes(*(settings(side) | given for side, given in zip((base, head), arguments, strict=True)))
    follow = bool(config.changed) and all(described)
    if not (workload.changed or follow):
        # The target may state its inputs only in its calls. The inputs of later stages follow from the keys.
        # Only formulas have symbols of their own for inputs.
        calls = (
            {n: c if alike_described else c.partition(" at ")[0] for n, c in s.calls.items()} for s in (base, head)
        )
        workload = _changes(*map(_inputs, calls))
    return Differences(
        config=config,
        workload=workload,
        conventions=_changes(_conventions(base), _conventions(head)),
        libraries=_changes(*versions),
        implementation=_changes(_implementation(base), _implementation(head)),
        formulas=_changes(*(o | {n: v for n, v in f.items() if n in both} for o, f in zip(own, formulas, strict=True))),
    )


def settings(side: Baseline) -> dict[str, ConfigValue]:
    """Return the settings of a side's workload by key, without the workload's name."""
    given = {name: getattr(side.workload, name) for name in SETTINGS} | dict(side.workload.inputs)
    return {f"{WORKLOAD}{name}": value for name, value in given.items()}


def _inputs(given: Mapping[str, str]) -> dict[str, ConfigValue]:
    return {f"{INPUTS}{name}": text for name, text in given.items()}


def _implementation(side: Baseline) -> dict[str, ConfigValue]:
    return {"classes": side.target.implementation, **{name: getattr(side.workload, name) for name in _KERNELS}}


def _conventions(side: Baseline) -> dict[str, ConfigValue]:
    return {name: value for name, value in asdict(side.conventions).items() if name not in OF_THE_WORKLOAD}


def _changes(base: Mapping[str, ConfigValue], head: Mapping[str, ConfigValue]) -> Changes:
    keys = [*base, *(k for k in head if k not in base)]
    pairs = ((key, base.get(key), head.get(key)) for key in keys)
    return Changes(tuple(Change(key, b, h) for key, b, h in pairs if (type(b), b) != (type(h), h)))


MAC: Final = "mac"


def unit_of(side: Baseline, source: str) -> str:
    """Return the unit in which a source of one side counts: FLOPs or multiply-accumulates."""
    return side.sources[source].conventions.get("unit", side.conventions.unit)


def in_flops(side: Baseline) -> Baseline:
    """Convert the counts of one side from multiply-accumulates to FLOPs, two for each; vector work is unchanged."""
    sources = {
        name: _doubled(folded) if unit_of(side, name) == MAC else folded for name, folded in side.sources.items()
    }
    return replace(side, sources=sources)


def in_metrics_of(side: Baseline, other: Baseline) -> Baseline:
    """Add to a side's sources the metrics that only the other side has, if their value here can only be 0.

    One device sends nothing, and weights that are not quantised need no unpacking.
    """
    zero = (*(COMM if side.workload.mesh.one else ()), *(() if "weights" in side.target.quantised else OF_QUANTISED))
    sources = dict(side.sources)
    for name in sources.keys() & other.sources.keys():
        more = tuple(m for m in zero if m in other.sources[name].metrics and m not in sources[name].metrics)
        sources[name] = replace(sources[name], metrics=(*sources[name].metrics, *more))
    return replace(side, sources=sources)


def check_unpacking(*sides: Baseline) -> None:
    """Check that a side whose weights are not quantised unpacks none, in any source.

    Raises:
        Bug: it does.
    """
    for side in sides:
        plain = all(key != "weights" for key in side.target.quantised)
        for name, folded in side.sources.items() if plain else ():
            for metric in OF_QUANTISED:
                sums = sum(value or 0 for row, value in folded.items() if row.metric == metric)
                check_recounts([Recount(side.target.name, name, metric, sums, 0)])


def _doubled(folded: Folded) -> Folded:
    rows = {
        stage: {
            part: {
                kind: {m: 2 * v if m in ("flops", KEPT_FLOPS) and v is not None else v for m, v in costs.items()}
                for kind, costs in kinds.items()
            }
            for part, kinds in parts.items()
        }
        for stage, parts in folded.rows.items()
    }
    return replace(folded, rows=rows)


_Rows = Mapping[BaselineRow, int | None]
_Place = tuple[str, str]
"""(stage, part of the model)."""


def matched(base: Folded, head: Folded, metrics: Iterable[Metric]) -> tuple[tuple[RowDiff, ...], int]:
    """Return the cost rows that differ between two sides, in stage order, and the number of equal rows.

    A row that one side lacks counts as 0 there, so that the rows of a stage sum to its difference. A removed and an
    added part have moved if all their rows are equal and no third part has the same rows.
    """
    wanted = frozenset(metrics)
    sides = [{row: value for row, value in side.items() if row.metric in wanted} for side in (base, head)]
    stages = list(dict.fromkeys((*head.stages, *base.stages)))
    order = {row: i for i, row in enumerate(dict.fromkeys((*sides[1], *sides[0])))}
    moved = _moved(*sides)
    found, same = [], 0
    for row in sorted(order, key=lambda row: (stages.index(row.stage), row.part, row.kind, order[row])):
        before, after = (side.get(row, 0) for side in sides)
        if before == after and before is not None:
            same += 1
            continue
        delta = None if before is None or after is None else after - before
        other = moved.get((row.stage, row.part), "")
        fate = "changed" if all(row in side for side in sides) else "added" if row in sides[1] else "removed"
        found.append(RowDiff(*row, before, after, delta, "moved" if other else fate, other))  # type: ignore[arg-type]
    return tuple(found), same


def _moved(base: _Rows, head: _Rows) -> dict[_Place, str]:
    """Return, as text, the new or old place of each place whose rows only moved, in both directions."""
    gone, new = _alone(base, head), _alone(head, base)
    found: dict[_Place, str] = {}
    for rows, places in new.items():
        if len(places) == 1 == len(gone.get(rows, ())):
            (here,), (there,) = places, gone[rows]
            found |= {here: "/".join(there), there: "/".join(here)}
    return found


def _alone(side: _Rows, other: _Rows) -> dict[frozenset[object], list[_Place]]:
    """Return the places that the other side lacks, grouped by their set of rows."""
    known = {(row.stage, row.part) for row in other}
    rows: dict[_Place, set[object]] = {}
    for row, value in side.items():
        if (row.stage, row.part) not in known:
            rows.setdefault((row.stage, row.part), set()).add((row.kind, row.metric, value))
    found: dict[frozenset[object], list[_Place]] = {}
    for place, its in rows.items():
        found.setdefault(frozenset(its), []).append(place)
    return found
