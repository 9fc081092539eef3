"""Start worker processes, send them tasks, and run the task loop inside them."""

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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Final

from costproof.foreign import as_command, own, running
from costproof.ledger.errors import CostproofError, Incomplete, first_line, message_of
from costproof.ledger.offline import OFFLINE
from costproof.processes.template import Forked, starting, template

_LONGEST: Final = 300
"""Longest part of a stderr line of other code that is shown, in characters."""


class Failed(Incomplete):
    """Raised if a task failed with a foreign exception or its worker died; ``what`` is a one-line description."""


class Late(Failed):
    """Raised if a task exceeded its time limit."""


class Child:
    """The parent's handle of a worker process."""

    def __init__(
        self, memory_bytes: int, environment: Mapping[str, str], *, alone: bool, ready: tuple[str, ...] = ()
    ) -> None:
        """Start the process.

        Args:
            environment: what :func:`environment_now` returned before foreign code could change the environment.
            ready: modules that are imported already; the process is a fork of one that keeps them, if it can be.
        """
        self.dead = False
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the process ends)
        own(self.said)
        threads = {} if alone else {"OMP_NUM_THREADS": "1"}  # the other processes have the other cores
        environment = {**environment, **threads}
        kept = template(ready, environment)
        self.process: Forked | subprocess.Popen[bytes]
        if kept is not None:
            self.process = kept.fork(self.said.fileno(), memory_bytes)
            return
        with starting():
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from costproof.processes.child import serve; serve({memory_bytes})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                env=environment,
                start_new_session=True,  # a process group of its own, so that processes started by the work end with it
            )
            own(self.process.stdin, self.process.stdout)

    def do(self, order: bytes, seconds: int, hear: Callable[[Any], None]) -> Any:
        """Send a pickled task to the worker, and return its result.

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
        """Kill the worker process and every process that it started."""
        if self.process.returncode is None:
            with suppress(OSError):
                _end_group(self.process.pid)

    def end(self) -> None:
        """Kill the process, and close its pipes."""
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.said):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def _how_it_ended(self) -> str:
        """Return a text with the exit code of the worker and the last line that it wrote to stderr."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)  # it has closed its pipe, so it is about to end
        self.kill()
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").strip().splitlines()
        last = f": {lines[-1][:_LONGEST]}" if lines else ""
        return f"its process ended with {self.process.wait()}{last}"


def environment_now() -> dict[str, str]:
    """Return the environment variables for a worker: those of this process, offline, with a safe import path."""
    return {**os.environ, **OFFLINE, **safe_path()}


def safe_path() -> dict[str, str]:
    """Return variables with which another Python finds the same packages, and none in the current folder.

    A downloaded model is where people work: a ``bisect.py`` beside its configuration is not the library's.
    """
    return {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONSAFEPATH": "1"}


def failure(error: BaseException, memory_bytes: int = 0) -> CostproofError:
    """Convert an exception of a task to an error that can be pickled."""
    if isinstance(error, CostproofError):
        return error
    if memory_bytes and (isinstance(error, MemoryError) or "can't allocate memory" in message_of(error)):
        return Failed(f"needs more memory than its limit of {memory_bytes // 2**20:,} MiB")
    found = Failed(first_line(error))
    found.add_note("".join(traceback.format_exception(error)))
    return found


def serve(memory_bytes: int) -> None:
    """Run the worker: read tasks from stdin and write results to stdout, until stdin ends."""
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
            with as_command(), running("the code that was called ends the program"):
                answer = pickle.loads(order)(lambda said: send("said", said))
            send("answer", answer)
        except BrokenPipeError:
            return
        except BaseException as error:
            send("error", failure(error, memory_bytes))


def _listen(orders: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    """Read tasks from stdin while another one is running; end the worker process when stdin ends."""
    try:
        while True:
            inbox.put(pickle.load(orders))  # bytes, which the main thread decodes
    finally:
        _end_group(os.getpid())


def _end_group(leader: int) -> None:
    """Kill a process and every process that it started."""
    if hasattr(os, "killpg"):
        os.killpg(leader, signal.SIGKILL)
    else:
        os.kill(leader, signal.SIGTERM)
