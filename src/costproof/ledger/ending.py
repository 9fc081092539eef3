"""The signals that end a command. Nothing else is imported here: a command answers them first of all."""

from __future__ import annotations

import signal

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals with which a person or a system ends a command."""
