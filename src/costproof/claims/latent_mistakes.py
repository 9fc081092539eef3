"""Latent attention taken for another one: queries, keys and values straight from the hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from costproof.claims.effects import Effect, Items, changed
from costproof.claims.items import Item
from costproof.ledger.metrics import Metric

METRICS: Final = frozenset({
    "flops", "params", "params_active", "weight_bytes", "weight_read_bytes", "kv_cache_bytes", "kv_read_bytes"
})  # fmt: skip
"""What follows from the sizes alone; other bytes are those of other operators too."""
_NO_MORE: Final = frozenset({"q_up", "q_norm", "kv_up", "kv_norm"})


def effects(items: Items, metric: Metric) -> Iterator[Effect]:
    """Attention with as many key/value heads as a power of two, every head hidden / heads wide.

    A wrong model has the number of heads from its own catalogue: nothing here says which, so each is a cause.
    """
    if metric not in METRICS:
        return
    latent = {i.tower: i.values for i in items if i.owner == "latent_attention" or i.part == "kv_up"}
    for tower, values in sorted(latent.items()):
        heads, width = values.get(f"{tower}_heads", 0), f"{tower}_hidden/{tower}_heads"

        def here(i: Item, tower: str = tower) -> bool:
            return i.on and i.tower == tower and i.within("attention")

        for number in (n for n in (1 << k for k in range(heads.bit_length())) if heads % n == 0):
            what = f"{number} heads of keys and values, all hidden / heads wide, in place of latents"
            # What went down to latents makes queries, keys and values; nothing goes up from there.
            sizes = {"q_rank": "hidden", "kv_rank": f"2*{number}*{width}", "nope": width, "value": width, "rope": "0"}
            direct = changed(items, f"MLA as GQA: {number}", "latents", what, here, **sizes)
            gone = {i: Fraction(0) for i, item in enumerate(items) if here(item) and item.part in _NO_MORE}
            yield Effect(direct.cause, direct.family, what, {**direct.factors, **gone})
