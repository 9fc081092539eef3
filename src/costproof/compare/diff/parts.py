"""Two models without formulas, compared by part: which modules are new, gone, repeated more often, or others.

Parts have paths with ``*`` for numbers. A part belongs to the outermost part around it that changed in the same way:
one more block is a change of ``blocks.*``, and all that is inside the block goes with it. Of two families of
transformers, ``Qwen3MLP`` is the class that ``LlamaMLP`` is: the name alone changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from costproof.compare.diff.types import UNNAMED, Change
from costproof.ledger.baseline import Baseline, BaselineRow, Folded
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE, Metric
from costproof.ledger.workload import ConfigValue, ModuleKind, ModuleKinds

Fate = Fraction | Literal["new", "gone", "other", "renamed"]
"""What became of a part: so many times as often, new, gone, of another class, other settings or shapes, or of the same
class of another family."""
_SAME: Final = Fraction(1)
_MOST: Final = 3
"""Kinds of modules that a text names."""
_WHOLE_CALL: Final = ("floor_bytes",)
"""Metrics that belong to a whole call, though a row of the root has them."""
_FAMILY: Final = re.compile(r"([A-Z]\w*?)(?:For[A-Z]\w*|LMHeadModel|Model)")
"""What classes of transformers begin with, as the class of the whole model shows it."""


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
    one_sided: bool = False
    """Whether these are the parts that one of two families has: terms are of these parts alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that changed."""
        return tuple(self.fates)

    def terms(self, stage: str, metric: Metric, base: Folded, head: Folded) -> dict[tuple[str, ...], int] | None:
        """Split the difference of a sum over what changed, row by row; first the inputs change, then the parts.

        Args:
            stage: empty for all stages together.

        Returns:
            names -> units, which add up to the difference, or to that of the parts that one family has; ``None`` where
            no rows add up to it.
        """
        if EVERY_METRIC[metric].largest:
            return None
        found: dict[tuple[str, ...], int] = {}

        def add(names: tuple[str, ...], amount: int) -> None:
            found[names] = found.get(names, 0) + amount

        rows = [_rows(side, stage, metric) for side in (base, head)]
        for row in dict.fromkeys((*rows[0], *rows[1])):
            before, after = (side.get(row, 0) for side in rows)
            if before is None or after is None:
                return None
            for names, amount in self._of_row(row, before, after):
                add(names, amount)
        if self.one_sided:
            return {names: amount for names, amount in found.items() if amount}
        if not stage:
            whole = [side.total(metric) for side in (base, head)]
            if None in whole:
                return None
            add(self._joint, (whole[1] or 0) - (whole[0] or 0) - sum(found.values()))
        return {names: amount for names, amount in found.items() if amount}

    @property
    def _joint(self) -> tuple[str, ...]:
        changed = tuple(name for name, fate in self.fates.items() if fate != "renamed")
        return (*self.inputs, *(changed or self.weak)) or (UNNAMED,)

    def _of_row(self, row: BaselineRow, before: int, after: int) -> Iterator[tuple[tuple[str, ...], int]]:
        owner = self.owners.get(row.part)
        if owner is None and self.one_sided:
            return
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


def one_sided_parts(base: Folded, head: Folded) -> Parts:
    """Return the parts, by role, that the formulas of one of two families have and those of the other do not."""
    kinds = [_kinds(side) for side in (base, head)]
    parts = [part for part in dict.fromkeys((*kinds[1], *kinds[0])) if (part in kinds[0]) != (part in kinds[1])]
    fates: dict[str, Fate] = {part: "new" if part in kinds[1] else "gone" for part in parts}
    owners = {part: _owner(part, fates, ()) for part in parts}
    tops = dict.fromkeys(owners.values())
    texts = [{top: _inside(top, owners, side) for top in tops} for side in kinds]
    changes = tuple(Change(top, texts[0][top], texts[1][top]) for top in tops)
    return Parts({top: fates[top] for top in tops}, owners, changes, one_sided=True)


def _kinds(side: Folded) -> dict[str, dict[str, None]]:
    """Return the kinds of operators of every part; the root of a call is none."""
    found: dict[str, dict[str, None]] = {}
    roots = {row.part for row, _ in side.items() if row.metric in _WHOLE_CALL}
    for row in (row for row, _ in side.items() if row.part not in roots):
        found.setdefault(row.part, {}).update({row.kind: None} if row.kind else {})
    return found


def _inside(top: str, owners: Mapping[str, str], kinds: Mapping[str, Mapping[str, None]]) -> str | None:
    """Return the kinds of operators of a part and of all that it owns as text; ``None`` where it is not there."""
    if top not in kinds:
        return None
    found = dict.fromkeys(kind for part, owner in owners.items() if owner == top for kind in kinds[part])
    return ", ".join(found) or "no operator"


def _rows(side: Folded, stage: str, metric: Metric) -> dict[BaselineRow, int | None]:
    """Return the rows of a metric; of all stages together those of a module that works in several of them once."""
    found: dict[BaselineRow, int | None] = {}
    for row, value in side.items():
        if row.metric != metric or stage not in ("", row.stage):
            continue
        place = row._replace(stage="") if not stage and metric in STAGE_WIDE else row
        known = found.get(place, 0)
        found[place] = None if value is None or known is None else max(value, known) if place != row else value
    return found


def parts_of(base: Baseline, head: Baseline, inputs: tuple[str, ...], weak: tuple[str, ...]) -> Parts | None:
    """Compare the modules of two sides; ``None`` where one of them does not say its modules."""
    old, new = _in_dtype(base.modules, base.workload.dtype, head.workload.dtype), head.modules
    if not (old and new):
        return None
    paths = dict.fromkeys((*new, *old))
    # Where only the names of families tell classes apart, they are the same here.
    own, other = _without_family(old, new), _without_family(new, old)
    fates = {path: _fate(own.get(path, ()), other.get(path, ())) for path in paths}
    renamed = {path for path in paths if {k.kind for k in old.get(path, ())} != {k.kind for k in new.get(path, ())}}
    fates |= {path: "renamed" for path in renamed if fates[path] == _SAME}
    replaced = {path for path in paths if {k.kind for k in own.get(path, ())} != {k.kind for k in other.get(path, ())}}
    owners = {path: _owner(path, fates, replaced) for path, fate in fates.items() if fate != _SAME}
    tops = dict.fromkeys(owners.values())
    uneven = {part for side in (base, head) for folded in side.sources.values() for part in folded.uneven}
    return Parts(
        fates={path: fates[path] for path in tops},
        owners=owners,
        changes=tuple(_change(path, own, other, fates[path]) for path in tops if fates[path] != "renamed"),
        inputs=inputs,
        weak=weak,
        uneven=frozenset(uneven | renamed),
    )


def _without_family(kinds: ModuleKinds, others: ModuleKinds) -> ModuleKinds:
    """Return the modules with classes named without their family, where the other model is of another one."""
    (own, other) = (
        _FAMILY.fullmatch(found["(root)"][0].kind) if "(root)" in found else None for found in (kinds, others)
    )
    if own is None or other is None or own[1] == other[1]:
        return kinds
    return {path: tuple(replace(k, kind=k.kind.removeprefix(own[1])) for k in those) for path, those in kinds.items()}


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


def _owner(path: str, fates: Mapping[str, Fate], replaced: Collection[str]) -> str:
    """Return the outermost part around a path that changed in the same way without a gap.

    What is new or gone inside a part of another class belongs to that part.

    Args:
        replaced: parts of another class.
    """
    top, fate = path, fates[path]
    for around in _around(path):
        outer = fates.get(around, _SAME)
        if outer == fate and fate not in ("other", "renamed"):
            top = around
        elif outer == "other" and around in replaced and fate in ("new", "gone"):
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


def _entries(kind: ModuleKind) -> dict[str, ConfigValue]:
    return {**kind.settings, **kind.shapes}


def _differing(one: Mapping[str, ConfigValue], other: Mapping[str, ConfigValue]) -> str:
    own = (f"{name} {value}" for name, value in one.items() if name not in other or other[name] != value)
    return ", ".join(own) or "none of it"


def _text(kinds: Iterable[ModuleKind]) -> str:
    every = list(kinds)
    shown = [_kind(kind) for kind in every[:_MOST]]
    return ", ".join([*shown, *([f"{len(every) - _MOST} more"] if len(every) > _MOST else [])])


def _kind(kind: ModuleKind) -> str:
    shapes = ", ".join(f"{name} {shape}" for name, shape in kind.shapes.items())
    return f"{f'{kind.count} x ' if kind.count != 1 else ''}{kind.kind}{f' ({shapes})' if shapes else ''}"
