"""Whether two versions of costproof say the same: ``python -m benchmarks.same_numbers OLD NEW``.

OLD and NEW are folders with a folder of reports for every preset, as ``python -m benchmarks.same_numbers --make NEW``
writes them with the version that is installed. ``static_compute.json`` and ``discrepancy.json`` are compared value by
value, apart from the keys of :data:`RENAMED`, :data:`LEFT_OUT`, :data:`ADDED` and :data:`WORDS`.
Prints what differs; exit 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FILES: Final = ("static_compute.json", "discrepancy.json")
TARGET: Final = "deepseek-ocr"
RENAMED: Final = {"$.workload.page": "$.workload.inputs"}
"""Path in OLD -> path in NEW, where a key has another name now and the same value."""
LEFT_OUT: Final = frozenset({"$.workload.inputs", "$.workload.inputs.grid"})
"""Paths that were null in OLD where there was nothing, and that NEW leaves out, or empty."""
ADDED: Final = frozenset({"$.workload.what", "$.target.changed"})
"""Paths that NEW alone has."""
WORDS: Final = (r"\$\.schema_version", r"\$\.symbols\.\w+\.meaning", r"\$\.formulas\..*\.(title|derivation|source)")
"""Paths of texts for people, and of the version of the format."""


def leaves(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """``(path, value)`` of everything that holds nothing else; empty lists and objects are values."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def renamed(path: str) -> str:
    """The path in NEW of a path in OLD."""
    for old, new in RENAMED.items():
        if path == old or path.startswith((f"{old}.", f"{old}[")):
            return new + path[len(old) :]
    return path


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What differs between two files, apart from the tables above."""
    before = {renamed(path): value for path, value in leaves(old)}
    after = dict(leaves(new))
    for path in dict.fromkeys((*before, *after)):
        if any(re.fullmatch(words, path) for words in WORDS):
            continue
        if path in LEFT_OUT and before.get(path, 0) is None and not after.get(path):
            continue
        if path not in after:
            yield f"{path}: {before[path]!r} is gone"
        elif path not in before:
            if path not in ADDED:
                yield f"{path}: {after[path]!r} is new"
        elif type(before[path]) is not type(after[path]) or before[path] != after[path]:
            yield f"{path}: {before[path]!r} is {after[path]!r} now"


def compared(old: Path, new: Path) -> int:
    """Print what differs between two folders; how many values do."""
    wrong = 0
    for preset in sorted(p.name for p in old.iterdir() if p.is_dir()):
        for name in FILES:
            before, after = (json.loads((folder / preset / name).read_text()) for folder in (old, new))
            found = list(differences(before, after))
            wrong += len(found)
            values = sum(1 for _ in leaves(before))
            print(f"{preset}/{name}: {values:,} values, {len(found)} differ")
            print(*(f"  {line}" for line in found[:20]), sep="\n", end="\n" if found else "")
    return wrong


def make(folder: Path) -> None:
    """Write the reports of every preset."""
    import costproof

    for preset in costproof.workloads(TARGET):
        found = costproof.report(TARGET, preset=preset.name, out=folder / preset.name)
        print(f"{preset.name}: {found.verdict}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if nothing differs."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.same_numbers", description=__doc__)
    options.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="OLD NEW, or NEW with --make")
    options.add_argument("--make", action="store_true", help="write the reports of the installed version first")
    given = options.parse_args(arguments)
    if len(given.folders) not in ((1, 2) if given.make else (2,)):
        options.error("two folders are compared")
    if given.make:
        make(given.folders[-1])
    return 1 if len(given.folders) == 2 and compared(*given.folders) else 0


if __name__ == "__main__":
    raise SystemExit(main())
