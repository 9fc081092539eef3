"""Pieces of work in processes of their own.

The other process is a plain Python that reads its orders from stdin: no fork, and no
``multiprocessing`` child that would import the caller's script again.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from costproof.ledger.errors import CostproofError, first_line

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Work(Protocol[R_co]):
    """A piece of work that can be pickled."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    def run(self) -> R_co:
        """Do it."""
        ...


class Pool(Generic[R]):
    """A few processes that take pieces of work from one queue; a context manager that ends them."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Pool[R]:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            with suppress(OSError):
                child.kill()
            child.wait()

    def results(self, work: Sequence[Work[R]]) -> Iterator[tuple[Work[R], R | str]]:
        """Each piece with its result, as they finish; a text in place of a result says why there is none."""
        todo: queue.SimpleQueue[Work[R]] = queue.SimpleQueue()
        for piece in work:
            todo.put(piece)
        done: queue.SimpleQueue[tuple[Work[R], R | str]] = queue.SimpleQueue()
        for _ in range(min(self.processes, len(work))):
            child = _start()
            self.children.append(child)
            threading.Thread(target=_feed, args=(child, todo, done), daemon=True).start()
        for _ in work:
            yield done.get()


def _start() -> subprocess.Popen[bytes]:
    paths = [p for p in sys.path if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", "from costproof.processes import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _feed(
    child: subprocess.Popen[bytes],
    todo: queue.SimpleQueue[Work[R]],
    done: queue.SimpleQueue[tuple[Work[R], R | str]],
) -> None:
    """Hand one piece after the other to a process; one that died takes its piece with it, not the others."""
    while True:
        try:
            piece = todo.get_nowait()
        except queue.Empty:
            return
        result: Any
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            pickle.dump(piece, child.stdin)
            child.stdin.flush()
            result = pickle.load(child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            child.wait()
            result = f"the process that worked on it died with code {child.returncode}"
            child = _start()
        done.put((piece, result))


def serve() -> None:
    """The other process: orders on stdin, answers on stdout, until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    while True:
        try:
            piece = pickle.load(sys.stdin.buffer)
        except (EOFError, KeyboardInterrupt):
            return
        try:
            result = piece.run()
        except KeyboardInterrupt:
            return
        except CostproofError as error:
            result = str(error)
        except Exception as error:
            result = first_line(error)
        pickle.dump(result, answers)
        answers.flush()
