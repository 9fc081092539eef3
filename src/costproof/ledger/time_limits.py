"""Limits in seconds: what a file asks for ends after so much time of the processor.

Bytes, depth and terms bound the pieces; many pieces, each within its bounds, may still take hours. So whoever works
for a file sets a limit, and the loops over its pieces ask whether it is passed. Time of the thread is what counts: a
busy machine makes no file wrong.
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
    """By the thread's clock."""
    earliest: float
    """By the clock on the wall, which is cheap to read: before, the thread cannot have come to the end."""
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
    """What is done inside, by this thread, takes at most so many seconds of the processor.

    One inside another does nothing: the outer one bounds it.

    Args:
        what: the error's sentence.

    Raises:
        BadInput: it took longer. What was worked out by then is not used, also where somebody inside kept the error.
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
    """Called in every loop whose length a file says.

    Raises:
        BadInput: the limit that this thread works under is passed.
    """
    if (limit := _HERE.limit) is not None:
        limit.check()
