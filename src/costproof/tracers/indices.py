"""Integers and masks for an operator that is called alone, where nobody knows those of a forward.

What an operator costs may hang on them: an index must lie inside of the dimension that it looks into, and where it
points decides what is read; offsets decide which experts of a grouped product are read. Indices are drawn evenly from
that dimension, offsets are those of uniform routing, masks hide nothing, and a mask that picks elements picks as many
as there are values for. All other integers are 0, divisors 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from costproof.tracers.noted import Form

Given = Mapping[str, Any]
"""The arguments of a call by name; forms for tensors."""
_SEED: Final = 0

_INDICES: Final[Mapping[str, tuple[str, str, str | int]]] = {
    "embedding": ("indices", "weight", 0),
    "_embedding_bag": ("indices", "weight", 0),
    "_embedding_bag_forward_only": ("indices", "weight", 0),
    "index_select": ("index", "self", "dim"),
    "gather": ("index", "self", "dim"),
    "scatter": ("index", "self", "dim"),
    "scatter_add": ("index", "self", "dim"),
    "scatter_reduce": ("index", "self", "dim"),
    "index_add": ("index", "self", "dim"),
    "index_copy": ("index", "self", "dim"),
    "index_fill": ("index", "self", "dim"),
    "index_reduce": ("index", "self", "dim"),
    "nll_loss_forward": ("target", "self", 1),
    "nll_loss2d_forward": ("target", "self", 1),
}
"""Operator -> its argument that holds indices, the argument that they look into, and in which dimension."""

_LISTED: Final = frozenset({"index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put"})
"""Operators that take ``indices``, a list with a tensor or nothing for each dimension of ``self``."""

_FLAT: Final = frozenset({"take", "put"})
"""Operators whose ``index`` looks into all elements of ``self``."""

_OFFSETS: Final[Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "_flash_attention_forward": {"cum_seq_q": ("query", 0), "cum_seq_k": ("key", 0)},
    "_efficient_attention_forward": {"cu_seqlens_q": ("query", 1), "cu_seqlens_k": ("key", 1)},
    "_embedding_bag": {"offsets": ("indices", 0)},
    "_embedding_bag_forward_only": {"offsets": ("indices", 0)},
}
"""Operator -> argument of offsets that begin with 0 -> the argument that they share out, and which dimension."""

_GROUPED: Final = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
"""Operators whose ``offs`` are the ends of the groups."""

_SORTED: Final = frozenset({"sort", "argsort", "topk", "kthvalue", "unique_dim", "searchsorted", "bucketize"})
"""Operators to which it matters how integers lie to each other."""

_DIVIDING: Final = frozenset({"div", "floor_divide", "remainder", "fmod", "divide"})
"""Operators whose ``other`` may not be 0."""

_PICKED: Final[Mapping[str, str]] = {
    "masked_scatter": "source", "index_put": "values", "_index_put_impl": "values", "_unsafe_index_put": "values",
}  # fmt: skip
"""Operator -> the argument that has a value for each element that a mask picks."""


def knows(function: Any, tensors: list[Any]) -> bool:
    """Whether integers can be made for a call: an operator that is not torch's own may do anything with them."""
    return function.namespace == "aten" or not any(isinstance(t, Form) and not _real(t) for t in tensors)


def numbers(function: Any, args: Any, kwargs: Any, device: torch.device) -> Callable[[Form], torch.Tensor]:
    """Makes the tensors of integers and masks of a call with these arguments; forms stand for tensors in them."""
    name = function._schema.name.split("::")[1].removesuffix("_")  # in place it is the same
    given: Given = {**dict(zip([a.name for a in function._schema.arguments], args, strict=False)), **kwargs}
    source = torch.Generator(device).manual_seed(_SEED)

    def drawn(form: Form, below: int) -> torch.Tensor:
        below = max(1, min(below, torch.iinfo(form.dtype).max))
        return torch.randint(0, below, (form.size,), generator=source, device=device).to(form.dtype)

    def made(form: Form) -> torch.Tensor:
        if form.dtype == torch.bool:
            flat = torch.ones(form.size, dtype=torch.bool, device=device)
            flat[_picked(name, given, form) :] = False
        elif (most := _most(name, given, form)) is not None:
            flat = drawn(form, most)
        elif (shares := _shares(name, given, form)) is not None:
            flat = torch.tensor(shares, dtype=form.dtype, device=device)
        else:
            ones = name in _DIVIDING and form is given.get("other")
            flat = torch.full((form.size,), int(ones), dtype=form.dtype, device=device)
        return flat.as_strided(form.shape, form.stride)

    return made


def _real(form: Form) -> bool:
    return form.dtype.is_floating_point or form.dtype.is_complex


def _most(name: str, given: Given, form: Form) -> int | None:
    """Indices of this form lie below it; ``None`` where they are none."""
    if name in _INDICES:
        argument, into, dim = _INDICES[name]
        at = given[dim] if isinstance(dim, str) else min(dim, len(given[into].shape) - 1)
        return _length(given[into], at) if form is given.get(argument) else None
    if name in _LISTED:
        return _below(given, form)
    if name in _FLAT:
        return prod(given["self"].shape) if form is given.get("index") else None
    return prod(form.shape) if name in _SORTED else None


def _below(given: Given, form: Form) -> int | None:
    """Of a list of indices; a mask in it stands for as many dimensions as it has."""
    at = 0
    for index in given["indices"]:
        if index is form:
            return _length(given["self"], at)
        at += len(index.shape) if isinstance(index, Form) and index.dtype == torch.bool else 1
    return None


def _length(form: Form, dim: int) -> int:
    return form.shape[dim] if form.shape else 1


def _shares(name: str, given: Given, form: Form) -> list[int] | None:
    """Offsets; ``None`` where a form is none."""
    if name in _GROUPED and form is given.get("offs"):
        a, b = given["self"].shape, given["mat2"].shape
        return routed(b[1] if len(a) == 3 else a[0] if len(b) == 3 else a[1], form.size)
    argument = next((a for a in _OFFSETS.get(name, {}) if form is given.get(a)), None)
    if argument is None:
        return None
    into, dim = _OFFSETS[name][argument]
    return [i * _length(given[into], dim) // max(1, form.size - 1) for i in range(form.size)]


def routed(rows: int, groups: int) -> list[int]:
    """Where each group ends when rows are routed uniformly: as many groups as they touch then share them evenly.

    Of E groups R rows, each routed apart, touch E (1 - (1 - 1/E)^R) in the mean.
    """
    touched = min(rows, round(groups * (1 - (1 - 1 / groups) ** rows)))
    return [(group + 1) * touched // groups * rows // max(1, touched) for group in range(groups)]


def _picked(name: str, given: Given, form: Form) -> int:
    """How many elements of a mask's memory are true, from the first on."""
    values = next((v for v in tree_leaves(given.get(_PICKED.get(name, ""))) if isinstance(v, Form)), None)
    if values is None:
        return form.size
    if name == "masked_scatter":
        # Of a mask that is spread over the features each element in memory picks a row of them.
        return int(prod(values.shape) * form.size // max(1, prod(given["self"].shape)))
    rest = len(given["self"].shape) - len(form.shape)
    return int(values.shape[0]) if len(values.shape) > rest and values.shape[0] > 1 else form.size
