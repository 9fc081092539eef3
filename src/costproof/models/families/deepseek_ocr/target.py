"""Define DeepSeek-OCR as a target on the native classes of transformers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import read_configuration
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress
from costproof.ledger.workload import AttentionKind, ExpertKernel, Workload
from costproof.models.decoding.build import with_numbers
from costproof.models.families.deepseek_ocr import native
from costproof.models.families.deepseek_ocr.checkpoint import checkpoint_ledger, placed
from costproof.models.families.deepseek_ocr.config import (
    DEFAULT_SIDES,
    IMAGE_STAGES,
    MODES,
    SIDES,
    STAGES,
    OcrConfig,
    parse_config,
)
from costproof.models.families.deepseek_ocr.formulas import SYMBOLS, glue_tape, ocr_ledger, view_tapes
from costproof.models.families.deepseek_ocr.vendor_code import CODE, REQUIRED
from costproof.models.image_text.layout import StagePaths
from costproof.models.pages.jobs import PageReader
from costproof.models.pages.page import page_of
from costproof.models.pages.target import PageTarget
from costproof.models.pages.workload import PageModes, page_run_problems, sequence_length
from costproof.models.reader_check import ConfigFile
from costproof.models.settings import device_problems
from costproof.models.specs import Built
from costproof.models.target import Exportable, NamedWorkload, Setting, Target
from costproof.weights.stored import stored

if TYPE_CHECKING:
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape
    from costproof.claims.effects import Mistakes
    from costproof.models.pages.formulas import PageStructure, View
    from costproof.models.proof import Proof


@dataclass(frozen=True, slots=True)
class DeepseekOcr(PageTarget[OcrConfig]):
    """DeepSeek-OCR with one configuration, on the native classes of transformers."""

    config: OcrConfig = field(default_factory=OcrConfig)
    name: str = "deepseek-ocr"
    stages: ClassVar[tuple[str, ...]] = STAGES
    attentions: ClassVar[tuple[AttentionKind, ...]] = get_args(AttentionKind)

    named: ClassVar[tuple[NamedWorkload, ...]] = MODES.named()
    notation: ClassVar[dict[str, SymbolDoc]] = SYMBOLS
    modes: ClassVar[PageModes] = MODES
    reader: ClassVar[PageReader] = native.READER
    paths: ClassVar[StagePaths] = native.NATIVE_STAGES
    prompt_apart: ClassVar[bool] = True
    second_name: ClassVar[str] = "CLIP"

    @staticmethod
    def mistakes() -> Mistakes:
        """Return the mistakes common in published numbers of the vision towers and the projector."""
        from costproof.models.mistakes import OCR_MISTAKES

        return OCR_MISTAKES

    @classmethod
    def from_file(cls, path: Path) -> DeepseekOcr:
        """Return the target with the configuration in a vendor or native file."""
        data = read_configuration(path)
        config = parse_config(data, where=str(path))
        return cls(config, stored=stored(data, path), file=ConfigFile.of(data, config, path))

    @staticmethod
    def reads(folder: Path) -> bool:
        """Return whether a folder contains the remote code of DeepSeek-OCR."""
        return any((folder / name).is_file() for name in CODE)

    @staticmethod
    def folder_holds() -> str:
        """Return a description, for messages, of the folders that this target reads."""
        return "a snapshot of DeepSeek-OCR: " + ", ".join(REQUIRED)

    @staticmethod
    def from_folder(folder: Path, *, trusted: bool) -> Target:
        """Return the target that runs the remote code in a folder."""
        from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr

        return RemoteCodeOcr.from_folder(folder, trusted=trusted)

    def problems(self, workload: Workload) -> list[CostproofError]:
        found, text = page_run_problems(self.config, workload, MODES), self.config.text
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
        return found + device_problems(workload, self.options)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""
        found = ocr_ledger(self.structure(workload))
        # How often a loop over experts turns depends on the data; a formula counts one call for all of them.
        return replace(found, conventions={"expert_kernel": "grouped_mm"}) if workload.experts == "eager" else found

    def view_tapes(
        self, structure: PageStructure, view: View, workload: Workload, count: int, side: int
    ) -> dict[str, MemoryTape]:
        return view_tapes(structure, view, self.config, count, side, wide=workload.dtype == "float32")

    def glue_tape(self, structure: PageStructure, workload: Workload) -> MemoryTape:
        page = page_of(workload)
        assert page is not None
        return glue_tape(structure, page.grid, page.image_size // self.config.sam.stride)

    def checkpoint(self) -> Ledger | None:
        """Return the ledger of the published checkpoint if this configuration has its shapes."""
        return checkpoint_ledger() if self.config.shapes() == OcrConfig().shapes() else None

    @staticmethod
    def proof_settings() -> tuple[Setting, ...]:
        """Return the settings of a proof: the view sides to enumerate."""
        return (SIDES,)

    def proof(self, samples: int, seed: int, sides: str = DEFAULT_SIDES) -> Proof:
        """Return a proof over workloads, view sizes, pages, and random small configurations."""
        from costproof.models.families.deepseek_ocr.proof import proof

        return proof(self, samples, seed, sides)

    def built_class(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device with the given implementation of routed experts."""
        return native.build_model(
            self.native_arguments(),
            dtype=workload.dtype,
            attention=workload.attention,
            experts=experts,
            context=sequence_length(self.config, workload, MODES) + workload.new_tokens,
        )

    def built_run(self, workload: Workload, progress: Progress) -> Built:
        model = self.built(workload, workload.experts)
        return with_numbers(model, workload, self.decoder, self.options, progress, placed)

    def derivable(self, stage: str) -> tuple[Exportable, Workload, dict[str, int]] | None:
        """Return (target, workload, step by symbol) to export a vision stage with a symbolic view side, else ``None``.

        Other stages have none: ``None``.
        """
        from costproof.models.families.deepseek_ocr.proof import AnySideOcr

        target = AnySideOcr(self.config)
        return (target, target.run(), {"H": target.step}) if stage in IMAGE_STAGES else None


TARGET: Final = DeepseekOcr
