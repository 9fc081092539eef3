"""Attribution by exhaustion: ``python -m benchmarks.attribution [TARGET …]``.

For every key of a configuration, and for every pair of keys, a change that is a model. For every metric and stage the
terms and the shares add up to what the whole ledgers differ by, which are evaluated the ordinary way, node by node; and
without one key's change exactly the terms with that key are gone. ``--pairs N`` draws as many pairs of each target.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from typing import Final

from tests.oracles.attribution import Exhausted

from costproof.configs.config import keys_of
from costproof.models.registry import load_target

TARGETS: Final = ("deepseek-ocr", "qwen3-30b-a3b")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 1 if something does not add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of each target, drawn at random (all)")
    given = parser.parse_args(arguments)
    failed = 0
    print("| target | keys | changes of one key | of two | as one player | differences split | wrong | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.targets:
        start = time.monotonic()
        of = Exhausted.of(load_target(name))
        singles = of.singles_found()
        pairs = list(of.pairs())
        if given.pairs is not None and given.pairs < len(pairs):
            pairs = random.Random(given.pairs).sample(pairs, given.pairs)
        wrong = [line for changes in (*singles, *pairs) for line in of.wrong(changes)]
        for line in wrong[:20]:
            print(line, file=sys.stderr)
        counts = (len(keys_of(of.target.config)), len(singles), len(pairs), of.merged, of.splits, len(wrong))
        print(f"| {name} | {' | '.join(f'{n:,}' for n in counts)} | {time.monotonic() - start:.0f} |", flush=True)
        if of.without:
            shown = ", ".join(" with ".join(pair) for pair in of.without)
            print(f"No change found of {shown}.", file=sys.stderr)
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
