"""Latent attention decoded in one way, and claimed to be decoded in another: the cause is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import costproof

# DeepSeek-V3: 61 layers, 128 heads, latents of 512, keys of 128 + 64, values of 128; a context of 2,047.
CONTEXT, LAYERS = 2048, 61
UP = 2 * LAYERS * 512 * 128 * (128 + 128)
NARROW, WIDE = (2 * LAYERS * 128 * CONTEXT * width for width in (192 + 128, 576 + 512))
EXPANDED, ABSORBED, CACHED = UP * CONTEXT + NARROW, UP + WIDE, UP + NARROW


def explained(folder: Path, decoding: str, metric: str, number: int, steps: int = 1) -> dict[str, int]:
    """Causes and amounts of the first explanation of a claim about DeepSeek-V3's decode steps."""
    file = folder / "claims.yaml"
    file.write_text(
        "costproof_claims: 1\ntitle: latents\nsource: a test\ntarget: deepseek-v3\n"
        f"workload: {{text_tokens: 2047, new_tokens: {steps}, decoding: {decoding}}}\n"
        "conventions: {unit: flop, causal: full, logits: all}\n"
        f"claims:\n  - id: one\n    stage: decode\n    {metric}: {number}\n",
        encoding="utf-8",
    )
    (judged,) = costproof.check(file).judgements
    return {step.cause: int(step.amount) for step in judged.explanations[0].steps}


@pytest.mark.parametrize(
    ("decoding", "said", "cause"),
    [
        ("expanded", 108_045_139_968, {"MLA absorbed": ABSORBED - EXPANDED}),
        ("expanded", 108_045_139_968 - WIDE + NARROW, {"MLA expanded once": CACHED - EXPANDED}),
        ("absorbed", 108_045_139_968 - ABSORBED + EXPANDED, {"MLA expanded in every step": EXPANDED - ABSORBED}),
    ],
)
def test_work_of_another_way_of_decoding(decoding: str, said: int, cause: dict[str, int], tmp_path: Path) -> None:
    assert explained(tmp_path, decoding, "flops", said) == cause


def test_the_three_costs_of_one_architecture() -> None:
    # As measured and by formula, in GFLOP: keys and values cached 83.48, latents expanded in every step 4273.3.
    assert round((108_045_139_968 - ABSORBED + CACHED) / 1e9, 2) == 83.48
    assert round((108_045_139_968 - ABSORBED + EXPANDED) / 1e9, 1) == 4273.3


@pytest.mark.parametrize("decoding", ["expanded", "absorbed"])
def test_keys_and_values_of_every_head_in_the_cache(decoding: str, tmp_path: Path) -> None:
    said = 2 * LAYERS * 128 * (192 + 128) * 2
    cause = {"MLA cached expanded": said - 2 * LAYERS * (512 + 64) * 2}
    assert explained(tmp_path, decoding, "kv_cache_bytes", said, steps=2) == cause


def test_three_ways_of_one_architecture() -> None:
    report = costproof.check(Path(__file__).resolve().parents[2] / "docs" / "examples" / "deepseek-v3-decode.yaml")
    amounts = [{step.cause: step.amount for step in claim.explanations[0].steps} for claim in report.judgements]
    assert amounts == [
        {"MLA absorbed": ABSORBED - EXPANDED},
        {"MLA expanded once": CACHED - EXPANDED},
        {"MLA cached expanded": LAYERS * (128 * (192 + 128) - 576) * 2},
    ]
