"""DeepSeek-OCR 2 on the classes of transformers: built on the meta device, cut for export, and run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Workload
from costproof.models.decoding import build as decoding
from costproof.models.decoding import exports
from costproof.models.decoding.decoder import Decoder, config_of, on_meta
from costproof.models.families.deepseek_ocr2.config import Ocr2Config
from costproof.models.families.deepseek_ocr2.formulas import NAMES
from costproof.models.families.deepseek_ocr2.workload import queries, vision_tokens
from costproof.models.image_text.layout import StagePaths
from costproof.models.image_text.target import no_image_check
from costproof.models.pages.jobs import VIEWS, VISION_INPUTS, PageReader, stride, vision_job
from costproof.models.pages.page import page_of, sides, views
from costproof.models.specs import ExportJob

if TYPE_CHECKING:
    from torch import nn


SAM, TOWER, PROJECTOR = (NAMES[role] for role in ("sam", "vision", "projector"))
NATIVE_STAGES: Final = StagePaths({SAM: "sam", TOWER: "encoder", PROJECTOR: "projector"})
DECODER: Final = Decoder(
    stack="model.language_model", places=NATIVE_STAGES.locators("global", "crops"), seen=(VISION_INPUTS,)
)
READER: Final = PageReader(DECODER, vision_tokens, takes_grid=False)


def build_model(config: Ocr2Config, workload: Workload) -> nn.Module:
    """Return the whole model on the meta device, in eval mode.

    Raises:
        Incomplete: the installed transformers has no classes for it.
    """
    modeling, configuration = _modules()
    made = configuration.DeepseekOcr2Config(**config.native())
    experts = "grouped_mm" if workload.experts == "eager" else workload.experts
    return decoding.build(
        modeling.DeepseekOcr2ForConditionalGeneration,
        made,
        dtype=workload.dtype,
        attention=workload.attention,
        experts=experts,
        replaced=no_image_check(),
    )


def export_jobs(model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """Return the export jobs: each vision stage at each view size, the glue into the prompt, the prefill and a step."""
    jobs = [job for side, calls in sides(workload).items() for job in _vision(model, workload, side, calls)]
    embeds = bool(workload.inputs)
    jobs += [_glue(model, workload)] if embeds else []
    return (*jobs, *exports.export_jobs(model, workload, DECODER, embeds=embeds))


def stage_runs(model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """Return jobs that run each invocation of each stage in isolation, and the first, middle and last decode step."""
    found: list[ExportJob] = []
    for invocation, count, side in views(workload):
        jobs = _vision(model, workload, side, (invocation,), count)
        found += [replace(job, id=f"{job.stage}@{invocation}") for job in jobs]
    embeds = bool(workload.inputs)
    found += [_glue(model, workload)] if embeds else []
    length = READER.length(model, workload)
    return (*found, *exports.stage_runs(model, workload, DECODER, length, embeds=embeds))


def _vision(
    model: nn.Module, workload: Workload, side: int, calls: tuple[str, ...], count: int = VIEWS
) -> list[ExportJob]:
    """Return the jobs of towers and projector on views of ``side`` pixels; the number of views is symbolic."""
    from costproof.models.image_text.modules import PartModule, without_children
    from costproof.models.pages.modules import EchoTower

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


def _glue(model: nn.Module, workload: Workload) -> ExportJob:
    page = page_of(workload)
    assert page is not None
    rows = tuple(queries(side, stride(model)) for side in (page.base_size, page.image_size))
    return READER.glue_job(model, workload, (rows[0], rows[1]), _unchecked)


def _unchecked() -> AbstractContextManager[None]:
    """Return the context in which a forward of a part of the model runs."""
    return decoding.running({_modules()[0]: no_image_check()})


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
