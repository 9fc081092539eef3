"""Copies of tensors that lie in memory as these do: a tensor that is given twice stays one, and so does its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Span(NamedTuple):
    """Elements of a piece of memory, from one to before another, in which some tensors lie."""

    first: int
    end: int
    tensors: tuple[torch.Tensor, ...]


def alike(values: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``change``, made once of every tensor among some nested values.

    Of tensors that overlap in one piece of memory, or do not fill theirs in some order, it is made of the memory that
    they span, and they are views of that.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    known = {id(t): t for t in tree_leaves(values) if isinstance(t, torch.Tensor)}
    spans = {id(t): span for span in _spans(t for t in known.values() if _in_one_piece(t)) for t in span.tensors}
    made: dict[int, Any] = {}

    def changed(value: Any) -> Any:
        if id(value) not in known:
            return change(value)
        if id(value) not in made:
            span = spans.get(id(value))
            if span is None or (len(span.tensors) == 1 and span.end - span.first == value.numel()):
                made[id(value)] = change(value)
            else:
                memory = change(value.detach().as_strided((span.end - span.first,), (1,), span.first))
                for one in span.tensors:
                    where = one.storage_offset() - span.first
                    made[id(one)] = memory.as_strided(one.shape, one.stride(), where)
        return made[id(value)]

    return changed


def held_bytes(tensors: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """Return the bytes of some tensors; memory that several of them share counts for the first.

    ``None``: a tensor without a shape yet, or one that does not say where its elements are, such as a sparse one.
    """
    spans = {id(t): span for span in _spans(filter(_in_one_piece, _each_once(tensors.values()))) for t in span.tensors}
    counted: set[int] = set()
    found: dict[str, int | None] = {}
    for name, tensor in tensors.items():
        span = spans.get(id(tensor))
        if span is None:
            found[name] = 0 if _strided(tensor) and tensor.numel() == 0 else None
            continue
        # A view with steps leaves gaps, which are nobody's.
        elements = min(span.end - span.first, sum(one.numel() for one in span.tensors))
        found[name] = 0 if id(span) in counted else elements * tensor.element_size()
        counted.add(id(span))
    return found


def _each_once(tensors: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    return {id(t): t for t in tensors}.values()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is among some arguments."""

    name: str
    index: int
    """Among the tensors of that argument, in order."""


def once(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that are tensors, or nested lists of them, with each tensor once, and how those were that changed.

    Of an argument with a tensor that was there before, the others are left, as a list; it is gone where there are none.
    How it was is told with a :class:`Place` for every tensor.
    """
    from torch.utils._pytree import tree_leaves, tree_map

    places: dict[int, Place] = {}
    kept: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for name, value in args.items():
        tensors = tree_leaves(value)
        new = list({id(t): t for t in tensors if id(t) not in places}.values())
        places.update((id(t), Place(name, i)) for i, t in enumerate(new))
        if len(new) < len(tensors):
            changed[name] = tree_map(lambda t: places[id(t)], value)
        if new:
            kept[name] = value if name not in changed else new
    return kept, changed


def restored(args: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they were before :func:`once`."""
    from torch.utils._pytree import tree_leaves, tree_map

    found = {name: tree_leaves(value) for name, value in args.items()} if changed else {}
    return {**args, **tree_map(lambda place: found[place.name][place.index], dict(changed))}


def _in_one_piece(tensor: torch.Tensor) -> bool:
    """Whether its elements are those of its memory, at places that its strides tell."""
    return _strided(tensor) and tensor.numel() > 0 and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _strided(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor, and not sparse."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def _spans(tensors: Iterable[torch.Tensor]) -> list[Span]:
    """What tensors span of the pieces of memory that they are in; those that overlap together."""
    memories: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        memories.setdefault((tensor.untyped_storage()._cdata, tensor.dtype), []).append(tensor)
    found: list[Span] = []
    for together in memories.values():
        open_span: Span | None = None
        for tensor in sorted(together, key=lambda t: t.storage_offset()):
            first, end = int(tensor.storage_offset()), _end(tensor)
            if open_span is not None and first < open_span.end:
                open_span = Span(open_span.first, max(end, open_span.end), (*open_span.tensors, tensor))
                found[-1] = open_span
            else:
                open_span = Span(first, end, (tensor,))
                found.append(open_span)
    return found


def _end(tensor: torch.Tensor) -> int:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach + 1)
