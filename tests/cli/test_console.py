"""What a person sees: tables on a terminal, less and more of it, and completion in the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.shell_completion import ShellComplete

from costproof.cli import output, progress
from costproof.cli.main import cli
from tests.support.running import Result, costproof, inside
from tests.support.toy import toy, wrong
from tests.support.written import write_capture

CLAIMS = """\
costproof_claims: 1
target: deepseek-ocr
claims:
- {stage: projector, params: 2622720}
- {stage: sam, params: 1}
"""


def on_a_terminal(*arguments: str, cwd: Path, columns: int = 100) -> Result:
    with mock.patch.object(output, "is_terminal", return_value=True):
        return costproof(*arguments, cwd=cwd, columns=columns)


def test_compare_prints_the_table_on_a_terminal(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", wrong())
    shown = on_a_terminal("compare", "c.json", cwd=tmp_path)
    assert shown.code == 1
    assert "Stage" in shown.stdout
    assert "Unexplained" in shown.stdout
    assert "|" not in shown.stdout
    asked = on_a_terminal("compare", "c.json", "-f", "md", cwd=tmp_path)
    assert asked.stdout == costproof("compare", "c.json", "-f", "md", cwd=tmp_path).stdout
    assert "| Stage |" in asked.stdout or "|---" in asked.stdout


def test_check_prints_a_table_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLAIMS, encoding="utf-8")
    shown = on_a_terminal("check", "c.yaml", cwd=tmp_path)
    assert shown.code == 1
    assert "|" not in shown.stdout
    assert [line.split()[:4] for line in shown.stdout.splitlines() if "projector" in line] == [
        ["projector", "params", "2622720", "2,622,720"]
    ]
    assert "1 right" in shown.stdout


@pytest.mark.parametrize("columns", [60, 120])
def test_the_summary_fits_the_terminal(columns: int, tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", toy())
    shown = on_a_terminal("render", "c.json", "-f", "summary", cwd=tmp_path, columns=columns)
    table = shown.stdout.split("Stage", 1)[1].splitlines()[:8]
    assert max(map(len, table)) <= columns


def test_quiet_and_verbose(tmp_path: Path) -> None:
    line = ("capture", "deepseek-ocr", "--preset", "tiny", "--sources", "analytic", "-o", "c.json")
    assert costproof("-q", *line, cwd=tmp_path).stderr == ""
    for flagged in ((*line, "-q"), (line[0], "--quiet", *line[1:])):
        assert costproof(*flagged, cwd=tmp_path).stderr == ""
    assert costproof(*line, "-v", cwd=tmp_path).stderr == costproof("-v", *line, cwd=tmp_path).stderr
    usual = costproof(*line, cwd=tmp_path).stderr.splitlines()
    assert usual == ["load: loading the target", "analytic: evaluating the formulas", "Wrote c.json"]
    assert "analytic: 1 of 1" in costproof("-v", *line, cwd=tmp_path).stderr.splitlines()


def test_a_long_phase_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pieces of twenty seconds: after two of them, forty seconds are gone and two minutes are left."""
    now = iter([0.0, 20.0, 40.0, 60.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(now))
    say = progress._lines()
    for done in range(4):
        say("sizes", done, 8)
    assert capsys.readouterr().err.splitlines() == [
        "sizes: enumerating sizes (0 of 8)",
        "sizes: 2 of 8, about 2:00 left",
    ]


def completed(line: str, cwd: Path) -> set[str]:
    """What the shell offers for the last word."""
    *words, last = line.split(" ")
    with inside(cwd):
        shell: Any = ShellComplete(cli, {}, "costproof", "_COSTPROOF_COMPLETE")
        return {item.value for item in shell.get_completions(words, last)}


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("repo", {"report"}),
        ("report deepseek-o", {"deepseek-ocr", "deepseek-ocr2"}),
        ("report deepseek-ocr --preset gun", {"gundam", "gundam-m"}),
        ("report deepseek-ocr --grid 2x2 --preset ti", {"tiny"}),
        ("report deepseek-ocr --base", {"--base-size"}),
        ("report deepseek-ocr --dtype b", {"bfloat16"}),
        ("report deepseek-ocr --run c", {"cpu", "cuda"}),
        ("explain deepseek-ocr pr", {"projector", "prefill"}),
        ("explain deepseek-ocr sam --metric io", {"io_bytes"}),
        ("counters deepseek-ocr --stage cl", {"clip"}),
        ("render c.json -f static", {"static-md", "static-json"}),
        ("graph c.json -f dot,sv", {"dot,svg"}),
        ("schema disc", {"discrepancy"}),
        ("report nobody --preset t", set()),
    ],
)
def test_completion(line: str, some: set[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == some
