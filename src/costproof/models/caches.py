"""How many bytes a cache holds, whatever its form: keys and values, recurrent states, of one stack or of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

CACHES: Final = ("past_key_values", "cache_params")
"""What transformers calls a cache, among arguments and in results."""

_DEEPEST: Final = 6
"""Objects in objects that are looked into: cache, its two halves, their layers, a table of states."""


def caches_of(values: Any) -> dict[str, Any]:
    """The caches in the keyword arguments or the result of a forward, by name."""
    found = {name: values.get(name) if isinstance(values, Mapping) else getattr(values, name, None) for name in CACHES}
    return {name: cache for name, cache in found.items() if cache is not None}


def is_cache(value: Any) -> bool:
    """Whether a value is an object that holds a cache; it is filled in place, by whom it is handed to."""
    return type(value).__name__.endswith("Cache") and hasattr(value, "__dict__")


def held(*caches: Any) -> int:
    """Bytes of the floating-point tensors in caches, each once; positions and lengths are not states."""
    return sum(t.nbytes for t in states(*caches))


def states(*caches: Any) -> list[torch.Tensor]:
    """The floating-point tensors in caches, each once."""
    return [t for t in _tensors(caches, set(), _DEEPEST) if t.is_floating_point()]


def by_layer(cache: Any) -> list[int]:
    """Bytes in each layer of a cache of one stack; empty for one that has no layers."""
    return [held(layer) for layer in (cache if isinstance(cache, tuple) else getattr(cache, "layers", ()))]


def _tensors(value: Any, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    import torch

    if id(value) in seen or depth < 0:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        yield value
        return
    inside = value if isinstance(value, list | tuple) else ()
    if isinstance(value, dict):
        inside = tuple(value.values())
    elif not isinstance(value, list | tuple | type | torch.nn.Module):
        inside = tuple(getattr(value, "__dict__", {}).values())
    if inside:
        seen.add(id(value))
    for part in inside:
        yield from _tensors(part, seen, depth - 1)
