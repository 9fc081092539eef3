"""Files are written whole or not at all; a mixed folder is seen; what is not a file is not replaced."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import api
from costproof.cli.main import run
from costproof.ledger.aside import MARK, scratch
from costproof.ledger.errors import BadInput
from costproof.ledger.writing import uninterrupted, write_named, write_texts
from costproof.reports.report import Report, write_report
from tests.support.toy import toy, wrong


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


def test_a_link_in_a_folder_leads_to_a_place_in_that_folder_alone(tmp_path: Path) -> None:
    """Whoever made the folder would choose which file of its user is overwritten."""
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "mine").write_text("mine")
    link = out / "capture.json"
    link.symlink_to("2026.json")
    (tmp_path / "way").symlink_to("out")
    write_texts({tmp_path / "way" / "capture.json": "new"})
    assert ((out / "2026.json").read_text(), os.readlink(link)) == ("new", "2026.json")

    (out / "up").symlink_to("..")
    (tmp_path / "out2").mkdir()
    for target in (str(tmp_path / "mine"), "../mine", "../later", "up/mine", "../out2/x"):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(BadInput) as said:
            write_texts({out / "a": "1", link: "new"})
        assert (said.value.what, said.value.where) == ("a link leads out of the folder", str(link))
        assert str(Path(os.path.realpath(link))) in str(said.value)
        assert ((tmp_path / "mine").read_text(), os.readlink(link)) == ("mine", target)
        assert not (out / "a").exists()
    assert names(tmp_path) == ["mine", "out", "out2", "way"]

    link.unlink()
    link.symlink_to("a")
    with pytest.raises(BadInput, match="two outputs are one file"):
        write_texts({out / "a": "1", link: "new"})


def test_a_link_among_the_files_of_an_earlier_run_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "old.json").symlink_to("mine")
    assert write_texts({tmp_path / "x": "1"}, gone=[tmp_path / "old.json"]) == ()
    assert os.readlink(tmp_path / "old.json") == "mine"


@pytest.mark.parametrize(
    "line",
    ["report gpt2", "prove gpt2", "graph gpt2 -f dot,svg", "graph gpt2 -f dot"],
    ids=lambda line: line.split()[0],
)
def test_a_link_out_of_the_folder_is_refused_before_any_work(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("capture.json", "certificate.md", "callgraph.dot"):
        (out / name).symlink_to("../mine")
    assert run([*line.split(), "-o", str(out)]) == 2
    said = capsys.readouterr()
    assert (said.out, "a link leads out of the folder" in said.err) == ("", True)
    assert "load" not in said.err
    assert ((tmp_path / "mine").read_text(), len(names(out))) == ("mine", 3)


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


def test_a_link_to_a_file_that_is_not_there_makes_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("later")
    write_named(tmp_path / "link", "new")
    assert ((tmp_path / "later").read_text(), (tmp_path / "link").is_symlink()) == ("new", True)


def test_links_in_a_circle_are_refused_and_stay(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(BadInput, match="cannot write") as caught:
        write_named(tmp_path / "a", "new")
    assert caught.value.got == os.strerror(errno.ELOOP)
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no names of open files")
@pytest.mark.parametrize("form", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_a_file_that_is_open_goes_on_where_it_is(tmp_path: Path, form: str) -> None:
    """As in ``{ echo head; costproof … -o /dev/stdout; echo tail; } > file``."""
    with (tmp_path / "file").open("wb", buffering=0) as out:
        out.write(b"head ")
        path = Path(form.format(out.fileno()))
        if form == "link":
            path = tmp_path / "link"
            path.symlink_to(f"/dev/fd/{out.fileno()}")
        write_named(path, "body")
        out.write(b" tail")
    assert (tmp_path / "file").read_bytes() == b"head body tail"


def test_an_open_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot write"):
        write_named(Path("/dev/fd/9999"), "new")
    (tmp_path / "x").write_text("x")
    with (tmp_path / "x").open("rb") as only, pytest.raises(BadInput, match="cannot write"):
        write_named(Path(f"/dev/fd/{only.fileno()}"), "new")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(mode)
    write_named(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_named(tmp_path / "x", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    os.chown(tmp_path / "x", 12345, 23456)
    write_named(tmp_path / "x", "new")
    known = (tmp_path / "x").stat()
    assert (known.st_uid, known.st_gid) == (12345, 23456)


def test_a_read_only_file_is_refused_and_nothing_else_is_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    (tmp_path / "b").chmod(0o444)
    with pytest.raises(BadInput, match="cannot write") as caught:
        write_texts({tmp_path / "a": "1", tmp_path / "b": "2"})
    assert (caught.value.where, caught.value.got) == (str(tmp_path / "b"), "the file is read-only")
    assert (names(tmp_path), (tmp_path / "b").read_text()) == (["b"], "mine")


def test_other_hard_links_keep_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    os.link(tmp_path / "x", tmp_path / "y")
    write_named(tmp_path / "x", "new")
    assert ((tmp_path / "x").read_text(), (tmp_path / "y").read_text()) == ("new", "old")


def test_where_there_are_no_locks_what_is_new_may_be_of_a_living_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    new, old = tmp_path / ".costproof-1.part", tmp_path / ".costproof-2.part"
    for path in (new, old):
        path.write_text("half")
    os.utime(old, (1, 1))
    write_texts({tmp_path / "x": "1"})
    assert names(tmp_path) == [new.name, "x"]


def test_only_what_is_ours_is_removed(tmp_path: Path) -> None:
    mine = [".costproof-notes", ".costproof-.part", "x.part", "tmpabc.part", ".costproof-a.part.txt"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".costproof-folder.part").mkdir()  # without the mark
    write_texts({tmp_path / "x": "1"})
    assert names(tmp_path) == sorted([*mine, ".costproof-folder.part", "x"])


def test_a_folder_for_temporary_files_is_removed_by_the_next_one_if_its_process_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import os; from costproof.ledger.aside import scratch\nwith scratch() as s: (s / 'x').touch(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)
    (dead,) = tmp_path.iterdir()
    assert names(dead) == [MARK, "x"]
    with scratch() as first:
        assert not dead.exists()
        with scratch() as second:
            assert first.is_dir(), "its process is alive"
            assert first != second
    assert names(tmp_path) == []


def test_a_folder_that_vanishes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanished(path: Path, **_: object) -> None:
        path.rmdir()

    monkeypatch.setattr("costproof.ledger.writing.sweep", vanished)
    with pytest.raises(BadInput, match="cannot write") as caught:
        write_texts({tmp_path / "out" / "x": "1"})
    assert caught.value.got == os.strerror(errno.ENOENT)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "x").write_text("old")
    with pytest.raises(BadInput, match="cannot write") as caught:
        write_texts({tmp_path / "x": "1", tmp_path / "new" / "y": "2"})
    assert caught.value.got == os.strerror(number)
    assert (names(tmp_path), (tmp_path / "x").read_text()) == (["x"], "old")
