"""A formula is right only where it is the truth at every run that the target takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costproof.claims import Judgement
from costproof.run.claims import check


def judged(folder: Path, target: str, body: str, **workload: Any) -> Judgement:
    file = folder / "claims.yaml"
    file.write_text(f"costproof_claims: 1\ntitle: t\nsource: s\nclaims:\n  - {{{body}}}\n")
    (found,) = check(file, target, **workload).judgements
    return found


# mixtral-8x7b: 8 experts, 2 for each token; of a step of B tokens at most 8 and at most 2 B are read.
EXPERTS = "stage: decode, weight_read_bytes: '4096*N*b*(B + 1376256*({}) + 360001)'"


@pytest.mark.parametrize("read", ["Min(8, 2*B)", "2*Min(4, B)", "8 - Max(0, 8 - 2*B)"])
def test_a_minimum_that_is_the_same(tmp_path: Path, read: str) -> None:
    assert judged(tmp_path, "mixtral-8x7b", EXPERTS.format(read), batch=2, text_tokens=64).status == "right"


@pytest.mark.parametrize(
    ("read", "at", "more"),
    [
        ("Min(8, B + 2)", 1, 1376256),  # 3 in place of 2
        ("Min(8, B**2)", 1, -1376256),  # 1 in place of 2
        ("Min(8, 2*B) + Max(0, 1 - (B - 777)**2)", 777, 1376256),
        ("Min(8, 2*B) + Min(1, floor(B/50))*Max(0, 1 - floor(B/1000))", 50, 1376256),
    ],
)
def test_a_minimum_that_is_another_one(tmp_path: Path, read: str, at: int, more: int) -> None:
    found = judged(tmp_path, "mixtral-8x7b", EXPERTS.format(read), batch=2, text_tokens=64)
    assert found.status == "unexplained"
    assert found.counterexample is not None
    values = found.counterexample.values
    assert values["B"] == at
    assert int(found.counterexample.claimed) - found.counterexample.truth == 4096 * values["N"] * values["b"] * more


# gpt-oss-20b: 12 layers keep all S tokens and 12 the last 127; 2 x 8 heads x 64 x 12 = 12288.
CACHE = "stage: prefill, kv_cache_bytes: '12288*B*b*({})'"


@pytest.mark.parametrize("length", [50, 512])
def test_windows_at_every_length(tmp_path: Path, length: int) -> None:
    found = judged(tmp_path, "gpt-oss-20b", CACHE.format("S + Min(S, 127)"), text_tokens=length)
    assert found.status == "right"


@pytest.mark.parametrize(
    ("tokens", "length", "at", "claimed", "truth"),
    [("S + 127", 512, 1, 128, 2), ("2*S", 50, 128, 256, 255)],
)
def test_a_formula_of_one_regime(tmp_path: Path, tokens: str, length: int, at: int, claimed: int, truth: int) -> None:
    found = judged(tmp_path, "gpt-oss-20b", CACHE.format(tokens), text_tokens=length)
    assert found.status == "unexplained"
    assert found.counterexample is not None
    assert found.counterexample.values["S"] == at
    scale = 12288 * found.counterexample.values["b"]
    assert (int(found.counterexample.claimed), found.counterexample.truth) == (scale * claimed, scale * truth)


def test_the_length_at_which_other_formulas_hold_is_named(tmp_path: Path) -> None:
    # A step puts what it has into every layer until the windows of 12 layers are full: at 512 tokens they are.
    body = "stage: decode, kv_cache_bytes: 12288*B*N*b"
    found = judged(tmp_path, "gpt-oss-20b", body, text_tokens=512)
    assert found.counterexample is not None
    assert found.counterexample.values["P"] == 1
    assert found.counterexample.truth == 2 * int(found.counterexample.claimed)


@pytest.mark.parametrize("side", ["H/64", "floor(H/64)", "ceiling(H/16/4)", "Max(H/64, 1)"])
def test_sides_that_the_model_takes(tmp_path: Path, side: str) -> None:
    # Sides are multiples of 64, so all of these are the same.
    body = f"stage: projector, flops: '2*n*({side})**2*2048*1280'"
    assert judged(tmp_path, "deepseek-ocr", body).status == "right"


def test_a_counterexample_is_a_side(tmp_path: Path) -> None:
    found = judged(tmp_path, "deepseek-ocr", "stage: projector, flops: 2*n*ceiling(H/128)**2*4*2048*1280")
    assert found.counterexample is not None
    # 64 and 64 are one patch each; the claim has four.
    assert {found.counterexample.values[f"H_{view}"] for view in ("global", "crops")} == {64}


@pytest.mark.parametrize(("most", "status"), [(131072, "right"), (4096, "unexplained")])
def test_no_length_is_beyond_the_positions(tmp_path: Path, most: int, status: str) -> None:
    body = f"stage: prefill, module: 'model.layers.*.self_attn', flops: '4*B*S*Min(S, {most})*text_layers*text_hidden'"
    assert judged(tmp_path, "llama-3.1-8b", body, text_tokens=64).status == status


def test_what_is_not_decided_is_not_right(tmp_path: Path) -> None:
    # B*S <= B*B + S*S always, but no list of values shows it.
    body = "stage: prefill, module: lm_head, flops: '2*Min(B*S, B*B + S*S)*text_hidden*text_vocab'"
    found = judged(tmp_path, "llama-3.1-8b", body, text_tokens=64)
    assert found.status == "undetermined"
    assert "not decided" in found.note


def test_conventions_that_are_ours_hide_nothing(tmp_path: Path) -> None:
    body = EXPERTS.format("Min(8, B + 2)") + ", conventions: {unit: flop}"
    assert judged(tmp_path, "mixtral-8x7b", body, batch=2, text_tokens=64).status == "unexplained"


@pytest.mark.parametrize(("tokens", "status"), [("S + Min(S, 127)", "explained"), ("S + 127", "unexplained")])
def test_causes_hold_on_both_sides_of_a_window(tmp_path: Path, tokens: str, status: str) -> None:
    # Keys alone: half of the cache.
    found = judged(tmp_path, "gpt-oss-20b", CACHE.format(f"({tokens})/2"), text_tokens=512)
    assert found.status == status


@pytest.mark.parametrize(("read", "status"), [("Min(8, 2*B)", "explained"), ("Min(8, B + 2)", "unexplained")])
def test_causes_hold_in_every_branch(tmp_path: Path, read: str, status: str) -> None:
    # A byte for each element in place of b.
    body = EXPERTS.format(read).replace("*b*", "*1*")
    assert judged(tmp_path, "mixtral-8x7b", body, batch=2, text_tokens=64).status == status


# Scores of one step of one sequence: 4 x keys x 4096 in each of 32 layers, of P + 1, P + 2, ... keys.
SCORES = "stage: decode, module: 'model.layers.*.self_attn', flops: '4*B*text_layers*text_hidden*({})'"


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ("N*P + N*(N - 1)/2", "new token not attended to"),
        ("N*P + N*(N + 3)/2", "new token attended to twice"),
        ("N*(P + N)", "decode context of the last step"),
        ("N*P", "decode context frozen"),
    ],
)
def test_contexts_of_decode_steps(tmp_path: Path, keys: str, cause: str) -> None:
    found = judged(tmp_path, "llama-3.1-8b", SCORES.format(keys), text_tokens=64, new_tokens=5)
    assert found.status == "explained"
    assert [s.cause for s in found.explanations[0].steps] == [cause]


def test_shared_experts_for_each_routed_one(tmp_path: Path) -> None:
    # Three matrices in each of 11 layers; six experts for each token, beside 2 shared ones in one MLP.
    body = "stage: prefill, module: '*.shared_experts.*', flops: 2*B*S*11*3*text_hidden*text_moe*text_shared*text_topk"
    found = judged(tmp_path, "deepseek-ocr", body)
    assert [s.cause for s in found.explanations[0].steps] == ["shared experts times top-k"]
