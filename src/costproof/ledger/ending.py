"""Define the signals that end a command, importing only core modules so that signals are handled early."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports `enum`, which takes as long as Python to start

ENDING = {
    int(getattr(_signal, name)): said
    for name, said in (("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP"))
    if hasattr(_signal, name)
}
"""Names for messages of the signals with which a user or the system ends a command, by signal."""
