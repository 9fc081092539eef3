"""Writing files: each whole or not at all, several as one as far as a file system allows.

Files are written aside in the folder, made durable, and renamed while no signal interrupts. Whoever writes into a
folder holds its lock, so what lies aside there belongs to a run that died, and is removed.
"""

from __future__ import annotations

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EISDIR
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput

_ASIDE: Final = (".costproof-", ".part")
"""How the name of a file that is not whole yet begins and ends."""
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals with which a person or a system ends a command."""


def write_texts(texts: Mapping[Path, str | bytes], *, gone: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Write all files, or none: aside first, renamed in their order when all are whole.

    Text is written as UTF-8. A link is replaced, not followed; what is neither a file nor a folder (a pipe, a device)
    is written to.

    Args:
        gone: files of an earlier run, which are removed before the first is renamed.

    Returns:
        Which of those there were.

    Raises:
        BadInput: a folder cannot be made or written; nothing new is left behind.
    """
    made: list[Path] = []
    aside = {p: t for p, t in texts.items() if not through(p)}
    path = Path()
    try:
        for path in aside:
            made += reversed([p for p in path.parents if not p.exists()])
            path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as locks:
            for folder in sorted({p.parent for p in aside}):
                locks.enter_context(_locked(folder))
                _sweep(folder)
            parts: list[tuple[str, Path]] = []
            try:
                for path, content in aside.items():
                    _write_aside(path, content, parts)
                with uninterrupted():
                    removed = _commit(parts, gone)
            finally:
                for name, _ in parts:
                    with suppress(OSError):
                        os.unlink(name)
        for folder in {p.parent for p in aside}:
            _durable(folder)
        for path in (p for p in texts if p not in aside):
            _write_through(path, texts[path])
        return removed
    except BaseException as error:
        for new in reversed(made):
            with suppress(OSError):
                new.rmdir()  # only if still empty
        if isinstance(error, OSError):
            raise BadInput(
                "cannot write a file",
                where=str(path),
                expected="a folder that can be written",
                got=error.strerror or type(error).__name__,
                fix="choose another place with -o",
            ) from error
        raise


def write_named(path: Path, content: str | bytes) -> None:
    """Write to what a person named: a link leads to the file that is meant. Errors as for :func:`write_texts`."""
    write_texts({Path(os.path.realpath(path)) if path.is_symlink() and not through(path) else path: content})


def through(path: Path) -> bool:
    """Whether a path is written to as it is: a pipe, a device, a terminal. Renaming over it would replace it."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_through(path: Path, content: str | bytes) -> None:
    with suppress(BrokenPipeError), path.open("wb") as out:  # its reader has enough
        out.write(_bytes(content))


def _write_aside(path: Path, content: str | bytes, parts: list[tuple[str, Path]]) -> None:
    handle, name = tempfile.mkstemp(prefix=_ASIDE[0], suffix=_ASIDE[1], dir=path.parent)
    parts.append((name, path))
    with os.fdopen(handle, "wb") as out:
        out.write(_bytes(content))
        out.flush()
        os.fsync(handle)
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(EISDIR, "Is a directory")
    path.exists()  # a name that is too long is an error now, not when others are renamed


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _commit(parts: Sequence[tuple[str, Path]], gone: Sequence[Path]) -> tuple[Path, ...]:
    mask = os.umask(0)
    os.umask(mask)
    removed = []
    for path in gone:
        with suppress(OSError):  # what is not there, or cannot be removed, stays as it is
            path.unlink()
            removed.append(path)
    for name, path in parts:
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    return tuple(removed)


def _durable(folder: Path) -> None:
    """What was renamed in the folder outlasts a crash of the machine, where its file system can say so."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else writes into the folder, where its file system has locks."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove what somebody who died left aside; whoever lives and writes here has the lock."""
    for left in folder.glob(f"{_ASIDE[0]}*{_ASIDE[1]}"):
        with suppress(OSError):
            left.unlink()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that end a command wait until this is done."""
    if threading.current_thread() is not threading.main_thread():
        yield  # they are for the main thread
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in ENDING:
            before[number] = signal.signal(number, lambda got, _: came.append(got))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for number in came:
        signal.raise_signal(number)
