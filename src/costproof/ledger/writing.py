"""Write files atomically, each completely or not at all, and several together as far as possible.

Files are written to temporary names in the same folder, flushed, and renamed while signals are blocked. A writer locks
the folder, so temporary files of dead runs can be recognized and removed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EACCES, EISDIR, ELOOP
from io import BufferedWriter, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, cast

from costproof.ledger.aside import aside, lock_folder, sweep
from costproof.ledger.ending import ENDING
from costproof.ledger.errors import BadInput

Content: TypeAlias = str | bytes | Path
"""Content of a file: text (written as UTF-8), bytes, or the path of a finished file in the same folder to move."""
_OPEN: Final = re.compile(r"/dev/fd|/proc/([0-9]+)(/task/[0-9]+)?/fd")
"""Matches the folder of a process's open file descriptors."""


def write_texts(
    texts: Mapping[Path, Content], *, gone: Sequence[Path] = (), mode: int = 0o777, durable: bool = True
) -> tuple[Path, ...]:
    """Write all files or none, by writing temporary files and renaming them when all are complete.

    A replaced file keeps its permissions and, if this process may set them, its owner and group; its other hard links
    keep the old content. A read-only file is refused. Links are resolved as in :func:`places`; pipes and devices are
    written in place.

    Args:
        gone: files of an earlier run, which are removed before the first rename; links stay.
        mode: permissions of folders created for the files.
        durable: wait until the files would survive a crash of the machine.

    Returns:
        The files of ``gone`` that existed.

    Raises:
        BadInput: a folder cannot be created or written, or a link leads out of it; nothing new is left behind.
    """
    made: list[Path] = []
    texts = dict(zip(places(texts), texts.values(), strict=True))
    files = {p: t for p, t in texts.items() if not written_in_place(p)}
    path = Path()
    try:
        for path in files:
            made += reversed([p for p in path.parents if not p.exists()])
            path.parent.mkdir(parents=True, exist_ok=True, mode=mode)
        with ExitStack() as locks:
            for folder in sorted({p.parent for p in files}):
                alone = locks.enter_context(lock_folder(folder))
                sweep(folder, alone=alone)
            parts: list[tuple[Path, Path]] = []
            try:
                for path, content in files.items():
                    _write_aside(path, content, parts, durable)
                with uninterrupted():
                    removed = _commit(parts, gone)
            finally:
                for part, _ in parts:
                    with suppress(OSError):
                        part.unlink()
        if durable:
            for folder in {p.parent for p in files}:
                _durable(folder)
        for path in (p for p in texts if p not in files):
            _write_in_place(path, texts[path])
        return removed
    except BaseException as error:
        for new in reversed(made):
            with suppress(OSError):
                new.rmdir()  # only if still empty
        if isinstance(error, OSError):
            raise write_error(path, error) from error
        raise


def write_named(path: Path, content: Content) -> None:
    """Write the file that a user named, following links; raises the errors of :func:`write_texts`."""
    try:
        named = resolve_named(path)
    except OSError as error:
        raise write_error(path, error) from error
    write_texts({named: content})


def places(paths: Iterable[Path]) -> list[Path]:
    """Return the paths to which a folder's files are written, with links inside the folder resolved.

    Whoever created the folder may be another user, and must not choose which file of the writer is overwritten.

    Raises:
        BadInput: a link leads out of its folder, in a circle, or to another of the files.
    """
    named: dict[Path, Path] = {}
    found: list[Path] = []
    for path in paths:
        place = path
        if os.path.islink(path) and not written_in_place(path):
            try:
                place = resolve_named(path)
            except OSError as error:
                raise write_error(path, error) from error
            if not place.is_relative_to(os.path.realpath(path.parent)):
                raise BadInput(
                    "a link leads out of the folder",
                    where=str(path),
                    expected="a file, or a link to a place in the same folder",
                    got=f"a link to {place}",
                    fix="remove the link, or choose another folder with -o",
                )
        other = named.setdefault(Path(os.path.realpath(place)), path)
        if other is not path and not written_in_place(place):
            fix = "remove the link, or choose another folder with -o"
            raise BadInput("two outputs are one file", where=str(path), got=f"{other} is {place} too", fix=fix)
        found.append(place)
    return found


def resolve_named(path: Path) -> Path:
    """Return the file to which a user's path leads, following links, whether or not the file exists.

    Raises:
        OSError: links lead in a circle.
    """
    if written_in_place(path) or not path.is_symlink():
        return path
    found = Path(os.path.realpath(path))
    if found.is_symlink():
        raise OSError(ELOOP, os.strerror(ELOOP))
    return found


def written_in_place(path: Path) -> bool:
    """Return whether a path is a pipe, a device or an open file, which a rename would replace."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return (not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)) or _descriptor(path) is not None


@contextmanager
def open_in_place(path: Path) -> Iterator[BinaryIO]:
    """Open a path that is written in place, such as a pipe; output is dropped once its reader has exited.

    Raises:
        BadInput: it cannot be opened or written.
    """
    number = _descriptor(path)
    try:
        # An open file goes on where it is: to open it by its name would cut it off.
        raw = path.open("wb", buffering=0) if number is None else os.fdopen(os.dup(number), "wb", buffering=0)
        with raw, BufferedWriter(_PipeWriter(raw)) as out:
            yield cast("BinaryIO", out)
    except OSError as error:
        raise write_error(path, error) from error


class _PipeWriter(RawIOBase):
    """Stream that discards output once the reader of its pipe has exited."""

    def __init__(self, raw: RawIOBase) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:
        try:
            return self._raw.write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _descriptor(path: Path) -> int | None:
    """Return the open file descriptor that a path such as ``/dev/stdout`` names."""
    found = os.path.abspath(path)
    for _ in range(40):  # links, as many as the system follows
        folder, name = os.path.split(found)
        folder = os.path.realpath(folder)
        if (of := _OPEN.fullmatch(folder)) and name.isdecimal():
            return int(name) if of[1] in (None, str(os.getpid())) else None
        found = os.path.join(folder, name)
        if not os.path.islink(found):
            return None
        found = os.path.join(folder, os.readlink(found))
    return None


def write_error(path: Path, error: OSError) -> BadInput:
    """Return the error for a file that the operating system refuses to write."""
    return BadInput(
        "cannot write a file",
        where=str(path),
        expected="a folder that can be written",
        got=error.strerror or type(error).__name__,
        fix="choose another place with -o",
    )


def _write_in_place(path: Path, content: Content) -> None:
    with open_in_place(path) as out:
        if isinstance(content, Path):
            with content.open("rb") as source:
                shutil.copyfileobj(source, out)
        else:
            out.write(_bytes(content))


def _write_aside(path: Path, content: Content, parts: list[tuple[Path, Path]], durable: bool) -> None:
    before = check_replaceable(path)
    part = content if isinstance(content, Path) else aside(path.parent)
    parts.append((part, path))
    creating = 0 if isinstance(content, Path) else os.O_CREAT | os.O_EXCL
    flags = os.O_WRONLY | creating | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(part, flags, 0o666), "wb") as out:
        if before is not None and hasattr(os, "fchown"):
            with suppress(OSError):
                os.fchown(out.fileno(), before.st_uid, before.st_gid)
            os.fchmod(out.fileno(), before.st_mode & 0o777)
        if not isinstance(content, Path):
            out.write(_bytes(content))
            out.flush()
        if durable:
            os.fsync(out.fileno())


def check_replaceable(path: Path) -> os.stat_result | None:
    """Return the status of the file that will be replaced, or ``None`` if there is none.

    Raises:
        OSError: it must not be replaced.
    """
    try:
        known = path.lstat()  # a name that is too long is an error now, not when others are renamed
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(known.st_mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if not stat.S_ISREG(known.st_mode):
        return None
    if not known.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise PermissionError(EACCES, "the file is read-only")
    return known


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _commit(parts: Sequence[tuple[Path, Path]], gone: Sequence[Path]) -> tuple[Path, ...]:
    removed = []
    for path in gone:
        with suppress(OSError):  # a file that does not exist or cannot be removed is ignored
            if not os.path.islink(path):
                path.unlink()
                removed.append(path)
    for part, path in parts:
        os.replace(part, path)
    return tuple(removed)


def _durable(folder: Path) -> None:
    """Flush the renames in a folder to disk, if the file system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay signals that would end the command while the block runs."""
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
