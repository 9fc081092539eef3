"""What transformers would fetch or ask about while it reads a configuration and builds its model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

_KERNELS: Final = (("transformers.integrations.hub_kernels", "get_kernel"), ("kernels", "get_kernel"))
"""Functions that fetch a kernel of the Hub. Those that choose one catch what these raise, and go on without it."""
_ASKED: Final = ("transformers.dynamic_module_utils", "TIME_OUT_REMOTE_CODE")
"""Seconds that transformers waits at stdin for a yes to code that a part names; at 0 it refuses the part at once."""


@contextmanager
def unasked() -> Iterator[None]:
    """Refuse kernels of the Hub, and code that nobody has allowed, without a question, for the time of the block."""
    importlib.import_module("transformers.modeling_utils")  # loads the package kernels, where that is installed
    with ExitStack() as undo:
        for module, name in _KERNELS:
            if hasattr(sys.modules.get(module), name):
                undo.enter_context(mock.patch.object(sys.modules[module], name, _refused))
        module, name = _ASKED
        if hasattr(importlib.import_module(module), name):
            undo.enter_context(mock.patch.object(sys.modules[module], name, 0))
        yield


def _refused(kernel: object, *_: Any, **__: Any) -> None:
    raise ImportError(f"{kernel} is a kernel of the Hub, and costproof fetches none")
