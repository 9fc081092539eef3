"""Stored bytes of published checkpoints from their configuration, and of models that transformers builds quantised."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from costproof import stored
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.generic.huggingface import huggingface
from costproof.models.stored_module import stored_tensors
from costproof.storage.scheme import read_scheme
from tests.support.running import costproof

CONFIGS = Path(__file__).parents[1] / "models" / "configs"
PUBLISHED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def fp8(rows: int, columns: int) -> int:
    """A byte for each weight, and four for each block of 128 x 128 that the matrix touches."""
    return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)


EXPERT = 2 * fp8(2048, 7168) + fp8(7168, 2048)
LATENT = fp8(1536, 7168) + fp8(24576, 1536) + fp8(576, 7168) + fp8(32768, 512) + fp8(7168, 16384)
ROUTER = 2 * 256 * 7168 + 4 * 256
NORMS = 2 * (1536 + 512 + 2 * 7168 + 3 * 7168)
NEXT_TOKEN = 257 * EXPERT + LATENT + ROUTER + NORMS + 2 * 7168 * 2 * 7168 + 2 * 2 * 129_280 * 7168
"""DeepSeek-V3's module for a further token, by hand: 256 routed experts and a shared one, latent attention, a router
with corrections in float32, two norms of latents, two of the layer and three of its own, a projection of two states to
one in bfloat16, and two tables."""


def configuration(made: Path, name: str, quantised: object) -> str:
    known = [folder / f"{name}.json" for folder in (CONFIGS, Path(__file__).parent)]
    data = json.loads(next(file for file in known if file.exists()).read_text(encoding="utf-8"))
    file = made / "config.json"
    file.write_text(json.dumps({**data, "quantization_config": quantised}), encoding="utf-8")
    return f"hf:{file}"


@pytest.mark.parametrize("row", PUBLISHED, ids=[row["name"] for row in PUBLISHED])
def test_the_bytes_of_a_published_checkpoint(row: dict[str, Any], tmp_path: Path) -> None:
    target = configuration(tmp_path, row["config"], row["quantization_config"])
    found = stored(target, next_token=row.get("mtp", 0))
    assert found.totals.bytes + sum(row.get("named", {}).values()) == row["bytes"]
    if "elements" in row:
        assert dict(found.totals.by_dtype) == row["elements"]
    assert sum(part.bytes for part in found.parts) == found.totals.bytes


def test_a_registered_model_needs_no_file() -> None:
    assert stored("deepseek-v3", next_token=1).totals.bytes == 688_574_839_360
    without = stored("deepseek-v3")
    assert without.left_out
    assert without.totals.bytes == 688_574_839_360 - NEXT_TOKEN
    assert (stored("gpt-oss-20b").totals.bytes, stored("gpt-oss-20b").params) == (13_761_264_768, 20_914_757_184)
    assert stored("llama-3.1-8b").totals.bytes == 2 * 8_030_261_248


TINY = {
    "model_type": "qwen3_moe", "hidden_size": 160, "intermediate_size": 96, "moe_intermediate_size": 96,
    "num_hidden_layers": 2, "vocab_size": 90, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40,
    "num_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False, "mlp_only_layers": [0],
}  # fmt: skip


def test_fp8_is_what_transformers_builds(tmp_path: Path) -> None:
    """Its quantiser replaces the modules of a model on meta; scales there are float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.quantizers.auto import AutoHfQuantizer

    description = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = AutoConfig.for_model(**TINY)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    quantiser = AutoHfQuantizer.from_config(dict(description), pre_quantized=True)
    quantiser.preprocess_model(built, dtype=torch.bfloat16)
    written = Counter[str]()
    for name, tensor in built.state_dict().items():
        kind = "scale" if name.endswith("scale_inv") else "fp8" if tensor.dtype == torch.float8_e4m3fn else "plain"
        written[kind] += tensor.numel()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    plain = huggingface(str(file), file, trusted=False).make(None, None).module
    found = Counter[str]()
    for stored_tensor in stored_tensors(plain, read_scheme({"quantization_config": description}, {}, "deepseek_v3")):
        kind = {"scale": "scale", "weight": "plain"}.get(stored_tensor.purpose, "plain")
        found["fp8" if stored_tensor.dtype == "F8_E4M3" else kind] += stored_tensor.elements
    assert found == written


def test_headers_are_held_against_the_configuration(tmp_path: Path) -> None:
    """A checkpoint as safetensors writes it, and the same with a tensor of another dtype."""
    import torch
    from safetensors.torch import save_file

    small = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(small))
    model = huggingface(str(tmp_path), tmp_path / "config.json", trusted=False).make(None, None).module
    state = {name: torch.zeros(p.shape, dtype=torch.bfloat16) for name, p in model.named_parameters()}
    save_file(state, tmp_path / "model.safetensors")
    line = ("stored", f"hf:{tmp_path}", "--files", str(tmp_path))
    done = costproof(*line, cwd=tmp_path)
    assert (done.code, "Exact: 21 tensors in 1 file" in done.stdout) == (0, True), done.stdout + done.stderr
    state["lm_head.weight"] = state["lm_head.weight"].float()
    save_file(state, tmp_path / "model.safetensors")
    done = costproof(*line, "-f", "json", cwd=tmp_path)
    found = json.loads(done.stdout)["headers"]["differences"]
    assert (done.code, [d["name"] for d in found], sum(d["bytes"] for d in found)) == (
        1, ["lm_head.weight"], 100 * 64 * 2,
    )  # fmt: skip


def test_a_size_that_the_weights_decide_is_incomplete(tmp_path: Path) -> None:
    nested = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
              "bnb_4bit_use_double_quant": True}  # fmt: skip
    found = stored(configuration(tmp_path, "Llama-3.1-8B", nested))
    assert (found.exit_code, len(found.undetermined)) == (3, 1)
    assert (
        stored(configuration(tmp_path, "Llama-3.1-8B", {**nested, "bnb_4bit_use_double_quant": False})).exit_code == 0
    )


def test_a_format_that_is_not_known_is_no_number(tmp_path: Path) -> None:
    for description in ({"quant_method": "hqq"}, {"bits": 4, "group_size": 64, "mode": "mxfp4"}):
        with pytest.raises(Incomplete, match="not known"):
            stored(configuration(tmp_path, "Llama-3.1-8B", description))
    with pytest.raises(BadInput, match="predict further tokens"):
        stored("llama-3.1-8b", next_token=1)
    with pytest.raises(BadInput, match="at most 1"):
        stored("deepseek-v3", next_token=2)


def test_fits_takes_the_weights_as_they_are_stored(tmp_path: Path) -> None:
    """gpt-oss-20b in 16 GB: weights in MXFP4, and the live peak beside them."""
    done = costproof("fits", "gpt-oss-20b", "--memory", "16GB", "-f", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.code, found["stored_bytes"], found["stored_format"]) == (0, 13_761_264_768, "MXFP4")
    # The largest tensor that is quantised: 32 experts of 5,760 x 2,880, in two bytes each where a kernel unpacks it.
    assert found["unpacked_bytes"] == 2 * 32 * 5760 * 2880
    assert costproof("fits", "gpt-oss-20b", "--memory", "20GB", cwd=tmp_path).code == 0
    assert costproof("fits", "gpt-oss-20b", "--memory", "13.7GB", cwd=tmp_path).code == 1
