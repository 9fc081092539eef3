"""Latent attention taken for another one: queries, keys and values straight from the hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from costproof.claims.decoder_mistakes import keys
from costproof.claims.effects import ClaimTerms, Effect, changed, scaled
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import Metric

METRICS: Final = frozenset({
    "flops", "params", "params_active", "weight_bytes", "weight_read_bytes", "kv_cache_bytes", "kv_read_bytes"
})  # fmt: skip
"""What follows from the sizes alone; other bytes are those of other operators too."""
_NO_MORE: Final = frozenset({"q_up", "q_norm", "kv_up", "kv_norm"})
EXPANDED: Final = "latent_attention"
ABSORBED: Final = "absorbed_attention"
_ONE: Final = ("one decode step",)
"""Beside it each would take another form."""


def effects(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """Decode steps in another way; attention with as many heads of keys as a power of two, each hidden / heads wide.

    A wrong model has the number of heads from its own catalogue: nothing here says which, so each is a cause.
    """
    if metric not in METRICS:
        return
    yield from _decoded(terms, metric)
    latent = {i.tower: i.values for i in terms if i.owner == EXPANDED or i.part == "kv_up"}
    for tower, values in sorted(latent.items()):
        heads, width = values.get(f"{tower}_heads", 0), f"{tower}_hidden/{tower}_heads"

        def here(i: ClaimTerm, tower: str = tower) -> bool:
            return i.counted and i.tower == tower and i.within("attention")

        for number in (n for n in (1 << k for k in range(heads.bit_length())) if heads % n == 0):
            what = f"{number} heads of keys and values, all hidden / heads wide, in place of latents"
            # What went down to latents makes queries, keys and values; nothing goes up from there.
            sizes = {"q_rank": "hidden", "kv_rank": f"2*{number}*{width}", "nope": width, "value": width, "rope": "0"}
            direct = changed(terms, f"MLA as GQA: {number}", "latents", what, here, **sizes)
            gone = {i: Fraction(0) for i, term in enumerate(terms) if here(term) and term.part in _NO_MORE}
            yield Effect(direct.cause, direct.family, what, {**direct.factors, **gone})


def _decoded(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """Three ways of decoding, each taken for another: latents expanded, absorbed, or keys and values in the cache."""

    def owned(i: ClaimTerm, owner: str, *kinds: str) -> bool:
        return i.counted and i.owner == owner and "N" in i.values and i.kind in (kinds or (i.kind,))

    def up(i: ClaimTerm) -> bool:
        return i.counted and i.part == "kv_up" and "N" in i.values

    def narrow(i: ClaimTerm) -> Fraction:
        return Fraction(_size(i, "nope") + _size(i, "rope") + _size(i, "value"))

    def wide(i: ClaimTerm) -> Fraction:
        return Fraction(2 * _size(i, "kv_rank") + _size(i, "rope"))

    if metric == "flops":
        once = scaled(terms, up, lambda i: Fraction(i.values["N"], keys(i)))
        widened = scaled(terms, lambda i: owned(i, EXPANDED, "attention"), lambda i: wide(i) / narrow(i))
        what = "decode steps absorb the expansion of latents; here every step expands the whole context"
        yield Effect("MLA absorbed", "latents", what, once | widened, excludes=_ONE)
        what = "decode steps expand the new latent alone; here no expanded keys and values are kept"
        yield Effect("MLA expanded once", "latents", what, once, excludes=_ONE)
        every = scaled(terms, lambda i: owned(i, ABSORBED, "matmul"), lambda i: Fraction(keys(i), i.values["N"]))
        narrowed = scaled(terms, lambda i: owned(i, ABSORBED, "attention"), lambda i: narrow(i) / wide(i))
        what = "every decode step expands the latents of the whole context; here the expansion is absorbed"
        yield Effect("MLA expanded in every step", "latents", what, every | narrowed, excludes=_ONE)
    if metric in ("kv_cache_bytes", "kv_read_bytes"):
        what = "the cache holds keys and values of every head; here it holds latents"
        held = scaled(
            terms,
            lambda i: i.counted and i.owner in (EXPANDED, ABSORBED),
            lambda i: _size(i, "heads") * narrow(i) / (_size(i, "kv_rank") + _size(i, "rope")),
        )
        yield Effect("MLA cached expanded", "latents", what, held)


def _size(term: ClaimTerm, name: str) -> int:
    return term.values[f"{term.tower}_{name}"]
