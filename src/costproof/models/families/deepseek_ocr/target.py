"""DeepSeek-OCR as a target on the native classes of transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import read_configuration
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import ExpertKernel, Invocation, Workload
from costproof.models import settings
from costproof.models.checkpoint import stored
from costproof.models.decoding.build import with_numbers
from costproof.models.families.deepseek_ocr import native
from costproof.models.families.deepseek_ocr.checkpoint import checkpoint_ledger, placed
from costproof.models.families.deepseek_ocr.config import OcrConfig, from_normalised, parse_config
from costproof.models.families.deepseek_ocr.formulas import ocr_ledger, symbol_docs
from costproof.models.families.deepseek_ocr.snapshot import CODE, REQUIRED
from costproof.models.families.deepseek_ocr.workload import (
    DEFAULT_PRESET,
    DEFAULT_SIDES,
    IMAGE_STAGES,
    MODES,
    SIDES,
    STAGES,
    invocations,
    make_workload,
    problems_of,
    sequence_length,
    structure,
)
from costproof.models.native import Configured
from costproof.models.pages.workload import PAGE_SETTINGS
from costproof.models.specs import Built, ExportJob, Run, layers_cut
from costproof.models.target import Exportable, NamedWorkload, Setting, Target

if TYPE_CHECKING:
    from torch import nn

    from costproof.claims.effects import Mistakes
    from costproof.models.proof import Proof


@dataclass(frozen=True, slots=True)
class DeepseekOcr(Configured[OcrConfig]):
    """DeepSeek-OCR with one configuration, on the native classes of transformers."""

    config: OcrConfig = field(default_factory=OcrConfig)
    name: str = "deepseek-ocr"
    stages: ClassVar[tuple[str, ...]] = STAGES

    @staticmethod
    def presets() -> tuple[NamedWorkload, ...]:
        """Return the presets: the modes of the paper, and two more."""
        return MODES.named()

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """Return the typesetting and the meaning of each symbol in its formulas."""
        return symbol_docs()

    @staticmethod
    def settings() -> tuple[Setting, ...]:
        """Return the settings of a run, other than the preset."""
        return PAGE_SETTINGS

    @staticmethod
    def mistakes() -> Mistakes:
        """Return the mistakes that are common in models of the vision towers and of the projector."""
        from costproof.models.mistakes.deepseek_ocr import MISTAKES

        return MISTAKES

    @classmethod
    def default(cls) -> DeepseekOcr:
        """Return the target with the published configuration."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> DeepseekOcr:
        """Return the target with the configuration in a vendor or native file."""
        data = read_configuration(path)
        return cls(parse_config(data, where=str(path)), stored=stored(data, path))

    @classmethod
    def from_normalised(cls, text: str) -> DeepseekOcr:
        """Return the target with the configuration that :meth:`normalised` wrote."""
        return cls(from_normalised(json.loads(text)))

    @staticmethod
    def reads(folder: Path) -> bool:
        """Return whether a folder contains a file of the remote code."""
        return any((folder / name).is_file() for name in CODE)

    @staticmethod
    def folder_holds() -> str:
        """Return a description of the folders that this target reads."""
        return "a snapshot of DeepSeek-OCR: " + ", ".join(REQUIRED)

    @staticmethod
    def from_folder(folder: Path, *, trusted: bool) -> Target:
        """Return the target that runs the remote code in a folder."""
        from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr

        return RemoteCodeOcr.from_folder(folder, trusted=trusted)

    def first_layers(self, layers: int) -> tuple[OcrConfig, dict[str, str]]:
        """Return the configuration with the first layers of decoder and towers, and what was cut.

        The decoder keeps its dense layers and at least one mixture of experts. SAM keeps its layers up to
        the first one with global attention (and one with windows, where it has any); CLIP keeps as many layers as the
        decoder. Widths, experts and tables stay as they are.
        """
        text, sam, clip = self.config.text, self.config.sam, self.config.clip
        layers, words = layers_cut("decoder", layers, min(text.dense_layers + 1, text.layers), text.layers)
        cut = {"decoder layers": words}
        if not words:
            return self.config, {}
        windowed = [i for i in range(sam.layers) if i not in sam.global_layers]
        kept = max([min(kind) + 1 for kind in (sam.global_layers, windowed) if kind], default=sam.layers)
        clipped = min(layers, clip.layers)
        small = replace(
            self.config,
            text=replace(text, layers=layers),
            sam=replace(sam, layers=kept, global_layers=tuple(i for i in sam.global_layers if i < kept)),
            clip=replace(clip, layers=clipped),
        )
        cut |= {"SAM layers": f"{kept} of {sam.layers}", "CLIP layers": f"{clipped} of {clip.layers}"}
        return small, cut

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a preset with changes; ``settings`` as for :func:`~.workloads.make_workload`."""
        return make_workload(preset or DEFAULT_PRESET, config=self.config, default_dtype=self.dtype, **settings)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why the model cannot run a workload."""
        found = problems_of(self.config, workload)
        text = self.config.text
        if workload.attention == "eager" and text.kv_heads != text.heads:
            found.append(
                BadInput(
                    "the native model's eager attention cannot share key/value heads",
                    where="--attention",
                    expected=f"sdpa, or as many key/value heads as heads ({text.heads})",
                    got=f"eager with {text.kv_heads} key/value heads",
                    fix="leave --attention at sdpa",
                )
            )
        return found + settings.device_problems(workload, self.options)

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the invocations of the stages in one run, in order, with the values of their symbols."""
        return invocations(self.config, workload)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger: ``exprs`` are set, ``costs`` are empty."""
        found = ocr_ledger(structure(self.config, workload))
        # How often a loop over experts turns depends on the data; a formula counts one call for all of them.
        return replace(found, conventions={"expert_kernel": "grouped_mm"}) if workload.experts == "eager" else found

    def checkpoint(self) -> Ledger | None:
        """Return the ledger of the published checkpoint if this configuration has its shapes."""
        return checkpoint_ledger() if self.config.shapes() == OcrConfig().shapes() else None

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """Return the settings of a proof: the sides to enumerate."""
        return (SIDES,)

    def proof(self, samples: int, seed: int, sides: str = DEFAULT_SIDES) -> Proof:
        """Return the proof: runs, sides, pages, and random small configurations."""
        from costproof.models.families.deepseek_ocr.proof import proof

        return proof(self, samples, seed, sides)

    def build(self, workload: Workload) -> nn.Module:
        """Return the model on the meta device, in the dtype of the workload.

        A loop over experts depends on data; what is exported in its place does the same products.
        """
        return self._build(workload, "grouped_mm" if workload.experts == "eager" else workload.experts)

    def _build(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        return native.build_model(
            self.config.native_kwargs(),
            dtype=workload.dtype,
            attention=workload.attention,
            experts=experts,
            context=sequence_length(self.config, workload) + workload.new_tokens,
        )

    def build_run(self, workload: Workload, progress: Progress) -> Built:
        """Return the model that the dynamic source runs, on the meta device or with weights.

        Raises:
            Problems: the checkpoint does not fit.
            Incomplete: the device is not there, or no kernel of FlashAttention.
        """
        model = self._build(workload, workload.experts)
        return with_numbers(model, workload, native.DECODER, self.options, progress, placed)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order."""
        return native.NATIVE_STAGES.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of the static source."""
        return native.export_jobs(model, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the dynamic source."""
        if next(model.parameters()).device.type == "meta":
            return native.READER.shape_runs(model, workload)
        return native.READER.real_runs(model, workload, self.options.seed)

    def derivable(self, stage: str) -> tuple[Exportable, Workload, dict[str, int]] | None:
        """Return a target, a workload and the symbols with which a vision stage can be exported for any side."""
        from costproof.models.families.deepseek_ocr.proof import AnySideOcr

        target = AnySideOcr(self.config)
        return (target, target.run(), {"H": target.step}) if stage in IMAGE_STAGES else None

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the jobs of the isolated source."""
        return native.stage_runs(model, workload)


TARGET: Final = DeepseekOcr
