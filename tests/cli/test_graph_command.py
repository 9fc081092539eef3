"""``costproof graph``: files, stdout, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from costproof import api
from tests.cli.running import costproof, files
from tests.reports.toy import toy
from tests.written import write_capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a capture."""
    write_capture(tmp_path / "toy.json", toy())
    return tmp_path


def test_one_format_goes_to_stdout_and_equals_the_renderer(folder: Path) -> None:
    for kind in ("dot", "svg", "mmd"):
        done = costproof("graph", "toy.json", "-f", kind, cwd=folder)
        assert (done.code, done.stderr) == (0, "")
        assert done.stdout == api.compare(toy()).render(f"graph-{kind}")


def test_several_go_to_a_folder(folder: Path) -> None:
    done = costproof("graph", "toy.json", "-f", "dot,svg, mmd", "--depth", "1", "-o", "g", cwd=folder)
    assert (done.code, done.stdout) == (0, "")
    assert files(folder / "g") == ["callgraph.dot", "callgraph.mmd", "callgraph.svg"]
    assert done.stderr.splitlines() == [f"Wrote g/callgraph.{kind}" for kind in ("dot", "svg", "mmd")]


def test_several_go_beside_the_capture(folder: Path) -> None:
    write_capture(folder / "run" / "toy.json", toy())
    done = costproof("graph", "run/toy.json", "-f", "dot,svg", cwd=folder)
    assert (done.code, done.stdout) == (0, "")
    assert files(folder / "run") == ["callgraph.dot", "callgraph.svg", "toy.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-f", "gif"), "expected: dot or svg or mmd or png"),
        (("-f", ""), "expected: dot or svg or mmd or png"),
        (("--depth", "-1"), "a depth cannot be negative"),
        (("--depth", "x"), "this option takes an integer"),
        (("--stage", "sem"), "did you mean sam?"),
        (("--prefix", "nowhere"), "no such module"),
        (("--link", "javascript:x"), "this address cannot be linked to"),
    ],
)
def test_bad_input(options: tuple[str, ...], said: str, folder: Path) -> None:
    done = costproof("graph", "toy.json", *options, cwd=folder)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert files(folder) == ["toy.json"]
