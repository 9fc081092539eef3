"""A formula with a mistake, for the time of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from costproof.analytic import compose
from costproof.analytic.costs import Layer, costs_of


@contextmanager
def planted(layer: type[Layer], wrong: Callable[[Any], Any]) -> Iterator[None]:
    """``wrong(layer)`` is what is costed in place of a layer of that class; formulas are kept, so these begin anew."""
    honest = layer.costs
    kept = (costs_of, compose._held_costs, compose._module_costs)
    try:
        for formulas in kept:
            formulas.cache_clear()
        with mock.patch.object(layer, "costs", lambda self: honest(wrong(self))):
            yield
    finally:
        for formulas in kept:
            formulas.cache_clear()
