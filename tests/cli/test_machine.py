"""What ``costproof doctor`` says of a machine, from files and metadata alone."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from costproof.models import flash_attention
from costproof.run import machine
from costproof.tracers.counters import registry


def torch_in(folder: Path, *libraries: str) -> ModuleSpec:
    (folder / "torch" / "lib").mkdir(parents=True)
    for name in libraries:
        (folder / "torch" / "lib" / name).touch()
    spec = ModuleSpec("torch", None, is_package=True)
    spec.submodule_search_locations = [str(folder / "torch")]
    return spec


@pytest.mark.parametrize(
    ("libraries", "devices", "said"),
    [
        (["libtorch_cpu.so"], ["nvidia0"], "no: this torch is built without it"),
        (["libtorch_cuda.so"], [], "no: no device here"),
        (["libtorch_cuda.so"], ["nvidia0", "nvidiactl", "nvidia-uvm"], "1 device; checked at --run cuda"),
        (["libtorch_cuda.so"], ["nvidia0", "nvidia1"], "2 devices; checked at --run cuda"),
    ],
)
def test_cuda(
    libraries: list[str], devices: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = torch_in(tmp_path, *libraries)
    monkeypatch.setattr(machine, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "dev").mkdir()
    for name in devices:
        (tmp_path / "dev" / name).touch()
    assert machine.cuda_line(tmp_path / "dev") == said


def test_cuda_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.cuda_line() == "no: missing torch"


@pytest.mark.parametrize(("kernels", "said"), [(True, "kernels compiled"), (False, "shapes alone")])
def test_flash(kernels: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "missing", lambda: "")
    monkeypatch.setattr(machine, "find_spec", lambda name: ModuleSpec(name, None) if kernels else None)
    assert said in machine.flash_line()


def test_flash_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "installed", lambda package: None)
    assert machine.flash_line() == (
        f"no flash_attention_2: flash-attn is not installed; {flash_attention.WITHOUT_CUDA}"
    )


def test_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ("torch", "torchlens", "fvcore", "ultralytics-thop")
    monkeypatch.setattr(registry, "installed", lambda package: "1" if package in here else None)
    assert machine.counters_line() == (
        "fvcore, FlopCounterMode, torchlens, torch.profiler, thop; missing calflops, deepspeed, ptflops, torchinfo"
    )
