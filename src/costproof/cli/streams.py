"""Manage stdout, stderr, library warnings and signals of a command, so that they cannot change its exit code."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final

from costproof import foreign
from costproof.cli.entry import end_now
from costproof.ledger.ending import ENDING
from costproof.ledger.plural import plural

_PATIENCE: Final = 2.0
"""Seconds after which an interrupted command that is still running is ended."""
_DONE: Final = b"\0"
"""Byte written to the signal pipe to stop watching it."""


class _TolerantRaw(io.RawIOBase):
    """Raw stream that discards output once its reader has exited."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._number, data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._number)
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            raise


@contextmanager
def tolerant_streams() -> Iterator[None]:
    """Make stdout and stderr discard output inside the context if they are closed or their reader has exited."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_tolerant_stream(name) for name in ("stdout", "stderr"))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _tolerant_stream(name: str) -> io.TextIOBase:
    given = getattr(sys, name)
    if given is None:
        return open(os.devnull, "w", encoding="utf-8")
    if given is not getattr(sys, f"__{name}__") or os.name != "posix":
        return given  # type: ignore[no-any-return]  # somebody catches the output
    given.flush()
    buffered = io.BufferedWriter(_TolerantRaw(given.fileno()))
    by_line = given.line_buffering or given.write_through  # the latter alone with PYTHONUNBUFFERED
    return io.TextIOWrapper(buffered, encoding=given.encoding, errors=given.errors, line_buffering=by_line)


class LibraryAdvice:
    """Log messages and warnings that libraries emit during a command, printed as a summary."""

    def __init__(self) -> None:
        self.shown = False
        """Whether messages are printed on stderr immediately."""
        self.quiet = False
        """Whether the summary line is omitted too."""
        self._said: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, owner: str, text: str) -> None:
        """Record a message instead of printing it."""
        with self._lock:
            line = f"{owner}: {' '.join(text.split())}"
            self._said[line] = self._said.get(line, 0) + 1

    @property
    def line(self) -> str:
        """Return all messages in one line; empty if there are none."""
        with self._lock:
            many = sum(self._said.values())
            if not many:
                return ""
            first = next(iter(self._said))[:_SHOWN]
            return f"note: libraries gave {plural(many, 'warning')}, -v shows them; the first: {first}"


ADVICE: Final = LibraryAdvice()
_SHOWN: Final = 120


@contextmanager
def held_advice() -> Iterator[LibraryAdvice]:
    """Record log messages and warnings of libraries inside the context, unless ``ADVICE.shown``.

    Handlers that do not write to stderr, such as a test's, still get their records.
    """
    import logging
    import warnings

    ADVICE.__init__()  # type: ignore[misc]  # of an earlier command of this process
    emit, warn = logging.StreamHandler.emit, warnings.showwarning

    def emitted(handler: logging.StreamHandler[Any], record: logging.LogRecord) -> None:
        if ADVICE.shown or not _is_stderr(getattr(handler, "stream", None)):
            emit(handler, record)
        else:
            ADVICE.take(record.name.partition(".")[0], record.getMessage())

    def warned(message: Warning | str, category: type[Warning], file: str, line: int, *rest: Any, **more: Any) -> None:
        if ADVICE.shown:
            warn(message, category, file, line, *rest, **more)
        else:
            ADVICE.take(category.__name__, str(message))

    logging.StreamHandler.emit = emitted  # type: ignore[method-assign, assignment]
    warnings.showwarning = warned  # type: ignore[assignment]
    try:
        yield ADVICE
    finally:
        logging.StreamHandler.emit = emit  # type: ignore[method-assign]
        warnings.showwarning = warn


def _is_stderr(stream: object) -> bool:
    stream = foreign.original(stream)
    if stream in (foreign.original(sys.stderr), sys.__stderr__):
        return True
    try:
        return stream.fileno() == 2  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def ending_signals() -> Iterator[list[int]]:
    """Handle SIGTERM and SIGHUP like Ctrl-C while the block runs; yield the signals received.

    The first signal raises ``KeyboardInterrupt``. While a module is imported, foreign code would turn that into another
    exception, so the process ends at once. It also ends if code swallows the interrupt or does not end within a few
    seconds. Later signals have no effect.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {n: signal.getsignal(n) for n in ENDING}
    taken = {n: h for n, h in before.items() if h in (signal.SIG_DFL, signal.default_int_handler, end_now)}

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            return
        if _importing(frame):
            end_now(number)
        foreign.interrupt(ENDING[number])

    def unraisable(said: Any) -> None:
        if came and isinstance(said.exc_value, KeyboardInterrupt):
            end_now(came[0])
        hook(said)

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    with _watched(frozenset(taken)):
        for number in taken:
            signal.signal(number, interrupt)
        try:
            yield came
        finally:
            for number, handler in taken.items():
                signal.signal(number, handler)
            sys.unraisablehook = hook


def _importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def _watched(numbers: Collection[int]) -> Iterator[None]:
    """End the process a few seconds after a signal, even if the main thread does not react."""
    with ExitStack() as ends:
        reading, writing = (
            ends.enter_context(os.fdopen(fd, mode, 0)) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        foreign.own(reading, writing)
        os.set_blocking(writing.fileno(), False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        watching = threading.Thread(target=_watch, args=(reading.fileno(), numbers), daemon=True)
        watching.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.set_blocking(writing.fileno(), True)
            writing.write(_DONE)  # closing it ends nothing where a fork of foreign code holds it open
            watching.join()


def _watch(reading: int, numbers: Collection[int]) -> None:
    while (got := os.read(reading, 1)) != _DONE and got[0] not in numbers:
        pass  # of another signal
    number, until = got[0], time.monotonic() + _PATIENCE
    while got != _DONE:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            end_now(number)
        got = os.read(reading, 1)
