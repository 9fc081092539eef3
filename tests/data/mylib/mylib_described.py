"""The fancy layer alone as a target that a formula describes: one call for [R, 8] x [8, 12]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from mylib_ops import Fancy  # type: ignore[import-not-found]
from torch import nn

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart, analytic_ledger, invocation_nodes, stage_nodes
from costproof.analytic.costs import LayerCosts, Size, layer
from costproof.compare.proof.certificate import Settings
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.proof import Piece, Proof
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.models.target import NamedWorkload, Setting

SETTINGS = (Setting("rows", "Rows of the input."),)
NAMES = {"root": "", "fancy": "fancy"}


@layer
class FancyProduct:
    """Y = X W for X [rows, 8], W [8, 12], in float32.

    flops = 2 rows 8 12
    """

    name: ClassVar[str] = "fancy_product"
    title: ClassVar[str] = "Fancy product"
    source: ClassVar[str] = "mylib_ops.Fancy"

    rows: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        return LayerCosts(
            params=96,
            weight_bytes=4 * 96,
            weight_read_bytes=4 * 96,
            flops={"mylib.fancy_matmul": 2 * self.rows * 96},
            input_bytes=4 * 8 * self.rows,
            output_bytes=4 * 12 * self.rows,
            intermediate_bytes=0,
        )


class Model(nn.Module):
    """A root with the layer in it."""

    def __init__(self) -> None:
        super().__init__()
        self.fancy = Fancy()

    def forward(self, x: torch.Tensor) -> Any:
        """Call it."""
        return self.fancy(x)


class Whole(nn.Module):
    """What is exported."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        """Call the model."""
        return self.model(x)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration decides nothing."""

    unused: int = 1
    waived: Mapping[str, str] = field(default_factory=dict, hash=False)

    def symbols(self) -> dict[str, int]:
        """Return nothing."""
        return {}


USUAL = Config()


@dataclass(frozen=True, slots=True)
class Described:
    """The target."""

    config: Config = USUAL
    name: str = "described"

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Return what can be chosen about a run."""
        return SETTINGS

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Return the one workload."""
        return (NamedWorkload("five", "five rows", {}, default=True),)

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """Return nothing: nothing can be chosen."""
        return ()

    @classmethod
    def default(cls) -> Described:
        """Return the one target."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> Described:
        """Return the one target."""
        return cls()

    @classmethod
    def from_normalised(cls, text: str) -> Described:
        """Return the one target."""
        return cls()

    def with_keys(self, changes: Mapping[str, Any]) -> Described:
        """Return another configuration."""
        return replace(self, config=replace(self.config, **changes))

    def info(self) -> TargetInfo:
        """Return the target as data."""
        return TargetInfo(self.name, "native", "1" * 12, {}, ("forward",))

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a run of so many rows."""
        return Workload("five", int(settings.get("rows") or 5), 0, dtype="float32")

    def conventions(self, workload: Workload) -> Conventions:
        """Return the usual ones."""
        return Conventions(dtype="float32")

    def check(self, workload: Workload) -> None:
        """Accept everything."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the one call."""
        return (Invocation("forward", "once", 1, {"R": workload.text_tokens}, ()),)

    def formulas(self, workload: Workload) -> Ledger:
        """Return a part for each module."""
        parts = (ModulePart("root"), ModulePart("fancy", (FancyProduct(sym("R")),)))
        called = invocation_nodes("forward", "once", parts, NAMES, border=sym("R") * (8 + 12) * 4)
        return analytic_ledger((*stage_nodes("forward", parts, NAMES), *called), ("forward",))

    def symbol_docs(self) -> dict[str, Any]:
        """Return nothing: symbols are written as they are."""
        return {}

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on meta."""
        with torch.device("meta"):
            return Model().eval()

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return one export, with rows of any number."""
        sizes = [SymbolicSize(("x",), 0, "R")]
        args = {"x": torch.empty(3, 8, device="meta")}
        return (ExportJob("all", "forward", ("once",), Whole(model), {"model": ""}, args, sizes),)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the one stage."""
        return ("forward",)

    def proof(self, samples: int, seed: int) -> Proof:
        """Return the identity of the one run."""
        run = self.workload()
        piece: Piece[Any] = Piece("identity: five", "identities", self, run)
        settings = Settings(samples, seed, "{}")
        return Proof((piece,), settings, run, ranges={}, independent={}, choices={}, not_varied=())
