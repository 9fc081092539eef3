"""A family of one stage: a linear layer, a low-rank layer, a linear layer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from low_rank import LowRank, LowRankLayer
from torch import nn

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart, analytic_ledger, invocation_nodes, stage_nodes
from costproof.analytic.linear import Linear
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.models.target import NamedWorkload, Setting

WIDE, INNER = 64, 256


class Model(nn.Module):
    """The model that is counted."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDE, INNER)
        self.adapter = LowRankLayer(INNER, rank)
        self.down = nn.Linear(INNER, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the three layers in turn."""
        return self.down(self.adapter(self.up(x)))


class Whole(nn.Module):
    """A wrapper that calls the model; it is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        return self.model(x)


class Adapted:
    """The target. The class itself is registered, so its class and static methods need no instance."""

    name = "adapted"

    def __init__(self, rank: int = 8) -> None:
        self.rank = rank

    @classmethod
    def default(cls) -> "Adapted":
        """Return the target with its published configuration."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> "Adapted":
        """Return the target with the rank in a JSON file."""
        rank = json.loads(path.read_text()).get("rank")
        if type(rank) is not int or rank < 1:
            raise BadInput("the rank is wrong", where=f"$.rank in {path}", expected="an integer from 1 on", got=rank)
        return cls(rank)

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Return the settings of a workload."""
        return (Setting("rows", "Rows of the input."),)

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Return the named workloads."""
        return (NamedWorkload("five", "five rows", {"text": 5}, default=True),)

    def info(self) -> TargetInfo:
        """Return the target as data."""
        return TargetInfo(self.name, "native", f"{self.rank:012x}", {"rank": self.rank}, ("forward",))

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a workload of so many rows."""
        return Workload(preset or "five", text_tokens=int(settings.get("rows") or 5), new_tokens=0, dtype="float32")

    def conventions(self, workload: Workload) -> Conventions:
        """Return the conventions of all numbers."""
        return Conventions(dtype=workload.dtype)

    def check(self, workload: Workload) -> None:
        """Refuse a workload without rows."""
        if workload.text_tokens < 1:
            raise BadInput("there is nothing to run", where="--rows", expected="at least 1", got=workload.text_tokens)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the one call, with the value of its symbol."""
        return (Invocation("forward", "once", 1, {"R": workload.text_tokens}, ()),)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the analytic ledger: one part for each module, the root among them."""
        rows, rank = sym("R"), sym("rank")
        parts = (
            ModulePart("root"),
            ModulePart("up", (Linear(rows, WIDE, INNER, 4),)),
            ModulePart("adapter", (LowRank(rows, INNER, rank, 4),)),
            ModulePart("down", (Linear(rows, INNER, WIDE, 4),)),
        )
        names = {"root": "", "up": "up", "adapter": "adapter", "down": "down"}  # role -> module path
        called = invocation_nodes("forward", "once", parts, names, border=2 * rows * WIDE * 4)
        return analytic_ledger((*stage_nodes("forward", parts, names), *called), ("forward",))

    def symbol_docs(self) -> Mapping[str, SymbolDoc]:
        """Return how symbols are written in formulas; plainly."""
        return {}

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on the meta device."""
        with torch.device("meta"):
            return Model(self.rank).eval()

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export of the model, with a symbolic number of rows."""
        example = {"x": torch.empty(3, WIDE, device="meta")}
        sizes = [SymbolicSize(("x",), dim=0, symbol="R")]
        return (ExportJob("all", "forward", ("once",), Whole(model), {"model": ""}, example, sizes),)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages that a module works in."""
        return ("forward",)
