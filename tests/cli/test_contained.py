"""Code of others ends no command and leaves its state alone, wherever it runs: while a target is loaded, built, run."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import costproof as api
from costproof.ledger.errors import BadInput
from tests.support.running import costproof

FORWARD = """
import os, sys, torch
class Ends(torch.nn.Linear):
    def forward(self, x):
        {body}
        return super().forward(x)
def make(): return Ends(4, 4), torch.ones(2, 4)
"""
POLICY = "costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 0}\n"
CLAIMS = "costproof_claims: 1\nclaims:\n  - {stage: total, flops: 64}\n"
LINES = (
    "diff own.py:make own.py:make -f json",
    "gate own.py:make own.py:make --policy policy.yaml",
    "fits own.py:make --memory 1GB",
    "roofline own.py:make --on l4",
    "graph own.py:make -f mmd",
    "derive own.py:make --points 0 --no-cache",
    "check claims.yaml own.py:make",
    "explain own.py:make forward --graph",
    "measure own.py:make --predict --on l4",
)
VERBS: dict[str, Callable[[str], Any]] = {
    "capture": lambda own: api.capture(own, sources=["dynamic"]),
    "report": lambda own: api.report(own, sources=["dynamic"]),
    "diff": lambda own: api.diff(own, own),
    "fits": lambda own: api.fits(own, memory="1GB"),
    "roofline": lambda own: api.roofline(own, on="l4"),
    "graph": lambda own: api.graph(own, "mmd"),
    "derive": lambda own: api.derive(own, no_cache=True),
    "operators": lambda own: api.operators(own, "forward", no_cache=True),
    "measure": lambda own: api.measure(own, on="l4", predict=True),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    return tmp_path


@pytest.mark.parametrize("line", LINES)
def test_a_forward_ends_and_prints_nothing_in_any_command(
    line: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.py").write_text(FORWARD.format(body="print('said'); os.write(1, b'raw'); os._exit(9)"))
    result = costproof(*line.split(), cwd=folder)
    assert (result.code, result.stdout) == (2, ""), result
    assert "own.py:5" in result.stderr
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_forward_that_exits_is_bad_input_in_python(verb: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FORWARD.format(body="sys.exit(0)"))
    with pytest.raises(BadInput) as caught:
        VERBS[verb](f"{tmp_path / 'own.py'}:make")
    assert "own.py:5" in str(caught.value.got)


OWN = """\
import os, signal, sys
import torch
from transformers import PretrainedConfig, PreTrainedModel
class OwnConfig(PretrainedConfig):
    model_type = "own"
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        {body}
        self.layer = torch.nn.Linear(config.width, 6)
        self.post_init()
    def forward(self, x):
        return self.layer(x)
"""
CHANGES = (
    "os.chdir('/'); os.environ['LEFT'] = '1'; sys.path.insert(0, '/left'); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('said')"
)


def snapshot(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "cache"))
    (folder / "own").mkdir()
    (folder / "own/own.py").write_text(OWN.format(body=body))
    automatic = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "own/config.json").write_text(json.dumps({"model_type": "own", "width": 5, "auto_map": automatic}))
    return f"hf:{folder / 'own'}"


@pytest.mark.parametrize("body", ["sys.exit(0)", "os._exit(9)", "raise KeyboardInterrupt"])
def test_remote_code_that_ends_the_program_is_bad_input(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = snapshot(tmp_path, body, monkeypatch)
    result = costproof("roofline", f"{named},input=x=3x5:bfloat16", "--on", "l4", "--trust-remote-code", cwd=tmp_path)
    assert (result.code, result.stdout) == (2, ""), result
    assert "the model's own code failed" in result.stderr
    assert "own.py:13" in result.stderr


def test_remote_code_leaves_the_state_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    named = snapshot(tmp_path, CHANGES, monkeypatch)

    def state() -> tuple[object, ...]:
        path = [p for p in sys.path if not p.startswith(str(tmp_path))]
        return os.getcwd(), os.environ.get("LEFT"), path, signal.getsignal(signal.SIGTERM)

    before = state()
    found = api.capture(named, sources=["static"], input=["x=3x5:bfloat16"], trust_remote_code=True)
    assert found.by_source["static"].total("flops") == 2 * 3 * 5 * 6
    assert state() == before
    assert capfd.readouterr().out == ""


PLUG_IN = """
from mylib_target import Fancy
from costproof.ledger.workload import TargetInfo
class Target(Fancy):
    @classmethod
    def default(cls): return cls()
    {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def info(self): return 5", "int"),
        ("def info(self): return None", "NoneType"),
        ("def info(self): return TargetInfo('x', 'native', '0', None, ('forward',))", "symbols"),
        ("def info(self): raise SystemExit(0)", "SystemExit: 0 (garbage_target.py:7)"),
        ("def workload(self, preset=None, **settings): return 5", "int"),
        ("def invocations(self, workload): return None", "NoneType"),
        ("def invocations(self, workload): return (1, 2)", "int"),
        ("def invocations(self, workload): return 1 / 0", "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("verb", ["report garbage -o r", "diff garbage garbage", "roofline garbage --on l4"])
def test_a_target_that_returns_garbage_is_named(
    verb: str, body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "garbage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: garbage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[costproof.targets]\ngarbage = garbage_target:Target\n")
    (tmp_path / "garbage_target.py").write_text(PLUG_IN.format(body=body))
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "data" / "mylib")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "garbage_target", raising=False)
    result = costproof(*verb.split(), cwd=tmp_path)
    assert (result.code, result.stdout) == (2, ""), result
    assert "garbage = garbage_target:Target (garbage)" in result.stderr
    assert said in result.stderr
