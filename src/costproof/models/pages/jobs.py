"""Build inputs, runs and export jobs of native page models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding import exports, names, runs
from costproof.models.decoding.decoder import Decoder, config_of, on_meta, text_config
from costproof.models.pages.page import Page, page_of, pages_of, prefill_name, sides, views
from costproof.models.specs import ExportJob, Mark, Run, SymbolicSize
from costproof.weights.random_values import random_integers, random_normal

if TYPE_CHECKING:
    import torch
    from torch import nn


VIEWS: Final = 7
"""Number of views in an export: above 1, and different from the example sizes of the decoder."""
_OF_PAGES: Final = ("pixel_values", "pixel_values_local", "num_local_patches", "patches_grid")
"""Arguments of a class that hold pages."""
EMBEDDING: Final = "model.language_model.embed_tokens"


@dataclass(frozen=True, slots=True)
class PageReader:
    """Description of a page model's class in transformers: its inputs, runs, and layout of image tokens."""

    decoder: Decoder
    tokens: Callable[[Page | None, int], int]
    """Function from (page, pixels per feature along a side) to the number of vision tokens per sequence."""
    rows: Callable[[int, int], int]
    """Function from (side of a view, pixels per feature) to the number of the view's tokens after the projector."""
    vision: Callable[[nn.Module, Workload, int, tuple[str, ...], int], list[ExportJob]]
    """Function from (model, workload, side of views, invocations, views) to the jobs of towers and projector."""
    unchecked: Callable[[], AbstractContextManager[None]]
    """Function that returns the context in which only a part of the model may run."""
    takes_grid: bool = True
    """Whether the class takes the columns and rows of the crops as arguments."""

    def length(self, model: nn.Module, workload: Workload) -> int:
        """Return the length of the prompt in vision and text tokens; for rows, the sum of new tokens."""
        vision = 0 if workload.rows else self.tokens(page_of(workload), stride(model))
        return vision + workload.text_tokens

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs: vision stages at each view size, image-token layout, prefill and decode step."""
        jobs = [j for side, calls in sides(workload).items() for j in self.vision(model, workload, side, calls, VIEWS)]
        # The embedding belongs to the glue, which writes the vision tokens into its result.
        embeds = page_of(workload) is not None
        jobs += [self.glue_job(model, workload)] if embeds else []
        return (*jobs, *exports.export_jobs(model, workload, self.decoder, embeds=embeds))

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return jobs that run each invocation of each stage in isolation, and some decode steps."""
        found: list[ExportJob] = []
        for invocation, count, side in views(workload):
            jobs = self.vision(model, workload, side, (invocation,), count)
            found += [replace(job, id=f"{job.stage}@{invocation}") for job in jobs]
        embeds, length = page_of(workload) is not None, self.length(model, workload)
        found += [self.glue_job(model, workload)] if embeds else []
        return (*found, *exports.stage_runs(model, workload, self.decoder, length, embeds=embeds))

    def shape_runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the runs of the prefill and of the first, middle and last decode step, on the meta device."""
        inputs = self.page_inputs(model, workload)
        if workload.rows:
            return self._row_runs(model, workload, None, inputs)
        return runs.shape_runs(model, workload, self.decoder, inputs, prefill_name(workload))

    def real_runs(self, model: nn.Module, workload: Workload, seed: int) -> tuple[Run, ...]:
        """Return the runs of the prefill and of the traced decode steps of a model that has weights."""
        inputs = self.real_inputs(model, workload, seed)
        if workload.rows:
            return self._row_runs(model, workload, self._row_ids(model, workload, seed), inputs)
        return runs.real_runs(model, workload, self.decoder, inputs, prefill_name(workload))

    def _row_runs(
        self, model: nn.Module, workload: Workload, ids: torch.Tensor | None, inputs: Mapping[str, Any]
    ) -> tuple[Run, ...]:
        views = {name: given for name, given in inputs.items() if name in _OF_PAGES}
        return runs.rows_runs(model, workload, self.decoder, ids, lambda given: views)

    def _row_ids(self, model: nn.Module, workload: Workload, seed: int) -> torch.Tensor:
        """Return random ids of all rows, past and new ones row by row, with image tokens for the pages."""
        token: int = config_of(model).image_token_id
        page = page_of(workload)
        pages = [self.tokens(page, stride(model))] * (pages_of(workload) if page else 0)
        return runs.row_ids(workload.rows, text_config(model).vocab_size, seed, token, pages)

    def page_inputs(self, model: nn.Module, workload: Workload) -> dict[str, Any]:
        """Return the prefill's arguments on the meta device: ids [B, S], views [n, C, H, H], crops [n*c, C, H, H]."""
        count = pages_of(workload)
        kwargs = runs.prompt_inputs(workload, self.decoder, self.length(model, workload))
        page = page_of(workload)
        if page is not None:
            channels = config_of(model).vision_config.sam_config.num_channels
            kwargs["pixel_values"] = on_meta(workload, count, channels, page.base_size, page.base_size)
            if page.grid:
                kwargs["pixel_values_local"] = on_meta(
                    workload, count * page.crops, channels, page.image_size, page.image_size
                )
                kwargs["num_local_patches"] = [page.crops] * count
                kwargs |= {"patches_grid": [list(page.grid)] * count} if self.takes_grid else {}
        return kwargs

    def real_inputs(self, model: nn.Module, workload: Workload, seed: int) -> dict[str, Any]:
        """Return :meth:`page_inputs` with seeded random values; image tokens precede the text."""
        shapes = self.page_inputs(model, workload)
        image: int = config_of(model).image_token_id
        ids = random_integers(text_config(model).vocab_size - 1, shapes["input_ids"].shape, seed, "input_ids")
        ids += ids >= image  # every token but the image token
        ids[:, : self.tokens(page_of(workload), stride(model))] = image
        kwargs = runs.real_prompt(model, workload, self.decoder, shapes, ids)
        for name in ("pixel_values", "pixel_values_local"):
            if name in shapes:
                device, dtype = kwargs["input_ids"].device, shapes[name].dtype
                kwargs[name] = random_normal(shapes[name].shape, seed, name, device, dtype)
        return kwargs

    def glue_job(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export job that writes image tokens into the prompt, at concrete sizes as it loops over images."""
        from costproof.models.image_text import modules

        page = page_of(workload)
        assert page is not None
        width = config_of(model).text_config.hidden_size
        rows = [self.rows(side, stride(model)) for side in (page.base_size, page.image_size)]
        inputs, count = self.page_inputs(model, workload), pages_of(workload)
        args: dict[str, Any] = {"ids": inputs["input_ids"], "views": on_meta(workload, count, rows[0], width)}
        if page.grid:
            args["crops"] = on_meta(workload, count * page.crops, rows[1], width)
        given: dict[str, Any] = {name: inputs[name] for name in ("num_local_patches", "patches_grid") if name in inputs}
        return ExportJob(
            "glue",
            "prefill",
            (names.prefill_name(workload),),
            modules.PageGlue(model.get_submodule("model"), given, self.unchecked),
            {"part": "model", "part.language_model.embed_tokens": EMBEDDING},
            args,
            own_calls=frozenset({EMBEDDING}),
            inside=frozenset({"return.0"}),
        )


def stride(model: nn.Module) -> int:
    """Return the pixels per feature along a side: a patch, and two 3x3 convolutions of stride 2 and padding 1."""
    patch: int = config_of(model).vision_config.sam_config.patch_size
    return 4 * patch


def vision_job(
    stage: str, side: int, invocations: tuple[str, ...], module: nn.Module, prefix: dict[str, str], **args: torch.Tensor
) -> ExportJob:
    """Return the export job of a vision stage at one view size; dimension 0 of each argument is the number of views."""
    sizes = [SymbolicSize((name,), 0, "n") for name in args]
    return ExportJob(f"{stage}@{side}", stage, invocations, module, prefix, args, sizes)


def vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Return the number of images in a forward, the crops of each, and the crop grids; empty without images."""
    views = kwargs.get("pixel_values")
    if views is None:
        return {}
    crops = kwargs.get("num_local_patches") or (0,) * int(views.shape[0])
    return images_in(crops, kwargs.get("patches_grid") or [(0, 0)] * len(crops))


def images_in(crops: Sequence[int], grids: Sequence[Sequence[int]]) -> dict[str, int | tuple[int, ...]]:
    """Return the image fields of a callgraph event, such as ``{"images": 2, "crops": (4, 4), "columns": (2, 4), …}``.

    Args:
        crops: number of crops of each image.
        grids: columns and rows of the crops of each image.
    """
    columns, rows = (tuple(int(g[i]) if c else 0 for c, g in zip(crops, grids, strict=True)) for i in range(2))
    return {"images": len(crops), "crops": tuple(int(c) for c in crops), "columns": columns, "rows": rows}


VISION_INPUTS: Final = Mark("vision_inputs", "", vision_inputs)
"""The callgraph event for the images of a native class."""
