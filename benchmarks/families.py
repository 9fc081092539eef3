"""``python -m benchmarks.families``: every family at random configurations and runs, by formulas, an export and a run.

Configurations and runs are those that a proof draws: sizes that are equal in a published model are other ones here,
and what a configuration chooses is chosen at random. A proof compares them with an export alone; here all three count,
with TorchLens and every layer, and what they say is compared module by module. A pair that transformers does not run
(it makes no such model) is passed over, and counted as such.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.families_count import REFUSED, Row, counted
from costproof.models.known import KNOWN
from costproof.models.registry import TARGETS
from costproof.processes import Limits, Pool

LIMITS: Final = Limits(seconds=3600, memory_bytes=6 * 2**30)
"""Of all pairs of a family."""
PAIRS: Final = 20
SEED: Final = 20


def families() -> list[str]:
    """Our own targets without the presets, which are configurations of these."""
    presets = {known.name for known in KNOWN}
    return [p.name for p in TARGETS.ours if p.name not in presets]


def read(file: Path) -> list[Row]:
    """The rows of a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Row(**json.loads(line)) for line in lines]


def summary(rows: Sequence[Row]) -> str:
    """The table, in Markdown: one line for each family."""
    columns = ("pairs", "exact", "quantities", "layers", "not run", "s")
    lines = [f"| family | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for family, group in groupby(sorted(rows, key=lambda r: (r.family, r.number)), key=lambda r: r.family):
        every = list(group)
        ran = [row for row in every if row.outcome != REFUSED]
        depths = [row.layers for row in ran] or [0]
        lines.append(
            f"| {family} | {len(ran)} | {sum(row.outcome == 'exact' for row in ran)} "
            f"| {sum(row.quantities for row in ran):,} | {min(depths)}–{max(depths)} "
            f"| {len(every) - len(ran)} | {sum(row.seconds for row in every):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Count the families that are not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("names", nargs="*", help="families; all if none is named")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of a configuration and a run, of every family")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, default=Path("out/families.jsonl"), help="the file of the outcomes")
    args = parser.parse_args()
    known = read(args.rows)
    args.rows.parent.mkdir(parents=True, exist_ok=True)

    def hear(family: str, row: Any) -> None:
        print(f"{family} {row.number}: {row.outcome} {row.seconds} s {row.why}", flush=True)
        with args.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    work = {
        name: partial(counted, name, args.seed, args.pairs, [r for r in known if r.family == name])
        for name in args.names or families()
    }
    with Pool[int](args.processes, LIMITS) as pool:
        for outcome in pool.results(work, hear):
            if outcome.error is not None or outcome.answer != args.pairs:
                print(f"{outcome.name}: {outcome.answer} of {args.pairs} pairs {outcome.error or ''}", flush=True)
    print(summary(read(args.rows)))


if __name__ == "__main__":
    main()
