"""Writing files: each whole or not at all, several as one as far as a file system allows.

Files are written aside in the folder, made durable, and renamed while no signal interrupts. Whoever writes into a
folder holds its lock, so what lies aside there belongs to a run that died, and is removed.
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
"""Of a file: text, which is written as UTF-8, bytes, or a finished file beside it, which is moved there."""
_OPEN: Final = re.compile(r"/dev/fd|/proc/([0-9]+)(/task/[0-9]+)?/fd")
"""A folder of the open files of a process."""


def write_texts(
    texts: Mapping[Path, Content], *, gone: Sequence[Path] = (), mode: int = 0o777, durable: bool = True
) -> tuple[Path, ...]:
    """Write all files, or none: aside first, renamed in their order when all are whole.

    A file that is replaced keeps its permissions and, where this process may set them, its owner and group; its other
    hard links keep the old content. A read-only file is refused. A link leads where :func:`places` says; a pipe or a
    device is written to, and stays.

    Args:
        gone: files of an earlier run, which are removed before the first is renamed; links stay.
        mode: permissions of a folder that is made for the files.
        durable: wait until the files would outlast a crash of the machine.

    Returns:
        Which of those there were.

    Raises:
        BadInput: a folder cannot be made or written, or a link leads out of it; nothing new is left behind.
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
    """Write to what a person named: a link leads to the file that is meant. Errors as for :func:`write_texts`."""
    try:
        named = resolve_named(path)
    except OSError as error:
        raise write_error(path, error) from error
    write_texts({named: content})


def places(paths: Iterable[Path]) -> list[Path]:
    """Return where files of a folder are written: a link leads to a place in its folder, or to a device.

    Whoever made the folder need not be who writes there, and must not choose which file of theirs is overwritten.

    Raises:
        BadInput: a link leads to a place outside of its folder, in a circle, or to another of the files.
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
    """Return the file that a person means who names a path: a link leads to it, whether it is there or not.

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
    """Whether a path is written to as it is: a pipe, a device, an open file. Renaming over it would replace it."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return (not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)) or _descriptor(path) is not None


@contextmanager
def open_in_place(path: Path) -> Iterator[BinaryIO]:
    """Open what is written to as it is; when its reader has gone, the rest is dropped.

    Raises:
        BadInput: it cannot be opened, or not be written to.
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
    """A stream whose reader may go."""

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
    """Return the number of the open file of this process that a path such as ``/dev/stdout`` names."""
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
    """Return what the system says against writing there, as an error of ours."""
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
    """Return what is known of the file that will be replaced; ``None``: there is none.

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
        with suppress(OSError):  # what is not there, or cannot be removed, stays as it is
            if not os.path.islink(path):
                path.unlink()
                removed.append(path)
    for part, path in parts:
        os.replace(part, path)
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
