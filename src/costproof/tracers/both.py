"""Static and dynamic source at once, on two cores: the dynamic one runs in a process of its own.

The second process is a plain Python that reads its order from stdin, not a fork and not a
``multiprocessing`` child: it works from a notebook, and from a script without a main guard.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from costproof.graph.ownership import Progress, silent
from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.target import Target


class Spec(Protocol):
    """A target as plain data that can be sent to another process."""

    def load(self) -> Target:
        """Build the target."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Both graph sources of one run."""

    static: Ledger
    dynamic: Any
    """A :class:`costproof.tracers.dynamic.DynamicResult`."""


def trace_sources(spec: Spec, workload: Workload, progress: Progress = silent, *, all_calls: bool = False) -> Sources:
    """Static and dynamic ledger of a target, made at the same time.

    ``progress`` is called from a second thread too, with ``static: …`` and ``dynamic: …``. ``all_calls`` is
    :func:`~costproof.tracers.dynamic.dynamic_ledger`'s.

    Raises:
        Incomplete: one of the sources failed, or its process died.
    """
    worker = Worker(
        spec, workload, lambda what, done, total: progress(f"dynamic: {what}", done, total), all_calls=all_calls
    )
    try:
        from costproof.tracers.static import static_ledger

        static = static_ledger(
            spec.load(), workload, lambda what, done, total: progress(f"static: {what}", done, total)
        )
        return Sources(static, worker.result())
    finally:
        worker.stop()


class Worker:
    """The dynamic source in a process of its own."""

    def __init__(self, spec: Spec, workload: Workload, progress: Progress, *, all_calls: bool = False) -> None:
        self.answer: Any = None
        self.error: BaseException | None = None
        paths = [p for p in sys.path if p]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "costproof.tracers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((spec, workload, all_calls), self.process.stdin)
        self.process.stdin.close()
        self.thread = threading.Thread(target=self._listen, args=(self.process.stdout, progress), daemon=True)
        self.thread.start()

    def result(self) -> Any:
        """Wait for the answer.

        Raises:
            CostproofError: what the source raised.
            Incomplete: the process died without an answer.
        """
        self.thread.join()
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise Incomplete(
                "the process of the dynamic source died",
                where="costproof.tracers.worker",
                got=f"exit code {self.process.wait()}",
                fix="free some memory (it needs about 1.5 GB) and run again",
            )
        return self.answer

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.thread.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _listen(self, stream: IO[bytes], progress: Progress) -> None:
        while True:
            try:
                kind, data = pickle.load(stream)
            except (EOFError, pickle.UnpicklingError, ValueError, OSError):
                return
            if kind == "progress":
                progress(*data)
            elif kind == "error":
                self.error = data
            else:
                self.answer = data


def portable(error: BaseException) -> CostproofError:
    """The error in a form that survives pickling: errors with several problems become their text."""
    if isinstance(error, CostproofError):
        with suppress(Exception):  # then its text has to do
            if str(pickle.loads(pickle.dumps(error))) == str(error):
                return error
        copy = CostproofError(str(error))
        copy.exit_code = error.exit_code
        return copy
    return Incomplete("the dynamic source failed", got=first_line(error))
