"""Signals at every stage of a command's life, from its first import to its last callback: code 3, one message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from costproof.cli.entry import AGAIN
from costproof.cli.output import error_text
from costproof.ledger.errors import EXIT_INCOMPLETE, CostproofError

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HEAD = """
import atexit, os, signal, sys, time

class Importing:
    '''Does something when a module is imported.'''
    def __init__(self, name, action):
        self.name, self.action = name, action
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            self.action()

def at(name, action):
    sys.meta_path.insert(0, Importing(name, action))

def come():
    os.kill(os.getpid(), NUMBER)

def instead(action):
    '''Do this as the work of ``costproof targets``.'''
    def replace():
        from costproof import api
        api.targets = lambda *_: action() or {}
    at("costproof.cli.list_commands", replace)
"""
TAIL = """
from costproof.cli.entry import main
sys.argv = ["costproof", "targets"]
sys.exit(main())
"""


def run(story: str, number: signal.Signals, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Run ``costproof targets`` in another Python, in which a signal comes as the story says."""
    code = HEAD.replace("NUMBER", str(int(number))) + story + TAIL

    def begin() -> None:
        for each in NUMBERS:  # the tests may run in the background
            signal.signal(each, signal.SIG_IGN if ignored else signal.SIG_DFL)

    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, preexec_fn=begin,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def told(number: signal.Signals) -> str:
    got = "Ctrl-C" if number == signal.SIGINT else number.name
    return error_text(CostproofError("interrupted", got=got, fix=AGAIN)) + "\n"


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n.name)
@pytest.mark.parametrize("module", ["costproof.cli.main", "click", "costproof.cli.list_commands"])
def test_while_modules_are_imported(number: signal.Signals, module: str) -> None:
    done = run(f"at({module!r}, come)", number)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INCOMPLETE, "", told(number))


WORK = "instead(come)"
SWALLOWED = """
def work():
    try:
        come()
    except BaseException:
        pass
instead(work)
"""
UNRAISABLE = """
class Gone:
    def __del__(self):
        come()
instead(lambda: Gone() and None)
"""
AGAIN_AND_AGAIN = """
def work():
    try:
        come()
    finally:
        come()
        come()
        os.write(1, b"put in order")
instead(work)
"""


@pytest.mark.parametrize(
    ("story", "stdout"),
    [(WORK, ""), (SWALLOWED, ""), (UNRAISABLE, ""), (AGAIN_AND_AGAIN, "put in order")],
    ids=["work", "swallowed", "unraisable", "again"],
)
def test_while_it_works(story: str, stdout: str) -> None:
    done = run(story, signal.SIGTERM)
    # click ends the line in which a terminal shows ^C.
    assert (done.returncode, done.stdout, done.stderr.lstrip("\n")) == (EXIT_INCOMPLETE, stdout, told(signal.SIGTERM))


def test_code_that_does_not_end() -> None:
    story = """
def work():
    while True:
        try:
            come()
            time.sleep(60)
        except BaseException:
            pass
instead(work)
"""
    done = run(story, signal.SIGINT)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INCOMPLETE, "", told(signal.SIGINT))


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n.name)
def test_at_exit_the_command_has_its_code(number: signal.Signals) -> None:
    done = run("at('costproof.cli.main', lambda: atexit.register(come))", number)
    assert (done.returncode, done.stderr) == (0, "")
    assert "deepseek-ocr" in done.stdout


@pytest.mark.parametrize("way", ["os._exit(9)", "sys.exit(9)", "os.execv('/bin/false', ['false'])", "os.abort()"])
def test_a_function_at_exit_chooses_no_code_and_writes_no_report(way: str) -> None:
    quiet = run("", signal.SIGINT)
    story = f"at('costproof.cli.main', lambda: atexit.register(lambda: (print('bye', flush=True), {way})))"
    done = run(story, signal.SIGINT)
    assert (done.returncode, done.stdout, "bye" in done.stderr) == (0, quiet.stdout, True)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: n.name)
def test_what_is_ignored_stays_so(number: signal.Signals) -> None:
    """As ``nohup`` and a shell's background jobs have it."""
    done = run("at('click', come); at('costproof.cli.list_commands', come)", number, ignored=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["costproof", "costproof.cli.entry"])
def test_nothing_large_is_imported_before_signals_are_answered(module: str) -> None:
    code = f"import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"
    paths = os.pathsep.join(p for p in sys.path if p)
    line = [sys.executable, "-S", "-c", code]
    done = subprocess.run(line, env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    ours = {m for m in done.stdout.split() if m.partition(".")[0] == "costproof"}
    assert ours <= {"costproof", "costproof.cli", "costproof.cli.entry", "costproof.ledger", "costproof.ledger.ending"}
    assert not {"typing", "re", "enum", "signal", "threading", "pathlib", "click", "pydantic"} & set(
        done.stdout.split()
    )


def test_the_command_is_that_entry() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'costproof = "costproof.cli.entry:main"' in text


def test_verbs_with_the_name_of_a_room_stay_verbs() -> None:
    import costproof
    import costproof.compare.compare

    assert callable(costproof.compare)
    from costproof import compare

    assert compare is costproof.compare


def test_what_an_import_of_the_package_gives() -> None:
    code = """
import costproof
assert costproof.api.compare is costproof.compare
assert costproof.ledger.errors.BadInput and costproof.__version__ and "report" in dir(costproof)
assert not hasattr(costproof, "nothing")
from costproof import *
assert workload is costproof.workload
"""
    paths = os.pathsep.join(p for p in sys.path if p)
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=True, timeout=60)
