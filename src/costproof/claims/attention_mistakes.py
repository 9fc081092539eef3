"""Define known mistakes in counting latent attention, windowed layers, and batches of unequal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from costproof.algebra.identity import free_symbols
from costproof.algebra.series import CACHED
from costproof.claims.effects import (
    CACHE,
    FLOPS,
    ClaimTerms,
    Mistake,
    MistakeSeries,
    MistakeTable,
    TermChange,
    left_out,
    stands_for,
    substituted,
)
from costproof.claims.mistakes import HALVES, ONE_STEP, TRIANGLE, keys
from costproof.claims.terms import LONGEST_CONTEXT, LONGEST_NEW, ClaimTerm, band, causal, triangles
from costproof.ledger.metrics import KEPT_SCORES, Metric

# --- Latent attention ------------------------------------------------------------------------------------------------

_OF_SIZES: Final = frozenset[Metric]({
    "flops", "params", "params_active", "weight_bytes", "weight_read_bytes", "kv_cache_bytes", "kv_read_bytes"
})  # fmt: skip
"""Metrics that the model's sizes determine; other bytes also depend on the operators that run."""
_GOING_UP: Final = frozenset({"q_up", "q_norm", "kv_up", "kv_norm"})
_EXPANDED: Final = "latent_attention"
_ABSORBED: Final = "absorbed_attention"


def _size(term: ClaimTerm, name: str) -> int:
    return term.values[f"{term.tower}_{name}"]


def _narrow(term: ClaimTerm) -> Fraction:
    return Fraction(_size(term, "nope") + _size(term, "rope") + _size(term, "value"))


def _wide(term: ClaimTerm) -> Fraction:
    return Fraction(2 * _size(term, "kv_rank") + _size(term, "rope"))


def _owned(owner: str, kind: str) -> Callable[[ClaimTerm], bool]:
    return lambda t: t.counted and t.owner == owner and "N" in t.values and t.kind == kind


_EXPANDED_ONCE: Final = TermChange(
    lambda t: t.counted and t.part == "kv_up" and "N" in t.values, lambda t: Fraction(t.values["N"], keys(t))
)
_WIDENED: Final = TermChange(_owned(_EXPANDED, "attention"), lambda t: _wide(t) / _narrow(t))
_EXPANDED_EACH_STEP: Final = TermChange(_owned(_ABSORBED, "matmul"), lambda t: Fraction(keys(t), t.values["N"]))
_NARROWED: Final = TermChange(_owned(_ABSORBED, "attention"), lambda t: _narrow(t) / _wide(t))
_HELD_EXPANDED: Final = TermChange(
    lambda t: t.counted and t.owner in (_EXPANDED, _ABSORBED),
    lambda t: _size(t, "heads") * _narrow(t) / (_size(t, "kv_rank") + _size(t, "rope")),
)


def _grouped(terms: ClaimTerms, _: Mapping[str, int]) -> Iterator[Mistake]:
    """Yield the mistakes of counting latent attention as grouped-query attention with some number of heads.

    The numbers of heads are the powers of two that divide the number of query heads; each head has the width
    hidden / heads. Nothing in the model determines which number the author of a claim assumed.
    """
    latent = {t.tower: t.values for t in terms if t.owner == _EXPANDED or t.part == "kv_up"}
    for tower, values in sorted(latent.items()):
        heads, width = values.get(f"{tower}_heads", 0), f"{tower}_hidden/{tower}_heads"

        def here(t: ClaimTerm, tower: str = tower) -> bool:
            return t.counted and t.tower == tower and t.within("attention")

        def up(t: ClaimTerm, here: Callable[[ClaimTerm], bool] = here) -> bool:
            return here(t) and t.part in _GOING_UP

        for number in (n for n in (1 << k for k in range(heads.bit_length())) if heads % n == 0):
            what = f"{number} K/V heads, hidden / heads wide, not latents"
            # The down-projections produce queries, keys and values directly; there are no up-projections.
            sizes = {"q_rank": "hidden", "kv_rank": f"2*{number}*{width}", "nope": width, "value": width, "rope": "0"}
            yield Mistake(f"MLA as GQA: {number}", "latents", what, (substituted(here, **sizes), left_out(up)))


LATENTS: Final[MistakeTable] = (
    Mistake("MLA absorbed", "latents",
            "decode absorbs the expansion of latents; here every step expands the whole context",
            (_EXPANDED_ONCE, _WIDENED), metrics=FLOPS, excludes=(ONE_STEP,)),
    Mistake("MLA expanded once", "latents",
            "decode expands only the new latent; here no expanded K/V are kept",
            (_EXPANDED_ONCE,), metrics=FLOPS, excludes=(ONE_STEP,)),
    Mistake("MLA expanded in every step", "latents",
            "every decode step expands the whole context; here the expansion is absorbed",
            (_EXPANDED_EACH_STEP, _NARROWED), metrics=FLOPS, excludes=(ONE_STEP,)),
    Mistake("MLA cached expanded", "latents", "the cache holds K/V of every head, not latents",
            (_HELD_EXPANDED,), metrics=CACHE),
    MistakeSeries("MLA as GQA: HEADS", "so many K/V heads, hidden / heads wide, not latents",
                  _grouped, _OF_SIZES),
)  # fmt: skip


# --- Windows ---------------------------------------------------------------------------------------------------------

_KV_CACHE: Final = frozenset[Metric]({"kv_cache_bytes"})
_ONE_LAYER: Final = ("one layer",)
"""Cause to exclude, since a count of a single layer does not tell whether the layer has a window."""
_BLOCKS: Final = (16, 32, 64, 128)
"""Block sizes of paged key/value caches in common inference engines, in tokens."""


Pairs = Callable[[ClaimTerm, int], Fraction]
"""Function that returns the fraction of a prompt's scores that a mistake counts, from (term, window or chunk)."""


def _in_windows(form: Pairs) -> TermChange:
    return TermChange(
        lambda t: (
            t.counted
            and t.prompt_scores
            and not t.in_rows
            and 0 < t.window < t.values["S"] + t.values.get(CACHED.name, 0)
        ),
        lambda t: form(t, t.window),
    )


def _in_chunks(form: Pairs) -> TermChange:
    return TermChange(lambda t: t.counted and t.prompt_scores and t.chunk > 0, lambda t: form(t, t.chunk))


def _masked(
    width: str, exact: str, layers: str, change: Callable[[Pairs], TermChange], pairs: Callable[[int, int, int], int]
) -> Iterator[Mistake]:
    """Yield the mistakes of counting only the scores that a window or chunks leave; the truth counts all scores.

    Args:
        width: name of the mistake of counting S times the width.
        exact: name of the mistake of counting the exact pairs of a query and a key.
        layers: the layers, for reports.
        change: the change of their scores.
        pairs: (S, width, past) -> pairs of a query and a key that the mask leaves.
    """

    def row(cause: str, what: str, form: Pairs, requires: str = "", excludes: tuple[str, ...] = ()) -> Mistake:
        return Mistake(cause, cause.partition(" ")[0], what, (change(form),), metrics=FLOPS, requires=requires,
                       excludes=excludes)  # fmt: skip

    def exactly(t: ClaimTerm, w: int) -> Fraction:
        return Fraction(pairs(t.values["S"], w, t.values.get(CACHED.name, 0)), t.pairs)

    def by_size(t: ClaimTerm, w: int) -> Fraction:
        return Fraction(t.values["S"] * w, t.pairs)

    def of_triangle(t: ClaimTerm) -> Fraction:
        return Fraction(t.pairs, causal(t.values["S"], t.past))

    by_width = f"{layers} have {width.partition(' ')[2]} scores"
    by_pairs = f"{layers} have the scores that the mask leaves"
    # Combined with "causal half" the width counts half of itself; combined with the exact triangle, all of it.
    yield row(width, by_width, by_size, excludes=(TRIANGLE,))
    yield row(width, by_width, lambda t, w: by_size(t, w) * of_triangle(t), requires=TRIANGLE)
    yield row(exact, by_pairs, exactly, excludes=(TRIANGLE, *HALVES))
    yield row(exact, by_pairs, lambda t, w: exactly(t, w) * of_triangle(t), requires=TRIANGLE)
    yield row(exact, by_pairs, lambda t, w: exactly(t, w) * 2, requires="causal half")
    yield row(exact, by_pairs, lambda t, w: exactly(t, w) * Fraction(9, 5), requires="causal 1.8")
    yield row(f"{width}, not halved", f"{layers} have {width.partition(' ')[2]} scores, others a half",
              lambda t, w: by_size(t, w) * 2, requires="causal half")  # fmt: skip


def _stepping(term: ClaimTerm) -> bool:
    return term.counted and term.window > 0 and term.owner == "attention" and {"N", "P"} <= term.values.keys()


def _seen(term: ClaimTerm, most: int | None, own: int = 1) -> int:
    """Return the total number of keys that N decode steps attend to, with at most ``most`` keys in each step.

    Args:
        term: the term of the decode steps, which has the symbols N (steps) and P (tokens of context before them).
        most: the largest number of keys of one step; no limit if ``None``.
        own: 1 if a step attends to its own token too, 0 if only cached tokens count.
    """
    first, steps = term.values["P"] + own, term.values["N"]
    growing = steps if most is None else max(0, min(steps, most - first))
    return growing * first + growing * (growing - 1) // 2 + (steps - growing) * (most or 0)


def _whole_context(term: ClaimTerm) -> Fraction:
    return Fraction(_seen(term, None), _seen(term, term.window))


def _whole_context_once(term: ClaimTerm) -> Fraction:
    return Fraction(term.values["P"] + 1, min(term.values["P"] + 1, term.window))


def _cached(term: ClaimTerm) -> bool:
    return term.counted and term.window > 0


def _cached_in_full(term: ClaimTerm) -> Fraction | None:
    return Fraction(term.values["S"], min(term.values["S"], term.window - 1)) if "S" in term.values else None


def _read_in_full(term: ClaimTerm) -> Fraction | None:
    held = _seen(term, term.window - 1, 0)
    return Fraction(_seen(term, None, 0), held) if held else None


def _wider(term: ClaimTerm) -> Fraction | None:
    full = term.values.get("S", term.values.get("P", 0)) >= term.window
    return Fraction(term.window, term.window - 1) if full else None


def _in_full(metric: Metric, factor: Callable[[ClaimTerm], Fraction | None]) -> Mistake:
    what = "window layers cache all tokens"
    return Mistake(
        "windows cached in full", "window", what, (TermChange(_cached, factor),), adds=stands_for("beyond the window"),
        metrics=frozenset({metric}), excludes=_ONE_LAYER,
    )  # fmt: skip


def _in_blocks(size: int) -> Mistake:
    """Return the mistake of counting whole cache blocks of ``size`` tokens, as paged caches of inference engines do.

    Args:
        size: tokens in a block.
    """

    def held(tokens: int) -> int:
        return -(-tokens // size) * size

    def factor(term: ClaimTerm) -> Fraction | None:
        v = term.values
        if "S" in v:
            tokens = min(v["S"], term.window - 1) if term.window else v["S"]
            return Fraction(held(tokens), tokens)
        if {"N", "P"} <= v.keys() and not term.window:
            return Fraction(held(v["P"] + v["N"]) - held(v["P"]), v["N"])
        return None

    what = f"every sequence caches whole blocks of {size} tokens"
    changes = (TermChange(lambda t: t.counted, factor),)
    return Mistake(f"blocks of {size} tokens", "blocks", what, changes, metrics=_KV_CACHE)


WINDOWS: Final[MistakeTable] = (
    *_masked("window S x W", "window band", "window layers", _in_windows, band),
    *_masked("chunk S x C", "chunk triangles", "chunked layers", _in_chunks, triangles),
    Mistake("windows as full attention", "window", "window layers attend to the whole context",
            (TermChange(_stepping, _whole_context),), metrics=FLOPS, excludes=(ONE_STEP,)),
    Mistake("windows as full attention", "window", "window layers attend to the whole context",
            (TermChange(_stepping, _whole_context_once),), metrics=FLOPS, requires=ONE_STEP),
    _in_full("kv_cache_bytes", _cached_in_full),
    _in_full("kv_read_bytes", _read_in_full),
    Mistake("window cached with its own token", "window",
            "window layers cache W tokens, not W - 1",
            (TermChange(_cached, _wider),), metrics=CACHE, excludes=_ONE_LAYER),
    Mistake("cache of windows missing", "window", "window layers have no cache", (left_out(_cached),),
            metrics=CACHE, excludes=_ONE_LAYER),
    *map(_in_blocks, _BLOCKS),
)  # fmt: skip


# --- Rows ------------------------------------------------------------------------------------------------------------

_KEPT: Final = frozenset[Metric]({KEPT_SCORES})


def _row_scores(term: ClaimTerm) -> bool:
    return term.counted and term.in_rows and term.owner == "packed_attention" and not term.window


def _of_every_row(term: ClaimTerm) -> bool:
    return term.counted and term.in_rows and not term.scores and "S" in free_symbols(term.expr or "0")


def _half(term: ClaimTerm, squares: int) -> Fraction:
    """Return the number of pairs that a causal mask leaves among S new tokens, S (S + 1) / 2, summed over the rows."""
    return Fraction(squares + term.over_rows("S"), 2)


def _padded(term: ClaimTerm) -> int:
    return term.over_rows("B") * term.values[LONGEST_NEW]


def _in_rows(
    cause: str, what: str, every: Callable[[ClaimTerm], int], kept: Callable[[ClaimTerm], Fraction], *more: TermChange
) -> Iterator[Mistake]:
    """Yield a mistake in the query-key pairs of unequal rows, as all scores, half of them, or kept scores.

    Args:
        every: pairs that it counts in place of the sum of B S (C + S) over rows.
        kept: pairs that it counts in place of the sum of B (S C + S (S + 1) / 2).
        more: changes of other work.
    """

    def of_kept(t: ClaimTerm) -> Fraction:
        return kept(t) / (t.over_rows("SC") + _half(t, t.over_rows("SS")))

    whole = TermChange(_row_scores, lambda t: Fraction(every(t), t.over_rows("SS") + t.over_rows("SC")))
    yield Mistake(cause, "rows", what, (whole, *more), metrics=FLOPS, excludes=(TRIANGLE,))
    yield Mistake(cause, "rows", what, (TermChange(_row_scores, of_kept), *more), metrics=FLOPS, requires=TRIANGLE)
    yield Mistake(cause, "rows", what, (TermChange(_row_scores, of_kept),), metrics=_KEPT)


ROWS: Final[MistakeTable] = (
    *_in_rows("rows as one sequence", "tokens of all rows attend to each other",
              lambda t: t.values["S"] ** 2, lambda t: Fraction(t.values["S"] * (t.values["S"] + 1), 2)),
    *_in_rows("pairs of the prefix missing", "new tokens attend to no cached ones",
              lambda t: t.over_rows("SS"), lambda t: _half(t, t.over_rows("SS"))),
    *_in_rows("rows padded to the longest", "every sequence has the most new tokens and the longest context",
              lambda t: _padded(t) * t.values[LONGEST_CONTEXT],
              lambda t: _padded(t) * (t.values[LONGEST_CONTEXT] - Fraction(t.values[LONGEST_NEW] - 1, 2)),
              TermChange(_of_every_row, lambda t: Fraction(_padded(t), t.values["S"]))),
)  # fmt: skip
