"""Fork worker processes from a template process that has already imported the modules that tasks need.

The template has run nothing but imports, on one thread, and ends with the process that started it. Only Linux has
templates, since processes can be forked safely after imports there; elsewhere each worker is a new Python process.
"""

from __future__ import annotations

import atexit
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, Final, NoReturn

from costproof.foreign import own

_MOST: Final = 2
"""Maximum number of live templates: one for single worker processes, one for workers that run in parallel."""
_NOTE: Final = struct.Struct("=q")
"""Message of a template about a fork, eight bytes: its process id, or its exit code."""
_CHANGING: Final = "PYTEST_CURRENT_TEST"
"""Environment variable that changes during a run but does not affect imports, so its value starts no new template."""

_kept: dict[object, Template] = {}
_lock = threading.RLock()
"""Held while a process is started, since a fork in another thread would inherit its pipes and keep them open."""


def template(modules: tuple[str, ...], environment: Mapping[str, str]) -> Template | None:
    """Return a template process with these imports and environment; ``None`` if the platform cannot fork safely.

    Raises:
        OSError: there is no room for a process.
    """
    if not modules or sys.platform != "linux":
        return None
    key = (modules, os.getpid(), frozenset((k, v) for k, v in environment.items() if k != _CHANGING))
    with _lock:
        found = _kept.pop(key, None)
        if found is None or found.ended:
            found = Template(modules, environment)
        _kept[key] = found
        while len(_kept) > _MOST:
            _kept.pop(next(iter(_kept))).end()
    return found


def end_all() -> None:
    """End all template processes."""
    for key, found in list(_kept.items()):
        if isinstance(key, tuple) and key[1] == os.getpid():
            found.kill()


atexit.register(end_all)


@contextmanager
def starting() -> Iterator[None]:
    """Prevent other threads from forking while the block starts a process."""
    with _lock:
        yield


def _hold() -> None:
    _lock.acquire()


def _release() -> None:
    with suppress(RuntimeError):  # an interrupt hit the function that takes it
        _lock.release()


def _renew_lock() -> None:
    """Replace the lock in a forked child, which lacks the thread that held it; templates stay with the parent."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_renew_lock)


class Forked:
    """Process forked by a template, with the needed part of the interface of :class:`subprocess.Popen`."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], notes: IO[bytes]) -> None:
        self.stdin, self.stdout, self._notes = stdin, stdout, notes
        own(stdin, stdout, notes)
        self.returncode: int | None = None
        self.pid = 0

    def begin(self) -> None:
        """Wait until the forked process runs.

        Raises:
            OSError: there is no process to fork from any more.
        """
        self.pid = self._note()
        if not self.pid:
            raise OSError("the process to fork from has ended")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end; return its exit code, or minus the signal number that ended it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            ready = select.poll()  # it has no file descriptor of its own that foreign code could close
            ready.register(self._notes, select.POLLIN)
            if not ready.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self.returncode = self._note()
            self._notes.close()
        return self.returncode

    def _note(self) -> int:
        """Return the template's next message about this process; 0 if the template has ended."""
        data = self._notes.read(_NOTE.size)
        return int(_NOTE.unpack(data)[0]) if len(data) == _NOTE.size else 0


class Template:
    """Handle of a template process."""

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self._asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own(self._asking)
        with answering:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from costproof.processes.template import stand; stand({modules!r})"],
                stdin=answering.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for who asks
            )

    @property
    def ended(self) -> bool:
        """Return whether the template can no longer fork."""
        return self._process.poll() is not None

    def fork(self, said: int, memory_bytes: int) -> Forked:
        """Fork a new worker process, which waits for tasks and writes its stderr to the file descriptor ``said``.

        Raises:
            OSError: there is no room for a process.
        """
        with starting():
            orders, stdin = os.pipe()
            stdout, answers = os.pipe()
            heard, notes = os.pipe()
            try:
                message = f"{memory_bytes}\0{os.getcwd()}".encode()
                socket.send_fds(self._asking, [message], [orders, answers, said, notes])
            finally:
                for given in (orders, answers, notes):
                    os.close(given)
            forked = Forked(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), os.fdopen(heard, "rb", 0))
        forked.begin()
        return forked

    def end(self) -> None:
        """End the template process; forked workers go on."""
        self._asking.close()
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """Kill the template process without waiting for its end."""
        with suppress(OSError):
            self._process.kill()


def stand(modules: tuple[str, ...]) -> None:
    """Run the template process: import modules, then fork workers on request until the parent exits."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever asks may have been started with signals blocked
    asked = socket.socket(fileno=os.dup(0))
    with _ending_with(asked):
        for name in ("costproof.processes.child", *modules):
            with suppress(Exception):  # work that needs the module reports that it is missing
                import_module(name)
    running: dict[int, int] = {}
    """File descriptor to write the exit code of a worker to, by process id."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    with selectors.DefaultSelector() as ready:
        ready.register(asked, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            for event, _ in ready.select():
                if event.fileobj == woken:
                    os.read(woken, 4096)
                    _reap(running)
                    continue
                message, given, _, _ = socket.recv_fds(asked, 65536, 4)
                if not message:
                    return
                _fork(message, given, running, (asked.fileno(), woken, wake))


@contextmanager
def _ending_with(asked: socket.socket) -> Iterator[None]:
    """End this process when its parent exits, even if the block is still running."""
    done, finish = os.pipe()

    def watch() -> None:
        watched = select.poll()
        watched.register(asked, 0)  # the other end was closed: nothing else is reported
        watched.register(done, select.POLLIN | select.POLLHUP)
        if done not in dict(watched.poll()):
            os._exit(1)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        os.close(finish)
        watching.join()
        os.close(done)


def _fork(message: bytes, given: list[int], running: dict[int, int], mine: tuple[int, ...]) -> None:
    *streams, notes = given
    pid = os.fork()
    if not pid:
        for other in (notes, *running.values(), *mine):
            os.close(other)
        _work(message, streams)
    for stream in streams:
        os.close(stream)
    running[pid] = notes
    with suppress(OSError):  # nobody waits for it any more
        os.write(notes, _NOTE.pack(pid))


def _work(message: bytes, streams: list[int]) -> NoReturn:
    from costproof.processes.child import serve

    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for i, stream in enumerate(streams):
            os.dup2(stream, i)
            os.close(stream)
        memory_bytes, _, folder = message.decode().partition("\0")
        os.chdir(folder)
        serve(int(memory_bytes))
    finally:
        os._exit(1)  # never back into the loop of the process that was forked


def _reap(running: dict[int, int]) -> None:
    """Send the exit code of each ended worker to the parent."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        notes = running.pop(pid)
        with suppress(OSError):
            os.write(notes, _NOTE.pack(os.waitstatus_to_exitcode(status)))
        os.close(notes)
