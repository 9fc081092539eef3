"""Start a command, with signal handlers installed before anything large is imported.

Nothing has begun while modules are imported, so a signal then ends the process at once. A signal before this module,
while Python itself starts, cannot be handled by any program.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import os
import sys

from costproof.ledger.ending import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:  # see costproof/__init__.py
    from types import FrameType
    from typing import NoReturn

AGAIN = "run the command again; no file was left half written"
_INTERRUPTED = 3
_exit_now = os._exit  # foreign code runs with another one


def main() -> int:
    """Run the command line of this process and return its exit code."""
    ended: list[int] = []
    atexit.register(_leave, ended)  # the first to be registered is the last to be called
    heard = [n for n in ENDING if _signal.getsignal(n) in (_signal.SIG_DFL, _signal.default_int_handler)]
    for number in heard:
        _signal.signal(number, end_now)
    try:
        from costproof.cli.main import run
        from costproof.foreign import as_command, running

        ended.append(run())
    except KeyboardInterrupt:  # at the very end of a command
        end_now(_signal.SIGINT)
    for number in heard:
        _signal.signal(number, lambda *_: _leave(ended))
    try:
        with as_command(), running("a function that is called at exit ends the program"):
            atexit._run_exitfuncs()  # here, where they print to stderr and cannot choose the exit code
    finally:
        _leave(ended)
    return ended[0]


def end_now(number: int, frame: FrameType | None = None) -> NoReturn:
    """End the process without running any more code; its child processes end with it."""
    shown = "\r\x1b[?25h" if os.isatty(2) else ""  # a progress bar may have hidden the cursor
    try:
        os.write(2, f"{shown}error: interrupted\n  got:      {ENDING[number]}\n  fix:      {AGAIN}\n".encode())
    finally:
        _exit_now(_INTERRUPTED)


def _leave(ended: list[int]) -> None:
    """End the process with a command's exit code, skipping the shutdown of the interpreter.

    Shutdown takes seconds after torch was imported, and a signal meanwhile would change the exit code.
    """
    if not ended:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        _exit_now(ended[0])
