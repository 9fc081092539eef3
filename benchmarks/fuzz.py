"""Hostile and random inputs for everything that reads published claims.

``python -m benchmarks.fuzz`` feeds 100,000 texts to the parsers of formulas, printed numbers and claims
files: valid formulas, mutated ones, random tokens, attempts to reach Python, towers of powers, deep
nesting, YAML bombs. Each must give a value or one of our errors, within a second, without opening a
file, starting a process or importing a module, and in bounded memory. Values of accepted formulas are
computed as well. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence

from tests.oracles.fuzz import fuzz


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every input was read or refused, quickly and harmlessly."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    options.add_argument("--inputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=11)
    given = options.parse_args(arguments)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    outcome = fuzz(given.inputs, given.seed)
    total = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    for name, number in sorted(outcome.ended.items()):
        print(f"{name:28}{number:>9,}")
    for line in outcome.bad[:20]:
        print(f"bad: {line}")
    print(f"slowest: {outcome.slowest:.2f} s, {outcome.slowest_input}")
    fed = sum(outcome.ended.values()) + len(outcome.bad)
    print(f"inputs {fed:,}, bad {len(outcome.bad)}, {total:.0f} s, memory grown by {grown} MiB")
    # Two cores may be busy with other things: what hangs takes minutes, not seconds.
    return 0 if not outcome.bad and outcome.slowest < 5 and grown < 1024 else 1


if __name__ == "__main__":
    sys.exit(main())
