"""The memory that a device has left, and whether a model has room in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.ledger.errors import Incomplete

if TYPE_CHECKING:
    import torch
    from torch import nn

FEWER: Final = "--layers N counts its first layers, and says what the whole costs if these say it"
"""The way out where a model is too large to be given numbers."""


def free_bytes(device: torch.device) -> int | None:
    """Bytes of memory that are free; ``None`` if the system does not say."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
    except OSError:
        return None


def size_of(model: nn.Module, *, without_numbers: bool = False) -> int:
    """Bytes of its parameters and buffers, each tensor once; with ``without_numbers`` only of those on meta."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(t.nbytes for t in tensors if t.is_meta or not without_numbers)


def require_room(model: nn.Module, device: str) -> None:
    """Check that parameters and buffers have room on a device, before any of them is allocated.

    Raises:
        Incomplete: they have not.
    """
    import torch

    size, free = size_of(model), free_bytes(torch.device(device))
    if free is not None and size > free:
        raise Incomplete(
            "the model does not fit into the memory that is free",
            where=f"--run {device}",
            expected=f"at most {free:,} bytes of parameters and buffers",
            got=f"{size:,}",
            fix=FEWER,
        )
