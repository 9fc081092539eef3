"""Warnings of transformers, each once: it checks a configuration whenever it makes, copies or writes one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_said: set[tuple[str, str]] = set()


def _is_new(record: logging.LogRecord) -> bool:
    """Whether this process has not said it yet."""
    message = (record.name, record.getMessage())
    if message in _said:
        return False
    _said.add(message)
    return True


@contextmanager
def said_once() -> Iterator[None]:
    """Let each warning of transformers through once in this process; its handlers are as they were afterwards."""
    with ExitStack() as undo:
        for handler in logging.getLogger("transformers").handlers:
            if _is_new not in handler.filters:
                handler.addFilter(_is_new)
                undo.callback(handler.removeFilter, _is_new)
        yield
