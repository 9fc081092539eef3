"""Define DeepSeek-OCR 2 as a target: built on the meta device, divided into parts for export, and run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, ExpertKernel, Workload
from costproof.models.decoding.build import build
from costproof.models.decoding.decoder import Decoder, config_of, on_meta
from costproof.models.decoding.domain import GROUPED_ROW
from costproof.models.encoding.domain import Domain, Parameters
from costproof.models.families.deepseek_ocr2.config import (
    MODES,
    STAGES,
    Ocr2Config,
    QueryEncoderConfig,
    queries,
    vision_tokens,
)
from costproof.models.families.deepseek_ocr2.formulas import NAMES, SYMBOLS, glue_tape, ocr2_ledger, view_tapes
from costproof.models.image_text.layout import StagePaths
from costproof.models.pages.config import DrawnSam, PageDecoderConfig, drawn_decoder
from costproof.models.pages.jobs import VISION_INPUTS, PageReader, stride, vision_job
from costproof.models.pages.page import Page, page_workload, with_page
from costproof.models.pages.target import PageTarget
from costproof.models.pages.workload import PageModes
from costproof.models.specs import ExportJob
from costproof.models.target import NamedWorkload
from costproof.patches.modules import no_image_check, running

if TYPE_CHECKING:
    from torch import nn

    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.encoding.domain import Domain
    from costproof.models.pages.formulas import PageStructure, View


SAM, TOWER, PROJECTOR = (NAMES[role] for role in ("sam", "vision", "projector"))
NATIVE_STAGES: Final = StagePaths({SAM: "sam", TOWER: "encoder", PROJECTOR: "projector"})
DECODER: Final = Decoder(
    stack="model.language_model", places=NATIVE_STAGES.locators("global", "crops"), seen=(VISION_INPUTS,)
)


def _vision(model: nn.Module, workload: Workload, side: int, calls: tuple[str, ...], count: int) -> list[ExportJob]:
    """Return the export jobs of towers and projector on a symbolic number of views of ``side`` pixels."""
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
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``)."""
        found = ocr2_ledger(self.structure(workload))
        return replace(found, conventions={"expert_kernel": "grouped_mm"}) if workload.experts == "eager" else found

    def view_tapes(
        self, structure: PageStructure, view: View, workload: Workload, count: int, side: int
    ) -> dict[str, MemoryTape]:
        return view_tapes(structure, view, self.config, count, side, wide=workload.dtype == "float32")

    def glue_tape(self, structure: PageStructure, workload: Workload) -> MemoryTape:
        return glue_tape(structure)

    def domain(self) -> Domain:
        """Return the domain of a proof: pages with and without crops, text, and random sizes."""

        return domain()

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[DeepseekOcr2, dict[str, bool]]:
        """Draw a random small configuration for a proof; return its target and its features."""

        config, features = drawn(p, rng)
        return cls(config), features

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a randomly drawn page and text length."""

        return drawn_run(p, workload)

    def built_class(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device; an eager loop over experts is replaced by grouped GEMMs.

        Raises:
            Incomplete: the installed transformers has no classes for it.
        """
        modeling, configuration = _modules()
        replaced = no_image_check()
        if workload.rows:  # the encoder builds its masks by the same function
            from costproof.models.decoding.modules import with_row_masks

            replaced["create_causal_mask"] = with_row_masks(modeling.create_causal_mask)
        return build(
            modeling.DeepseekOcr2ForConditionalGeneration,
            configuration.DeepseekOcr2Config(**self.native_arguments()),
            dtype=workload.dtype,
            attention=workload.attention,
            experts="grouped_mm" if experts == "eager" else experts,
            replaced=replaced,
        )


TARGET: Final = DeepseekOcr2


_GRIDS: Final = (None, (1, 2), (2, 1), (2, 2), (3, 2), (1, 5))
PARAMETERS: Final = Parameters(
    {
        "sam_heads": range(1, 9),
        "sam_head_dim": range(1, 41),
        "sam_mlp": range(1, 201),
        "sam_window": range(1, 21),
        "sam_out": range(1, 101),
        "sam_down1": range(1, 101),
        "sam_patch": range(1, 9),
        "in_channels": range(1, 9),
        "sam_image_patches": range(1, 65),
        "encoder_kv_heads": range(1, 9),
        "encoder_groups": range(1, 5),
        "encoder_head_halves": range(1, 21),
        "encoder_intermediate": range(1, 201),
        "text_kv_heads": range(1, 9),
        "text_groups": range(1, 5),
        "text_head_eighths": range(1, 9),
        "text_intermediate": range(1, 201),
        "text_experts": range(16, 65),
        "text_topk": range(1, 17),
        "text_moe_rows": range(1, 33),
        "text_shared": range(1, 9),
        "text_vocab": range(16, 516),
        "text_tokens": range(3, 101),
        "side": range(1, 21),
        "crop": range(1, 17),
        "grid": range(len(_GRIDS)),
        "page": range(8),
        "last": range(2),
        "batched": range(2),
        "B": range(1, 9),
        "P": range(1, 65),
        "b": range(2, 6, 2),
    },
    {
        "sam_hidden": "sam_heads*sam_head_dim",
        "sam_image": "sam_image_patches*sam_patch",
        "sam_down2": "2*encoder_kv_heads*encoder_groups*encoder_head_halves",
        "encoder_heads": "encoder_kv_heads*encoder_groups",
        "encoder_head_dim": "2*encoder_head_halves",
        "encoder_hidden": "2*encoder_kv_heads*encoder_groups*encoder_head_halves",
        "text_heads": "text_kv_heads*text_groups",
        "text_head_dim": "8*text_head_eighths",
        "text_hidden": "8*text_kv_heads*text_groups*text_head_eighths",
        "text_moe": "8*text_moe_rows",
        "H": "4*sam_patch*side",
        "S": "text_tokens",
        "n": "B",
        "Q_g": "Q",
    },
    ("kernels other than sdpa and eager", "padded prompts", "views that are not square"),
)
"""Parameters of random configurations; heads share the width, and the factor 8 is 2 without grouped GEMMs."""


def domain() -> Domain:
    """Return the domain of a proof: a page with crops, a single view with eager attention, and text only."""
    return Domain(
        (
            page_workload("page", Page(1024, 768, (2, 3)), 16, 4),
            page_workload(
                "view, eager, last logits", Page(768, 768), 16, 4, 1, "float32", "eager", "last", "batched_mm"
            ),
            page_workload("text", None, 512, 4),
        ),
        PARAMETERS,
        (768, 1024),
    )


def drawn(p: Mapping[str, int], rng: random.Random) -> tuple[Ocr2Config, dict[str, bool]]:
    """Draw a random small configuration; return it, and whether it has each feature."""
    layers = {part: rng.choice((1, 1, 1, 2)) for part in ("sam", "encoder")}
    # Heads are a share of the width, and rotation needs pairs.
    row = GROUPED_ROW if _grouped(p) else 2
    width = 2 * p["encoder_kv_heads"] * p["encoder_groups"] * p["encoder_head_halves"]
    config = Ocr2Config(
        DrawnSam.of(p, rng, layers["sam"], width),
        QueryEncoderConfig(
            width,
            layers["encoder"],
            p["encoder_kv_heads"] * p["encoder_groups"],
            p["encoder_kv_heads"],
            p["encoder_intermediate"],
        ),
        PageDecoderConfig(
            hidden=row * p["text_kv_heads"] * p["text_groups"] * p["text_head_eighths"],
            moe_intermediate=row * p["text_moe_rows"],
            **drawn_decoder(p, rng, p["layers"]),
            max_positions=2**16 + rng.randrange(2**10),
        ),
        image_token=1,
    )
    sam, text = config.sam, config.text
    return config, {
        "layers with windows": len(sam.global_layers) < sam.layers,
        "global layers": bool(sam.global_layers),
        "dense layers": text.dense_layers > 0,
        "mixtures": text.dense_layers < text.layers,
    }


def drawn_run(p: Mapping[str, int], workload: Workload) -> Workload:
    """Return the workload with a randomly drawn page and text length."""
    stride = 4 * p["sam_patch"]
    page = Page(p["side"] * stride, p["crop"] * stride, _GRIDS[p["grid"]]) if p["page"] else None
    more: dict[str, Any] = {"text_tokens": p["text_tokens"], "logits": "last" if p["last"] else "all"}
    more["experts"] = "grouped_mm" if _grouped(p) else "batched_mm"
    return with_page(replace(workload, **more), page)


def _grouped(p: Mapping[str, int]) -> bool:
    """Return whether experts of a random configuration run as ``grouped_mm``, which meta supports only in bfloat16."""
    return not p["batched"] and p["b"] == FLOAT_BYTES["bfloat16"]
