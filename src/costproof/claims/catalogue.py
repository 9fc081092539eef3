"""Collect all known mistakes in one table, and compute the effect of each on a claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Final

from costproof.claims.attention_mistakes import LATENTS, ROWS, WINDOWS
from costproof.claims.effects import ClaimTerms, Effect, Mistake, Mistakes, MistakeTable
from costproof.claims.memory_mistakes import BYTES_AND_CACHES, FORMATS, PEAKS, RANKS
from costproof.claims.mistakes import DECODER, REST, RULES_OF_THUMB, TRAINING, VIEWS, units
from costproof.claims.terms import LONGEST_CONTEXT, LONGEST_NEW, ClaimTerm
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.metrics import Metric


def mistake_table(own: Mistakes) -> MistakeTable:
    """Return all known mistakes, in the order in which the search tries them.

    Args:
        own: the mistakes that the target adds.
    """
    general = (*RANKS, *TRAINING, *RULES_OF_THUMB, *DECODER, *LATENTS, *WINDOWS, *ROWS, *BYTES_AND_CACHES, *FORMATS)
    return (*units(own.written_out), *general, *own.table, *VIEWS, *REST, *PEAKS)


EXAMPLES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "mac": "1/2",
        "doubled": "2",
        "6ND": "3",
        "backward alone": "2",
        "full recompute": "4",
        "causal half": "1/2",
        "6ND, fused attention": "3 7/2",
        "full recompute, fused attention": "4 9/2",
        "attention recomputed": "3 4",
        "causal 1.8": "5/9",
        "lm_head halved": "1/2",
        "tied head counted": "2",
        "keys or values alone": "1/2",
        "gate matrix missing": "0 2/3",
        "bytes, 2 each": "2",
        "bytes, 4 each": "4",
        "gathers of training": "3",
        "all-reduce for gather (ZeRO-2)": "2",
        "total_flos of one pass": "0 1/3",
        "MiB for MB": "15625/16384",
        "MB for MiB": "16384/15625",
        "GiB for GB": "1953125/2097152",
        "GB for GiB": "2097152/1953125",
    },
    "S=4 C=2": {"causal triangle": "3/4"},  # of 6 + 6 + 6 + 6 keys are seen 3 + 4 + 5 + 6
    "S=7 L=2 B=1": {"lm_head last token": "1/2", "lm_head all tokens": "7/2"},
    # Steps that attend to 5, 6 and 7 tokens, and read 4, 5 and 6 cached ones.
    "N=3 P=4": {
        "context attention missing": "1/6 1/5",
        "decode context frozen": "2/3 4/5",
        "whole cache": "7/3",
        "decode context of the last step": "7/6 7/5",
        "new token not attended to": "5/6",
        "new token attended to twice": "7/6",
        "gathered once": "1/3",
    },
    "N=3 P=4 window=4": {"windows as full attention": "3/2 5/4"},
    "N=3 P=2 S=10 window=4": {"windows cached in full": "10/3 9/8", "window cached with its own token": "4/3"},
    "N=3 P=4 body_nope=2 body_rope=1 body_value=3 body_kv_rank=4 body_heads=5": {
        "MLA absorbed": "1/6 3/2",
        "MLA expanded once": "1/6",
        "MLA expanded in every step": "6 2/3",
        "MLA cached expanded": "6",
    },
    "S=10 window=4": {  # of 100 pairs, 1 + 2 + 3 + 7 x 4; of 55 in the triangle
        "window S x W": "2/5 8/11",
        "window band": "17/50 34/55 17/25 153/250",
        "window S x W, not halved": "4/5",
    },
    "S=10 chunk=4": {  # 10 + 10 + 3
        "chunk S x C": "2/5 8/11",
        "chunk triangles": "23/100 23/55 23/50 207/500",
        "chunk S x C, not halved": "4/5",
    },
    "S=40": {"blocks of 16 tokens": "6/5", "blocks of 128 tokens": "16/5"},
    "N=30 P=10": {"blocks of 32 tokens": "16/15"},
    "S=40 window=34": {"blocks of 64 tokens": "64/33"},
    # A row of 2 tokens behind 3 cached ones, and two of 1 behind 4: 4 + 5 + 5 + 5 pairs of 5 + 5 + 5 + 5.
    "S=4 R_1=1 B_1=1 S_1=2 SS_1=4 SC_1=6 B_2=2 S_2=2 SS_2=2 SC_2=8 longest=2 context=5": {
        "rows as one sequence": "4/5 10/19",
        "pairs of the prefix missing": "3/10 5/19",
        "rows padded to the longest": "3/2 27/19",
    },
    "B=2 S=3": {"unpacked for each token": "6", "batch forgotten": "1/2"},
    "count=6": {"one layer": "1/6"},
    "body_experts=8": {"as many models as experts": "8 0"},
    "body_topk=2 body_experts=8 ep=4 tp=1": {
        "tokens sent to their experts": "1/2",
        "min(top-k, ep - 1) copies": "2/3",
        "tokens sent by rank": "13/28",
    },
    "B=1 S=4 b=2 body_hidden=256 ep=4 tp=1 value=7200": {
        "choices not sent": "64/75",
        "fp8 dispatch": "11/25",
        "fp8 dispatch without scales": "32/75",
    },
    "tp=4": {
        "all-reduce = (n - 1) / n M": "1/2",
        "all-reduce = 2 M": "4/3",
        "all-reduce = (n - 1) M": "2",
        "K/V heads / tp": "1/4",
        "latents / tp": "1/4",
        "all / tp": "1/4",
    },
    "cp=4": {"ring of cp sends": "4/3"},
    "cp=4 cp_place=1 expr=cp_place": {"mean of the ranks": "5/2", "every part attended to": "4"},
    "cp=4 S=8 expr=S": {"positions not / cp": "4"},
    "ep=4 S=8 expr=S/ep": {"experts not / ep": "4", "one device": "4"},
    "body_vocab=100 expr=body_vocab": {"vocabulary padded to 64": "32/25"},
    "b=8 expr=b": {
        "element size forgotten": "1/8",
        "two bytes each": "1/4",
        "four bytes each": "1/2",
        "32-bit cache": "1/2",
        "16-bit cache": "1/4",
        "8-bit cache": "1/8",
        "4-bit cache": "1/16",
    },
    "N=3 expr=N": {"one decode step": "1/3"},
    "body_topk=2 body_experts=8 body_moe=4 body_intermediate=12 body_shared=3 "
    "expr=body_topk*body_experts*body_moe*body_shared": {
        "top-k missing": "1/16",
        "all experts": "4",
        "active experts only": "1/4",
        "routed width = dense width": "3",
        "expert width = dense width": "3",
        "one shared expert": "1/3",
        "shared experts times top-k": "2",
    },
}
"""Sizes of a term -> factors of mistakes on it, computed by hand, in the order of their changes, equal ones once.

Mistakes that only leave terms out, or count others, have no factors; those of other tools' rounding depend on nodes.
"""


@cache
def _check_examples() -> None:
    """Check the factors of the general mistakes against :data:`EXAMPLES`; done once.

    Raises:
        Bug: some factor is another, or no mistake has a name.
    """
    rows = [row for row in mistake_table(Mistakes()) if isinstance(row, Mistake)]
    for sizes, examples in EXAMPLES.items():
        given: dict[str, str] = dict(size.split("=") for size in sizes.split())
        number, window, chunk = (int(given.pop(name, 0)) for name in ("count", "window", "chunk"))
        value, expr = Fraction(given.pop("value", 1)), given.pop("expr", "")
        values = {_LONG.get(name, name): int(size) for name, size in given.items()}
        term = ClaimTerm(
            "", "", "body.layer.attention", "", "", value, expr, values, number or 1, (), window=window, chunk=chunk
        )
        for cause, expected in examples.items():
            by = [change.factor(term) for row in rows if row.cause == cause for change in row.changes]
            found = dict.fromkeys(factor for factor in by if factor is not None)
            again = dict.fromkeys(map(Fraction, expected.split()))
            check_recounts(
                [Recount(sizes or "any term", cause, f"factors {' '.join(map(str, found))}", found == again, True)]
            )


_LONG: Final = {"longest": LONGEST_NEW, "context": LONGEST_CONTEXT}


def effects(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> tuple[Effect, ...]:
    """Return the effects on a claim of all mistakes that can change the claimed number.

    Mistakes with exactly the same effect are merged: the first gives the name, the others become aliases.

    Args:
        terms: the terms of the claim.
        metric: the metric of the claim.
        own: the mistakes that the target adds.
        everywhere: symbol -> value, for symbols with the same value in all calls of the run.
    """
    _check_examples()
    merged: dict[tuple[object, ...], Effect] = {}
    for mistake in _mistakes(terms, metric, own, everywhere):
        effect = mistake.effect(terms)
        factors = {i: f for i, f in effect.factors.items() if terms[i].value}
        switches = frozenset(i for i in effect.switches if terms[i].value and factors.get(i) != 0)
        if not switches and not factors:
            continue
        slim = replace(effect, factors=factors, switches=switches)
        # A term that is counted neither before nor after does not distinguish two mistakes.
        seen = frozenset((i, f) for i, f in factors.items() if terms[i].counted or i in switches)
        key = (seen, switches, effect.requires)
        if key in merged:
            first = merged[key]
            merged[key] = replace(first, aliases=(*first.aliases, slim.cause))
        else:
            merged[key] = slim
    return tuple(merged.values())


def _mistakes(terms: ClaimTerms, metric: Metric, own: Mistakes, everywhere: Mapping[str, int]) -> Iterator[Mistake]:
    for row in mistake_table(own):
        if metric in row.metrics:
            yield from [row] if isinstance(row, Mistake) else row.rows(terms, everywhere)


STATED: dict[tuple[str, str], str] = {
    ("unit", "mac"): "mac",
    ("unit", "flop"): "",
    ("counter", "fvcore"): "fvcore",
    ("causal", "full"): "",
    ("causal", "triangle"): "causal triangle",
    ("causal", "half"): "causal half",
    ("logits", "all"): "",
    ("logits", "last"): "lm_head last token",
    ("logits", "none"): "lm_head missing",
    ("window", "full"): "",
    ("window", "width"): "window S x W",
    ("window", "band"): "window band",
    ("chunks", "full"): "",
    ("chunks", "width"): "chunk S x C",
    ("chunks", "triangles"): "chunk triangles",
    ("gather", "counted"): "",
    ("gather", "left out"): "gather of logits missing",
    ("passes", "forward"): "",
    ("passes", "training"): "6ND",
    ("passes", "training, fused attention"): "6ND, fused attention",
    ("cache", "8 bits"): "8-bit cache",
    ("cache", "4 bits"): "4-bit cache",
    ("cached_windows", "window"): "",
    ("cached_windows", "full"): "windows cached in full",
    ("window_padding", "counted"): "",
    ("window_padding", "left out"): "window padding missing",
    ("attention_scores", "left out"): "attention missing",
    ("norms", "counted"): "norms counted",
}
"""Cause equivalent to a (convention, value) that a claim may state; empty for costproof's own convention."""


READINGS: frozenset[str] = frozenset(
    {"mac", "causal triangle", "causal half", "lm_head last token", "lm_head all tokens"}
)
"""Causes that are other conventions for the same work, at any sequence length."""

WIDTHS: frozenset[str] = frozenset({"32-bit cache", "16-bit cache", "8-bit cache", "4-bit cache"})
"""Causes that are other bit widths of the same cache."""

CONVENTIONS: frozenset[str] = READINGS | WIDTHS | {
    "window S x W", "window band", "windows as full attention", "chunk S x C", "chunk triangles", "kept scores",
    "all-reduce = M", "all-reduce = 2 M", "all-reduce = (n - 1) M", "gather = M", "gather of logits missing",
    "windows cached in full", "window cached with its own token", "cache of windows missing",
}  # fmt: skip
"""Causes that are other conventions for the same work or cache; a single one needs no further evidence.

This holds even if a product of sizes would fit the claim by chance, since every cache size is a product of sizes. Every
other cause adds work, omits work, or changes the model or its run.
"""

CONVENTION_CAUSES: frozenset[str] = CONVENTIONS | {*STATED.values(), "full recompute"} - {""}
"""Causes that a claim may state as its conventions, and training with recomputation (four passes)."""

PART_OF_CALLS = "view missing"
"""Prefix of causes by which a claimed number covers only some calls of a stage."""
