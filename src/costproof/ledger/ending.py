"""The signals that end a command. The core of Python alone is imported here: a command answers them first of all."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports `enum`, which takes as long as Python to start

ENDING = {
    int(getattr(_signal, name)): said
    for name, said in (("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"), ("SIGHUP", "SIGHUP"))
    if hasattr(_signal, name)
}
"""Signals with which a person or a system ends a command, and what messages call them."""
