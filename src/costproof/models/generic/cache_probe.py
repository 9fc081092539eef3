"""Detect the cache of a decoder of transformers by a short run on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import Decoder, Past, config_of, ids_on_meta, on_meta, text_config
from costproof.models.generic.cache_state import HeldCache, held_cache
from costproof.models.generic.towers import decoder_path
from costproof.models.specs import ExportJob, Run, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Contents of one layer of a model's own cache."""

    keys: tuple[int, int]
    """Heads, and the width of each."""
    values: tuple[int, int]
    window: int | None = None
    """Positions that a query sees; ``None`` for all. The layer holds one fewer."""

    def grows(self, context: int) -> bool:
        """Return whether the layer grows with each token."""
        return self.window is None or context < self.window - 1

    def held(self, context: int) -> int:
        """Return the cached positions of the layer after ``context`` tokens."""
        return context if self.window is None else min(context, self.window - 1)


@dataclass(frozen=True, slots=True)
class OwnCache(Decoder):
    """Decoder whose key/value cache has the form that its first run showed."""

    layers: tuple[CacheLayer, ...] = ()
    owners: tuple[str, ...] = ()
    """Path of the module that writes each layer."""
    towers: frozenset[str] = frozenset()
    """Modules that a run on only token ids does not call: towers, projectors."""

    def attention_paths(self, model: nn.Module) -> tuple[str, ...]:
        """Return the path of the module that owns the cache of each layer."""
        return self.owners

    def past(self, model: nn.Module, workload: Workload, batch: int, context: int) -> Past:
        """Return cached keys and values of ``context`` tokens, on meta."""

        def made(heads: int, width: int, layer: CacheLayer) -> torch.Tensor:
            return on_meta(workload, batch, heads, layer.held(context), width)

        return [(made(*layer.keys, layer), made(*layer.values, layer)) for layer in self.layers]

    def problems(self, workload: Workload) -> list[BadInput]:
        """Return a problem if decode steps cross the end of a sliding window, so that their sum has no closed form."""
        first, steps = workload.text_tokens, workload.new_tokens
        windows = {layer.window for layer in self.layers if layer.window is not None}
        return [
            BadInput(
                "the steps pass the end of a sliding window: they have no sum in closed form",
                where="--seq-len, --new-tokens",
                expected=f"at most {window - 1} tokens in the prompt and the steps, or a longer prompt",
                got=f"{first} + {steps} = {first + steps}",
            )
            for window in sorted(windows)
            if first < window - 1 < first + steps
        ]

    def step_job(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export of one decode step at the workload's sizes, with the context as a symbol."""
        from costproof.models.generic.export_wrappers import CacheStep

        # An export takes a context of one token for a constant; that the first step is as the others, its run shows.
        context = max(2, workload.text_tokens)
        past = self.past(model, workload, workload.batch, context)
        args: dict[str, Any] = {
            "input_ids": ids_on_meta(workload.batch, 1),
            "keys": [keys for keys, _ in past],
            "values": [values for _, values in past],
        }
        sizes = [SymbolicSize(("input_ids",), 0, "B")]
        for name in ("keys", "values"):
            for i, layer in enumerate(self.layers):
                sizes.append(SymbolicSize((name, i), 0, "B"))
                if layer.grows(context):
                    sizes.append(SymbolicSize((name, i), 2, "P"))
        step = CacheStep(model, self)
        windows = sorted({layer.window for layer in self.layers if layer.window is not None})
        holds = tuple(f"P - {w - 1}" if context >= w - 1 else f"{w - 2} - P" for w in windows)
        return ExportJob(
            "step", "decode", ("steps",), step, {"part": ""}, args, sizes, returns_cache=True, repeated=True,
            holds=holds if any(s.symbol == "P" for s in sizes) else (),
        )  # fmt: skip

    def step_run(self, model: nn.Module, workload: Workload, context: int) -> Run:
        """Return the run of one decode step after ``context`` tokens."""
        cache = self.filled_cache(model, self.past(model, workload, workload.batch, context))
        before = [(keys, values) for keys, values in self.cache_tensors(cache)]
        kwargs = {"input_ids": ids_on_meta(workload.batch, 1), "past_key_values": cache, "use_cache": True}
        return Run(f"step@{context}", model, kwargs, self.places[1], context, before, elsewhere=True)


def own_cache(model: nn.Module) -> OwnCache | HeldCache | str | None:
    """Return the cache of a model, or the reason why decode steps with it are not supported.

    A cache of keys and values per layer can be filled at any length; caches of other kinds are built by the model.
    """
    from costproof.snapshots.copies import short_run

    config = config_of(model) if has_attribute(model, "config") else None
    if config is None or attribute(config, "is_encoder_decoder", False) or not has_attribute(model, "generate"):
        return None
    if not attribute(model, "can_generate", lambda: True)():
        return None
    reached: set[str] = set()
    hooks = [module.register_forward_hook(_noting(reached, path)) for path, module in model.named_modules()]
    try:
        result = short_run(model, {"input_ids": ids_on_meta(2, 3), "use_cache": True})
    finally:
        for hook in hooks:
            hook.remove()
    layers = [_layer(layer) for layer in attribute(attribute(result, "past_key_values", None), "layers", ())]
    decoder = decoder_path(model)
    owners = _owners(model, decoder)
    towers = frozenset(p for p, _ in model.named_modules() if p not in reached and not _inside(p, decoder))
    found = tuple(layer for layer in layers if layer is not None)
    if not layers or len(found) != len(layers) or len(owners) != len(layers):
        found_out = held_cache(model, result, towers)
        return (
            found_out if isinstance(found_out, HeldCache) or attribute(text_config(model), "use_cache", False) else None
        )
    return OwnCache(layers=found, owners=owners, towers=towers)


def _noting(reached: set[str], path: str) -> Callable[..., None]:
    return lambda module, args, result: reached.add(path)


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _layer(layer: Any) -> CacheLayer | None:
    """Return the contents of a cache layer, or ``None`` if it holds anything besides keys and values."""
    tensors = {k: v for k, v in vars(layer).items() if has_attribute(v, "new_empty") and v.dim() > 1}
    states = [t for v in vars(layer).values() if isinstance(v, dict) for t in v.values() if t is not None]
    held = any(has_attribute(t, "new_empty") for t in states)
    if held or set(tensors) != {"keys", "values"} or any(t.dim() != 4 or t.shape[2] != 3 for t in tensors.values()):
        return None
    window = attribute(layer, "sliding_window", None) if attribute(layer, "is_sliding", False) else None
    keys, values = tensors["keys"].shape, tensors["values"].shape
    return CacheLayer((int(keys[1]), int(keys[3])), (int(values[1]), int(values[3])), window)


def _owners(model: nn.Module, decoder: str) -> tuple[str, ...]:
    """Return, for each layer index, the innermost decoder module that has this ``layer_idx``."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        index = attribute(module, "layer_idx", None)
        if isinstance(index, int) and _inside(path, decoder) and (index not in found or path.startswith(found[index])):
            found[index] = path
    return tuple(found[i] for i in sorted(found)) if sorted(found) == list(range(len(found))) else ()
