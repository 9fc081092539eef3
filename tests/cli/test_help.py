"""The help of every command, and how light it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from costproof.cli.main import COMMANDS, cli
from tests.conftest import Golden
from tests.support.running import costproof

SRC = Path(__file__).parents[2] / "src"
HEAVY = ("torch", "transformers", "torchlens", "sympy", "pandas", "rich", "pydantic", "numpy")


def test_help(golden: Golden, tmp_path: Path) -> None:
    golden("help/costproof.txt", costproof("--help", cwd=tmp_path).stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, golden: Golden, tmp_path: Path) -> None:
    result = costproof(command, "--help", cwd=tmp_path)
    assert result.code == 0
    golden(f"help/{command}.txt", result.stdout)


def test_exit_codes_are_documented(tmp_path: Path) -> None:
    text = costproof("--help", cwd=tmp_path).stdout
    for word in ("0 all exact or explained", "1 findings", "2 wrong usage", "3 incomplete", "70 a bug"):
        assert word in text


def _python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def _imported(code: str) -> set[str]:
    names = _python(f"import sys\n{code}\nprint('\\n' + ' '.join(m for m in {HEAVY!r} if m in sys.modules))")
    return set(names.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    assert _imported("from costproof.cli.main import run; run(['--help'])") == set()


def test_help_of_every_command_imports_nothing_heavy() -> None:
    assert _imported(f"from costproof.cli.main import run\nfor c in {list(COMMANDS)!r}: run([c, '--help'])") == set()


def test_import_costproof_imports_nothing_heavy() -> None:
    assert _imported("import costproof; dir(costproof)") == set()


def test_explain_and_render_need_no_torch() -> None:
    code = (
        "from costproof.cli.main import run\n"
        "run(['explain', 'deepseek-ocr', 'clip']); run(['workloads']); run(['targets']);"
        " run(['ops']); run(['doctor'])\n"
        "on = ['deepseek-ocr', '--on', 'l4']; run(['machines']); run(['roofline', *on]); run(['fits', *on])"
    )
    assert not _imported(code) & {"torch", "transformers", "torchlens", "pandas"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_there_twice(name: str) -> None:
    """Click warns only, and takes the last."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    names = [n for p in command.params for n in (*p.opts, *p.secondary_opts)]
    assert sorted(names) == sorted(set(names))
