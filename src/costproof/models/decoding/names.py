"""The stages of a model that is all decoder: where its modules sit, and the calls of a run on text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.ledger.workload import DTYPE_BYTES, Invocation, TensorSpec, Workload

STAGES: Final = ("prefill", "decode")

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
