"""The same commands under other versions: ``make test-versions``, or ``python -m tests.versions SET…``.

Each set of versions has an environment of its own in ``FOLDER/SET``, made of its constraints by its Python; ``here`` is
the one that runs this. The commands end as they should, and all sets tell the same integers: those of reports, and
those that the other commands print about the models that they name. It needs the network and some gigabytes for each
set, so it is not a part of ``make test``. A run of the usual sets writes its table into docs/versions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
PRINTS: Final = ("explain", "check", "derive")
"""Commands whose output holds numbers of a model, not of this machine."""
PAGE: Final = ROOT / "docs" / "versions.md"
MARKS: Final = ("<!-- written by make test-versions -->\n", "<!-- end -->\n")
SHOWN: Final = ("python", "torch", "transformers", "torchlens", "sympy")


@dataclass(frozen=True, slots=True)
class Tried:
    """One set."""

    versions: dict[str, str]
    codes: dict[str, int]
    numbers: dict[str, list[Any]]
    """Report, or command that prints numbers -> all its integers."""


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
        codes: dict[str, int] = {}
        numbers: dict[str, list[Any]] = {}
        for name, (line, _) in COMMANDS.items():
            command = [str(python), "-P", "-m", "costproof", *(part.format(out=folder) for part in line)]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True)
            codes[name] = done.returncode
            if done.returncode != COMMANDS[name][1]:
                print(f"{name} ended with {done.returncode}:\n{done.stderr}", file=sys.stderr)
            if name in PRINTS:
                # Versions of sympy write the terms of a sum in different orders.
                numbers[name] = sorted(int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", done.stdout))
        versions: dict[str, str] = {}
        for path in sorted(Path(folder).glob("*/static_compute.json")):
            written = json.loads(path.read_text(encoding="utf-8"))
            numbers[path.parent.name] = sorted(integers([written["totals"], written["stages"]]))
            versions = written["environment"]
    return Tried(versions, codes, numbers)


def integers(data: object, path: str = "") -> Iterator[tuple[str, int]]:
    """All integers in a piece of a file, each with its place."""
    if isinstance(data, int):
        yield path, data
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from integers(value, f"{path}.{key}")


def row(name: str, found: Tried, first: Tried) -> str:
    """A line of the table in docs/versions.md."""
    versions = [found.versions.get(p, "") for p in SHOWN]
    ends = [str(code) + ("" if code == COMMANDS[c][1] else " (wrong)") for c, code in found.codes.items()]
    counts = [
        f"{report} {len(numbers):,}" + ("" if numbers == first.numbers.get(report) else " (not the same)")
        for report, numbers in sorted(found.numbers.items())
    ]
    same = "the same" if found is not first and found.numbers == first.numbers else ", ".join(counts)
    return "| " + " | ".join([name, *versions, " ".join(ends), same]) + " |"


def main() -> int:
    """Try the sets and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["oldest", "pinned", "newest"], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-versions", help="where the environments are made")
    options = parser.parse_args()
    chosen = options.sets
    columns = ["set", *SHOWN, "exit codes", "integers"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    print("\n".join(lines), flush=True)
    first: Tried | None = None
    good = True
    for name in chosen:
        found = tried(python_of(name, options.folder.resolve()))
        first = first or found
        lines.append(row(name, found, first))
        print(lines[-1], flush=True)
        right = all(code == COMMANDS[c][1] for c, code in found.codes.items())
        good &= right and bool(found.numbers) and found.numbers == first.numbers
    if chosen == parser.get_default("sets"):
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        end = rest.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n" + "\n".join(lines) + f"\n\n{MARKS[1]}{end}", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
