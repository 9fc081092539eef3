"""Limit the processor time that reading or processing a file may take.

Limits on bytes, depth and terms bound each piece of a file, but many pieces may still take hours. Code that processes a
file sets a limit, and loops over its pieces check it. Only time of the thread counts, so a busy machine refuses no
file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from costproof.ledger.errors import BadInput


@dataclass(slots=True)
class _Limit:
    end: float
    """Time on the thread's processor clock at which the limit is reached."""
    earliest: float
    """Earliest wall-clock time at which the limit can be reached; this clock is cheaper to read."""
    seconds: int
    what: str
    where: str
    fix: str | None

    def check(self) -> None:
        if (now := time.monotonic()) < self.earliest:
            return
        left = self.end - time.thread_time()
        if left < 0:
            expected = f"at most {self.seconds} s of the processor"
            raise BadInput(self.what, where=self.where, expected=expected, fix=self.fix)
        self.earliest = now + left


class _Here(threading.local):
    limit: _Limit | None = None


_HERE = _Here()


@contextmanager
def time_limit(seconds: int, what: str, *, where: str, fix: str | None = None) -> Iterator[None]:
    """Limit the processor time of this thread while the block runs; a nested limit has no effect.

    Args:
        what: sentence of the error.

    Raises:
        BadInput: the limit was exceeded; partial results are discarded, even if code inside caught the error.
    """
    if _HERE.limit is not None:
        yield
        return
    end, earliest = time.thread_time() + seconds, time.monotonic() + seconds
    _HERE.limit = limit = _Limit(end, earliest, seconds, what, where, fix)
    try:
        yield
        limit.check()
    finally:
        _HERE.limit = None


def check_time() -> None:
    """Raise an error if the processor time limit of this thread is exceeded; for loops whose length a file determines.

    Raises:
        BadInput: the limit is exceeded.
    """
    if (limit := _HERE.limit) is not None:
        limit.check()
