"""A second target, whole: two linear layers with formulas, exported and run as any module is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart, analytic_ledger, invocation_nodes, stage_nodes
from costproof.analytic.linear import Linear
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TensorSpec, Workload
from costproof.models.encoding import STAGE
from costproof.models.generic.factories import Given
from costproof.models.generic.module import GenericTarget

NAMES = {"root": "", "first": "first", "second": "second"}
WIDTHS = {"width_in": 6, "width_mid": 10, "width_out": 5}


class Two(nn.Module):
    """[B, 6] -> [B, 10] -> [B, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both layers."""
        result: torch.Tensor = self.second(self.first(x))
        return result

    def example_inputs(self) -> dict[str, Any]:
        """Three rows."""
        return {"x": torch.empty(3, 6, device="meta")}


@dataclass(frozen=True, slots=True)
class TwoLinears(GenericTarget):
    """The target: what any module has, and formulas."""

    @classmethod
    def default(cls) -> TwoLinears:
        """There is one configuration."""
        with torch.device("meta"):
            model = Two().eval()
        return cls("two-linears", Given("two-linears", "Two", model, model.example_inputs(), WIDTHS))

    @classmethod
    def from_file(cls, path: Path) -> TwoLinears:
        """Refuse every file: there is one configuration."""
        raise BadInput("this target has no configuration file", where=str(path))

    @property
    def here(self) -> bool:
        """The module can be made again anywhere."""
        return False

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """One call in float32."""
        return (Invocation(STAGE, STAGE, 1, {"B": 3, "b": 4}, (TensorSpec((3, 6), "float32"),)),)

    def formulas(self, workload: Workload) -> Ledger:
        """Two linear layers in a row."""
        rows, item = sym("B"), sym("b")
        wide = [sym(name) for name in WIDTHS]
        parts = (
            ModulePart("root"),
            ModulePart("first", (Linear(rows, wide[0], wide[1], item),)),
            ModulePart("second", (Linear(rows, wide[1], wide[2], item),)),
        )
        nodes = (*stage_nodes(STAGE, parts, NAMES), *invocation_nodes(STAGE, STAGE, parts, NAMES))
        return analytic_ledger(nodes, (STAGE,))

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """Four symbols."""
        return {
            "B": SymbolDoc("B", "rows"),
            "b": SymbolDoc("b", "bytes per element"),
            **{name: SymbolDoc(name[6:], f"features, {name[6:]}") for name in WIDTHS},
        }
