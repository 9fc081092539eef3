"""Rows of one source: totals as sums, parameters beside FLOPs."""

from __future__ import annotations

from costproof.claims import Judgement, claims_from_text, judge_claims
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.claims.test_judge import HEAD, PREFILL, PROJECTIONS, PROMPT, VOCABULARY, WIDTH, capture
from tests.oracles.claims import causes

# Twelve dense layers of two matrices, lm_head, no embedding, no norms, and the two vectors between image features:
# another model.
TOKEN = 12 * (PROJECTIONS + 2 * 2 * WIDTH * 6848)
PARAMETERS = TOKEN // 2 + WIDTH * VOCABULARY + 2 * WIDTH


def verdicts(*rows: str) -> dict[tuple[str, str], Judgement]:
    lines = "".join(f"- {{{row}}}\n" for row in rows)
    found = judge_claims(
        claims_from_text(f"costproof_claims: 1\nclaims:\n{lines}", where="f"),
        capture(),
        DeepseekOcr.mistakes(),
        truth="t",
    )
    return {(j.id, j.metric): j for j in found.judgements}


def test_flops_of_the_model_that_the_parameters_describe() -> None:
    flops = 800 * (TOKEN + HEAD) + 12 * 4 * 800 * 800 * WIDTH
    judged = verdicts(f"stage: prefill, params: {PARAMETERS}, flops: {flops}")["prefill", "flops"]
    assert judged.status == "explained"
    assert {"another prompt", "MoE as a dense FFN", "gate matrix missing"} in causes(judged)
    assert all(e.reaches == flops for e in judged.explanations)
    assert all("800" in e.steps[0].what for e in judged.explanations)
    # One more: that model at no prompt either.
    other = verdicts(f"stage: prefill, params: {PARAMETERS}, flops: {flops + 1}")["prefill", "flops"]
    assert other.status == "refuted"
    assert not any(r.fits for x in other.lengths for r in x.readings)


def test_right_parameters_say_nothing_of_another_model() -> None:
    ledger = capture().ledger("analytic")
    assert ledger is not None
    truth = ledger.stage_total("prefill", "params")
    judged = verdicts(f"stage: prefill, params: {truth}, flops: {PREFILL + 1}")["prefill", "flops"]
    assert (len(judged.lengths), judged.note) == (1, "")


def test_a_total_is_as_good_as_its_rows() -> None:
    projector = 2 * 656 * 2048 * 1280
    good = verdicts(
        f"stage: projector, flops: {projector}", f"stage: prefill, flops: {PREFILL // 2}",
        f"stage: total, flops: {projector + PREFILL // 2}",
    )  # fmt: skip
    assert good["total", "flops"].status == "explained"
    assert good["total", "flops"].note == "it is the sum of the claimed stages, each of which has its own causes"
    bad = verdicts(
        f"stage: projector, flops: {projector}", f"stage: prefill, flops: {PREFILL + 1}",
        f"stage: total, flops: {projector + PREFILL + 1}, at: {{S: {PROMPT}}}",
    )  # fmt: skip
    # With its prompt stated nothing is said of the total itself: its row refutes it.
    assert (bad["total", "flops"].status, bad["total", "flops"].lengths) == ("refuted", ())
    assert "prefill is refuted" in bad["total", "flops"].note
    none = verdicts(
        f"stage: projector, flops: {projector}", f"stage: prefill, flops: {PREFILL}",
        f"stage: total, flops: {projector + PREFILL + 1}",
    )  # fmt: skip
    assert "not the sum" in none["total", "flops"].note


def test_a_total_of_different_runs() -> None:
    # The projector on the global view alone, the encoder without it.
    ledger = capture().ledger("analytic")
    assert ledger is not None
    crops = ledger.stage_total("sam", "flops", "crops")
    assert crops is not None
    part = 2 * 256 * 2048 * 1280
    found = verdicts(
        f"stage: sam, flops: {crops}", f"stage: projector, flops: {part}", "stage: clip, flops: 7",
        f"stage: total, flops: {crops + part + 7}",
    )["total", "flops"]  # fmt: skip
    assert "different runs: sam (view missing: global), projector (view missing: crops)" in found.note
    assert "clip is unexplained" in found.note
