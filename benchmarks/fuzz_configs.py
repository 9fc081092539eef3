"""Mutated Hugging Face configurations, through all that a command does with one before it traces.

``python -m benchmarks.fuzz_configs`` takes the configurations of a folder (``--configs``) and small ones of model types
of transformers, and changes one to four places of each copy: a value (of another type, null, negative, zero, huge,
nested), a key (removed, renamed, taken from another configuration), a part (repeated, moved, nested in itself, of
another type, with code or arguments of its own). Each copy is read as ``costproof report hf:FILE`` reads it: the target
is found, with a family its workload is checked and its formulas are evaluated, without one its configuration is read by
transformers. A share of those without a family (``--built``) is also built on meta and its workload checked; only those
are made of small configurations.

Each must end in a result or one of our errors, within 10 s of the processor and 1 GiB above what the process had.
Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.oracles.fuzz_configs import Maker, one

from costproof.ledger import environment
from costproof.ledger.environment import installed

SECONDS: Final = 10


MEMORY: Final = 2**30


BATCH: Final = 500
"""Configurations of one fork."""


BUILT: Final = 0.01


@dataclass(slots=True)
class Tally:
    """What became of the configurations."""

    ends: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, int, str]] = field(default_factory=list)
    """Seconds, number and end of the slowest ten."""
    failed: list[tuple[int, str]] = field(default_factory=list)
    """Number and traceback, of ends that must not be."""

    def take(self, number: int, end: str, seconds: float, trace: str = "") -> None:
        """Note one."""
        self.ends[end] += 1
        self.slowest = sorted([*self.slowest, (seconds, number, end)], reverse=True)[:10]
        if trace or seconds > SECONDS:
            self.failed.append((number, trace or f"{end} after {seconds:.1f} s"))


def batch(make: Maker, numbers: range, folder: Path, out: int) -> None:
    """Go through some configurations, in a fork; a line of JSON for each to ``out``."""
    limit = _virtual() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in numbers:
        made, built = make(number)
        signal.setitimer(signal.ITIMER_PROF, SECONDS + 1)
        signal.alarm(30 * SECONDS)  # waiting costs no time of the processor
        began = time.process_time()
        end, trace = one(folder / "config.json", made, built=built)
        seconds = time.process_time() - began
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        os.write(out, (json.dumps([number, end, seconds, trace[-3500:]]) + "\n").encode())


def _virtual() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def fuzz(make: Maker, numbers: range, folder: Path) -> Iterator[tuple[int, str, float, str]]:
    """Go through configurations in one fork after the other; one that ends its process counts as killed."""
    at = numbers.start
    while at < numbers.stop:
        end_of_batch = min(at + BATCH, numbers.stop)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reading)
            try:
                with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # noqa: SIM117
                    with redirect_stderr(nowhere):
                        batch(make, range(at, end_of_batch), folder, writing)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                number, end, seconds, trace = json.loads(line)
                at = number + 1
                yield number, end, seconds, trace
        _, status = os.waitpid(child, 0)
        if at < end_of_batch:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "process ended"
            yield at, how, 0.0, f"{how}: {json.dumps(make(at)[0])[:1500]}"
            at += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_configs")
    parser.add_argument("--configs", type=Path, default=Path("../shared/configs"), help="folder of config.json files")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--built", type=float, default=BUILT, help="share that is built on meta")
    parser.add_argument("--shown", type=int, default=20, help="failures that are printed")
    given = parser.parse_args()
    prepare()
    make = Maker(given.configs if given.configs.is_dir() else None, given.seed, given.built)
    tally, began = Tally(), time.monotonic()
    with TemporaryDirectory() as folder:
        make.warm(Path(folder))
        print(f"warm after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for number, end, seconds, trace in fuzz(make, range(given.first, given.first + given.count), Path(folder)):
            tally.take(number, end, seconds, trace)
            if trace:
                print(f"--- {number}\n{trace}", file=sys.stderr, flush=True)
            if sum(tally.ends.values()) % 1_000 == 0:
                said = f"{number + 1:,}: {dict(tally.ends)}, {time.monotonic() - began:.0f} s"
                print(said, file=sys.stderr, flush=True)
    print(f"{sum(tally.ends.values()):,} configurations in {time.monotonic() - began:.0f} s")
    for end, count in sorted(tally.ends.items()):
        print(f"  {end:16}{count:>9,}")
    print("slowest:")
    for seconds, number, end in tally.slowest:
        print(f"  {seconds:6.1f} s  {number:>7}  {end}")
    for number, trace in tally.failed[: given.shown]:
        print(f"--- {number}\n{trace}")
    print(f"{len(tally.failed)} failed")
    return 1 if tally.failed else 0


def prepare() -> None:
    """Import what every configuration needs, and let nothing of it speak."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    # It reads the metadata of packages each time.
    setattr(environment, "installed", lru_cache(installed))  # noqa: B010
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
