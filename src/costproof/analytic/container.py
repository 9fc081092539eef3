"""Modules that only call others."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, layer


@layer
class Container:
    """A module without operators of its own: it is called, and everything it costs is in its children."""

    name: ClassVar[str] = "container"
    title: ClassVar[str] = "Module that only calls others"
    source: ClassVar[str] = "torch.nn.Module"

    def costs(self) -> LayerCosts:
        """Nothing."""
        return LayerCosts()
