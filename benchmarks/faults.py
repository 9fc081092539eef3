"""Ends of commands that nobody planned: kill -9, SIGTERM and Ctrl-C at random moments.

``python -m benchmarks.faults`` runs ``report``, ``prove`` and ``sweep`` again and again in one folder and ends each run
at a random moment of it. After every one: no process that it started is alive 5 s later, the folder is that of one run
(or refused for being that of two), and the next whole run leaves nothing of those that died; a sweep that went on where
it ended has the same bytes as one that did not end. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from costproof import api
from costproof.ledger.errors import BadInput

COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "formulas": ("report", "gpt2", "--sources", "analytic", "--layers", "2", "--text-tokens", "4"),
    "report": ("report", "gpt2", "--layers", "1", "--text-tokens", "4", "--no-cache"),
    "prove": ("prove", "gpt2", "--samples", "4", "--jobs", "2"),
    "sweep": ("sweep", "gpt2", "--over", "batch=1:1000", "--over", "text_tokens=1:400", "--metric", "flops"),
}
POINTS: Final = "points.csv"
"""What a sweep is written to."""
SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
GRACE: Final = 5.0
"""Seconds after which nothing may be alive."""
_MARK: Final = "COSTPROOF_FAULTS"


@dataclass
class Found:
    """How the runs of one command ended."""

    moments: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    mixed: int = 0
    """Folders of two runs that were refused: a kill between two renames."""
    faults: list[str] = field(default_factory=list)


def marked(mark: str) -> list[int]:
    """The processes that have this mark in their environment, but for those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not ended and f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def started(arguments: Sequence[str], folder: Path, mark: str) -> subprocess.Popen[bytes]:
    """A command in a session of its own, as from a terminal; what it says goes nowhere."""
    where = folder / POINTS if arguments[0] == "sweep" else folder
    line = [sys.executable, "-m", "costproof", *arguments, "-o", str(where), "--progress", "never"]
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, _MARK: mark, "PYTHONPATH": paths}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(line, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def end(arguments: Sequence[str], folder: Path, number: signal.Signals, after: float, found: Found) -> None:
    """Run a command, end it after so many seconds, and look at what is left."""
    mark = uuid.uuid4().hex
    process = started(arguments, folder, mark)
    try:
        code = process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        until = time.monotonic() + GRACE
        while (alive := marked(mark)) and time.monotonic() < until:
            process.poll()
            time.sleep(0.02)
        if alive:
            found.faults.append(f"{number.name} after {after:.2f} s: {len(alive)} processes alive {GRACE:.0f} s later")
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        code = process.wait()
    found.moments += 1
    found.codes[f"{number.name} {code}"] += 1
    if not (folder / "capture.json").exists():
        return
    try:
        api.read(folder)
    except BadInput as error:
        if error.what != "the folder holds files of two runs":
            found.faults.append(f"{number.name} after {after:.2f} s: {error.line}")
        found.mixed += 1


def tried(arguments: Sequence[str], folder: Path, moments: int, seed: int) -> Found:
    """A command, ended at so many moments with each of the signals in turn, and at last a whole run."""
    folder.mkdir()
    began = time.monotonic()
    whole = started(arguments, folder, uuid.uuid4().hex).wait()
    took, found, draw = time.monotonic() - began, Found(), random.Random(seed)
    if whole not in (0, 1, 3):
        found.faults.append(f"a whole run ended with {whole}")
    names, points = {p.name for p in folder.iterdir()}, _points(folder)
    for i in range(moments):
        end(arguments, folder, SIGNALS[i % len(SIGNALS)], draw.uniform(0, took), found)
    if started(arguments, folder, uuid.uuid4().hex).wait() != whole:
        found.faults.append("the last whole run ended otherwise than the first")
    if _points(folder) != points:
        found.faults.append("the points of the last whole run are not those of the first")
    left = {p.name for p in folder.iterdir()} - names
    if left:
        found.faults.append(f"left over: {', '.join(sorted(left))}")
    return found


def _points(folder: Path) -> bytes | None:
    return (folder / POINTS).read_bytes() if (folder / POINTS).exists() else None


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100, help="for each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(COMMANDS), action="append")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    faults = 0
    for name in chosen.only or COMMANDS:
        with TemporaryDirectory() as folder:
            found = tried(COMMANDS[name], Path(folder) / "out", chosen.moments, chosen.seed)
        ends = ", ".join(f"{code}: {times}" for code, times in sorted(found.codes.items()))
        print(f"{name}: {found.moments} moments, {found.mixed} refused as mixed, {len(found.faults)} faults ({ends})")
        for fault in found.faults:
            print(f"  {fault}")
        faults += len(found.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
