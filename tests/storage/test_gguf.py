"""GGUF files against configurations: names of each architecture, blocks by hand, keys, alignment, causes, findings."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from costproof import stored
from costproof.ledger.errors import BadInput, Bug, Incomplete
from costproof.models.registry import load_target
from costproof.storage import checkpoint as naming
from costproof.storage import headers
from costproof.storage.gguf import GgufTensor, gguf_tensors, split_latents
from costproof.storage.headers import GGUF_TYPES, FileSection, gguf_sections, read_header
from costproof.storage.tensors import BLOCKS as BLOCKS_OF_TYPES
from tests.storage.test_library_reading import planted
from tests.storage.test_metrics import counted
from tests.support.running import costproof

F32, Q8_0, Q4_K, F16 = 0, 8, 12, 1
BLOCKS = {F32: (1, 4), Q8_0: (32, 34), Q4_K: (256, 144), F16: (1, 2)}
Table = dict[str, tuple[tuple[int, ...], int]]
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 37,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16", "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip


def write(folder: Path, table: Table, alignment: int | None = None) -> Path:
    """Write the header of a GGUF file, without its data."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text("general.alignment") + struct.pack("<II", 4, alignment)] if alignment else []
    out = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(keys)) + b"".join(keys)
    start = 0
    for name, (shape, kind) in table.items():
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape[::-1])
        out += struct.pack("<IQ", kind, start)
        start += -(-size({name: (shape, kind)}) // (alignment or 32)) * (alignment or 32)
    (folder / "model.gguf").write_bytes(out)
    return folder / "model.gguf"


def of_llama() -> Table:
    table: Table = {
        "token_embd.weight": ((37, 256), Q8_0), "output_norm.weight": ((256,), F32), "output.weight": ((37, 256), Q8_0),
    }  # fmt: skip
    for i in range(2):
        table |= {f"blk.{i}.{n}.weight": ((256,), F32) for n in ("attn_norm", "ffn_norm")}
        table |= {f"blk.{i}.{n}.weight": (shape, Q4_K) for n, shape in (
            ("attn_q", (256, 256)), ("attn_k", (64, 256)), ("attn_v", (64, 256)), ("attn_output", (256, 256)),
            ("ffn_gate", (512, 256)), ("ffn_up", (512, 256)), ("ffn_down", (256, 512)),
        )}  # fmt: skip
    return table


def size(table: Table) -> int:
    found = 0
    for shape, kind in table.values():
        elements = 1
        for length in shape:
            elements *= length
        weights, block = BLOCKS[kind]
        found += elements // weights * block
    return found


def configured(folder: Path, **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    return f"hf:{folder / 'config.json'}"


def test_a_file_is_compared_tensor_by_tensor(tmp_path: Path) -> None:
    """Matrices of a layer are 655,360 weights in Q4_K; tables are in Q8_0, norms in float32."""
    file = write(tmp_path, of_llama())
    layer = 2 * 256 * 256 + 2 * 64 * 256 + 3 * 512 * 256
    expected = 2 * layer // 256 * 144 + 2 * 37 * 256 // 32 * 34 + 5 * 256 * 4
    assert size(of_llama()) == expected
    found = stored(configured(tmp_path), files=file)
    assert found.headers is not None
    assert (found.totals.bytes, found.headers.bytes, found.headers.differences) == (expected, expected, ())
    assert dict(found.totals.by_dtype) == {"Q4_K": 2 * layer, "Q8_0": 2 * 37 * 256, "F32": 5 * 256}
    assert found.totals.elements == found.params, "nothing is packed into words"
    assert (found.method, found.exit_code) == ("gguf", 0)
    down = next(part for part in found.parts if part.name == "blk.*.ffn_down.weight")
    assert (down.tensors, down.bytes) == (2, 2 * 512 * 144)


def test_fits_has_the_bytes_of_the_table(tmp_path: Path) -> None:
    """Weights by hand as above; the largest matrix in blocks, 512 x 256, is unpacked to 2 bytes each.

    A file without one of the tensors is no layout of this model, and no bytes of its weights.
    """
    target, file = configured(tmp_path, max_position_embeddings=1024), write(tmp_path, of_llama())
    done = costproof("fits", target, "--memory", "10MB", "-f", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.code, found["stored_bytes"]) == (0, size(of_llama()))
    assert (found["stored_format"], found["unpacked_bytes"]) == ("GGUF F32, GGUF Q4_K, GGUF Q8_0", 2 * 512 * 256)
    file.unlink()
    write(tmp_path, {name: of for name, of in of_llama().items() if name != "blk.1.attn_q.weight"})
    done = costproof("fits", target, "--memory", "10MB", "-f", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.code, found["stored_bytes"]) == (3, None)
    assert any("stored --files" in note for note in found["notes"])


def test_a_tensor_that_the_file_lacks_is_expected_in_float32(tmp_path: Path) -> None:
    """256 x 256 weights of 4 bytes, which gguf-py writes without a quantisation; the others keep their types."""
    file = write(tmp_path, {name: of for name, of in of_llama().items() if name != "blk.1.attn_q.weight"})
    found = stored(configured(tmp_path), files=file)
    assert found.headers is not None
    assert [(d.name, d.expected, d.got, d.bytes) for d in found.headers.differences] == [
        ("blk.*.attn_q.weight", "1 x F32 [256, 256]", "", -4 * 256 * 256),
    ]
    assert found.formats == ("GGUF F32", "GGUF Q4_K", "GGUF Q8_0")


def test_modules_for_further_tokens_are_not_counted(tmp_path: Path) -> None:
    """The layout has none of their tensors, so a file states a total without them, and --mtp is refused."""
    target, file = configured(tmp_path, num_nextn_predict_layers=1_000), write(tmp_path, of_llama())
    found = stored(target, files=file)
    assert found.totals.bytes == size(of_llama())
    left = "MTP modules (num_nextn_predict_layers 1000), whose layout is not known"
    assert found.left_out == (left,)
    with pytest.raises(BadInput, match="not counted in a GGUF file"):
        stored(target, files=file, next_token=1)


@pytest.mark.parametrize(("alignment", "unit"), [(None, 32), (64, 64)])
def test_keys_table_and_alignment_have_their_bytes(tmp_path: Path, alignment: int | None, unit: int) -> None:
    """A table of two: 37 x 32 in Q8_0 is 1,258 bytes, a norm of 5 is 20."""
    file = write(tmp_path, {"a": ((37, 32), Q8_0), "norm": ((5,), F32)}, alignment)
    keys = {"key general.architecture": 8 + 20 + 4 + 8 + 5} | (
        {"key general.alignment": 8 + 17 + 8} if alignment else {}
    )
    table = (8 + 1 + 4 + 16 + 12) + (8 + 4 + 4 + 8 + 12)
    head = 24 + sum(keys.values()) + table
    assert file.stat().st_size == head
    filled = -head % unit + -1258 % unit + -20 % unit
    assert gguf_sections(file) == (
        FileSection("version and counts", 24), *(FileSection(*item) for item in keys.items()),
        FileSection("table of tensors", table), FileSection(f"alignment to {unit} bytes", filled),
    )  # fmt: skip


def test_a_file_that_the_library_of_the_format_wrote() -> None:
    """Each type in matrices with odd numbers of rows, in a stack of experts and in a vector."""
    here = Path(__file__)
    written = json.loads(here.with_name("odd_gguf.json").read_text(encoding="utf-8"))
    file = here.with_name("odd.gguf")
    found = {t.name: [t.dtype, list(t.shape), t.bytes] for t in read_header(file)}
    assert found == written["tensors"]
    assert {str(of[0]) for of in found.values()} == {*GGUF_TYPES.values()} - {"Q8_1"}
    sections = sum(section.bytes for section in gguf_sections(file))
    assert sections + sum(int(str(of[2])) for of in found.values()) == written["file_bytes"]


@pytest.mark.parametrize("alignment", [None, 4096])
@pytest.mark.parametrize(("old", "new"), [
    ('FileSection("table of tensors", stream.tell() - before)', 'FileSection("table of tensors", stream.tell())'),
    ('FileSection("version and counts", stream.tell())', 'FileSection("version and counts", stream.tell() - 4)'),
    ('FileSection(f"key {key}", stream.tell() - before)', 'FileSection(f"key {key}", len(key))'),
    ("filled = -stream.tell() % alignment +", "filled ="),
    ("+ sum(-tensor.bytes % alignment for tensor in found)", ""),
])  # fmt: skip
def test_a_mistake_in_the_sections_is_found(old: str, new: str, alignment: int | None, tmp_path: Path) -> None:
    file = write(tmp_path, {"a": ((3,), F32), "b": ((5,), F16)}, alignment)
    assert gguf_sections(file)
    with pytest.raises(Bug, match="of a GGUF file"):
        planted(headers, "gguf_sections", old, new)(file)


def test_a_block_of_intermediate_results_is_that_of_ggml() -> None:
    """ggml-common.h: ``sizeof(block_q8_1) == 2*sizeof(ggml_half) + QK8_1``, where QK8_1 is 32."""
    assert BLOCKS_OF_TYPES["Q8_1"] == (32, 2 * 2 + 32)


def test_causes_and_findings(tmp_path: Path) -> None:
    """Frequencies and a copy of the tied table have causes; a projection of another shape has none."""
    table = of_llama() | {"rope_freqs.weight": ((32,), F32), "blk.1.ffn_up.weight": ((480, 256), Q4_K)}
    found = stored(configured(tmp_path, tie_word_embeddings=True), files=write(tmp_path, table))
    assert found.headers is not None
    assert {(d.name, d.cause): d.bytes for d in found.headers.differences} == {
        ("output.weight", naming.TIED): 37 * 8 * 34, ("rope_freqs.weight", naming.ROTARY): 128,
        ("blk.*.ffn_up.weight", ""): -32 * 144,
    }  # fmt: skip
    assert found.exit_code == 1
    del table["blk.0.attn_v.weight"]
    done = costproof("stored", configured(tmp_path), "--files", str(write(tmp_path, table)), cwd=tmp_path, columns=200)
    assert done.code == 1
    assert "alignment to 32 bytes" in done.stdout
    assert "key general.architecture" in done.stdout


def test_a_report_has_parameters_by_the_file(tmp_path: Path) -> None:
    """Elements of a GGUF file are weights: they are compared with the parameters of each module."""
    write(tmp_path, of_llama() | {"blk.1.ffn_up.weight": ((480, 256), Q4_K), "rope_freqs.weight": ((32,), F32)})
    report = counted(load_target(configured(tmp_path)), "analytic", "static")
    ledger = report.capture.ledger("headers")
    assert ledger.metrics == ("stored_bytes", "stored_elements", "params")
    found = {f.id: (f.status, f.delta) for f in report.discrepancy.findings if f.metric == "params" and f.delta}
    assert found["prefill/model.layers.1.mlp.up_proj#params"] == ("unexplained", 32 * 256)
    assert found["prefill/rope_freqs#params"] == ("explained", -32)
    down = report.discrepancy.finding("prefill/model.layers.[0-1].mlp.down_proj#params")
    assert (down.status, down.values["headers"]) == ("exact", 2 * 512 * 256)
    assert report.discrepancy.finding("prefill/model.layers.[0-1].mlp.down_proj#stored_bytes").status == "headers-only"


def names(model_type: str, *parameters: tuple[str, tuple[int, ...]], transposed: bool = False) -> Table:
    return {t.name: (t.shape, 0) for t in gguf_tensors(model_type, dict(parameters), transposed=transposed)}


def test_names_of_architectures() -> None:
    """As MODEL_TENSORS and the tensor map of gguf-py have them."""
    layer = "model.layers.3."
    assert [*names("gemma2", (f"{layer}post_attention_layernorm.weight", (8,)),
                   (f"{layer}pre_feedforward_layernorm.weight", (8,)),
                   (f"{layer}post_feedforward_layernorm.weight", (8,)))] == [
        "blk.3.post_attention_norm.weight", "blk.3.ffn_norm.weight", "blk.3.post_ffw_norm.weight",
    ]  # fmt: skip
    assert [*names("gemma", (f"{layer}post_attention_layernorm.weight", (8,)))] == ["blk.3.ffn_norm.weight"]
    assert [*names("qwen2", (f"{layer}self_attn.k_proj.bias", (8,)))] == ["blk.3.attn_k.bias"]
    assert [*names("qwen3", (f"{layer}self_attn.q_norm.weight", (8,)))] == ["blk.3.attn_q_norm.weight"]
    stack = (f"{layer}mlp.experts.gate_up_proj", (4, 10, 8)), (f"{layer}mlp.experts.down_proj", (4, 8, 5))
    assert names("qwen3_moe", (f"{layer}mlp.gate.weight", (4, 8)), *stack) == {
        "blk.3.ffn_gate_inp.weight": ((4, 8), 0), "blk.3.ffn_gate_exps.weight": ((4, 5, 8), 0),
        "blk.3.ffn_up_exps.weight": ((4, 5, 8), 0), "blk.3.ffn_down_exps.weight": ((4, 8, 5), 0),
    }  # fmt: skip
    assert names("gpt_oss", (f"{layer}mlp.experts.gate_up_proj", (4, 8, 10)),
                 (f"{layer}mlp.experts.gate_up_proj_bias", (4, 10)), (f"{layer}mlp.router.bias", (4,)),
                 (f"{layer}self_attn.sinks", (2,)), transposed=True) == {
        "blk.3.ffn_gate_exps.weight": ((4, 5, 8), 0), "blk.3.ffn_up_exps.weight": ((4, 5, 8), 0),
        "blk.3.ffn_gate_exps.bias": ((4, 5), 0), "blk.3.ffn_up_exps.bias": ((4, 5), 0),
        "blk.3.ffn_gate_inp.bias": ((4,), 0), "blk.3.attn_sinks.weight": ((2,), 0),
    }  # fmt: skip
    assert [*names("deepseek_v3", (f"{layer}self_attn.kv_a_proj_with_mqa.weight", (9, 8)),
                   (f"{layer}mlp.shared_experts.up_proj.weight", (9, 8)),
                   (f"{layer}mlp.gate.e_score_correction_bias", (4,)))] == [
        "blk.3.attn_kv_a_mqa.weight", "blk.3.ffn_up_shexp.weight", "blk.3.exp_probs_b.bias",
    ]  # fmt: skip


def test_keys_and_values_of_latents_are_one_tensor_or_two() -> None:
    """Three heads with keys of 4 and values of 5 from a latent of 7."""
    one = GgufTensor("blk.0.attn_kv_b.weight", "a", (27, 7))
    assert [(t.name, t.shape) for t in split_latents(one, 4, 5)] == [
        ("blk.0.attn_k_b.weight", (3, 7, 4)), ("blk.0.attn_v_b.weight", (3, 5, 7)),
    ]  # fmt: skip
    assert [*split_latents(GgufTensor("blk.0.attn_q.weight", "a", (2, 2)), 4, 5)] == [
        GgufTensor("blk.0.attn_q.weight", "a", (2, 2))
    ]


@pytest.mark.parametrize(
    "kind",
    ["llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "mixtral",
     "deepseek_v2", "deepseek_v3", "gpt_oss"],
)  # fmt: skip
def test_every_parameter_of_a_model_has_a_name(kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, num_hidden_layers=2)
    if kind.startswith("deepseek"):
        config.first_k_dense_replace = 1
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    found = list(gguf_tensors(kind, shapes, transposed=kind == "gpt_oss"))
    assert len({t.name for t in found}) == len(found)
    elements = 0
    for tensor in found:
        product = 1
        for length in tensor.shape:
            product *= length
        elements += product
    assert elements == sum(p.numel() for p in model.parameters())
    assert {t.module for t in found} == {path.rpartition(".")[0] for path in shapes}


def test_an_architecture_without_names_is_incomplete(tmp_path: Path) -> None:
    data = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 1, "n_head": 2,
            "vocab_size": 17, "n_positions": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    file = write(tmp_path, {"token_embd.weight": ((17, 32), Q8_0)})
    with pytest.raises(Incomplete, match=r"gpt2.*1 tensor of 578 bytes in Q8_0"):
        stored(f"hf:{tmp_path}", files=file)
    target: Any = load_target(f"hf:{tmp_path}")
    report = counted(target, "analytic", "static")
    assert "headers of gguf are not compared" in report.capture.lacking["headers"]
