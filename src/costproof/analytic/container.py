"""Modules that only call others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.analytic.costs import LayerCosts


@dataclass(frozen=True, slots=True)
class Container:
    """A module without operators of its own: it is called, and everything it costs is in its children."""

    name: ClassVar[str] = "container"
    title: ClassVar[str] = "Module that only calls others"
    source: ClassVar[str] = "torch.nn.Module"

    def costs(self) -> LayerCosts:
        """Nothing."""
        return LayerCosts()
