"""Headers of a checkpoint as a source: bytes of each module by hand, known causes with their bytes, and findings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import Bug
from costproof.ledger.node import Ledger
from costproof.models.registry import load_target
from costproof.run.stored import stored, stored_checkpoint
from costproof.storage import checkpoint as naming
from costproof.storage.checkpoint import HeaderTotals, ModelNames, compare_headers, mismatches
from costproof.storage.headers import HeaderTensor
from costproof.storage.tensors import DTYPE_BITS, StoredTensor
from costproof.tracers.headers import headers_ledger
from tests.storage.test_metrics import counted
from tests.storage.test_metrics import small as small_llama
from tests.support.running import costproof

Tensors = dict[str, tuple[str, tuple[int, ...]]]
LAYER = "model.layers.0."
ROWS = {"self_attn.q_proj": (96, 96), "self_attn.k_proj": (32, 96), "self_attn.v_proj": (32, 96),
        "self_attn.o_proj": (96, 96), "mlp.gate_proj": (224, 96), "mlp.up_proj": (224, 96),
        "mlp.down_proj": (96, 224)}  # fmt: skip
PLAIN: Tensors = {
    "model.embed_tokens.weight": ("BF16", (50, 96)), "lm_head.weight": ("BF16", (50, 96)),
    "model.norm.weight": ("BF16", (96,)), f"{LAYER}input_layernorm.weight": ("BF16", (96,)),
    f"{LAYER}post_attention_layernorm.weight": ("BF16", (96,)),
}  # fmt: skip
LINEAR: Tensors = {f"{LAYER}{name}.weight": ("BF16", shape) for name, shape in ROWS.items()}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def packed(*, bias: bool = True, index: bool = True) -> Tensors:
    """Tensors of AutoGPTQ with groups of 128: 96 columns are one group, 224 are two."""
    found: Tensors = {}
    for name, (rows, columns) in ROWS.items():
        groups = -(-columns // 128)
        found |= {
            f"{LAYER}{name}.qweight": ("I32", (columns // 8, rows)), f"{LAYER}{name}.scales": ("F16", (groups, rows)),
            f"{LAYER}{name}.qzeros": ("I32", (groups, rows // 8)),
        }  # fmt: skip
        found |= {f"{LAYER}{name}.bias": ("F16", (rows,))} if bias else {}
        found |= {f"{LAYER}{name}.g_idx": ("I32", (columns,))} if index else {}
    return found


def write(folder: Path, tensors: Tensors, name: str = "model.safetensors") -> None:
    """Write the header of a safetensors file, without its data."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor, (dtype, shape) in tensors.items():
        size = DTYPE_BITS[dtype] // 8
        for length in shape:
            size *= length
        head[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end := end + size]}
    text = json.dumps(head).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)


def small(folder: Path, described: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """Return the target of a small Llama whose MLP has 224 rows: whole words, and groups of 128 that are cut."""
    return small_llama(folder, described, **{"intermediate_size": 224, **changes})


def bytes_of(ledger: Ledger) -> dict[str, int | None]:
    return {node.module: node.costs["stored_bytes"] for node in ledger.nodes}


def by_headers(folder: Path, tensors: Tensors, described: Mapping[str, Any] | None = None, **changes: Any) -> Ledger:
    write(folder, tensors)
    target = small(folder, described, **changes)
    return headers_ledger(target, target.workload(text_tokens=5))


def causes(ledger: Ledger) -> dict[tuple[str, str], int]:
    """Return (cause, metric) -> sum of its amounts."""
    found: dict[tuple[str, str], int] = {}
    for stated in ledger.differences:
        key = stated.why, stated.metric
        found[key] = found.get(key, 0) + stated.amount
    return found


def test_headers_are_a_source_of_a_report(tmp_path: Path) -> None:
    write(tmp_path, {**PLAIN, **LINEAR})
    report = counted(small(tmp_path), "analytic", "static")
    ledger = report.capture.ledger("headers")
    params = 2 * 50 * 96 + 3 * 96 + 2 * 96 * 96 + 2 * 32 * 96 + 3 * 224 * 96
    assert (ledger.total("stored_bytes"), ledger.total("stored_elements")) == (2 * params, params)
    assert bytes_of(ledger)["model.layers.0.mlp.down_proj"] == 2 * 96 * 224
    assert ledger.notes == ("headers of 1 file: 12 tensors",)
    found = [f for f in report.discrepancy.findings if f.metric in ("stored_bytes", "stored_elements")]
    assert {f.status for f in found} == {"exact"}
    assert all({"analytic", "static", "headers"} == {*f.values} for f in found)
    assert "headers" not in counted(small(tmp_path), "analytic").capture.by_source, "names need torch"


def test_files_of_gptq_without_zero_biases_and_with_more(tmp_path: Path) -> None:
    """Each known cause has its bytes: the sum of formulas less these is that of the headers."""
    more: Tensors = {f"{LAYER}self_attn.rotary_emb.inv_freq": ("F32", (16,))}
    write(tmp_path, {**PLAIN, **packed(bias=False), **more})
    report = counted(small(tmp_path, GPTQ), "analytic", "static")
    ledgers = {x.source: x for x in report.capture.ledgers}
    rows = 96 + 32 + 32 + 96 + 224 + 224 + 96
    expected = {
        (naming.NO_ZERO_BIAS, "stored_bytes"): -2 * rows, (naming.NO_ZERO_BIAS, "stored_elements"): -rows,
        (naming.ROTARY, "stored_bytes"): 16 * 4, (naming.ROTARY, "stored_elements"): 16,
    }  # fmt: skip
    assert causes(ledgers["headers"]) == expected
    formula, static, stated = (ledgers[s].total("stored_bytes") for s in ("analytic", "static", "headers"))
    assert formula == static == (stated or 0) + 2 * rows - 64
    (total,) = (f for f in report.discrepancy.findings if f.id == "total#stored_bytes")
    assert (total.status, total.delta, total.residual) == ("explained", 2 * rows - 64, 0)
    assert {(c.kind, c.amount, c.note) for c in total.causes} == {
        ("checkpoint_contents", 2 * rows, f"headers: {naming.NO_ZERO_BIAS}"),
        ("checkpoint_contents", -64, f"headers: {naming.ROTARY}"),
    }  # fmt: skip
    assert report.discrepancy.finding("prefill/model.layers.0.mlp.down_proj#stored_bytes").delta == 2 * 96


@pytest.mark.parametrize("wrong", [
    {"tensors": 12}, {"files": 2}, {"bytes": 5}, {"differences": ()},
    lambda of: {"differences": (replace(of.differences[0], tensors=2), *of.differences[1:])},
], ids=["tensors", "files", "bytes", "differences", "tensors of a difference"])  # fmt: skip
def test_numbers_of_headers_are_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """Twelve tensors of the layout and one of no module, in one file."""
    write(tmp_path, {**PLAIN, **LINEAR, "model.extra.weight": ("BF16", (3,))})
    target = small(tmp_path)
    found = stored_checkpoint(target, files=tmp_path)
    assert found.headers is not None
    assert (found.headers.files, found.headers.tensors, found.exit_code) == (1, 13, 1)

    def planted(*of: Any) -> HeaderTotals:
        made = compare_headers(*of)
        return replace(made, **(wrong(made) if callable(wrong) else wrong))

    monkeypatch.setattr("costproof.run.stored.compare_headers", planted)
    with pytest.raises(Bug, match="counted in another way"):
        stored_checkpoint(target, files=tmp_path)


def test_a_difference_without_a_cause_is_a_finding(tmp_path: Path) -> None:
    """A projection in float32, a bias that no tool adds by itself, and a missing norm."""
    write(tmp_path, {**PLAIN, **LINEAR, f"{LAYER}self_attn.q_proj.weight": ("F32", (96, 96)),
                     f"{LAYER}self_attn.k_proj.bias": ("BF16", (32,))})  # fmt: skip
    report = counted(small(tmp_path), "analytic", "static")
    wrong = {f.id: f.residual for f in report.discrepancy.findings
             if f.metric == "stored_bytes" and f.status == "unexplained" and f.level == "module"}  # fmt: skip
    assert wrong == {
        "prefill/model.layers.0.self_attn.q_proj#stored_bytes": -2 * 96 * 96,
        "decode/model.layers.0.self_attn.q_proj#stored_bytes": -2 * 96 * 96,
        "prefill/model.layers.0.self_attn.k_proj#stored_bytes": -2 * 32,
        "decode/model.layers.0.self_attn.k_proj#stored_bytes": -2 * 32,
    }
    assert report.exit_code == 1


def test_scales_in_another_dtype_and_a_tied_copy(tmp_path: Path) -> None:
    """Blocks of 128 x 128: one of each projection of attention, two of each of an MLP."""
    fp8: Tensors = {}
    for name, (rows, columns) in ROWS.items():
        blocks = -(-rows // 128), -(-columns // 128)
        fp8 |= {f"{LAYER}{name}.weight": ("F8_E4M3", (rows, columns)),
                f"{LAYER}{name}.weight_scale_inv": ("BF16", blocks)}  # fmt: skip
    described = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    ledger = by_headers(tmp_path, {**PLAIN, **fp8}, described, tie_word_embeddings=True)
    why = "a scale in BF16, where the layout assumes F32"
    assert causes(ledger) == {
        (why, "stored_bytes"): -2 * (4 + 3 * 2),
        (naming.TIED, "stored_bytes"): 2 * 50 * 96, (naming.TIED, "stored_elements"): 50 * 96,
    }  # fmt: skip
    assert bytes_of(ledger)["lm_head"] == 2 * 50 * 96


def test_more_of_autogptq_than_the_layout_of_gptqmodel(tmp_path: Path) -> None:
    described = GPTQ | {"meta": {"quantizer": ["gptqmodel:2.0"]}}
    ledger = by_headers(tmp_path, {**PLAIN, **packed()}, described)
    rows = 96 + 32 + 32 + 96 + 224 + 224 + 96
    assert causes(ledger) == {(naming.ZERO_BIAS, "stored_bytes"): 2 * rows, (naming.ZERO_BIAS, "stored_elements"): rows}


def test_a_missing_bias_of_the_model_has_no_cause(tmp_path: Path) -> None:
    ledger = by_headers(tmp_path, {**PLAIN, **packed(bias=False)}, GPTQ, attention_bias=True, mlp_bias=False)
    assert causes(ledger)[naming.NO_ZERO_BIAS, "stored_elements"] == -(2 * 224 + 96), "of the MLP"


def test_a_method_without_a_layout_is_counted_by_headers(tmp_path: Path) -> None:
    write(tmp_path, {**PLAIN, **packed()})
    report = counted(small(tmp_path, {"quant_method": "quark"}), "analytic", "static")
    ledgers = {x.source: x for x in report.capture.ledgers}
    assert [ledgers[s].total("stored_bytes") for s in ("analytic", "static")] == [None, None]
    linear = sum(
        rows * columns // 2 + -(-columns // 128) * (2 * rows + rows // 2) + 2 * rows + 4 * columns
        for rows, columns in ROWS.values()
    )  # fmt: skip
    assert ledgers["headers"].total("stored_bytes") == 2 * 2 * 50 * 96 + 2 * 3 * 96 + linear
    assert {f.status for f in report.discrepancy.findings if f.metric == "stored_bytes"} == {"headers-only"}


def test_shards_that_are_missing_leave_the_source_out(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "model-00001-of-00002.safetensors")
    index = dict.fromkeys(PLAIN, "model-00001-of-00002.safetensors")
    index |= dict.fromkeys(LINEAR, "model-00002-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    report = counted(small(tmp_path), "analytic", "static")
    assert "a shard is missing" in report.capture.lacking["headers"]
    assert report.verdict == "exact"
    write(tmp_path, LINEAR, "model-00002-of-00002.safetensors")
    target = small(tmp_path)
    assert headers_ledger(target, target.workload(text_tokens=5)).total("stored_elements") == report.capture.ledger(
        "static"
    ).total("params")


EXPERTS = {
    "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 40, "intermediate_size": 56,
    "moe_intermediate_size": 24, "num_hidden_layers": 3, "first_k_dense_replace": 1, "vocab_size": 30,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "max_position_embeddings": 64,
}  # fmt: skip


def of_layout(target: str, next_token: int) -> Tensors:
    """Return the tensors of a layout, each expert by its own name."""
    found: Tensors = {}
    from costproof.storage.scheme import PLAIN as SCHEME
    from costproof.tracers.stored_module import next_token_tensors, stored_tensors

    model = load_target(target).build_stored()  # type: ignore[attr-defined]
    for tensor in (*stored_tensors(model, SCHEME), *next_token_tensors(model, SCHEME, next_token)):
        names = [tensor.name.replace("*", str(i)) for i in range(tensor.count)] if "*" in tensor.name else [tensor.name]
        found |= dict.fromkeys(names, (tensor.dtype, tensor.shape))
    return found


def test_experts_and_the_module_for_further_tokens(tmp_path: Path) -> None:
    """Experts are summed in their stack; the further module is a cause, also where only two layers are counted."""
    (tmp_path / "config.json").write_text(json.dumps(EXPERTS))
    name = f"hf:{tmp_path / 'config.json'}"
    write(tmp_path, of_layout(name, 1))
    target: Any = load_target(name)
    workload = target.workload()
    ledger = headers_ledger(target, workload)
    stack = "model.layers.1.mlp.experts"
    assert bytes_of(ledger)[stack] == 2 * 4 * 3 * 24 * 40
    attention = 2 * (40 * 40 + 2 * 20 * 40 + 40 * 40)
    mlp = 2 * (4 + 1) * 3 * 24 * 40 + 4 * 40 * 2 + 4 * 4
    further = attention + mlp + 2 * 2 * 40 + 2 * (2 * 40 * 40 + 3 * 40 + 2 * 30 * 40)
    assert causes(ledger)[naming.FURTHER_TOKENS, "stored_bytes"] == further
    assert stored(name, files=tmp_path).exit_code == 0
    assert stored(name, next_token=1, files=tmp_path).headers.differences == ()  # type: ignore[union-attr]
    cut = target.with_options(type(target.options)(layers=2))
    part = headers_ledger(cut, workload)
    assert stack in bytes_of(part)
    assert not [path for path in bytes_of(part) if path.startswith("model.layers.2.")]
    assert causes(part)[naming.FURTHER_TOKENS, "stored_bytes"] == further


def test_names_of_a_base_model_are_those_of_the_class(tmp_path: Path) -> None:
    """GPT-2's file has no ``transformer.`` before its names, and masks that the class ignores."""
    data = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_layer": 1, "n_head": 2,
            "vocab_size": 17, "n_positions": 9, "torch_dtype": "float32"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data))
    norm = {f"h.0.{n}.{p}": ("F32", (24,)) for n in ("ln_1", "ln_2") for p in ("weight", "bias")}
    write(tmp_path, {
        "wte.weight": ("F32", (17, 24)), "wpe.weight": ("F32", (9, 24)), **norm, "h.0.attn.bias": ("F32", (1, 1, 9, 9)),
        "h.0.attn.c_attn.weight": ("F32", (24, 72)), "h.0.attn.c_attn.bias": ("F32", (72,)),
        "h.0.attn.c_proj.weight": ("F32", (24, 24)), "h.0.attn.c_proj.bias": ("F32", (24,)),
        "h.0.mlp.c_fc.weight": ("F32", (24, 96)), "h.0.mlp.c_fc.bias": ("F32", (96,)),
        "h.0.mlp.c_proj.weight": ("F32", (96, 24)), "h.0.mlp.c_proj.bias": ("F32", (24,)),
        "ln_f.weight": ("F32", (24,)), "ln_f.bias": ("F32", (24,)),
    })  # fmt: skip
    target: Any = load_target(f"hf:{tmp_path / 'config.json'}")
    ledger = headers_ledger(target, target.workload(text_tokens=5))
    assert causes(ledger) == {(naming.IGNORED, "stored_bytes"): 4 * 81, (naming.IGNORED, "stored_elements"): 81}
    assert bytes_of(ledger)["transformer.h.0.mlp.c_fc"] == 4 * (24 * 96 + 96)
    done = costproof("stored", f"hf:{tmp_path}", "--files", str(tmp_path), cwd=tmp_path)
    assert (done.code, "Explained: 17 tensors" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("there", "cause"),
    [
        (("a.q.bias", "F16", (8,)), naming.ZERO_BIAS), (("a.k.bias", "F16", (8,)), ""),
        (("a.q.g_idx", "I32", (4,)), naming.GROUP_INDEX), (("a.v.g_idx", "I32", (4,)), ""),
        (("b.weight", "BF16", (3, 2)), naming.TIED), (("b.weight", "BF16", (2, 3)), ""),
        (("mtp.norm.weight", "BF16", (3,)), naming.FURTHER_TOKENS), (("smtp.norm.weight", "BF16", (3,)), ""),
        (("a.masks", "BOOL", (3,)), naming.IGNORED), (("a.inv_freq", "F32", (3,)), ""),
        (("a.rotary_emb.inv_freq", "F32", (3,)), naming.ROTARY),
    ],
)  # fmt: skip
def test_causes_of_single_tensors(there: tuple[str, str, tuple[int, ...]], cause: str) -> None:
    """A bias of k is one of the model; v is not packed; b is tied to a table of another shape, or of this one."""
    layout = [StoredTensor("a.q.qweight", "I32", (1, 8)), StoredTensor("a.k.qweight", "I32", (1, 8)),
              StoredTensor("a.v.weight", "BF16", (8, 4))]  # fmt: skip
    names = ModelNames(frozenset({"a.k.bias", "b.weight"}), {"b.weight": (3, 2)}, ("masks$",), ("mtp.",))
    name, dtype, shape = there
    size = DTYPE_BITS[dtype] // 8
    for length in shape:
        size *= length
    headers = [HeaderTensor(t.name, t.dtype, t.shape, t.bytes) for t in layout]
    (found,) = mismatches(layout, [*headers, HeaderTensor(name, dtype, shape, size)], names)
    assert (found.cause, found.bytes, found.count) == (cause, size, 1)


def test_a_shape_that_differs_has_no_cause() -> None:
    layout = [StoredTensor("a.scale", "F32", (2, 3), "scale"), StoredTensor("a.g_idx", "I32", (9,), "index")]
    headers = [HeaderTensor("a.scale", "BF16", (3, 3), 18)]
    wrong, index = mismatches(layout, headers, ModelNames())
    assert (wrong.cause, wrong.bytes, wrong.elements) == ("", 18 - 24, 3)
    assert (index.cause, index.bytes, index.elements) == (naming.NO_GROUP_INDEX, -36, -9)
