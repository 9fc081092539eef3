"""Quantised models without formulas: layouts and stand-in modules agree, and mistakes are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.metrics import STORAGE, UNPACKED
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from costproof.reports.report import Report
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.storage import formats
from costproof.storage.tensors import StoredTensor
from costproof.tracers import storage as of_run
from costproof.weights.library_reading import LibraryReading

pytestmark = pytest.mark.usefixtures("one_process")

SIZES = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
         "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 64}  # fmt: skip
OLMO: dict[str, Any] = {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 128,
                        "intermediate_size": 192, "attention_bias": True, **SIZES}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 96, "shared_expert_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
    **SIZES,
}  # fmt: skip
STATIC_FP8 = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
              "modules_to_not_convert": ["lm_head"]}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def compressed(layout: str, weights: dict[str, Any], inputs: Any = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    named = {"quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"]}
    return {**named, "config_groups": {"a": group}, **more}


ROWS_FP8 = compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, INPUTS)
SCHEMES: dict[str, dict[str, Any]] = {
    "fp8 static": STATIC_FP8,
    "fp8 without blocks": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]},
    "fp8 powers": {**BLOCKS, "scale_fmt": "ue8m0", "weight_block_size": [32, 64]},
    "fp8 rows": ROWS_FP8,
    "int4, an expert left, scales of a cache": compressed(
        "pack-quantized", {**GROUP, "symmetric": False}, kv_cache_scheme={"num_bits": 8},
    ) | {"ignore": ["lm_head", r"re:.*experts\.1\..*", "re:.*mlp.gate$", "re:.*shared_expert_gate$"]},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
              "ignore": ["lm_head", "*gate"]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "mlx": {"bits": 4, "group_size": 32},
}  # fmt: skip


def counted(folder: Path, model: dict[str, Any], described: dict[str, Any], **run: Any) -> Report:
    (folder / "config.json").write_text(json.dumps(model | {"quantization_config": described}), encoding="utf-8")
    target: Any = load_target(f"hf:{folder / 'config.json'}")
    assert not isinstance(target, WithFormulas)
    workload = replace(target.workload(seq_len=5, **run), new_tokens=1)
    return count_sources(Prepared(target, workload, ("static", "dynamic"), no_cache=True))


def totals(report: Report) -> dict[str, tuple[int | None, ...]]:
    return {x.source: tuple(x.total(metric) for metric in STORAGE) for x in report.capture.ledgers}


def test_scales_of_whole_matrices_and_inputs_by_hand(tmp_path: Path) -> None:
    """A scale of a matrix and one of its inputs, in bfloat16 in files (Ministral-3, Devstral), float32 as loaded."""
    report = counted(tmp_path, OLMO, STATIC_FP8)
    matrices = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128
    biases, norms = 128 + 64 + 64 + 128, 2 * 128 + 128 + 128 + 64  # of a layer and the output; of queries and keys
    plain = 2 * 96 * 128 + biases + norms
    stored, elements = matrices + 7 * 2 * 2 + 2 * plain, matrices + 7 * 2 + plain
    frequencies = 2 * 16 * 4  # 32 / 2 pairs of a head, twice
    found = totals(report)
    assert found["static"] == (stored, elements, stored + frequencies)
    # In float32 a run has two bytes more of each scale, and of the biases, which the class creates in float32.
    assert found["dynamic"] == (stored, elements, stored + frequencies + 7 * 2 * 2 + 2 * biases)
    assert report.discrepancy.verdict == "explained"
    assert {c.note for f in report.discrepancy.findings for c in f.causes} == {f"dynamic: {of_run.LOADED}"}


def test_scales_of_rows_by_hand(tmp_path: Path) -> None:
    """One scale a row, in the model's dtype (Llama-4-Scout-FP8-dynamic), of stand-ins: no library is installed."""
    report = counted(tmp_path, OLMO, ROWS_FP8)
    matrices, rows = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128, 128 + 64 + 64 + 128 + 2 * 192 + 128
    plain = 2 * 96 * 128 + (128 + 64 + 64 + 128) + (2 * 128 + 128 + 128 + 64) + rows
    found = totals(report)
    assert found["static"] == (matrices + 2 * plain, matrices + plain, matrices + 2 * plain + 2 * 16 * 4)
    assert found["dynamic"] == found["static"]
    assert report.discrepancy.verdict == "exact"


def test_powers_of_two_that_a_run_holds_in_one_byte(tmp_path: Path) -> None:
    """DeepSeek-V3.2's files have them in float32; transformers' module in E8M0."""
    small = {
        "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 128,
        "intermediate_size": 160, "moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 64,
        "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "index_n_heads": 2,
        "index_head_dim": 32, "index_topk": 8, **SIZES, "num_key_value_heads": 4,
    }  # fmt: skip
    report = counted(tmp_path, small, {**BLOCKS, "scale_fmt": "ue8m0"})
    scales = {x.source: x for x in report.capture.ledgers}
    assert scales["static"].total("stored_bytes") == scales["dynamic"].total("stored_bytes")
    held = [f for f in report.discrepancy.findings if f.metric == "resident_bytes"]
    more = {cause.amount for f in held if str(f.module).endswith("mlp.gate_proj") for cause in f.causes}
    assert more == {3 * 2}, "[160, 128] has two blocks, and each scale three bytes less"
    assert report.discrepancy.verdict == "explained"


@pytest.mark.parametrize("model", ["olmo2", pytest.param("qwen2_moe", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_format_has_two_sources(tmp_path: Path, scheme: str, model: str) -> None:
    if (scheme, model) == ("mlx", "qwen2_moe"):
        pytest.skip("MLX has modules of its own for experts")
    report = counted(tmp_path, OLMO if model == "olmo2" else MIXTURE, SCHEMES[scheme])
    found = totals(report)
    assert found["static"][:2] == found["dynamic"][:2]
    assert None not in found["static"]
    assert not any(f.residual for f in report.discrepancy.findings)
    if "cache" in json.dumps(SCHEMES[scheme]):  # whose bytes are those of the run's dtype
        assert report.discrepancy.verdict == "incomplete"
        assert "all of the cache were bfloat16" in report.sentence
        assert "fewer than two sources" not in report.sentence
    else:
        assert report.discrepancy.verdict in ("exact", "explained"), report.sentence
    noted = [note for ledger in report.capture.ledgers for note in ledger.notes]
    built = scheme == "fp8 powers" or (model == "olmo2" and scheme in ("fp8 static", "awq"))
    assert any(note.startswith(of_run.UNPACKED if built else of_run.STANDING_IN) for note in noted), noted


@pytest.mark.parametrize(("stored", "run"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "bfloat16")])
@pytest.mark.parametrize("name", ["static", "blocks", "rows"])
def test_scales_and_biases_do_not_follow_the_dtype_of_the_run(tmp_path: Path, name: str, stored: str, run: str) -> None:
    """Of a matrix they are as in the files, and of transformers' fp8 modules in float32; all else is in the run's."""
    named: dict[str, dict[str, Any]] = {"static": STATIC_FP8, "blocks": BLOCKS, "rows": ROWS_FP8}
    report = counted(tmp_path, {**OLMO, "torch_dtype": stored}, named[name], dtype=run)
    found, item = totals(report), {"bfloat16": 2, "float16": 2, "float32": 4}
    matrices = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128
    biases, norms, tables = 128 + 64 + 64 + 128, 2 * 128 + 128 + 128 + 64, 2 * 96 * 128
    one_each, blocks = 7 * 2, 4 + 3 * 2  # of q and o, k and v, and of three matrices with 192 rows or columns
    scales = {"static": one_each * 2, "blocks": blocks * 4, "rows": (4 * 128 + 2 * 192) * item[stored]}
    quantised = matrices + scales[name] + biases * item[stored]
    assert found["static"][0] == found["dynamic"][0] == quantised + (norms + tables) * item[stored]
    held = quantised + (norms + tables) * item[run] + 2 * 16 * 4
    assert found["static"][2] == held
    wide = {"static": one_each * 2, "blocks": 0, "rows": 0}[name] + (4 - item[stored]) * biases * (name != "rows")
    assert found["dynamic"][2] == held + wide
    assert report.discrepancy.verdict == ("explained" if wide else "exact")


def _first_scale(change: Callable[[StoredTensor], StoredTensor]) -> Callable[[Any], Any]:
    """Return a patch of ``tensors`` that changes the first scale of a layer."""

    def patch(right: Any) -> Any:
        def wrong(self: Any, of: Any) -> Any:
            tensors = list(right(self, of))
            at = next(i for i, tensor in enumerate(tensors) if tensor.purpose == "scale")
            tensors[at] = change(tensors[at])
            return tuple(tensors)

        return wrong

    return patch


PLANTED: dict[str, tuple[type, Callable[[StoredTensor], StoredTensor]]] = {
    "a scale for columns": (formats.CompressedTensors, lambda t: replace(t, shape=(128, 1))),
    "a scale for each 16 rows": (formats.CompressedTensors, lambda t: replace(t, shape=(t.shape[0] // 16, 1))),
    "a wider scale of rows": (formats.CompressedTensors, lambda t: replace(t, dtype="F32")),
    "a wider scale of a matrix": (formats.Fp8, lambda t: replace(t, dtype="F32")),
    "a scale of two elements": (formats.Fp8, lambda t: replace(t, shape=(2,))),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_in_a_layout_is_found(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, change = PLANTED[name]
    described = STATIC_FP8 if kind is formats.Fp8 else ROWS_FP8
    assert counted(tmp_path, OLMO, described).exit_code == 0
    monkeypatch.setattr(kind, "tensors", _first_scale(change)(kind.tensors))  # type: ignore[attr-defined]
    report = counted(tmp_path, OLMO, described)
    assert report.exit_code == 1
    found = {(f.metric, str(f.module).rpartition(".")[2]) for f in report.discrepancy.findings if f.residual}
    assert ("stored_bytes", "up_proj") in found


def test_a_mistaken_dtype_of_blocks_scales_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers builds these scales in float32 whatever the files have, so the dtype is known by itself."""
    monkeypatch.setattr(formats.Fp8, "scale_dtype", "BF16")
    report = counted(tmp_path, OLMO, BLOCKS)
    assert report.exit_code == 1
    residuals = {f.residual for f in report.discrepancy.findings if f.metric == "stored_bytes" and f.module}
    assert residuals - {0} == {-2, -4}, "of one block of 128 rows and of two of 192: two bytes less each"


@pytest.mark.parametrize("method", ["_settings_of", "_format_of"])
def test_a_mistaken_exclusion_is_found(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading as the library does it takes the output projection too: it is no longer that of the rules."""
    right = getattr(LibraryReading, method)

    def wrong(self: Any, *args: Any) -> Any:
        return right(replace(self, kept=()), *args)

    monkeypatch.setattr(LibraryReading, method, wrong)
    report = counted(tmp_path, OLMO, ROWS_FP8)
    assert report.exit_code == 3
    told = " ".join(note for ledger in report.capture.ledgers for note in ledger.notes)
    assert "two readings of the configuration differ at lm_head" in told
    assert all(UNPACKED not in x.metrics or x.source == "dynamic" for x in report.capture.ledgers)
