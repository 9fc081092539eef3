"""Images and sounds without padding: what a model throws away of them as padding depends on numbers.

Models of transformers pick the rows of a batch that are not padding by a mask in ``get_image_features`` and the like.
Without numbers how many these are is not known, and neither is the work behind them. Needs torch to load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Final
from unittest import mock

import torch
import torch._functorch.config
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

ALL_ROWS: Final = "which rows of images and sounds are padding is not known here; none is taken to be"

_FEATURES: Final = re.compile(r"get_\w+_features")
_PLACES: Final = "get_placeholder_mask"


@contextmanager
def unpadded(model: nn.Module, notes: dict[str, None]) -> Iterator[None]:
    """For the time of the block a mask without numbers hides no row, inside of the methods that make features.

    Inside of the one that looks for their places in a text it picks as many as there are features. Elsewhere a mask
    may send rows to one expert or the other, and taking all of them would count these twice.
    """
    with ExitStack() as undo:
        for kind in dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__):
            for name, method in list(vars(kind).items()):
                if callable(method) and (name == _PLACES or _FEATURES.fullmatch(name)):
                    undo.enter_context(mock.patch.object(kind, name, _whole(method, notes)))
        yield


def _whole(method: Callable[..., Any], notes: dict[str, None]) -> Callable[..., Any]:
    @wraps(method)
    def asked(*args: Any, **kwargs: Any) -> Any:
        def picked(mask: torch.Tensor) -> torch.Tensor:
            if method.__name__ == _PLACES:
                count = _features(mask, [*args, *kwargs.values()])
            else:
                notes[ALL_ROWS] = None
                count = mask.numel()
            return mask.new_empty((count, mask.dim()), dtype=torch.long)

        nonzero, total, as_list = torch.Tensor.nonzero, torch.Tensor.sum, torch.Tensor.tolist
        counted: list[tuple[torch.Tensor, int]] = []

        def known(tensor: torch.Tensor) -> torch.Tensor:
            return picked(tensor) if without_numbers(tensor) else nonzero(tensor)

        def summed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            found = total(tensor, *args, **kwargs)
            over = args[0] if args else kwargs.get("dim")
            if tensor.dtype == torch.bool and tensor.dim() == 2 and over in (1, -1) and without_numbers(tensor):
                counted.append((found, int(tensor.shape[1])))
            return found

        def listed(tensor: torch.Tensor) -> Any:
            rows = next((rows for sums, rows in counted if sums is tensor), None)
            return as_list(tensor) if rows is None else [rows] * int(tensor.shape[0])

        # What works out the shape of rows that a mask picks asks the mask for them; how many images each element of a
        # batch has is the sum of such a mask over them.
        with (
            mock.patch.object(torch.Tensor, "nonzero", known),
            mock.patch.object(torch.Tensor, "sum", summed),
            mock.patch.object(torch.Tensor, "tolist", listed),
        ):
            return method(*args, **kwargs)

    return asked


def _features(mask: torch.Tensor, given: list[Any]) -> int:
    """How many elements of a mask [B, S] or [B, S, width] are places of features, which come after [B, S, width]."""
    floats = [v for v in given if isinstance(v, torch.Tensor) and v.is_floating_point()]
    embedded, *features = floats
    found = sum(f.numel() for f in features)
    return found if mask.dim() == embedded.dim() else found // embedded.shape[-1]


def without_numbers(value: Any) -> bool:
    """Whether the numbers of a tensor cannot be looked at: it is on meta, or stands for one in an export without."""
    if not isinstance(value, torch.Tensor) or value.device.type == "meta":
        return isinstance(value, torch.Tensor)
    followed = torch._functorch.config.fake_tensor_propagate_real_tensors
    return not followed and (isinstance(value, FakeTensor) or torch.compiler.is_exporting())
