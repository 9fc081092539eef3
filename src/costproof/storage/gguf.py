"""Name the parameters of transformers models as GGUF files name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_BLOCK: Final = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
_OUTSIDE: Final = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
"""GGUF name of a module outside the layers, by the last part of its path."""
_INSIDE: Final = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
"""GGUF name of a module inside a layer, by its path there, for most architectures."""
_FOUR_NORMS: Final = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "gemma2": _FOUR_NORMS, "gemma3_text": _FOUR_NORMS,
    "gpt_oss": {"post_attention_layernorm": "post_attention_norm"},
}  # fmt: skip
"""GGUF names that differ from the usual ones, by model type."""
CORRECTION: Final = "e_score_correction_bias"
"""Last part of the name of the correction bias of a router's scores, a buffer."""
CORRECTIONS: Final = (CORRECTION, "exp_probs_b.bias")
MODEL_TYPES: Final = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a GGUF file, with the module of the model that it belongs to."""

    name: str
    module: str
    shape: tuple[int, ...]
    """Shape in torch's order: the slowest dimension first."""


def gguf_tensors(
    model_type: str, parameters: Mapping[str, tuple[int, ...]], *, transposed: bool = False
) -> Iterator[GgufTensor]:
    """Yield the tensors of a GGUF file for the parameters of a model; tied ones are stored once.

    Args:
        parameters: shapes by path, with the first of tied parameters and the corrections of routers.
        transposed: whether stacks of experts are [experts, inputs, outputs], as those of gpt-oss.

    Raises:
        KeyError: the name of a module is not known.
    """
    inside = {**_INSIDE, **_OWN.get(model_type, {})}
    for path, shape in parameters.items():
        module, _, last = path.rpartition(".")
        found = _BLOCK.fullmatch(path)
        if found is None:
            yield GgufTensor(f"{_OUTSIDE[module.rpartition('.')[2]]}.{last}", module, shape)
            continue
        block = f"blk.{found[1]}."
        part = found[2].rpartition(".")[0]
        if last == "sinks":
            yield GgufTensor(f"{block}attn_sinks.weight", module, shape)
        elif last == CORRECTION:
            yield GgufTensor(f"{block}exp_probs_b.bias", module, shape)
        elif part == "mlp.experts":
            yield from _stack(block, module, last, shape, transposed)
        else:
            yield GgufTensor(f"{block}{inside[part]}.{last}", module, shape)


def _stack(block: str, module: str, last: str, shape: tuple[int, ...], transposed: bool) -> Iterator[GgufTensor]:
    """Yield the GGUF tensors for a stack of experts; a fused gate and up projection becomes two tensors."""
    is_bias = last.endswith("_bias")
    experts, rows = shape[0], shape[2 if transposed and not is_bias else 1]
    columns = () if is_bias else (shape[1 if transposed else 2],)
    parts = ("gate", "up") if last.startswith("gate_up") else ("down",)
    for part in parts:
        yield GgufTensor(
            f"{block}ffn_{part}_exps.{'bias' if is_bias else 'weight'}", module, (experts, rows // len(parts), *columns)
        )


def split_latents(tensor: GgufTensor, nope: int, value: int) -> Iterator[GgufTensor]:
    """Yield a tensor; split an up-projection of latent attention into keys and values, as newer GGUF files store it.

    Args:
        nope: width of the keys of a head that are not rotated.
        value: width of the values of a head.
    """
    if not tensor.name.endswith(".attn_kv_b.weight"):
        yield tensor
        return
    (rows, rank), heads = tensor.shape, tensor.shape[0] // (nope + value)
    block = tensor.name.removesuffix("attn_kv_b.weight")
    assert rows == heads * (nope + value)
    yield GgufTensor(f"{block}attn_k_b.weight", tensor.module, (heads, rank, nope))
    yield GgufTensor(f"{block}attn_v_b.weight", tensor.module, (heads, value, rank))
