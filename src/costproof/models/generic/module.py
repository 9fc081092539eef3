"""Any module as a target: one stage, one call, its batch and its sequence as symbols; no formulas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.conventions import Conventions
from costproof.ledger.progress import Progress
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Invocation, TargetInfo, TensorSpec, Workload
from costproof.models.generic.inputs import example_inputs
from costproof.models.target import Built, ExportJob, NamedWorkload, Run, Setting, SymbolicSize

if TYPE_CHECKING:
    from torch import nn

STAGE: Final = "forward"


@dataclass(frozen=True, slots=True)
class GenericTarget:
    """A module on meta, exported and run as it stands."""

    name: str
    module: nn.Module
    config: Mapping[str, int] = field(default_factory=dict)
    """Numbers of its configuration by name, for constants that are one of them."""
    options: RunOptions = field(default_factory=RunOptions)

    def info(self) -> TargetInfo:
        """The target as data."""
        data = json.dumps([type(self.module).__name__, dict(self.config)], sort_keys=True)
        digest = hashlib.sha256(data.encode()).hexdigest()[:12]
        return TargetInfo(self.name, "native", digest, dict(self.config), (STAGE,))

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Nothing: the example inputs are those of the module."""
        return ()

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """None."""
        return ()

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """One forward on the example inputs."""
        return Workload(STAGE, 0, 0, self._sizes().get("B", 1))

    def conventions(self, workload: Workload) -> Conventions:
        """The usual ones."""
        return Conventions()

    def check(self, workload: Workload) -> None:
        """Whether a module runs is seen when it is exported."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """One call, with the sizes of the example inputs."""
        inputs = example_inputs(self.module).values()
        specs = tuple(TensorSpec(tuple(v.shape), str(v.dtype).removeprefix("torch.")) for v in inputs)
        return (Invocation(STAGE, STAGE, 1, self._sizes(), specs),)

    def build(self, workload: Workload) -> nn.Module:
        """The module itself."""
        return self.module

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """One export of the whole."""
        from costproof.models.generic.modules import around

        args = example_inputs(model)
        return (ExportJob(STAGE, STAGE, (STAGE,), around(model, tuple(args)), {"part": ""}, args, symbolic(args)),)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """The one stage."""
        return (STAGE,)

    def with_options(self, options: RunOptions) -> GenericTarget:
        """The same module; it runs on shapes alone."""
        options.check()
        return replace(self, options=options)

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """The module itself."""
        return Built(self.module)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """One forward without a cache."""
        from costproof.models.generic.modules import without_cache

        return (
            Run(STAGE, model, {**example_inputs(model), **without_cache(model)}, lambda path, call: (STAGE, STAGE)),
        )

    def _sizes(self) -> dict[str, int]:
        args = example_inputs(self.module)
        return {s.symbol: int(args[str(s.argument[0])].shape[s.dim]) for s in symbolic(args)}


def symbolic(args: Mapping[str, Any]) -> list[SymbolicSize]:
    """The batch of every argument, and the sequence of those that are integers."""
    sizes: list[SymbolicSize] = []
    for key, value in args.items():
        sizes.append(SymbolicSize((key,), 0, "B"))
        if not value.is_floating_point() and value.dim() > 1:
            sizes.append(SymbolicSize((key,), 1, "T" if key.startswith("decoder_") else "S"))
    return sizes
