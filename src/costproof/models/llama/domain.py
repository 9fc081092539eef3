"""What a proof about Llama draws: small configurations with and without biases, tied tables, other activations."""

from __future__ import annotations

import random
from collections.abc import Mapping

from costproof.models.decoding.domain import Drawn
from costproof.models.llama.config import LlamaConfig
from costproof.models.llama.target import Llama


def drawn(sizes: Mapping[str, int], rng: random.Random) -> Drawn:
    """The configuration of drawn sizes; biases, tying, activation and layers are drawn here."""
    heads = sizes["text_kv_heads"] * sizes["text_groups"]
    config = LlamaConfig(
        hidden=heads * sizes["text_share"],
        intermediate=sizes["text_intermediate"],
        layers=rng.choice((1, 1, 2, 3)),
        heads=heads,
        kv_heads=sizes["text_kv_heads"],
        head_dim=2 * sizes["text_head_halves"],
        vocab=sizes["text_vocab"],
        attention_bias=rng.random() < 0.5,
        mlp_bias=rng.random() < 0.5,
        tied=rng.random() < 0.5,
        activation=rng.choice(("silu", "gelu", "gelu_pytorch_tanh", "relu")),
    )
    return Llama(config), {
        "shared key/value heads": config.kv_heads < config.heads,
        "biases in attention": config.attention_bias,
        "biases in the MLP": config.mlp_bias,
        "a tied output projection": config.tied,
        "another activation than SiLU": config.activation != "silu",
        "heads as wide as the width in all": config.heads * config.head_dim == config.hidden,
    }
