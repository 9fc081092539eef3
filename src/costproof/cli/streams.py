"""stdout and stderr as a command needs them: a reader that has gone away changes no verdict."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from costproof import foreign
from costproof.ledger.errors import EXIT_INCOMPLETE
from costproof.ledger.writing import ENDING

_exit_now: Final = os._exit  # foreign code runs with another one
_PATIENCE: Final = 2.0
"""Seconds that an interrupted command may take to end."""


class _Outlet(io.RawIOBase):
    """A stream of the process. Once nobody reads it, or nothing more can be written, it leads nowhere."""

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
def tolerant() -> Iterator[None]:
    """Within, a closed stdout or stderr swallows everything, and one whose reader has gone does from then on."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_tolerant(name) for name in ("stdout", "stderr"))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _tolerant(name: str) -> io.TextIOBase:
    given = getattr(sys, name)
    if given is None:
        return open(os.devnull, "w", encoding="utf-8")
    if given is not getattr(sys, f"__{name}__") or os.name != "posix":
        return given  # type: ignore[no-any-return]  # somebody catches the output
    given.flush()
    buffered = io.BufferedWriter(_Outlet(given.fileno()))
    return io.TextIOWrapper(buffered, encoding=given.encoding, errors=given.errors, line_buffering=given.line_buffering)


@contextmanager
def ending() -> Iterator[None]:
    """Within, SIGTERM and a hang-up are what Ctrl-C is: everything that was begun is ended, nothing is left.

    Code that swallows the interrupt, or does not come to an end, has a few seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in ENDING}
    taken = {n: h for n, h in before.items() if h in (signal.SIG_DFL, signal.default_int_handler)}
    late = threading.Timer(_PATIENCE, _give_up)
    late.daemon = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # it was started by an earlier signal
            late.start()
        foreign.interrupt("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        late.cancel()
        for number, handler in taken.items():
            signal.signal(number, handler)


def _give_up() -> None:
    """End without any more code of anybody: other processes end with this one, and no file is half written."""
    os.write(2, b"error: interrupted\n")
    _exit_now(EXIT_INCOMPLETE)
