"""Shapes of products, read off their arguments where torch would work them out in symbols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def products_by_shape() -> Iterator[None]:
    """While the block lasts, an export asks no decomposition for the shape of what attention and linear layers give.

    To work it out torch carries out ten operators for every attention and three for every linear layer, with
    arithmetic on symbols: most of the time of an export of a decoder. The exporter asks for kernels in Python first,
    and has some of its own; where it has one for these, that one stays.
    """
    import torch

    key = torch._C.DispatchKey.CompositeImplicitAutograd
    by_shape: dict[Any, Any] = {
        torch.ops.aten.scaled_dot_product_attention.default: _attention,
        torch.ops.aten.linear.default: _linear,
    }
    with ExitStack() as undo:
        for op, result in by_shape.items():
            if key not in op.py_kernels:
                undo.callback(op._dispatch_cache.clear)
                undo.callback(op.py_kernels.pop, key)
                op.py_kernels[key] = result
                op._dispatch_cache.clear()
        yield


def _attention(query: Any, key: Any, value: Any, mask: Any = None, *_: Any, enable_gqa: bool = False, **__: Any) -> Any:
    """[…, S, d], […, K, d], […, K, v] -> […, S, v], as it stands in memory after a product.

    What the products would ask of the sizes is asked, so that the exporter knows which of its symbols are one.
    """
    import torch

    ask: Any = torch
    ask._check(query.shape[-1] == key.shape[-1])
    ask._check(key.shape[-2] == value.shape[-2])
    inner = 3 if enable_gqa else 2
    batches = ask.broadcast_shapes(*(t.shape[:-inner] for t in (query, key, value, mask) if t is not None))
    return query.new_empty((*batches, *query.shape[-inner:-1], value.shape[-1]))


def _linear(rows: Any, weight: Any, bias: Any = None) -> Any:
    """[…, k], [m, k] -> […, m]; a weight of one row may be a vector."""
    import torch

    ask: Any = torch
    ask._check(rows.shape[-1] == weight.shape[-1])
    return rows.new_empty((*rows.shape[:-1], *weight.shape[:-1]))
