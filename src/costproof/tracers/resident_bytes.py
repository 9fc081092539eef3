"""Count the bytes that the buffers of a running module occupy, from their storages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_MOST_MARKED: Final = 2**26
"""Bytes of memory in which tensors with gaps are looked up one by one."""


def resident_bytes(buffers: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """Return the bytes of memory that the buffers of a running module occupy, by name.

    Memory that several buffers share counts for the first of them. The static source counts the buffers of a program
    with code of its own, so that a mistake in either shows.

    Returns:
        ``None`` for a buffer that does not say where its elements are: a sparse one, or a tensor subclass.
    """
    import torch

    found: dict[str, int | None] = {}
    memory: dict[int, list[tuple[int, int, str]]] = {}
    for name, buffer in buffers.items():
        plain = type(buffer) in (torch.Tensor, torch.nn.Parameter) and buffer.layout is torch.strided
        if not plain or (buffer.numel() > 0 and (buffer.is_quantized or buffer.is_conj() or buffer.is_neg())):
            found[name] = None
            continue
        found[name] = 0
        if buffer.numel() > 0:
            size = buffer.element_size()
            first = int(buffer.storage_offset()) * size
            steps = zip(buffer.shape, buffer.stride(), strict=True)
            length = size * (1 + sum((n - 1) * step for n, step in steps))
            memory.setdefault(buffer.untyped_storage()._cdata, []).append((first, first + length, name))
    order = {name: i for i, name in enumerate(buffers)}
    for pieces in memory.values():
        together: list[str] = []
        start = end = 0
        for first, last, name in (*sorted(pieces), (_BEYOND, _BEYOND, "")):
            if together and first >= end:
                together.sort(key=order.__getitem__)
                found[together[0]] = _occupied([buffers[n] for n in together], start, end)
                together = []
            start, end = (start, max(end, last)) if together else (first, last)
            together.append(name)
    return found


_BEYOND: Final = 2**63


def _occupied(tensors: list[torch.Tensor], start: int, end: int) -> int | None:
    """Return the bytes in [start, end) of one memory block that elements of these tensors occupy."""
    import torch

    # Along a dimension of step 0 all elements are one.
    tensors = [t[tuple(slice(None) if step else 0 for step in t.stride())] for t in tensors]
    if any(t.is_contiguous() and t.nbytes == end - start for t in tensors):
        return end - start
    if end - start > _MOST_MARKED:
        return None
    marks = torch.zeros(end - start, dtype=torch.bool)
    for tensor in tensors:
        size = tensor.element_size()
        shape, strides = (*tensor.shape, size), (*(step * size for step in tensor.stride()), 1)
        marks.as_strided(shape, strides, int(tensor.storage_offset()) * size - start).fill_(True)
    return int(marks.sum())
