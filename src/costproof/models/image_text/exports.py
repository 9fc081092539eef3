"""Where a model of images and text is cut: tower, projector, what joins them to the text, prefill and step.

Every cut runs through activations that one stage hands to the next: an output of the one graph and an input of the
other, so it counts as written by its producer and as read by its reader, as in a trace of the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding import exports as decoding
from costproof.models.decoding.decoder import ids_on_meta, on_meta
from costproof.models.image_text.inputs import CALL, images_of
from costproof.models.specs import ExportJob, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.models.image_text.base import ImageTextTarget

COUNT: Final = 7
"""Example number of images: above 1, and none of the decoder's example sizes."""


def unchecked() -> Mapping[str, Any]:
    """In place of the comparison of image tokens with features, which needs values: nothing."""
    return {"torch_compilable_check": _nothing}


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Checks nothing."""


def export_jobs(target: ImageTextTarget[Any], model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """The towers, the glue, the decoder's prefill and step."""
    decoder, embeds = target.decoder, images_of(workload) > 0
    jobs = decoding.export_jobs(model, workload, decoder, embeds=embeds)
    seen = (*target.tower_jobs(model, workload, None), _glue(target, model, workload)) if embeds else ()
    return (*seen, *jobs)


def stage_runs(target: ImageTextTarget[Any], model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
    """Every stage by itself, and the first, the middle and the last decode step."""
    decoder, count = target.decoder, workload.batch * images_of(workload)
    jobs = decoding.stage_runs(model, workload, decoder, target.length(workload), embeds=count > 0)
    seen = (*target.tower_jobs(model, workload, count), _glue(target, model, workload)) if count else ()
    return (*seen, *jobs)


def tower_job(stage: str, path: str, module: nn.Module, sized: bool, **args: torch.Tensor) -> ExportJob:
    """A tower alone, in one call.

    Args:
        path: of the tower in the model; in ``module`` it is ``part``.
        sized: whether the first dimension of every argument is the number of images, for which a symbol stands.
    """
    sizes = [SymbolicSize((name,), 0, "n") for name in args] if sized else ()
    return ExportJob(stage, stage, (CALL,), module, {"part": path}, args, sizes)


def _glue(target: ImageTextTarget[Any], model: nn.Module, workload: Workload) -> ExportJob:
    """Embedding and scatter; concrete, since the features of the images are a list."""
    from costproof.models.image_text import modules

    where, config = target.anatomy, target.config
    table = f"{where.decoder}.embed_tokens"
    images = workload.batch * images_of(workload)
    args = {
        "ids": ids_on_meta(workload.batch, target.length(workload)),
        "features": list(on_meta(workload, images, target.image_tokens(workload), config.text.hidden)),
    }
    child = where.decoder.removeprefix(f"{where.around}.")
    # The output projection reads a shared table whole.
    shared = {f"{table}.weight"} if config.text.tied else set()
    return ExportJob(
        "glue",
        "prefill",
        ("prompt",),
        modules.Glue(model.get_submodule(where.around), child),
        {"part": where.around, f"part.{child}.embed_tokens": table},
        args,
        own_calls=frozenset({table}),
        inside=frozenset({"return.0", *shared}),
    )
