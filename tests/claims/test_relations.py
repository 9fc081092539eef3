"""Simple relations of a claim to the truth. Costs are written out from the published sizes."""

from __future__ import annotations

import pytest

from costproof.claims import claims_from_text, judge_claims
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.reports.outputs import variants
from tests.claims.test_judge import (
    DENSE,
    HEAD,
    PREFILL,
    PROJECTIONS,
    PROMPT,
    ROUTED,
    ROUTER,
    SCORES,
    SHARED,
    WIDTH,
    capture,
    verdict,
)
from tests.claims.test_lengths import decode
from tests.oracles.claims import causes

claims_md = variants("claims")["md"].text

LAYER = PROJECTIONS + SCORES + ROUTED + SHARED + ROUTER


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (f"stage: prefill, flops: {4 * PREFILL}", "4 x the truth"),
        (f"stage: decode, flops: {128 * decode(PROMPT)}", "128 x the truth"),
        # Four times the views is not both of them twice, and all that doubled.
        ("stage: sam, flops: 9117569384448", "4 x the truth"),
        (f"stage: prefill, flops: {PREFILL // 16}", "1/16 x the truth"),
        # To six digits: few ratios lie so near.
        (f"stage: prefill, flops: {4 * PREFILL / 1e12:.5f} T", "4 x the truth"),
    ],
)
def test_an_exact_ratio(body: str, cause: str) -> None:
    judged = verdict(body)
    assert (judged.status, causes(judged), judged.residual) == ("explained", [frozenset({cause})], 0)
    (explanation,) = judged.explanations
    assert judged.truth + sum(s.amount for s in explanation.steps) == explanation.reaches
    assert judged.low <= explanation.reaches <= judged.high


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        (f"module: lm_head, flops: {PROMPT * HEAD // 5}", {"text_vocab = 25856", "text_hidden = 256"}),
        (
            f'module: "*.k_proj", flops: {12 * PROMPT * PROJECTIONS // 4 // 5}',
            {"text_kv_heads = 2", "text_hidden = 256"},
        ),
    ],
)
def test_a_ratio_of_products_of_sizes_is_no_evidence(body: str, numbers: set[str]) -> None:
    """A matrix alone costs a product of sizes, and of other such products more than one in a thousand is a simple
    ratio of it: they fit, and each is named before any length is."""
    judged = verdict(f"stage: prefill, {body}")
    assert (judged.status, judged.residual != 0) == ("undetermined", True)
    first, *others = causes(judged)
    assert first == {"1/5 x the truth"}
    assert numbers <= set().union(*others)
    assert judged.note.startswith("fits, not evidence")


def test_a_ratio_names_the_numbers_that_do_the_same() -> None:
    judged = verdict(f"stage: decode, flops: {4 * decode(PROMPT)}")
    assert "B = 4" in judged.explanations[0].steps[0].or_else


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Eight experts of 64 cost what four shared ones beside six do.
        (f"stage: prefill, flops: {PREFILL + 11 * PROMPT * ROUTED // 6 * 2}", {"text_topk = 8", "text_shared = 4"}),
        # Query and output projections and the scores over 1,206 keys.
        (f"stage: decode, flops: {decode(PROMPT) + 12 * (4 * WIDTH + 4 * 1206) * WIDTH}", {"text_heads = 20"}),
        (f"stage: prefill, flops: {PREFILL + 2 * PROMPT * LAYER}", {"text_layers (those of 11) = 14"}),
    ],
)
def test_one_number_of_the_configuration(body: str, expected: set[str]) -> None:
    judged = verdict(body)
    assert judged.status == "explained"
    assert set().union(*causes(judged)) == expected


def test_a_number_that_fits_anything_is_no_evidence() -> None:
    # A fifth of the head: 25,856 entries do it, but so would entries for any multiple of 2 x 1205 x 1280.
    judged = verdict(f"stage: prefill, flops: {PREFILL - PROMPT * HEAD * 4 // 5}")
    assert judged.status == "undetermined"
    assert causes(judged) == [{"text_vocab = 25856"}]
    assert judged.note.startswith("fits, not evidence")


def test_stated_conventions_go_before_a_ratio() -> None:
    judged = verdict(f"stage: prefill, flops: {2 * PREFILL + PREFILL // 2}, conventions: {{unit: mac}}")
    assert causes(judged) == [{"mac", "5 x the truth"}]


def test_a_number_that_only_happens_to_lead_there_is_not_named() -> None:
    # All of it in FLOP, said to be MAC: 2 x the MAC, or some other vocabulary.
    (step,) = [s for s in verdict(f"stage: prefill, flops: {PREFILL}, conventions: {{unit: mac}}").explanations[0].steps
               if s.cause == "2 x the truth"]  # fmt: skip
    assert not any(name.startswith("text_vocab") for name in step.or_else)


def test_the_row_of_the_summary_names_the_cause() -> None:
    few = PREFILL - PROMPT * HEAD * 4 // 5
    rows = f"- {{stage: decode, flops: {4 * decode(PROMPT)}}}\n- {{stage: prefill, flops: {few}}}\n"
    found = claims_from_text(f"costproof_claims: 1\nclaims:\n{rows}", where="f")
    text = claims_md(judge_claims(found, capture(), DeepseekOcr.mistakes(), truth="t"))
    assert "| explained: `4 x the truth` or `full recompute` or `B = 4`; residual 0 |" in text
    assert "| undetermined: `text_vocab = 25856` fits, not evidence |" in text


def test_a_number_that_the_file_states_is_not_free() -> None:
    def same(run: str) -> set[str]:
        body = f"claims:\n- {{stage: decode, flops: {4 * decode(PROMPT)}}}\n"
        found = claims_from_text(f"costproof_claims: 1\n{run}{body}", where="f")
        (judged,) = judge_claims(found, capture(), DeepseekOcr.mistakes(), truth="t").judgements
        assert causes(judged) == [{"4 x the truth"}]
        return set(judged.explanations[0].steps[0].or_else)

    assert "B = 4" in same("")
    assert "B = 4" not in same("workload: {batch: 1}\n")


def test_few_digits_are_no_relation() -> None:
    # Four times the truth to three digits: of a hundred numbers more than one lies so near a ratio.
    assert {"4 x the truth"} not in causes(verdict(f"stage: prefill, flops: {4 * PREFILL / 1e12:.2f} T"))
    assert verdict("stage: prefill, flops: 487.23 G").status == "refuted"
    assert verdict(f"stage: prefill, flops: {DENSE + 1}").status == "refuted"
