"""Files are written whole or not at all; a mixed folder is seen; what is not a file is not replaced."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import api
from costproof.ledger.errors import BadInput
from costproof.ledger.writing import uninterrupted, write_named, write_texts
from costproof.reports.report import Report, write_report
from tests.reports.toy import toy, wrong


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_named(pipe, "through")
    reader.join(10)
    assert (read, pipe.is_fifo()) == (["through"], True)


def test_a_link_that_a_person_names_leads_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_named(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "null").symlink_to(os.devnull)
    write_named(tmp_path / "null", "gone")
    assert (tmp_path / "null").is_symlink()
    assert Path(os.devnull).is_char_device()


def test_a_link_that_lay_in_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Whoever made the folder would choose which file of its user is overwritten."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "capture.json").symlink_to("mine")
    write_texts({tmp_path / "capture.json": "new"})
    assert ((tmp_path / "mine").read_text(), (tmp_path / "capture.json").read_text()) == ("mine", "new")


def test_the_next_run_removes_what_a_dead_one_left(tmp_path: Path) -> None:
    (tmp_path / ".costproof-abc123.part").write_text("half of a fi")
    write_texts({tmp_path / "x": "1"})
    assert names(tmp_path) == ["x"]


def test_a_name_of_250_characters_is_written_and_one_of_300_refused(tmp_path: Path) -> None:
    write_texts({tmp_path / ("x" * 250): "1"})
    assert names(tmp_path) == ["x" * 250]
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / "y": "1", tmp_path / ("x" * 300): "1"})
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / ("d" * 300) / "x": "1"})
    assert names(tmp_path) == ["x" * 250]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_waits_until_all_are_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    real = os.replace
    came: list[int] = []

    def interrupted(name: str, path: Path) -> None:
        signal.raise_signal(number)
        real(name, path)

    before = signal.signal(number, lambda got, _: came.append(len(names(tmp_path))))
    monkeypatch.setattr(os, "replace", interrupted)
    try:
        write_texts({tmp_path / n: n for n in "abc"})
    finally:
        signal.signal(number, before)
    # Each of three renames was interrupted; all three signals came when all three files were there.
    assert (came, names(tmp_path)) == ([3, 3, 3], ["a", "b", "c"])


def test_in_another_thread_signals_are_left_alone() -> None:
    found: list[object] = []

    def look() -> None:
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert found == [signal.getsignal(signal.SIGINT)]


class Killed(BaseException):
    """Stands for the end of the process: nothing is cleaned up."""


@pytest.mark.parametrize("renamed", range(8))
def test_a_folder_of_two_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int) -> None:
    """A run that is killed between two renames, after each of them: nine files, the manifest first.

    The last one, the callgraph, is the same in both.
    """
    assert [p.name for p in write_report(Report(toy()), tmp_path).files][::8] == ["manifest.json", "callgraph.json"]
    real = os.replace
    left = iter(range(renamed))

    def killed(name: str, path: Path) -> None:
        if next(left, None) is None:
            raise Killed
        real(name, path)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        write_report(Report(wrong()), tmp_path)
    if not renamed:
        assert api.read(tmp_path) == toy()
    else:
        with pytest.raises(BadInput, match="files of two runs"):
            api.read(tmp_path)
    monkeypatch.undo()
    write_report(Report(wrong()), tmp_path)
    assert api.read(tmp_path) == wrong()


def test_what_an_earlier_run_left_goes_before_the_first_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(Report(toy()), tmp_path)
    (tmp_path / "callgraph.svg").write_text("of the toy")

    def killed(name: str, path: Path) -> None:
        raise Killed

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        write_report(Report(replace(wrong(), callgraph=None)), tmp_path)
    assert not {"callgraph.svg", "callgraph.json"} & set(names(tmp_path))
    with pytest.raises(BadInput, match="files of two runs"):  # callgraph.json of the toy is not there any more
        api.read(tmp_path)


def test_a_file_that_was_edited_is_named_and_the_capture_alone_is_read(tmp_path: Path) -> None:
    write_report(Report(toy()), tmp_path)
    with (tmp_path / "discrepancy.md").open("a") as out:
        out.write("and so on")
    with pytest.raises(BadInput, match="files of two runs") as caught:
        api.read(tmp_path)
    assert caught.value.where == str(tmp_path / "discrepancy.md")
    assert api.read(tmp_path / "capture.json") == toy()
