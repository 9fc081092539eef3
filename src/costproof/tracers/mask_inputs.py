"""Collect the contents of attention masks and lengths of sequences among the inputs of an export or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from costproof.models.specs import BUFFER
from costproof.opgraph.graph import CausalMask
from costproof.opgraph.mask_rows import MOST_ELEMENTS, Array

if TYPE_CHECKING:
    import torch

Contents = dict[str, CausalMask | Callable[[], Array]]
"""Place of an input -> its content, or a function that returns its values."""


def mask_inputs(
    arguments: Mapping[str, Any],
    masks: Mapping[str, CausalMask],
    prefix: str = "",
    known: Mapping[str, Any] | None = None,
) -> Contents:
    """Return place -> content of mask inputs: declared contents, and the values of tensors that have any.

    Args:
        arguments: of the call.
        masks: place -> declared content of a tensor without values.
        prefix: what a tracer writes before a place.
        known: arguments with values for tensors of the same shape that have none in the call, and buffers.
    """
    found: Contents = {prefix + place: content for place, content in masks.items()}
    values = dict(tensors_by_place(known or {}))
    buffers = {place: tensor for place, tensor in values.items() if place.startswith(BUFFER)}
    for place, given in (*tensors_by_place(arguments), *buffers.items()):
        own = values.get(place)
        tensor = own if given.is_meta and own is not None and own.shape == given.shape else given
        if not tensor.is_meta and 0 < tensor.numel() <= MOST_ELEMENTS:
            found[place if place in buffers else prefix + place] = partial(_values, tensor)
    return found


def _values(tensor: torch.Tensor) -> Array:
    plain = tensor.detach().cpu()
    values: Array = (plain.double() if plain.is_floating_point() else plain).numpy()
    return values


def tensors_by_place(arguments: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the place and the tensor of all arguments that are dense tensors, also in mappings and tuples."""
    import torch

    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield f"{before}{name}", value
        elif isinstance(value, Mapping | tuple):
            parts = value if isinstance(value, Mapping) else {str(i): part for i, part in enumerate(value)}
            yield from tensors_by_place(parts, f"{before}{name}.")
