"""Lock the process during a count, since tracing changes global state of torch and restores it afterwards."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from costproof.foreign import in_command, running
from costproof.ledger.offline import offline
from costproof.opgraph.rules.files import Files, rules_from

if TYPE_CHECKING:
    from costproof.snapshots.module_snapshot import Before

T = TypeVar("T")


class _Snapshot(Protocol):
    def put_back_in_fork(self) -> None: ...


_ENDED: Final = "the model's code ends the program"

_lock = threading.RLock()
_owner = 0
"""Id of the thread that holds the lock; ``None`` while the lock is free."""
_snapshots: list[_Snapshot] = []
"""Snapshots of global state that this thread restores, innermost last."""


@contextmanager
def count_lock(rules: Files = ()) -> Iterator[None]:
    """Hold the lock while the block runs, with libraries offline and operator rules registered from files.

    torch's default dtype, the functions that a tracer patches and the registered operator rules are global: two
    concurrent counts would restore each other's changes. Every verb that loads or runs foreign code holds this lock.

    Args:
        rules: Python files with operator rules, which are executed.
    """
    with _lock, offline(), running(_ENDED):
        # A command ends with its process. Elsewhere an interrupt must leave no state changed.
        if _snapshots or "torch" not in sys.modules or in_command():
            with rules_from(rules):
                yield
            return
        from costproof.snapshots.process_state import ProcessState

        state = ProcessState()
        _begin(state)
        try:
            with rules_from(rules):
                yield
        except BaseException:
            state.put_back(thoroughly=True)
            raise
        finally:
            _snapshots.clear()


def count_then_restore(work: Callable[[Before], T]) -> T:
    """Run some work under the lock, and restore the state that it recorded, on return and on errors.

    Raises:
        Changed: something could not be restored.
    """
    with _lock, offline(), running(_ENDED):
        from costproof.snapshots.module_snapshot import Before

        before = Before()
        # Restored twice: an interrupt may hit the end of the work, or the first restore itself.
        try:
            try:
                _begin(before)
                return work(before)
            finally:
                before.put_back()
        finally:
            before.put_back()
            _snapshots[:] = [state for state in _snapshots if state is not before]
            before.check()


def _begin(state: _Snapshot) -> None:
    global _owner
    _owner = threading.get_ident()
    _snapshots.append(state)


def _renew() -> None:
    """Replace the lock in a forked process, and restore state that a thread of the parent had changed."""
    global _lock
    if _owner == threading.get_ident() and _snapshots:
        return
    for state in reversed(_snapshots):
        state.put_back_in_fork()
    _snapshots.clear()
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
