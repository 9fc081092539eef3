"""Create temporary files and folders, and remove those that dead processes left behind.

Their names match :data:`ASIDE`; a folder also contains a mark, which is locked while a process uses the folder. Nothing
else is ever removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, EINVAL, ENOTEMPTY
from pathlib import Path
from typing import BinaryIO, Final, cast

from costproof.ledger.errors import BadInput

ASIDE: Final = re.compile(r"\.costproof-\w+\.part")
"""Matches the names of unfinished files and folders."""
MARK: Final = "costproof.mark"
"""Name of the file that marks a folder of unfinished files as costproof's."""
_MARKED: Final = b'{"schema": "costproof/parts", "schema_version": "1.0"}\n'
_DAY: Final = 24 * 3600.0


def aside(folder: Path) -> Path:
    """Return the path of a new temporary file or folder in a folder."""
    return folder / f".costproof-{secrets.token_hex(8)}.part"


@contextmanager
def lock_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder against other writing processes while the block runs; yield whether locks are supported."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def sweep(folder: Path, *, alone: bool) -> None:
    """Remove temporary files of dead processes from a folder.

    Args:
        alone: whether the folder is locked, so that every temporary file belongs to a dead process; otherwise only
            files older than a day are removed.
    """
    with suppress(OSError):
        found = [Path(entry.path) for entry in os.scandir(folder) if ASIDE.fullmatch(entry.name)]
        for path in found:
            with suppress(OSError):
                known = path.lstat()
                old = time.time() - known.st_mtime > _DAY
                if hasattr(os, "geteuid") and known.st_uid != os.geteuid():
                    continue  # in the system's folder of temporary files
                if not stat.S_ISDIR(known.st_mode):
                    if alone or old:
                        path.unlink()
                elif (path / MARK).exists():
                    with suppress(BadInput), take(path / MARK, "r+b", "in use") as mark:
                        if mark.read() == _MARKED:  # it is written when its lock is held
                            shutil.rmtree(path)
                elif old:
                    shutil.rmtree(path)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a new folder for temporary files, and remove folders that killed processes left behind."""
    root = Path(tempfile.gettempdir())
    sweep(root, alone=False)
    folder = aside(root)
    try:
        folder.mkdir(mode=0o700)
        with _marked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_parts_folder(folder: Path, *, busy: str) -> Iterator[None]:
    """Lock a folder for the parts of an unfinished file while the block runs; the parts survive an interruption.

    Raises:
        BadInput: the folder was not created by this program, or another process holds it (message ``busy``).
        OSError: the folder cannot be created.
    """
    while True:
        if not os.path.lexists(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = aside(folder.parent)
            try:
                made.mkdir()
                with _marked(made):
                    made.rename(folder)
            except OSError as error:
                if error.errno not in (EEXIST, ENOTEMPTY):  # another process was quicker
                    raise
            finally:
                shutil.rmtree(made, ignore_errors=True)
        if not _ours(folder):
            raise BadInput(
                "the folder for the parts of this output exists, and costproof did not make it",
                where=str(folder),
                expected=f"no folder, or one with a file {MARK}",
                fix="rename it, or write elsewhere",
            )
        try:
            mark = take(folder / MARK, "r+b", busy)
        except FileNotFoundError:
            continue  # another process has just finished
        with mark:
            yield
            return


def remove_parts(folder: Path, ours: re.Pattern[str]) -> None:
    """Remove a folder of parts, unless it contains files with other names."""
    with suppress(OSError):
        remove_files(folder, ours)
        if os.listdir(folder) == [MARK]:
            gone = aside(folder.parent)
            folder.rename(gone)  # at once: a folder without its mark would be a stranger's
            shutil.rmtree(gone)
        else:
            (folder / MARK).unlink()


def remove_files(folder: Path, ours: re.Pattern[str], kept: Collection[str] = ()) -> None:
    """Remove unfinished files, and files whose names match ``ours``, from a folder of parts."""
    for name in os.listdir(folder):
        if name not in kept and (ours.fullmatch(name) or ASIDE.fullmatch(name)):
            (folder / name).unlink(missing_ok=True)


def _marked(folder: Path) -> BinaryIO:
    mark = take(folder / MARK, "a+b", "in use")
    mark.write(_MARKED)
    mark.flush()
    return mark


def _ours(folder: Path) -> bool:
    mark = folder / MARK
    try:
        if folder.is_symlink() or not stat.S_ISREG(mark.lstat().st_mode):
            return False
        with mark.open("rb") as file:
            return file.read(len(_MARKED) + 1) == _MARKED
    except FileNotFoundError:
        return not os.path.lexists(folder)  # it went just now
    except OSError:
        return False


def take(path: Path, mode: str, busy: str) -> BinaryIO:
    """Open and lock a lock file, which only one process at a time can do.

    Raises:
        BadInput: another process holds it (message ``busy``).
        OSError: it cannot be opened.
    """
    while True:
        file = cast("BinaryIO", path.open(mode))
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(EINVAL, "not a regular file")
        if not _locked(file):
            file.close()
            fix = "wait for it, or choose another place with -o"
            raise BadInput(busy, where=str(path.parent), fix=fix)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # it was finished, and its file removed, before we had the lock


def _locked(file: BinaryIO) -> bool:
    """Return whether this process got the lock; always true where locks are not supported."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
