"""Mistakes are found by role, metric and formula: in a model with module names and symbols of its own as well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

import costproof
from costproof import api
from costproof.algebra.evaluation import evaluate
from costproof.claims import Judgement, claims_from_text, judge_claims
from costproof.claims.effects import ClaimTerms, Mistake, Mistakes, MistakeSeries, times
from costproof.claims.judge import judge_claim
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation, TargetInfo
from costproof.models.registry import mistakes_of
from tests.oracles.claims import causes, world
from tests.support import builders

# One dense layer and one of experts, width 640, on 101 tokens: every number is 2 x rows x in x out.
SIZES = {"body_hidden": 640, "body_intermediate": 2304, "body_experts": 40, "body_topk": 3, "body_moe": 416,
         "body_shared": 1, "body_vocab": 5003}  # fmt: skip
RUN = {"B": 1, "S": 101, "L": 101, "b": 2}
ONE = 2 * 101 * 640
"""All tokens through one column of the width."""
DENSE, SHARED, ROUTED, ROUTER = ONE * 2304, ONE * 416, ONE * 3 * 3 * 416, ONE * 40
SCORES, HEAD = ONE * 2 * 101, ONE * 5003
TRUTH = 3 * DENSE + 3 * SHARED + ROUTED + ROUTER + 2 * SCORES + HEAD
PARTS = [
    *((f"b0.w{i}", f"body.layer.mlp.{part}", "linear", "2*B*S*body_hidden*body_intermediate")
      for i, part in enumerate(("gate", "up", "down"))),
    *((f"b1.x.c{i}", f"body.layer.shared.{part}", "linear", "2*B*S*body_hidden*body_moe*body_shared")
      for i, part in enumerate(("gate", "up", "down"))),
    ("b1.x.e", "body.layer.experts", "experts", "6*B*S*body_topk*body_hidden*body_moe"),
    ("b1.x.r", "body.layer.router", "router", "2*B*S*body_hidden*body_experts"),
    *((f"b{i}.a", "body.layer.attention", "attention", "4*B*S**2*body_hidden") for i in (0, 1)),
    ("out", "lm_head", "lm_head", "2*B*L*body_hidden*body_vocab"),
]  # fmt: skip


def toy(roles: bool = True) -> Capture:
    """The capture of that model."""
    nodes = [
        CostNode("prefill", "prompt", module, "k", {"flops": evaluate(expr, {**SIZES, **RUN})}, {"flops": expr}, owner,
                 role=role if roles else "")
        for module, role, owner, expr in PARTS
    ]  # fmt: skip
    return replace(
        builders.capture([Ledger("analytic", tuple(nodes), ("flops",), ("prefill",))]),
        conventions=Conventions(),
        target=TargetInfo("other", "native", "0" * 12, SIZES, ("prefill",)),
        invocations=(Invocation("prefill", "prompt", 1, RUN, ()),),
    )


def verdict(flops: int, at: Capture, mistakes: Mistakes = Mistakes()) -> Judgement:  # noqa: B008
    """On a claim about all of it."""
    found = claims_from_text(f"costproof_claims: 1\nclaims: [{{stage: prefill, flops: {flops}}}]\n", where="f")
    (judged,) = judge_claims(found, at, mistakes, truth="t").judgements
    return judged


KNOWN = {
    "gate matrix missing": -DENSE - SHARED - ROUTED // 3,
    "top-k missing": -ROUTED * 2 // 3,
    "all experts": ROUTED * 40 // 3 - ROUTED,
    "expert width = dense width": (ROUTED + 3 * SHARED) * 2304 // 416 - ROUTED - 3 * SHARED,
    "shared experts missing": -3 * SHARED,
    "router missing": -ROUTER,
    "MoE as a dense FFN": 3 * DENSE - 3 * SHARED - ROUTED - ROUTER,
    "dense-first ignored": 3 * SHARED + ROUTED + ROUTER - 3 * DENSE,
    "dense MLPs as experts": 2 * ROUTED * 2304 // 416 - ROUTED + ROUTER - 3 * DENSE - 3 * SHARED,
    "causal triangle": 2 * SCORES * 102 // 202 - 2 * SCORES,
    "lm_head missing": -HEAD,
}


@pytest.mark.parametrize("cause", KNOWN)
def test_known_mistakes_of_another_model(cause: str) -> None:
    judged = verdict(TRUTH + KNOWN[cause], toy())
    assert (judged.truth, judged.status) == (TRUTH, "explained")
    assert causes(judged) == [{cause}]


def test_without_roles_nothing_is_taken_for_a_part() -> None:
    assert verdict(TRUTH + KNOWN["router missing"], toy(roles=False)).status != "explained"


def test_a_target_brings_its_own_mistakes() -> None:
    def rows(terms: ClaimTerms, everywhere: Mapping[str, int]) -> Iterator[Mistake]:
        assert everywhere["body_hidden"] == 640
        fewer = times(lambda t: t.role == "body.layer.attention", Fraction(everywhere["S"] - 1, 101))
        yield Mistake("a token forgotten", "own", "…", (fewer,))

    wrong = TRUTH - 2 * SCORES // 101
    assert causes(verdict(wrong, toy(), Mistakes((MistakeSeries("a token forgotten", "…", rows),)))) == [
        {"a token forgotten"}
    ]
    assert {"a token forgotten"} not in causes(verdict(wrong, toy()))


def test_mistakes_are_found_by_the_name_in_a_capture() -> None:
    capture, _ = world()
    assert mistakes_of(capture.target.name).of_run == {"one crop"}
    assert mistakes_of("a target that is not installed").of_run == set()


def test_no_word_of_one_model() -> None:
    """What compares and what judges claims asks for roles, metrics and formulas."""
    root = Path(costproof.__file__).parent
    words = re.compile(r"\b(sam|clip|projector|crops|deepseek)\b|_proj\b|\.neck\b|\"text_[a-z]", re.IGNORECASE)
    files = [p for room in ("claims", "compare") for p in (root / room).rglob("*.py")]
    said = [
        f"{p.name}: {line.strip()}" for p in files for line in p.read_text("utf-8").splitlines() if words.search(line)
    ]
    assert len(files) > 20
    assert said == []


@cache
def llama() -> tuple[Capture, int, dict[str, int]]:
    """Llama's formulas at 512 tokens, their total written out, and what each mistake adds to it."""
    capture = api.capture("llama", sources=("analytic",))
    at = {**capture.target.symbols, **capture.invocations[0].symbols}
    h, a, kv, d, m, layers, v = (
        at[f"text_{k}"] for k in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "layers", "vocab")
    )
    tokens, scores = at["B"] * at["S"], 4 * at["B"] * at["S"] ** 2 * a * d
    truth = layers * (2 * tokens * h * (2 * a * d + 2 * kv * d + 3 * m) + scores) + 2 * tokens * h * v
    return capture, truth, {
        "mac": -truth // 2,
        "gate matrix missing": -layers * 2 * tokens * h * m,
        "lm_head last token": -2 * (tokens - at["B"]) * h * v,
        "causal half": -layers * scores // 2,
        "GQA ignored: text": layers * 2 * tokens * h * 2 * (a - kv) * d,
        "embedding as a GEMM": 2 * tokens * h * v,
        "norms counted": (2 * layers + 1) * (4 * tokens * h + 2 * tokens),
    }  # fmt: skip


LLAMA = (
    "mac", "gate matrix missing", "lm_head last token", "causal half", "GQA ignored: text", "embedding as a GEMM",
    "norms counted",
)  # fmt: skip


@pytest.mark.parametrize("cause", LLAMA)
def test_known_mistakes_of_llama(cause: str) -> None:
    capture, right, wrong = llama()
    value = right + wrong[cause]
    claim = PublishedClaim("c", "$", "prefill", "flops", Amount(str(value), value, value))
    judged = judge_claim(ClaimCase(claim, capture, capture.by_source["analytic"], mistakes_of("llama")))
    assert (judged.truth, judged.status) == (right, "explained")
    assert causes(judged) == [{cause}]
