"""``x[rows, -1]`` as torch does it, and an export shows it: a view of the last column, then rows of that.

TorchLens records one call and the tensors in it, but neither numbers nor slices nor lists beside them. All of ``x``
would be read. Nor does it know that ``x[False] = y`` does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from costproof.tracers.unread import PIECES

_ALL: Final = slice(None)


@contextmanager
def views_apart() -> Iterator[None]:
    """Numbers and slices of an index are a call of their own, before its tensors, for the time of the block.

    What is written where the index is ``False`` does not count as a call: nothing is.

    TorchLens has wrapped torch's functions before.
    """
    from unittest import mock

    import torch
    from torchlens import _state

    original, written = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def getitem(self: torch.Tensor, key: Any) -> torch.Tensor:
        if sys._getframe(1).f_globals.get("__name__", "").startswith(PIECES):
            with _state.pause_logging():
                return original(self, key)
        key = _stacked(key)
        found = _apart(self, key)
        if found is None:
            return original(self, key)
        view, rest = found
        return original(original(self, view) if any(part not in (_ALL, ...) for part in view) else self, rest)

    def setitem(self: torch.Tensor, key: Any, value: Any) -> None:
        if key is not False:
            written(self, _stacked(key), value)

    with (
        mock.patch.object(torch.Tensor, "__getitem__", getitem),
        mock.patch.object(torch.Tensor, "__setitem__", setitem),
    ):
        yield


@contextmanager
def rows_of_numbers() -> Iterator[None]:
    """``x[(a, b), (c, d)]``, where these are tensors of one number each, for the time of the block.

    torch makes tensors of such rows by looking at the numbers; who watches has none for it.
    """
    from unittest import mock

    import torch

    read, written = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def getitem(self: torch.Tensor, key: Any) -> torch.Tensor:
        return read(self, _stacked(key))

    def setitem(self: torch.Tensor, key: Any, value: Any) -> None:
        written(self, _stacked(key), value)

    with (
        mock.patch.object(torch.Tensor, "__getitem__", getitem),
        mock.patch.object(torch.Tensor, "__setitem__", setitem),
    ):
        yield


def _stacked(key: Any) -> Any:
    """A key with one tensor for each row of numbers."""
    import torch

    def row(part: Any) -> bool:
        return isinstance(part, tuple | list) and bool(part) and all(isinstance(n, torch.Tensor) for n in part)

    if not (isinstance(key, tuple) and any(map(row, key))):
        return key
    return tuple(torch.stack(list(part)) if row(part) else part for part in key)


def _apart(tensor: Any, key: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """What makes a view, and what picks from it; ``None`` for an index that is of one kind, or unusual."""
    import torch

    view: list[Any] = []
    rest: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, list) and part and all(type(n) is int for n in part):
            view.append(_ALL)
            rest.append(torch.tensor(part, device=tensor.device))
        elif type(part) is torch.Tensor and part.dim() > 0:
            view += [_ALL] * (part.dim() if part.dtype in (torch.bool, torch.uint8) else 1)
            rest.append(part)
        elif part is None or isinstance(part, slice):
            view.append(part)
            rest.append(_ALL)
        elif part is ...:
            view.append(part)
            rest.append(part)
        elif type(part) is int:
            view.append(part)
        else:
            return None
    picks = any(isinstance(part, torch.Tensor) for part in rest)
    return (tuple(view), tuple(rest)) if picks else None
