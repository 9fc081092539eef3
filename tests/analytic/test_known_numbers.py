"""The published model against numbers from outside: the checkpoint, and an independent dispatch-level count."""

from __future__ import annotations

import pytest

from costproof.algebra.symbols import parse, sym
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.formulas import ocr_ledger
from costproof.models.pages.formulas import PageStructure
from tests.analytic.published import counted, page


@pytest.mark.parametrize(
    ("stage", "params"),
    [
        ("sam", 95_569_152),
        ("clip", 302_575_616),
        ("projector", 2_622_720),
        # decoder without output projection, output projection, newline and separator
        ("prefill", 2_769_255_680 + 1280 * 129_280 + 2 * 1280),
    ],
)
def test_parameters_of_the_checkpoint(stage: str, params: int) -> None:
    result = counted(PageStructure())
    assert result.stage_total(stage, "params") == params
    assert result.stage_total(stage, "weight_bytes") == 2 * params


def test_all_parameters() -> None:
    assert counted(PageStructure()).total("params") == 3_335_504_128


def test_active_parameters() -> None:
    # 11 layers hold 64 experts of 3 * 1280 * 896, of which a token passes 6
    assert counted(PageStructure()).total("params_active") == 3_335_504_128 - 11 * 58 * 3 * 1280 * 896


def giga(flops: int | None) -> str:
    """To the digits that the counts were published with."""
    assert flops is not None
    return f"{flops / 1e9:.4f}"


@pytest.mark.parametrize(("side", "expected"), [(640, "325.6208"), (1024, "976.9092")])
def test_sam_flops(side: int, expected: str) -> None:
    assert giga(counted(page(side), base=side).stage_total("sam", "flops")) == expected


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ((".mlp.",), "181.19"),
        ((".attn.qkv",), "72.59"),
        ((".attn.proj",), "24.20"),
        ((".neck.",), "2.52"),
        ((".patch_embed.",), "1.89"),
        (("sam_encoder.proj.",), "1.89"),
    ],
)
def test_sam_640_by_component(modules: tuple[str, ...], expected: str) -> None:
    total = counted(page(640), base=640).total(
        "flops", lambda n: n.stage == "sam" and any(m in n.module for m in modules)
    )
    assert total is not None
    assert f"{total / 1e9:.2f}" == expected


@pytest.mark.parametrize(("kind", "expected"), [("attention", "39.95"), ("einsum", "1.39")])
def test_sam_640_by_kind(kind: str, expected: str) -> None:
    total = counted(page(640), base=640).total("flops", lambda n: n.stage == "sam" and n.kind == kind)
    assert total is not None
    assert f"{total / 1e9:.2f}" == expected


def test_clip_flops_of_101_tokens() -> None:
    assert giga(counted(page(640), base=640).stage_total("clip", "flops")) == "62.0048"


def test_projector_flops_of_100_tokens() -> None:
    # 2 * 100 * 2048 * 1280
    assert counted(page(640), base=640).stage_total("projector", "flops") == 524_288_000


def test_vision_path_of_a_page_with_six_crops() -> None:
    result = counted(page(1024, 640), base=1024, crop=640, grid=(3, 2))
    vision = [result.stage_total(s, "flops", i) for i in ("global", "crops") for s in ("sam", "clip", "projector")]
    flops = [v for v in vision if v is not None]
    assert f"{sum(flops[:3]) / 1e9:.2f}" == "1139.97"
    assert f"{sum(flops[3:]) / 1e9:.2f}" == "2328.90"
    assert giga(sum(flops)) == "3468.8661"


def decoder_flops(prompt: int, *, batch: int = 1) -> int:
    total = counted(PageStructure(), prompt=prompt, batch=batch).total(
        "flops", lambda n: n.stage == "prefill" and n.module != "lm_head"
    )
    assert total is not None
    return total


def test_decoder_flops_of_913_tokens() -> None:
    assert giga(decoder_flops(913)) == "797.3490"


@pytest.mark.parametrize(("batch", "prompt"), [(1, 1), (1, 913), (3, 40), (2, 5000)])
def test_decoder_flops_are_those_of_an_exported_graph(batch: int, prompt: int) -> None:
    # torch.export of the twelve layers with batch and sequence symbolic: 20480*B*S*(3*S + 39904)
    assert decoder_flops(prompt, batch=batch) == 20_480 * batch * prompt * (3 * prompt + 39_904)


def test_decode_step_at_1024() -> None:
    total = counted(PageStructure(), context=1024).total(
        "flops", lambda n: n.stage == "decode" and n.module != "lm_head"
    )
    assert giga(total) == "0.8802"


def test_whole_page_of_640_with_nine_text_tokens() -> None:
    # 10 * 11 + 1 = 111 vision tokens; all of it with lm_head
    result = counted(page(640), base=640, prompt=120)
    stages = [result.stage_total(s, "flops") for s in ("sam", "clip", "projector", "prefill")]
    assert giga(sum(v for v in stages if v is not None)) == "526.8175"


def test_key_value_cache() -> None:
    # 12 layers, keys and values, 10 heads of 128, bfloat16
    result = counted(PageStructure(), prompt=100, batch=3, steps=7)
    per_token = 12 * 2 * 10 * 128 * 2
    assert result.stage_total("prefill", "kv_cache_bytes") == 3 * 100 * per_token
    assert result.stage_total("decode", "kv_cache_bytes") == 3 * 7 * per_token


def test_output_projection_on_the_last_position_only() -> None:
    every = counted(PageStructure(), prompt=50, batch=2)
    last = counted(PageStructure(logits="last"), prompt=50, batch=2)

    def head(result: Ledger) -> int | None:
        return result.total("flops", lambda n: n.stage == "prefill" and n.module == "lm_head")

    assert head(every) == 2 * 2 * 50 * 1280 * 129_280
    assert head(last) == 2 * 2 * 1 * 1280 * 129_280


def test_attention_of_one_layer_in_symbols() -> None:
    (node,) = (
        n
        for n in ocr_ledger(PageStructure()).nodes
        if n.module == "model.language_model.layers.3.self_attn" and n.stage == "prefill" and "flops" in n.exprs
    )
    expected = 4 * sym("B") * sym("text_heads") * sym("S") ** 2 * sym("text_head_dim")
    assert parse(node.exprs["flops"]) == expected
    assert (node.kind, node.owner) == ("attention", "attention")
