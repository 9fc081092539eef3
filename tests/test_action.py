"""The action, the hook and the workflows of docs/gate.md, as far as they can be tried without GitHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from costproof.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
ACTION = ROOT / ".github" / "actions" / "gate"
BASE = ROOT / "baselines" / "llama-3.2-1b.json"
POLICY = "costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 0}\n"


def run(folder: Path, base: str, head: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The script of the action, with an environment such as a runner makes."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "costproof"
    # The diff has tests of its own; here it is a line, to save its time.
    diff = 'if [ "$2" = diff ]; then for file; do :; done; echo "# diff" > "$file"; exit; fi'
    program.write_text(f'#!/bin/sh\n{diff}\nexec "{sys.executable}" -m costproof "$@"\n')
    program.chmod(0o755)
    (folder / "policy.yaml").write_text(POLICY)
    paths = {
        "RUNNER_TEMP": folder / "temp",
        "GITHUB_STEP_SUMMARY": folder / "summary",
        "GITHUB_OUTPUT": folder / "output",
    }
    env = {**os.environ, **{k: str(v) for k, v in paths.items()}, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    env |= {"BASE": base, "HEAD": head, "POLICY": "policy.yaml", "CONFIG": ""}
    line = ["bash", str(ACTION / "gate.sh")]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True), folder / "temp" / "costproof-gate"


def test_the_script_writes_all_files_and_ends_as_the_gate(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(BASE.read_text().replace("274877906944", "274877906945", 1))
    done, files = run(tmp_path, str(BASE), str(other))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error file=policy.yaml,line=3,title=costproof gate::total: FLOPs +1 FLOP")
    assert {p.name for p in files.iterdir()} >= {"gate.md", "gate.json", "gate.xml", "gate.sarif", "diff.md"}
    assert (tmp_path / "summary").read_text().endswith("\n# diff\n")
    assert (tmp_path / "output").read_text() == f"folder={files}\nexit-code=1\n"


def test_no_baseline_fails_the_step_with_an_annotation(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "$(touch hacked).json", str(BASE))
    assert done.returncode == 3
    assert done.stdout == "::error title=costproof gate::error: there is no baseline to compare with\n"
    assert not (tmp_path / "hacked").exists()


def test_the_action_takes_its_inputs_through_the_environment() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    steps: list[dict[str, Any]] = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert all("shell" in s for s in steps if "run" in s)
    assert not [s for s in steps if "${{" in s.get("run", "")]
    named = set(re.findall(r"inputs\.([a-z-]+)", (ACTION / "action.yml").read_text()))
    assert named == set(action["inputs"])


def test_the_hook_runs_a_command_that_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, command = hook["entry"].split()
    assert (program, hook["language"], hook["pass_filenames"]) == ("costproof", "python", False)
    assert command in COMMANDS


BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "gate.md").read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_yaml_of_the_page_is_whole_and_no_workflow_lends_its_rights(block: str) -> None:
    data = yaml.safe_load(block)
    assert isinstance(data, dict)
    assert "pull_request_target" not in block
    if "workflow_run" in block:
        assert "checkout" not in block
