"""End commands with signals at given moments and check what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from costproof import api
from costproof.ledger.errors import BadInput
from costproof.reports.report import Report

_POLICY: Final = Path(__file__).parents[2] / "docs" / "examples" / "policy.yaml"


COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "formulas": ("report", "gpt2", "--sources", "analytic", "--layers", "2", "--text-tokens", "4", "-o", "OUT"),
    "report": ("report", "gpt2", "--layers", "1", "--text-tokens", "4", "--no-cache", "-o", "OUT"),
    "prove": ("prove", "gpt2", "--samples", "4", "--jobs", "2", "-o", "OUT"),
    "sweep": (
        *("sweep", "gpt2", "--over", "batch=1:1000", "--over", "text_tokens=1:400", "--metric", "flops"),
        *("-o", "OUT/points.csv"),
    ),
    "roofline": ("roofline", "gpt2", "--on", "l4", "-o", "OUT/roofline.json"),
    "fits": ("fits", "gpt2", "--on", "l4", "-o", "OUT/fits.json"),
    "stored": ("stored", "gpt2", "-o", "OUT/stored.json"),
    "gate": ("gate", "CAPTURE", "CAPTURE", "--policy", str(_POLICY), "-o", "OUT/gate.md"),
    "graph": ("graph", "CAPTURE", "-f", "svg,dot", "-o", "OUT"),
    "render": ("render", "CAPTURE", "-f", "html", "-o", "OUT/page.html"),
    "peaks": ("peaks", "gpt2", "--layers", "1", "--text-tokens", "4", "-o", "OUT/peaks.json"),
    "measure": (
        *("measure", "gpt2", "--layers", "1", "--text-tokens", "4", "--profile", "1", "--on", "l4"),
        *("-o", "OUT/measure.json"),
    ),
    "plot": ("plot", "CAPTURE", "-f", "svg,png", "-o", "OUT"),
}
"""With the words for places that :func:`started` fills in."""


_PROGRESS: Final = ("report", "prove", "sweep", "peaks", "measure", "graph")
"""Commands that say on stderr how far they are."""


SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


GRACE: Final = 5.0
"""Seconds after which nothing may be alive."""


READY: Final = 0.05
"""Seconds of a processor after which a command answers signals itself."""


_MARK: Final = "COSTPROOF_FAULTS"


_PAST: Final = ("certificate.progress.jsonl", "points.csv.parts")
"""What an interrupted run keeps for the next one."""


@dataclass
class Found:
    """How the runs of one command ended."""

    moments: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    early: Counter[str] = field(default_factory=Counter)
    """Codes of those that were ended while Python started."""
    mixed: int = 0
    """Folders of two runs that were refused: a kill between two renames."""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """The folders that runs of one command share."""

    root: Path

    @property
    def out(self) -> Path:
        return self.root / "out"

    def fill(self, word: str) -> str:
        """Return a word of a command line with its place."""
        for name, path in (("OUT", self.out), ("CAPTURE", self.root / "capture.json")):
            if word == name or word.startswith(f"{name}/"):
                return str(path) + word.removeprefix(name)
        return word

    def environment(self, mark: str) -> dict[str, str]:
        """Return the environment of a run: what it keeps lies here too."""
        paths = os.pathsep.join(p for p in sys.path if p)
        own = {"COSTPROOF_CACHE": str(self.root / "cache"), "TMPDIR": str(self.root / "tmp")}
        return {**os.environ, **own, _MARK: mark, "PYTHONPATH": paths}

    def names(self) -> set[str]:
        """Return what lies there, without the entries of the cache."""
        kept = (p.relative_to(self.root) for p in self.root.rglob("*"))
        return {str(p) for p in kept if p.parts[0] != "cache" or p.suffix == ".part"} - {"said"}


def place(root: Path) -> Place:
    """Make the folders, with a capture and a policy."""
    made = Place(root)
    for folder in (made.out, root / "tmp"):
        folder.mkdir(parents=True)
    counted = api.capture("gpt2", sources=["analytic", "dynamic"], layers=1, text_tokens=4)  # with a callgraph
    (root / "capture.json").write_text(Report(counted).render("capture-json"), encoding="utf-8")
    return made


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


def answers(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM, or has run for so long that it should have one."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1) or _spent(pid) >= READY


def _spent(pid: int) -> float:
    """Return the seconds of a processor that a process has used: on a busy machine it starts later, by the clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(arguments: Sequence[str], where: Place, mark: str) -> subprocess.Popen[bytes]:
    """A command in a session of its own, as from a terminal; what it says on stderr is kept."""
    quiet = ("--progress", "never") if arguments[0] in _PROGRESS else ()
    line = [sys.executable, "-m", "costproof", *map(where.fill, arguments), *quiet]
    nothing = subprocess.DEVNULL
    with (where.root / "said").open("wb") as said:
        environment = where.environment(mark)
        return subprocess.Popen(
            line, env=environment, stdin=nothing, stdout=nothing, stderr=said, start_new_session=True
        )


def end(
    arguments: Sequence[str],
    where: Place,
    number: signal.Signals,
    after: float,
    whole: Whole,
    found: Found,
    *,
    patient: bool = False,
) -> None:
    """Run a command, end it after so many seconds, and look at what is left.

    Args:
        patient: wait until the command answers the signal itself; a busy machine takes its time to start Python.
    """
    mark = uuid.uuid4().hex
    process = started(arguments, where, mark)
    at = f"{number.name} after {after:.3f} s"
    early = False
    try:
        code = process.wait(after)
    except subprocess.TimeoutExpired:
        while patient and not answers(process.pid) and process.poll() is None:
            time.sleep(0.005)
        early = not answers(process.pid)
        process.send_signal(number)
        until = time.monotonic() + GRACE
        while (alive := marked(mark)) and time.monotonic() < until:
            process.poll()
            time.sleep(0.02)
        if alive:
            found.faults.append(f"{at}: {len(alive)} processes alive {GRACE:.0f} s later")
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        code = process.wait()
    found.moments += 1
    if early:
        found.early[f"{number.name} {code}"] += 1
    else:
        found.codes[f"{number.name} {code}"] += 1
        said = (where.root / "said").read_text(errors="replace")
        told = code == 3 and said.count("error:") == 1 and "interrupted" in said
        if number != signal.SIGKILL and code != whole.code and not told:
            found.faults.append(f"{at}: ended with {code} and {said[-500:]!r}")
        if "Traceback" in said:
            found.faults.append(f"{at}: {said[-2000:]!r}")
    found.faults += [f"{at}: {name} is not whole" for name in sorted(whole.damaged(where))]
    if (where.out / "capture.json").exists():
        try:
            api.read(where.out)
        except BadInput as error:
            if error.what != "the folder holds files of two runs":
                found.faults.append(f"{at}: {error.line}")
            found.mixed += 1


@dataclass(frozen=True, slots=True)
class Whole:
    """What a whole run leaves, and how it ends."""

    code: int
    outputs: Mapping[str, bytes]
    names: frozenset[str]

    @classmethod
    def of(cls, arguments: Sequence[str], where: Place) -> Whole:
        """Run a command to its end."""
        code = started(arguments, where, uuid.uuid4().hex).wait()
        outputs = {p.name: p.read_bytes() for p in where.out.iterdir() if p.is_file()}
        return cls(code, outputs, frozenset(where.names()))

    def damaged(self, where: Place) -> set[str]:
        """Return the outputs that are neither as a whole run writes them nor a whole JSON file with measured times."""
        found = set()
        for path in where.out.iterdir():
            if path.name in _PAST or path.name.startswith(".costproof-"):
                continue
            content = path.read_bytes() if path.is_file() else None
            if content != self.outputs.get(path.name) and not (path.name == "measure.json" and _parsed(content)):
                found.add(path.name)
        return found


def _parsed(content: bytes | None) -> bool:
    try:
        json.loads(content or b"")
    except ValueError:
        return False
    return True
