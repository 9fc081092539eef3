"""DeepSeek-OCR on the native classes of transformers, on the meta device: built, and where its parts sit.

The native implementation is ``transformers.models.unlimited_ocr``; it has the architecture of
DeepSeek-OCR. Torch and transformers are imported inside functions, so that importing this module costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel
from costproof.models.decoding import build as decoding
from costproof.models.decoding.build import running
from costproof.models.decoding.decoder import Decoder, config_of
from costproof.models.families.deepseek_ocr.formulas.names import NATIVE_NAMES
from costproof.models.families.deepseek_ocr.marks import VISION_INPUTS
from costproof.models.image_text.layout import StagePaths
from costproof.patches import flash_attention

if TYPE_CHECKING:
    import torch
    from torch import nn

LEAST_WINDOW = 32_768
"""Reference windows below the context would cut attention short; the published model has none."""


def build_model(
    config: Mapping[str, Any],
    *,
    dtype: Dtype = "bfloat16",
    attention: AttentionKind = "sdpa",
    experts: ExpertKernel = "grouped_mm",
    context: int = 0,
) -> nn.Module:
    """The whole model on the meta device, in eval mode, which runs without further care.

    Other arguments and errors as for :func:`costproof.models.decoding.build.build`.

    Args:
        config: keyword arguments of transformers' ``UnlimitedOcrConfig``.
        attention: that of the decoder alone for ``flash_attention_2``, which the towers' classes do not support.
        context: longest sequence that will be run; the sliding window is made at least that long,
            which makes it full attention.
    """
    modeling, configuration = _modules()
    text = dict(config.get("text_config") or {})
    text["sliding_window"] = max(LEAST_WINDOW, context + 1, text.get("max_position_embeddings") or 0)
    text.pop("layer_types", None)
    made = configuration.UnlimitedOcrConfig(**{**config, "text_config": text})
    # The class takes its share of the width for a head; a draw of a proof may have another.
    made.text_config.head_dim = text.get("head_dim", made.text_config.head_dim)
    flash = attention == flash_attention.FLASH
    return decoding.build(
        modeling.UnlimitedOcrForConditionalGeneration,
        made,
        dtype=dtype,
        attention=attention,
        experts=experts,
        parts={"": "sdpa", "vision_config": "sdpa", "text_config": attention} if flash else None,
        replaced={_CHECK: _unchecked},
    )


_CHECK: Final = "torch_compilable_check"
"""Whether image tokens and features match, which needs values."""


def _unchecked(*args: Any, **kwargs: Any) -> None:
    """Checks nothing."""


def unchecked() -> AbstractContextManager[None]:
    """What a forward of a part of the model needs."""
    return running({_modules()[0]: {_CHECK: _unchecked}})


def _fill(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Leave a layer of the decoder's cache as its own first ``update`` would."""
    if not hasattr(layer, "prefill_keys"):
        raise Incomplete("the decoder's cache is not the one known here", got=type(layer).__name__)
    layer.prefill_keys, layer.prefill_values = keys, values
    layer.prefill_length = layer.prefill_cumulative_length = keys.shape[-2]


PARTS: Final = StagePaths(
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
    places=PARTS.locators("global", "crops"),
    seen=(VISION_INPUTS,),
    # SAM adds a bias of relative positions to its scores, which the kernels cannot; CLIP's class inherits from the
    # whole model that it does not support them.
    beside="SAM and CLIP run scaled_dot_product_attention",
)
"""The decoder of the native class: its cache keeps the prefill apart from the tokens after it."""


def stride(model: nn.Module) -> int:
    """Pixels per feature along a side: a patch embedding, and two 3x3 convolutions of stride 2 and padding 1."""
    patch: int = config_of(model).vision_config.sam_config.patch_size
    return 4 * patch


def _modules() -> tuple[Any, Any]:
    """transformers' modules of the model and of its configuration."""
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
