"""Work in another Python: one protocol for all that runs outside this process.

A piece of work is a function that can be pickled. The other process is a plain Python that reads its orders from
stdin: no fork, and no ``multiprocessing`` child that would import the caller's script again, so it works from a
notebook too. It ends as soon as its stdin does, so nothing outlives this process, however this one ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, Generic, TypeVar

from costproof.ledger.errors import CostproofError, Incomplete, first_line

R = TypeVar("R")
Say = Callable[[Any], None]
"""Tells the process that ordered the work something while it goes on: progress, a part of the answer."""
Work = Callable[[Say], R]
"""A piece of work: anything that can be pickled, such as a ``functools.partial`` of a function of a module."""

_LONGEST: Final = 300
"""Characters of a line that other code wrote."""


class Failed(Incomplete):
    """Work ended with an error that is none of ours, or with its process; ``what`` says it in one line."""


class Late(Failed):
    """Work took longer than it may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one piece of work may use; 0 for no limit."""

    seconds: int = 0
    memory_bytes: int = 0
    """Of private memory, for the whole process."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """How a piece of work ended."""

    name: str
    answer: R | None = None
    error: CostproofError | None = None
    """Why there is no answer."""

    def result(self) -> R:
        """The answer.

        Raises:
            CostproofError: there is none.
        """
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]


Hear = Callable[[str, Any], None]
"""Called with the name of a piece of work and what it says, from a thread of its own."""


class Pool(Generic[R]):
    """A few processes that take pieces of work from one queue; a context manager that ends them."""

    def __init__(self, processes: int, limits: Limits | None = None, *, fresh: bool = False) -> None:
        """``fresh``: each piece has a process of its own, so that none meets what another left behind."""
        self.processes = processes
        self.limits = limits or Limits()
        self.fresh = fresh
        self._children: list[_Child] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Pool[R]:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()
        for thread in self._threads:
            thread.join()

    def results(self, work: Mapping[str, Work[R]], hear: Hear = lambda name, said: None) -> Iterator[Outcome[R]]:
        """Begin at once, and yield how each piece ended, in the order in which they do.

        Args:
            work: by name; taken up in this order.
            hear: what listens to the work.
        """
        todo: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        done: queue.SimpleQueue[Outcome[R]] = queue.SimpleQueue()
        for name, piece in work.items():
            todo.put((name, pickle.dumps(piece)))
        for _ in range(min(self.processes, len(work))):
            self._threads.append(threading.Thread(target=self._serve, args=(todo, done, hear), daemon=True))
            self._threads[-1].start()
        return (done.get() for _ in work)

    def _serve(
        self, todo: queue.SimpleQueue[tuple[str, bytes]], done: queue.SimpleQueue[Outcome[R]], hear: Hear
    ) -> None:
        """Hand one piece after the other to a process. One that dies takes its piece with it, not the others."""
        child: _Child | None = None
        try:
            while True:
                name, order = todo.get_nowait()
                try:
                    child = child or self._start()
                    outcome = Outcome(name, child.do(order, self.limits.seconds, partial(hear, name)))
                except CostproofError as error:
                    outcome = Outcome(name, error=error)
                except OSError as error:  # there is no room for a process
                    outcome = Outcome(name, error=failure(error))
                done.put(outcome)
                if child is not None and (self.fresh or child.dead):
                    self._end(child)
                    child = None
        except (queue.Empty, _Closed):
            pass
        finally:
            if child is not None:
                self._end(child)

    def _start(self) -> _Child:
        with self._lock:
            if self._closed:
                raise _Closed
            self._children.append(_Child(self.limits.memory_bytes, alone=self.processes == 1))
            return self._children[-1]

    def _end(self, child: _Child) -> None:
        with self._lock:
            self._children.remove(child)
        child.end()


class _Closed(Exception):
    """Nobody waits for the pool any more."""


class _Child:
    """One other process."""

    def __init__(self, memory_bytes: int, *, alone: bool) -> None:
        self.dead = False
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the process ends)
        paths = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        threads = {} if alone else {"OMP_NUM_THREADS": "1"}  # the other processes have the other cores
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from costproof.processes import serve; serve({memory_bytes})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env={**os.environ, **paths, **threads},
            start_new_session=True,  # a group of its own: what the work starts ends with it
        )

    def do(self, order: bytes, seconds: int, hear: Callable[[Any], None]) -> Any:
        """The answer to an order.

        Raises:
            CostproofError: the work raised it.
            Failed: it raised something else, or ended without an answer.
        """
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        if seconds:
            timer.start()
        try:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            pickle.dump(order, self.process.stdin)
            self.process.stdin.flush()
            while True:
                kind, data = pickle.load(self.process.stdout)
                if kind == "answer":
                    return data
                if kind == "error":
                    raise data
                hear(data)
        except CostproofError:
            raise
        except Exception as error:
            self.dead = True
            if late.is_set():
                raise Late(f"took longer than {seconds} s") from None
            if not isinstance(error, (EOFError, OSError, pickle.UnpicklingError)):
                raise failure(error) from error
            raise Failed(self._how_it_ended()) from None
        finally:
            timer.cancel()
            self.dead |= late.is_set()

    def kill(self) -> None:
        """End the process and all that it started."""
        if self.process.returncode is None:
            with suppress(OSError):
                _end_group(self.process.pid)

    def end(self) -> None:
        """:meth:`kill`, and close what belongs to the process."""
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.said):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _how_it_ended(self) -> str:
        """Its code, and the last line that it wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)  # it has closed its pipe, so it is about to end
        self.kill()
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:_LONGEST]}" if lines else ""
        return f"its process ended with {self.process.wait()}{last}"


def failure(error: BaseException, memory_bytes: int = 0) -> CostproofError:
    """An error of a piece of work, as one that can be sent."""
    if isinstance(error, CostproofError):
        return error
    if memory_bytes and (isinstance(error, MemoryError) or "can't allocate memory" in str(error)):
        return Failed(f"needs more memory than its limit of {memory_bytes // 2**20:,} MiB")
    found = Failed(first_line(error))
    found.add_note("".join(traceback.format_exception(error)))
    return found


def serve(memory_bytes: int) -> None:
    """The other process: orders on stdin, answers on stdout, until stdin ends."""
    answers, orders = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # whatever a library prints must not get between the answers
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if memory_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, inbox), daemon=True).start()

    def send(kind: str, data: object) -> None:
        message = pickle.dumps((kind, data))  # before anything is written: it may fail
        answers.write(message)
        answers.flush()

    while True:
        order = inbox.get()
        try:
            send("answer", pickle.loads(order)(lambda said: send("said", said)))
        except BrokenPipeError:
            return
        except BaseException as error:
            send("error", failure(error, memory_bytes))


def _listen(orders: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Read orders while the work goes on. The end of stdin is the end of whoever ordered it, and of all this."""
    try:
        while True:
            inbox.put(pickle.load(orders))  # bytes: what is in them is for the main thread
    finally:
        _end_group(os.getpid())


def _end_group(leader: int) -> None:
    """End a process and all that it started."""
    if hasattr(os, "killpg"):
        os.killpg(leader, signal.SIGKILL)
    else:
        os.kill(leader, signal.SIGTERM)
