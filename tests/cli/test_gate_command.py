"""``costproof gate``: sides, files, exit codes, and how long it takes to decide."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import costproof as cp
from tests.baselines import FOLDER
from tests.support.running import Result, costproof

BASE = str(FOLDER / "llama-3.2-1b.json")
POLICY = """\
costproof_policy: 1
limits:
  - {metric: flops, stage: '*', increase: 1 %}
  - {metric: weight_bytes, budget: 2.5 G}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def run(folder: Path, base: str, head: str, *more: str) -> Result:
    return costproof("-q", "gate", base, head, "--policy", "policy.yaml", *more, cwd=folder)


def test_the_same_passes(folder: Path) -> None:
    done = run(folder, BASE, BASE)
    assert (done.code, done.stdout.splitlines()[0]) == (0, "Passed: 3 checks (llama-3.2-1b at chat).")


def test_a_wider_mlp_does_not_and_says_so_in_every_file(folder: Path) -> None:
    """By hand: 3 products of 2 x 512 x 2048 x 8192 a layer; 1/8 of it more in 16 layers."""
    files = ("g.md", "g.json", "g.xml", "g.sarif")
    done = run(folder, BASE, "llama-3.2-1b@chat,intermediate=9216", *(x for f in files for x in ("-o", f)))
    assert (done.code, done.stderr) == (1, "")
    found = json.loads((folder / "g.json").read_text())
    Draft202012Validator(cp.schema("gate")).validate(found)
    prefill = next(c for c in found["checks"] if c["stage"] == "prefill")
    assert prefill["delta"] == 16 * 3 * 2 * 512 * 2048 * 1024
    assert found["config"]["changed"] == [{"key": "intermediate", "base": 8192, "head": 9216}]
    assert "prefill" in (folder / "g.md").read_text()
    assert "<failure" in (folder / "g.xml").read_text()
    assert '"version": "2.1.0"' in (folder / "g.sarif").read_text()
    assert run(folder, BASE, "llama-3.2-1b@chat,intermediate=9216", "-f", "github").stdout.startswith("::error ")


def test_no_baseline_is_not_a_pass(folder: Path) -> None:
    for base in ("none.json", "main:none.json"):
        done = run(folder, base, BASE)
        assert (done.code, done.stdout) == (3, "")
        assert done.stderr.startswith("error: there is no baseline to compare with")
        assert "costproof capture TARGET --sources analytic -f baseline -o FILE" in done.stderr


def test_what_is_wrong_is_exit_2(folder: Path) -> None:
    (folder / "cut.json").write_text((FOLDER / "llama.json").read_text()[:2000])
    assert run(folder, "cut.json", BASE).code == 2
    assert run(folder, "no-such-target", BASE).code == 2
    assert run(folder, BASE, "none.json").code == 2
    assert run(folder, BASE, BASE, "--today", "tomorrow").code == 2
    (folder / "policy.yaml").write_text(POLICY + "limit: []\n")
    done = run(folder, BASE, BASE)
    assert (done.code, "did you mean limits?" in done.stderr) == (2, True)


def test_it_decides_without_what_counts(folder: Path) -> None:
    """Two files need neither torch nor sympy, which take longer to load than the gate to decide."""
    line = ["gate", BASE, BASE, "--policy", "policy.yaml"]
    code = (
        "import sys\nfrom costproof.cli.main import run\n"
        f"code = run({line!r})\nassert code == 0\n"
        "heavy = {'torch', 'sympy', 'transformers', 'pandas', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
