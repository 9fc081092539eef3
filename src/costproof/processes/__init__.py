"""Run tasks in worker processes: a pool, limits of time and memory, and messages from running tasks.

A task is a function that can be pickled. A worker reads its tasks from stdin: it is not a fork of this process, and no
``multiprocessing`` child that would import the caller's script again, so it works from a notebook too. It ends as
soon as its stdin does, so no worker outlives this process, however this one ends.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from costproof.ledger.errors import CostproofError
from costproof.processes.child import Child, Failed, Late, environment_now, failure

__all__ = ["Failed", "Late", "Limits", "Outcome", "Pool", "Say", "Work", "failure"]

R = TypeVar("R")
Say = Callable[[Any], None]
"""Callback by which a task sends messages to the process that started it: progress, or a part of the result."""
Work = Callable[[Say], R]
"""A task: a function of a :data:`Say` callback that can be pickled, such as a ``functools.partial``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one task; 0 means no limit."""

    seconds: int = 0
    memory_bytes: int = 0
    """Limit of the private memory of the worker process."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """Result or failure of a task."""

    name: str
    answer: R | None = None
    error: CostproofError | None = None
    """Why the task has no result."""

    def result(self) -> R:
        """Return the result of the task, or raise its error.

        Raises:
            CostproofError: there is none.
        """
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]


Hear = Callable[[str, Any], None]
"""Callback with the name of a task and each message from it, called on a separate thread."""


class Pool(Generic[R]):
    """Pool of worker processes with one task queue; a context manager that ends the processes."""

    def __init__(
        self, processes: int, limits: Limits | None = None, *, fresh: bool = False, ready: tuple[str, ...] = ()
    ) -> None:
        """Create the pool; worker processes start when tasks arrive.

        Args:
            fresh: each task has a process of its own, so that none meets what another left behind.
            ready: modules that every task needs and that take long to import: where it is possible, that is done once
                for all pools. They must not have begun threads nor a device when they are imported.
        """
        self.processes = processes
        self.ready = ready
        self.limits = limits or Limits()
        self.fresh = fresh
        self._children: list[Child] = []
        self._threads: list[threading.Thread] = []
        self._environment: dict[str, str] = {}
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
        """Start all tasks, and yield the outcome of each in order of completion.

        Args:
            work: by name; taken up in this order.
            hear: what listens to the work.
        """
        todo: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        done: queue.SimpleQueue[Outcome[R]] = queue.SimpleQueue()
        self._environment = environment_now()
        for name, piece in work.items():
            todo.put((name, pickle.dumps(piece)))
        for _ in range(min(self.processes, len(work))):
            self._threads.append(threading.Thread(target=self._serve, args=(todo, done, hear), daemon=True))
            self._threads[-1].start()
        return (done.get() for _ in work)

    def _serve(
        self, todo: queue.SimpleQueue[tuple[str, bytes]], done: queue.SimpleQueue[Outcome[R]], hear: Hear
    ) -> None:
        """Run queued tasks in one worker; if the worker dies, only its current task fails, and another one starts."""
        child: Child | None = None
        try:
            while True:
                name, order = todo.get_nowait()
                try:
                    child = child or self._start()
                    outcome = Outcome(name, child.do(order, self.limits.seconds, partial(hear, name)))
                except CostproofError as error:
                    outcome = Outcome(name, error=error)
                except _Closed:
                    raise
                except Exception as error:  # there is no room for a process, or code of others is in the way
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

    def _start(self) -> Child:
        with self._lock:
            if self._closed:
                raise _Closed
            self._children.append(self._child())
            return self._children[-1]

    def _child(self) -> Child:
        alone = self.processes == 1
        return Child(self.limits.memory_bytes, self._environment, alone=alone, ready=self.ready)

    def _end(self, child: Child) -> None:
        with self._lock:
            self._children.remove(child)
        child.end()


class _Closed(Exception):
    """Raised in the threads of a pool that has been closed."""
