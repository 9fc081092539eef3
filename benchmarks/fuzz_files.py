"""Damaged files for everything that reads data: captures, claims, configurations, baselines, certificates.

``python -m benchmarks.fuzz_files`` changes a good file in one to four random places (a value, a key, a part taken out,
put twice or moved) and does with it what the commands do: a capture is read, compared and rendered in one format after
the other, claims are read and judged, a configuration is read and counted by its formulas, a baseline is read, the
proof of a certificate is laid out. Each ends in a result or one of our errors, within ten seconds, and all of them
within 1 GiB of memory. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.oracles.fuzz_files import KINDS, fuzzed


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(KINDS), action="append")
    chosen = parser.parse_args()
    bad = 0
    with TemporaryDirectory() as folder:
        for kind in chosen.only or KINDS:
            ends, slowest, traces = fuzzed(kind, chosen.inputs, chosen.seed, Path(folder) / "x.json")
            said = ", ".join(f"{count:,} {how}" for how, count in ends.most_common())
            print(f"{kind}: {said}; the slowest took {slowest:.1f} s", *traces[:5], sep="\n  ", flush=True)
            bad += len(traces) + (slowest > 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory {peak} MiB")
    return 1 if bad or peak > 1024 else 0


if __name__ == "__main__":
    sys.exit(main())
