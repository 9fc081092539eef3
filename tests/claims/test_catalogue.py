"""The mistakes that models of cost are known for: each has a name here, and the search finds it by that name."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from costproof.claims import catalogue
from costproof.claims.effects import Mistake, Mistakes
from costproof.claims.terms import LONGEST_CONTEXT, LONGEST_NEW, ClaimTerm
from tests.claims.test_judge import verdict
from tests.oracles.claims import causes, world
from tests.oracles.wrong_models import flops, rule

# (what is said of a wrong number, stage, cause). In the model of these tests the decoder has 5 heads of keys for 10
# of queries, heads of 192 where hidden / heads is 128, and 3 dense layers, so that nothing is the same as its mistake.
KNOWN = [
    ("MAC for FLOP", "prefill", "mac"),
    ("lm_head missing", "prefill", "lm_head missing"),
    ("lm_head halved", "prefill", "lm_head halved"),
    ("lm_head on the last token only", "prefill", "lm_head last token"),
    ("embedding counted as a GEMM", "prefill", "embedding as a GEMM"),
    ("context attention missing in decode", "decode", "context attention missing"),
    ("causal halving, S (S + 1) / 2", "prefill", "causal triangle"),
    ("causal halving, S² / 2", "prefill", "causal half"),
    ("causal halving, S² / 1.8", "prefill", "causal 1.8"),
    ("top-k not multiplied in", "prefill", "top-k missing"),
    ("all experts counted", "prefill", "all experts"),
    ("MoE as one dense FFN", "prefill", "MoE as a dense FFN"),
    ("dense-first layers ignored", "prefill", "dense-first ignored"),
    ("shared experts missing", "prefill", "shared experts missing"),
    ("router missing", "prefill", "router missing"),
    ("expert width = dense width", "prefill", "expert width = dense width"),
    ("head_dim = hidden / heads", "prefill", "head_dim = hidden / heads: text"),
    ("GQA ignored", "prefill", "GQA ignored: text"),
    ("gate matrix missing", "prefill", "gate matrix missing"),
    ("window layers as full attention", "sam", "windows as full attention"),
    ("window padding missing", "sam", "window padding missing"),
    ("relative-position terms missing", "sam", "relative positions missing"),
    ("patch convolution missing", "sam", "patch convolution missing"),
    ("merger on the wrong token count", "sam", "merger on patches"),
    ("projector on the patches", "projector", "projector on patches"),
    ("projector on the class token too", "projector", "projector with class token"),
    ("class token forgotten", "clip", "class token missing"),
    ("a view missing", "sam", "view missing: global"),
    ("a view counted twice", "clip", "view twice: global"),
    ("one crop for all", "sam", "one crop"),
    ("biases", "clip", "biases counted"),
    ("norms counted, vision", "clip", "norms counted"),
    ("norms counted, text", "decode", "norms counted"),
]


@pytest.mark.parametrize(("said", "stage", "cause"), KNOWN, ids=[k[0] for k in KNOWN])
def test_known_mistake(said: str, stage: str, cause: str) -> None:
    at, model = world()
    wrong = flops(model, stage, frozenset({cause}))
    assert wrong != flops(model, stage, frozenset()), f"{said} changes nothing here"
    judged = verdict(f"stage: {stage}, flops: {int(wrong)}", at)
    assert (judged.status, judged.residual) == ("explained", 0)
    assert causes(judged) == [frozenset({cause})]


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize(("forward", "expected"), [(True, {"2ND: all"}), (False, {"2ND: all", "6ND"})])
def test_rules_of_thumb(stage: str, forward: bool, expected: set[str]) -> None:
    at, model = world()
    judged = verdict(f"stage: {stage}, flops: {rule(model, stage, forward)}", at)
    assert causes(judged) == [frozenset(expected)]


def test_the_projector_on_other_tokens() -> None:
    at, model = world()
    weights = Fraction(2 * (model.d["clip_hidden"] + model.d["sam_down2"]) * model.d["text_hidden"] * model.batch)
    for tokens, cause in ((model.vision_tokens, "projector on V"), (model.prompt, "projector on S")):
        judged = verdict(f"stage: projector, flops: {weights * tokens}", at)
        assert causes(judged) == [frozenset({cause})]


EXAMPLES: dict[str, dict[str, str]] = {
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
    "N=3 P=4 text_nope=2 text_rope=1 text_value=3 text_kv_rank=4 text_heads=5": {
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
    "text_experts=8": {"as many models as experts": "8 0"},
    "text_topk=2 text_experts=8 ep=4 tp=1": {
        "tokens sent to their experts": "1/2",
        "top-k copies": "2/3",
        "min(top-k, ep - 1) copies": "2/3",
        "tokens sent by rank": "13/28",
    },
    "B=1 S=4 b=2 text_hidden=256 ep=4 tp=1 value=7200": {
        "choices not sent": "64/75",
        "fp8 dispatch": "11/25",
        "fp8 dispatch without scales": "32/75",
        "fp8 dispatch with choices": "44/75",
        "fp8 dispatch without scales, with choices": "43/75",
    },
    "tp=4": {
        "all-reduce = (n - 1) / n M": "1/2",
        "all-reduce = 2 M": "4/3",
        "all-reduce = (n - 1) M": "2",
        "routers / tp": "1/4",
        "norms / tp": "1/4",
        "projections to latents / tp": "1/4",
        "K/V heads / tp": "1/4",
        "latents / tp": "1/4",
        "all / tp": "1/4",
    },
    "cp=4": {"ring of cp sends": "4/3"},
    "cp=4 cp_place=1 expr=cp_place": {"mean of the ranks": "5/2", "every part attended to": "4"},
    "cp=4 S=8 expr=S": {"positions not / cp": "4"},
    "ep=4 S=8 expr=S/ep": {"experts not / ep": "4", "one device": "4"},
    "tp=4 S=8 expr=S/tp": {"K/V heads not / tp": "4", "vocabulary not / tp": "4"},
    "text_vocab=100 expr=text_vocab": {"vocabulary padded to 64": "32/25"},
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
    "text_topk=2 text_experts=8 text_moe=4 text_intermediate=12 text_shared=3 "
    "expr=text_topk*text_experts*text_moe*text_shared": {
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


@pytest.mark.parametrize("sizes", EXAMPLES)
def test_factors_are_those_computed_by_hand(sizes: str) -> None:
    rows = [row for row in catalogue.mistake_table(Mistakes()) if isinstance(row, Mistake)]
    given: dict[str, str] = dict(size.split("=") for size in sizes.split())
    number, window, chunk = (int(given.pop(name, 0)) for name in ("count", "window", "chunk"))
    value, expr = Fraction(given.pop("value", 1)), given.pop("expr", "")
    long = {"longest": LONGEST_NEW, "context": LONGEST_CONTEXT}
    values = {long.get(name, name): int(size) for name, size in given.items()}
    term = ClaimTerm(
        "", "", "text.layer.attention", "", "", value, expr, values, number or 1, (), window=window, chunk=chunk
    )
    for cause, expected in EXAMPLES[sizes].items():
        factors = [change.factor(term) for row in rows if row.cause == cause for change in row.changes]
        assert [*dict.fromkeys(f for f in factors if f is not None)] == [*map(Fraction, expected.split())], cause


def test_every_factor_has_an_example() -> None:
    known = {cause for examples in EXAMPLES.values() for cause in examples}
    of_nodes = {"fvcore", "kept scores", "biases missing", "parameters whole (ZeRO-2)"}
    rows = [row for row in catalogue.mistake_table(Mistakes()) if isinstance(row, Mistake)]
    blank: Any = None

    def is_fixed(row: Mistake) -> bool:
        try:
            return all(change.factor(blank) in (0, 1) for change in row.changes)
        except AttributeError:
            return False

    assert {row.cause.removesuffix(", two classes") for row in rows if not is_fixed(row)} - known == of_nodes
