"""DeepSeek-OCR on the native classes of transformers: built on the meta device, cut for export, and run.

The classes are those of ``transformers.models.unlimited_ocr``, which has the architecture of DeepSeek-OCR.

Each cut passes an activation from one stage to the next. It is an output of one graph and an input of another, so it
counts as written by its producer and as read by its consumer, as in a trace of the whole model. The static source
exports the cuts at example sizes and keeps these symbolic; the isolated source traces them at the sizes of the
workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel, Workload
from costproof.models.decoding import build as decoding
from costproof.models.decoding.decoder import Decoder, config_of, on_meta
from costproof.models.families.deepseek_ocr.config import MODES
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES
from costproof.models.image_text.layout import StagePaths
from costproof.models.pages.jobs import VIEWS, VISION_INPUTS, PageReader, stride, vision_job
from costproof.models.specs import ExportJob
from costproof.patches import flash_attention
from costproof.patches.modules import no_image_check, running

if TYPE_CHECKING:
    import torch
    from torch import nn


SAM, CLIP, TOWER = (NATIVE_NAMES[role] for role in ("sam", "clip", "vision"))
PROJECTOR = NATIVE_NAMES["projector"]


LEAST_WINDOW = 32_768
"""Minimum of the sliding window that is configured for a build; the published model has full attention."""


def build_model(
    config: Mapping[str, Any],
    *,
    dtype: Dtype = "bfloat16",
    attention: AttentionKind = "sdpa",
    experts: ExpertKernel = "grouped_mm",
    context: int = 0,
) -> nn.Module:
    """Return the whole model on the meta device, in eval mode.

    Other arguments and errors as for :func:`costproof.models.decoding.build.build`.

    Args:
        config: keyword arguments of transformers' ``UnlimitedOcrConfig``.
        attention: ``flash_attention_2`` applies only to the decoder; the classes of the towers do not support it.
        context: longest sequence that will be run; the sliding window is made at least as long, so that attention is
            full.
    """
    modeling, configuration = _modules()
    text = dict(config.get("text_config") or {})
    text["sliding_window"] = max(LEAST_WINDOW, context + 1, text.get("max_position_embeddings") or 0)
    text.pop("layer_types", None)
    made = configuration.UnlimitedOcrConfig(**{**config, "text_config": text})
    # The class sets head_dim to hidden / heads; a draw of a proof may have another.
    made.text_config.head_dim = text.get("head_dim", made.text_config.head_dim)
    flash = attention == flash_attention.FLASH
    return decoding.build(
        modeling.UnlimitedOcrForConditionalGeneration,
        made,
        dtype=dtype,
        attention=attention,
        experts=experts,
        parts={"": "sdpa", "vision_config": "sdpa", "text_config": attention} if flash else None,
        replaced=no_image_check(),
    )


def unchecked() -> AbstractContextManager[None]:
    """Return a context manager that disables the check of image tokens against features during a partial forward."""
    return running({_modules()[0]: no_image_check()})


def _fill(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Set the tensors of one layer of the decoder's cache as its first ``update`` would."""
    if not hasattr(layer, "prefill_keys"):
        raise Incomplete(
            "the installed transformers caches keys and values in a class that costproof cannot fill",
            got=type(layer).__name__,
            fix="pip install transformers==5.23.0",
        )  # fmt: skip
    layer.prefill_keys, layer.prefill_values = keys, values
    layer.prefill_length = layer.prefill_cumulative_length = keys.shape[-2]


NATIVE_STAGES: Final = StagePaths(
    {
        NATIVE_NAMES["sam"]: "sam",
        NATIVE_NAMES["clip"]: "clip",
        NATIVE_NAMES["vision"]: "projector",
        NATIVE_NAMES["projector"]: "projector",
    }
)
DECODER: Final = Decoder(
    stack="model.language_model",
    masks=("full_attention", "reference_sliding_attention"),
    cache=("prefill_keys", "prefill_values", "keys", "values"),
    fill=_fill,
    places=NATIVE_STAGES.locators("global", "crops"),
    seen=(VISION_INPUTS,),
    # SAM adds relative positions to its scores, which the kernels do not support; the class of CLIP inherits from the
    # whole model that it does not support them.
    beside="SAM and CLIP run scaled_dot_product_attention",
)
"""Calling convention of the native decoder, whose cache stores the prompt separately from later tokens."""


def _modules() -> tuple[Any, Any]:
    """Return the modules of transformers that define the model and its configuration."""
    try:
        from transformers.models.unlimited_ocr import configuration_unlimited_ocr as configuration
        from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling
    except ImportError as error:
        raise Incomplete(
            "the installed transformers has no native classes for DeepSeek-OCR",
            where="transformers.models.unlimited_ocr",
            got=str(error),
            fix="pip install --upgrade transformers (5.23.0 has them)",
        ) from error
    return modeling, configuration


def vision_jobs(
    model: nn.Module, workload: Workload, side: int, invocations: tuple[str, ...], views: int = VIEWS
) -> list[ExportJob]:
    """Return the export jobs of towers and projector on a symbolic number of views of ``side`` pixels."""
    from costproof.models.image_text.modules import PartModule, VisionProjector

    vision = config_of(model).vision_config
    sam, clip = vision.sam_config, vision.encoder_config
    tower, query = model.get_submodule(TOWER), side // stride(model)
    pixels = on_meta(workload, views, sam.num_channels, side, side)
    features = on_meta(workload, views, sam.downsample_channels[-1], query, query)
    hidden = on_meta(workload, views, query * query + 1, clip.hidden_size)
    projector = VisionProjector(tower, model.get_submodule(PROJECTOR))
    parts = {"tower": TOWER, "projector": PROJECTOR}
    joined = vision_job("projector", side, invocations, projector, parts, features=features, hidden=hidden)
    return [
        vision_job("sam", side, invocations, PartModule(model.get_submodule(SAM)), {"part": SAM}, x=pixels),
        vision_job("clip", side, invocations, PartModule(model.get_submodule(CLIP)), {"part": CLIP}, x=features),
        replace(joined, own_calls=frozenset(parts.values())),
    ]


READER: Final = PageReader(DECODER, MODES.tokens, MODES.rows, vision_jobs, unchecked)
