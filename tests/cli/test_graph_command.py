"""``costproof graph``: files, stdout, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from costproof import api
from tests.support.running import costproof, files
from tests.support.toy import toy
from tests.support.written import write_capture


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


OWN = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU()), (torch.ones(2, 4),)
"""


# tracers/test_kept_pairs.py counts models of packages.
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("target", ["own.py:make", pytest.param("package.own:make", marks=pytest.mark.thorough)])
def test_a_target_is_run_and_drawn(target: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "package"):
        folder.mkdir(exist_ok=True)
        (folder / "own.py").write_text(OWN, encoding="utf-8")
    assert costproof("capture", target, "-o", "own.json", cwd=tmp_path).code == 0
    drawn = costproof("graph", target, "-f", "dot", cwd=tmp_path)
    assert drawn.code == 0
    # The picture is that of a capture of the same run; the sources that a capture has beside it are not drawn.
    assert drawn.stdout == costproof("graph", "own.json", "-f", "dot", cwd=tmp_path).stdout
    assert "96" in drawn.stdout  # 2 rows, 4 to 6 channels, 2 FLOPs each
    alike = costproof("diff", target, "own.py:make", cwd=tmp_path)
    assert (alike.code, "No cost changed" in alike.stdout) == (0, True)


def test_pictures_of_a_target_need_a_folder_and_what_is_nothing_says_so(tmp_path: Path) -> None:
    done = costproof("graph", "llama-3.1-8b", "-f", "svg,dot", cwd=tmp_path)
    assert (done.code, "several pictures of a target need a folder" in done.stderr) == (2, True)
    done = costproof("graph", "lama-3.1-8b", cwd=tmp_path)
    assert (done.code, "did you mean llama-3.1-8b?" in done.stderr) == (2, True)
    # The name of a branch is none of a package.
    done = costproof("graph", "main:baseline", cwd=tmp_path)
    assert (done.code, "there is no such file or target" in done.stderr) == (2, True)
