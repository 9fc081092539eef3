"""DeepSeek-OCR on the native classes of transformers: build, run and cut it for counting.

The native implementation is ``transformers.models.unlimited_ocr``; it has the architecture of
DeepSeek-OCR. Everything here lives on the meta device: shapes without numbers. Torch and
transformers are imported inside functions, so that importing this module costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Attention, Dtype, Experts, Workload
from costproof.models import flash_attention
from costproof.models.deepseek_ocr.page import page_of, vision_tokens
from costproof.models.deepseek_ocr.running import running

if TYPE_CHECKING:
    import torch
    from torch import nn

LEAST_WINDOW = 32_768
"""Reference windows below the context would cut attention short; the published model has none."""


def build_model(
    config: Mapping[str, Any],
    *,
    dtype: Dtype = "bfloat16",
    attention: Attention = "sdpa",
    experts: Experts = "grouped_mm",
    context: int = 0,
) -> nn.Module:
    """The whole model on the meta device, in eval mode, which runs without further care.

    Args:
        config: keyword arguments of transformers' ``UnlimitedOcrConfig``.
        dtype: dtype of all parameters. Buffers keep theirs: the rotary frequencies stay float32,
            as they do when a checkpoint is loaded in bfloat16.
        attention: ``sdpa`` or ``eager`` for all parts of the model; ``flash_attention_2`` for the
            decoder, the one part whose class supports it, and ``sdpa`` for the towers.
        experts: kernel of the routed experts.
        context: longest sequence that will be run; the sliding window is made at least that long,
            which makes it full attention.

    Raises:
        Incomplete: the installed transformers has no such model, or FlashAttention's package is missing.
    """
    import torch

    classes = _classes()
    options = dict(config)
    text = dict(options.get("text_config") or {})
    window = max(LEAST_WINDOW, context + 1, text.get("max_position_embeddings") or 0)
    text["sliding_window"] = window
    text.pop("layer_types", None)
    options["text_config"] = text
    full = classes.config(**options)
    flash = attention == flash_attention.FLASH
    full._attn_implementation = {"": "sdpa", "vision_config": "sdpa", "text_config": attention} if flash else attention
    full._experts_implementation = experts
    with flash_attention.on_meta() if flash else nullcontext(), torch.device("meta"):
        model: nn.Module = classes.model._from_config(full, dtype=getattr(torch, dtype))
    return model.eval()


def config_of(model: nn.Module) -> Any:
    """The model's configuration; torch types the attribute of a module as tensor or module."""
    return model.config


def stage_of(path: str, decoder: str = "prefill") -> str:
    """The stage that a module belongs to; decoder modules and the root belong to ``decoder``."""
    if _within(path, "model.vision_tower.sam_encoder"):
        return "sam"
    if _within(path, "model.vision_tower.vision_encoder"):
        return "clip"
    if _within(path, "model.vision_tower") or _within(path, "model.multi_modal_projector"):
        return "projector"
    return decoder


def stages_of(path: str, workload: Workload) -> tuple[str, ...]:
    """The stages that a module works in, in the order of the run."""
    return tuple(dict.fromkeys((stage_of(path), *([stage_of(path, "decode")] if workload.new_tokens else []))))


def locate_page(path: str, call: int) -> tuple[str, str]:
    """Stage and invocation of a module's call in the prefill: the towers see the global views first, then the crops."""
    stage = stage_of(path)
    return (stage, "prompt") if stage == "prefill" else (stage, "global" if call == 1 else "crops")


def locate_step(path: str, call: int) -> tuple[str, str]:
    """Stage and invocation of a module's call in a decode step."""
    return stage_of(path, "decode"), "steps"


def attention_paths(model: nn.Module) -> tuple[str, ...]:
    """Module path that owns the key/value cache of each decoder layer."""
    layers: int = config_of(model).text_config.num_hidden_layers
    return tuple(f"model.language_model.layers.{i}.self_attn" for i in range(layers))


def stride(model: nn.Module) -> int:
    """Pixels per feature along a side: a patch embedding, and two 3x3 convolutions of stride 2 and padding 1."""
    patch: int = config_of(model).vision_config.sam_config.patch_size
    return 4 * patch


def prompt_length(model: nn.Module, workload: Workload) -> int:
    """Tokens of one sequence in the prefill: vision and text."""
    return vision_tokens(page_of(workload), stride(model)) + workload.text_tokens


def page_inputs(model: nn.Module, workload: Workload) -> dict[str, Any]:
    """Keyword arguments of the prefill: ids [B, S], global views [B, C, H, H], crops [B*c, C, H, H]."""
    import torch

    batch, length, dtype = workload.batch, prompt_length(model, workload), getattr(torch, workload.dtype)
    kwargs: dict[str, Any] = {
        "input_ids": torch.zeros(batch, length, dtype=torch.long, device="meta"),
        "attention_mask": masks(workload, batch, length, length),
        "use_cache": True,
        "logits_to_keep": int(workload.logits == "last"),
    }
    page = page_of(workload)
    if page is not None:
        channels = config_of(model).vision_config.sam_config.num_channels
        kwargs["pixel_values"] = torch.empty(
            batch, channels, page.base_size, page.base_size, dtype=dtype, device="meta"
        )
        if page.grid:
            kwargs["pixel_values_local"] = torch.empty(
                batch * page.crops, channels, page.image_size, page.image_size, dtype=dtype, device="meta"
            )
            kwargs["num_local_patches"] = [page.crops] * batch
            kwargs["patches_grid"] = [list(page.grid)] * batch
    return kwargs


def step_inputs(model: nn.Module, workload: Workload, context: int) -> dict[str, Any]:
    """Keyword arguments of one decode step with ``context`` tokens in the cache."""
    import torch

    text = config_of(model).text_config
    shape = (workload.batch, text.num_key_value_heads, context, text.head_dim)
    dtype = getattr(torch, workload.dtype)
    count: int = text.num_hidden_layers
    past = [
        (torch.empty(shape, dtype=dtype, device="meta"), torch.empty(shape, dtype=dtype, device="meta"))
        for _ in range(count)
    ]
    return {
        "input_ids": torch.zeros(workload.batch, 1, dtype=torch.long, device="meta"),
        "attention_mask": masks(workload, workload.batch, 1, context + 1),
        "past_key_values": filled_cache(model, past),
        "use_cache": True,
    }


def filled_cache(model: nn.Module, past: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """A cache whose prefill was ``past``: keys and values [B, kv heads, P, head dim] per layer.

    The layers are filled as their own first ``update`` would leave them, without its concatenation
    with nothing, which would show up as work of the step.
    """
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=config_of(model).text_config)
    for layer, (keys, values) in zip(cache.layers, past, strict=True):
        layer.lazy_initialization(keys, values)
        if not hasattr(layer, "prefill_keys"):
            raise Incomplete("the decoder's cache is not the one known here", got=type(layer).__name__)
        layer.prefill_keys, layer.prefill_values = keys, values
        layer.prefill_length = layer.prefill_cumulative_length = keys.shape[-2]
    return cache


def cache_tensors(cache: Any) -> list[tuple[torch.Tensor, ...]]:
    """Tensors of keys and values that each layer of a cache holds."""
    names = ("prefill_keys", "prefill_values", "keys", "values")
    return [
        tuple(t for t in (getattr(layer, n, None) for n in names) if t is not None and t.dim() > 1)
        for layer in cache.layers
    ]


def masks(workload: Workload, batch: int, queries: int, keys: int) -> dict[str, Any]:
    """Prepared masks: none for fused attention, which is causal by flag; additive [B, 1, queries, keys] for eager."""
    import torch

    mask = None
    if workload.attention == "eager":
        mask = torch.empty(batch, 1, queries, keys, dtype=getattr(torch, workload.dtype), device="meta")
    return mask_mapping(mask)


def mask_mapping(mask: torch.Tensor | None) -> dict[str, Any]:
    """A prepared mask under the names of the decoder's attention types."""
    return {"full_attention": mask, "reference_sliding_attention": mask}


def uses_flash(model: nn.Module) -> bool:
    """Whether the decoder runs FlashAttention."""
    return bool(config_of(model).text_config._attn_implementation == flash_attention.FLASH)


class _Classes:
    """The classes of transformers that this target is made of."""

    def __init__(self) -> None:
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
        self.modeling: Any = modeling
        self.config: Any = configuration.UnlimitedOcrConfig
        base: Any = modeling.UnlimitedOcrForConditionalGeneration

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            with running(self.dtype, flash=uses_flash(self) and self.device.type == "meta"):
                return base.forward(self, *args, **kwargs)

        # The user's model is the native one; only its forward brings its own surroundings.
        self.model: Any = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


@lru_cache(maxsize=1)
def _classes() -> _Classes:
    return _Classes()


def _within(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(ancestor + ".")
