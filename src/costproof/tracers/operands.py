"""Arguments of an operator, by its schema: tensors apart from all else, as every tracer of calls needs them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from costproof.ledger.metrics import ARITHMETIC
from costproof.opgraph.graph import AUTOCAST, Graph, Value

Operands = tuple[tuple[Value, ...], dict[str, Any], dict[str, Value]]
"""Tensors in order, other arguments by name, tensors by name: the fields of an :class:`.OpCall`."""


def operands(
    schema: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors_in: Callable[[Any], list[Value]],
    plain: Callable[[Any], Any],
) -> Operands:
    """The arguments of one call in the order of the schema; without one they are called by their places.

    Of a list of tensors with holes (``x[:, i]`` has ``[None, i]``), the attributes say where tensors stand.

    Args:
        tensors_in: the tensors that an argument is or holds.
        plain: what is kept of an argument without any.
    """
    order = [str(i) for i in range(len(args))] if schema is None else [a.name for a in schema.arguments]
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    tensors: list[Value] = []
    attrs: dict[str, Any] = {}
    names: dict[str, Value] = {}
    for name in sorted(given, key=order.index) if schema is not None else given:
        argument = given[name]
        found = tensors_in(argument)
        tensors += found
        if not found:
            attrs[name] = plain(argument)
        elif isinstance(argument, list | tuple) and any(a is None for a in argument):
            attrs[name] = [a is not None for a in argument]
        elif not isinstance(argument, list | tuple):
            names[name] = found[0]
    return tuple(tensors), attrs, names


def dtype_name(dtype: Any) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def plain_value(value: Any) -> Any:
    """Arguments that are not tensors; dtypes by name."""
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    return dtype_name(value) if type(value).__module__ == "torch" else value


def under_autocast(graph: Graph, dtypes: Collection[str]) -> Graph:
    """Return a graph whose operators all say that they may be cast to the narrowest of some dtypes.

    A trace does not tell which of them ran under autocast, and a bound of time takes the fastest arithmetic.
    """
    if not dtypes:
        return graph
    narrowest = max(dtypes, key=lambda dtype: ARITHMETIC.index(dtype) if dtype in ARITHMETIC else len(ARITHMETIC))
    return replace(graph, ops=tuple(replace(op, attrs={**op.attrs, AUTOCAST: narrowest}) for op in graph.ops))
