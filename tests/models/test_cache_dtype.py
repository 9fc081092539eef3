"""Key/value caches in fewer bits: bytes by hand, in all sources, by the setting and by the configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.workload import counted_line
from costproof.models.cache_dtype import CACHE_FORMATS, cache_tensors, latent_bytes
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.weights.stored import Stored, _cache_formats

LAYERS, HEADS, WIDTH = 32, 8, 128
"""Of Llama-3.1-8B: heads are those of keys and values."""


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("run", WIDTH * 2),
        ("fp8", WIDTH),
        ("int8", WIDTH + 4),
        ("int4", WIDTH // 2 + 4),
        ("nvfp4", WIDTH // 2 + WIDTH // 16),
        ("q8_0", WIDTH // 32 * 34),
        ("q4_0", WIDTH // 32 * 18),
    ],
)
def test_bytes_of_a_head_by_hand(kind: str, head: int) -> None:
    target: Any = load_target("llama-3.1-8b")
    token = LAYERS * 2 * HEADS * head
    ledger = evaluate_formulas(target, target.workload(text_tokens=100, new_tokens=3, batch=2, kv_dtype=kind))
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 100 * token
    assert ledger.stage_total("decode", "kv_read_bytes") == 2 * (100 + 101 + 102) * token
    usual = evaluate_formulas(target, target.workload(text_tokens=100, new_tokens=3, batch=2))
    less = 2 * (303 + 3) * LAYERS * 2 * HEADS * (2 * WIDTH - head)
    for metric in ("floor_bytes", "unfused_bytes"):
        before, now = (x.stage_total("decode", metric) for x in (usual, ledger))
        assert (before or 0) - (now or 0) == less, metric
    for metric in ("flops", "input_bytes", "weight_read_bytes"):
        assert ledger.total(metric) == usual.total(metric)


def test_packed_latents_take_656_bytes_a_token_and_layer() -> None:
    target: Any = load_target("deepseek-v3")
    for kind, size in (("run", 2 * (512 + 64)), ("fp8", 512 + 4 * 4 + 2 * 64)):
        ledger = evaluate_formulas(target, target.workload(text_tokens=100, kv_dtype=kind))
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 100 * 61 * size
    with pytest.raises(Problems, match="no layout of latents is known in this format"):
        target.workload(kv_dtype="int4")


def config(folder: Path, **quantised: Any) -> Any:
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
        "dtype": "bfloat16", "quantization_config": quantised,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return load_target(f"hf:{folder / 'config.json'}")


@pytest.mark.usefixtures("one_process")
def test_formulas_graph_and_run_agree(tmp_path: Path) -> None:
    target = config(tmp_path)
    workload = target.workload(text_tokens=6, new_tokens=2, kv_dtype="int8")
    capture = count_sources(Prepared(target, workload, ("analytic", "static", "dynamic"), no_cache=True))
    token = 2 * 2 * 2 * (16 + 4)
    for ledger in capture.capture.ledgers:
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 6 * token, ledger.source
        assert ledger.stage_total("decode", "kv_read_bytes") == (6 + 7) * token, ledger.source
    found = [f for f in capture.discrepancy.findings if f.metric in ("kv_cache_bytes", "kv_read_bytes", "floor_bytes")]
    assert {f.status for f in found} == {"exact"}
    assert "weights bfloat16, cache int8" in counted_line(target.info(), workload)


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_the_configuration_gives_the_default(tmp_path: Path, scheme: dict[str, Any], kind: str | None) -> None:
    target = config(tmp_path, **scheme)
    assert target.workload().inputs.get("kv_dtype") == kind
    assert "kv_dtype" not in target.workload(kv_dtype="run").inputs
    assert ("all of the cache" in counted_line(target.info(), target.workload())) is False


@pytest.mark.parametrize(
    ("beside", "kind"),
    [
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, None),
    ],
)
def test_a_file_beside_the_configuration_gives_the_default(
    tmp_path: Path, beside: dict[str, Any], kind: str | None
) -> None:
    """``hf_quant_config.json`` of ModelOpt."""
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    assert config(tmp_path, quant_method="").workload().inputs.get("kv_dtype") == kind


def test_the_format_of_a_cache_is_read_twice() -> None:
    text = {"text_config": {"quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}}}}
    integers = {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}}
    file = {"beside": {"hf_quant_config.json": {"quantization": {"kv_cache_quant_algo": "FP8"}}}}
    for described, kind in ((text, "fp8"), (integers, None), (file, "fp8")):
        assert Stored(described=json.dumps(described)).cache_dtype == kind
        assert _cache_formats(described) == ({kind} if kind else set())


def test_bits_of_an_element_with_its_scales() -> None:
    """llama.cpp states 1.0625 and 0.5625 bytes for its blocks."""
    found = {kind: Fraction(of.head_bytes(128), 128) for kind, of in CACHE_FORMATS.items()}
    assert (found["q8_0"], found["q4_0"]) == (Fraction(17, 16), Fraction(9, 16))


@pytest.mark.parametrize("width", [16, 80, 96, 128])
def test_closed_forms_are_the_bytes_of_the_tensors(width: int) -> None:
    for kind, of in CACHE_FORMATS.items():
        assert of.head_bytes(width) == sum(t.bytes for t in cache_tensors(kind, width)), kind
    assert latent_bytes(4 * width, width) == sum(t.bytes for t in cache_tensors("fp8", 4 * width, width))


def test_a_mistake_in_a_format_or_its_conversion_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas have a format in closed form, graphs its tensors, each with a conversion of its own."""
    target = config(tmp_path)
    workload = target.workload(text_tokens=6, new_tokens=1, kv_dtype="int8")

    def wrong() -> set[str]:
        found = count_sources(Prepared(target, workload, ("analytic", "static"), no_cache=True)).discrepancy
        return {f.metric for f in found.select(level="total", status="unexplained")}

    assert wrong() == set()
    monkeypatch.setitem(CACHE_FORMATS, "int8", replace(CACHE_FORMATS["int8"], scale_bytes=2))
    assert wrong() == {"kv_read_bytes", "kv_cache_bytes", "unfused_bytes", "floor_bytes"}
    monkeypatch.undo()
    monkeypatch.setattr("costproof.models.cache_dtype._CACHE", ("kv_cache_bytes",))
    assert wrong() == {"kv_read_bytes", "unfused_bytes", "floor_bytes"}
