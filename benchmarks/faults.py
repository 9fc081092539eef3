"""Ends of commands that nobody planned: kill -9, SIGTERM and Ctrl-C at random moments.

``python -m benchmarks.faults`` runs commands again and again, each kind in one folder, and ends each run at a random
moment: three of four anywhere in it, one of four in its first 0.4 s, which are imports. After every one:

- no process that it started is alive 5 s later;
- every output is whole: as a whole run writes it, or of a whole run of the same schema where it holds measured times;
  the folder of a report is that of one run, or refused for being that of two;
- after SIGTERM and Ctrl-C the exit code is 3 and stderr one message, or the run had ended. What Python does with a
  signal before it runs any code of ours, no program can change; that is over after 50 ms of a processor.

The next whole run leaves nothing of those that died: in its folder, in the cache, in the folder of temporary files. A
sweep that went on where it ended has the same bytes as one that did not end. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.oracles.faults import COMMANDS, SIGNALS, Found, Place, Whole, end, place

_IMPORTS: Final = 0.4


def tried(arguments: Sequence[str], where: Place, moments: int, seed: int) -> Found:
    """A command, ended at so many moments with each of the signals in turn, and at last a whole run."""
    Whole.of(arguments, where)  # fills the cache
    began = time.monotonic()
    whole = Whole.of(arguments, where)
    took, found, draw = time.monotonic() - began, Found(), random.Random(seed)
    if whole.code not in (0, 1, 3):
        found.faults.append(f"a whole run ended with {whole.code}")
    for i in range(moments):
        last = _IMPORTS if i % 4 == 3 else took
        end(arguments, where, SIGNALS[i % len(SIGNALS)], draw.uniform(0, last), whole, found)
    again = Whole.of(arguments, where)
    if again.code != whole.code:
        found.faults.append("the last whole run ended otherwise than the first")
    found.faults += [f"of the last whole run: {name} is not whole" for name in sorted(whole.damaged(where))]
    if left := again.names - whole.names:
        found.faults.append(f"left over: {', '.join(sorted(left))}")
    return found


def main() -> int:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100, help="for each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(COMMANDS), action="append")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
    faults = 0
    for name in chosen.only or COMMANDS:
        with TemporaryDirectory() as folder:
            found = tried(COMMANDS[name], place(Path(folder) / "here"), chosen.moments, chosen.seed)
        ends, early = (", ".join(f"{c}: {n}" for c, n in sorted(codes.items())) for codes in (found.codes, found.early))
        before = f"; while Python started: {early}" if early else ""
        counts = f"{found.moments} moments, {found.mixed} refused as mixed, {len(found.faults)} faults"
        print(f"{name}: {counts} ({ends}{before})", flush=True)
        for fault in found.faults:
            print(f"  {fault}", flush=True)
        faults += len(found.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
