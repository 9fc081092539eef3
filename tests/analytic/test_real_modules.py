"""Blocks of layers against small modules of transformers and torch, exported and costed, module by module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, DynamicCache, MistralConfig, MistralForCausalLM
from transformers.models.bart.modeling_bart import BartDecoderLayer
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
from transformers.models.olmo2.modeling_olmo2 import Olmo2DecoderLayer
from transformers.models.phi.modeling_phi import PhiAttention, PhiMLP
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer

from costproof.analytic.attention import Attention
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, invocation_nodes, stage_nodes
from costproof.analytic.costs import costs_of
from costproof.analytic.experts import RoutingRule
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.patches import Conv2d
from costproof.analytic.transformer import TransformerLayer
from costproof.models.specs import ExportJob
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.tracers.exported import export_graph

Costs = dict[tuple[str, str], int]
"""(module, metric) -> amount, zeros left out."""

B, S, B2 = 2, 5, 2
"""Sequences, tokens, bytes of bfloat16."""
METRICS = ("flops", "vector_flops", "weight_read_bytes", "input_bytes", "output_bytes", "kv_read_bytes")
LAYER = {
    "x": "", "x.norm1": "input_layernorm", "x.norm2": "post_attention_layernorm", "x.attention": "self_attn",
    **{f"x.attention.{p}": f"self_attn.{p}_proj" for p in "qkv"}, "x.attention.out": "self_attn.o_proj",
    "x.attention.q_norm": "self_attn.q_norm", "x.attention.k_norm": "self_attn.k_norm",
    "x.mlp": "mlp", "x.mlp.activation": "mlp.act_fn", **{f"x.mlp.{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    "x.router": "mlp.gate", "x.experts": "mlp.experts", "x.experts.activation": "mlp.experts.act_fn",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
    "num_hidden_layers": 1, "vocab_size": 64,
}  # fmt: skip
HEADS: dict[str, Any] = {"width": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "rotary": 8}
GATED = Mlp(32, 24, "silu", gated=True, bias=False)


def measured(module: nn.Module, kwargs: Mapping[str, Any]) -> Costs:
    """What the graph of one call costs, by the operator rules."""
    job = ExportJob("job", "s", ("i",), Wrapper(module, tuple(kwargs)), {"part": ""}, {"args": list(kwargs.values())})
    found = account(cost_graph(export_graph(job).graph), lambda path, call: ("s", "i"))
    assert not found.unknown
    costs: Costs = {}
    for node in found.nodes:
        for metric, value in node.costs.items():
            if metric in METRICS and value:
                costs[node.module, metric] = costs.get((node.module, metric), 0) + value
    for path, owner in module.named_modules():
        params = sum(p.numel() for p in owner.parameters(recurse=False))
        if params:
            costs[path, "params"] = params
    return costs


class Wrapper(nn.Module):
    """Calls a part by keyword and does nothing else."""

    def __init__(self, part: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.part, self.names = part, names

    def forward(self, args: list[Any]) -> Any:
        """What the part returns."""
        return self.part(**dict(zip(self.names, args, strict=True)))


def described(parts: Iterable[ModulePart], names: Mapping[str, str]) -> Costs:
    """The same by the formulas."""
    parts, costs = tuple(parts), Costs()
    for node in (*stage_nodes("s", parts, names), *invocation_nodes("s", "i", parts, names)):
        for metric, expr in node.exprs.items():
            if metric in (*METRICS, "params"):
                costs[node.module, metric] = costs.get((node.module, metric), 0) + int(expr)
    return costs


def config(kind: str, **settings: Any) -> Any:
    """A small configuration."""
    made = AutoConfig.for_model(kind, **{**TEXT, **settings})
    made._attn_implementation, made._experts_implementation = "sdpa", "grouped_mm"
    return made


def meta(*shape: int) -> torch.Tensor:
    """A tensor on meta."""
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def built(cls: Any, *args: Any) -> nn.Module:
    """A module on meta in bfloat16."""
    with torch.device("meta"):
        made: nn.Module = cls(*args).to(torch.bfloat16)
    return made


def tables(width: int) -> list[torch.Tensor]:
    """Cosines and sines."""
    return [meta(1, S, width), meta(1, S, width)]


def layer(attention: AttentionBlock, feed_forward: Mlp | ExpertMixture, **more: Any) -> tuple[ModulePart, ...]:
    """A layer of 32 channels on the example's tokens."""
    return TransformerLayer(32, attention, feed_forward, **more).parts("x", StackCall(B, S, B2))


@pytest.mark.parametrize(
    ("cls", "kind", "settings", "attention", "feed_forward"),
    [
        (LlamaDecoderLayer, "llama", {}, {}, GATED),
        (
            LlamaDecoderLayer,
            "llama",
            {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "hidden_act": "gelu_pytorch_tanh"},
            {"bias": ("q", "k", "v", "out"), "head_dim": 12, "rotary": 12},
            Mlp(32, 24, "gelu_pytorch_tanh", gated=True),
        ),
        (Qwen2DecoderLayer, "qwen2", {}, {"bias": ("q", "k", "v")}, GATED),
        (Qwen3DecoderLayer, "qwen3", {"head_dim": 8}, {"qk_norm": "head"}, GATED),
        (
            MixtralDecoderLayer,
            "mixtral",
            {"num_local_experts": 4, "num_experts_per_tok": 2},
            {},
            ExpertMixture(32, 24, 4, 2, "silu", routing=RoutingRule(normalised=True, scaled=False)),
        ),
    ],
    ids=["llama", "llama with biases", "qwen2", "qwen3", "mixtral"],
)
def test_decoder_layers(cls: Any, kind: str, settings: Any, attention: Any, feed_forward: Mlp | ExpertMixture) -> None:
    rotated = attention.get("rotary", 8)
    found = measured(
        built(cls, config(kind, **settings), 0),
        {"hidden_states": meta(B, S, 32), "position_embeddings": tables(rotated)},
    )
    block = AttentionBlock(**{**HEADS, "cached": False, **attention})
    assert described(layer(block, feed_forward), LAYER) == found


def test_norms_of_all_heads_together() -> None:
    names = {**LAYER, "x.norm1": "post_attention_layernorm", "x.norm2": "post_feedforward_layernorm"}
    # In float32, because the norms cast what they return, which a graph sees as the size before the cast.
    found = measured(
        built(Olmo2DecoderLayer, config("olmo2"), 0).float(),
        {"hidden_states": meta(B, S, 32).float(), "position_embeddings": [t.float() for t in tables(8)]},
    )
    made = TransformerLayer(32, AttentionBlock(**HEADS, cached=False, qk_norm="whole"), GATED)
    assert described(made.parts("x", StackCall(B, S, 4)), names) == found


@pytest.mark.parametrize(
    ("cls", "kind", "function"),
    [
        (CLIPEncoderLayer, "clip_vision_model", "quick_gelu"),
        (SiglipEncoderLayer, "siglip_vision_model", "gelu_pytorch_tanh"),
    ],
)
def test_encoder_layers(cls: Any, kind: str, function: str) -> None:
    names = {
        **LAYER, "x.norm1": "layer_norm1", "x.norm2": "layer_norm2", "x.attention.out": "self_attn.out_proj",
        "x.mlp.up": "mlp.fc1", "x.mlp.down": "mlp.fc2", "x.mlp.activation": "mlp.activation_fn",
    }  # fmt: skip
    block = AttentionBlock(32, 4, 4, 8, bias=("q", "k", "v", "out"), cached=False)
    found = measured(
        built(cls, config(kind, hidden_act=function)), {"hidden_states": meta(B, S, 32), "attention_mask": None}
    )
    assert described(layer(block, Mlp(32, 24, function), norm="layer"), names) == found


def test_partial_rotation_and_gelu_in_primitives() -> None:
    settings = config("phi", partial_rotary_factor=0.5, hidden_act="gelu_new")
    block = AttentionBlock(32, 4, 2, 8, rotary=4, bias=("q", "k", "v", "out"), cached=False)
    names = {role.removeprefix("x."): path.removeprefix("self_attn.") for role, path in LAYER.items()}
    names |= {"attention": "", "attention.out": "dense"}
    found = measured(
        built(PhiAttention, settings, 0),
        {"hidden_states": meta(B, S, 32), "position_embeddings": tables(4), "attention_mask": None},
    )
    assert described(block.parts("attention", StackCall(B, S, B2)), names) == found
    names = {"mlp": "", "mlp.up": "fc1", "mlp.down": "fc2", "mlp.activation": "activation_fn"}
    found = measured(built(PhiMLP, settings), {"hidden_states": meta(B, S, 32)})
    assert described(Mlp(32, 24, "gelu_new").parts("mlp", B * S, B2), names) == found


def test_sigmoid_router_with_groups_and_shared_experts() -> None:
    settings = config(
        "deepseek_v3", n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=2,
        n_group=4, topk_group=2, norm_topk_prob=True,
    )  # fmt: skip
    module = built(DeepseekV3MoE, settings)
    module.gate.e_score_correction_bias = module.gate.e_score_correction_bias.float()  # type: ignore[union-attr]
    how = RoutingRule("sigmoid", groups=4, group_best=2, corrected=True, normalised=True, floor=True)
    names = {
        "mlp": "", "router": "gate", "experts": "experts", "experts.activation": "experts.act_fn",
        "shared": "shared_experts", "shared.activation": "shared_experts.act_fn",
        **{f"shared.{p}": f"shared_experts.{p}_proj" for p in ("gate", "up", "down")},
    }  # fmt: skip
    parts = ExpertMixture(32, 16, 8, 3, "silu", shared=32, routing=how).parts(".mlp", B * S, B2)
    found = measured(module, {"hidden_states": meta(B, S, 32)})
    assert described(parts, {f".{r}": p for r, p in names.items()}) == found


def test_cross_attention() -> None:
    settings = AutoConfig.for_model(
        "bart", d_model=32, decoder_attention_heads=4, decoder_ffn_dim=24, activation_function="gelu", vocab_size=64
    )
    settings._attn_implementation = "sdpa"
    names = {
        "x": "", "x.norm1": "self_attn_layer_norm", "x.cross_norm": "encoder_attn_layer_norm",
        "x.norm2": "final_layer_norm",
        "x.mlp.up": "fc1", "x.mlp.down": "fc2", "x.mlp.activation": "activation_fn", "x.mlp": "",
        **{f"x.{ours}{p}": f"{theirs}{q}" for ours, theirs in (("attention", "self_attn"), ("cross", "encoder_attn"))
           for p, q in (("", ""), (".q", ".q_proj"), (".k", ".k_proj"), (".v", ".v_proj"), (".out", ".out_proj"))},
    }  # fmt: skip
    block = AttentionBlock(32, 4, 4, 8, bias=("q", "k", "v", "out"), cached=False)
    found = measured(
        built(BartDecoderLayer, settings, 0),
        {"hidden_states": meta(B, S, 32), "encoder_hidden_states": meta(B, 7, 32), "use_cache": False},
    )
    made = TransformerLayer(32, block, Mlp(32, 24, "gelu"), norm="layer", norm_last=True, cross=block)
    assert described(made.parts("x", StackCall(B, S, B2, memory=7)), names) == found


def test_values_of_another_width() -> None:
    class Core(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    found = measured(Core(), {"q": meta(B, 4, S, 8), "k": meta(B, 4, S, 8), "v": meta(B, 4, S, 6)})
    assert described([ModulePart("x", (Attention(B, S, 4, 4, 8, B2, value_dim=6),))], {"x": ""}) == found


def test_a_rectangular_convolution() -> None:
    convolution = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)
    with torch.device("meta"):
        made = convolution.to(device="meta", dtype=torch.bfloat16)
    found = measured(made, {"input": meta(B, 3, 8, 6)})
    # (8 + 2 - 3) // 2 + 1 = 4 rows, 6 - 2 + 1 = 5 columns
    formula = Conv2d(B, 3, 4, (3, 2), (8, 6), (4, 5), B2, bias=False)
    assert described([ModulePart("x", (formula,))], {"x": ""}) == found


def test_a_step_with_a_full_window() -> None:
    settings = MistralConfig(**TEXT, sliding_window=4, attn_implementation="eager")
    model = MistralForCausalLM(settings).eval()
    cache = DynamicCache(config=settings)
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        model(tokens.expand(1, 9), past_key_values=cache, use_cache=True)
        with FlopCounterMode(display=False, depth=6) as counter:
            model(tokens, past_key_values=cache, use_cache=True)
    attended = Attention(1, 1, 4, 2, 8, 4, past=9, cached=True, window=4)
    # 4 keys (3 of the cache, 1 new) for 4 heads of 8: 2 * 4 * 4 * 8 twice
    assert costs_of(attended).flops["attention"] == 2 * 2 * 4 * 4 * 8
    block = AttentionBlock(32, 4, 2, 8, rotary=8, window=4).parts("x", StackCall(1, 1, 4, past=9))
    whole = sum(sum(int(v) for v in costs_of(x).flops.values()) for part in block for x in part.layers)
    found = counter.get_flop_counts()["MistralForCausalLM.model.layers.0.self_attn"]
    assert whole == sum(found.values())
