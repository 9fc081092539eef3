"""The same commands under other versions: ``make test-versions``, or ``python -m tests.versions SET…``.

Each set of versions has an environment of its own in ``FOLDER/SET``, made of its constraints by its Python; ``here`` is
the one that runs this. The commands end as they should, and all sets write the same numbers. It needs the network and
some gigabytes for each set, so it is not a part of ``make test``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
SETS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "oldest": ("constraints-oldest.txt", ("3.11",)),
    "pinned": ("constraints.txt", ("3.11", "3.12")),
    "newest": ("", ("3.14", "3.13", "3.12")),
    "here": ("", ()),
}
"""Set -> its constraints, none for the newest versions that there are, and its Python: the first that is installed."""
SMALL: Final = ("--layers", "1", "--text-tokens", "4", "--no-cache", "--progress", "never")
COMMANDS: Final[dict[str, tuple[tuple[str, ...], int]]] = {
    "doctor": (("doctor",), 0),
    "explain": (("explain", "deepseek-ocr", "projector"), 0),
    "check": (("check", "docs/examples/published-table.yaml"), 1),
    "report": (("report", "gpt2", *SMALL, "-o", "{out}/gpt2"), 0),
    "experts": (("report", "mixtral-8x7b", *SMALL, "-o", "{out}/mixtral"), 0),
    "derive": (("derive", "deepseek-ocr", "projector"), 0),
    "module": (("report", "docs/examples/my_model.py:make", "--progress", "never", "-o", "{out}/mine"), 0),
}
"""Command -> its line, and the exit code that is right."""
SHOWN: Final = ("python", "torch", "transformers", "torchlens", "sympy")


@dataclass(frozen=True, slots=True)
class Tried:
    """One set."""

    versions: dict[str, str]
    codes: dict[str, int]
    numbers: dict[str, Any]
    """Report -> its totals and those of its stages."""


def base_of(name: str) -> str:
    """The Python that makes the environment of a set; the one that runs this where none of the set's is installed."""
    for version in SETS[name][1]:
        found = shutil.which(f"python{version}")
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return sys.executable


def python_of(name: str, environments: Path) -> Path:
    """The Python of a set, installed if it is not there."""
    if name == "here":
        return Path(sys.executable)
    folder = environments / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([base_of(name), "-m", "venv", str(folder)], check=True)
        constraints = SETS[name][0]
        held = ("--constraint", str(ROOT / constraints)) if constraints else ()
        line = [str(python), "-m", "pip", "install", "--quiet", *held, "--editable", f"{ROOT}[trace]"]
        subprocess.run(line, check=True)
        (folder / "ready").touch()
    return python


def tried(python: Path) -> Tried:
    """All commands under one Python."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT / "src")}
    with TemporaryDirectory() as folder:
        codes = {}
        for name, (line, _) in COMMANDS.items():
            command = [str(python), "-P", "-m", "costproof", *(part.format(out=folder) for part in line)]
            codes[name] = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, check=False
            ).returncode
        numbers, versions = {}, {}
        for path in sorted(Path(folder).glob("*/static_compute.json")):
            written = json.loads(path.read_text(encoding="utf-8"))
            stages = {s["id"]: {k: s[k] for k in ("flops", "vector_flops", "params")} for s in written["stages"]}
            numbers[path.parent.name] = {"totals": written["totals"], "stages": stages}
            versions = written["environment"]
    return Tried(versions, codes, numbers)


def row(name: str, found: Tried, first: Tried) -> str:
    """A line of the table in docs/versions.md."""
    versions = [found.versions.get(p, "") for p in SHOWN]
    ends = [str(code) + ("" if code == COMMANDS[c][1] else " (wrong)") for c, code in found.codes.items()]
    return "| " + " | ".join([name, *versions, *ends, "yes" if found.numbers == first.numbers else "no"]) + " |"


def main() -> int:
    """Try the sets and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["oldest", "pinned", "newest"], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-versions", help="where the environments are made")
    options = parser.parse_args()
    chosen = options.sets
    print("| " + " | ".join(["set", *SHOWN, *COMMANDS, "same numbers"]) + " |")
    first: Tried | None = None
    good = True
    for name in chosen:
        found = tried(python_of(name, options.folder.resolve()))
        first = first or found
        print(row(name, found, first), flush=True)
        right = all(code == COMMANDS[c][1] for c, code in found.codes.items())
        good &= right and bool(found.numbers) and found.numbers == first.numbers
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
