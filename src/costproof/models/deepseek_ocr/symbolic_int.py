"""Symbolic sizes pass through the native module's ``int()``, which would fix them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def symbolic_int() -> Iterator[None]:
    """The native module's ``int`` leaves symbolic sizes alone for the time of the block."""
    import torch
    from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

    def whole(size: Any) -> Any:
        return size if isinstance(size, torch.SymInt) else int(size)

    names: dict[str, Any] = vars(modeling)
    before = names.get("int")
    names["int"] = whole
    try:
        yield
    finally:
        if before is None:
            del names["int"]
        else:
            names["int"] = before
