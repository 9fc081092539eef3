"""A checkpoint in the model of a snapshot: by name, to the bit, or refused before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from costproof.ledger.errors import Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import run_options
from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr
from tests.models.vendor import SMALL, SNAPSHOT


def built(weights: Path, **options: object) -> tuple[nn.Module, tuple[str, ...]]:
    target = RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True).with_options(
        run_options({"run": "cpu", "weights": str(weights), **options})
    )
    made = target.build_run(target.workload(**SMALL), silent)
    return made.model, made.notes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every parameter by its own name, each filled with numbers that no other has."""
    target = RemoteCodeOcr.from_folder(SNAPSHOT, trusted=True)
    model = target.build(target.workload(**SMALL))
    tensors, start = {}, 0
    for name, parameter in model.named_parameters():
        tensors[name] = torch.arange(start, start + parameter.numel(), dtype=torch.float32).view(parameter.shape)
        start += parameter.numel()
    folder = tmp_path_factory.mktemp("weights")
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_every_parameter_to_the_bit(checkpoint: Path) -> None:
    model, notes = built(checkpoint)
    saved = load_file(checkpoint / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert set(saved) == set(parameters)
    assert all(torch.equal(saved[name], parameter) for name, parameter in parameters.items())
    assert notes[:2] == (
        "the vendor's code with the weights of a checkpoint",
        f"checkpoint: {len(saved)} tensors from 1 file",
    )


def test_a_cut_decoder_leaves_its_last_layer_on_disk(checkpoint: Path) -> None:
    model, notes = built(checkpoint, layers=2)
    left = [n for n in load_file(checkpoint / "model.safetensors") if n.startswith("model.layers.2.")]
    assert len(list(model.named_parameters())) + len(left) == len(load_file(checkpoint / "model.safetensors"))
    assert f"{len(left)} tensors of layers that were cut off stay on disk" in notes


def test_what_does_not_fit_is_told_at_once(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    tensors["model.layers.0.mlp.experts.0.up_proj.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(Problems) as error:
        built(tmp_path)
    assert {(str(p).splitlines()[0].strip(), p.where) for p in error.value.problems} == {
        ("the checkpoint lacks a tensor of the model", "lm_head.weight"),
        ("a tensor of the wrong shape", "model.norm.weight"),
        ("the checkpoint has a tensor that the model lacks", "model.layers.0.mlp.experts.0.up_proj.weight"),
    }
