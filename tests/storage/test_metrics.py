"""Stored and resident bytes as metrics: formulas, layouts and runs agree with each other and with hand arithmetic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import costproof
from costproof.analytic import storage
from costproof.ledger.baseline import Baseline, RowTree
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import STORAGE, UNPACKED, UNPACKING
from costproof.ledger.node import Ledger
from costproof.models.native import NOT_KNOWN, Configured
from costproof.models.registry import TARGETS, load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.reports.report import Report
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers import storage as of_run
from costproof.tracers.format_runs import packed_awq
from costproof.tracers.paths import Paths, dtype_name
from costproof.tracers.storage import (
    LOADED,
    STANDING_IN,
    ModuleStorage,
    resident_bytes,
    storage_by_layout,
    storage_of_run,
)
from costproof.weights.stored import Stored

pytestmark = pytest.mark.usefixtures("one_process")

FAMILIES = [name for name, item in TARGETS.all().items() if not item.what.endswith("parameters")]
CUT = {"llava", "qwen2-5-vl", "t5"}
"""Families that are small enough, or cannot be cut."""
LAYERS = {"deepseek-v3": 4, **dict.fromkeys(("deepseek-ocr", "deepseek-ocr2", "qwen3-vl-vision"), 6)}
"""Layers that have one of each kind of parameters, where two have not; windows have none of their own."""
SOURCES = ("analytic", "static", "dynamic")
WITHOUT_AWQ: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("deepseek-v2", "deepseek-v3", "mixtral", "qwen3-moe", "deepseek-ocr", "deepseek-ocr2"), ("fp8",)
)
BUILT = WITHOUT_AWQ | {"qwen2-5-vl": ("fp8",), "qwen3-vl-vision": ("fp8",), "gpt-oss": ("mxfp4",)}
"""Formats in which transformers builds the modules of a family (default: fp8 and AWQ).

Experts have none in AWQ; of ``visual`` AutoAWQ leaves the tower of Qwen2.5-VL, and transformers does not.
"""
LINEAR_4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
SCHEMES: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["q_proj", "visual"]},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int4, an expert left, scales of the cache": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": {"num_bits": 8},
        "ignore": ["lm_head", r"re:.*experts\.1\..*"],
        "config_groups": {"all": {"targets": ["Linear"], "weights": LINEAR_4}},
    },
    "int4 of tables too": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [],
        "config_groups": {"all": {"targets": ["Linear", "Embedding"], "weights": LINEAR_4}},
    },
    "mxfp4": {"quant_method": "mxfp4"},
}  # fmt: skip
SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 200,
    "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 50,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip


def in_format(target: Any, described: Mapping[str, Any]) -> Any:
    """Return the target with a checkpoint in a quantised format."""
    text = json.dumps({"quantization_config": described})
    return replace(target, stored=Stored((("weights", "quantised"),), described=text))


def of_formulas(ledger: Ledger) -> dict[str, dict[str, int | None]]:
    """Return module -> metrics of storage in a ledger, without zeros."""
    found: dict[str, dict[str, int | None]] = {}
    for node in ledger.nodes:
        costs = {m: node.costs[m] for m in STORAGE if node.costs.get(m)}
        if costs and not node.invocation:
            found.setdefault(node.module, {}).update(costs)
    return found


def of_module(target: Any, model: Any, dtype: str | None = None) -> tuple[ModuleStorage, ModuleStorage]:
    """Return the storage of a model by its layout, and by its own tensors."""
    workload, paths = target.workload(), Paths(model)
    workload = workload if dtype is None else replace(workload, dtype=dtype)
    shapes = {name: (tuple(p.shape), dtype_name(p.dtype)) for name, p in paths.parameters.items()}
    layout = storage_by_layout(target, model, workload, shapes, resident_bytes(paths.buffers))
    return layout, storage_of_run(target, model, workload)


def few_layers(name: str) -> Any:
    target: Any = load_target(name)
    assert isinstance(target, Configured)
    return target if name in CUT else target.with_options(replace(target.options, layers=LAYERS.get(name, 2)))


@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_and_layouts_agree_module_by_module(name: str) -> None:
    usual = few_layers(name)
    model = usual.build(usual.workload())
    for scheme, described in SCHEMES.items():
        target = in_format(usual, described)
        ledger, (layout, run) = evaluate_formulas(target, target.workload()), of_module(target, model)
        assert of_formulas(ledger) == layout.modules, scheme
        assert tuple(m for m in ledger.metrics if m in STORAGE) == layout.metrics, scheme
        for stated in run.differences:  # biases and scales that transformers loads in float32 apart
            assert (stated.metric, stated.why) == ("resident_bytes", LOADED)
            held = run.modules[stated.module]
            held["resident_bytes"] = (held["resident_bytes"] or 0) - stated.amount
        assert run == replace(layout, notes=run.notes, saved=run.saved, differences=run.differences), scheme
        for path, saved in (layout.saved or {}).items():
            assert (run.saved or {}).get(path) == saved, (scheme, path)
        made = of_run.UNPACKED if described["quant_method"] in BUILT.get(name, ("fp8", "awq")) else STANDING_IN
        assert any(note.startswith(made if run.metrics else NOT_KNOWN) for note in run.notes), (scheme, run.notes)


IN_FLOAT32 = {"llama", "gpt-oss", "deepseek-v3"}
"""A decoder, experts in one tensor, and buffers that are stored; others in float32 for ``--thorough``."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bfloat16") for name in FAMILIES),
        *(pytest.param(name, "float32", marks=() if name in IN_FLOAT32 else pytest.mark.thorough) for name in FAMILIES),
    ],
)
def test_formulas_layouts_and_tensors_agree_without_quantisation(name: str, dtype: Any) -> None:
    target = replace(few_layers(name), stored=Stored())
    workload = replace(target.workload(), dtype=dtype)
    ledger, model = evaluate_formulas(target, workload), target.build(workload)
    for found in of_module(target, model, dtype):
        assert of_formulas(ledger) == found.modules
    assert ledger.total("stored_bytes") == 2 * (ledger.total("params") or 0) + _corrections(name)
    assert ledger.total("resident_bytes") == (ledger.total("weight_bytes") or 0) + (ledger.total("buffer_bytes") or 0)


def _corrections(name: str) -> int:
    """Return the bytes of the corrections of routers, buffers that checkpoints store: one of four layers has one."""
    return {"deepseek-v3": 256 * 4}.get(name, 0)


def small(folder: Path, described: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """Return the target of a small Llama."""
    data = SMALL | changes | ({} if described is None else {"quantization_config": described})
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return load_target(f"hf:{folder / 'config.json'}")


def counted(target: Any, *sources: str, **settings: Any) -> Report:
    return count_sources(Prepared(target, target.workload(text_tokens=5, **settings), sources, no_cache=True))


def test_fp8_by_hand(tmp_path: Path) -> None:
    """A scale in float32 for each block of 128 x 128: of q and o [96, 96] one, of an MLP's [200, 96] two."""
    report = counted(small(tmp_path, SCHEMES["fp8"]), "analytic", "static", "dynamic")
    attention = 2 * (96 * 96 + 4) + 2 * (32 * 96 + 4)
    mlp = 3 * (200 * 96 + 2 * 4)
    plain = 2 * 50 * 96 * 2 + 3 * 96 * 2
    stored = attention + mlp + plain
    assert stored == 101992
    elements = 2 * (96 * 96 + 1) + 2 * (32 * 96 + 1) + 3 * (200 * 96 + 2) + 2 * 50 * 96 + 3 * 96
    buffers = 2 * 16 * 4  # frequencies of 32 / 2 pairs, twice
    found = json.loads(report.render("static-json"))
    assert [found["totals"][m] for m in STORAGE] == [stored, elements, stored + buffers]
    assert {s["id"]: s["stored_bytes"] for s in found["stages"]} == {"prefill": stored, "decode": stored}
    assert found["totals"]["weight_bytes"] == 2 * found["totals"]["params"], "in the dtype of the run, as before"
    of_storage = [f for f in report.discrepancy.findings if f.metric in STORAGE]
    assert {f.status for f in of_storage} == {"exact"}
    assert all({"analytic", "static", "dynamic"} <= f.values.keys() for f in of_storage)
    # A row of q and o, of k and v, of gate and up, of down: quantised, and scaled for each 128 columns.
    work = 2 * (3 * 96 + 1 + 3 * 96) + 2 * (3 * 96 + 1 + 3 * 32) + 2 * (3 * 96 + 1 + 3 * 200) + 3 * 200 + 2 + 2 * 3 * 96
    assert unpacking_in_sources(report) == dict.fromkeys(SOURCES, 6 * work), "five tokens and a step"


def causes_of_held(report: Report) -> dict[str, int]:
    """Return the module and amount of each difference of resident bytes, all of which have a cause."""
    found = [f for f in report.discrepancy.findings if f.metric == "resident_bytes" and f.stage == "prefill"]
    assert {f.residual for f in found} == {0}
    causes = [(f.module, cause) for f in found if f.module for cause in f.causes]
    assert {(cause.kind, cause.note) for _, cause in causes} == {("checkpoint_contents", f"dynamic: {LOADED}")}
    return {str(module): cause.amount for module, cause in causes}


def test_scales_that_a_run_loads_in_float32(tmp_path: Path) -> None:
    """Qwen3's scales are bfloat16 in the file: one of each matrix of 96 columns and rows, two of 200."""
    target = small(tmp_path, SCHEMES["fp8"], model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    report = counted(target, *SOURCES)
    scales = {"self_attn": dict.fromkeys("qkvo", 1), "mlp": dict.fromkeys(("gate", "up", "down"), 2)}
    assert causes_of_held(report) == {
        f"model.layers.0.{part}.{name}_proj": -2 * count for part, of in scales.items() for name, count in of.items()
    }
    found = in_sources(report)
    held = [found[source][2] for source in ("dynamic", "static")]
    assert None not in held
    assert held[0] == (held[1] or 0) + 2 * (4 + 3 * 2)
    assert found["dynamic"][:2] == found["static"][:2] == found["analytic"][:2]


def saved_in_sources(report: Report) -> dict[str, int | None]:
    """Return the bytes that reading quantised weights saves, which every comparison finds equal."""
    assert {f.status for f in report.discrepancy.findings if f.metric == UNPACKED} == {"exact"}
    assert json.loads(report.render("static-json"))["totals"][UNPACKED]
    return {ledger.source: ledger.total(UNPACKED) for ledger in report.capture.ledgers}


def unpacking_in_sources(report: Report) -> dict[str, int | None]:
    assert {f.status for f in report.discrepancy.findings if f.metric == UNPACKING} == {"exact"}
    assert json.loads(report.render("static-json"))["totals"][UNPACKING]
    return {ledger.source: ledger.total(UNPACKING) for ledger in report.capture.ledgers}


def in_sources(report: Report) -> dict[str, list[int | None]]:
    """Return source -> stored bytes, stored elements, resident bytes, parameters and FLOPs."""
    metrics = (*STORAGE, "params", "flops")
    return {ledger.source: [ledger.total(m) for m in metrics] for ledger in report.capture.ledgers}


def test_awq_by_hand(tmp_path: Path) -> None:
    """Words of 8 rows; scales and zero points for each group of 32 columns. 100 rows are no whole words."""
    described = {"quant_method": "awq", "bits": 4, "group_size": 32}
    report = counted(small(tmp_path, described, intermediate_size=128, attention_bias=True), *SOURCES)

    def linear(rows: int, columns: int, bias: bool = False) -> tuple[int, int]:
        words = columns * rows // 8 + columns // 32 * rows // 8
        halves = columns // 32 * rows + (rows if bias else 0)
        return 4 * words + 2 * halves, words + halves

    parts = [2 * n for n in linear(96, 96, True)], [2 * n for n in linear(32, 96, True)], [2 * n for n in linear(128, 96)]  # noqa: E501  # fmt: skip
    quantised = [sum(of) + down for *of, down in zip(*parts, linear(96, 128), strict=True)]
    plain = 2 * 50 * 96 + 3 * 96
    stored, elements = quantised[0] + 2 * plain, quantised[1] + plain
    found = in_sources(report)
    assert {tuple(of[:3]) for of in found.values()} == {(stored, elements, stored + 128)}
    assert len({tuple(of) for of in found.values()}) == 1
    assert set(found) == set(SOURCES)
    weights = 2 * 96 * 96 + 2 * 32 * 96 + 3 * 128 * 96
    assert unpacking_in_sources(report) == dict.fromkeys(SOURCES, 2 * weights), "once in the prompt, once in a step"
    biases = 2 * 96 + 2 * 32
    assert saved_in_sources(report) == dict.fromkeys(SOURCES, 2 * (2 * (weights + biases) - quantised[0]))
    assert report.discrepancy.verdict == "exact"


AWQ_SHAPES = ((64, 256, 128), (192, 128, 64), (64, 1152, 128), (128, 320, 32), (320, 64, 64))
"""Hidden, intermediate and group sizes: 5, 2, 1, 10 or 9 groups, none of them a multiple of 8."""


@pytest.mark.parametrize("version", ["gemv", "gemv_fast", "marlin"])
@pytest.mark.parametrize(("wide", "inner", "group"), AWQ_SHAPES)
def test_awq_of_other_kernels_by_hand(tmp_path: Path, version: str, wide: int, inner: int, group: int) -> None:
    """Half a byte a weight; zero points of a row in whole words, of which the kernel of small groups takes 2 or 4."""
    group = min(group, wide)
    described = {"quant_method": "awq", "bits": 4, "group_size": group, "version": version,
                 "zero_point": version != "marlin", "modules_to_not_convert": ["v_proj"]}  # fmt: skip
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": wide // 2}
    report = counted(
        small(tmp_path, described, hidden_size=wide, intermediate_size=inner, attention_bias=True, **heads), *SOURCES
    )
    words_read = {32: 4, 64: 2, 128: 1}[group]

    def linear(rows: int, columns: int, bias: bool = False) -> tuple[int, int]:
        words = 1
        while 8 * words * group < columns or words % words_read:  # no rounding as in the code
            words += 1
        scales, more = 8 * words * rows, rows if bias else 0
        if version == "gemv":
            integers = rows * columns // 8 + rows * words
            return 4 * integers + 2 * (scales + more), integers + scales + more
        if version == "gemv_fast":
            short = rows * columns // 4
            return 2 * (short + 2 * scales + more), short + 2 * scales + more
        integers, scales = columns // 16 * 2 * rows, columns // group * rows
        return 4 * integers + 2 * (scales + more), integers + scales + more

    each = [*3 * [linear(wide, wide, True)], *2 * [linear(inner, wide)], linear(wide, inner)]
    plain = wide * wide + wide + 2 * 50 * wide + 3 * wide
    each.append((2 * plain, plain))
    stored, elements = (sum(of) for of in zip(*each, strict=True))
    found = in_sources(report)
    assert set(found) == set(SOURCES)
    assert {tuple(of[:2]) for of in found.values()} == {(stored, elements)}
    assert len({tuple(of) for of in found.values()}) == 1
    weights = 3 * wide * wide + 3 * wide * inner
    times = 2 * (2 if version == "gemv_fast" else 1)  # once in the prompt, once in a step
    assert unpacking_in_sources(report) == dict.fromkeys(SOURCES, times * weights)


@pytest.mark.parametrize(("wide", "inner", "group"), [*AWQ_SHAPES[:4], (96, 160, 128)])
def test_autoround_by_hand(tmp_path: Path, wide: int, inner: int, group: int) -> None:
    """Words of 8 columns; groups of columns, of which the last may be short; biases where the model has them."""
    described = {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": group,
        "sym": True, "data_type": "int", "iters": 0, "autoround_version": "0.12.3", "low_gpu_mem_usage": True,
        "block_name_to_quantize": "model.layers",
        "extra_config": {"model.layers.0.self_attn.v_proj": {"bits": 16, "data_type": "fp"},
                         ".*mlp\\.up.*": {"bits": 8, "group_size": 32}},
    }  # fmt: skip
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": wide // 2}
    report = counted(
        small(tmp_path, described, hidden_size=wide, intermediate_size=inner, attention_bias=True, **heads),
        "analytic", "static",
    )  # fmt: skip

    def linear(rows: int, columns: int, biases: int = 0, bits: int = 4, size: int = group) -> tuple[int, int]:
        groups = len(range(0, columns, size))
        words, halves = rows * columns * bits // 32 + groups * rows * bits // 32, groups * rows + biases
        return 4 * words + 2 * halves, words + halves

    plain = wide * wide + wide + 2 * 50 * wide + 3 * wide
    each = [*3 * [linear(wide, wide, wide)], linear(inner, wide), linear(inner, wide, 0, 8, 32), linear(wide, inner)]
    stored, elements = (sum(of) for of in zip(*each, (2 * plain, plain), strict=True))
    found = in_sources(report)
    assert {tuple(of[:2]) for of in found.values()} == {(stored, elements)}
    assert len({tuple(of) for of in found.values()}) == 1
    weights = 3 * wide * wide + 3 * wide * inner
    assert unpacking_in_sources(report) == dict.fromkeys(("analytic", "static"), 2 * weights)


def _with_unpacking(side: Baseline) -> Baseline:
    """Count one FLOP of unpacking for a module of each source, whatever the weights are."""
    sources = {}
    for name, folded in side.sources.items():
        stage = folded.stages[0]
        rows: RowTree = {**folded.rows, stage: {**folded.rows[stage], "planted": {"": {UNPACKING: 1}}}}
        sources[name] = replace(folded, rows=rows, metrics=(*folded.metrics, UNPACKING))
    return replace(side, sources=sources)


def test_weights_that_are_not_quantised_need_no_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change to a format adds its work to 0, in a diff and under a policy."""
    for name, described in (("plain", None), ("packed", {"quant_method": "gptq", "bits": 4, "group_size": 32})):
        (tmp_path / name).mkdir()
        small(tmp_path / name, described, intermediate_size=128)
    sides = [f"hf:{tmp_path / name / 'config.json'}@chat,text_tokens=5,new_tokens=1" for name in ("plain", "packed")]
    weights = 2 * 96 * 96 + 2 * 32 * 96 + 3 * 128 * 96
    found = costproof.diff(*sides)
    change = found.totals[UNPACKING]
    assert (change.base, change.head) == (0, 2 * weights)
    assert UNPACKING not in found.not_comparable
    with monkeypatch.context() as planted:
        planted.setattr(import_module("costproof.compare.diff.diff"), "in_flops", _with_unpacking)
        with pytest.raises(Bug, match=r"llama, .*: unpacking_flops"):
            costproof.diff(*sides)
        planted.setattr(import_module("costproof.compare.gate.judge"), "in_flops", _with_unpacking)
        (tmp_path / "any.yaml").write_text(
            "costproof_policy: 1\ninputs: any\nlimits:\n- {metric: flops, increase: 1}\n", encoding="utf-8"
        )
        with pytest.raises(Bug, match=r"llama, .*: unpacking_flops"):
            costproof.gate(*sides, policy=tmp_path / "any.yaml")
    policy = tmp_path / "policy.yaml"
    for most, verdict in ((2 * weights, "passed"), (2 * weights - 1, "over")):
        limit = f"{{metric: {UNPACKING}, increase: {most}}}"
        policy.write_text(f"costproof_policy: 1\ninputs: any\nlimits:\n- {limit}\n", encoding="utf-8")
        assert costproof.gate(*sides, policy=policy).verdict == verdict


def test_mxfp4_by_hand(tmp_path: Path) -> None:
    """Experts of 2 x 64 rows of 64 columns and back, a scale for 32 numbers; their biases have the dtype of the run."""
    gpt_oss = {
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 50,
        "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
        "layer_types": ["full_attention"], "tie_word_embeddings": False, "quantization_config": SCHEMES["mxfp4"],
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(gpt_oss), encoding="utf-8")
    report = counted(load_target(f"hf:{tmp_path / 'config.json'}"), *SOURCES)
    numbers, biases = 4 * (128 * 64 + 64 * 64), 4 * (128 + 64)
    attention = 2 * (64 * 64 + 64) + 2 * (32 * 64 + 32) + 2  # and a sink for each head
    plain = attention + 4 * 64 + 4 + biases + 2 * 50 * 64 + 3 * 64
    stored, elements = numbers // 2 + numbers // 32 + 2 * plain, numbers // 2 + numbers // 32 + plain
    found = in_sources(report)
    held = stored + 2 * 16 * 4
    assert {source: of[2] for source, of in found.items()} == {
        "analytic": held, "static": held, "dynamic": held + 2 * biases,
    }  # fmt: skip
    assert {tuple(of[:2]) for of in found.values()} == {(stored, elements)}
    assert {of[3] for of in found.values()} == {numbers + plain}
    assert len({of[4] for of in found.values()}) == 1
    # Biases of the experts, which transformers holds in float32, are the cause of each byte.
    assert causes_of_held(report) == {"model.layers.0.mlp.experts": -2 * biases}
    an_expert = (128 + 64) * 64 // 32 * 33  # a power of two and 32 products
    assert unpacking_in_sources(report) == dict.fromkeys(SOURCES, (4 + 2) * an_expert), "of a step, the top two"
    an_expert = (128 + 64) * 64 * 2 - (128 + 64) * 64 // 32 * 17  # 16 bytes of numbers and a scale
    assert saved_in_sources(report) == dict.fromkeys(SOURCES, (4 + 2) * an_expert)
    assert report.discrepancy.verdict == "explained"


@pytest.mark.parametrize("scheme", ["int4, an expert left, scales of the cache", "nf4"])
def test_unpacking_of_experts_in_one_format(scheme: str) -> None:
    """A token passes 8 of 128 experts. Which of several formats it passes, the data decides."""
    usual: Any = load_target("qwen3-moe")
    target = in_format(usual.with_options(replace(usual.options, layers=1)), SCHEMES[scheme])
    workload = replace(target.workload(text_tokens=1), new_tokens=0)
    report = count_sources(Prepared(target, workload, ("analytic", "static"), no_cache=True))
    if scheme == "nf4":
        weights = 2 * 2048 * 4096 + 2 * 2048 * 512 + 8 * 3 * 2048 * 768
        assert unpacking_in_sources(report) == {"analytic": weights, "static": weights}
    else:
        experts = 8 * 3 * 2048 * 768 * 2  # read by one token: all of it counts as saved
        for ledger in report.capture.ledgers:
            saved = [n.cost(UNPACKED) for n in ledger.nodes if n.module.endswith("mlp.experts") and UNPACKED in n.costs]
            assert saved == [experts], ledger.source
        assert {ledger.total(UNPACKING) for ledger in report.capture.ledgers} == {None}
        assert all("several formats" in " ".join(ledger.notes) for ledger in report.capture.ledgers)


@pytest.mark.parametrize("scheme", ["gptq", "int4 of tables too"])
def test_what_cannot_be_built_has_stand_ins(tmp_path: Path, scheme: str) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 64}
    report = counted(small(tmp_path, SCHEMES[scheme], **sizes), *SOURCES)
    ledger = report.capture.ledger("dynamic")
    assert ledger is not None
    (note,) = [note for note in ledger.notes if note.startswith(STANDING_IN)]
    assert re.search(f"{SCHEMES[scheme]['quant_method']}: no class for it can be built", note)
    assert {tuple(f.values) for f in report.discrepancy.findings if f.metric in STORAGE} == {SOURCES}
    assert len({tuple(of) for of in in_sources(report).values()}) == 1
    assert report.discrepancy.verdict == "exact"


def test_a_layout_that_is_not_known_has_no_stand_ins(tmp_path: Path) -> None:
    report = counted(small(tmp_path, SCHEMES["awq"], intermediate_size=200, hidden_size=120), *SOURCES)
    for ledger in report.capture.ledgers:
        assert not set(STORAGE) & set(ledger.metrics)
        assert any(re.search("columns, and the library|is not whole groups", note) for note in ledger.notes)


def test_awq_words_unpack_to_the_matrix() -> None:
    numbers = torch.arange(64 * 16, dtype=torch.int32).remainder(13).view(64, 16)
    words = packed_awq(numbers, 4, 32)["qweight"]
    parts = [(words >> shift) & 15 for shift in range(0, 32, 4)]
    assert torch.equal(torch.stack(parts, -1).flatten(1), numbers)


@pytest.mark.parametrize("version", ["gemv", "gemv_fast", "marlin"])
def test_words_of_other_kernels_have_all_numbers(version: str) -> None:
    """Words of 4-bit numbers, sorted: no number is lost or doubled."""
    numbers = torch.arange(64 * 64, dtype=torch.int32).remainder(13).view(64, 64)
    words = packed_awq(numbers, 4, 32, version=version)["qweight"]
    parts = [(words.int() >> shift) & 15 for shift in range(0, 8 * words.element_size(), 4)]
    assert torch.equal(torch.stack(parts).flatten().sort().values, numbers.flatten().sort().values)


def test_tied_tables_are_stored_once_in_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    target = small(tmp_path, tie_word_embeddings=True)
    report = counted(target, "analytic", "static", "dynamic", dtype="float32")
    params = 50 * 96 + 2 * 96 * 96 + 2 * 32 * 96 + 3 * 200 * 96 + 3 * 96
    for ledger in report.capture.ledgers:
        assert [ledger.total(m) for m in STORAGE] == [2 * params, params, 4 * params + 128], ledger.source
    assert {f.status for f in report.discrepancy.findings if f.metric in STORAGE} == {"exact"}


@pytest.mark.parametrize(
    ("described", "saved"), [(SCHEMES["gptq"], 0), ({"bits": 4, "group_size": 32, "mode": "affine"}, 64 * 96 * 2)]
)
def test_reads_of_a_tied_table(tmp_path: Path, described: Any, saved: int) -> None:
    """GPTQ leaves the table as it is; of the one that MLX quantises, all of it counts as saved."""
    target = small(tmp_path, described, tie_word_embeddings=True, intermediate_size=128, vocab_size=64)
    report = counted(target, "analytic", "static")
    for ledger in report.capture.ledgers:
        found = [n.cost(UNPACKED) or 0 for n in ledger.nodes if n.module == "lm_head" and n.invocation]
        assert sum(found) == 2 * saved, ledger.source
    assert saved_in_sources(report).keys() == {"analytic", "static"}


def test_biases_of_ranks_keep_their_stored_dtype(tmp_path: Path) -> None:
    """In float32, 3 x 64 + 128 biases of a rank of two are read as 4 bytes, and stored in 2; 128 follow a sum."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
    target = small(tmp_path, SCHEMES["fp8"], attention_bias=True, intermediate_size=256, hidden_size=128, **heads)
    report = counted(target, "analytic", "static", dtype="float32", tp=2, dp=1)
    weights = 4 * 64 * 128 + 3 * 128 * 128
    scales = 4 * 1 + 3 * 1
    biases = 3 * 64 + 128
    each = 4 * weights - weights - 4 * scales + (4 - 2) * biases
    assert saved_in_sources(report) == dict.fromkeys(("analytic", "static"), 2 * each), "once in the prompt, and a step"


def test_descriptions_of_unknown_length_leave_stored_bytes_open(tmp_path: Path) -> None:
    target = small(tmp_path, SCHEMES["nf4"] | {"bnb_4bit_use_double_quant": True})
    report = counted(target, "analytic", "static")
    plain = 2 * 50 * 96 * 2 + 3 * 96 * 2
    linear = 0
    for elements in 2 * [96 * 96] + 2 * [32 * 96] + 3 * [200 * 96]:
        blocks = elements // 64
        linear += elements // 2 + 16 * 4 + blocks + -(-blocks // 256) * 4 + 256 * 4
    for ledger in report.capture.ledgers:
        assert [ledger.total(m) for m in STORAGE] == [None, None, plain + linear + 128], ledger.source
        assert any(note.startswith("stored bytes are not known of weight.quant_state") for note in ledger.notes)


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    report = counted(small(tmp_path, {"quant_method": "quark"}), "analytic", "static", "dynamic")
    for ledger in report.capture.ledgers:
        assert {ledger.total(m) for m in STORAGE} == {None}, ledger.source
        assert any(note.startswith("stored bytes are not known: quark") for note in ledger.notes), ledger.source


def test_a_wrong_formula_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output projection that is taken for a layer of its own kind is quantised in formulas only."""
    monkeypatch.setattr(storage, "LmHead", type("Other", (), {}))
    report = counted(small(tmp_path, SCHEMES["fp8"]), "analytic", "static")
    wrong = {f.id for f in report.discrepancy.findings if f.metric == "stored_bytes" and f.status == "unexplained"}
    assert any("lm_head" in name for name in wrong)
