"""DeepSeek-OCR as a target: one place that knows configuration, workloads, formulas and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.ledger.conventions import Conventions
from costproof.ledger.errors import Problems
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.deepseek_ocr import geometry
from costproof.models.deepseek_ocr.config import OcrConfig, default_config, from_normalised, load_config
from costproof.models.deepseek_ocr.workloads import DEFAULT_PRESET, make_workload, problems_of
from costproof.models.target import ExportJob, Run, StageRun

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class DeepseekOcr:
    """The native classes of transformers with one configuration. Instances are picklable."""

    config: OcrConfig = field(default_factory=default_config)
    name: str = "deepseek-ocr"

    @classmethod
    def default(cls) -> DeepseekOcr:
        """The published checkpoint's configuration."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> DeepseekOcr:
        """The configuration in a vendor or native file.

        Raises:
            BadInput: the file cannot be used.
        """
        return cls(load_config(path))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> DeepseekOcr:
        """The configuration that :meth:`OcrConfig.normalised` wrote."""
        return cls(from_normalised(dict(data)))

    def info(self) -> TargetInfo:
        """The target as data."""
        return TargetInfo(
            name=self.name,
            implementation="native",
            config_hash=self.config.config_hash(),
            symbols=self.config.symbols(),
            stages=geometry.STAGES,
            waived=dict(self.config.waived),
        )

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """A preset with changes; settings as for :func:`~costproof.models.deepseek_ocr.workloads.make_workload`.

        Raises:
            Problems: everything that is wrong with the settings.
        """
        return make_workload(preset or DEFAULT_PRESET, config=self.config, **settings)

    def conventions(self, workload: Workload) -> Conventions:
        """The conventions of all numbers made for this workload."""
        return Conventions(
            logits=workload.logits,
            expert_kernel=workload.experts,
            attention=workload.attention,
            dtype=workload.dtype,
        )

    def check(self, workload: Workload) -> None:
        """Check that the model can run the workload.

        Raises:
            Problems: everything that keeps it from it.
        """
        problems = problems_of(self.config, workload)
        if problems:
            raise Problems("the workload cannot be run", problems)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """The calls of the stages in one run, in order, with the values of their symbols."""
        return geometry.invocations(self.config, workload)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.analytic.deepseek_ocr import ledger

        return ledger(geometry.structure(self.config, workload))

    def checkpoint(self) -> Ledger | None:
        """Parameters of the published checkpoint, if this configuration has its shapes."""
        from costproof.models.deepseek_ocr.checkpoint import checkpoint_ledger

        return checkpoint_ledger() if self.config.shapes() == default_config().shapes() else None

    def build(self, workload: Workload) -> nn.Module:
        """The model on the meta device, in the workload's dtype."""
        from costproof.models.deepseek_ocr import native

        return native.build_model(
            self.config.native_kwargs(),
            dtype=workload.dtype,
            attention=workload.attention,
            experts=workload.experts,
            context=geometry.sequence_length(self.config, workload) + workload.new_tokens,
        )

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """What the static source has to export."""
        from costproof.models.deepseek_ocr import cuts

        return cuts.export_jobs(model, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """What the dynamic source has to trace."""
        from costproof.models.deepseek_ocr import cuts

        return cuts.runs(model, workload)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[StageRun, ...]:
        """What the isolated source has to trace."""
        from costproof.models.deepseek_ocr import cuts

        return cuts.stage_runs(model, workload)
