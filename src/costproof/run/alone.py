"""One count at a time in a process: what tracing changes belongs to all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from costproof.foreign import running

_lock: Final = threading.RLock()


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else traces within: another thread that wants to count waits.

    torch's default dtype, the functions that a tracer replaces, and the operator rules in force are global; two runs
    that take turns at changing them would put back what the other one had set.
    """
    with _lock, running("the model's code ends the program"):
        yield
