"""How a decoder of transformers is called: where its layers sit, what its masks and its cache look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models.target import Mark

if TYPE_CHECKING:
    import torch
    from torch import nn

Locate = Callable[[str, int], tuple[str, str]]
"""(module path, call of its outermost repeated ancestor counted from 1) -> (stage, invocation)."""

Past = list[tuple["torch.Tensor", "torch.Tensor"]]
"""Keys and values [B, kv heads, P, head dim] of each layer."""


def fill_layer(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Leave a layer of a ``DynamicCache`` as its own first ``update`` would, without its concatenation with nothing."""
    layer.keys, layer.values = keys, values


def llm_stack(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Layers of the decoder, and the positions that pass them: ``{"layers": 12, "positions": 703}``."""
    found = {"layers": len(module.layers)}
    inputs = kwargs.get("inputs_embeds")
    inputs = kwargs.get("input_ids") if inputs is None else inputs
    if inputs is not None:
        found["positions"] = int(inputs.shape[1])
    return found


def in_prompt(path: str, call: int) -> tuple[str, str]:
    """Where a module works in the prefill of a model that is all decoder."""
    return "prefill", "prompt"


def in_step(path: str, call: int) -> tuple[str, str]:
    """Where a module works in a decode step."""
    return "decode", "steps"


@dataclass(frozen=True, slots=True)
class Decoder:
    """What differs between the decoders of transformers; the default is that of a ``…ForCausalLM``."""

    stack: str = "model"
    """Path of the module that holds ``layers``."""
    masks: tuple[str, ...] = ()
    """Types of attention under which the model takes prepared masks; empty: it takes one mask."""
    cache: tuple[str, ...] = ("keys", "values")
    """Where a layer of the cache keeps its tensors."""
    fill: Callable[[Any, torch.Tensor, torch.Tensor], None] = fill_layer
    """What puts keys and values into a layer of the cache, which is initialised."""
    places: tuple[Locate, Locate] = (in_prompt, in_step)
    """Where modules work in the prefill and in a step."""
    seen: tuple[Mark, ...] = ()
    """What else a callgraph tells of a run."""
    beside: str = ""
    """What attention the other parts of the model run where the decoder runs FlashAttention, for the record."""

    def attention_paths(self, model: nn.Module) -> tuple[str, ...]:
        """Module path that owns the key/value cache of each layer."""
        layers: int = text_config(model).num_hidden_layers
        return tuple(f"{self.stack}.layers.{i}.self_attn" for i in range(layers))

    def marks(self) -> tuple[Mark, ...]:
        """The events of a run in a callgraph; the last one says how deep the decoder is."""
        return (*self.seen, Mark("llm_stack", self.stack, llm_stack))

    def mask(self, mask: torch.Tensor | None) -> Any:
        """A prepared mask [B, 1, queries, keys] as the model takes it; ``None`` where attention is causal by itself."""
        return dict.fromkeys(self.masks, mask) if self.masks else mask

    def empty_mask(self, workload: Workload, queries: int, keys: int, batch: int | None = None) -> torch.Tensor | None:
        """None for fused attention, which is causal by flag; [B, 1, queries, keys] on meta for eager."""
        if workload.attention != "eager":
            return None
        return on_meta(workload, workload.batch if batch is None else batch, 1, queries, keys)

    def filled_cache(self, model: nn.Module, past: Past) -> Any:
        """A cache whose prefill was ``past``."""
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=text_config(model))
        for layer, (keys, values) in zip(cache.layers, past, strict=True):
            layer.lazy_initialization(keys, values)
            self.fill(layer, keys, values)
        return cache

    def cache_tensors(self, cache: Any) -> list[tuple[torch.Tensor, ...]]:
        """Tensors of keys and values that each layer of a cache holds."""
        return [
            tuple(t for t in (getattr(layer, n, None) for n in self.cache) if t is not None and t.dim() > 1)
            for layer in cache.layers
        ]

    def past(self, model: nn.Module, workload: Workload, batch: int, context: int) -> Past:
        """Keys and values on meta of ``context`` tokens."""
        text = text_config(model)
        heads = text.num_key_value_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        shape = (batch, heads, context, width)
        layers: int = text.num_hidden_layers
        return [(on_meta(workload, *shape), on_meta(workload, *shape)) for _ in range(layers)]


def config_of(model: nn.Module) -> Any:
    """The model's configuration; torch types the attribute of a module as tensor or module."""
    return model.config


def text_config(model: nn.Module) -> Any:
    """The configuration of the model's decoder."""
    return config_of(model).get_text_config()


def on_meta(workload: Workload, *shape: int) -> torch.Tensor:
    """An empty tensor on meta in the workload's dtype."""
    import torch

    return torch.empty(*shape, dtype=getattr(torch, workload.dtype), device="meta")


def ids_on_meta(batch: int, length: int) -> torch.Tensor:
    """Ids [B, S] on meta."""
    import torch

    return torch.zeros(batch, length, dtype=torch.long, device="meta")
