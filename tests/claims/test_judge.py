"""Verdicts on claims about DeepSeek-OCR. Expected numbers are written out from the published sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from costproof.claims import Judgement, claims_from_text, explaining, judge_claims, read_claims
from costproof.claims.judge import judge_claim
from costproof.claims.search import Reachable
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Problems
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.oracles.claims import causes, world
from tests.oracles.wrong_models import flops

MISTAKES = DeepseekOcr.mistakes()
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

# The decoder: 12 layers of width 1280, 10 heads of 128, a dense layer of 6848, 11 of 64 experts of 896,
# top 6, 2 shared.
PROMPT, WIDTH, VOCABULARY = 1205, 1280, 129280
PROJECTIONS = 2 * 4 * WIDTH * WIDTH
SCORES = 4 * PROMPT * WIDTH
DENSE = 2 * 3 * WIDTH * 6848
ROUTED, SHARED, ROUTER = 2 * 3 * WIDTH * 896 * 6, 2 * 3 * WIDTH * 896 * 2, 2 * WIDTH * 64
HEAD = 2 * WIDTH * VOCABULARY
PREFILL = PROMPT * (12 * (PROJECTIONS + SCORES) + DENSE + 11 * (ROUTED + SHARED + ROUTER) + HEAD)


@cache
def capture() -> Capture:
    from costproof import api

    return api.capture("deepseek-ocr", sources=("analytic",), preset="dsocr-standard-v1")


def verdict(body: str, at: Capture | None = None) -> Judgement:
    found = claims_from_text(f"costproof_claims: 1\nclaims:\n- {{{body}}}\n", where="f")
    (judged,) = judge_claims(found, at or capture(), DeepseekOcr.mistakes(), truth="t").judgements
    return judged


def test_the_truth_is_right() -> None:
    judged = verdict(f"stage: prefill, flops: {PREFILL}")
    assert (judged.status, judged.truth, judged.delta, judged.explanations) == ("right", PREFILL, 0, ())


def test_what_was_worked_out_for_one_number_serves_another() -> None:
    counted, model = world()
    truth = int(flops(model, "prefill", frozenset()))
    usual = ClaimCase(
        PublishedClaim("c", "$", "prefill", "flops", whole(truth)), counted, counted.by_source["analytic"], MISTAKES
    )
    statuses = []
    for value in (2 * truth, truth - 1, int(flops(model, "prefill", frozenset({"lm_head missing"}))), truth * 7 // 5):
        claim = replace(usual.claim, value=whole(value))
        shared = judge_claim(usual.claiming(claim))
        assert shared == judge_claim(replace(usual, claim=claim))
        statuses.append(shared.status)
    assert statuses[0] == statuses[2] == "explained"
    assert statuses[1] == "refuted"
    assert usual.kept.keys() >= {"sets", "numbers", "lengths"}
    assert replace(usual, claim=usual.claim).kept == {}


def whole(value: int) -> Amount:
    return Amount(str(value), value, value)


def test_one_off_is_not_explained() -> None:
    judged = verdict(f"stage: prefill, flops: {PREFILL + 1}")
    assert (judged.status, judged.delta, judged.residual, judged.explanations) == ("refuted", 1, 1, ())
    view = verdict(f"stage: projector, flops: {2 * 656 * 2048 * 1280 + 1}")
    assert (view.status, view.delta, view.residual, view.explanations) == ("unexplained", 1, 1, ())


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (-PROMPT * HEAD, "lm_head missing"),
        (-PROMPT * HEAD // 2, "lm_head halved"),
        (-(PROMPT - 1) * HEAD, "lm_head last token"),
        (PROMPT * HEAD, "embedding as a GEMM"),
        (-12 * SCORES * (PROMPT - 1) // 2, "causal triangle"),
        (-12 * SCORES * PROMPT // 2, "causal half"),
        (-11 * PROMPT * ROUTED * 5 // 6, "top-k missing"),
        (11 * PROMPT * ROUTED * 58 // 6, "all experts"),
        (-11 * PROMPT * ROUTER, "router missing"),
        (-11 * PROMPT * SHARED, "shared experts missing"),
        (11 * PROMPT * (DENSE - ROUTED - SHARED - ROUTER), "MoE as a dense FFN"),
        (PROMPT * (ROUTED + SHARED + ROUTER - DENSE), "dense-first ignored"),
        (-PROMPT * (DENSE + 11 * (ROUTED + SHARED)) // 3, "gate matrix missing"),
        (-PREFILL // 2, "mac"),
        (PREFILL, "doubled"),
    ],
)
def test_one_mistake(amount: int, expected: str) -> None:
    judged = verdict(f"stage: prefill, flops: {PREFILL + amount}")
    assert judged.status == "explained"
    assert causes(judged) == [frozenset({expected})]
    assert [s.amount for s in judged.explanations[0].steps] == [amount]
    assert judged.residual == 0


def test_amounts_add_up() -> None:
    wrong = (PREFILL - PROMPT * HEAD - 11 * PROMPT * ROUTER) // 2
    judged = verdict(f"stage: prefill, flops: {wrong}")
    assert causes(judged) == [frozenset({"mac", "lm_head missing", "router missing"})]
    (explanation,) = judged.explanations
    assert judged.truth + sum(s.amount for s in explanation.steps) == explanation.reaches == wrong


def test_explanations_that_fit_equally_are_all_shown() -> None:
    # Parameters of lm_head and of the embedding are 129280 x 1280 both.
    total = capture().ledger("analytic")
    assert total is not None
    truth = total.stage_total("prefill", "params")
    assert truth is not None
    judged = verdict(f"stage: prefill, params: {truth - VOCABULARY * WIDTH}")
    assert {*causes(judged)} == {frozenset({"embedding missing"}), frozenset({"lm_head missing"})}


def test_stated_conventions_are_steps_of_their_own() -> None:
    judged = verdict(f"stage: prefill, flops: {(PREFILL - PROMPT * HEAD) // 2}, conventions: {{unit: mac}}")
    assert judged.status == "explained"
    assert {(s.cause, s.stated) for s in judged.explanations[0].steps} == {("lm_head missing", False), ("mac", True)}


def test_few_digits_explain_nothing() -> None:
    # 1 T is printed for everything from 0.5 to 1.5 T, the truth among it.
    assert verdict("stage: prefill, flops: 1 T").status == "right"
    assert verdict("stage: decode, flops: 1.19 G").status == "undetermined"


def test_modules_and_invocations() -> None:
    # One call of 256 tokens through 2048 x 1280 weights; the router of 11 layers.
    assert verdict(f"stage: projector, invocation: global, flops: {2 * 256 * 2048 * 1280}").status == "right"
    assert verdict(f'stage: prefill, module: "*.mlp.gate", flops: {11 * PROMPT * ROUTER}').status == "right"


@pytest.mark.parametrize(
    "body",
    [
        "stage: sma, flops: 1", "stage: sam, invocation: prompt, flops: 1", "stage: sam, module: nope, flops: 1",
        "stage: sam, flops: S*2", "stage: sam, flops: H/0 + nope", "stage: prefill, flops: S/2",
    ],
)  # fmt: skip
def test_bad_claims(body: str) -> None:
    with pytest.raises(BadInput):
        verdict(body)


def test_the_published_table() -> None:
    """fvcore gives SAM on four crops of 640, CLIP on 257 tokens, the projector on 4,096 to the last printed digit."""
    claims = read_claims(EXAMPLES / "published-table.yaml")
    assert claims.workload == {"preset": "dsocr-standard-v1"}
    report = judge_claims(claims, capture(), DeepseekOcr.mistakes(), truth="t")
    by_id = {(j.id, j.metric): j for j in report.judgements}
    assert {k: v.status for k, v in by_id.items()} == {
        ("sam", "params"): "right", ("sam", "flops"): "explained", ("clip", "params"): "explained",
        ("clip", "flops"): "explained", ("projector", "params"): "right", ("projector", "flops"): "explained",
        ("prefill", "params"): "explained", ("prefill", "flops"): "refuted", ("decode", "params"): "explained",
        ("decode", "flops"): "refuted", ("total", "params"): "explained", ("total", "flops"): "refuted",
    }  # fmt: skip
    assert report.verdict == "refuted"
    sam, clip, projector = (by_id[s, "flops"] for s in ("sam", "clip", "projector"))
    assert causes(sam) == [{"view missing: global", "fvcore"}]
    assert causes(clip) == [{"view missing: crops", "fvcore"}]
    # 4,096 patches of one view once, or 4 x 256 features of larger crops in FLOP and twice: the same number.
    assert causes(projector) == [
        {"view missing: crops", "projector on patches", "mac"},
        {"view missing: global", "crops as large as the view", "doubled"},
    ]
    # The last digits that fvcore itself gives: 571.9225, 77.6759 and 10.7374 G.
    assert [j.explanations[0].reaches // 10**5 for j in (sam, clip)] == [5719225, 776758]
    assert projector.explanations[0].reaches == 4096 * 2048 * 1280
    # 12 dense layers without gate, the embedding (or lm_head), no norms.
    parameters = 12 * (4 * WIDTH * WIDTH + 2 * WIDTH * 6848) + WIDTH * VOCABULARY + 2 * WIDTH
    assert {e.reaches for e in by_id["prefill", "params"].explanations} == {parameters}
    assert causes(by_id["decode", "params"]) == [{"lm_head only"}]
    # These parameters with the prompt left free: three fits by brute force, where less than one would surprise nobody.
    prefill = by_id["prefill", "flops"]
    fits = {
        (x.model[1] == "embedding missing", r.causes, r.fits[0].length)
        for x in prefill.lengths[1:] for r in x.readings if r.fits and r.fits[0] == r.fits[1]
    }  # fmt: skip
    assert fits == {
        (False, ("mac", "causal half"), 1557), (True, ("lm_head last token",), 778),
        (True, ("mac", "lm_head last token"), 1459),
    }  # fmt: skip
    assert fits == set(_dense_model_fits())
    assert "another model: MoE as a dense FFN" in prefill.note
    assert "another model: lm_head only" in by_id["decode", "flops"].note
    note = by_id["total", "flops"].note
    assert "sum of the claimed stages" in note
    assert "prefill is refuted, decode is refuted" in note
    assert "sam (view missing: global), clip (view missing: crops)" in note


def _dense_model_fits() -> Iterator[tuple[bool, tuple[str, ...], int]]:
    """Twelve dense layers of two matrices, every length up to 4000, in plain arithmetic."""
    token = 12 * (PROJECTIONS + 2 * 2 * WIDTH * 6848)
    for s in range(1, 4_000):
        for mac, pairs, head in itertools.product((1, 2), ("full", "triangle", "half"), ("none", "all", "last")):
            scores = {"full": 2 * s * s, "triangle": s * (s + 1), "half": s * s}[pairs] * 12 * 2 * WIDTH
            cost = s * token + scores + {"none": 0, "all": s, "last": 1}[head] * HEAD
            if 487_225_000_000 <= cost // mac <= 487_235_000_000:
                named = (
                    *["mac"][: mac - 1], *([] if head != "last" else ["lm_head last token"]),
                    *([] if pairs == "full" else [f"causal {pairs}"]),
                )  # fmt: skip
                yield head != "none", named, s


def test_the_generators_own_model_is_right() -> None:
    at, model = world()
    ledger = at.ledger("analytic")
    assert ledger is not None
    for stage in ("sam", "clip", "projector", "prefill", "decode"):
        assert flops(model, stage, frozenset()) == ledger.stage_total(stage, "flops")


@pytest.mark.parametrize(
    ("stage", "planted"),
    [
        ("sam", {"window padding missing", "biases counted", "view missing: global"}),
        ("clip", {"class token missing", "norms counted", "view twice: global"}),
        ("decode", {"context attention missing", "one decode step", "mac"}),
        ("prefill", {"GQA ignored: text", "head_dim = hidden / heads: text", "causal 1.8"}),
        ("prefill", {"expert width = dense width", "dense-first ignored", "gate matrix missing"}),
    ],
)
def test_planted_mistakes(stage: str, planted: set[str]) -> None:
    at, model = world()
    wrong = flops(model, stage, frozenset(planted))
    judged = verdict(f"stage: {stage}, flops: {int(wrong)}", at)
    assert judged.status == "explained"
    assert causes(judged) == [planted]


def test_all_claims_that_fit_nothing_are_told_at_once() -> None:
    body = (
        "- {stage: sma, flops: 1}\n- {stage: sam, invocation: page, flops: 1}\n- {stage: sam, module: nope, flops: 1}\n"
    )
    found = claims_from_text(f"costproof_claims: 1\nclaims:\n{body}", where="f")
    with pytest.raises(Problems) as caught:
        judge_claims(found, capture(), DeepseekOcr.mistakes(), truth="t")
    assert [p.where for p in caught.value.problems] == [
        "$.claims[0].stage", "$.claims[1].invocation", "$.claims[2].module",
    ]  # fmt: skip
    assert caught.value.problems[0].fix == "did you mean sam?"


def test_claims_on_one_subject_share_what_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sets of causes of a whole model take seconds: for each subject once, not for each claim; the order stays."""
    rows = [(f"{stage}{k}", stage, k) for k in (1_234_567, 7_654_321, 1_000_003) for stage in ("clip", "projector")]
    text = "costproof_claims: 1\nclaims:\n" + "".join(f"- {{id: {i}, stage: {s}, flops: {k}}}\n" for i, s, k in rows)
    made: list[object] = []

    class Counted(Reachable):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(explaining, "Reachable", Counted)
    found = judge_claims(claims_from_text(text, where="f"), capture(), DeepseekOcr.mistakes(), truth="t").judgements
    assert [(j.id, j.stage, j.low) for j in found] == rows
    assert len(made) == 2
    alone = verdict("id: clip7654321, stage: clip, flops: 7654321")
    assert found[2] == alone
