"""Kinds of vector work inside one module: whether what a formula calls softmax, norm or arithmetic is that in a graph.

Formulas name kinds of work, graphs operators. An operator is mostly of one kind; some kinds are carried out by
several operators (a norm written out in arithmetic), and a fused attention is two kinds in one. So the operators of a
module have a few readings, each of them exact. A formula whose kinds are none of them is wrong, whatever their sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Final

from costproof.compare.kinds import kind_of

Kinds = Mapping[str, int]
"""Kind of vector work -> operations."""

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "softmax": ("softmax", "log_softmax", "safe_softmax"),
    "norm": ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "fused_rms_norm"),
    "activation": ("gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "hardswish", "hardsigmoid", "softplus"),
    "select": ("topk", "max", "amax", "min", "amin", "sort", "argmax", "argmin"),
    "resample": ("resample", "upsample_linear1d", "upsample_bicubic2d", "upsample_bicubic2d_aa", "upsample_bilinear2d"),
    "mean": ("mean",),
}
_KIND: Final = {name: kind for kind, names in _KINDS.items() for name in names}
_ARITHMETIC: Final = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "pow": "pow"}
_SAME: Final = {f"{how}{name}": same for name, same in _ARITHMETIC.items() for how in ("", "r", "i")}
"""Python's names of operators, which a run has."""
ARITHMETIC: Final = "elementwise"
"""What every other operator is."""

_HALF: Final = Fraction(1, 2)
_Recipe = tuple[str, Mapping[str, Mapping[str, int | Fraction]]]
_WRITTEN_OUT: Final[Mapping[str, tuple[_Recipe, ...]]] = {
    # x / sqrt(mean(x²) + eps) * w: per element a square, the mean and two products, per row the sum and the root.
    "rsqrt": (("norm", {"mean": {"pow": 1, "mean": 1, "mul": 2}, "rsqrt": {"add": 1, "rsqrt": 1}}),),
    # (x - mean) / sqrt(var + eps) * w + c, operator by operator: two means and two differences.
    "sqrt": (
        (
            "norm",
            {
                "mean": {"mean": 1, "sub": 1, "pow": _HALF, "div": _HALF, "mul": _HALF, "add": _HALF},
                "sqrt": {"add": 1, "sqrt": 1},
            },
        ),
    ),
    # x sigmoid(1.702 x); a sigmoid alone; or a gate's own.
    "sigmoid": (
        ("activation", {"sigmoid": {"sigmoid": 1, "mul": 2}}),
        ("activation", {"sigmoid": {"sigmoid": 1}}),
        ("sigmoid", {"sigmoid": {"sigmoid": 1}}),
    ),
    # x / 2 (1 + tanh(c (x + d x³))), a tanh alone, or the cap of scores, which is arithmetic.
    "tanh": (
        ("activation", {"tanh": {"tanh": 1, "mul": 4, "pow": 1, "add": 2}}),
        ("activation", {"tanh": {"tanh": 1}}),
    ),
    "sum": (("reduction", {"sum": {"sum": 1}}),),
}
"""Operator -> what it may be a part of: a kind, and per unit of one operator the units that the kind takes."""

_FUSED: Final = ({"softmax": Fraction(5, 6), ARITHMETIC: Fraction(1, 6)},
                 {"softmax": Fraction(5, 7), ARITHMETIC: Fraction(2, 7)})  # fmt: skip
"""Of the vector work of a fused attention: 5 for the softmax and 1 for the scale of a score, 1 for a mask."""


def operators(kinds: Iterable[tuple[str, int | None]]) -> tuple[tuple[str, int], ...]:
    """The operators of a module by their common names, those of a name added up."""
    found: Counter[str] = Counter()
    for name, value in kinds:
        common = kind_of(name)
        found[_SAME.get(common, common)] += value or 0
    return tuple(sorted((name, value) for name, value in found.items() if value))


@lru_cache(maxsize=4096)
def readings(found: tuple[tuple[str, int], ...]) -> tuple[Kinds, ...]:
    """What the operators of a module may be, in kinds of work; the first is the plain one.

    Args:
        found: operator, by its common name, and its operations.
    """
    there = dict(found)
    recipes = [(None, *_WRITTEN_OUT[name]) for name in _WRITTEN_OUT if name in there]
    fused = _FUSED if "attention" in there else (_FUSED[0],)
    made = (_read(there, shares, written) for shares, *written in product(fused, *recipes))  # type: ignore[arg-type]
    return tuple({tuple(sorted(kinds.items())): kinds for kinds in made if kinds is not None}.values())


def _read(there: Kinds, fused: Mapping[str, Fraction], written: Sequence[_Recipe | None]) -> Kinds | None:
    """The kinds of one reading; ``None`` where the operators are too few for it."""
    left = {name: Fraction(value) for name, value in there.items()}
    kinds: dict[str, Fraction] = {}

    def take(kind: str, name: str, amount: Fraction) -> None:
        left[name] = left.get(name, Fraction(0)) - amount
        kinds[kind] = kinds.get(kind, Fraction(0)) + amount

    for recipe in written:
        for unit, taken in recipe[1].items() if recipe is not None else ():
            for name, times in taken.items():
                take(recipe[0], name, Fraction(times) * there.get(unit, 0))  # type: ignore[index]
    for kind, share in fused.items():
        take(kind, "attention", share * there.get("attention", 0))
    if min(left.values()) < 0:
        return None
    for name, rest in tuple(left.items()):
        take(_KIND.get(name, ARITHMETIC), name, rest)
    whole = all(amount.denominator == 1 for amount in kinds.values())
    return {kind: int(amount) for kind, amount in kinds.items() if amount} if whole else None


def nearest(formula: Kinds, found: tuple[tuple[str, int], ...]) -> Kinds:
    """The reading of a graph's operators that is nearest to the kinds of a formula: equal to them, or the formula errs.

    Args:
        formula: kinds of a formula, with the same sum as the operators.
        found: as for :func:`readings`.
    """

    def apart(other: Kinds) -> int:
        return sum(abs(formula.get(kind, 0) - other.get(kind, 0)) for kind in {*formula, *other})

    return min(readings(found), key=apart)
