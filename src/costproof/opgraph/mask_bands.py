"""Count the query-key pairs that masks keep in an exported graph, as formulas, for bands around the diagonal.

A mask is followed to the comparisons of positions that it is made of, which are linear in the positions of the query
and of the key. Each of them limits the band on one side. Masks of another form are not counted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import sympy

from costproof.algebra.series import CONTEXT
from costproof.opgraph.graph import CausalMask, Graph, OpCall, Size, Value
from costproof.opgraph.kept import MaskUse, is_selected, writes_of
from costproof.opgraph.rules.attention import SDPA
from costproof.opgraph.rules.names import canonical, overwrites
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.opgraph.rules.sizes import never_negative, prod, tidy, total


def band_pairs(
    queries: Size, keys: Size, left: Size | None, right: Size | None, *, at_end: bool, facts: Iterable[Size] = ()
) -> Size:
    """Count the pairs of query i with keys from i + s - left to i + s + right, where s aligns queries with keys.

    All pairs are counted, less those above the band and those below it. Rows of x, x - 1, … pairs, none below 0, have
    x (x + 1) / 2 of them, and all but the first n rows x - n in place of x.

    Args:
        queries: number of queries.
        keys: number of keys.
        left: window before the aligned key; ``None`` for no limit.
        right: window after the aligned key; ``None`` for no limit.
        at_end: whether s is keys - queries; otherwise it is 0.
        facts: sizes that are known not to be negative, which decide maxima.
    """
    return _band_pairs(queries, keys, left, right, at_end, tuple(facts))


@lru_cache(maxsize=4096)
def _band_pairs(
    queries: Size, keys: Size, left: Size | None, right: Size | None, at_end: bool, facts: tuple[Size, ...]
) -> Size:
    shift = total((keys, prod((-1, queries)))) if at_end else 0

    def rows(first: Size) -> Size:
        """Return the sum of max(0, first - i) over ``queries`` rows i = 0, 1, …."""
        rest = total((first, prod((-1, queries))))
        return total((_triangle(first, facts), prod((-1, _triangle(rest, facts)))))

    def outside(first: Size) -> Size:
        """Return the sum of ``queries`` numbers first, first - 1, …, each clamped to 0 and the number of keys."""
        return total((rows(first), prod((-1, rows(total((first, prod((-1, keys)))))))))

    kept = prod((queries, keys))
    if right is not None:  # query i sees no key from i + shift + right + 1 on
        kept = total((kept, prod((-1, outside(total((keys, prod((-1, shift)), prod((-1, right)), -1)))))))
    if left is not None:  # nor one before i + shift - left; the last query has the most of these
        kept = total((kept, prod((-1, outside(total((queries, -1, shift, prod((-1, left)))))))))
    return kept


def _triangle(n: Size, facts: tuple[Size, ...]) -> Size:
    """Return n + (n - 1) + … + 1, or 0 for negative n; a ``Max`` remains if the sign of n is not known."""
    if isinstance(n, int):
        return n * (n + 1) // 2 if n > 0 else 0
    if any(never_negative(tidy(n + 1 - fact)) for fact in (0, *facts)):
        return tidy(n * (n + 1) / 2)
    if any(never_negative(tidy(-n - fact)) for fact in (0, *facts)):
        return 0
    at_least = sympy.Max(0, n)
    return tidy(at_least * (at_least + 1) / 2)


@dataclass(frozen=True, slots=True)
class _Linear:
    """An integer tensor whose elements are a linear function of their last two indices."""

    constant: Size
    query: int = 0
    """Coefficient of the query index, the index in the second to last dimension."""
    key: int = 0
    """Coefficient of the key index, the index in the last dimension."""

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        constant = total((self.constant, prod((sign, other.constant))))
        return _Linear(constant, self.query + sign * other.query, self.key + sign * other.key)

    @property
    def fixed(self) -> bool:
        return self.query == self.key == 0


@dataclass(frozen=True, slots=True)
class _Visible:
    """Query-key pairs at which all of these linear expressions are at least 0; all pairs without an expression."""

    margins: frozenset[_Linear] = frozenset()

    def both(self, other: _Visible) -> _Visible:
        return _Visible(self.margins | other.margins)


_ALL: Final = _Visible()
_Content = _Linear | _Visible | None
_SAME: Final = frozenset({
    "to", "clone", "contiguous", "detach", "alias", "long", "int", "bool", "expand", "expand_as", "lift_fresh",
    "lift_fresh_copy", "identity", "type_as",
})  # fmt: skip
"""Operators that return the values of their first argument, perhaps repeated."""
_INTEGERS: Final = frozenset({"int32", "int64"})
_CAST: Final = frozenset({"float", "to", "type_as", "half", "bfloat16"})
_MARGINS: Final = {"le": (-1, 1, 0), "lt": (-1, 1, -1), "ge": (1, -1, 0), "gt": (1, -1, -1)}
"""Numbers (a, b, c) with a * left + b * right + c >= 0 where a comparison of left and right is true, by its name."""
_APPLYING: Final = frozenset({"add", "mul", "masked_fill", "where", "baddbmm", "addmm", *SDPA})
"""Operators that hide scores with a mask."""
_LARGEST: Final = 2**62
"""Least end of a slice that means the end of the tensor."""
_HIDDEN: Final = -9_999
"""Largest number that hides a score when it is added to it."""


class BandMasks:
    """Pair counter for symbolic sizes, for masks that keep a band around the diagonal."""

    def __init__(
        self,
        graph: Graph,
        given: Mapping[str, CausalMask],
        facts: Iterable[Size] = (),
        hiding: Collection[str] = (),
    ) -> None:
        """Prepare to follow the masks of a graph.

        Args:
            graph: the graph.
            given: contents of inputs by name.
            facts: sizes that are known not to be negative.
            hiding: names of parameters that may hide scores, after ``buffer:``.
        """
        self.writers = {v.id: op for op in graph.ops for v in op.outputs}
        self.written = writes_of(graph.ops)
        self.given, self.facts, self.hiding = given, tuple(facts), hiding
        self.known: dict[str, _Content] = {}

    def in_band(self, queries: Size, keys: Size, left: Size | None, right: Size | None, *, at_end: bool) -> Size | None:
        """Count the pairs of one query x key matrix in a band; ``None`` if the formula has no sum over decode steps."""
        found = band_pairs(queries, keys, left, right, at_end=at_end, facts=self.facts)
        undecided = not isinstance(found, int) and found.has(sympy.Max) and CONTEXT in found.free_symbols
        return None if undecided else found

    def under_masks(self, masks: Sequence[MaskUse], grids: Size, queries: Size, keys: Size) -> Size | None:
        left: list[Size] = []
        right: list[Size] = []
        for use in masks:
            content = self._declared(use, queries, keys) or self._use(use)
            if not isinstance(content, _Visible):
                return None
            for margin in content.margins:
                if (margin.query, margin.key) == (1, -1):
                    right.append(margin.constant)
                elif (margin.query, margin.key) == (-1, 1):
                    left.append(margin.constant)
                elif not margin.fixed or not never_negative(margin.constant):
                    return None
        rows = {use.mask.shape[-2:-1] or (1,) for use in masks if use.mask is not None and left + right}
        if (1,) in rows and queries != 1:  # one row for all queries
            return None if len(rows) > 1 else self._repeated(masks, grids, queries, keys)
        limits = [_least(sizes) for sizes in (left, right)]
        if any(sizes and limit is None for sizes, limit in zip((left, right), limits, strict=True)):
            return None
        if limits == [None, None]:
            return prod((grids, queries, keys))
        one = self.in_band(queries, keys, *limits, at_end=False)
        return None if one is None else prod((grids, one))

    def _repeated(self, masks: Sequence[MaskUse], grids: Size, queries: Size, keys: Size) -> Size | None:
        """Count the pairs under masks that have one row for all queries, such as padding masks."""
        one = self.under_masks(masks, 1, 1, keys)
        return None if one is None else prod((grids, queries, one))

    def _declared(self, use: MaskUse, queries: Size, keys: Size) -> _Visible | None:
        """Return the declared content of a mask that is an input of the graph, or a view of one."""
        value = use.mask
        while value is not None and (op := self.writers.get(value.id)) is not None and canonical(op.name) in _SAME:
            value = op.tensors[0] if op.tensors and op.tensors[0].shape[-2:] == value.shape[-2:] else None
        given = self.given.get(value.name) if value is not None and value.origin == "input" else None
        if given is None or value is None or value.shape[-2:] != (queries, keys):
            return None
        before = total((keys, prod((-1, queries))))
        margins = {_Linear(before, 1, -1)}
        if given.window:
            margins.add(_Linear(total((given.window, -1, prod((-1, before)))), -1, 1))
        return _Visible(frozenset(margins))

    def _use(self, use: MaskUse) -> _Content:
        """Return the query-key pairs that an operator keeps when it applies a mask to scores."""
        name = canonical(use.op.name)
        if use.mask is None:
            return _triangle_of(use.op)
        content = self._content(use.mask)
        if name in ("masked_fill", "where") and use.place != (1 if name == "masked_fill" else 0):
            return _ALL  # what hidden scores become
        if name == "where" and not is_selected(use.op):
            return None
        if name == "masked_fill":
            return _inverted(content)
        return content if content == _ALL or (isinstance(content, _Visible) and name in _APPLYING) else None

    def _content(self, value: Value) -> _Content:
        if value.id not in self.known:
            self.known[value.id] = None
            self.known[value.id] = None if value.id in self.written else self._found(value)
        return self.known[value.id]

    def _found(self, value: Value) -> _Content:
        op = self.writers.get(value.id)
        if op is not None and overwrites(op):
            return None
        if op is None:
            return _ALL if value.origin == "param" and f"buffer:{value.name}" not in self.hiding else None
        name, attrs = canonical(op.name), op.attrs
        shape = value.shape
        if name == "arange" and not op.tensors and len(shape) == 1:
            start, step = (attrs.get(key, usual) for key, usual in (("start", 0), ("step", 1)))
            return _Linear(start, 0, step) if isinstance(start, int | sympy.Expr) and isinstance(step, int) else None
        if name in ("ones", "new_ones", "ones_like", "zeros", "new_zeros", "zeros_like", "full", "new_full"):
            number = attrs.get("fill_value", int("ones" in name))
            if value.floating:
                return _ALL if number == 0 else None
            if value.dtype == "bool":
                return _ALL if number else None
            return _Linear(number) if isinstance(number, int) else None
        if not op.tensors:
            return None
        parts = [self._content(v) for v in op.tensors]
        first = parts[0]
        if name in _SAME and (op.tensors[0].dtype == value.dtype or {op.tensors[0].dtype, value.dtype} <= _INTEGERS):
            return first
        if name in ("unsqueeze", "getitem", "slice", "index"):
            return self._indexed(name, op, first)
        if isinstance(first, _Linear) and name in ("add", "sub"):
            other = parts[1] if len(parts) > 1 else _scalar(attrs.get("other"))
            if isinstance(other, _Linear) and attrs.get("alpha") in (None, 1):
                return first.plus(other, 1 if name == "add" else -1)
            return None
        if name in _MARGINS:
            other = parts[1] if len(parts) > 1 else _scalar(attrs.get("other"))
            if isinstance(first, _Linear) and isinstance(other, _Linear):
                mine, theirs, less = _MARGINS[name]
                margin = _Linear(less).plus(first, mine).plus(other, theirs)
                return _Visible(frozenset({margin}))
            return None
        if name in ("bitwise_and", "logical_and"):
            return first.both(parts[1]) if all(isinstance(p, _Visible) for p in parts) and len(parts) == 2 else None  # type: ignore[union-attr, arg-type]
        if name in ("bitwise_not", "logical_not"):
            return _inverted(first)
        return self._biased(op, name, parts) if value.floating else None

    def _indexed(self, name: str, op: OpCall, first: _Content) -> _Content:
        """Return the content of a view that adds dimensions or selects whole dimensions."""
        if not isinstance(first, _Linear):
            return first if name == "unsqueeze" or first == _ALL else None
        if first.fixed:
            return first
        before, after = len(op.tensors[0].shape), len(op.outputs[0].shape)
        if name == "unsqueeze":
            at = op.attrs.get("dim")
            if not isinstance(at, int):
                return None
            behind = after - 1 - (at + after if at < 0 else at)
            if behind == 0:
                return _Linear(first.constant, first.key) if first.query == 0 else None
            return first if behind > 1 or first.query == 0 else None
        if name == "slice":
            end = op.attrs.get("end")
            whole = op.attrs.get("start") in (None, 0) and (end is None or (isinstance(end, int) and end >= _LARGEST))
            return first if whole and op.attrs.get("step") in (None, 1) else None
        key = op.attrs.get("key")
        if name == "getitem" and before == 1 and isinstance(key, list) and len(op.tensors) == 1:
            place = [i for i, k in enumerate(reversed(key)) if isinstance(k, slice) and k == slice(None)]
            if len(place) == 1 and place[0] < 2 and all(k is None or isinstance(k, slice) for k in key):
                return first if place[0] == 0 else _Linear(first.constant, first.key)
        return None

    def _biased(self, op: OpCall, name: str, parts: Sequence[_Content]) -> _Content:
        """Return the query-key pairs that stay visible after a floating-point mask is added to scores.

        Numbers that a product or a table gives hide nothing. Masks become numbers where ``where`` or ``masked_fill``
        writes a large negative one.
        """
        if name == "masked_fill" and len(parts) >= 2 and _is_hiding(op.attrs.get("value"), parts[2:]):
            mask = _inverted(parts[1])
            return mask.both(parts[0]) if isinstance(mask, _Visible) and isinstance(parts[0], _Visible) else None
        if name == "where":
            other = op.attrs.get("other")
            return parts[0] if isinstance(parts[0], _Visible) and _is_hiding(other, ()) else None
        if name in ("tril", "triu"):
            return None
        cost = cost_of(op)
        if isinstance(cost, UnknownCost):
            return None
        if cost.role == "matmul":
            return _ALL
        if cost.role == "lookup":
            return _ALL if parts[0] == _ALL else None
        if not any(v.floating for v in op.tensors):
            return None
        found = _ALL
        for value, part in zip(op.tensors, parts, strict=True):
            if value.floating:
                if not isinstance(part, _Visible):
                    return None
                found = found.both(part)
        return found if found == _ALL or name in ("add", *_CAST, *_SAME, "view", "reshape", "unsqueeze") else None


def _is_hiding(number: Any, others: Sequence[object]) -> bool:
    """Return whether a number, or a tensor in its place, is so negative that it hides scores."""
    return bool(others) if number is None else isinstance(number, int | float) and number <= _HIDDEN


def _scalar(number: Any) -> _Linear | None:
    usable = isinstance(number, int | sympy.Expr) and not isinstance(number, bool)
    return _Linear(number) if usable else None


def _inverted(content: _Content) -> _Content:
    """Return the pairs at which a comparison is false; ``None`` for a mask of several comparisons."""
    if not isinstance(content, _Visible) or len(content.margins) != 1:
        return None
    (margin,) = content.margins
    return _Visible(frozenset({_Linear(-1).plus(margin, -1)}))


def _triangle_of(op: OpCall) -> _Content:
    """Return the query-key pairs that ``tril`` or ``triu`` keeps."""
    diagonal = op.attrs.get("diagonal", 0)
    if not isinstance(diagonal, int):
        return None
    lower = canonical(op.name) == "tril"
    return _Visible(frozenset({_Linear(diagonal, 1, -1) if lower else _Linear(-diagonal, -1, 1)}))


def _least(sizes: Sequence[Size]) -> Size | None:
    """Return the smallest of these sizes; ``None`` if there are no sizes, or if it depends on the symbols' values."""
    for one in sizes:
        if all(never_negative(tidy(other - one)) for other in sizes):
            return one
    return None
