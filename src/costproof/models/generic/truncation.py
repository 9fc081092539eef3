"""Truncate a configuration to fewer layers, and count the original layers that each remaining one represents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.specs import EACH_KIND, Truncation, layers_cut

if TYPE_CHECKING:
    from torch import nn


_RATES: Final = ("drop", "prob")
"""Words in the names of dropout rates and dropout modules."""


LayerSignature = tuple[Hashable, frozenset[tuple[Hashable, Hashable]]]
"""Kind of a layer: classes of its modules, shapes of its parameters, and other attributes, by module path."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Stack of layers in a module, such as a ``ModuleList`` that runs in order, with the kind of each layer."""

    path: str
    """Path of the ``ModuleList`` of layers."""
    kinds: tuple[LayerSignature, ...]
    """Kind of each layer without its index: classes of its modules, shapes of its parameters, other attributes.
    Layers with equal costs have equal kinds."""
    parameters: int
    """Number of parameter elements of the whole stack."""
    numbers: frozenset[tuple[str, str]] = frozenset()
    """Attributes in which layers store their own index, as (path in the layer, attribute)."""

    def begins(self, whole: Stack) -> bool:
        """Return whether these layers have the kinds of the first layers of ``whole``."""
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
        """Return the minimum number of first layers that includes every kind."""
        return max(self.kinds.index(kind) for kind in self.kinds) + 1

    def more(self, kept: int) -> int:
        """Return the minimum number of layers, above ``kept``, that includes every kind missing in ``kept`` layers."""
        out = self.kinds[kept:]
        return kept + max((out.index(kind) + 1 for kind in out), default=0)

    def times(self, kept: int) -> tuple[int, ...]:
        """Return how many layers of the whole stack each of the first ``kept`` layers represents.

        The last remaining layer of a kind represents itself and all omitted layers of that kind.
        """
        out = Counter(self.kinds[kept:])
        first = self.kinds[:kept]
        return tuple(1 + (0 if kind in first[i + 1 :] else out[kind]) for i, kind in enumerate(first))


def stacks(module: nn.Module, like: Mapping[str, Stack] | None = None) -> tuple[Stack, ...]:
    """Return the outermost stacks of layers in a module.

    Args:
        like: stacks by path whose ``numbered`` attributes are reused, because one layer does not reveal them.
    """
    from torch import nn

    found: list[Stack] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{s.path}.") for s in found)
        if isinstance(part, nn.ModuleList) and len(part) > 0 and not inside:
            found.append(_stack(path, list(part), (like or {}).get(path)))
    return tuple(found)


def elsewhere(module: nn.Module, found: Sequence[Stack]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters outside of these stacks of layers, by name."""
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
    """Yield the plain attributes of a module, which decide its kind.

    Dropout rates, which may grow with depth, are reduced to whether they are zero.
    """
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and (known := plain(value)) is not None:
            rate = isinstance(value, float) and any(
                word in name or word in type(module).__name__.lower() for word in _RATES
            )
            yield name, ("rate", value != 0) if rate else known


def plain(value: Any) -> Hashable:
    """Return an attribute value in a form that can be compared between layers; ``None`` if it is not plain data."""
    if isinstance(value, bool | int | float | str):
        return type(value).__name__, value
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, Mapping):
        return tuple((str(key), plain(v)) for key, v in value.items())
    return getattr(value, "__qualname__", None)


def _numbers(values: Sequence[tuple[int, Hashable]]) -> bool:
    """Return whether an attribute is the layer's index or a linear function of it.

    Fractions that differ in every layer count as such; their effect shows when more layers are counted.
    """
    found = [(i, v[1]) for i, v in values if isinstance(v, tuple) and v[:1] in (("int",), ("float",))]
    if len(values) < 2 or len(found) < len(values):
        return False
    if all(type(v) is int for _, v in found):
        step = (found[-1][1] - found[0][1]) // (found[-1][0] - found[0][0])
        steady = len({v - step * i for i, v in found}) == 1
        return steady and (step == 1 or (step > 1 and len(found) > 2))
    return len(found) > 2 and len({v for _, v in found}) == len(found)


_NUMBER: Final = re.compile(r"layer|depth|(num|n)_.*block|blocks")
"""Names of keys that may be a number of layers; sizes of blocks are excluded."""
_PLACES: Final = re.compile(r"^[^_].*(layer|block|idx|index|indic)|^(layer|block|idx|index|indic)")
"""Names of keys that may list layer indices; lists of token ids are excluded."""
Edits = tuple[tuple[str, Any], ...]
"""Pairs of a dotted configuration key and its new value, hashable: an integer, a string, or a tuple for a list."""


@dataclass(frozen=True, slots=True)
class CutModel:
    """Configuration changes that truncate a model to its first layers, and the resulting truncation."""

    edits: Edits
    """Changed values of the configuration; empty if all layers remain."""
    cut: tuple[tuple[str, str], ...]
    """Remaining layers of each truncated stack, by path: ``model.layers`` has ``2 of 32 layers``."""
    stretch: Truncation


def first_layers(
    config: Callable[[], Any], build: Callable[[Edits], nn.Module], layers: int, *, more: bool = False
) -> CutModel:
    """Return the configuration changes that keep the first layers of every stack, enough to have all kinds.

    A stack is not truncated if no key sets its length, or if more than half of its layers would remain.

    Args:
        config: a fresh configuration.
        build: returns the model on meta for edits of the configuration.
        more: whether every stack gets one more layer of each kind that is left out.

    Raises:
        BadInput: the largest stack has fewer layers, or no key of the configuration cuts it.
    """
    whole = build(())
    known = {s.path: s for s in stacks(whole)}
    if not known:
        raise _refused("it has no stack of layers")
    counted: dict[str, list[Stack]] = {}
    alone: set[str] = set()
    for key, value in _counts(config()):
        if any(len(s.kinds) == value for s in known.values()):
            counted[key] = _counted_by(_edits, key, value, config(), build, known)
            # A list of as many values may be about another stack that is as deep.
            if not counted[key] and (found := _counted_by(_alone, key, value, config(), build, known)):
                counted[key], alone = found, alone | {key}
    keys = {key: [_as_configured(s, config(), key) for s in found] for key, found in counted.items() if found}
    main = max(known.values(), key=lambda s: s.parameters)
    own = next((key for key, found in keys.items() if any(s.path == main.path for s in found)), None)
    if own is None:
        raise _refused(f"no key of its configuration counts the layers of {main.path} alone")
    if layers == len(main.kinds):
        return CutModel((), (), Truncation(sum(p.numel() for p in whole.parameters())))
    cut: list[tuple[str, str]] = []
    edits: dict[str, Any] = {}
    least = next(max(s.least for s in found) for key, found in keys.items() if key == own)
    layers_cut(f"stack {main.path}", layers, least, len(main.kinds))
    for key, found in keys.items():
        least, most = max(s.least for s in found), len(found[0].kinds)
        kept = min(max(layers, least), most)
        if key != own and 2 * kept > most:
            continue
        kept = max(s.more(kept) for s in found) if more else kept
        if kept < most:
            edits |= (_alone if key in alone else _edits)(config(), key, most, kept)
            # What counts the same layers once more, under another name, goes along.
            edits |= {k: kept for k in counted if not counted[k] and _alike(key, k, config())}
            asked = f" ({layers} asked: {EACH_KIND})" if kept > layers and not more else ""
            cut += [(s.path, f"{kept} of {most} layers{asked}") for s in found]
    made = tuple(edits.items())
    small = build(made)
    _begins(known, stacks(small, like=known))
    stretch = _stretch(whole, {**known, **{s.path: s for found in keys.values() for s in found}}, small)
    return CutModel(made, tuple(cut), stretch)


def edited(config: Any, edits: Edits) -> Any:
    """Return the configuration with changed values."""
    for key, value in edits:
        place, name = _place(config, key)
        setattr(place, name, list(value) if isinstance(value, tuple) else value)
    return config


def _place(config: Any, key: str) -> tuple[Any, str]:
    *above, name = key.split(".")
    for part in above:
        config = getattr(config, part)
    return config, name


def _counts(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Return the keys that may count layers, also in nested configurations, and their values."""
    from transformers import PretrainedConfig

    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            yield from _counts(value, f"{prefix}{name}.")
        elif not name.startswith("_") and _NUMBER.search(name):
            # Some have no number beside the list of what each layer is.
            count = len(value) if isinstance(value, list | tuple) else value
            if isinstance(count, int) and count > 1:
                yield f"{prefix}{name}", count


def _alone(config: Any, key: str, most: int, kept: int) -> dict[str, Any]:
    """Return the changes that set only the key with the number of layers."""
    place, name = _place(config, key)
    value = getattr(place, name)
    return {key: kept if isinstance(value, int) else tuple(value[:kept])}


def _edits(config: Any, key: str, most: int, kept: int) -> dict[str, Any]:
    """Return the changes that set the number of layers and shorten the per-layer lists beside its key."""
    place, name = _place(config, key)
    prefix = key.removesuffix(name)
    found: dict[str, Any] = {key: kept}
    for other, value in vars(place).items():
        if _some(other, value, most):
            found[f"{prefix}{other}"] = tuple(v for v in value if v < kept)
        elif _each(other, value, most):
            found[f"{prefix}{other}"] = value[:kept] if isinstance(value, str) else tuple(value[:kept])
    return found


def _each(name: str, value: Any, most: int) -> bool:
    """Return whether a configuration value has one entry per layer, as a list or a pattern such as ``M-M*``."""
    listed = isinstance(value, list | tuple) or (isinstance(value, str) and "pattern" in name)
    return listed and len(value) == most and not name.startswith("_")


def _some(name: str, value: Any, most: int) -> bool:
    """Return whether a configuration value is a list of layer indices of a stack, in any order."""
    listed = isinstance(value, list | tuple) and len(value) > 0 and all(type(v) is int and v >= 0 for v in value)
    if not (listed and len({*value}) == len(value) and _PLACES.search(name)):
        return False
    # Of as many different numbers as layers, each may be of one layer.
    return bool(max(value) < most if len(value) == most else min(value) < most)


def _as_configured(stack: Stack, config: Any, key: str) -> Stack:
    """Return the stack with the per-layer values of the configuration added to the kinds of its layers."""
    place, _ = _place(config, key)
    most = len(stack.kinds)
    said: dict[str, Sequence[Hashable]] = {}
    for name, value in vars(place).items():
        if _some(name, value, most):
            said[name] = [i in value for i in range(most)]
        elif _each(name, value, most):
            said[name] = [plain(v) for v in value]
    more = [frozenset((name, each[i]) for name, each in said.items()) for i in range(most)]
    return replace(stack, kinds=tuple((made, kept | own) for (made, kept), own in zip(stack.kinds, more, strict=True)))


def _counted_by(
    edits: Callable[[Any, str, int, int], dict[str, Any]],
    key: str,
    most: int,
    config: Any,
    build: Callable[[Edits], nn.Module],
    known: Mapping[str, Stack],
) -> list[Stack]:
    """Return the stacks whose length a configuration key sets, found by building with a smaller value."""
    for kept in dict.fromkeys((1, most - 1)):
        with suppress(Incomplete, BadInput):
            now = {s.path: len(s.kinds) for s in stacks(build(tuple(edits(config, key, most, kept).items())))}
            return [s for s in known.values() if len(s.kinds) == most and now.get(s.path) == kept]
    return []


def _alike(key: str, other: str, config: Any) -> bool:
    """Return whether two keys of the same configuration object have the same value."""
    (place, name), (beside, second) = _place(config, key), _place(config, other)
    return place is beside and getattr(place, name) == getattr(beside, second)


def _begins(known: Mapping[str, Stack], now: Sequence[Stack]) -> None:
    """Check that the stacks of a truncated model equal the first layers of the whole model's stacks.

    Raises:
        BadInput: it does not.
    """
    if missing := sorted(known.keys() - {s.path for s in now}):
        raise _refused(f"with fewer layers, the model has no {missing[0]}")
    for stack in now:
        if not stack.begins(known[stack.path]):
            raise _refused(f"with fewer layers, the layers that remain in {stack.path} change")


def _stretch(whole: nn.Module, known: Mapping[str, Stack], cut: nn.Module) -> Truncation:
    """Return how many layers of the whole model each remaining layer represents.

    Raises:
        BadInput: it does not consist of the first layers of the whole model.
    """
    now = {s.path: s for s in stacks(cut)}
    was, rest = (elsewhere(m, tuple(known.values())) for m in (whole, cut))
    if other := sorted(name for name in was.keys() | rest.keys() if was.get(name) != rest.get(name)):
        raise _refused(f"with fewer layers, {other[0]} changes its shape")
    times = ((path, s.times(len(now[path].kinds))) for path, s in known.items() if len(s.kinds) > len(now[path].kinds))
    return Truncation(sum(p.numel() for p in whole.parameters()), tuple(times))


def _refused(why: str) -> BadInput:
    return BadInput(
        "this model cannot be cut to fewer layers",
        where="--layers",
        got=why,
        fix="leave out --layers, or set fewer layers in the configuration",
    )
