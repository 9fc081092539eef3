"""What ``costproof doctor`` says of a machine, from files and metadata alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from costproof.ledger import environment
from costproof.ledger.environment import installed
from costproof.ledger.offline import offline
from costproof.patches import flash_attention
from costproof.run import doctor
from costproof.tracers.counters import protocol as registry
from tests.support.running import costproof, files
from tests.support.toy import toy
from tests.support.written import write_capture


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
    monkeypatch.setattr(doctor, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "dev").mkdir()
    for name in devices:
        (tmp_path / "dev" / name).touch()
    assert doctor.cuda_line(tmp_path / "dev") == said


def test_cuda_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.cuda_line() == "no: missing torch"


@pytest.mark.parametrize(("kernels", "said"), [(True, "kernels compiled"), (False, "shapes alone")])
def test_flash(kernels: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "missing", lambda: "")
    monkeypatch.setattr(doctor, "find_spec", lambda name: ModuleSpec(name, None) if kernels else None)
    assert said in doctor.flash_line()


def test_flash_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "installed", lambda package: None)
    assert doctor.flash_line() == (f"no flash_attention_2: flash-attn is not installed; {flash_attention.WITHOUT_CUDA}")


def test_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ("torch", "torchlens", "fvcore", "ultralytics-thop")
    monkeypatch.setattr(registry, "installed", lambda package: "1" if package in here else None)
    assert doctor.counters_line() == (
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
    others = {p: installed(p) for p in doctor.NEEDED_FOR}
    monkeypatch.setattr(doctor, "installed", {**others, "transformers": transformers}.get)
    assert {doctor.doctor().sources[s] for s in ("static", "dynamic")} == {said}


@pytest.mark.parametrize(
    "line",
    ["derive deepseek-ocr projector", "derive torch.nn:Identity", "derive hf:bert", "prove gpt2", "counters gpt2",
     "report gpt2", "capture gpt2 -o c.json"],
)  # fmt: skip
def test_without_torch_a_command_says_so_at_once(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started, and nothing is written."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(environment, "installed", lambda name: None if name == "torch" else "1")
    monkeypatch.setattr(subprocess, "Popen", refused)
    done = costproof(*line.split(), cwd=tmp_path)
    assert (done.code, done.stdout, files(tmp_path)) == (3, "", []), done.stderr
    assert "not installed" in done.stderr
    assert "torch" in done.stderr


@pytest.mark.parametrize("name", ["static-md", "summary", "discrepancy-md"])
def test_a_capture_without_invocations_is_bad_input(name: str, tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", replace(toy(), invocations=()))
    assert costproof("render", "c.json", "-f", name, cwd=tmp_path).code == 2


def test_doctor_loads_each_plug_in_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loads, one fails, one ends its process as if nothing were wrong; each is said, and the next is tried."""
    (tmp_path / "theirs.py").write_text(
        "print('noise')\nfrom costproof.reports.outputs import OUTPUTS\ngood = OUTPUTS[0]\n"
    )
    (tmp_path / "broken.py").write_text(
        "import sys\nprint('noise', file=sys.stderr)\nraise ValueError('no such key')\n"
    )
    (tmp_path / "leaves.py").write_text("import os\nprint('noise')\nos._exit(0)\n")
    points = "[costproof.outputs]\na = theirs:good\nb = broken:x\nc = leaves:x\n[costproof.hardware]\nd = theirs:good\n"
    info = tmp_path / "mine-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {p.name: p for p in doctor.plugins() if p.owner == "mine 1.2"}
    assert {name: p.group for name, p in found.items()} == {
        "a": "costproof.outputs", "b": "costproof.outputs", "c": "costproof.outputs", "d": "costproof.hardware",
    }  # fmt: skip
    assert found["a"].problem == ""
    assert "no such key" in found["b"].problem
    assert "SystemExit: os._exit (leaves.py:3)" in found["c"].problem
    assert "Output, not a Device" in found["d"].problem
    monkeypatch.setattr(doctor, "_problem", lambda kind, name: "" if name == "a" else "no")
    said = costproof("doctor", cwd=tmp_path).stdout
    assert "costproof.outputs: a = theirs:good (mine 1.2): loads\n" in said
    assert "costproof.outputs: b = broken:x (mine 1.2): cannot be loaded: no\n" in said


def test_doctor_says_what_is_missing_of_each_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("matplotlib", "mkdocs")
    for place in (doctor, environment):
        monkeypatch.setattr(place, "installed", lambda name: None if name in absent else installed(name))
    found = {e.name: e for e in doctor.doctor().extras}
    assert set(found) == {"counters", "docs", "flash", "image", "onnx", "plot", "quantised", "sweep", "trace"}
    assert found["plot"].packages["matplotlib"] is None
    assert found["plot"].add == "pip install 'matplotlib>=3.9'"
    assert found["sweep"].add == ""
    text = costproof("doctor", cwd=tmp_path).stdout
    assert "matplotlib missing" in text
    assert "to add: pip install 'mkdocs>=1.6'" in text


def test_doctor_says_where_exports_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.json.gz").write_bytes(b"x" * 1500)
    monkeypatch.setenv("COSTPROOF_CACHE", str(tmp_path))
    assert doctor.cache_line() == f"{tmp_path}: 1 file, 1.50 kB"
    monkeypatch.setenv("COSTPROOF_CACHE", "")
    assert doctor.cache_line() == "nothing is kept"


def test_doctor_says_that_nothing_is_downloaded_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    (line,) = (x for x in costproof("doctor", cwd=tmp_path).stdout.splitlines() if x.startswith("offline:"))
    with offline():
        there = {name: os.environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    assert there == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert all(f"{name}={value}" in line for name, value in there.items())
    assert "always" in line
