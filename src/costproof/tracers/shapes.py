"""The shape of attention's result, read off its arguments where torch would multiply the products out in symbols."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def attention_by_shape() -> Iterator[None]:
    """While the block lasts, an export asks no decomposition for the shape of attention's result.

    To work it out torch carries out ten operators for every layer, with arithmetic on symbols: half the time of an
    export of a decoder. The exporter asks for kernels in Python first, and decomposes products by one of its own.
    """
    import torch

    attention = torch.ops.aten.scaled_dot_product_attention.default
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if key in attention.py_kernels:
        yield
        return
    attention.py_kernels[key] = _result
    attention._dispatch_cache.clear()
    try:
        yield
    finally:
        del attention.py_kernels[key]
        attention._dispatch_cache.clear()


def _result(query: Any, key: Any, value: Any, mask: Any = None, *_: Any, enable_gqa: bool = False, **__: Any) -> Any:
    """[…, S, d], […, K, d], […, K, v] -> […, S, v], as it stands in memory after a product."""
    import torch

    ask: Any = torch
    # What the products would ask of the sizes, so that the exporter knows which of its symbols are one.
    ask._check(query.shape[-1] == key.shape[-1])
    ask._check(key.shape[-2] == value.shape[-2])
    inner = 3 if enable_gqa else 2
    batches = ask.broadcast_shapes(*(t.shape[:-inner] for t in (query, key, value, mask) if t is not None))
    return query.new_empty((*batches, *query.shape[-inner:-1], value.shape[-1]))
