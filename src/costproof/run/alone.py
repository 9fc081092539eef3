"""One count at a time in a process: what tracing changes belongs to all of its threads."""

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
    from costproof.models.generic.as_it_was import Before

T = TypeVar("T")


class _State(Protocol):
    def put_back_in_fork(self) -> None: ...


_ENDED: Final = "the model's code ends the program"

_lock = threading.RLock()
_owner = 0
"""The thread that has the lock."""
_states: list[_State] = []
"""What it will put back, innermost last."""


@contextmanager
def alone() -> Iterator[None]:
    """Let nobody else trace within, and nothing be downloaded: another thread that wants to count waits.

    torch's default dtype, the functions that a tracer replaces, and the operator rules in force are global; two runs
    that take turns at changing them would put back what the other one had set.
    """
    with _lock, offline(), running(_ENDED):
        # A command ends with its process; elsewhere an interrupt must leave nothing behind.
        if _states or "torch" not in sys.modules or in_command():
            yield
            return
        from costproof.models.process_state import ProcessState

        state = ProcessState()
        _begin(state)
        try:
            yield
        except BaseException:
            state.put_back(thoroughly=True)
            raise
        finally:
            _states.clear()


@contextmanager
def alone_with(rules: Files) -> Iterator[None]:
    """Let nobody else trace within, as :func:`alone`, and put operator rules of the user's own in force.

    Every verb that loads or runs code of others does so in here.
    """
    with alone(), rules_from(rules):
        yield


def as_before(work: Callable[[Before], T]) -> T:
    """Do some work alone, and put back what it noted, whatever ends it.

    Raises:
        Changed: something could not be put back.
    """
    with _lock, offline(), running(_ENDED):
        from costproof.models.generic.as_it_was import Before

        before = Before()
        # Written out, and twice: an interrupt may hit the end of the work, or what puts back.
        try:
            try:
                _begin(before)
                return work(before)
            finally:
                before.put_back()
        finally:
            before.put_back()
            _states[:] = [state for state in _states if state is not before]
            before.check()


def _begin(state: _State) -> None:
    global _owner
    _owner = threading.get_ident()
    _states.append(state)


def _renew() -> None:
    """In a forked process: end what another thread had begun, which is not there any more."""
    global _lock
    if _owner == threading.get_ident() and _states:
        return
    for state in reversed(_states):
        state.put_back_in_fork()
    _states.clear()
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
