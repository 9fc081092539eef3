"""Guard calls into foreign code: factories, rule files, plug-ins, and remote code of models.

Code that runs in this process cannot be stopped from doing harm on purpose. What code does by accident, or because it
was written as a script, is contained: it exits, prints, changes the folder, the environment or torch's defaults.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from costproof.ledger.errors import NOT_GIVEN, BadInput, Bug, CostproofError, first_line
from costproof.saved_settings import SavedSettings

_exit_now: Final = os._exit
_close: Final = os.close
_close_range: Final = os.closerange
_process_id: Final = os.getpid
_HERE: Final = str(Path(__file__).parent) + os.sep
_REPLACED: Final = ("_exit", "execv", "execve", "abort")
"""Functions of :mod:`os` that end this program at once."""
_ADVICE: Final = "uninstall it, or ask its authors; COSTPROOF_DEBUG=1 shows the traceback"

_signals, _last = 0, "Ctrl-C"
"""Number of signals that have interrupted this process, and the name of the last one."""
_putting_back = False
_command = False
"""Whether this process is a costproof command or its worker, whose standard streams belong to costproof too."""
_kept_open: list[int] = []
"""Duplicates of stdin, stdout and stderr, which processes forked by foreign code must close."""
_own_files: WeakSet[Any] = WeakSet()
"""Open pipes, sockets and files of costproof, which foreign code cannot close and which forked processes release."""
_owners: dict[str, str] = {}
"""Plug-ins that were loaded, with their distribution, by the files and folders that belong to them."""
_skipped: dict[str, BadInput] = {}
"""Plug-ins that cannot be used and that the command ignores, by error message."""
_lock = threading.RLock()
"""Lock that lets one thread at a time run foreign code, since all threads share the streams and the state."""


def interrupt(name: str) -> None:
    """Raise ``KeyboardInterrupt`` for a signal, recorded so that it differs from one that foreign code raises.

    While the state of the process is put back, it is raised at the end of that.
    """
    global _signals, _last
    _signals, _last = _signals + 1, name
    if not _putting_back:
        raise KeyboardInterrupt(name)


@contextmanager
def as_command() -> Iterator[None]:
    """Guard all calls into foreign code that this process makes in the block, as :func:`running` does."""
    global _command
    before, _command = _command, True
    _skipped.clear()  # of an earlier command of this process, as are the owners
    _owners.clear()
    try:
        yield
    finally:
        _command = before


def own(*files: Any) -> None:
    """Register the open files, pipes and sockets of costproof, so that foreign code cannot close them."""
    _own_files.update(files)


def in_command() -> bool:
    """Return whether this process is a costproof command or a worker of one."""
    return _command


@contextmanager
def contained(
    what: str,
    where: str,
    *,
    root: str | os.PathLike[str] | None = None,
    expected: object = NOT_GIVEN,
    fix: str | None = None,
    state: bool = True,
) -> Iterator[None]:
    """Run foreign code in the block: convert its exceptions to ``BadInput``, and restore process state afterwards.

    What it prints goes to stderr. A process that it forks and that comes back ends here.

    Args:
        what: the message if it fails: "the factory failed".
        where: the place of the code, for the message.
        root: the file or folder of the code, to find the line; the first frame outside costproof unless given.
        expected: the message's.
        fix: the message's.
        state: look after the state of the process too, which takes some milliseconds. Code that is not expected to
            change it waits for no other thread: that one guards the streams, and may wait for this one.

    Raises:
        BadInput: the code raised something, ended the program, replaced functions of torch, or changed this process in
            a way that cannot be undone. A command ends with its process, so that is nothing there.
        KeyboardInterrupt: a signal interrupted it.
        CostproofError: the code raised it.
    """
    lock = _lock
    held = lock.acquire(blocking=state)
    try:
        with _Block(_State(everything=state)) if held else _Converted() as block:
            yield
    finally:
        if held:
            lock.release()
    failed = block.failed
    if isinstance(failed, CostproofError) and not isinstance(failed, Bug):
        raise failed
    if failed is not None:
        got = _text_of(failed, root)
        raise BadInput(what, where=where, expected=expected, got=got, fix=fix) from failed
    if block.left and not _command:
        raise BadInput(
            "the code changes this process in a way that cannot be undone", where=where, got="; ".join(block.left),
            fix="count it with the costproof command, whose process ends afterwards",
        )  # fmt: skip
    if block.replaced:
        advice = "replace them in the forward of the module, and put them back"
        raise BadInput("code replaces functions of torch", where=where, got=", ".join(block.replaced), fix=advice)


@contextmanager
def running(what: str) -> Iterator[None]:
    """Run a block that calls foreign code, such as a module's forward; exceptions of that code pass through.

    Within :func:`as_command` prints go to stderr, and no function of :mod:`os` ends the process.

    Args:
        what: the message if the foreign code ends the program.

    Raises:
        BadInput: the foreign code ended the program.
        KeyboardInterrupt: a signal interrupted it.
    """
    if not _command:
        process = os.getpid()
        try:
            yield
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise _ended(what, error) from error
        finally:
            if os.getpid() != process:
                _exit_now(1)
        return
    with _lock, _Block(_State(everything=True)) as block:
        yield
    if block.failed is not None:
        if isinstance(block.failed, Exception):
            raise block.failed
        raise _ended(what, block.failed) from block.failed


def owned(root: str, owner: str) -> None:
    """Record which plug-in a file or folder belongs to, for :func:`blamed`."""
    _owners[root] = owner


def blamed(error: BaseException) -> BadInput | None:
    """Return an error that names the plug-in in whose code an exception arose, or ``None``."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    for root, owner in _owners.items():
        if any(file == root or file.startswith(os.path.join(root, "")) for file in files):
            return BadInput("a plug-in failed", where=owner, got=_text_of(error, root), fix=_ADVICE)
    return None


def skip(error: BadInput) -> None:
    """Record that a plug-in cannot be used, for a later note."""
    _skipped[error.line] = error


def skipped() -> tuple[BadInput, ...]:
    """Return and clear the errors that :func:`skip` recorded."""
    found = tuple(_skipped.values())
    _skipped.clear()
    return found


def _ended(what: str, error: BaseException) -> BadInput:
    return BadInput(what, got=_text_of(error), fix="remove what ends the program, or raise an error")


class _Converted:
    """Context of a call into foreign code while another thread guards the process: catches exceptions only."""

    def __init__(self) -> None:
        self.failed: BaseException | None = None
        self.replaced: list[str] = []
        self.left: list[str] = []

    def __enter__(self) -> _Converted:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> bool:
        self.failed = error
        return not isinstance(error, KeyboardInterrupt)


class _Block:
    """Context of a call into foreign code, which converts exceptions and restores state."""

    def __init__(self, state: _State) -> None:
        self._state, self._process, self._signals = state, os.getpid(), _signals
        self._undo = ExitStack()
        self.failed: BaseException | None = None
        self.replaced: list[str] = []
        """Functions of torch, and hooks for all modules, that the foreign code replaced."""
        self.left: list[str] = []
        """Names of state that could not be restored."""

    def __enter__(self) -> _Block:
        self._undo.enter_context(_replaced(self._process))
        self._undo.enter_context(self._state.streams())
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> bool:
        """Restore the state, and convert the exception.

        Raises:
            KeyboardInterrupt: a signal interrupted the code, whatever that made of it.
        """
        global _putting_back
        if _process_id() != self._process:
            _exit_now(1)  # a fork that foreign code made: the process that it was forked from goes on
        _putting_back = True
        try:
            self._state.settings.put_back_builtins()  # the next lines call them
            self._undo.close()
            self.replaced, self.left = self._state.put_back()
        finally:
            _putting_back = False
        if _signals != self._signals:
            raise error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt(_last) from error
        self.failed = error
        return True


def _text_of(error: BaseException, root: str | os.PathLike[str] | None = None) -> str:
    line = line_of(error, root)
    return first_line(error) + (f" ({line})" if line else "")


def line_of(error: BaseException, root: str | os.PathLike[str] | None = None) -> str | None:
    """Return the file and line in foreign code that raised an error, such as ``model.py:12``, or ``None``."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [(file, line) for file, line in frames if not file.startswith((_HERE, "<")) and not _is_standard(file)]
    if root is not None:
        beneath = str(root) if Path(root).is_file() else os.path.join(root, "")
        own = [(file, line) for file, line in frames if file.startswith(beneath)]
    else:
        own = [(file, line) for file, line in frames if not file.startswith(_PACKAGES)]
    found = (own or frames)[-1:]
    return f"{Path(found[0][0]).name}:{found[0][1]}" if found else None


_STANDARD: Final = sysconfig.get_path("stdlib") + os.sep
_PACKAGES: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def _is_standard(file: str) -> bool:
    """Return whether a file belongs to Python itself or to a package that replaces a module of Python."""
    if f"{os.sep}importlib_metadata{os.sep}" in file:
        return True
    return file.startswith(_STANDARD) and not file.startswith(os.path.join(_STANDARD, "site-packages"))


class _State:
    """Snapshot of the process state that foreign code may change."""

    def __init__(self, *, everything: bool) -> None:
        self.settings = SavedSettings(everything=everything)
        self._taken = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._taken:
            signal.signal(signal.SIGINT, lambda *_: interrupt("Ctrl-C"))

    @contextmanager
    def streams(self) -> Iterator[None]:
        """Redirect prints to stderr while the block runs, and keep standard streams open."""
        for stream in (sys.stdout, sys.__stdout__):
            with suppress(Exception):
                stream.flush()  # type: ignore[union-attr]  # its errors are for whoever writes the report
        saved = [(number, copy) for number in (0, 1, 2) if (copy := _copy(number)) is not None]
        owned = original(sys.stderr)
        lent = [None if owned is None else _lent(owned) for _ in range(2)]
        _kept_open.extend(copy for _, copy in saved)
        with suppress(OSError):
            os.dup2(2, 1)
        try:
            with redirect_stdout(lent[0]), redirect_stderr(lent[1]):
                yield
        finally:
            for stream in (sys.__stdout__, *lent, owned):
                with suppress(Exception):
                    stream.flush()  # to stderr, while stdout leads there
            for number, copy in saved:
                os.dup2(copy, number)
                _kept_open.remove(copy)
                _close(copy)

    def put_back(self) -> tuple[list[str], list[str]]:
        """Restore the state; return (replaced torch functions, state that could not be restored)."""
        replaced = self.settings.put_back()
        if self._taken:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return replaced, [] if _command else self.settings.differences()


class _Into(io.RawIOBase):
    """Byte stream that writes to another text stream, and does not close it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def isatty(self) -> bool:
        return bool(self.stream.isatty())

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = bytes(data)
        self.stream.write(self._decoder.decode(text))
        return len(text)

    def flush(self) -> None:
        if not self.closed:
            self.stream.flush()


def _lent(stream: Any) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(_Into(stream))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="", line_buffering=True)


def original(stream: Any) -> Any:
    """Return the stream of this process that a redirected stream wraps; return other streams unchanged."""
    with suppress(AttributeError, ValueError):  # it may have been closed or detached
        return original(stream.buffer.raw.stream)
    return stream


@contextmanager
def _replaced(process: int) -> Iterator[None]:
    """Make functions that end the process raise ``SystemExit`` while the block runs, and protect costproof's files.

    Forks end as they want.
    """

    def raising(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if os.getpid() != process:
                return original(*arguments, **named)
            raise SystemExit(f"os.{name}")

        return call

    modules = [os, *(module for module in (sys.modules.get(os.name),) if module is not None)]
    originals = {name: getattr(os, name) for name in (*_REPLACED, "close", "closerange")}
    replacements = {name: raising(name, originals[name]) for name in _REPLACED}
    try:
        for module in modules:
            vars(module).update(replacements, close=_close_others, closerange=_close_range_of_others)
        yield
    finally:
        for module in modules:
            vars(module).update(originals)


def _own_numbers() -> list[int]:
    """Return the file descriptors that foreign code must not close, sorted."""
    found = set(_kept_open)
    for file in list(_own_files):
        with suppress(OSError, ValueError):  # it is closed
            found.add(file.fileno())
    return sorted(found)


def _close_others(fd: int) -> None:
    if fd in _own_numbers():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _close(fd)


def _close_range_of_others(fd_low: int, fd_high: int, /) -> None:
    for number in _own_numbers():
        if fd_low <= number < fd_high:
            _close_range(fd_low, number)
            fd_low = number + 1
    _close_range(fd_low, fd_high)


def _in_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it
    numbers = _own_numbers()
    _kept_open.clear()
    _own_files.clear()
    if numbers:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(nowhere, number, inheritable=False)  # its owner may still close the number
        _close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)


def _copy(number: int) -> int | None:
    """Return a duplicate of a file descriptor, or ``None`` if it is closed."""
    try:
        return os.dup(number)
    except OSError:
        return None
