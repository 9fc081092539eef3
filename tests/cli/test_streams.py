"""Devices, pipes whose reader has gone, streams that are closed or full; and signals that end a command."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click
import pytest

from costproof import api
from costproof.cli import main
from costproof.cli.main import run
from costproof.cli.streams import tolerant_streams
from costproof.foreign import as_command, running
from costproof.reports.report import Report
from tests.support.running import costproof
from tests.support.toy import incomplete, toy, wrong
from tests.support.written import write_capture

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
CODES = {"toy": 0, "wrong": 1, "incomplete": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With captures of every verdict."""
    made = tmp_path_factory.mktemp("streams")
    for name, capture in (("toy", toy), ("wrong", wrong), ("incomplete", incomplete)):
        write_capture(made / f"{name}.json", capture())
    return made


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash; ``$C`` is the command."""
    environment = {**ENVIRONMENT, "C": f"{sys.executable} -m costproof"}
    command = ["bash", "-c", line]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", CODES)
def test_a_reader_that_has_gone_changes_no_verdict(folder: Path, name: str) -> None:
    done = shell(f"$C compare {name}.json | true; echo ${{PIPESTATUS[0]}}", folder)
    assert (done.stdout, done.stderr) == (f"{CODES[name]}\n", "")


def test_a_closed_stdout_changes_no_verdict(folder: Path) -> None:
    done = shell("$C compare wrong.json >&-", folder)
    assert (done.returncode, done.stderr) == (1, "")
    assert shell("$C compare wrong.json >&- 2>&-", folder).returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_stdout_is_no_bug_of_ours(folder: Path) -> None:
    done = shell("$C compare toy.json > /dev/full", folder)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_devices_and_process_substitution(folder: Path) -> None:
    """What a CI step writes that wants the exit code alone."""
    done = shell("$C -q compare wrong.json -o /dev/null; echo $?; $C schema capture -o >(wc -l) | cat", folder)
    assert done.stdout.split()[0] == "1"
    assert int(done.stdout.split()[1]) > 100
    assert Path(os.devnull).is_char_device()


def test_capture_goes_to_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.run.report.count_sources", lambda *_, **__: Report(toy()))
    monkeypatch.setattr("costproof.reports.report.os.access", lambda *_: False)  # /dev, for who is not root
    assert costproof("capture", "deepseek-ocr", "-o", os.devnull, "--progress", "never", cwd=tmp_path).code == 0
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("name", ["x" * 300, f"{'d' * 300}/x"], ids=["file", "folder"])
@pytest.mark.parametrize(
    "line", ["render c.json -f summary -o {}", "report {}", "report deepseek-ocr -o {}", "compare {}"]
)
def test_a_name_that_is_too_long_is_bad_input(folder: Path, name: str, line: str) -> None:
    result = costproof(*line.format(name).replace("c.json", "toy.json").split(), cwd=folder)
    assert result.code == 2, result.stderr
    assert "name too long" in result.stderr or "no such target" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_signals_that_end_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """All do what Ctrl-C does: code 3, one message, nothing left."""

    def counted(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    monkeypatch.setattr("costproof.run.report.count_sources", counted)
    try:
        result = costproof("report", "deepseek-ocr", "-o", "r", "--progress", "never", cwd=tmp_path)
        assert signal.getsignal(number) is (signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    finally:
        signal.signal(number, before)
    assert (result.code, result.stdout, os.listdir(tmp_path)) == (3, "", [])
    assert "interrupted" in result.stderr
    assert ("Ctrl-C" if number == signal.SIGINT else number.name) in result.stderr


def test_a_signal_that_was_ignored_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``nohup`` does it."""

    def hung_up() -> dict[str, object]:
        signal.raise_signal(signal.SIGHUP)
        return {}

    monkeypatch.setattr("costproof.api.targets", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert costproof("targets", cwd=tmp_path).code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_libraries_say_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers with a handler of their own on stderr, as transformers' and torch's, and warnings; -v shows them all."""

    def doctor() -> Any:
        logger = logging.getLogger("transformers.models.x")
        handler = logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        try:
            for _ in range(3):
                logger.warning("a field must be\ngreater")
        finally:
            logger.removeHandler(handler)
        warnings.warn("old", UserWarning, stacklevel=1)
        return made()

    made = api.doctor
    monkeypatch.setattr(api, "doctor", doctor)
    emit = logging.StreamHandler.emit

    def said(*line: str) -> list[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            main.run(line)
        return capsys.readouterr().err.splitlines()

    note = "note: libraries gave 4 warnings, -v shows them; the first: transformers: a field must be greater"
    assert said("doctor") == [note]
    assert said("-q", "doctor") == []
    assert said("doctor", "-v").count("a field must be") == 3
    assert said("doctor") == [note]  # nothing of the earlier command is left
    assert logging.StreamHandler.emit is emit


def test_a_stdout_without_bytes_takes_the_text() -> None:
    """That of a notebook, and of ``redirect_stdout(StringIO())``."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert run(["machine", "l4", "-f", "json"]) == 0
    assert json.loads(out.getvalue())["name"] == "l4"


@pytest.mark.parametrize("kind", ["line_buffering", "write_through"])
def test_progress_of_foreign_code_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """To a file, as Python opens stderr, and as it does with PYTHONUNBUFFERED."""
    with (
        (tmp_path / "err").open("wb") as file,
        io.TextIOWrapper(
            file, "utf-8", line_buffering=kind == "line_buffering", write_through=kind == "write_through"
        ) as stream,
    ):
        for name in ("stderr", "__stderr__"):
            monkeypatch.setattr(sys, name, stream)
        with tolerant_streams(), as_command(), running("it ends"):
            click.echo("1 of 2", err=True)
            assert (tmp_path / "err").read_text() == "1 of 2\n"
        monkeypatch.undo()


def test_a_fork_of_foreign_code_keeps_no_command_from_its_end() -> None:
    """It holds the pipe of signals open for as long as it lives."""
    code = """
import os, time
from costproof.cli.streams import ending_signals
with ending_signals():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
os.kill(child, 9)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
