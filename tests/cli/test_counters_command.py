"""``costproof counters`` and ``report --counters`` as people run them: nothing is patched, all stages of the real
target at a small configuration, every process a real one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.models.test_config import shallow_config
from tests.support.running import costproof
from tests.tracers.test_counter_processes import stubs as stubs

SMALL = ("deepseek-ocr", "--config", "small.json", "--preset", "tiny")
"""One view of 512 pixels: 8 x 8 vision tokens and 9 more, one step of decode."""


RULES = """
import os
import costproof


@costproof.operator_rule("nobody.runs_this")
def rule(op): ...


with open("rules.seen", "a") as seen:
    print(os.getpid(), file=seen)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the small configuration."""
    (tmp_path / "small.json").write_text(json.dumps(shallow_config().native()))
    return tmp_path


def whole(text: str) -> str:
    """The text, in which nothing shows that a value was missing."""
    assert not re.search(r"\b(None|nan|null)\b", text), text
    return text


def test_counters_of_all_stages(folder: Path) -> None:
    (folder / "rules.py").write_text(RULES)
    asked = ("--only", "FlopCounterMode,fvcore", "--add", "head@prefill=1", "--rules", "rules.py")
    done = costproof("counters", *SMALL, *asked, cwd=folder)
    assert done.code == 1, done.stderr  # 1 FLOP is no number of the prefill
    assert len({*(folder / "rules.seen").read_text().split()} - {str(os.getpid())}) == 3, "the truth and two tools"
    text = whole(done.stdout)
    assert "The truth equals the closed formulas in 5 of 5 invocations." in text
    for place in ("sam[global]", "clip[global]", "projector[global]", "prefill[prompt]", "decode[steps]"):
        assert f"\n{place}\n" in text


SHARED = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = self.b = torch.nn.Linear(64, 64)
    def forward(self, x):
        return self.b(self.a(x))
def make():
    return Net(), torch.ones(5, 64)
"""


def test_counters_of_a_target_without_formulas(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SHARED)
    asked = ("--only", "FlopCounterMode", "--add", "mine@forward=40960")  # 2 x 5 x 64 x 64 multiply-accumulates
    done = costproof("counters", "net.py:make", *asked, cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    text = whole(done.stdout)
    assert re.search(r"FlopCounterMode +\S+ +flop +81.92 k +81.92 kFLOP .* exact\n", text)
    assert re.search(r"mine.*explained", text)
    assert "The target has no formulas that the truth could be checked with." in text


@pytest.mark.thorough
def test_a_report_with_counters(folder: Path) -> None:
    done = costproof("report", *SMALL, "--sources", "analytic,static", "--counters", "FlopCounterMode", "-o", "out",
                     cwd=folder)  # fmt: skip
    assert done.code == 0, done.stderr
    page = whole((folder / "out" / "counters.md").read_text())
    assert "- The truth equals the closed formulas in 5 of 5 invocations." in page
    data = json.loads((folder / "out" / "counters.json").read_text())
    assert {f["residual"] for f in data["compared"]["findings"]} == {0}
    assert "Third-party counters: 1 tool" in (folder / "out" / "discrepancy.md").read_text()


def test_a_counter_that_fails_is_told_everywhere(tmp_path: Path, stubs: None) -> None:
    folder = tmp_path
    (folder / "net.py").write_text(SHARED)
    asked = ("--sources", "static", "--counters", "raises", "-o", "out")
    done = costproof("report", "net.py:make", *asked, cwd=folder)
    why = "the counter raises failed: "
    assert done.code == 3
    assert f"incomplete: {why}forward[forward]: " in done.stderr
    assert f"\n  {why}forward[forward]: " in done.stdout
    assert "ValueError: no rule for this" in whole((folder / "out" / "counters.md").read_text())
    again = costproof("compare", "out/capture.json", cwd=folder)
    assert again.code == 3


def test_a_truth_that_fails_is_told_everywhere(folder: Path) -> None:
    asked = ("--stage", "projector", "--only", "FlopCounterMode", "--timeout", "1")
    done = costproof("counters", *SMALL, *asked, cwd=folder)
    why = "is unknown: projector[global]: took longer than 1 s; costproof counters --timeout allows more"
    assert done.code == 3
    assert f"incomplete: the truth {why}" in done.stderr
    assert f"The truth {why}" in whole(done.stdout)
    assert "Traceback" not in done.stderr


def test_a_counter_that_is_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.tracers.counters.protocol.installed", lambda package: None)
    done = costproof("counters", *SMALL, "--only", "thop", cwd=folder)
    assert done.code == 3
    assert "a counter is not installed" in done.stderr
    assert "pip install " in done.stderr
