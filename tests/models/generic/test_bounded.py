"""Configurations that nothing but transformers reads: bounds of docs/limits.md, at the largest that pass."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.logging_tensor import LoggingTensorMode, capture_logs
from transformers import AutoConfig, AutoModelForCausalLM

from costproof import api
from costproof.configs import guarded_build
from costproof.configs.guarded_build import check_keys
from costproof.ledger import files
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.models.generic import memo
from costproof.models.generic.huggingface import HuggingFace, huggingface
from costproof.models.registry import load_target
from costproof.run.prepare import load_run_target
from costproof.run.request import build_workload

OPT: dict[str, Any] = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 64, "ffn_dim": 128, "vocab_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 64, "max_position_embeddings": 128,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 256,
}  # fmt: skip


def made(**changes: Any) -> HuggingFace:
    return HuggingFace(json.dumps({**OPT, **changes}), "c.json")


def refused(data: object, tmp_path: Path) -> CostproofError:
    """The error of a configuration in a file, from where a command takes it."""
    file = tmp_path / "c.json"
    file.write_text(json.dumps(data))
    with pytest.raises(BadInput) as caught:
        load_target(f"hf:{file}")
    found = caught.value
    assert not isinstance(found, Problems) or str(file) in found.what
    return found.problems[0] if isinstance(found, Problems) else found


@pytest.mark.parametrize("base", [OPT, BERT], ids=["without formulas", "with formulas"])
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"architectures": 5}, "$.architectures"),
        ({"architectures": {"a": 1}}, "$.architectures"),
        ({"architectures": "OPTForCausalLM"}, "$.architectures"),
        ({"architectures": [5]}, "$.architectures"),
        ({"architectures": [None]}, "$.architectures"),
        ({"auto_map": 5}, "$.auto_map"),
        ({"auto_map": ["a"]}, "$.auto_map"),
        ({"auto_map": []}, "$.auto_map"),
        ({"model_type": ""}, "$.model_type"),
        ({"model_type": "x" * 101}, "$.model_type"),
        ({"num_hidden_layers": 10**6}, "$.num_hidden_layers"),
        ({"num_hidden_layers": -1}, "$.num_hidden_layers"),
        ({"text_config": {"num_layers": 1001}}, "$.text_config.num_layers"),
        ({"block_sizes": [4, 4, 3 * 10**7]}, "$.block_sizes[2]"),
        *(
            ({key: [2, 1001]}, f"$.{key}[1]")
            for key in (
                "depths",
                "depth",
                "block_repeats",
                "num_block_repeats",
                "blocks_per_stage",
                "layers_per_block",
                "n_attn_blocks",
                "stage_num_blocks",
                "stage_numb_of_layers",
                "num_layers",
            )
        ),
        ({"num_labels": 3 * 10**7}, "$.num_labels"),
        ({"backbone_config": {"num_classes": 10**9}}, "$.backbone_config.num_classes"),
        ({"hidden_size": 0}, "$.hidden_size"),
        ({"hidden_size": -64}, "$.hidden_size"),
        ({"vocab_size": 2**31}, "$.vocab_size"),
        ({"num_attention_heads": -4}, "$.num_attention_heads"),
        ({"anything": int("9" * 300)}, "$.anything"),
        ({"anything": [[-(2**63)]]}, "$.anything[0][0]"),
        ({"layer_types": ["full_attention"] * 100_001}, "$.layer_types"),
        ({"id2label": {str(n): "a" for n in range(100_001)}}, "$.id2label"),
        ({"name": "x" * 100_001}, "$.name"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_out_of_bounds_is_refused_with_its_place(
    base: dict[str, Any], changes: dict[str, Any], where: str, tmp_path: Path
) -> None:
    assert refused({**base, **changes}, tmp_path).where == where


@pytest.mark.parametrize("value", [5, None, [], {}, True, 0.5])
def test_a_model_type_that_is_no_text(value: object, tmp_path: Path) -> None:
    assert "not a Hugging Face configuration" in refused({**OPT, "model_type": value}, tmp_path).what


def test_the_largest_keys_that_pass() -> None:
    deep: Any = 0
    for _ in range(guarded_build.MOST_LEVELS - 1):
        deep = [deep]
    check_keys(
        {
            "model_type": "x" * 100, "num_hidden_layers": 1_000, "num_labels": 100_000, "vocab_size": 2**31 - 1,
            "hidden_size": 1, "anything": 2**63 - 1, "below": 1 - 2**63, "deep": deep, "name": "x" * 100_000,
            "id2label": {str(n): "a" for n in range(100_000)}, "architectures": None, "auto_map": None,
            # What authors write: no limit, a layer from the end, no layers of a kind, flags where numbers are usual.
            "max_length": 10**30, "model_max_length": 10**30, "vision_feature_layer": -2, "num_kv_shared_layers": 0,
            "depths": [3, 4, 1_000, 3], "cross_attention_layers": [3, -1], "vision_feature_layers": [-2, 8],
            "n_shared_experts": None, "num_labels_smoothed": True, "sliding_window": -1, "pad_token_id": -1,
        },
        "c.json",
    )  # fmt: skip
    with pytest.raises(Problems, match="nested too deep"):
        check_keys({"model_type": "x", "deep": [deep]}, "c.json")


def test_all_problems_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**OPT, "num_labels": -1, "num_layers": 5_000, "architectures": 5}))
    with pytest.raises(Problems) as caught:
        huggingface("", tmp_path / "c.json", trusted=False)
    assert [p.where for p in caught.value.problems] == ["$.architectures", "$.num_labels", "$.num_layers"]


@pytest.mark.parametrize("base", [OPT, BERT], ids=["without formulas", "with formulas"])
def test_bytes_of_a_configuration(base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps(base))
    monkeypatch.setattr(files, "MAX_CONFIGURATION", file.stat().st_size)
    assert load_target(f"hf:{file}").name == base["model_type"]
    monkeypatch.setattr(files, "MAX_CONFIGURATION", file.stat().st_size - 1)
    with pytest.raises(BadInput, match="too large"):
        load_target(f"hf:{file}")


def test_half_a_character(tmp_path: Path) -> None:
    """It would end in an error when a report with it is written."""
    for text, passes in (
        ('"\\ud800"', False),
        ('"\\udc00\\ud800"', False),
        ('"\\ud83d\\ude00"', True),
        ('"\\\\ud800"', True),
    ):
        file = tmp_path / "c.json"
        file.write_text(f'{{"model_type": "opt", "name": {text}}}')
        if passes:
            load_target(f"hf:{file}")
            continue
        with pytest.raises(BadInput, match="unpaired surrogate"):
            load_target(f"hf:{file}")


def test_modules_are_counted_while_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    # All but the model itself are put into another module.
    parts = sum(1 for _ in made().make(None, None).module.modules()) - 1
    monkeypatch.setattr(guarded_build, "MOST_MODULES", parts)
    made().make(None, None)
    monkeypatch.setattr(guarded_build, "MOST_MODULES", parts - 1)
    with pytest.raises(BadInput, match="too many modules") as caught:
        made(num_hidden_layers=2).make(None, None)
    assert caught.value.where == "$.num_attention_heads in c.json"


def test_a_module_for_each_expert_is_within_the_bounds() -> None:
    """Kimi-K2's own code: 61 layers, the first of them dense; an expert has three products and an activation."""
    assert 60 * 384 * (1 + 3 + 1) == 115_200
    experts = {"model_type": "switch_transformers", "d_model": 8, "d_ff": 8, "d_kv": 8, "num_heads": 1, "num_layers": 2,
               "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
               "vocab_size": 9}  # fmt: skip
    assert guarded_build.MOST_MODULES > 2 * 115_200
    built = HuggingFace(json.dumps({**experts, "num_experts": 1_000}), "c.json").make(None, None).module
    assert sum(1 for _ in built.modules()) > 8_000


def test_experts_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that nothing bounds: the modules do."""
    monkeypatch.setattr(guarded_build, "MOST_MODULES", 8_000)  # which takes less than a second
    many = {"model_type": "switch_transformers", "d_model": 8, "d_ff": 8, "num_experts": 10**9, "vocab_size": 9}
    with pytest.raises(BadInput, match="too many modules") as caught:
        HuggingFace(json.dumps(many), "c.json").make(None, None)
    assert caught.value.exit_code == 2


def test_elements_are_counted_while_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made(tie_word_embeddings=False).make(None, None).module
    elements = sum(t.numel() for t in (*module.parameters(), *module.buffers()))
    monkeypatch.setattr(guarded_build, "MOST_ELEMENTS", elements)
    made(tie_word_embeddings=False).make(None, None)
    monkeypatch.setattr(guarded_build, "MOST_ELEMENTS", elements - 1)
    with pytest.raises(BadInput, match="the model is too large"):
        made(tie_word_embeddings=False).make(None, None)


def test_a_size_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"max_position_embeddings": 2**31 - 1 - 2}  # the class of OPT adds two
    assert any(2**31 - 1 in p.shape for p in made(**rows).make(None, None).module.parameters())
    monkeypatch.setattr(guarded_build, "LARGEST", 2**31 - 2)
    with pytest.raises(BadInput, match="a dimension of a tensor is too large"):
        made(**rows).make(None, None)
    monkeypatch.setattr(guarded_build, "LARGEST", 255)
    with pytest.raises(BadInput, match="a dimension of a tensor is too large") as caught:
        made().make(None, None)
    assert caught.value.where == "$.vocab_size in c.json"


def test_seconds_of_building(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", iter(range(0, 10**6, 30)).__next__)
    monkeypatch.setattr(time, "monotonic", iter(range(0, 10**6, 30)).__next__)
    with pytest.raises(BadInput, match="too long to build"):
        made().make(None, None)


def test_what_another_module_counts_is_not_counted_here() -> None:
    """The hooks are gone when a model is built, or is not."""
    from torch.nn.modules import module

    made().make(None, None)
    with pytest.raises(CostproofError):
        made(num_attention_heads=3).make(None, None)
    kinds = ("module", "parameter", "buffer")
    assert not any(getattr(module, f"_global_{kind}_registration_hooks") for kind in kinds)


def test_layers_that_take_too_long_to_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert guarded_build.MOST_COUNTED == 256
    monkeypatch.setattr(guarded_build, "MOST_COUNTED", 3)
    file = tmp_path / "c.json"
    for layers in (3, 4):
        file.write_text(json.dumps({**OPT, "num_hidden_layers": layers}))
        if layers == 3:
            assert api.workload(f"hf:{file}").batch == 1
            continue
        with pytest.raises(BadInput, match="too many layers to count them all") as caught:
            api.workload(f"hf:{file}")
        assert caught.value.where == f"$.num_hidden_layers in {file}"
        assert "--layers 2" in str(caught.value.fix)
        asked = api.request(f"hf:{file}", layers=2)
        assert build_workload(load_run_target(asked), asked.workload).batch == 1


def test_experts_in_a_list_are_not_layers() -> None:
    with torch.device("meta"):
        layer = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(300))})
        guarded_build.check_depth(nn.ModuleDict({"layers": nn.ModuleList([layer])}), {}, "c.json")
        deep = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(2, 2) for _ in range(257))})
    with pytest.raises(BadInput) as caught:
        guarded_build.check_depth(deep, {}, "c.json")
    assert caught.value.where == "layers in c.json"


MAMBA: dict[str, Any] = {
    "model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 16, "state_size": 4,
    "num_hidden_layers": 2, "vocab_size": 32, "time_step_rank": 2, "conv_kernel": 4, "expand": 2, "dtype": "float32",
}  # fmt: skip
"""Without its kernels the class scans the tokens one after another."""


def test_a_loop_over_tokens_shortens_the_default_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators of a third length, counted by a mode of the test, are those of the line through two."""
    file = tmp_path / "c.json"
    file.write_text(json.dumps(MAMBA))
    assert api.workload(f"hf:{file}").text_tokens == 512  # few operators
    monkeypatch.setattr(memo, "USUAL_OPERATORS", 400)
    monkeypatch.setattr(memo, "MOST_OPERATORS", 1_000)
    memo._growth.cache_clear()
    with contextlib.ExitStack() as undo:
        undo.callback(memo._growth.cache_clear)
        usual = api.workload(f"hf:{file}").text_tokens
        counted = {n: operators(n) for n in (usual, 2 * usual, 40)}
        assert counted[usual] <= 400 < counted[2 * usual]
        report = api.report(f"hf:{file}", sources=["static"])
        [note] = [n for n in report.capture.ledger("static").notes if "loops over the tokens" in n]
        assert f"the prompt has {usual}, and 512 would have" in note
        with pytest.raises(Problems) as caught:
            api.workload(f"hf:{file}", seq_len=512)
        [problem] = caught.value.problems
        assert problem.where == "--seq-len 512"
        per_token = (counted[40] - counted[usual]) // (40 - usual)
        at_512 = counted[40] + (512 - 40) * per_token
        assert str(problem.got) == f"{at_512:,}, {per_token:,} of them for each token"


def operators(length: int) -> int:
    """Count the operators of a run on meta, with torch's own log of operators."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MAMBA)).to("meta").eval()
    logged: Any = LoggingTensorMode
    with torch.no_grad(), logged(), capture_logs() as log:
        model(input_ids=torch.zeros(1, length, dtype=torch.long, device="meta"))
    return sum(" = torch._ops." in line for line in log)
