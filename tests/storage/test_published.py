"""Stored bytes of published checkpoints from their configuration, and of models that transformers builds quantised."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from costproof import fits, stored
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.generic.huggingface import huggingface
from costproof.storage.scheme import read_scheme
from costproof.tracers.stored_module import stored_tensors
from tests.oracles.published import write_row
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


LIKE_ANOTHER = {
    "Kimi-K2-Instruct-0905", "Llama-2-7B, GGUF Q5_K_M", "Mistral-Small-24B (Dolphin 3.0 R1)", "Triangulum-10B",
    "Yi-1.5-6B", "Llama-3.2-3B", "Qwen3-1.7B", "Qwen3.5-25B-REAP-A3B-Coding",
}  # fmt: skip
"""Rows whose layout another row has: Kimi-K2-Instruct-0905 but for rotary frequencies, the others but for sizes."""


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row["name"], marks=pytest.mark.thorough if row["name"] in LIKE_ANOTHER else ())
        for row in PUBLISHED
    ],
)
def test_the_bytes_of_a_published_checkpoint(row: dict[str, Any], tmp_path: Path) -> None:
    target, files = write_row(row, tmp_path)
    found = stored(target, next_token=row.get("mtp", 0), files=files)
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


GLM_AIR = {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 46, "first_k_dense_replace": 1, "vocab_size": 151552, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16", "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def test_elements_of_checkpoints_with_a_module_for_further_tokens(tmp_path: Path) -> None:
    """As the Hub counts them (safetensors.total): GLM-4.5-Air, a model made from it without the module, Qwen3-Next."""
    (tmp_path / "config.json").write_text(json.dumps(GLM_AIR), encoding="utf-8")
    glm = f"hf:{tmp_path / 'config.json'}"
    assert [stored(glm, next_token=n).totals.elements for n in (1, 0)] == [110_468_824_832, 106_852_251_264]
    # Without the 128 corrections of the router, which are buffers, in the module and 45 of the 46 layers; with biases.
    assert stored(glm, next_token=1).params == 110_468_824_832 - 46 * 128
    # Anchor: 684,489,845,504 with the 256 corrections of 58 layers and of the module.
    assert stored("deepseek-v3", next_token=1).params == 684_489_845_504 - 59 * 256
    qwen = configuration(tmp_path, "Qwen3-Next-80B-A3B", None)
    assert stored(qwen, next_token=1).totals.elements == 81_324_862_720
    assert stored(qwen).left_out == ("1 MTP module, which costproof stored --mtp counts",)


NEXT = {
    "model_type": "qwen3_next", "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 4, "vocab_size": 30,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "moe_intermediate_size": 24, "num_experts": 3,
    "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2, "dtype": "bfloat16",
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "tie_word_embeddings": False,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip


def module_of(folder: Path, data: dict[str, Any], **more: Any) -> dict[str, int]:
    """Return name -> bytes of the tensors that ``next_token=1`` adds."""
    (folder / "config.json").write_text(json.dumps(data | more), encoding="utf-8")
    whole, plain = (stored(f"hf:{folder}", next_token=n).parts for n in (1, 0))
    before = {part.name: part.bytes for part in plain}
    return {part.name: part.bytes - before.get(part.name, 0) for part in whole if part not in plain}


def test_the_module_of_qwen3_next_by_hand(tmp_path: Path) -> None:
    """Its layer is the last one with full attention: queries have a gate of the same width."""
    found = module_of(tmp_path, NEXT)
    attention = 2 * 2 * 12 * 40 + 2 * 12 * 40 + 40 * 24 + 2 * 12
    experts = 3 * 3 * 24 * 40 + 3 * 16 * 40 + 3 * 40 + 40
    assert sum(found.values()) == 2 * (attention + experts + 2 * 40 + 3 * 40 + 2 * 40 * 40)
    assert found["mtp.fc.weight"] == 2 * 40 * 80
    assert found["mtp.layers.*.self_attn.q_proj.weight"] == 2 * 48 * 40
    assert not any(name.startswith("model.layers") for name in found)


def test_shapes_of_the_module_for_further_tokens(tmp_path: Path) -> None:
    """Header of Qwen3-Next: ``mtp.fc.weight`` has a row for each of 40 and two times 40 columns; norms have 40."""
    (tmp_path / "config.json").write_text(json.dumps(NEXT), encoding="utf-8")
    found = {part.name: part.shape for part in stored(f"hf:{tmp_path}", next_token=1).parts}
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    assert {name: found[f"mtp.{name}.weight"] for name in ("fc", *norms)} == {
        "fc": (40, 80),
        **dict.fromkeys(norms, (40,)),
    }


def test_rules_see_the_names_of_the_module_for_further_tokens(tmp_path: Path) -> None:
    """In fp8 the projection has a scale too, unless a list has its name; a list of ``mtp`` leaves all of it."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "mtp.fc"]}
    found = module_of(tmp_path, NEXT, quantization_config=fp8)
    assert found["mtp.fc.weight"] == 2 * 40 * 80
    assert found["mtp.layers.*.self_attn.q_proj.weight"] == 48 * 40
    assert found["mtp.layers.*.self_attn.q_proj.weight_scale_inv"] == 2
    found = module_of(tmp_path, NEXT, quantization_config=fp8 | {"modules_to_not_convert": ["lm_head"]})
    assert (found["mtp.fc.weight"], found["mtp.fc.weight_scale_inv"]) == (40 * 80, 2)
    found = module_of(tmp_path, NEXT, quantization_config=fp8 | {"modules_to_not_convert": ["lm_head", "mtp"]})
    assert not [name for name in found if name.endswith("scale_inv")]


def test_the_module_of_mimo_by_hand() -> None:
    """A layer of Qwen2, whose projections of attention have biases; its class is not in transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from costproof.storage.scheme import PLAIN
    from costproof.storage.tensors import totals
    from costproof.tracers.stored_module import next_token_tensors

    config = AutoConfig.for_model(
        "qwen2", hidden_size=40, intermediate_size=56, num_hidden_layers=2, vocab_size=30, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.model_type, config.num_nextn_predict_layers = "mimo", 1
    model.config = config
    found = list(next_token_tensors(model, PLAIN, 1))
    layer = 2 * 40 * 40 + 2 * 20 * 40 + 40 + 2 * 20 + 3 * 56 * 40 + 2 * 40
    assert totals(found).bytes == 2 * (layer + 3 * 40 + 2 * 40 * 40)
    assert {"model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.self_attn.q_proj.bias"} <= {
        t.name for t in found
    }
    with pytest.raises(BadInput, match="at most 1"):
        list(next_token_tensors(model, PLAIN, 2))


MIMO_2 = {
    "model_type": "mimo_v2_flash", "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "vocab_size": 30,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 12, "v_head_dim": 8, "moe_intermediate_size": 24,
    "n_routed_experts": 3, "num_experts_per_tok": 2, "tie_word_embeddings": False, "dtype": "bfloat16",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}  # fmt: skip


def test_the_modules_of_mimo_v2_by_hand(tmp_path: Path) -> None:
    """Each has its own name: attention with a window, so two key-value heads and a sink a head, and a dense MLP.

    Its lists have ``model.decoder`` for all three, as SGLang names them.
    """
    (tmp_path / "config.json").write_text(json.dumps(MIMO_2), encoding="utf-8")
    attention = 4 * 12 * 40 + 2 * 12 * 40 + 2 * 8 * 40 + 4 * 8 * 40 + 4
    module = attention + 3 * 56 * 40 + 2 * 40 + 3 * 40 + 2 * 40 * 40
    totals = [stored(f"hf:{tmp_path}", next_token=n).totals.bytes for n in range(4)]
    assert [many - totals[0] for many in totals] == [0, 2 * module, 4 * module, 6 * module]
    kept = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "ignored_layers": ["model.decoder.self_attn.o_proj"],
    }
    found = module_of(tmp_path, MIMO_2, quantization_config=kept)
    assert found["model.mtp.layers.*.self_attn.o_proj.weight"] == 2 * 40 * 32
    assert found["model.mtp.layers.*.self_attn.q_proj.weight"] == 48 * 40
    assert found["model.mtp.layers.*.eh_proj.weight"] == 2 * 40 * 80
    assert {"model.mtp.layers.*.pre_mlp_layernorm.weight", "model.mtp.layers.*.self_attn.attention_sink_bias"} <= {
        *found
    }
    with pytest.raises(BadInput, match="layers that an MTP module is like"):
        module_of(tmp_path, MIMO_2, mlp_layer_types=["sparse"] * 3)


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
    with pytest.raises(BadInput, match="the MTP modules of this model are not known"):
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


def test_fits_with_the_weights_of_the_module_for_further_tokens(tmp_path: Path) -> None:
    """688,574,839,360 bytes in all, of which 59 corrections of routers with 256 numbers in float32 are buffers.

    The module has 15,424,227,552 of them: all but the 673,150,611,808 of the checkpoint without it.
    """
    done = costproof("fits", "deepseek-v3", "--memory", "700GB", "--mtp", "1", "-f", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.code, found["next_token_modules"], found["next_token_bytes"]) == (
        0,
        1,
        688_574_839_360 - 673_150_611_808,
    )
    assert found["stored_bytes"] == 688_574_839_360 - 58 * 256 * 4
    assert "the cache and activations of 1 MTP module are left out" in found["notes"]
    done = costproof("fits", "deepseek-v3@chat,batch=8,fsdp=8", "--memory", "700GB", "--mtp", "1", cwd=tmp_path)
    assert (done.code, "--mtp, --fsdp" in done.stderr) == (2, True)


def bytes_of_a_module(*, tp: int, ep: int, whole: bool) -> tuple[int, dict[str, int]]:
    """Bytes of DeepSeek-V3's module on a rank, and of its parts that each rank of a ``tp`` group has whole.

    Of 7,168 hidden elements, 128 heads of 128 + 64 and 128, latents of 1,536 and 512 + 64, 256 + 1 experts 2,048 wide,
    and 129,280 entries. Five norms of the width, two of latents; the projection and tables are in bfloat16.

    Args:
        whole: whether attention is whole on each rank, as in the plan of transformers.
    """
    h, heads = 7168, 128 if whole else 128 // tp
    named = {
        "norms": 2 * 5 * h,
        "latents of MLA, and the projections to them": fp8(1536, h) + fp8(512 + 64, h) + 2 * (1536 + 512),
        "routers": 2 * 256 * h + 4 * 256,
        "projections of MTP modules": 2 * h * 2 * h,
    }
    attention = fp8(heads * 192, 1536) + fp8(heads * 256, 512) + fp8(h, heads * 128)
    if whole:
        named["attention, which the plan leaves whole"] = attention
    width, inner = (2048, 2048 // tp) if ep > 1 else (2048 // tp, 2048 // tp)
    experts = 256 // ep * (2 * fp8(width, h) + fp8(h, width))
    shared = 2 * fp8(inner, h) + fp8(h, inner)
    tables = 2 * 2 * (129_280 // tp) * h
    return sum(named.values()) + (0 if whole else attention) + experts + shared + tables, named


@pytest.mark.parametrize(
    ("mesh", "sizes", "holding"),
    [
        ("tp=8,ep=8", (8, 8, True), 8),
        pytest.param("tp=4,plan=vllm", (4, 1, False), 4, marks=pytest.mark.thorough),
        ("dp=8,ep=8,batch=8", (1, 8, True), 8),
        pytest.param("tp=2,pp=2,dp=2,batch=2", (2, 1, True), 4, marks=pytest.mark.thorough),
    ],
)
def test_the_module_for_further_tokens_on_a_mesh(mesh: str, sizes: tuple[int, int, bool], holding: int) -> None:
    """Bytes of a rank by hand; the ranks of the last stage have it, and sum to one device and the copies by name."""
    tp, ep, whole = sizes
    run = f"deepseek-v3@chat,text_tokens=8,new_tokens=0,{mesh}"
    found = fits(run, memory="1TB", next_token=1)
    of_rank, named = bytes_of_a_module(tp=tp, ep=ep, whole=whole)
    held = {rank: row.stages[""]["resident_bytes"] for row in found.next_token_ranks for rank in row.ranks}
    last = found.workload.mesh.world - holding
    assert held == {rank: of_rank if rank >= last else 0 for rank in range(found.workload.mesh.world)}
    assert (found.rank, found.next_token_bytes) == (last, of_rank)  # a rank that holds the most is reported
    copies = {d.what: d.amount for d in found.next_token_copies if d.metric == "resident_bytes"}
    groups = holding // tp
    expected = {what: (tp - 1) * size for what, size in named.items()} if tp > 1 else {}
    shared = 15_424_227_552 + sum(expected.values())  # all that the ranks of one batch hold
    experts = 256 * (2 * fp8(2048, 7168) + fp8(7168, 2048)) if ep > tp else 0  # divided among batches
    if groups > 1:
        expected["copies of data-parallel ranks"] = (groups - 1) * (shared - experts)
    assert copies == expected
    assert sum(held.values()) == 15_424_227_552 + sum(copies.values())


def test_deepseek_v3_with_its_module_on_eight_ranks(tmp_path: Path) -> None:
    """94,321,022,368 of the model and 2,274,894,880 bytes of its module on each of eight: 96 GB are too few."""
    run = ("deepseek-v3@chat,text_tokens=8,new_tokens=1,batch=1", "--mtp", "1", "-f", "json")
    of_rank, _ = bytes_of_a_module(tp=8, ep=1, whole=True)
    assert of_rank == 2_274_894_880
    done = costproof("fits", *run, "--tp", "8", "--memory", "140GB", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.code, found["next_token_bytes"]) == (0, of_rank)
    plain = json.loads(costproof("fits", *run[:-4], *run[-2:], "--tp", "8", "--memory", "140GB", cwd=tmp_path).stdout)
    assert found["stored_bytes"] - plain["stored_bytes"] == of_rank
    assert costproof("fits", *run, "--tp", "8", "--memory", "96GB", cwd=tmp_path).code == 1
    assert plain["stored_bytes"] < 96_000_000_000
