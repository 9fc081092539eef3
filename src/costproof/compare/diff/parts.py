"""Two models without formulas, compared by part: which modules are new, gone, repeated more often, or others.

Parts have paths with ``*`` for numbers. A part belongs to the outermost part around it that changed in the same way:
one more block is a change of ``blocks.*``, and all that is inside the block goes with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from costproof.compare.diff.types import UNNAMED, Change
from costproof.ledger.baseline import Baseline, Folded, Row
from costproof.ledger.metrics import EVERY_METRIC, Metric
from costproof.ledger.workload import ModuleKind, ModuleKinds, Plain

Fate = Fraction | Literal["new", "gone", "other"]
"""What became of a part: so many times as often, new, gone, or of another class, other settings or shapes."""
_SAME: Final = Fraction(1)
_MOST: Final = 3
"""Kinds of modules that a text names."""
_WHOLE_CALL: Final = ("floor_bytes",)
"""Metrics that belong to a whole call, though a row of the root has them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What changed about the modules of two sides."""

    fates: Mapping[str, Fate]
    """Outermost part that changed -> what became of it."""
    owners: Mapping[str, str]
    """Part -> the outermost one that it changed with."""
    changes: tuple[Change, ...]
    inputs: tuple[str, ...] = ()
    """Names of what changed about the run."""
    weak: tuple[str, ...] = ()
    """Names of what changed about the model besides its modules: blamed where nothing else can be."""
    uneven: frozenset[str] = frozenset()
    """Parts whose members do not all cost the same on both sides."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that changed."""
        return tuple(self.fates)

    def terms(self, stage: str, metric: Metric, base: Folded, head: Folded) -> dict[tuple[str, ...], int] | None:
        """Split the difference of a sum over what changed, row by row; first the inputs change, then the parts.

        Args:
            stage: empty for all stages together.

        Returns:
            names -> units, which add up to the difference; ``None`` where no rows add up to it.
        """
        if EVERY_METRIC[metric].largest:
            return None
        found: dict[tuple[str, ...], int] = {}

        def add(names: tuple[str, ...], amount: int) -> None:
            found[names] = found.get(names, 0) + amount

        rows = [
            {row: value for row, value in side.items() if row.metric == metric and stage in ("", row.stage)}
            for side in (base, head)
        ]
        for row in dict.fromkeys((*rows[0], *rows[1])):
            before, after = (side.get(row, 0) for side in rows)
            if before is None or after is None:
                return None
            for names, amount in self._of_row(row, before, after):
                add(names, amount)
        if not stage:
            once = [side.repeated.get(metric, 0) for side in (base, head)]
            if None in once:
                return None
            add(self._joint, (once[0] or 0) - (once[1] or 0))
        return {names: amount for names, amount in found.items() if amount}

    @property
    def _joint(self) -> tuple[str, ...]:
        return (*self.inputs, *(self.names or self.weak)) or (UNNAMED,)

    def _of_row(self, row: Row, before: int, after: int) -> Iterator[tuple[tuple[str, ...], int]]:
        owner = self.owners.get(row.part)
        if owner is None:
            alone = self.inputs if self.names and row.metric not in _WHOLE_CALL else ()
            yield alone or self._joint, after - before
        elif not self.inputs or EVERY_METRIC[row.metric].unit == "elements" or self.fates[owner] == "new":
            yield (owner,), after - before
        else:
            fate = self.fates[owner]
            # What the base's members would cost with the head's inputs, where all members cost the same.
            between = after / fate if isinstance(fate, Fraction) and owner not in self.uneven else None
            if between is None or between.denominator != 1:
                yield (*self.inputs, owner), after - before
            else:
                yield self.inputs, int(between) - before
                yield (owner,), after - int(between)


def parts_of(base: Baseline, head: Baseline, inputs: tuple[str, ...], weak: tuple[str, ...]) -> Parts | None:
    """Compare the modules of two sides; ``None`` where one of them does not say its modules."""
    old, new = _in_dtype(base.modules, base.workload.dtype, head.workload.dtype), head.modules
    if not (old and new):
        return None
    fates = {path: _fate(old.get(path, ()), new.get(path, ())) for path in dict.fromkeys((*new, *old))}
    owners = {path: _owner(path, fates) for path, fate in fates.items() if fate != _SAME}
    tops = dict.fromkeys(owners.values())
    uneven = {part for side in (base, head) for folded in side.sources.values() for part in folded.uneven}
    return Parts(
        fates={path: fates[path] for path in tops},
        owners=owners,
        changes=tuple(_change(path, old, new, fates[path]) for path in tops),
        inputs=inputs,
        weak=weak,
        uneven=frozenset(uneven),
    )


def _in_dtype(kinds: ModuleKinds, old: str, new: str) -> ModuleKinds:
    """Return the modules with parameters in another dtype: that of the run is a setting, and no change of a part."""
    if old == new:
        return kinds

    def changed(kind: ModuleKind) -> ModuleKind:
        return replace(kind, shapes={n: re.sub(rf"^{old}\[", f"{new}[", s) for n, s in kind.shapes.items()})

    return {path: tuple(map(changed, those)) for path, those in kinds.items()}


def _fate(old: tuple[ModuleKind, ...], new: tuple[ModuleKind, ...]) -> Fate:
    if not old or not new:
        return "new" if new else "gone"
    counts = [{_key(k): k.count for k in kinds} for kinds in (old, new)]
    if counts[0].keys() != counts[1].keys():
        return "other"
    ratios = {Fraction(counts[1][key], count) for key, count in counts[0].items()}
    return ratios.pop() if len(ratios) == 1 else "other"


def _key(kind: ModuleKind) -> str:
    return repr((kind.kind, sorted(kind.settings.items()), sorted(kind.shapes.items())))


def _owner(path: str, fates: Mapping[str, Fate]) -> str:
    """Return the outermost part around a path that changed in the same way without a gap.

    What is new or gone inside a part of another class belongs to that part.
    """
    top, fate = path, fates[path]
    for around in _around(path):
        outer = fates.get(around, _SAME)
        if outer == fate and fate != "other":
            top = around
        elif outer == "other" and fate in ("new", "gone"):
            top, fate = around, outer
        else:
            break
    return top


def _around(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _change(path: str, old: ModuleKinds, new: ModuleKinds, fate: Fate) -> Change:
    before, after = old.get(path, ()), new.get(path, ())
    if isinstance(fate, Fraction):
        return Change(path, sum(k.count for k in before), sum(k.count for k in after))
    if fate != "other":
        return Change(path, _text(before) or None, _text(after) or None)
    known = {_key(k): k.count for k in before}
    same = {key for k in after if known.get(key := _key(k)) == k.count}
    left = [[k for k in kinds if _key(k) not in same] for kinds in (before, after)]
    if all(len(kinds) == 1 for kinds in left) and left[0][0].kind == left[1][0].kind:
        one, other = (_entries(kinds[0]) for kinds in left)
        if left[0][0].count == left[1][0].count:
            return Change(path, _differing(one, other), _differing(other, one))
    return Change(path, _text(left[0]) or None, _text(left[1]) or None)


def _entries(kind: ModuleKind) -> dict[str, Plain]:
    return {**kind.settings, **kind.shapes}


def _differing(one: Mapping[str, Plain], other: Mapping[str, Plain]) -> str:
    own = (f"{name} {value}" for name, value in one.items() if name not in other or other[name] != value)
    return ", ".join(own) or "none of it"


def _text(kinds: Iterable[ModuleKind]) -> str:
    every = list(kinds)
    shown = [_kind(kind) for kind in every[:_MOST]]
    return ", ".join([*shown, *([f"{len(every) - _MOST} more"] if len(every) > _MOST else [])])


def _kind(kind: ModuleKind) -> str:
    shapes = ", ".join(f"{name} {shape}" for name, shape in kind.shapes.items())
    return f"{f'{kind.count} x ' if kind.count != 1 else ''}{kind.kind}{f' ({shapes})' if shapes else ''}"
