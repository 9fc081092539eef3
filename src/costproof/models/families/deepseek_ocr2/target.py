"""DeepSeek-OCR 2 as a target on the classes of transformers: built on the meta device, cut for export, and run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger
from costproof.ledger.workload import ExpertKernel, Workload
from costproof.models.decoding.build import build
from costproof.models.decoding.decoder import Decoder, config_of, on_meta
from costproof.models.families.deepseek_ocr2.config import MODES, STAGES, Ocr2Config, queries, vision_tokens
from costproof.models.families.deepseek_ocr2.formulas import NAMES, SYMBOLS, ocr2_ledger
from costproof.models.image_text.layout import StagePaths
from costproof.models.pages.jobs import VISION_INPUTS, PageReader, stride, vision_job
from costproof.models.pages.target import PageTarget
from costproof.models.pages.workload import PageModes, page_structure
from costproof.models.specs import ExportJob
from costproof.models.target import NamedWorkload
from costproof.patches.modules import no_image_check, running

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.encoding.domain import Domain


SAM, TOWER, PROJECTOR = (NAMES[role] for role in ("sam", "vision", "projector"))
NATIVE_STAGES: Final = StagePaths({SAM: "sam", TOWER: "encoder", PROJECTOR: "projector"})
DECODER: Final = Decoder(
    stack="model.language_model", places=NATIVE_STAGES.locators("global", "crops"), seen=(VISION_INPUTS,)
)


def _vision(model: nn.Module, workload: Workload, side: int, calls: tuple[str, ...], count: int) -> list[ExportJob]:
    """Return the jobs of towers and projector on views of ``side`` pixels; the number of views is symbolic."""
    from costproof.models.image_text.modules import EchoTower, PartModule, without_children

    vision, grid = config_of(model).vision_config, side // stride(model)
    sam, width = vision.sam_config, vision.encoder_config.hidden_size
    pixels = on_meta(workload, count, sam.num_channels, side, side)
    features = on_meta(workload, count, sam.downsample_channels[-1], grid, grid)
    hidden = on_meta(workload, count, queries(side, stride(model)), width)
    tower = without_children(model.get_submodule(TOWER), {"sam_encoder": EchoTower()})
    parts = {"sam": (SAM, model.get_submodule(SAM), pixels), "encoder": (TOWER, tower, features)}
    parts["projector"] = (PROJECTOR, model.get_submodule(PROJECTOR), hidden)
    return [
        vision_job(stage, side, calls, PartModule(part), {"part": path}, x=given)
        for stage, (path, part, given) in parts.items()
    ]


def _unchecked() -> AbstractContextManager[None]:
    """Return a context manager that disables the check of image tokens against features during a partial forward."""
    return running({_modules()[0]: no_image_check()})


def _modules() -> tuple[Any, Any]:
    """Return the modules of transformers that define the model and its configuration."""
    try:
        from transformers.models.deepseek_ocr2 import configuration_deepseek_ocr2 as configuration
        from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as modeling
    except ImportError as error:
        raise Incomplete(
            "the installed transformers has no classes for DeepSeek-OCR 2",
            where="transformers.models.deepseek_ocr2",
            got=str(error),
            fix="pip install --upgrade transformers (5.23.0 has them)",
        ) from error
    return modeling, configuration


READER: Final = PageReader(DECODER, vision_tokens, queries, _vision, _unchecked, takes_grid=False)


@dataclass(frozen=True, slots=True)
class DeepseekOcr2(PageTarget[Ocr2Config]):
    """Target: ``DeepseekOcr2ForConditionalGeneration`` with one configuration."""

    config: Ocr2Config = field(default_factory=Ocr2Config)
    name: str = "deepseek-ocr2"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_ocr2",)
    stages: ClassVar[tuple[str, ...]] = STAGES
    named: ClassVar[tuple[NamedWorkload, ...]] = MODES.named()
    notation: ClassVar[dict[str, SymbolDoc]] = SYMBOLS
    modes: ClassVar[PageModes] = MODES
    reader: ClassVar[PageReader] = READER
    paths: ClassVar[StagePaths] = NATIVE_STAGES
    second_name: ClassVar[str] = "encoder"

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger: ``exprs`` are set, ``costs`` are empty."""
        found = ocr2_ledger(page_structure(self.config, workload))
        return replace(found, conventions={"expert_kernel": "grouped_mm"}) if workload.experts == "eager" else found

    def domain(self) -> Domain:
        """Return the domain of a proof: pages with and without crops, text, and random sizes."""
        from costproof.models.families.deepseek_ocr2.proof import domain

        return domain()

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[DeepseekOcr2, dict[str, bool]]:
        """Return a random small configuration for a proof; see :func:`~.domain.drawn`."""
        from costproof.models.families.deepseek_ocr2.proof import drawn

        config, features = drawn(p, rng)
        return cls(config), features

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a randomly drawn page and text length."""
        from costproof.models.families.deepseek_ocr2.proof import drawn_run

        return drawn_run(p, workload)

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device; an eager loop over experts is replaced by grouped GEMMs.

        Raises:
            Incomplete: the installed transformers has no classes for it.
        """
        modeling, configuration = _modules()
        return build(
            modeling.DeepseekOcr2ForConditionalGeneration,
            configuration.DeepseekOcr2Config(**self.native_arguments()),
            dtype=workload.dtype,
            attention=workload.attention,
            experts="grouped_mm" if experts == "eager" else experts,
            replaced=no_image_check(),
        )


TARGET: Final = DeepseekOcr2
