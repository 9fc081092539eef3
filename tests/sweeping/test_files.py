"""Where a sweep may be written to, and what of the user's stays as it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.aside import MARK
from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput
from costproof.run import sweep_files, sweep_parts
from costproof.run.sweep import sweep
from costproof.run.sweep_files import Tally
from tests.support.running import costproof

OVER = {"batch": "1:4"}
COUNTED = '"Counted: weights and cache bfloat16, sdpa attention, all layers, every key of the configuration used"'
TEXT = f"batch,params,counted\n1,8030261248,{COUNTED}\n2,8030261248,\n3,8030261248,\n4,8030261248,\n"
"""Llama 3.1 8B has 8,030,261,248 parameters, whatever its batch."""


def write(path: Path, size: int = 2) -> Tally:
    return sweep("llama", OVER, metrics=["params"], stages=[], size=size).write(path)


def interrupted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the first part of :data:`TEXT`."""
    usual = sweep_files.csv_text

    def stop(part: sweep_parts.SweepPart, names: Any) -> str:
        if part.varied["batch"][0] == 3:
            raise KeyboardInterrupt
        return usual(part, names)

    with monkeypatch.context() as inside:
        inside.setattr(sweep_files, "csv_text", stop)
        with pytest.raises(KeyboardInterrupt):
            write(path)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def through_a_pipe(path: Path, action: Callable[[], object]) -> bytes:
    """Return what is written to a named pipe meanwhile."""
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    action()
    reader.join(10)
    assert path.is_fifo()
    return read[0]


@pytest.mark.parametrize("name", ["pipe.csv", "pipe"])
def test_a_pipe_gets_the_rows(tmp_path: Path, name: str) -> None:
    assert through_a_pipe(tmp_path / name, lambda: write(tmp_path / name)) == TEXT.encode()
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_pipe_gets_the_same_bytes_as_a_file(tmp_path: Path, kind: str) -> None:
    if kind == "parquet" and installed("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra [sweep]")
    pipe, file = tmp_path / f"pipe.{kind}", tmp_path / f"file.{kind}"
    write(file)
    assert through_a_pipe(pipe, lambda: write(pipe)) == file.read_bytes()
    assert names(tmp_path) == [file.name, pipe.name]


def test_devices_and_links_to_them(tmp_path: Path) -> None:
    line = ("sweep", "llama", "--over", "batch=1,2", "--metric", "params", "--stage", "decode")
    (tmp_path / "null.json").symlink_to(os.devnull)
    for place in (os.devnull, "null.json"):
        assert costproof(*line, "-o", place, cwd=tmp_path).code == 0
    assert (tmp_path / "null.json").is_symlink()
    assert Path(os.devnull).is_char_device()
    assert names(tmp_path) == ["null.json"]
    assert not Path("/dev/null.svg").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_device_that_is_full(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"full.{kind}").symlink_to("/dev/full")
    with pytest.raises(BadInput) as caught:
        write(tmp_path / f"full.{kind}")
    assert caught.value.got == "No space left on device"
    assert names(tmp_path) == [f"full.{kind}"]


@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_sweep_goes_on_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.csv", tmp_path / "link.csv"
    link.symlink_to(real)
    if there:
        real.write_text("old")
        real.chmod(0o600)
    interrupted(link, monkeypatch)
    assert real.exists() == there
    evaluated: list[int] = []
    usual = sweep_files.csv_text

    def noted(part: sweep_parts.SweepPart, names: Any) -> str:
        evaluated.append(part.points)
        return usual(part, names)

    monkeypatch.setattr(sweep_files, "csv_text", noted)
    assert write(link).rows == 4
    assert sum(evaluated) == 2, "two of four points were there"
    assert (real.read_text(), link.is_symlink(), names(tmp_path / "far")) == (TEXT, True, ["real.csv"])
    if there:
        assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [{"request.json": "{}"}, {MARK: "{}"}, {}, {"notes": "mine"}])
def test_a_folder_of_the_user_stays(tmp_path: Path, content: dict[str, str]) -> None:
    folder = tmp_path / "x.csv.parts"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    with pytest.raises(BadInput, match="costproof did not make it"):
        write(tmp_path / "x.csv")
    assert {p.name: p.read_text() for p in folder.iterdir()} == content
    assert names(tmp_path) == ["x.csv.parts"]


@pytest.mark.parametrize("what", ["file", "link", "dangling link"])
def test_what_is_no_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    place = tmp_path / "x.csv.parts"
    if what == "file":
        place.write_text("mine")
    else:
        place.symlink_to("other.csv.parts")
        if what == "link":
            interrupted(tmp_path / "other.csv", monkeypatch)
    before = names(tmp_path)
    with pytest.raises(BadInput, match="costproof did not make it"):
        write(tmp_path / "x.csv")
    assert names(tmp_path) == before


def test_files_of_the_user_in_our_folder_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "x.csv", monkeypatch)
    folder = tmp_path / "x.csv.parts"
    (folder / "notes.json").write_text("mine")
    assert write(tmp_path / "x.csv").rows == 4
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"notes.json": "mine"}


def test_a_long_name_has_parts_too(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 251 + ".csv")
    write(path)
    assert (path.read_text(), names(tmp_path)) == (TEXT, [path.name])


def test_a_read_only_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.csv").write_text("mine")
    (tmp_path / "x.csv").chmod(0o444)
    monkeypatch.setattr(sweep_files, "csv_text", None)  # before anything is evaluated
    with pytest.raises(BadInput) as caught:
        write(tmp_path / "x.csv")
    assert caught.value.got == "the file is read-only"
    assert (tmp_path / "x.csv").read_text() == "mine"


def test_a_sweep_of_another_kind_of_file_takes_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path / "x.csv", monkeypatch)
    (tmp_path / "x.csv.parts").rename(tmp_path / "x.json.parts")
    write(tmp_path / "x.json")
    write(tmp_path / "y.json")
    assert (tmp_path / "x.json").read_bytes() == (tmp_path / "y.json").read_bytes()
