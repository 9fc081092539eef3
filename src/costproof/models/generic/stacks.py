"""The stacks of layers of a module: which of their layers are alike, and for how many the kept ones stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Stack:
    """A list of layers that run one after another."""

    path: str
    """Of the list in the module."""
    kinds: tuple[Hashable, ...]
    """What each layer is, but for its number: equal for layers that cost the same."""
    shapes: tuple[Hashable, ...]
    """Classes of each layer's modules, and shapes of their parameters."""
    parameters: int
    """Elements."""

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


def stacks(module: nn.Module) -> tuple[Stack, ...]:
    """The stacks of a module, those inside no other one."""
    from torch import nn

    found: list[Stack] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{s.path}.") for s in found)
        if isinstance(part, nn.ModuleList) and len(part) > 0 and not inside:
            found.append(_stack(path, list(part)))
    return tuple(found)


def elsewhere(module: nn.Module, found: Sequence[Stack]) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters outside of these stacks."""
    inside = tuple(f"{s.path}." for s in found)
    return {n: tuple(p.shape) for n, p in module.named_parameters() if not n.startswith(inside)}


def _stack(path: str, layers: list[nn.Module]) -> Stack:
    seen = [{(n, key): v for n, m in layer.named_modules() for key, v in _choices(m)} for layer in layers]
    numbers = {
        at for at in {a for s in seen for a in s} if _numbers([(i, s[at]) for i, s in enumerate(seen) if at in s])
    }
    shapes = tuple(map(_shape, layers))
    kinds = tuple(
        (shape, frozenset((at, value) for at, value in choices.items() if at not in numbers))
        for shape, choices in zip(shapes, seen, strict=True)
    )
    return Stack(path, kinds, shapes, sum(p.numel() for layer in layers for p in layer.parameters()))


def _shape(layer: nn.Module) -> Hashable:
    return (
        tuple((name, type(m).__qualname__) for name, m in layer.named_modules()),
        tuple((name, tuple(p.shape)) for name, p in layer.named_parameters()),
    )


def _choices(module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    """What a module keeps beside tensors and modules; of a fraction, such as a rate of dropout, whether it is 0."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and (known := plain(value)) is not None:
            yield name, known


def plain(value: Any) -> Hashable:
    """A value that may decide what a layer does, to be compared; ``None`` for what does not."""
    if isinstance(value, float):
        return ("float", value != 0)
    if isinstance(value, bool | int | str):
        return type(value).__name__, value
    if isinstance(value, tuple | list) and all(isinstance(v, bool | int | str) for v in value):
        return tuple(value)
    return getattr(value, "__qualname__", None)


def _numbers(values: Sequence[tuple[int, Hashable]]) -> bool:
    """Whether it is the layer's own number, counted from anywhere."""
    found = {v[1] - i if isinstance(v, tuple) and v[0] == "int" else None for i, v in values}
    return len(values) > 1 and len(found) == 1 and None not in found
