"""What ``costproof doctor`` says of a machine, from files and metadata alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from costproof.ledger import extras
from costproof.ledger.environment import installed
from costproof.models import flash_attention
from costproof.run import machine
from costproof.tracers.counters import registry
from tests.cli.running import costproof, files
from tests.reports.toy import toy
from tests.written import write_capture


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
        "fvcore, FlopCounterMode, torchlens, torch.profiler, thop; "
        "missing calflops, deepspeed, ptflops, onnx, torchinfo"
    )


@pytest.mark.parametrize(
    ("transformers", "said"),
    [
        ("5.23.0", "ready"),
        ("4.57.1", "for vendor snapshots alone: native classes need transformers 5"),
        ("4.46.3", "for vendor snapshots alone: native classes need transformers 5"),
        (None, "missing transformers"),
    ],
)
def test_doctor_says_what_an_old_transformers_is_for(
    transformers: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the counts of native classes end with 3."""
    others = {p: installed(p) for p in machine.NEEDED_FOR}
    monkeypatch.setattr(machine, "installed", {**others, "transformers": transformers}.get)
    assert {machine.doctor().sources[s] for s in ("static", "dynamic")} == {said}


@pytest.mark.parametrize(
    "line",
    ["derive deepseek-ocr projector", "derive torch.nn:Identity", "derive hf:bert", "prove gpt2", "counters gpt2",
     "report gpt2", "capture gpt2 -o c.json"],
)  # fmt: skip
def test_without_torch_a_command_says_so_at_once(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started, and nothing is written."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(extras, "installed", lambda name: None if name == "torch" else "1")
    monkeypatch.setattr(subprocess, "Popen", refused)
    done = costproof(*line.split(), cwd=tmp_path)
    assert (done.code, done.stdout, files(tmp_path)) == (3, "", []), done.stderr
    assert "not installed" in done.stderr
    assert "torch" in done.stderr


@pytest.mark.parametrize("name", ["static-md", "summary", "discrepancy-md"])
def test_a_capture_without_invocations_is_bad_input(name: str, tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", replace(toy(), invocations=()))
    assert costproof("render", "c.json", "-f", name, cwd=tmp_path).code == 2
