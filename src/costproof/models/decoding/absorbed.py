"""Latent attention with absorbed decode steps: our own ``forward``, run on the modules of a transformers model.

Servers decode like this (FlashMLA), transformers does not. The prompt runs as in the class of transformers: its keys
and values are expanded once, and with them those of a past. Importing this module imports transformers.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from costproof.ledger.workload import BatchRow
from costproof.models.decoding.modules import MasksOfRows, RowsCache, contexts_of, joined, row_name

if TYPE_CHECKING:
    import torch
    from torch import nn

_MADE: Final[dict[Any, Any]] = {}
"""Subclasses of attention classes that absorb the expansion in decode steps, by class, cached per process."""


def absorb(model: nn.Module, layers: str) -> None:
    """Patch all attention modules of a model to absorb the expansion in decode steps; weights do not change.

    Args:
        layers: path of the layers, each with its attention under ``self_attn``.
    """
    for layer in model.get_submodule(layers).children():
        attention: Any = layer.self_attn
        base = type(attention)
        if base not in _MADE:
            _MADE[base] = _made(base)
        attention.__class__ = _MADE[base]


def _made(base: Any) -> Any:
    modeling = sys.modules[base.__module__]

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        position_embeddings: Any = None,
        **kwargs: Any,
    ) -> Any:
        if isinstance(past_key_values, RowsCache) and any(map(_absorbs, past_key_values.rows)):
            masks: Any = attention_mask
            return _packed(self, modeling, hidden_states, position_embeddings, masks, past_key_values, **kwargs)
        given = (hidden_states, position_embeddings, attention_mask, past_key_values)
        several = hidden_states.shape[1] > 1
        if several or past_key_values is None or not past_key_values.get_seq_length(self.layer_idx):
            names = ("hidden_states", "position_embeddings", "attention_mask", "past_key_values")
            return base.forward(self, **dict(zip(names, given, strict=True)), **kwargs)
        return _step(self, modeling, *given, **kwargs)

    return type(f"Absorbing{base.__name__}", (base,), {"forward": forward, "__module__": base.__module__})


def _step(
    self: Any,
    modeling: Any,
    hidden_states: torch.Tensor,
    position_embeddings: Any,
    attention_mask: torch.Tensor | None,
    past_key_values: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend from new tokens [B, q, width] to T latents: scores over rank + rope elements, weighted sums over rank."""

    plain, turned, latents, key = _projected(self, modeling, hidden_states, position_embeddings)
    latents, key = past_key_values.update(latents, key, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, modeling.eager_attention_forward)
    found, shares = _absorbed(self, attend, (plain, turned), (latents, key), attention_mask, **kwargs)
    return self.o_proj(found.reshape(*hidden_states.shape[:-1], -1)), shares


def _projected(self: Any, modeling: Any, hidden_states: torch.Tensor, position_embeddings: Any) -> Any:
    """Return both parts of the queries [B, heads, q, width], and new latents and rotated keys [B, 1, q, width]."""
    batch, new = hidden_states.shape[:-1]
    nope, rank, rope = self.qk_nope_head_dim, self.kv_lora_rank, self.qk_rope_head_dim
    if self.q_lora_rank is None:
        queries = self.q_proj(hidden_states)
    else:
        queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
    plain, turned = queries.view(batch, new, -1, nope + rope).transpose(1, 2).split((nope, rope), dim=-1)
    latents, key = self.kv_a_proj_with_mqa(hidden_states).split((rank, rope), dim=-1)
    latents, key = self.kv_a_layernorm(latents).view(batch, 1, new, rank), key.view(batch, 1, new, rope)
    turned, key = _rotated(modeling, turned, key, position_embeddings)
    return plain, turned, latents, key


def _absorbed(
    self: Any,
    attend: Any,
    queries: tuple[torch.Tensor, torch.Tensor],
    context: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return attention [B, q, heads, value] of queries to the latents and rotated keys of the whole context."""
    import torch

    (plain, turned), (latents, key) = queries, context
    batch, heads, new, nope = plain.shape
    rank = self.kv_lora_rank
    # kv_b_proj [heads (nope + value), rank] holds the weights of keys, applied to the queries, and those of values.
    weight = self.kv_b_proj.weight
    weight = weight.to_local() if hasattr(weight, "to_local") else weight  # of a rank that has some of the heads
    of_keys, of_values = weight.view(heads, -1, rank).split((nope, self.v_head_dim), dim=1)
    absorbed = torch.bmm(plain.transpose(0, 1).reshape(heads, batch * new, nope), of_keys)
    absorbed = absorbed.view(heads, batch, new, rank).transpose(0, 1)
    # All heads of queries share one head of keys and values; the values are the latents.
    found, shares = attend(
        SimpleNamespace(num_key_value_groups=heads, is_causal=True, training=False, config=self.config),
        torch.cat((absorbed, turned), dim=-1),
        torch.cat((latents, key), dim=-1),
        latents,
        attention_mask,
        dropout=0.0,
        scaling=self.scaling,
        **kwargs,
    )
    rows = found.permute(2, 0, 1, 3).reshape(heads, batch * new, rank)
    values = torch.bmm(rows, of_values.transpose(1, 2)).view(heads, batch, new, self.v_head_dim)
    return values.permute(1, 2, 0, 3), shares


def _absorbs(row: BatchRow) -> bool:
    """Return whether a row of a batch is a decode step, which absorbs the expansion."""
    return row.new == 1 and row.past > 0


def _packed(
    self: Any,
    modeling: Any,
    hidden_states: torch.Tensor,
    position_embeddings: Any,
    attention_mask: MasksOfRows | None,
    cache: RowsCache,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of a batch of unequal rows: decode steps absorb the expansion, other rows expand latents."""
    import torch

    split = zip(*map(cache.split, _projected(self, modeling, hidden_states, position_embeddings)), strict=True)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(cache.attention, modeling.eager_attention_forward)
    found: dict[int, torch.Tensor] = {}
    expanded: dict[int, Any] = {}
    for i, (row, own, (plain, turned, latents, key)) in enumerate(zip(cache.rows, cache.caches, split, strict=True)):
        context = own.update(latents, key, self.layer_idx)
        if _absorbs(row):
            mask = None if attention_mask is None else attention_mask.get(row_name(i))
            found[i], _ = _absorbed(self, attend, (plain, turned), context, mask, **kwargs)
        else:
            expanded[i] = (torch.cat((plain, turned), dim=-1), *context)
    if expanded:
        contexts = [joined([parts[k] for parts in expanded.values()]) for k in (1, 2)]
        rows = [cache.rows[i] for i in expanded]
        keys, values = (contexts_of(rows, packed) for packed in self.expand_kv(*contexts))
        for i, key, value in zip(expanded, keys, values, strict=True):
            mask = None if attention_mask is None else attention_mask.get(row_name(i))
            scaled = {"dropout": 0.0, "scaling": self.scaling}
            found[i], _ = attend(self, expanded[i][0], key, value, mask, **scaled, **kwargs)
    results = [found[i].reshape(1, -1, *found[i].shape[2:]) for i in range(len(found))]
    whole = results[0] if len(results) == 1 else torch.cat(results, dim=1)
    return self.o_proj(whole.reshape(*hidden_states.shape[:-1], -1)), None


def _rotated(modeling: Any, queries: torch.Tensor, keys: torch.Tensor, positions: Any) -> Any:
    """Return queries and keys after the rotary embedding, applied by the modelling code of the class."""
    if hasattr(modeling, "apply_rotary_emb"):
        return modeling.apply_rotary_emb(queries, keys, positions.to(queries.device))
    return modeling.apply_rotary_pos_emb_interleave(queries, keys, *positions)
