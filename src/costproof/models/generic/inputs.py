"""Example inputs of a module whose library is not known, read off its signature and its configuration."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.models.decoding.decoder import ids_on_meta

if TYPE_CHECKING:
    import torch
    from torch import nn

_BATCH, _LENGTH, _TARGET = 3, 37, 29
"""Example sizes: above 1 and pairwise different, so that no two are taken for the same."""

_ROLES: Final = ("input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values")


def example_inputs(model: nn.Module) -> dict[str, Any]:
    """Keyword arguments on meta: the module's own ``example_inputs()``, or what its signature asks for.

    Of a module's own arguments the first dimension is the batch, and the second the sequence if they are integers.

    Raises:
        Incomplete: no input is known.
    """
    own = getattr(model, "example_inputs", None)
    args: dict[str, Any] = dict(own()) if callable(own) else _inputs(model)
    if not args:
        raise Incomplete(
            "the inputs of this model are not known",
            where=type(model).__name__,
            expected="one of " + ", ".join(_ROLES) + " in forward's signature, or a method example_inputs()",
            got=", ".join(inspect.signature(model.forward).parameters),
        )
    return args


def _inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    import torch

    config = getattr(model, "config", None)
    takes = inspect.signature(model.forward).parameters
    vision = getattr(config, "vision_config", None) or config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    made: dict[str, torch.Tensor] = {}

    if "input_ids" in takes:
        made["input_ids"] = ids_on_meta(_BATCH, _LENGTH)
    if "decoder_input_ids" in takes:
        made["decoder_input_ids"] = ids_on_meta(_BATCH, _TARGET)
    if "pixel_values" in takes:
        side = getattr(vision, "image_size", None) or 224
        height, width = side if isinstance(side, list | tuple) else (side, side)
        made["pixel_values"] = torch.empty(
            _BATCH, getattr(vision, "num_channels", 3), height, width, dtype=dtype, device="meta"
        )
    if "input_features" in takes and "input_ids" not in takes:
        bins = getattr(config, "num_mel_bins", None) or 80
        frames = 2 * getattr(config, "max_source_positions", 1500)
        made["input_features"] = torch.empty(_BATCH, bins, frames, dtype=dtype, device="meta")
    if "input_values" in takes and not made:
        mel, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
        shape: tuple[int, ...] = (16_000,) if mel is None or length is None else (length, mel)
        made["input_values"] = torch.empty(_BATCH, *shape, dtype=dtype, device="meta")
    return made
