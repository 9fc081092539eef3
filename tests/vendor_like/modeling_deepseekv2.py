"""The decoder: attention in the style of LLaMA with rotary tables by a matrix product, experts in a Python loop."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from .configuration_deepseekv2 import DeepseekV2Config  # noqa: TID252  (remote code is no package of ours)

Cache = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class RMSNorm(nn.Module):
    """Root mean square norm in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Written out."""
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class Rotary(nn.Module):
    """Cosines and sines of the positions."""

    inv_freq: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        steps = torch.arange(0, width, 2, dtype=torch.int64).float()
        self.register_buffer("inv_freq", 1.0 / (10_000.0 ** (steps / width)), persistent=False)
        self.scaling = 1.0

    @torch.no_grad()
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, S, width] each."""
        frequencies = self.inv_freq[None, :, None].float().expand(positions.shape[0], -1, 1)
        angles = (frequencies.float() @ positions[:, None, :].float()).transpose(1, 2)
        both = torch.cat((angles, angles), dim=-1)
        cos, sin = both.cos() * self.scaling, both.sin() * self.scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x cos + rotate_half(x) sin."""
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


class LlamaLikeAttention(nn.Module):
    """Attention written out, with a cache of keys and values per layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.rotary_emb = Rotary(width // self.heads)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_value: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The result and this layer's cache."""
        n, tokens, _ = hidden_states.size()
        shape = (n, tokens, self.heads, -1)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = (t.unsqueeze(1) for t in self.rotary_emb(v, position_ids))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if past_key_value is not None:
            k, v = torch.cat([past_key_value[0], k], dim=-2), torch.cat([past_key_value[1], v], dim=-2)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            scores = scores + attention_mask[:, :, :, : k.shape[-2]]
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = F.dropout(weights, p=0.0, training=self.training)
        found = torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(n, tokens, -1)
        return self.o_proj(found), (k, v)


class DeepseekV2MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Width in, width out."""
        result: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


class MoEGate(nn.Module):
    """The k best experts of every token, in float32."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.scaling = 1.0
        self.weight = nn.Parameter(torch.empty((config.n_routed_experts, config.hidden_size)))
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and weights [tokens, k]."""
        x = hidden_states.view(-1, hidden_states.shape[-1])
        logits = F.linear(x.type(torch.float32), self.weight.type(torch.float32), None)
        scores = logits.softmax(dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, k=self.top_k, dim=-1, sorted=False)
        return chosen, weights * self.scaling


class DeepseekV2MoE(nn.Module):
    """Routed experts, those alone that received tokens, and shared ones."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.moe_intermediate_size
        self.experts = nn.ModuleList(DeepseekV2MLP(width, inner) for _ in range(config.n_routed_experts))
        self.gate = MoEGate(config)
        self.shared_experts = DeepseekV2MLP(width, inner * config.n_shared_experts)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[B, S, width]."""
        chosen, weights = self.gate(hidden_states)
        flat = hidden_states.view(-1, hidden_states.shape[-1])
        routed = self.routed(flat, chosen, weights).view(*hidden_states.shape)
        result: torch.Tensor = routed + self.shared_experts(hidden_states)
        return result

    @torch.no_grad()
    def routed(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Tokens sorted by expert, numpy counts, one call per expert that has any."""
        counts = chosen.new_zeros((chosen.shape[0], len(self.experts)))
        counts.scatter_(1, chosen, 1)
        per_expert = counts.sum(dim=0).cpu().numpy()
        order = chosen.view(-1).argsort()
        tokens = x[order // chosen.shape[1]]
        found, start = [], 0
        for i, count in enumerate(per_expert):
            end = start + count
            if count == 0:
                continue
            found.append(self.experts[i](tokens[start:end]))
            start = end
        outs = torch.cat(found, dim=0) if found else tokens.new_empty(0)
        back = torch.empty_like(outs)
        back[order] = outs
        return (
            back.view(*chosen.shape, -1).type(weights.dtype).mul_(weights.unsqueeze(dim=-1)).sum(dim=1).type(back.dtype)
        )


class DeepseekV2DecoderLayer(nn.Module):
    """Attention, then a perceptron or a mixture of experts."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = LlamaLikeAttention(config)
        dense = layer < config.first_k_dense_replace
        self.mlp = DeepseekV2MLP(width, config.intermediate_size) if dense else DeepseekV2MoE(config)
        self.input_layernorm = RMSNorm(width)
        self.post_attention_layernorm = RMSNorm(width)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        """The result and the layer's cache."""
        residual = hidden_states
        hidden_states, cache = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = residual + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states, cache


class DeepseekV2PreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Initial values as the library makes them."""

    config_class = DeepseekV2Config
    base_model_prefix = "model"

    def _init_weights(self, module: Any) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)


def causal_mask(tokens: int, like: torch.Tensor) -> torch.Tensor | None:
    """[B, 1, S, S] for a prompt; a single token needs none."""
    if tokens == 1:
        return None
    mask = torch.full((tokens, tokens), torch.finfo(like.dtype).min, device=like.device)
    places = torch.arange(tokens, device=like.device)
    mask.masked_fill_(places < (places + 1).view(tokens, 1), 0)
    mask = mask.to(like.dtype)
    return mask[None, None, :, :].expand(like.shape[0], 1, tokens, tokens)


class DeepseekV2Model(DeepseekV2PreTrainedModel):
    """Embedding, layers, norm."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DeepseekV2DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embed_tokens

    def forward(
        self, *, inputs_embeds: torch.Tensor, past_key_values: Cache | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor, Cache]:
        """Hidden states and the cache of all layers."""
        tokens = inputs_embeds.shape[1]
        past = 0 if past_key_values is None else past_key_values[0][0].shape[-2]
        positions = torch.arange(past, past + tokens, device=inputs_embeds.device).unsqueeze(0)
        mask = causal_mask(tokens, inputs_embeds)
        x, caches = inputs_embeds, []
        for i, layer in enumerate(self.layers):
            before = None if past_key_values is None else past_key_values[i]
            x, cache = layer(x, attention_mask=mask, position_ids=positions, past_key_value=before)
            caches.append(cache)
        return self.norm(x), tuple(caches)
