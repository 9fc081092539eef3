"""Causal language models of transformers: how their prefill and their decode steps are exported, run and named.

Everything is made on meta. A model with its own kinds of masks and caches says so in a :class:`Causal`; the
defaults are those of most: a mask as one tensor, keys and values in each layer of a ``DynamicCache``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import DTYPE_BYTES, Invocation, TensorSpec, Workload
from costproof.models.target import ExportJob, Mark, Run, StageRun, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

STAGES: Final = ("prefill", "decode")

# Example sizes of symbolic dimensions: above 1 and pairwise different, so that nothing is taken
# for a constant and no two are taken for the same.
_BATCH, _LENGTH, _CONTEXT = 3, 37, 41

_IN_LAYER: Final[Mapping[str, str]] = {
    "": "",
    ".norm1": ".input_layernorm",
    ".attention": ".self_attn",
    **{f".attention.{x}": f".self_attn.{x}_proj" for x in ("q", "k", "v")},
    ".attention.out": ".self_attn.o_proj",
    ".norm2": ".post_attention_layernorm",
    ".mlp": ".mlp",
    ".mlp.activation": ".mlp.act_fn",
    **{f".mlp.{x}": f".mlp.{x}_proj" for x in ("gate", "up", "down")},
}


def decoder_names(path: str) -> dict[str, str]:
    """Roles of a decoder of dense layers -> module paths, as most models of transformers name them.

    Args:
        path: of the module that holds the layers.
    """
    return {
        "root": "",
        "text": path,
        "text.embedding": f"{path}.embed_tokens",
        "text.rotary": f"{path}.rotary_emb",
        **{f"text.layer{role}": f"{path}.layers.{{i}}{module}" for role, module in _IN_LAYER.items()},
        "text.norm": f"{path}.norm",
        "lm_head": "lm_head",
    }


def _plain_layer(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    layer.keys, layer.values = keys, values


@dataclass(frozen=True, slots=True)
class Causal:
    """How one implementation takes what a decoder needs beside tokens."""

    layers: str = "model.layers"
    """Path of the list of layers."""
    mask: Callable[[torch.Tensor | None], Any] = lambda mask: mask
    """From a prepared mask [B, 1, queries, keys], if any, to the argument ``attention_mask``."""
    fill: Callable[[Any, torch.Tensor, torch.Tensor], None] = _plain_layer
    """(layer of the cache, keys, values): put them in as its first update would, without work that shows."""
    held: Sequence[str] = ("keys", "values")
    """Attributes of a layer of the cache with tensors."""
    marks: Sequence[Mark] = ()

    def filled(self, model: nn.Module, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Any:
        """A cache whose prefill left these keys and values [B, kv heads, P, head dim], one pair a layer."""
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=text_config(model))
        for layer, k, v in zip(cache.layers, keys, values, strict=True):
            layer.lazy_initialization(k, v)
            self.fill(layer, k, v)
        return cache

    def tensors(self, cache: Any) -> list[tuple[torch.Tensor, ...]]:
        """The tensors that each layer of a cache holds."""
        found = ((getattr(layer, name, None) for name in self.held) for layer in cache.layers)
        return [tuple(t for t in layer if t is not None and t.dim() > 1) for layer in found]


def text_config(model: nn.Module) -> Any:
    """The decoder's part of a model's configuration."""
    config: Any = model.config
    return config.get_text_config()


def contexts(length: int, steps: int) -> tuple[int, ...]:
    """Tokens in the cache before the first, the middle and the last of ``steps`` after a prompt of ``length``."""
    return tuple(length + i for i in sorted({0, (steps - 1) // 2, steps - 1})) if steps else ()


def invocations(workload: Workload) -> tuple[Invocation, ...]:
    """The prompt and the steps of a run on text, with the values of their symbols.

    B sequences, b bytes per element; S prompt tokens, L positions that lm_head maps; P tokens in the cache
    before the first step, N steps.
    """
    batch, length, steps = workload.batch, workload.text_tokens, workload.new_tokens
    common = {"B": batch, "b": DTYPE_BYTES[workload.dtype]}
    prompt = {**common, "S": length, "L": length if workload.logits == "all" else 1}
    return (
        Invocation("prefill", "prompt", 1, prompt, (TensorSpec((batch, length), "int64"),)),
        Invocation("decode", "steps", steps, {**common, "P": length, "N": steps}, (TensorSpec((batch, 1), "int64"),)),
    )


def export_jobs(model: nn.Module, workload: Workload, how: Causal) -> tuple[ExportJob, ...]:
    """The prefill with batch and prompt as symbols, and a step with batch and context."""
    steps = (step_job(model, workload, how),) if workload.new_tokens else ()
    return (prefill_job(model, workload, how), *steps)


def prefill_job(
    model: nn.Module,
    workload: Workload,
    how: Causal,
    *,
    batch: int = _BATCH,
    length: int = _LENGTH,
    embedded: bool = False,
) -> ExportJob:
    """The whole model on a prompt.

    Args:
        embedded: whether it gets embeddings, made elsewhere, not token ids.
    """
    from costproof.models.causal_modules import Prefill

    name = "embeds" if embedded else "ids"
    given = _floats(workload, batch, length, text_config(model).hidden_size) if embedded else ids(batch, length)
    args: dict[str, Any] = {name: given}
    sizes = [SymbolicSize((name,), 0, "B"), SymbolicSize((name,), 1, "S")]
    if workload.attention == "eager":
        args["mask"] = _floats(workload, batch, 1, length, length)
        sizes += [SymbolicSize(("mask",), dim, symbol) for dim, symbol in ((0, "B"), (2, "S"), (3, "S"))]
    module = Prefill(model, how, int(workload.logits == "last"))
    return ExportJob("prefill", "prefill", ("prompt",), module, {"part": ""}, args, sizes, returns_cache=True)


def step_job(
    model: nn.Module, workload: Workload, how: Causal, *, batch: int = _BATCH, context: int = _CONTEXT
) -> ExportJob:
    """The whole model on one token per sequence, after ``context`` tokens in the cache."""
    from costproof.models.causal_modules import Step

    keys, values = _past(model, workload, batch, context)
    args: dict[str, Any] = {"ids": ids(batch, 1), "keys": keys, "values": values}
    sizes = [SymbolicSize(("ids",), 0, "B")]
    for name in ("keys", "values"):
        for i in range(len(keys)):
            sizes += [SymbolicSize((name, i), 0, "B"), SymbolicSize((name, i), 2, "P")]
    if workload.attention == "eager":
        args["mask"] = _floats(workload, batch, 1, 1, context + 1)
        sizes += [SymbolicSize(("mask",), 0, "B"), SymbolicSize(("mask",), 3, "P + 1")]
    return ExportJob("step", "decode", ("steps",), Step(model, how), {"part": ""}, args, sizes, returns_cache=True)


def runs(model: nn.Module, workload: Workload, how: Causal) -> tuple[Run, ...]:
    """The prompt, then the first, the middle and the last decode step."""
    batch, length = workload.batch, workload.text_tokens
    kwargs = {
        "input_ids": ids(batch, length),
        "attention_mask": how.mask(_mask(workload, length, length)),
        "use_cache": True,
        "logits_to_keep": int(workload.logits == "last"),
    }
    prompt = Run("prompt", model, kwargs, lambda path, call: ("prefill", "prompt"))
    steps = (step_run(model, workload, how, at) for at in contexts(length, workload.new_tokens))
    paths = tuple(f"{how.layers}.{i}.self_attn" for i in range(text_config(model).num_hidden_layers))
    return tuple(replace(run, attention_paths=paths, marks=how.marks) for run in (prompt, *steps))


def step_run(model: nn.Module, workload: Workload, how: Causal, context: int) -> Run:
    """One decode step with ``context`` tokens in the cache."""
    cache = how.filled(model, *_past(model, workload, workload.batch, context))
    kwargs = {
        "input_ids": ids(workload.batch, 1),
        "attention_mask": how.mask(_mask(workload, 1, context + 1)),
        "past_key_values": cache,
        "use_cache": True,
    }
    before = [(k, v) for k, v in how.tensors(cache)]
    return Run(f"step@{context}", model, kwargs, lambda path, call: ("decode", "steps"), context, before)


def stage_runs(model: nn.Module, workload: Workload, how: Causal) -> tuple[StageRun, ...]:
    """The prefill by itself, and the first, the middle and the last decode step."""
    batch, length = workload.batch, workload.text_tokens
    prefill = prefill_job(model, workload, how, batch=batch, length=length)
    steps = (
        alone(step_job(model, workload, how, batch=batch, context=at), f"step@{at}", at)
        for at in contexts(length, workload.new_tokens)
    )
    return (alone(prefill, "prefill"), *steps)


def alone(job: ExportJob, name: str, context: int | None = None) -> StageRun:
    """An export job as a run: the sizes of its arguments are those that count."""
    (invocation,) = job.invocations
    return StageRun(
        name, job.stage, invocation, job.module, job.prefix, job.args, job.returns_cache, job.own_calls, context
    )


def ids(batch: int, length: int) -> torch.Tensor:
    """Token ids [batch, length] on meta."""
    import torch

    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def _past(
    model: nn.Module, workload: Workload, batch: int, context: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    config = text_config(model)
    shape = (batch, config.num_key_value_heads, context, config.head_dim)
    layers = range(config.num_hidden_layers)
    return [_floats(workload, *shape) for _ in layers], [_floats(workload, *shape) for _ in layers]


def _mask(workload: Workload, queries: int, keys: int) -> torch.Tensor | None:
    """Additive for eager attention; none for fused attention, which is causal by flag."""
    return _floats(workload, workload.batch, 1, queries, keys) if workload.attention == "eager" else None


def _floats(workload: Workload, *shape: int) -> torch.Tensor:
    import torch

    return torch.empty(*shape, dtype=getattr(torch, workload.dtype), device="meta")
