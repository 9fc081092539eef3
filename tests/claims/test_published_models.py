"""Numbers that were published for one model each, with what they hold beside the model written out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costproof.claims.amounts import amount
from costproof.claims.judge import judge_claim
from costproof.claims.truth import ClaimCase
from costproof.claims.types import PublishedClaim
from costproof.models.registry import mistakes_of
from tests.claims.test_windows import causes, counted, judged

# DeepSeek-V3: hidden 7,168, 61 layers, 3 of them dense, 256 experts and a shared one of 2,048, 129,280 words.
H, VOCAB, TRUTH = 7168, 129_280, 671_026_404_352
MATRICES = [(1536, H), (128 * 192, 1536), (512 + 64, H), (128 * 256, 512), (H, 128 * 128)]
"""Queries down and up, keys and values down and up, the output: rows and columns."""
EXPERTS, DENSE = 257 * [(2048, H)] * 3, [(18_432, H)] * 3
QUANTISED = 62 * MATRICES + 59 * EXPERTS + 3 * DENSE
"""Those of the model and of the layer of the module for the next token."""
SCALES = sum(-(-rows // 128) * -(-columns // 128) for rows, columns in QUANTISED)
LAYER = sum(rows * columns for rows, columns in [*MATRICES, *EXPERTS]) + 256 * H + 1536 + 512 + 2 * H
MODULE = LAYER + 2 * H * H + 3 * H
"""Its layer; a projection of 2 h x h; norms of both that go into it, and of what comes out."""
TABLES = 2 * VOCAB * H
COUNTED = "next-token module counted"


def test_sizes_of_the_module() -> None:
    """By hand: 11,507,286,016 + 102,760,448 + 21,504 parameters, and twice 926,679,040 of its tables."""
    assert (LAYER, MODULE, TABLES) == (11_507_286_016, 11_610_067_968, 1_853_358_080)
    assert SCALES == 41_540_496


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        (684_489_830_400, TRUTH + MODULE + TABLES, {COUNTED}),
        (682_636_472_320, TRUTH + MODULE, {f"{COUNTED}, shared tables"}),
        (684_531_370_896, TRUTH + MODULE + TABLES + SCALES, {COUNTED, "scales counted"}),
        # As a hub prints it: 684,531,386,000 tensors' elements.
        (684_531_386_000, TRUTH + MODULE + TABLES + SCALES + 59 * 256,
         {COUNTED, "scales counted", "router corrections counted"}),
    ],
)  # fmt: skip
def test_parameters_with_the_next_token_module(published: int, value: int, expected: set[str]) -> None:
    assert published == value
    found = judged(counted("deepseek-v3"), "total", "params", value)
    assert (found.truth, found.status, causes(found)) == (TRUTH, "explained", [expected])


def test_bytes_of_the_checkpoint() -> None:
    """Matrices of layers in one byte with scales of four, all else in two, corrections of the router in four."""
    elements = sum(rows * columns for rows, columns in QUANTISED)
    value = elements + 4 * SCALES + 2 * (TRUTH + MODULE + TABLES - elements) + 4 * 59 * 256
    assert value == 688_574_839_360
    found = judged(counted("deepseek-v3"), "total", "weight_bytes", value)
    assert (found.truth, found.status) == (2 * TRUTH, "explained")
    assert causes(found) == [{COUNTED, "8-bit matrices in blocks", "router corrections counted"}]


def test_work_and_cache_of_the_module() -> None:
    """512 tokens: one layer more, 2 x 2 h x h a token, logits a second time; and the latents of a layer."""
    at, tokens = counted("deepseek-v3", text_tokens=512), 512
    matrices = sum(rows * columns for rows, columns in [*MATRICES, *[(2048, H)] * 3 * 9]) + 256 * H
    scores = 2 * 128 * (192 + 128) * tokens**2
    more = 2 * tokens * (matrices + 2 * H * H + H * VOCAB) + scores
    truth = judged(at, "prefill", "flops", 1).truth
    assert causes(judged(at, "prefill", "flops", truth + more)) == [{COUNTED}]
    cache = 2 * tokens * 61 * (512 + 64)
    found = judged(at, "prefill", "kv_cache_bytes", cache * 62 // 61)
    assert (found.truth, {COUNTED} in causes(found)) == (cache, True)


@pytest.mark.parametrize("value", [TRUTH + MODULE // 2, TRUTH + 13_000_000_000, TRUTH + TABLES // 3])
def test_other_parameters_are_not_explained(value: int) -> None:
    assert judged(counted("deepseek-v3"), "total", "params", value).status != "explained"


# Qwen2.5-VL-7B's tower on an image of 448: 1,024 patches of 14, 32 layers of 16 heads of 80, 28 of them in windows
# of 112 pixels, which are 8 x 8 patches.
PATCHES, KEY = 1024, 4 * 16 * 80
TOWER = 1_346_937_815_040
WINDOWS = 28 * KEY * PATCHES * 64
UP, DOWN = 5120 * 5120, 5120 * 3584
"""The merger makes one token of four patches of 1,280."""


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        (1_487_866_429_440, TOWER - WINDOWS + 28 * KEY * PATCHES**2, {"windows as full attention"}),
        (3_179_009_802_240, TOWER - WINDOWS + 28 * KEY * PATCHES * 112**2, {"window of pixels as of patches"}),
        (None, TOWER + 3 * 2 * (PATCHES // 4) * (UP + DOWN), {"merger on patches"}),
        # As one trainer had it: no gate, the merger on patches, full attention.
        (None, TOWER - WINDOWS + 28 * KEY * PATCHES**2 + 3 * 2 * (PATCHES // 4) * (UP + DOWN)
         - 32 * 2 * PATCHES * 1280 * 3420, {"windows as full attention", "merger on patches", "gate matrix missing"}),
    ],
)  # fmt: skip
def test_towers_with_windows(published: int | None, value: int, expected: set[str]) -> None:
    assert published in (None, value)
    found = judged(counted("qwen2.5-vl-7b", image_size=448, text_tokens=64), "vision", "flops", value)
    assert (found.truth, found.status, causes(found)) == (TOWER, "explained", [expected])


@pytest.mark.parametrize(
    ("model", "published", "value"),
    [
        ("gpt2", 163_037_184, 124_439_808 + 50_257 * 768),
        ("llama-3.2-1b", 1_498_482_688, 1_235_814_400 + 128_256 * 2048),
    ],
)
def test_a_head_that_shares_the_table_counted_again(model: str, published: int, value: int) -> None:
    assert published == value
    for metric, number in (("params", value), ("weight_bytes", 2 * value)):
        found = judged(counted(model), "prefill", metric, number)
        assert (found.status, causes(found)) == ("explained", [{"tied head counted"}])


FLAN_T5_SMALL = {
    "model_type": "t5", "d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 6, "num_layers": 8,
    "num_decoder_layers": 8, "vocab_size": 32_128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip


def test_a_table_that_two_stacks_and_the_head_share(tmp_path: Path) -> None:
    """The published 76,961,152 parameters are those of the class and 32,128 x 512 of the checkpoint's own head.

    By hand: the table, 8 layers of an encoder (attention, gated MLP, two norms) and of a decoder (twice the attention,
    three norms), two last norms, and biases of 32 distances in 6 heads for both stacks.
    """
    (tmp_path / "config.json").write_text(json.dumps(FLAN_T5_SMALL), encoding="utf-8")
    at, table, attention, mlp = counted(f"hf:{tmp_path}"), 32_128 * 512, 4 * 512 * 6 * 64, 3 * 512 * 1024
    layers = 8 * (attention + mlp + 2 * 512) + 8 * (2 * attention + mlp + 3 * 512)
    truth = table + layers + 2 * 512 + 2 * 32 * 6
    assert truth + table == 76_961_152
    for more, cause in ((table, "tied head counted"), (-table, "embedding missing")):
        for metric, size in (("params", 1), ("weight_bytes", 2)):
            found = judged(at, "total", metric, size * (truth + more))
            assert (found.truth, found.status, causes(found)) == (size * truth, "explained", [{cause}])


def test_a_model_with_a_head_of_its_own_has_none_to_count_again() -> None:
    found = judged(counted("llama-3.1-8b"), "prefill", "params", 8_030_261_248 + 128_256 * 4096)
    assert {"tied head counted"} not in causes(found)


def test_experts_taken_for_whole_models() -> None:
    """Mixtral-8x7B as eight of Mistral-7B, whose 7,241,732,096 parameters have the same sizes and no router."""
    for metric, number in (("params", 8 * 7_241_732_096), ("weight_bytes", 16 * 7_241_732_096)):
        found = judged(counted("mixtral-8x7b"), "prefill", metric, number)
        assert (found.truth, found.status) == (46_702_792_704 * (number // 8 // 7_241_732_096), "explained")
        assert causes(found) == [{"as many models as experts"}]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("57.93e9", "explained"),  # 57,933,856,768, rounded
        ("57.92e9", "unexplained"),  # 8 x 7.24e9, whose factor was rounded before
        ("8 x 7.24e9", "explained"),
        ("8*7.24 B", "explained"),
        ("8 x 7.25e9", "unexplained"),
    ],
)
def test_a_product_of_a_rounded_number_is_as_wide_as_its_factor(text: str, status: str) -> None:
    """Mixtral-8x7B as eight of 7,241,732,096 parameters; printed as 57.92e9 it is none of the numbers that round so."""
    value = amount(text, where="$", metric="params")
    assert (value.low <= 8 * 7_241_732_096 <= value.high) == (status == "explained")
    capture = counted("mixtral-8x7b")
    claim = PublishedClaim("c", "$", "total", "params", value)
    found = judge_claim(ClaimCase(claim, capture, capture.by_source["analytic"], mistakes_of(capture.target.name)))
    assert found.status == status
    assert status != "explained" or causes(found) == [{"as many models as experts"}]
