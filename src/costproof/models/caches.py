"""How many bytes a cache holds, whatever its form: keys and values, recurrent states, of one stack or of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute

if TYPE_CHECKING:
    import torch

CACHES: Final = (
    "past_key_values", "cache_params", "encoder_past_key_values", "decoder_past_key_values", "padding_cache",
)  # fmt: skip
"""What transformers calls a cache, among arguments and in results: that of a text, and of sound in pieces."""

Path = tuple[tuple[str, Any], ...]
"""How to come to what an object holds: attributes, and items of lists and dicts."""

_DEEPEST: Final = 7
"""Objects in objects that are looked into: cache, its two halves, their layers, a table of states."""


def caches_of(values: Any) -> dict[str, Any]:
    """The caches in the keyword arguments or the result of a forward, by name; else those of a result inside of it."""
    given = values if isinstance(values, Mapping) else {name: getattr(values, name, None) for name in CACHES}
    found = {name: given[name] for name in CACHES if given.get(name) is not None}
    inside = (caches_of(part) for part in given.values() if isinstance(part, Mapping))
    return found or next(filter(None, inside), {})


def is_cache(value: Any) -> bool:
    """Whether a value is an object that holds a cache; it is filled in place, by whom it is handed to."""
    return type(value).__name__.endswith("Cache") and hasattr(value, "__dict__")


def held(*caches: Any) -> int:
    """Bytes of the floating-point tensors in caches, each once; positions and lengths are not states."""
    return sum(t.nbytes for t in states(*caches))


def states(*caches: Any) -> list[torch.Tensor]:
    """The floating-point tensors in caches, each once."""
    return [leaf for _, leaf in leaves(caches) if not isinstance(leaf, int) and leaf.is_floating_point()]


def by_layer(cache: Any) -> list[int]:
    """Bytes in each layer of a cache of one stack; empty for one that has no layers."""
    return [held(layer) for layer in (cache if isinstance(cache, tuple) else getattr(cache, "layers", ()))]


def leaves(value: Any, path: Path = (), seen: set[int] | None = None) -> Iterator[tuple[Path, Any]]:
    """Tensors, each once, and integers in a cache or in several, with how to come to them; no module is looked into."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(value, int):
        yield path, value
        return
    if id(value) in seen or len(path) > _DEEPEST or isinstance(value, type | torch.nn.Module):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        parts = [("item", key, part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [("item", i, part) for i, part in enumerate(value)]
    else:
        parts = [("attribute", key, part) for key, part in attribute(value, "__dict__", {}).items()]
    for kind, key, part in parts:
        yield from leaves(part, (*path, (kind, key)), seen)
