"""How many errors planted into operator rules and accounting are found, and by whom; without any unit test.

``python -m benchmarks.rule_mutations`` exports and traces a tiny DeepSeek-OCR at its default workload and at an odd
one (three pages, other grids, shared key/value heads, eleven decode steps), and a small module with the operators
that it lacks; once. Then every error of ``rule_errors.txt`` is put into its function, graphs and traces are costed and
compared again, and the function is put back. *Sources*: formulas, static and dynamic differ. *Judge*: the second
judge of the run says otherwise. *Located*: the findings name the modules and metrics that the error changed, and no
others. Exit 1 unless all are found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.oracles.rule_mutations import Error, Outcome, errors, judge
from tests.oracles.rule_subjects import subjects

from costproof.compare.compare import compare
from costproof.opgraph.rules.registry import registered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every error is found somewhere."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.rule_mutations", description=__doc__)
    options.add_argument("--only", default="", help="errors whose line contains this")
    options.add_argument("--table", type=Path, help="also write the table there")
    given = options.parse_args(arguments)
    registered()
    start = time.perf_counter()
    every = subjects()
    clean = {s.name: s.capture() for s in every}
    for name, capture in clean.items():
        print(
            f"{name}: {compare(capture).verdict} before planting, {time.perf_counter() - start:.0f} s", file=sys.stderr
        )
    outcomes: dict[Error, dict[str, Outcome]] = {}
    for error in (e for e in errors() if given.only in e.name):
        outcomes[error] = {s.name: judge(s, clean[s.name], error) for s in every}
        at = outcomes[error].values()
        missed = not any(o.sources or o.judge for o in at)
        unlocated = [f"{n}: {o.said}" for n, o in outcomes[error].items() if o.there and not o.located]
        if missed or unlocated:
            print(f"{'NOT FOUND' if missed else 'not located'}: {error.name} | {'; '.join(unlocated)}", file=sys.stderr)
    text = table(outcomes, [s.name for s in every])
    print(text)
    found = sum(any(o.sources or o.judge for o in at.values()) for at in outcomes.values())
    failing = sum(any(o.fails for o in at.values()) for at in outcomes.values())
    print(
        f"planted {len(outcomes)}, found {found} ({failing} because counting fails), "
        f"{time.perf_counter() - start:.0f} s"
    )
    if given.table:
        given.table.write_text(text + "\n", encoding="utf-8")
    return 0 if found == len(outcomes) else 1


def table(outcomes: Mapping[Error, Mapping[str, Outcome]], names: Sequence[str]) -> str:
    """Planted, found and located, by subject and by kind of error."""
    lines = [f"{'':26}{'there':>8}{'sources':>9}{'judge':>8}{'report':>8}{'located':>9}"]

    @cache
    def row(label: str, rows: tuple[Outcome, ...]) -> str:
        counts = [sum(map(pick, rows)) for pick in _COLUMNS]
        return f"{label:26}{counts[0]:>8}{counts[1]:>9}{counts[2]:>8}{counts[3]:>8}{counts[4]:>9}"

    lines += [row(name, tuple(at[name] for at in outcomes.values() if at[name].there)) for name in names]
    best = {error: _best(at.values()) for error, at in outcomes.items()}
    lines += [row("anywhere", tuple(best.values())), ""]
    kinds = dict.fromkeys(e.kind for e in outcomes)
    lines += [row(kind, tuple(o for e, o in best.items() if e.kind == kind)) for kind in kinds]
    return "\n".join(lines)


_COLUMNS: tuple[Callable[[Outcome], bool], ...] = (
    lambda o: o.there, lambda o: o.sources, lambda o: o.judge, lambda o: o.sources or o.judge, lambda o: o.located,
)  # fmt: skip


def _best(at: Any) -> Outcome:
    """An error over all subjects: found and located if it is so anywhere."""
    outcomes = list(at)
    there, sources, by_judge, located = (any(map(pick, outcomes)) for pick in (*_COLUMNS[:3], _COLUMNS[4]))
    return Outcome(there, sources, by_judge, located, "")


if __name__ == "__main__":
    sys.exit(main())
