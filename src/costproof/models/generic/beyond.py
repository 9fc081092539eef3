"""What a class does beyond the configuration, and a server does not: all experts for every token, copied heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.models.generic.copies import runs_on_meta
from costproof.models.generic.own_cache import OwnCache

if TYPE_CHECKING:
    from torch import nn

_CACHED: Final = ("num_kv_heads", "num_key_value_heads")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_PASSED: Final = "num_experts_per_tok"
_ROWS: Final = (2, 3)
"""Batch and length of the run that shows how many rows enter the experts."""


def beyond(module: nn.Module, text: Any, cache: object) -> tuple[str, ...]:
    """Return a note for each number of the configuration that the class exceeds.

    Args:
        module: the model, on meta.
        text: the configuration of its decoder.
        cache: what it keeps.
    """
    return tuple(filter(None, (_cached(text, cache), _experts(module, text))))


def _cached(text: Any, cache: object) -> str | None:
    named = next((n for key in _CACHED if isinstance(n := attribute(text, key), int)), None)
    if named is None or not isinstance(cache, OwnCache):
        return None
    heads = max(layer.keys[0] for layer in cache.layers)
    if heads <= named:
        return None
    return f"the class caches keys and values of {heads} heads; the configuration names {named}, which servers cache"


def _experts(module: nn.Module, text: Any) -> str | None:
    import torch

    count = next((n for key in _EXPERTS if isinstance(n := attribute(text, key), int)), None)
    passed = attribute(text, _PASSED)
    if count is None or not isinstance(passed, int) or passed >= count:
        return None
    rows: set[int] = set()
    stacked = [m for m in module.modules() if any(p.dim() == 3 and p.shape[0] == count for p in _own(m))]
    hooks = [m.register_forward_pre_hook(_noting(rows)) for m in stacked]
    try:
        runs_on_meta(module, {"input_ids": torch.zeros(_ROWS, dtype=torch.long, device="meta")})
    finally:
        for hook in hooks:
            hook.remove()
    if count * _ROWS[0] * _ROWS[1] not in rows:
        return None
    return f"the class runs all {count} experts for every token; the configuration names {passed}, which servers run"


def _own(module: nn.Module) -> list[Any]:
    return [p for p in module._parameters.values() if p is not None]


def _noting(rows: set[int]) -> Callable[..., None]:
    def note(module: nn.Module, args: Any) -> None:
        rows.update(int(a.numel()) // int(a.shape[-1]) for a in args[:1] if attribute(a, "shape"))

    return note
