"""Where the native DeepSeek-OCR is cut for export: towers and projector, what joins them to the text, the decoder.

Every cut runs through activations that one stage hands to the next. The value is an output of the
one graph and an input of the other, so it counts as written by its producer and as read by its
reader, exactly as in a trace of the whole model: the cuts neither lose nor double a byte.

The static source exports the cuts at example sizes and keeps these symbolic; the isolated source
traces the very same cuts at the sizes that the workload has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models.decoding import exports as decoding
from costproof.models.decoding.decoder import config_of, on_meta
from costproof.models.families.deepseek_ocr.build import DECODER, stride, unchecked
from costproof.models.families.deepseek_ocr.formulas.names import NATIVE_NAMES
from costproof.models.families.deepseek_ocr.page import page_of, sides, views
from costproof.models.families.deepseek_ocr.runs import READER, Reader, page_inputs
from costproof.models.specs import ExportJob, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

SAM, CLIP, TOWER = (NATIVE_NAMES[role] for role in ("sam", "clip", "vision"))
PROJECTOR = NATIVE_NAMES["projector"]
EMBEDDING = NATIVE_NAMES["text.embedding"]

VIEWS = 7
"""Example number of views: above 1, and none of the decoder's example sizes."""


def export_jobs(model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """One export per vision stage and view size, the decoder's prefill and step, and the glue between."""
    jobs: list[ExportJob] = []
    for side, calls in sides(workload).items():
        jobs += vision_jobs(model, workload, side, calls)
    # The embedding belongs to the glue, which writes the vision tokens into its result.
    embeds = bool(workload.inputs)
    if embeds:
        jobs.append(page_glue(model, workload))
    return (*jobs, *decoding.export_jobs(model, workload, DECODER, embeds=embeds))


def stage_runs(model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """Every invocation of every stage by itself, and the first, the middle and the last decode step."""
    found: list[ExportJob] = []
    for invocation, count, side in views(workload):
        jobs = vision_jobs(model, workload, side, (invocation,), count)
        found += [replace(job, id=f"{job.stage}@{invocation}") for job in jobs]
    embeds = bool(workload.inputs)
    if embeds:
        found.append(page_glue(model, workload))
    length = READER.length(model, workload)
    return (*found, *decoding.stage_runs(model, workload, DECODER, length, embeds=embeds))


def vision_jobs(
    model: nn.Module, workload: Workload, side: int, invocations: tuple[str, ...], views: int = VIEWS
) -> list[ExportJob]:
    """The towers and the projector on views of ``side`` pixels, their number symbolic."""
    from costproof.models.families.deepseek_ocr import wrappers
    from costproof.models.image_text import modules

    vision = config_of(model).vision_config
    sam, clip = vision.sam_config, vision.encoder_config
    tower, query = model.get_submodule(TOWER), side // stride(model)
    pixels = on_meta(workload, views, sam.num_channels, side, side)
    features = on_meta(workload, views, sam.downsample_channels[-1], query, query)
    hidden = on_meta(workload, views, query * query + 1, clip.hidden_size)
    projector = wrappers.Projector(tower, model.get_submodule(PROJECTOR))
    parts = {"tower": TOWER, "projector": PROJECTOR}
    joined = vision_job("projector", side, invocations, projector, parts, features=features, hidden=hidden)
    return [
        vision_job("sam", side, invocations, modules.PartModule(model.get_submodule(SAM)), {"part": SAM}, x=pixels),
        vision_job(
            "clip", side, invocations, modules.PartModule(model.get_submodule(CLIP)), {"part": CLIP}, x=features
        ),
        replace(joined, own_calls=frozenset(parts.values())),
    ]


def vision_job(
    stage: str, side: int, invocations: tuple[str, ...], module: nn.Module, prefix: dict[str, str], **args: torch.Tensor
) -> ExportJob:
    """A vision stage at one size of its views; the number of views is the first dimension of every argument."""
    sizes = [SymbolicSize((name,), 0, "n") for name in args]
    return ExportJob(f"{stage}@{side}", stage, invocations, module, prefix, args, sizes)


def page_glue(model: nn.Module, workload: Workload) -> ExportJob:
    """Newlines, separator and scatter between projector and decoder."""
    page = page_of(workload)
    assert page is not None
    rows = [(size // stride(model)) ** 2 for size in (page.base_size, page.image_size)]
    return glue_job(model, workload, READER, (rows[0], rows[1]), unchecked)


def glue_job(
    model: nn.Module,
    workload: Workload,
    reader: Reader,
    rows: tuple[int, int],
    around: Callable[[], AbstractContextManager[None]],
) -> ExportJob:
    """What lies between projector and decoder; concrete, since it loops over images.

    Args:
        rows: of features of the global view, and of a crop.
        around: what a forward of that part needs.
    """
    from costproof.models.families.deepseek_ocr import wrappers

    page = page_of(workload)
    assert page is not None
    width = config_of(model).text_config.hidden_size
    inputs = page_inputs(model, workload, reader)
    args: dict[str, Any] = {"ids": inputs["input_ids"], "views": on_meta(workload, workload.batch, rows[0], width)}
    if page.grid:
        args["crops"] = on_meta(workload, workload.batch * page.crops, rows[1], width)
    given: dict[str, Any] = {name: inputs[name] for name in ("num_local_patches", "patches_grid") if name in inputs}
    return ExportJob(
        "glue",
        "prefill",
        ("prompt",),
        wrappers.Glue(model.get_submodule("model"), given, around),
        {"part": "model", "part.language_model.embed_tokens": EMBEDDING},
        args,
        own_calls=frozenset({EMBEDDING}),
        inside=frozenset({"return.0"}),
    )
