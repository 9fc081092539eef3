"""Checkpoints that transformers itself wrote, in the vendor's layout, come back to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import UnlimitedOcrForConditionalGeneration

from costproof.ledger.errors import BadInput, Problems
from costproof.models.decoding.decoder import config_of
from costproof.models.families.deepseek_ocr import native
from tests.tracers.realistic import deep_config, quiet, small_ocr
from tests.tracers.small import PAGE

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def original() -> nn.Module:
    """A model with numbers that transformers made and initialised."""
    torch.manual_seed(7)
    shape = native.build_model(deep_config(), dtype="float32")
    model: nn.Module = UnlimitedOcrForConditionalGeneration._from_config(config_of(shape), dtype=torch.float32)
    for parameter in model.parameters():
        # Norms are all 1 and biases all 0 after initialisation: that would hide a mix-up.
        nn.init.normal_(parameter)
    return model


@pytest.fixture(scope="module")
def vendor(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of it in one file, as transformers writes it: the vendor's names, one tensor per expert."""
    folder = tmp_path_factory.mktemp("vendor")
    original.save_pretrained(folder)  # type: ignore[operator]
    return folder


def loaded(folder: Path, dtype: str = "float32", **options: Any) -> tuple[nn.Module, tuple[str, ...]]:
    target = small_ocr(deep=True, device="cpu", weights=str(folder), **options)
    built = target.build_run(replace(PAGE, dtype=dtype), quiet)  # type: ignore[arg-type]
    return built.model, built.notes


def edited(vendor: Path, folder: Path, edit: Callable[[Tensors], object]) -> Path:
    tensors = load_file(vendor / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(BadInput) as error:
        loaded(folder)
    return str(error.value)


def test_the_vendor_s_layout_comes_back_to_the_bit(original: nn.Module, vendor: Path) -> None:
    names = set(load_file(vendor / "model.safetensors"))
    assert "model.layers.1.mlp.experts.5.gate_proj.weight" in names
    assert "model.vision_model.transformer.layers.0.self_attn.qkv_proj.weight" in names
    model, notes = loaded(vendor)
    theirs = dict(original.named_parameters())
    assert {n for n, p in model.named_parameters() if not torch.equal(p, theirs[n])} == set()
    assert notes == (f"checkpoint: {len(names)} tensors from 1 file",)


def test_shards_and_another_dtype(original: nn.Module, tmp_path: Path) -> None:
    original.save_pretrained(tmp_path, max_shard_size="300KB")  # type: ignore[operator]
    shards = list(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 3
    model, notes = loaded(tmp_path, "bfloat16")
    for name, parameter in original.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter.to(torch.bfloat16)), name
    total = len(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"])
    assert notes == (
        f"checkpoint: {total} tensors from {len(shards)} files",
        f"{total} tensors converted from float32 to bfloat16",
    )


def test_native_names_load_as_they_are(original: nn.Module, tmp_path: Path) -> None:
    save_file({n: p.detach().contiguous() for n, p in original.named_parameters()}, tmp_path / "model.safetensors")
    model, _ = loaded(tmp_path)
    theirs = dict(original.named_parameters())
    assert all(torch.equal(p, theirs[n]) for n, p in model.named_parameters())


def test_a_cut_model_takes_its_layers_and_leaves_the_others(original: nn.Module, vendor: Path) -> None:
    model, notes = loaded(vendor, layers=2)
    assert torch.equal(
        model.get_parameter("model.language_model.layers.1.mlp.experts.down_proj"),
        original.get_parameter("model.language_model.layers.1.mlp.experts.down_proj"),
    )
    # Decoder layer 2: 4 attention, 2 norms, router, 3 shared, 8 x 3 experts. SAM keeps its layers 0 and 1 of 3:
    # 14 tensors of layer 2. CLIP keeps 2 of 2.
    assert notes[1] == "48 tensors of layers that were cut off stay on disk"


def test_everything_that_does_not_fit_is_told_at_once(vendor: Path, tmp_path: Path) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.projector.layers.bias"] = torch.zeros(7)
        tensors["model.vision_model.transformer.layers.1.self_attn.qkv_proj.bias"] = torch.zeros(190)
        tensors["model.layers.2.mlp.experts.8.up_proj.weight"] = torch.zeros(24, 80)
        tensors["model.layers.2.mlp.experts.7.up_proj.weight"] = torch.zeros(80, 24)
        tensors["model.layers.9.mlp.gate.weight"] = torch.zeros(8, 80)
        tensors["model.surprise"] = torch.zeros(1)

    said = refused(edited(vendor, tmp_path, edit))
    assert "does not fit the model (8 problems)" in said
    for what, where in (
        ("missing experts", "model.language_model.layers.1.mlp.experts.gate_up_proj"),
        ("a missing tensor", "model.language_model.norm.weight"),
        ("a tensor of the wrong shape", "model.projector.layers.bias"),
        ("a tensor of the wrong shape", "model.vision_model.transformer.layers.1.self_attn.qkv_proj.bias"),
        ("an unexpected expert", "model.layers.2.mlp.experts.8.up_proj.weight"),
        ("a tensor of the wrong shape", "model.layers.2.mlp.experts.7.up_proj.weight"),
        ("an unexpected tensor", "model.layers.9.mlp.gate.weight"),
        ("an unexpected tensor", "model.surprise"),
    ):
        assert f"{what}\n  where:    {where}\n" in said
    assert "expected: the up projection of 8 experts\n  got:      none for expert 3" in said
    assert "expected: [80]\n  got:      [7]" in said


def test_the_patch_embedding_that_nothing_runs_is_no_surprise(vendor: Path, tmp_path: Path) -> None:
    name = "model.vision_model.embeddings.patch_embedding.weight"
    _, notes = loaded(edited(vendor, tmp_path, lambda t: t.update({name: torch.zeros(64, 3, 14, 14)})))
    assert notes[1] == f"loaded by nobody, for no code runs it: {name}"


def test_a_damaged_shard(vendor: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((vendor / "model.safetensors").read_bytes()[:5000])
    assert refused(tmp_path).startswith("a shard cannot be read")


def test_an_index_with_a_shard_that_is_not_there(vendor: Path, tmp_path: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors", "lm_head.weight": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors").write_bytes((vendor / "model.safetensors").read_bytes())
    # A path in the index does not lead out of the folder.
    assert f"a shard is missing\n  where:    {tmp_path / 'elsewhere.safetensors'}" in refused(tmp_path)


def test_an_index_without_any_shard_is_one_problem(tmp_path: Path) -> None:
    index = {"weight_map": {f"tensor.{i}": f"../{i}.safetensors" for i in range(61)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    said = refused(tmp_path)
    assert "none of its shards" in said
    assert "  expected: 0.safetensors, 1.safetensors, 10.safetensors, …\n" in said
    assert "more problems" not in said


@pytest.mark.parametrize("text", ["[]", '{"weight_map": 3}', "{"])
def test_an_index_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "index" in refused(tmp_path)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith("the folder holds no checkpoint")
    # Pickles run what they name.
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch here'\ntR.")
    assert refused(tmp_path).startswith("the folder holds no checkpoint")
    assert refused(tmp_path / "none").startswith("there is no such folder")


def test_many_problems_are_counted(vendor: Path, tmp_path: Path) -> None:
    folder = edited(vendor, tmp_path, lambda t: t.update({f"x{i}": torch.zeros(1) for i in range(70)}))
    with pytest.raises(Problems) as error:
        loaded(folder)
    assert "and 10 more problems" in str(error.value)
