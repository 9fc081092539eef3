"""The model as a target: one stage, one call, no formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mylib_ops import Model  # type: ignore[import-not-found]
from torch import nn

from costproof.ledger.metrics import Conventions
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.specs import Built, ExportJob, Run, SymbolicSize
from costproof.models.target import NamedWorkload, Setting

BATCH = 5
ON_META = RunOptions()


class Whole(nn.Module):
    """The model behind a call."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> Any:
        """What it returns."""
        return self.part(x)


@dataclass(frozen=True, slots=True)
class Fancy:
    """The target."""

    options: RunOptions = ON_META
    name: str = "fancy"

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Nothing can be chosen."""
        return ()

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """The one workload."""
        return (NamedWorkload("usual", "5 sequences", {}, default=True),)

    @classmethod
    def default(cls) -> Fancy:
        """There is one configuration."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> Fancy:
        """No file says more."""
        return cls()

    def info(self) -> TargetInfo:
        """One stage."""
        return TargetInfo(self.name, "native", "0" * 12, {}, ("forward",))

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Five sequences of four."""
        return Workload("five", 4, 0, BATCH)

    def conventions(self, workload: Workload) -> Conventions:
        """Defaults."""
        return Conventions()

    def check(self, workload: Workload) -> None:
        """All can be run."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """One."""
        return (Invocation("forward", "once", 1, {"B": BATCH}, ()),)

    def with_options(self, options: RunOptions) -> Fancy:
        """Run in another way."""
        return replace(self, options=options)

    def build(self, workload: Workload) -> nn.Module:
        """On meta."""
        with torch.device("meta"):
            model: nn.Module = Model().eval()
        return model

    def build_run(self, workload: Workload, progress: Any) -> Built:
        """The same."""
        return Built(self.build(workload))

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """One stage."""
        return ("forward",)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """One export, at another batch."""
        args = {"x": torch.empty(3, 4, 6, device="meta")}
        return (
            ExportJob("all", "forward", ("once",), Whole(model), {"part": ""}, args, [SymbolicSize(("x",), 0, "B")]),
        )

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """One forward."""
        args = {"x": torch.empty(BATCH, 4, 6, device="meta")}
        return (Run("all", model, args, lambda path, call: ("forward", "once")),)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The same alone."""
        args = {"x": torch.empty(BATCH, 4, 6, device="meta")}
        return (ExportJob("all", "forward", ("once",), Whole(model), {"part": ""}, args),)
