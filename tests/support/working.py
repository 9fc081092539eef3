"""Pieces of work for :mod:`tests.test_processes`. Importing this takes no time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from costproof.ledger.errors import BadInput, Problems
from costproof.processes import Pool, Say


def square(number: int, say: Say) -> int:
    """Says half of the way."""
    print("a library prints", number)
    sys.stdin.read()  # and another one reads
    say(number)
    return number * number


def pid(say: Say) -> int:
    """Of the process."""
    return os.getpid()


def parent(say: Say) -> int:
    """Of the process: what forked it."""
    return os.getppid()


def where(module: str, say: Say) -> Any:
    """The folder, and whether a module was there before anybody asked for it."""
    return os.getcwd(), module in sys.modules


def raises(say: Say) -> int:
    """An error that is none of ours."""
    raise ValueError("no such thing\nand a second line")


def refuses(say: Say) -> int:
    """An error of ours."""
    raise Problems("two", [BadInput("a", got=None), BadInput("b", where="here")])


def exits(say: Say) -> int:
    """Ends its process without an answer, as if all were well."""
    os._exit(0)


def dies(say: Say) -> int:
    """Ends its process."""
    print("a warning\nabout to end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def unsendable(say: Say) -> Any:
    """Returns what cannot be pickled."""
    return lambda: 1


def sleeps(say: Say) -> int:
    """With a process of its own that sleeps too."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    say((os.getpid(), other.pid))
    time.sleep(600)
    return 1


def spins(say: Say) -> int:
    """Never lets go of the processor."""
    say((os.getpid(),))
    while True:
        pass


def allocates(say: Say) -> int:
    """Too much."""
    return len(bytearray(8 * 2**30))


def main(ready: tuple[str, ...]) -> None:
    """Begin work that never ends, print the ids of all its processes and wait for it.

    A shell starts what runs in its background with Ctrl-C ignored, and a test suite may run there.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Pool[int](2, ready=ready) as pool:
        list(pool.results({"sleeps": sleeps, "spins": spins}, _tell))


def _tell(name: str, pids: tuple[int, ...]) -> None:
    """In one piece: two threads hear, and a print is several."""
    os.write(sys.stdout.fileno(), f"{' '.join(map(str, pids))}\n".encode())
