"""The stacks of layers of a module: which of their layers are alike, and for how many the kept ones stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import nn


_RATES: Final = ("drop", "prob")
"""Words in the names of rates of dropout, and of the modules that drop."""


Kind = tuple[Hashable, frozenset[tuple[Hashable, Hashable]]]
"""Classes of a layer's modules and shapes of its parameters; and what else its modules keep, by where."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A list of layers that run one after another."""

    path: str
    """Of the list in the module."""
    kinds: tuple[Kind, ...]
    """What each layer is, but for its number: classes of its modules, shapes of its parameters, what else its modules
    keep. Equal for layers that cost the same."""
    parameters: int
    """Elements."""
    numbers: frozenset[tuple[str, str]] = frozenset()
    """Where its layers keep their own number: (path in the layer, attribute)."""

    def begins(self, whole: Stack) -> bool:
        """Whether its layers are the first of another stack, but for what each says about how many there are."""
        return all(
            mine == other or (mine[0] == other[0] and self._counted(dict(mine[1]), dict(other[1]), len(whole.kinds)))
            for mine, other in zip(self.kinds, whole.kinds, strict=False)
        )

    def _counted(self, mine: Mapping[Hashable, Hashable], other: Mapping[Hashable, Hashable], count: int) -> bool:
        kept = len(self.kinds)
        pairs = [(mine.get(at), other.get(at)) for at in mine.keys() | other.keys()]
        return all(
            a == b
            or (a, b) == (("int", kept), ("int", count))
            or (isinstance(a, tuple) and isinstance(b, tuple) and (len(a), len(b), b[:kept]) == (kept, count, a))
            for a, b in pairs
        )

    @property
    def least(self) -> int:
        """The first layers that have one of every kind among them."""
        return max(self.kinds.index(kind) for kind in self.kinds) + 1

    def more(self, kept: int) -> int:
        """The first layers beyond ``kept`` that have one more of every kind that is left out."""
        out = self.kinds[kept:]
        return kept + max((out.index(kind) + 1 for kind in out), default=0)

    def times(self, kept: int) -> tuple[int, ...]:
        """For how many layers each of the first ``kept`` stands: the last of a kind for those left out too."""
        out = Counter(self.kinds[kept:])
        first = self.kinds[:kept]
        return tuple(1 + (0 if kind in first[i + 1 :] else out[kind]) for i, kind in enumerate(first))


def stacks(module: nn.Module, like: Mapping[str, Stack] | None = None) -> tuple[Stack, ...]:
    """The stacks of a module, those inside no other one.

    Args:
        like: stacks by path that say where layers keep their number: a single layer does not show it.
    """
    from torch import nn

    found: list[Stack] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{s.path}.") for s in found)
        if isinstance(part, nn.ModuleList) and len(part) > 0 and not inside:
            found.append(_stack(path, list(part), (like or {}).get(path)))
    return tuple(found)


def elsewhere(module: nn.Module, found: Sequence[Stack]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters outside of these stacks."""
    inside = tuple(f"{s.path}." for s in found)
    return {n: tuple(p.shape) for n, p in module.named_parameters() if not n.startswith(inside)}


def _stack(path: str, layers: list[nn.Module], like: Stack | None) -> Stack:
    seen = [{(n, key): v for n, m in layer.named_modules() for key, v in _choices(m)} for layer in layers]
    found = (at for at in {a for s in seen for a in s} if _numbers([(i, s[at]) for i, s in enumerate(seen) if at in s]))
    numbers = frozenset(found) if like is None else like.numbers
    kinds = tuple(
        (_shape(layer), frozenset((at, value) for at, value in choices.items() if at not in numbers))
        for layer, choices in zip(layers, seen, strict=True)
    )
    return Stack(path, kinds, sum(p.numel() for layer in layers for p in layer.parameters()), numbers)


def _shape(layer: nn.Module) -> Hashable:
    return (
        tuple((name, type(m).__qualname__) for name, m in layer.named_modules()),
        tuple((name, tuple(p.shape)) for name, p in layer.named_parameters()),
    )


def _choices(module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    """What a module keeps beside tensors and modules; of a rate of dropout, which may grow with depth, if it is 0."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and (known := plain(value)) is not None:
            rate = isinstance(value, float) and any(
                word in name or word in type(module).__name__.lower() for word in _RATES
            )
            yield name, ("rate", value != 0) if rate else known


def plain(value: Any) -> Hashable:
    """A value that may decide what a layer does, to be compared; ``None`` for what does not."""
    if isinstance(value, bool | int | float | str):
        return type(value).__name__, value
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, Mapping):
        return tuple((str(key), plain(v)) for key, v in value.items())
    return getattr(value, "__qualname__", None)


def _numbers(values: Sequence[tuple[int, Hashable]]) -> bool:
    """Whether it is the layer's own number, counted from anywhere, in steps of one or more; or follows from it.

    A fraction that is another one in every layer does: what it changes is seen where more layers are counted.
    """
    found = [(i, v[1]) for i, v in values if isinstance(v, tuple) and v[:1] in (("int",), ("float",))]
    if len(values) < 2 or len(found) < len(values):
        return False
    if all(type(v) is int for _, v in found):
        step = (found[-1][1] - found[0][1]) // (found[-1][0] - found[0][0])
        steady = len({v - step * i for i, v in found}) == 1
        return steady and (step == 1 or (step > 1 and len(found) > 2))
    return len(found) > 2 and len({v for _, v in found}) == len(found)
