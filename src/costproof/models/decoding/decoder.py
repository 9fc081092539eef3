"""Describe how a decoder of transformers is called: module paths, masks, and cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.specs import Mark
from costproof.opgraph.graph import CausalMask

if TYPE_CHECKING:
    import torch
    from torch import nn

PACKED: Final = "packed_rows"
SHARED: Final = "shared_sequence"
"""Names under which our attention for batches of rows, and for context parallelism, is registered in transformers."""

ROW_ATTENTION: Final = "row_attention"
"""Attribute of a model that runs batches of rows: the attention implementation that each row uses."""

Locate = Callable[[str, int], tuple[str, str]]
"""Function from (module path, call of its outermost repeated ancestor, from 1) to (stage, invocation)."""

Past = list[tuple["torch.Tensor", "torch.Tensor"]]
"""Cached keys and values [B, kv heads, P, head dim] of each layer."""

Masks = tuple["torch.Tensor | None", "torch.Tensor | None"]
"""Masks [B, 1, queries, keys] of the layers with full attention and of the layers with a window."""


def fill_layer(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Set the tensors of a ``DynamicCache`` layer as its first ``update`` would, without a concatenation."""
    layer.keys, layer.values = keys, values
    if hasattr(layer, "cumulative_length"):  # a layer with a window
        layer.cumulative_length = keys.shape[-2]


def llm_stack(layers: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of decoder layers and of input positions: ``{"layers": 12, "positions": 703}``.

    Args:
        layers: attribute of the module that holds the list of layers.
    """
    found = {"layers": len(getattr(module, layers))}
    inputs = kwargs.get("inputs_embeds")
    inputs = kwargs.get("input_ids") if inputs is None else inputs
    if inputs is not None:
        found["positions"] = int(inputs.shape[1])
    return found


def in_prompt(path: str, call: int) -> tuple[str, str]:
    """Return the stage and the invocation of any module in the prefill of a decoder-only model."""
    return "prefill", "prompt"


def in_step(path: str, call: int) -> tuple[str, str]:
    """Return the stage and the invocation of any module in a decode step."""
    return "decode", "steps"


@dataclass(frozen=True, slots=True)
class Decoder:
    """Calling convention of a decoder of transformers: module paths, masks and cache; by default a ``…ForCausalLM``."""

    stack: str = "model"
    """Path of the module that holds ``layers``."""
    attention: str = "layers.{i}.self_attn"
    """Path of the attention of layer i, relative to ``stack``."""
    masks: tuple[str, ...] = ()
    """Keys of the dict of masks that the model takes; empty if it takes a single mask."""
    window_masks: tuple[str, ...] = ()
    """Keys of the masks of windowed layers, if the other layers have masks of their own."""
    windows: tuple[int, ...] = ()
    """Sliding-window length of each layer, 0 for full attention; empty if no layer has a window."""
    own: tuple[int, ...] = ()
    """Indices of the layers of this pipeline stage, to which ``windows`` refers then; empty for all layers."""
    latent: tuple[int, ...] = ()
    """Widths of the two latents that a cache stores instead of keys and values; empty for keys and values."""
    cache: tuple[str, ...] = ("keys", "values")
    """Attributes of a cache layer that hold its tensors."""
    fill: Callable[[Any, torch.Tensor, torch.Tensor], None] = fill_layer
    """Function that sets keys and values of an initialised cache layer."""
    places: tuple[Locate, Locate] = (in_prompt, in_step)
    """Functions that give the stage and invocation of a module: in the prefill, and in a decode step."""
    seen: tuple[Mark, ...] = ()
    """Additional events that a callgraph records."""
    axes: int = 1
    """Number of position ids per token: 3 if time, height and width have one each."""
    beside: str = ""
    """Note about the attention of the model's other parts, for a decoder that runs FlashAttention."""

    def attention_paths(self, model: nn.Module) -> tuple[str, ...]:
        """Return, for each layer, the path of the module that owns its key/value cache."""
        layers: int = text_config(model).num_hidden_layers
        return tuple(f"{self.stack}.{self.attention.format(i=i)}" for i in range(layers))

    def marks(self) -> tuple[Mark, ...]:
        """Return the events that a callgraph records; the last one reports the depth of the decoder."""
        return (*self.seen, Mark("llm_stack", self.stack, partial(llm_stack, self.attention.partition(".")[0])))

    @property
    def window(self) -> int:
        """Return the length of the sliding window of windowed layers; 0 if no layer has a window."""
        return max(self.windows, default=0)

    def in_cache(self, context: int) -> int:
        """Return how many of ``context`` tokens a windowed layer caches; all of them if no layer has a window."""
        return min(context, self.window - 1) if self.window else context

    def fills_window(self, workload: Workload) -> bool:
        """Return whether the window is full from the first decode step on."""
        return 0 < self.window <= workload.context + 1

    def mask(self, masks: Masks) -> Any:
        """Return the masks as the model's ``attention_mask``: one mask, or a dict with one for each kind of layer."""
        if self.masks:
            return dict.fromkeys(self.masks, masks[0]) | dict.fromkeys(self.window_masks, masks[1])
        return masks[self.window > 0]

    def mask_contents(self, names: tuple[str, str]) -> dict[str, CausalMask]:
        """Return the contents of the full and the windowed mask of :meth:`empty_masks`, under the given names."""
        return dict(zip(names, (CausalMask(), CausalMask(self.window)), strict=True))

    def placed_masks(self) -> dict[str, CausalMask]:
        """Return the contents of the masks that :meth:`mask` returns, by their paths in the arguments of the model."""
        name, full, seen = "attention_mask", CausalMask(), CausalMask(self.window)
        places = dict.fromkeys(self.masks, full) | dict.fromkeys(self.window_masks, seen)
        return {f"{name}.{key}": content for key, content in places.items()} or {name: seen if self.window else full}

    def empty_masks(self, workload: Workload, queries: int, context: int, batch: int | None = None) -> Masks:
        """Return the masks, on meta, of a call on ``queries`` new tokens after ``context`` cached tokens.

        Eager attention gets masks [B, 1, queries, keys]; a model that takes a single mask gets that of its window if it
        has one. Fused attention is causal by a flag and gets no mask, unless keys are outside of a window or several
        new tokens follow others: then a boolean mask of the same shape.
        """
        import torch

        rows = workload.batch if batch is None else batch
        full, seen = (on_meta(workload, rows, 1, queries, queries + c) for c in (context, self.in_cache(context)))
        chunk = workload.attention == "sdpa" and context > 0 and queries > 1
        if workload.attention == "eager" or chunk:
            full, seen = (mask.to(torch.bool) if chunk else mask for mask in (full, seen))
            return full if self.masks or not self.window else None, seen if self.window else None
        return None, seen.to(torch.bool) if 0 < self.window <= seen.shape[-1] else None

    def filled_cache(self, model: nn.Module, past: Past) -> Any:
        """Return a cache that contains the keys and values ``past``."""
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=text_config(model))
        layers = [cache.layers[i] for i in self.own] or cache.layers
        for layer, (keys, values) in zip(layers, past, strict=True):
            layer.lazy_initialization(keys, values)
            self.fill(layer, keys, values)
        return cache

    def cache_tensors(self, cache: Any) -> list[tuple[torch.Tensor, ...]]:
        """Return the key and value tensors of each layer of a cache."""
        return [
            tuple(t for t in (getattr(layer, n, None) for n in self.cache) if t is not None and t.dim() > 1)
            for layer in cache.layers
        ]

    def past(self, model: nn.Module, workload: Workload, batch: int, context: int) -> Past:
        """Return cached keys and values of ``context`` tokens on meta, cut to the window of each layer."""
        text = text_config(model)
        count = len(self.own) or text.num_hidden_layers
        if self.latent:
            one = tuple(on_meta(workload, batch, 1, context, width) for width in self.latent)
            return [(one[0].clone(), one[1].clone()) for _ in range(count)]
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        lengths = [self.in_cache(context) if w else context for w in self.windows or [0] * count]
        shapes = [(batch, heads, length, width) for length in lengths]
        return [(on_meta(workload, *shape), on_meta(workload, *shape)) for shape in shapes]


def config_of(model: nn.Module) -> Any:
    """Return the configuration of a model, typed as one: torch types module attributes as tensors or modules."""
    return model.config


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the decoder of a model."""
    config = config_of(model)
    try:
        return config.get_text_config()
    except ValueError:  # ambiguous: the model has a text encoder as well
        return config.get_text_config(decoder=True)


def on_meta(workload: Workload, *shape: int) -> torch.Tensor:
    """Return an empty tensor on the meta device in the workload's dtype."""
    import torch

    return torch.empty(*shape, dtype=getattr(torch, workload.dtype), device="meta")


def ids_on_meta(*shape: int) -> torch.Tensor:
    """Return an integer tensor [B, S] on the meta device, such as token ids."""
    import torch

    return torch.zeros(*shape, dtype=torch.long, device="meta")
