"""Disable network access of libraries while a command runs."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "USE_HUB_KERNELS": "NO",
}
"""Environment variables that keep child processes, and libraries imported later, off the network."""
_CONSTANTS: Final = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE", True, ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
    ("huggingface_hub.constants", "HF_HUB_DISABLE_TELEMETRY", True, ("HF_HUB_DISABLE_TELEMETRY",)),
    ("transformers.utils.hub", "_is_offline_mode", True, ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),  # before 5
    ("datasets.config", "HF_DATASETS_OFFLINE", True, ("HF_DATASETS_OFFLINE",)),
    ("transformers.integrations.hub_kernels", "_kernels_enabled", False, ("USE_HUB_KERNELS",)),
)
"""Module constants to change for offline use: (module, name, offline value, environment variables that set it)."""
_SESSIONS: Final = "huggingface_hub.utils._http"
"""Module of huggingface_hub with its HTTP sessions, which before version 1 stay online or offline once created."""
_TRUE: Final = ("1", "ON", "YES", "TRUE")


class _Switch:
    """Change of process-wide state that lasts as long as any thread needs it."""

    def __init__(self, on: Callable[[ExitStack], None]) -> None:
        self._on = on
        self._holders: list[int] = []
        """Ids of the threads that need the change, once for each block that they are in."""
        self._undo = ExitStack()
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the change applied while the block runs; the last thread that leaves its block reverts it."""
        me = threading.get_ident()
        try:  # around all of it: an interrupt may hit between any two lines
            with self._lock:
                if not self._holders:
                    self._on(self._undo)
                self._holders.append(me)
            yield
        finally:
            with self._lock:
                if me in self._holders:
                    self._holders.remove(me)
                if not self._holders:
                    self._undo.close()

    def _forked(self) -> None:
        """Replace the lock in a forked child, and undo changes that only the parent's threads need."""
        self._lock = threading.Lock()
        gone = bool(self._holders)
        self._holders = [thread for thread in self._holders if thread == threading.get_ident()]
        if gone and not self._holders:
            self._undo.close()


def _off(undo: ExitStack) -> None:
    before = {name: os.environ.get(name) for name in OFFLINE}
    found = {(module, name) for module, name, *_ in _CONSTANTS if hasattr(sys.modules.get(module), name)}
    undo.callback(_new_sessions)
    for module, name, value, variables in _CONSTANTS:
        if (module, name) in found:
            undo.callback(setattr, sys.modules[module], name, getattr(sys.modules[module], name))
            setattr(sys.modules[module], name, value)
        else:
            said = next((before[v] for v in variables if before[v]), None)
            undo.callback(_as_imported, module, name, (not value) if said is None else said.upper() in _TRUE)
    for name, text in before.items():
        undo.callback(partial(os.environ.pop, name, None) if text is None else partial(os.environ.update, {name: text}))
    os.environ.update(OFFLINE)
    _new_sessions()


def _as_imported(module: str, name: str, value: bool) -> None:
    """Set a constant of a module that was imported while offline to its usual value."""
    if hasattr(sys.modules.get(module), name):
        setattr(sys.modules[module], name, value)


def _new_sessions() -> None:
    reset = getattr(sys.modules.get(_SESSIONS), "reset_sessions", None)
    if reset is not None:
        reset()


_offline: Final = _Switch(_off)


@contextmanager
def offline() -> Iterator[None]:
    """Disable downloads of this process and its children while the block runs."""
    with _offline.held():
        yield


_HERE: Final = ("", "localhost", "127.0.0.1", "::1")
_refused: ContextVar[bool] = ContextVar("refused", default=False)


def _checked(call: Callable[..., Any], sock: socket.socket, address: Any) -> Any:
    if _refused.get() and sock.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in _HERE:
        raise ConnectionRefusedError(f"costproof is offline, and this asks for {str(address[0])[:100]}")
    return call(sock, address)


def _looked_up(call: Callable[..., Any], host: Any, *args: Any, **kwargs: Any) -> Any:
    if _refused.get() and host not in (None, *_HERE):
        raise socket.gaierror(socket.EAI_FAIL, f"costproof is offline, and this asks for {str(host)[:100]}")
    return call(host, *args, **kwargs)


def _guard(undo: ExitStack) -> None:
    for name in ("connect", "connect_ex"):
        before = getattr(socket.socket, name)
        own = name in vars(socket.socket)
        setattr(socket.socket, name, lambda sock, address, call=before: _checked(call, sock, address))
        undo.callback(partial(setattr, socket.socket, name, before) if own else partial(delattr, socket.socket, name))
    undo.callback(setattr, socket, "getaddrinfo", socket.getaddrinfo)
    socket.getaddrinfo = partial(_looked_up, socket.getaddrinfo)


_guarded: Final = _Switch(_guard)


@contextmanager
def no_network() -> Iterator[None]:
    """Disable downloads, and network connections of this thread, while the block runs."""
    with _offline.held(), _guarded.held():
        token = _refused.set(True)
        try:
            yield
        finally:
            _refused.reset(token)
