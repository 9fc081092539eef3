"""``python -m benchmarks.zoo``: count the model types of transformers, each at a tiny configuration, and compare.

The results are kept in ``docs/zoo.csv``, written after each type; ``docs/zoo.md`` is made from that file. Types that
have a row are not counted again unless they are named on the command line.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Final

from tests.oracles.zoo_count import OUTCOMES, WORKLOAD, Row, counted

from costproof.ledger.environment import environment
from costproof.processes import Limits, Pool

LIMITS: Final = Limits(seconds=600, memory_bytes=6 * 2**30)
PAGE: Final = Path("docs/zoo.md")
DATA: Final = Path("docs/zoo.csv")
_HEAD: Final = """\
Made by `python -m benchmarks.zoo`; do not edit. Every type for which transformers has a model is counted as `hf:`, at a
tiny configuration: `tests/oracles/tiny.py` shrinks that of `tests/models/configs`, or the default one;
`tests/oracles/completed.py` adds values without which a default one does not build or run. Export and run on the meta
device are compared module by module, their total with torch's `FlopCounterMode` on plain runs, extended by rules for
operators that it lacks (attention on the CPU, grouped products, matrix-vector products, recurrent layers, `einsum`).

[zoo.csv](zoo.csv) has every type: outcome and reason, class and its sizes, stages, FLOPs, seconds, peak memory, commit.
The table below lists those that were tried and are not exact."""
_AGREED: Final = ("exact", "explained", "equal")
_UNTRIED: Final = ("not run", "not built")


def model_types() -> list[str]:
    """The types for which transformers has a model."""
    import transformers

    from costproof.models.generic.huggingface import auto_class

    found = []
    for name, config in transformers.CONFIG_MAPPING.items():
        try:
            auto_class(config)
        except Exception:  # a type without a model, or whose code is not there
            continue
        found.append(name)
    return sorted(found)


def rows(names: Sequence[str], processes: int) -> Iterable[Row]:
    """Count types, several in a process one after the other; one that dies takes only itself."""
    with Pool[Row](processes, LIMITS) as pool:
        for outcome in pool.results({name: partial(counted, name) for name in names}):
            row = outcome.answer
            yield row if row is not None else Row(outcome.name, "not counted", why=str(outcome.error))


def read(file: Path) -> dict[str, Row]:
    """Return the rows of a CSV file by type; empty if there is no file."""
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {row["name"]: _row(row) for row in csv.DictReader(lines)}


def _row(cells: Mapping[str, str]) -> Row:
    texts = {name: cells[name] for name in ("name", "outcome", "what", "stages", "why", "unused", "commit")}
    flops = int(cells["flops"]) if cells["flops"] else None
    return Row(**texts, flops=flops, seconds=float(cells["seconds"]), peak_mib=int(cells["peak_mib"]))


def write(file: Path, known: Mapping[str, Row]) -> None:
    """Write all rows as CSV, sorted by type."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        table = csv.DictWriter(lines, [field.name for field in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(known[name]) for name in sorted(known))


def page(names: Sequence[str], known: Mapping[str, Row]) -> str:
    """Return the page: the tally of outcomes, and a row for each type that is not exact."""
    every = [known.get(name, Row(name, "not run")) for name in names]
    tally = Counter(row.outcome for row in every)
    built = sum(tally.values()) - sum(tally[o] for o in _UNTRIED)
    agreed = sum(tally[o] for o in _AGREED)
    part = sum(1 for row in every if row.outcome in _AGREED and row.unused)
    used = environment()
    versions = ", ".join(f"{name} {used[name]}" for name in ("torch", "transformers", "torchlens"))
    sizes = ", ".join(f"{name} {value}" for name, value in WORKLOAD.items())
    lines = [
        "# Model types of transformers",
        "",
        _HEAD,
        "",
        f"{versions}; {sizes}, where a model accepts them. FLOPs are the total of all stages.",
        "",
        f"Of {len(names)} types {built} were built and tried. Of these {agreed} ({agreed / max(built, 1):.1%}) have",
        f"equal FLOPs from all three; in {part} of them the inputs leave modules unused (named in the CSV), which",
        f"the figure leaves out. All rows took {sum(r.seconds for r in every) / 60:.0f} minutes of one process.",
        "",
        "| outcome | types | |",
        "|---|---:|---|",
        *(f"| {outcome} | {tally[outcome]} | {what} |" for outcome, what in OUTCOMES.items() if tally[outcome]),
        "",
        "| type | outcome | reason |",
        "|---|---|---|",
        *(_line(row) for row in every if row.outcome not in (*_UNTRIED, "exact")),
        "",
        f"Not built: {', '.join(row.name for row in every if row.outcome == 'not built')}.",
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    why = shorten(row.why, 90, placeholder=" …").replace("|", "\\|").replace("<", "&lt;")
    return f"| {row.name} | {row.outcome} | {why} |"


def _commit() -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    """Count the types that have no row or are named, and write the data and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="model types to count again [default: those without a row]")
    parser.add_argument("--every", type=int, default=1, help="count only every n-th type by name")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    every = model_types()
    known, commit = read(DATA), _commit()
    for row in rows(args.names or [n for n in every[:: args.every] if n not in known], args.processes):
        known[row.name] = replace(row, commit=commit)
        print(f"{row.name}: {row.outcome} {row.seconds:.1f} s {row.why}", flush=True)
        write(DATA, known)
    PAGE.write_text(page(every, known), encoding="utf-8")
    print(f"wrote {DATA} and {PAGE}")


if __name__ == "__main__":
    main()
