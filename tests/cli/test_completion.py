"""What a shell completes: values of options and sides, and no code of anybody else runs meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from click.shell_completion import ShellComplete

from costproof.cli.main import cli


def completed(line: str) -> list[str]:
    """The values that are offered for the last word of a line; ``<file>`` where the shell completes files."""
    *words, last = line.split(" ")
    with mock.patch.dict(os.environ, {}):
        shell = ShellComplete(cli, {}, "costproof", "_COSTPROOF_COMPLETE")
        found = shell.get_completions(words, last)
    return ["<file>" if item.type == "file" else item.value for item in found]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("report deepseek-ocr --sources ", ["analytic", "static", "dynamic", "isolated"]),
        ("report deepseek-ocr --sources static,d", ["static,dynamic"]),
        ("report deepseek-ocr --counters f", ["fvcore"]),
        ("report deepseek-ocr --counters al", ["all"]),
        ("counters deepseek-ocr --only fvcore,th", ["fvcore,thop"]),
        ("plot c.json --only r", ["roofline"]),
        ("sweep deepseek-ocr --metric flops,kv_c", ["flops,kv_cache_bytes"]),
        ("sweep deepseek-ocr --over base", ["base_size="]),
        ("sweep deepseek-ocr --stage pro", ["projector"]),
        ("counters deepseek-ocr --stage cl", ["clip"]),
        ("explain deepseek-ocr projector --metric weight_b", ["weight_bytes"]),
        ("diff llama-3.1-8", ["llama-3.1-8b"]),
        ("diff llama-3.1-8b llama-3.1-70", ["llama-3.1-70b"]),
        ("diff deepseek-ocr@gun", ["deepseek-ocr@gundam", "deepseek-ocr@gundam-m"]),
        ("gate llama-3.1-8b llama-3.1-70", ["llama-3.1-70b"]),
        ("diff out/cap", ["<file>"]),
        ("report docs/ex", ["<file>"]),
        ("report hf:docs/ex", ["<file>"]),
        ("report deepseek-ocr --preset docs", []),
        ("roofline deepseek-ocr --on h100-s", ["h100-sxm"]),
        ("compare c.json -f mod", ["modules"]),
        ("schema req", ["request.yaml"]),
    ],
)
def test_values(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize(
    "line", ["explain mine.py:make ", "counters mine.py:make --stage ", "sweep mine.py:make --over ",
             "report mine.py:make --preset ", "diff mine.py:make@", "report mine.py:make --"]
)  # fmt: skip
def test_no_code_of_a_target_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("open('ran', 'w')\ndef make():\n    open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    completed(line)
    assert not (tmp_path / "ran").exists()


BASH = """\
eval "$(_COSTPROOF_COMPLETE=bash_source costproof)"
while read -r line; do
    COMPREPLY=() COMP_LINE=$line COMP_POINT=${#line} COMP_WORDBREAKS='@=:;|&<>()'
    _costproof_completion costproof
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path) -> None:
    """As it is sourced by a person: nothing but what fits is printed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    lines = (
        "costproof report deepseek-ocr --sources ana",
        "costproof report deepseek-ocr --sources=static,ana",
        "costproof diff llama-3.1-8b deepseek-ocr@gun",
        "costproof sweep deepseek-ocr --over base",
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH], input="\n".join((*lines, "")), capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PATH": path}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    # Bash has split the line at @ and =, and puts the rest of the word in place of what is behind them.
    assert done.stdout.splitlines() == ["analytic", "static,analytic", "gundam gundam-m", "base_size="]
