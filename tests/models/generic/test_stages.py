"""Stages of models without formulas: the graph sources agree with each other, by hand, and with a family."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.ledger.errors import Problems
from costproof.models.families.llama import Llama
from costproof.models.generic.huggingface import HuggingFace
from costproof.models.generic.module import GenericTarget
from costproof.reports.report import Report
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers import sources as tracing
from tests.models.test_llama import SMALL
from tests.support.pools import Here
from tests.support.running import costproof as command

QWEN3 = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
}  # fmt: skip
# Per token q and out 32*32, k and v 32*16, MLP 3*32*48, and the head 32*64, 2 FLOPs each.
LAYER, HEAD = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48), 2 * 32 * 64
PER_PAIR = 4 * 32
"""Of a query and a key: two products of 4 heads of 8."""


def generic(data: dict[str, Any]) -> GenericTarget:
    """The configuration without regard to families."""
    made = HuggingFace(json.dumps(data), "here")
    return GenericTarget(made.name, made)


def counted(data: dict[str, Any], *, sources: tuple[str, ...] = ("static", "dynamic"), **settings: Any) -> Report:
    """A count of it, in this process alone."""
    target = generic(data)
    return count_sources(Prepared(target, target.workload(**settings), sources))


@pytest.fixture(scope="module")
def qwen3() -> Iterator[Report]:
    """Two prompts of 20 tokens and 9 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "Pool", Here)
        yield counted(QWEN3, batch=2, seq_len=20, new_tokens=9)


def test_prefill_and_decode(qwen3: Report) -> None:
    assert (qwen3.verdict, qwen3.capture.target.stages) == ("exact", ("prefill", "decode"))
    steps = sum(2 * LAYER + HEAD + 2 * PER_PAIR * (21 + i) for i in range(9))
    for source in ("static", "dynamic"):
        ledger = qwen3.capture.ledger(source)
        assert ledger.stage_total("prefill", "flops") == 2 * (20 * (2 * LAYER + HEAD) + 2 * PER_PAIR * 20 * 20)
        assert ledger.stage_total("decode", "flops") == 2 * steps
        # Keys and values of 2 layers, 2 heads of 8 in bfloat16.
        assert ledger.stage_total("decode", "kv_cache_bytes") == 2 * 9 * 2 * 2 * 2 * 8 * 2


def test_formulas_keep_their_symbols(qwen3: Report) -> None:
    exprs = [n.exprs.get("flops", "") for n in qwen3.capture.ledger("static").nodes]
    assert any("S" in e and "B" in e for e in exprs)
    assert any("P" in e and "N" in e for e in exprs)


@pytest.mark.thorough
def test_without_its_family_a_llama_counts_the_same() -> None:
    run: dict[str, Any] = {"batch": 2, "new_tokens": 3}
    found = counted(SMALL, sources=("static",), seq_len=20, **run)
    target = Llama.from_file(_file(SMALL))
    family = count_sources(Prepared(target, target.workload(text_tokens=20, **run), sources=("analytic",)))
    formulas = family.capture.ledger("analytic")
    for stage in ("prefill", "decode"):
        for metric in ("flops", "vector_flops", "params", "kv_cache_bytes", "weight_bytes"):
            assert found.capture.ledger("static").stage_total(stage, metric) == formulas.stage_total(stage, metric)


def _file(data: dict[str, Any]) -> Path:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.usefixtures("one_process")
def test_an_encoder_has_one_stage() -> None:
    ernie = {**QWEN3, "model_type": "ernie", "architectures": ["ErnieForMaskedLM"]}
    found = counted(ernie, batch=2, seq_len=9)
    # Two layers of 4 * 32*32 and 2 * 32*48, the transform 32*32 and the head 32*64, 2 FLOPs each; 4 heads of 8.
    products = 2 * 18 * (2 * (4 * 32 * 32 + 2 * 32 * 48) + 32 * 32 + 32 * 64) + 2 * 2 * (4 * 9 * 9 * 32)
    assert found.verdict == "exact"
    assert found.capture.ledger("static").stage_total("forward", "flops") == products


LLAVA: dict[str, Any] = {
    "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_id": 5,
    "text_config": {**QWEN3, "model_type": "llama", "num_hidden_layers": 1},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    },
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_an_image_in_the_prompt() -> None:
    found = counted(LLAVA, batch=2, seq_len=20, new_tokens=1)
    # 16 patches of 8*8*3 become 32 wide; with the class token 17 positions in one layer; a projector of 32*32 twice.
    layers = 2 * 17 * (4 * 32 * 32 + 2 * 32 * 48) + 2 * 2 * 17 * 17 * 32
    tower = 2 * 16 * 8 * 8 * 3 * 32 + layers
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("vision_tower", "flops") == 2 * tower
        assert ledger.stage_total("multi_modal_projector", "flops") == 2 * 2 * 16 * 2 * 32 * 32
        assert ledger.stage_total("prefill", "flops") == 2 * (20 * (LAYER + HEAD) + PER_PAIR * 20 * 20)
        assert ledger.stage_total("decode", "flops") == 2 * (LAYER + HEAD + PER_PAIR * 21)
        towers = {n.stage for n in ledger.nodes if n.module.startswith("model.vision_tower")}
        assert towers == {"vision_tower"}
        # Pixels, weights of two linear layers and their biases; what one tower hands on, the next reads once.
        weights = 2 * (32 * 32 + 32)
        moved = {n.stage: n.cost("floor_bytes") for n in ledger.nodes if n.cost("floor_bytes")}
        assert moved["multi_modal_projector"] == 2 * (2 * 16 * 32 + weights + 2 * 16 * 32)
    assert found.verdict == "exact", found.sentence


def test_a_prompt_has_room_for_its_image() -> None:
    # 16 patches; the usual prompt is longer.
    assert generic(LLAVA).workload().text_tokens == 512
    with pytest.raises(Problems, match="the prompt is shorter") as caught:
        generic(LLAVA).workload(seq_len=15)
    assert "at least 16" in str(caught.value)
    assert generic(LLAVA).workload(seq_len=16).text_tokens == 16
    # 32 x 32 patches are more than the usual prompt, which comes on top.
    large = {**LLAVA, "vision_config": {**LLAVA["vision_config"], "image_size": 256}}
    assert generic(large).workload().text_tokens == 1024 + 512


QWEN_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "text_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "depth": 1, "num_heads": 4, "patch_size": 7,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 28, "fullatt_block_indexes": [0],
        "out_hidden_size": 32, "in_channels": 3,
    },
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_an_image_in_patches_with_its_grid() -> None:
    found = counted(QWEN_VL, batch=2, seq_len=20, new_tokens=1, image_size=56)
    # 8 x 8 patches of 3*2*7*7; q, k, v, out 4 * 32*32, attention over all 64, an MLP of three products; the merger
    # takes four patches of 32 beside each other: 128*128 and 128*32 for each of 16 tokens.
    patches = 64 * 3 * 2 * 7 * 7 * 32 + 64 * (4 * 32 * 32 + 3 * 32 * 48) + 16 * (128 * 128 + 128 * 32)
    visual = 2 * patches + 2 * 2 * 64 * 64 * 32
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("visual", "flops") == 2 * visual
        assert ledger.stage_total("prefill", "flops") == 2 * (20 * (LAYER + HEAD) + PER_PAIR * 20 * 20)
    assert found.verdict == "exact", found.sentence
    with pytest.raises(Problems, match="at least 16"):
        generic(QWEN_VL).workload(seq_len=9, image_size=56)


MODEL = """\
import torch
from torch import nn
def make():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), torch.zeros(3, 16)
"""


def test_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL, encoding="utf-8")
    done = command("report", "mine.py:make", "--progress", "never", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "when it was run" in done.stdout
    assert "Exact: static and dynamic agree" in done.stdout
    found = costproof.read(tmp_path / "out" / "mine-make")
    assert found.ledger("static").stage_total("forward", "flops") == 2 * 3 * 16 * 32 + 2 * 3 * 32 * 8
    assert str(tmp_path) not in (tmp_path / "out" / "mine-make" / "capture.json").read_text(encoding="utf-8")
    assert done.stdout.startswith("mine:make, usual: input float32[3,16], float32\n"), "no batch beside the shapes"
    assert found.workload.batch == 3, "as the derived form below has it"
    derived = command("derive", "mine.py:make", "--points", "1", cwd=tmp_path)
    assert derived.stdout.splitlines()[3] == f"total = {2 * 16 * 32 + 2 * 32 * 8}*B"
    # Another file of the same name does not replace it unawares.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.py").write_text(MODEL, encoding="utf-8")
    before = (tmp_path / "out" / "mine-make" / "capture.json").read_bytes()
    refused = command("report", "other/mine.py:make", cwd=tmp_path)
    assert (refused.code, (tmp_path / "out" / "mine-make" / "capture.json").read_bytes()) == (2, before)
    assert "the folder holds the report of another target" in refused.stderr
    assert "../../other/mine.py:make" in refused.stderr
    # There are no formulas: the advice is what works.
    for words in (("mine.py:make", "forward"), ("out/mine-make", "forward"), ("out/mine-make/capture.json", "forward")):
        said = command("explain", *words, cwd=tmp_path)
        assert (said.code, said.stderr.splitlines()[0]) == (2, "error: there are no formulas to explain")
        assert (
            f"costproof explain {'mine.py:make' if words[0] == 'mine.py:make' else 'TARGET'} forward --graph"
            in said.stderr
        )
    listing = command("explain", "mine.py:make", "forward", "--graph", cwd=tmp_path)
    assert (listing.code, "aten.linear" in listing.stdout) == (0, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("report", "mine.py:nothing"), "there is no such function"),
        (("report", "none.py:make"), "there is no such file"),
        (("report", "mine.py:number"), "the factory makes no module"),
        (("report", "mine.py:make", "--seq-len", "3"), "this setting has no effect on this model"),
        (("report", "mine.json"), "hf:mine.json names the model in the file"),
    ],
)
def test_what_is_said_of_a_wrong_line(line: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL + "def number():\n    return 3\n", encoding="utf-8")
    done = command(*line, "--progress", "never", cwd=tmp_path)
    assert done.code == 2
    assert said in done.stderr


@pytest.mark.thorough
def test_a_layer_of_attention_and_states_is_not_stepped_on_its_keys_alone() -> None:
    """Without its other states, a step would begin them anew, as a prefill does."""
    falcon = {
        "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 64,
        "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    }  # fmt: skip
    found = counted(falcon, batch=2, seq_len=12)
    assert found.capture.target.stages == ("prefill", "decode")
    keys_and_values = 2 * 2 * 8 * 2
    states = (64 + 2 * 16) * 4 * 2 + 64 * 16 * 4  # 4 positions of the convolution; 16 for each width, in float32
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * (12 * keys_and_values + states)
        assert ledger.stage_total("decode", "kv_cache_bytes") == 2 * keys_and_values
    assert found.verdict == "exact", found.sentence
