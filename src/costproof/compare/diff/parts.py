"""Compare two models without formulas by part: modules added, removed, repeated more often, or replaced.

Parts are paths with ``*`` for numbers. A part belongs to the outermost part around it that changed in the same way:
one more block is a change of ``blocks.*`` that includes everything inside the block. Between two families of
transformers, ``Qwen3MLP`` and ``LlamaMLP`` count as the same class: a different name is not a change.
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

PartFate = Fraction | Literal["new", "gone", "other", "renamed"]
"""Change of a part of a model: a ratio of module counts, ``new``, ``gone``, ``other`` or ``renamed``.

``other`` has another class, settings or shapes. ``renamed`` has the same class under the name of another family.
"""
_SAME: Final = Fraction(1)
_MOST: Final = 3
"""Maximum number of module kinds that a text lists."""
_WHOLE_CALL: Final = ("floor_bytes",)
"""Metrics of a whole call, which are recorded in a row of the root module."""
_FAMILY: Final = re.compile(r"([A-Z]\w*?)(?:For[A-Z]\w*|LMHeadModel|Model)")
"""Matches the class name of a whole transformers model; the first group is the family's prefix, ``Llama``."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a model that changed between two sides, and rules to attribute costs to them."""

    fates: Mapping[str, PartFate]
    """Changes of the outermost changed parts, by part."""
    owners: Mapping[str, str]
    """The outermost part that changed together with a part, by part."""
    changes: tuple[Change, ...]
    inputs: tuple[str, ...] = ()
    """Names of changes to the run, such as settings of the workload."""
    weak: tuple[str, ...] = ()
    """Names of changes to the model other than its modules, used for differences that nothing else explains."""
    uneven: frozenset[str] = frozenset()
    """Parts whose modules have unequal costs on base or head."""
    one_sided: bool = False
    """Whether these are parts that only one of two model families has, so that attributed amounts cover only these."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the outermost parts that changed."""
        return tuple(self.fates)

    def terms(self, stage: str, metric: Metric, base: Folded, head: Folded) -> dict[tuple[str, ...], int] | None:
        """Attribute a metric's difference to the changes, row by row, first to changed keys, then to changed parts.

        Args:
            stage: empty for all stages together.

        Returns:
            names -> units, which sum to the difference, or to that of the parts that only one family has; ``None`` if
            the rows do not sum to it.
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
            # The cost of the base's modules with the head's inputs, if all modules cost the same.
            between = after / fate if isinstance(fate, Fraction) and owner not in self.uneven else None
            if between is None or between.denominator != 1:
                yield (*self.inputs, owner), after - before
            else:
                yield self.inputs, int(between) - before
                yield (owner,), after - int(between)


def one_sided_parts(base: Folded, head: Folded) -> Parts:
    """Return the parts, by role, that only one of two model families' formulas have."""
    kinds = [_kinds(side) for side in (base, head)]
    parts = [part for part in dict.fromkeys((*kinds[1], *kinds[0])) if (part in kinds[0]) != (part in kinds[1])]
    fates: dict[str, PartFate] = {part: "new" if part in kinds[1] else "gone" for part in parts}
    owners = {part: _owner(part, fates, ()) for part in parts}
    tops = dict.fromkeys(owners.values())
    texts = [{top: _inside(top, owners, side) for top in tops} for side in kinds]
    changes = tuple(Change(top, texts[0][top], texts[1][top]) for top in tops)
    return Parts({top: fates[top] for top in tops}, owners, changes, one_sided=True)


def _kinds(side: Folded) -> dict[str, dict[str, None]]:
    """Return the operator kinds that run in each part, by part, without the root."""
    found: dict[str, dict[str, None]] = {}
    roots = {row.part for row, _ in side.items() if row.metric in _WHOLE_CALL}
    for row in (row for row, _ in side.items() if row.part not in roots):
        found.setdefault(row.part, {}).update({row.kind: None} if row.kind else {})
    return found


def _inside(top: str, owners: Mapping[str, str], kinds: Mapping[str, Mapping[str, None]]) -> str | None:
    """Return, as text, the operator kinds in a part and its inner parts; ``None`` if the side lacks the part."""
    if top not in kinds:
        return None
    found = dict.fromkeys(kind for part, owner in owners.items() if owner == top for kind in kinds[part])
    return ", ".join(found) or "no operator"


def _rows(side: Folded, stage: str, metric: Metric) -> dict[BaselineRow, int | None]:
    """Return the values of a metric in a stage or in all stages, by row; parameters of several stages count once."""
    found: dict[BaselineRow, int | None] = {}
    for row, value in side.items():
        if row.metric != metric or stage not in ("", row.stage):
            continue
        place = row._replace(stage="") if not stage and metric in STAGE_WIDE else row
        known = found.get(place, 0)
        found[place] = None if value is None or known is None else max(value, known) if place != row else value
    return found


def parts_of(base: Baseline, head: Baseline, inputs: tuple[str, ...], weak: tuple[str, ...]) -> Parts | None:
    """Compare the modules of two sides; return ``None`` if a side does not list its modules."""
    old, new = _in_dtype(base.modules, base.workload.dtype, head.workload.dtype), head.modules
    if not (old and new):
        return None
    paths = dict.fromkeys((*new, *old))
    # Classes that differ only in the prefix of their family are the same here.
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
    """Remove the model family from class names (``LlamaMLP`` becomes ``MLP``) if the two families differ."""
    (own, other) = (
        _FAMILY.fullmatch(found["(root)"][0].kind) if "(root)" in found else None for found in (kinds, others)
    )
    if own is None or other is None or own[1] == other[1]:
        return kinds
    return {path: tuple(replace(k, kind=k.kind.removeprefix(own[1])) for k in those) for path, those in kinds.items()}


def _in_dtype(kinds: ModuleKinds, old: str, new: str) -> ModuleKinds:
    """Return the module kinds with another parameter dtype, since a dtype is a setting, not a changed part."""
    if old == new:
        return kinds

    def changed(kind: ModuleKind) -> ModuleKind:
        return replace(kind, shapes={n: re.sub(rf"^{old}\[", f"{new}[", s) for n, s in kind.shapes.items()})

    return {path: tuple(map(changed, those)) for path, those in kinds.items()}


def _fate(old: tuple[ModuleKind, ...], new: tuple[ModuleKind, ...]) -> PartFate:
    if not old or not new:
        return "new" if new else "gone"
    counts = [{_key(k): k.count for k in kinds} for kinds in (old, new)]
    if counts[0].keys() != counts[1].keys():
        return "other"
    ratios = {Fraction(counts[1][key], count) for key, count in counts[0].items()}
    return ratios.pop() if len(ratios) == 1 else "other"


def _key(kind: ModuleKind) -> str:
    return repr((kind.kind, sorted(kind.settings.items()), sorted(kind.shapes.items())))


def _owner(path: str, fates: Mapping[str, PartFate], replaced: Collection[str]) -> str:
    """Return the outermost part around a path with the same change as the path and all parts in between.

    Parts added or removed inside a part whose class changed belong to that part.

    Args:
        replaced: parts whose class changed.
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


def _change(path: str, old: ModuleKinds, new: ModuleKinds, fate: PartFate) -> Change:
    before, after = old.get(path, ()), new.get(path, ())
    if isinstance(fate, Fraction):
        return Change(path, sum(k.count for k in before), sum(k.count for k in after))
    if fate != "other":
        return Change(path, _text(before) or None, _text(after) or None)
    known = {_key(k): k.count for k in before}
    same = {key for k in after if known.get(key := _key(k)) == k.count}
    left = [[k for k in kinds if _key(k) not in same] for kinds in (before, after)]
    if all(len(kinds) == 1 for kinds in left) and left[0][0].kind == left[1][0].kind:
        one, other = ({**kinds[0].settings, **kinds[0].shapes} for kinds in left)
        if left[0][0].count == left[1][0].count:
            return Change(path, _differing(one, other), _differing(other, one))
    return Change(path, _text(left[0]) or None, _text(left[1]) or None)


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
