"""Encoder-decoders: three stages that agree in both sources, by hand arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from costproof.ledger.errors import BadInput
from costproof.ledger.run import run_options
from costproof.models.decoding.decoder import ids_on_meta
from costproof.models.generic.encoder_decoder import first_run
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.models.generic.test_stages import counted, generic

pytestmark = pytest.mark.usefixtures("one_process")

T5: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_kv": 8, "d_ff": 48,
    "num_layers": 1, "num_decoder_layers": 1, "num_heads": 4, "vocab_size": 64, "decoder_start_token_id": 0,
}  # fmt: skip
BART: dict[str, Any] = {
    "model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 32, "encoder_layers": 1,
    "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER = 2 * (4 * 32 * 32 + 2 * 32 * 48)
"""A position: four projections and an MLP of two."""
DECODER = 2 * (4 * 32 * 32 + 2 * 32 * 32 + 2 * 32 * 48 + 32 * 64)
"""A position: own attention, q and out of the other one, and an MLP; and the head."""
CROSS = 2 * 2 * 32 * 32
"""Keys and values of a position of the encoder, made once."""
PAIR = 4 * 32
"""Two products of a query and a key of 4 heads of 8."""


@pytest.mark.parametrize("data", [pytest.param(T5, id="t5"), pytest.param(BART, id="bart", marks=pytest.mark.thorough)])
def test_three_stages(data: dict[str, Any]) -> None:
    found = counted(data, batch=2, seq_len=20, new_tokens=2)
    assert found.capture.target.stages == ("encode", "prefill", "decode")
    expected = {
        "encode": 2 * (20 * ENCODER + PAIR * 20 * 20),
        "prefill": 2 * (DECODER + 20 * CROSS + PAIR * (1 + 20)),
        "decode": 2 * sum(DECODER + PAIR * (context + 1 + 20) for context in range(1, 3)),
    }
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert {stage: ledger.stage_total(stage, "flops") for stage in expected} == expected
        # Two tensors of 4 heads of 8, in bfloat16.
        assert ledger.stage_total("decode", "kv_cache_bytes") == 2 * 2 * 2 * 32 * 2
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * (1 + 20) * 2 * 32 * 2
    assert found.verdict == "exact", found.sentence


def test_a_run_with_numbers_has_them_in_its_caches_too() -> None:
    target = generic(T5).with_options(run_options({"run": "cpu"}))
    found = count_sources(Prepared(target, target.workload(batch=1, seq_len=6, new_tokens=1), ("static", "dynamic")))
    assert found.verdict == "exact", found.sentence
    ledger = found.capture.ledger("dynamic")
    assert ledger.stage_total("decode", "flops") == DECODER + PAIR * (2 + 6)


def test_what_an_encoder_decoder_takes() -> None:
    target = generic(T5)
    assert target.stages_of("shared", target.workload(seq_len=8)) == ("encode", "prefill", "decode")
    assert target.stages_of("encoder.block.0", target.workload(seq_len=8)) == ("encode",)


def test_a_model_that_hears_has_no_text_alone() -> None:
    """``--image-size 0`` leaves text; a model without it is refused, whether it has an image size or not."""
    sizes = {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60,
        "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    images = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "image_size": 32}
    for data in ({"model_type": "whisper", **sizes}, {"model_type": "convnext", **images}):
        with pytest.raises(BadInput, match="takes no text alone") as caught:
            generic(data).workload(image_size=0)
        assert caught.value.where == "--image-size"


@pytest.mark.thorough
def test_a_decoder_reads_what_its_encoder_pooled() -> None:
    """Of an image of 64, 4 x 4 patches; two convolutions with a stride make 1 position of width 48 of them."""
    text = {
        "d_model": 48, "hidden_size": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64,
        "vocab_size": 96, "max_position_embeddings": 64,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 64, "patch_size": 16,
        "output_channels": 16, "window_size": 2, "global_attn_indexes": [0], "mlp_dim": 64, "decoder_hidden_size": 48,
        "post_conv_in_channels": 16, "post_conv_mid_channels": 24, "post_conv_out_channels": 40,
    }  # fmt: skip
    data = {"model_type": "pp_formulanet", "text_config": text, "vision_config": vision}
    found = counted(data, batch=2, new_tokens=3)
    # A position: own attention, q and out of the other one, an MLP; and the head.
    token = 2 * (2 * (4 * 48 * 48 + 2 * 48 * 48 + 2 * 48 * 64) + 48 * 96)
    keys_and_values = 2 * 2 * 2 * 48 * 48
    pair = 2 * 4 * 48
    prefill = 2 * (token + keys_and_values + pair * (1 + 1))
    decode = 2 * sum(token + pair * (context + 1 + 1) for context in range(1, 4))
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", "flops") == prefill
        assert ledger.stage_total("decode", "flops") == decode
    assert found.verdict == "exact", found.sentence


def test_what_no_decoder_reads_is_not_handed_on() -> None:
    """BERT pools its first position, a decoder beside it reads the others."""
    bert = {
        "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64,
        "intermediate_size": 48, "max_position_embeddings": 64,
    }  # fmt: skip
    model = transformers.EncoderDecoderModel(
        transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.BertConfig(**bert),
            transformers.BertConfig(**bert),
        )
    ).to("meta")
    found = first_run(model, {"input_ids": ids_on_meta(2, 20)})
    assert found is not None
    assert found.hidden == {"last_hidden_state": (2, 20, 32)}


def test_a_model_whose_inputs_are_not_known_has_no_first_run() -> None:
    module = nn.Module()
    module.config = SimpleNamespace(is_encoder_decoder=True)  # type: ignore[assignment]
    module.generate = print  # type: ignore[assignment]
    assert first_run(module, {}) is None


def test_work_before_the_encoder_has_none_of_its_stages() -> None:
    class Seeing(transformers.T5ForConditionalGeneration):  # type: ignore[misc]  # transformers has no types
        """The model, and an image and its place beside the text, of which its encoder knows nothing."""

        def forward(self, input_ids: Any = None, pixel_values: Any = None, place: Any = None, **given: Any) -> Any:
            return super().forward(input_ids=input_ids, **given)

    with torch.device("meta"):
        model = Seeing(transformers.T5Config(**T5))
    ids = {"input_ids": ids_on_meta(2, 5)}
    assert first_run(model, ids) is not None
    assert first_run(model, {**ids, "place": ids_on_meta(2, 1)}) is not None
    assert first_run(model, {**ids, "pixel_values": torch.zeros(2, 3, 4, 4, device="meta")}) is None
