"""An export that computes with numbers beside the shapes, and takes the way that they decide. Needs torch to load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

DECIDED = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
"""Tags of operators whose result is a plain number, or a tensor of a size that shapes do not tell."""


@contextmanager
def following() -> Iterator[None]:
    """For the time of the block what stands for a tensor has its numbers with it, which decide sizes and branches.

    torch has symbols for such sizes, and looks up their numbers where it must; here they are numbers at once. In a text
    that names a part of the model a number stands as one, too.
    """
    dispatch = FakeTensorMode.dispatch

    def decided(self: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [v for v in tree_leaves((args, kwargs or {})) if isinstance(v, torch.Tensor)]
        if not any(tag in getattr(func, "tags", ()) for tag in DECIDED) or any(_number(v) is None for v in given):
            return dispatch(self, func, types, args, kwargs or {})
        real_args, real_kwargs = tree_map(_real, (args, kwargs or {}))
        return tree_map(lambda v: _standing_for(self, v), func(*real_args, **real_kwargs))

    tensor = torch.tensor

    def of_numbers(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        # torch would ask each of them for memory that it does not have.
        return tensor(tree_map(_plain, data) if isinstance(data, list | tuple) else data, *args, **kwargs)

    def written(self: FakeTensor, spec: str) -> str:
        known = _number(self)
        return object.__format__(self, spec) if known is None else format(known, spec)

    with (
        mock.patch.object(torch, "tensor", of_numbers),
        mock.patch.object(FakeTensor, "__format__", written),
        torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True),
        mock.patch.object(FakeTensorMode, "dispatch", decided),
        mock.patch.object(meta_utils, "_safe_copy", _copied),
    ):
        yield


def _copied(into: torch.Tensor, source: torch.Tensor | None) -> None:
    """Numbers of what an export begins with; torch leaves those of parameters out, which are not plain tensors."""
    if source is not None and not isinstance(source, FakeTensor):
        into.copy_(source.detach())


def _number(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.real_tensor if isinstance(tensor, FakeTensor) else tensor


def _real(value: Any) -> Any:
    return _number(value) if isinstance(value, torch.Tensor) else value


def _plain(value: Any) -> Any:
    """The number of a tensor of one; anything else as it is."""
    known = _number(value) if isinstance(value, torch.Tensor) and value.dim() == 0 else None
    return value if known is None else known.item()


def _standing_for(mode: FakeTensorMode, value: Any) -> Any:
    """What stands for a tensor with numbers; any other result as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        made: Any = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    made.real_tensor = value
    return made
