"""What -o may name: never an input, however it is spelled, and nothing that would be lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import write_capture

QWEN = Path(__file__).parents[2] / "docs" / "examples" / "qwen3.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a capture under several names, and a configuration."""
    (tmp_path / "out").mkdir()
    write_capture(tmp_path / "out" / "capture.json", toy())
    os.link(tmp_path / "out" / "capture.json", tmp_path / "hard.json")
    (tmp_path / "soft.json").symlink_to("out/capture.json")
    shutil.copy(QWEN, tmp_path / "config.json")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "compare out/capture.json -o out/capture.json",
        "compare out/capture.json -o hard.json",
        "compare out/capture.json -o soft.json",
        "compare soft.json -o out/../out/capture.json",
        "compare out -o out/capture.json",
        "render out -f html -o hard.json",
        "diff out/capture.json hard.json -o out/capture.json",
        "capture hf:config.json -o config.json",
        "capture hf:. -o config.json",
        "explain hf:config.json prefill -f text -o config.json",
        "roofline hf:config.json --on l4 -o config.json",
        "fits hf:config.json --on l4 -o ./config.json",
        "sweep hf:config.json --over batch=1,2 -o config.json",
    ],
)
def test_an_input_is_not_overwritten(folder: Path, line: str) -> None:
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    done = costproof(*line.split(), cwd=folder)
    assert (done.code, done.stdout) == (2, ""), done.stderr
    assert "error: the output is one of the inputs" in done.stderr
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_a_read_only_file_is_refused_before_any_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.run.report.count_sources", None)
    (folder / "mine.json").write_text("mine")
    (folder / "mine.json").chmod(0o444)
    done = costproof("capture", "deepseek-ocr", "-o", "mine.json", cwd=folder)
    assert (done.code, "the file is read-only" in done.stderr) == (2, True)
    assert (folder / "mine.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "name", "work"),
    [
        ("plot out", "shares.svg", "costproof.reports.plots.bars.draw_shares"),
        ("graph out -f svg,dot", "callgraph.dot", "costproof.api.drawable"),
        ("report deepseek-ocr -o out", "report.html", "costproof.run.report.count_sources"),
        ("prove vit-l-16 -o out", "certificate.md", "costproof.run.proof.carry_out_proof"),
        ("sweep bert --over batch=1,2 -o out/s.csv", "s.svg", "costproof.run.sweep.Sweep.write"),
    ],
)
def test_a_link_out_of_the_folder_is_refused_before_any_work(
    folder: Path, line: str, name: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine").write_text("mine")
    (folder / "out" / name).symlink_to("../mine")
    monkeypatch.setattr(work, Mock(side_effect=AssertionError("it began")))
    done = costproof(*line.split(), cwd=folder)
    assert (done.code, "a link leads out of the folder" in done.stderr) == (2, True), done.stderr
    assert (folder / "mine").read_text() == "mine"


def test_a_gate_writes_again_what_it_wrote(folder: Path) -> None:
    (folder / "policy.yaml").write_text("costproof_policy: 1\nlimits:\n  - {metric: kv_cache_bytes, increase: 0}\n")
    for _ in range(2):
        line = ("gate", "out", "hard.json", "--policy", "policy.yaml", "-o", "gate.md", "-o", "gate.json")
        done = costproof(*line, cwd=folder)
        assert "Wrote gate.json" in done.stderr


def test_other_files_of_a_folder_that_is_read_may_be_written(folder: Path) -> None:
    for _ in range(2):
        assert costproof("compare", "out", "-f", "md", "-o", "out/differences.md", cwd=folder).code == 0


@pytest.mark.parametrize(
    "line",
    [
        "gate a.json b.json --policy p.yaml -o gate.jsn", "diff a.json b.json -o d.jsn", "compare c.json -o c.jsn",
        "roofline a.json --on l4 -o r.jsn", "fits a.json --on l4 -o f.jsn", "machine l4 -o m.jsn",
        "check c.yaml -o c.jsn", "peaks bert -o p.jsn", "counters bert -o c.jsn", "measure bert -o m.jsn",
        "explain bert total -o e.hml",
    ],
)  # fmt: skip
def test_an_ending_that_no_format_has_is_refused_before_work(line: str, tmp_path: Path) -> None:
    """A typing error would be a text in a file that a program reads as JSON."""
    result = costproof(*line.split(), cwd=tmp_path)
    assert (result.code, list(tmp_path.iterdir())) == (2, [])
    assert "no format has this ending" in result.stderr
    assert "did you mean ." in result.stderr


@pytest.mark.parametrize("line", ["graph out -f svg -o x.svg", "plot out -f png -o sub/x.png"])
def test_a_picture_is_no_folder_for_pictures(folder: Path, line: str) -> None:
    """It would be a folder x.svg with callgraph.svg in it."""
    result = costproof(*line.split(), cwd=folder)
    assert result.code == 2
    assert "this option takes a folder" in result.stderr
    assert not list(folder.rglob("x.*"))
