"""Where the native DeepSeek-OCR is cut: the exports of the static source, the runs of the dynamic ones.

Every cut runs through activations that one stage hands to the next. The value is an output of the
one graph and an input of the other, so it counts as written by its producer and as read by its
reader, exactly as in a trace of the whole model: the cuts neither lose nor double a byte.

The static source exports the cuts at example sizes and keeps these symbolic; the isolated source
traces the very same cuts at the sizes that the workload has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models import flash_attention
from costproof.models.deepseek_ocr import native
from costproof.models.deepseek_ocr.marks import NATIVE
from costproof.models.deepseek_ocr.page import page_of, sides, views
from costproof.models.target import ExportJob, Run, StageRun, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

TOWER = "model.vision_tower"
PROJECTOR = "model.multi_modal_projector"
EMBEDDING = "model.language_model.embed_tokens"

# Example sizes of symbolic dimensions: above 1 and pairwise different, so that nothing is taken
# for a constant and no two are taken for the same.
_VIEWS, _BATCH, _LENGTH, _CONTEXT = 7, 3, 37, 41


def export_jobs(model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """One export per vision stage and view size, the decoder's prefill and step, and the glue between."""
    jobs: list[ExportJob] = []
    for side, calls in sides(workload).items():
        jobs += vision_jobs(model, workload, side, calls)
    if workload.inputs:
        jobs.append(_glue_job(model, workload))
    jobs.append(_prefill_job(model, workload))
    if workload.new_tokens:
        jobs.append(_step_job(model, workload))
    if workload.attention == flash_attention.FLASH:
        jobs[-1] = replace(jobs[-1], notes=flash_attention.notes())
    stands_for = {"expert_kernel": "grouped_mm"} if workload.experts == "eager" else {}
    return tuple(replace(job, conventions=stands_for) for job in jobs)


def runs(model: nn.Module, workload: Workload) -> tuple[Run, ...]:
    """The prefill of a page (or of text alone), then the first, the middle and the last decode step."""
    paths = native.attention_paths(model)
    kind = "page" if workload.inputs else "prompt"
    result = [Run(kind, model, native.page_inputs(model, workload), native.locate_page)]
    for context in _contexts(model, workload):
        kwargs = native.step_inputs(model, workload, context)
        before = [tuple(layer) for layer in native.cache_tensors(kwargs["past_key_values"])]
        result.append(Run(f"step@{context}", model, kwargs, native.locate_step, context, [(k, v) for k, v in before]))
    return tuple(replace(run, attention_paths=paths, marks=NATIVE) for run in result)


def stage_runs(model: nn.Module, workload: Workload) -> tuple[StageRun, ...]:
    """Every invocation of every stage by itself, and the first, the middle and the last decode step."""
    found: list[StageRun] = []
    for invocation, count, side in views(workload):
        jobs = vision_jobs(model, workload, side, (invocation,), count)
        found += [_alone(job, f"{job.stage}@{invocation}") for job in jobs]
    if workload.inputs:
        found.append(_alone(_glue_job(model, workload), "glue"))
    length = native.prompt_length(model, workload)
    found.append(_alone(_prefill_job(model, workload, workload.batch, length), "prefill"))
    for context in _contexts(model, workload):
        found.append(_alone(_step_job(model, workload, workload.batch, context), f"step@{context}", context))
    return tuple(found)


def _alone(job: ExportJob, name: str, context: int | None = None) -> StageRun:
    """The job's cut as a run: the sizes of its arguments are those that count."""
    (invocation,) = job.invocations
    return StageRun(
        name, job.stage, invocation, job.module, job.prefix, job.args, job.returns_cache, job.own_calls, context
    )


def _contexts(model: nn.Module, workload: Workload) -> tuple[int, ...]:
    """Tokens in the cache before the first, the middle and the last decode step."""
    steps, first = workload.new_tokens, native.prompt_length(model, workload)
    return tuple(first + i for i in sorted({0, (steps - 1) // 2, steps - 1})) if steps else ()


def vision_jobs(
    model: nn.Module, workload: Workload, side: int, invocations: tuple[str, ...], views: int = _VIEWS
) -> list[ExportJob]:
    """The towers and the projector on views of ``side`` pixels, their number symbolic."""
    wrappers, vision = _wrappers(), native.config_of(model).vision_config
    sam, clip = vision.sam_config, vision.encoder_config
    tower, query = model.get_submodule(TOWER), side // native.stride(model)
    features = _tensor(workload, views, sam.downsample_channels[-1], query, query)
    hidden = _tensor(workload, views, query * query + 1, clip.hidden_size)
    return [
        ExportJob(
            f"sam@{side}", "sam", invocations, wrappers.Tower(tower.get_submodule("sam_encoder")),
            {"part": f"{TOWER}.sam_encoder"}, {"x": _tensor(workload, views, sam.num_channels, side, side)},
            [SymbolicSize(("x",), 0, "n")],
        ),
        ExportJob(
            f"clip@{side}", "clip", invocations, wrappers.Tower(tower.get_submodule("vision_encoder")),
            {"part": f"{TOWER}.vision_encoder"}, {"x": features}, [SymbolicSize(("x",), 0, "n")],
        ),
        ExportJob(
            f"projector@{side}", "projector", invocations,
            wrappers.Projector(tower, model.get_submodule(PROJECTOR)),
            {"tower": TOWER, "projector": PROJECTOR}, {"features": features, "hidden": hidden},
            [SymbolicSize(("features",), 0, "n"), SymbolicSize(("hidden",), 0, "n")],
            own_calls=frozenset({TOWER, PROJECTOR}),
        ),
    ]  # fmt: skip


def _glue_job(model: nn.Module, workload: Workload) -> ExportJob:
    """Newlines, separator and scatter between projector and decoder; concrete, since it loops over images."""
    page = page_of(workload)
    assert page is not None
    width = native.config_of(model).text_config.hidden_size
    inputs = native.page_inputs(model, workload)
    views = _tensor(workload, workload.batch, (page.base_size // native.stride(model)) ** 2, width)
    args: dict[str, Any] = {"ids": inputs["input_ids"], "views": views}
    if page.grid:
        local = page.image_size // native.stride(model)
        args["crops"] = _tensor(workload, workload.batch * page.crops, local**2, width)
    module = _wrappers().Glue(model.get_submodule("model"), inputs.get("num_local_patches"), inputs.get("patches_grid"))
    prefix = {"part": "model", "part.language_model.embed_tokens": EMBEDDING}
    return ExportJob("glue", "prefill", ("prompt",), module, prefix, args, own_calls=frozenset({EMBEDDING}))


def _prefill_job(model: nn.Module, workload: Workload, batch: int = _BATCH, length: int = _LENGTH) -> ExportJob:
    import torch

    width = native.config_of(model).text_config.hidden_size
    args: dict[str, Any]
    if not workload.inputs:
        args = {"ids": torch.zeros(batch, length, dtype=torch.long, device="meta")}
    else:
        # The embedding belongs to the glue, which writes the vision tokens into its result.
        args = {"embeds": _tensor(workload, batch, length, width)}
    sizes = [SymbolicSize((name,), dim, symbol) for name in args for dim, symbol in ((0, "B"), (1, "S"))]
    if workload.attention == "eager":
        args["mask"] = _tensor(workload, batch, 1, length, length)
        sizes += [SymbolicSize(("mask",), dim, symbol) for dim, symbol in ((0, "B"), (2, "S"), (3, "S"))]
    module = _wrappers().Prefill(model, int(workload.logits == "last"))
    return ExportJob("prefill", "prefill", ("prompt",), module, {"part": ""}, args, sizes, returns_cache=True)


def _step_job(model: nn.Module, workload: Workload, batch: int = _BATCH, context: int = _CONTEXT) -> ExportJob:
    import torch

    text = native.config_of(model).text_config
    layers: int = text.num_hidden_layers
    shape = (batch, text.num_key_value_heads, context, text.head_dim)
    args: dict[str, Any] = {
        "ids": torch.zeros(batch, 1, dtype=torch.long, device="meta"),
        "keys": [_tensor(workload, *shape) for _ in range(layers)],
        "values": [_tensor(workload, *shape) for _ in range(layers)],
    }
    sizes = [SymbolicSize(("ids",), 0, "B")]
    for name in ("keys", "values"):
        for i in range(layers):
            sizes += [SymbolicSize((name, i), 0, "B"), SymbolicSize((name, i), 2, "P")]
    if workload.attention == "eager":
        args["mask"] = _tensor(workload, batch, 1, 1, context + 1)
        sizes += [SymbolicSize(("mask",), 0, "B"), SymbolicSize(("mask",), 3, "P + 1")]
    return ExportJob(
        "step", "decode", ("steps",), _wrappers().Step(model), {"part": ""}, args, sizes, returns_cache=True
    )


def _tensor(workload: Workload, *shape: int) -> torch.Tensor:
    import torch

    return torch.empty(*shape, dtype=getattr(torch, workload.dtype), device="meta")


def _wrappers() -> Any:
    """The thin modules around the parts; in a module of their own, because they need torch to be defined."""
    from costproof.models.deepseek_ocr import wrappers

    return wrappers
