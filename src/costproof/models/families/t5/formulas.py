"""The closed formulas of T5: norms before, biases by distance that the first layer makes, one table of words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.algebra.series import CONTEXT, STEPS, sum_over_steps
from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import CONTAINER, Call, Part, analytic_ledger, invocation_nodes, numbered, stage_nodes
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.linear import Lent, LmHead
from costproof.analytic.norms import RmsNorm
from costproof.analytic.relative_bias import DistanceBuckets, NoBias, Scale
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.models.families.t5.config import T5Config
from costproof.models.generic.encoder_decoder import TWO_STAGES


def names(*, gated: bool) -> Mapping[str, str]:
    """Roles -> module paths."""
    return {
        "root": "",
        "shared": "shared",
        "lm_head": "lm_head",
        **_stack("encoder", gated),
        **_stack("decoder", gated),
    }


def _stack(stack: str, gated: bool) -> dict[str, str]:
    block, layer = f"{stack}.block.{{i}}", f"{stack}.layer"
    places = {"attention": f"{block}.layer.0", "cross": f"{block}.layer.1"}
    last = f"{block}.layer.{2 if stack == 'decoder' else 1}"
    own, other, mlp = (
        f"{places['attention']}.SelfAttention",
        f"{places['cross']}.EncDecAttention",
        f"{last}.DenseReluDense",
    )
    return {
        stack: stack,
        f"{stack}.embedding": f"{stack}.embed_tokens",
        f"{stack}.dropout": f"{stack}.dropout",
        f"{stack}.norm": f"{stack}.final_layer_norm",
        layer: block,
        **{f"{layer}.{which}_sum": place for which, place in places.items()},
        f"{layer}.mlp_sum": last,
        f"{layer}.attention": own,
        f"{layer}.cross": other,
        **{f"{layer}.{x}.{p}": f"{y}.{p}" for x, y in (("attention", own), ("cross", other)) for p in "qkv"},
        f"{layer}.attention.out": f"{own}.o",
        f"{layer}.cross.out": f"{other}.o",
        f"{layer}.attention.bias": f"{own}.relative_attention_bias",
        f"{layer}.norm1": f"{places['attention']}.layer_norm",
        f"{layer}.cross_norm": f"{places['cross']}.layer_norm",
        f"{layer}.norm2": f"{last}.layer_norm",
        f"{layer}.attention_dropout": f"{places['attention']}.dropout",
        f"{layer}.cross_dropout": f"{places['cross']}.dropout",
        f"{layer}.mlp_dropout": f"{last}.dropout",
        f"{layer}.mlp": mlp,
        f"{layer}.mlp.gate": f"{mlp}.wi_0",
        f"{layer}.mlp.up": f"{mlp}.{'wi_1' if gated else 'wi'}",
        f"{layer}.mlp.activation": f"{mlp}.act",
        f"{layer}.mlp.dropout": f"{mlp}.dropout",
        f"{layer}.mlp.down": f"{mlp}.wo",
    }


_DROPOUTS: Final = ("attention_dropout", "mlp_dropout", "mlp.dropout")
"""Of every layer: called, and without effect outside of training."""


def formulas(config: T5Config, *, decode: bool = True) -> Ledger:
    """The three stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Raffel et al. 2019, Exploring the Limits of Transfer Learning (T5); Shazeer 2020 (gated MLPs);
    ``T5ForConditionalGeneration`` (transformers).

    Args:
        decode: whether there are steps after the first token.
    """
    batch, length, b, found = sym("B"), sym("S"), sym("b"), names(gated=config.gated)
    encode = _parts(config, "encoder", Call(batch, length, b))
    first = _decoder(config, Call(batch, 1, b, memory=length))
    step = _decoder(config, Call(batch, 1, b, past=CONTEXT, memory_past=length))
    memory, logits = batch * length * sym("text_hidden") * b, batch * sym("text_vocab") * b
    nodes = (
        *stage_nodes("encode", encode, found),
        *invocation_nodes("encode", "input", encode, found, border=memory),
        *stage_nodes("prefill", first, found),
        *invocation_nodes("prefill", "prompt", first, found, border=memory + logits),
        *stage_nodes("decode", step, found),
        *invocation_nodes("decode", "steps", step, found, border=logits, calls=STEPS, summed=sum_over_steps),
    )
    return analytic_ledger([n for n in nodes if decode or n.stage != "decode"], TWO_STAGES)


def _decoder(config: T5Config, call: Call) -> tuple[Part, ...]:
    """One token through the decoder, with its logits."""
    width, b = sym("text_hidden"), call.item_bytes
    return (
        Part("root", (Scale(call.rows * width, b) if config.scaled else CONTAINER,)),
        *_parts(config, "decoder", call),
        Part("lm_head", (LmHead(call.batch, call.tokens, width, sym("text_vocab"), b, tied=True),)),
    )


def _parts(config: T5Config, stack: str, call: Call) -> tuple[Part, ...]:
    """One of the two stacks."""
    width, b, vocab, decodes = sym("text_hidden"), call.item_bytes, sym("text_vocab"), stack == "decoder"
    dropouts = (*_DROPOUTS, *(("cross_dropout",) if decodes else ()))
    layers = (
        numbered(i, (*parts, *(Part(f"{stack}.layer.{name}") for name in dropouts)))
        for i in range(config.decoder_layers if decodes else config.layers)
        for parts in [_layer(config, stack, call, first=i == 0)]
    )
    return (
        Part("shared", (Lent(vocab * width, b),), called=False),
        Part(stack),
        Part(f"{stack}.embedding", (Embedding(call.rows, vocab, width, b, lent=True, read_whole=decodes),)),
        Part(f"{stack}.dropout", times=2),
        *(part for layer in layers for part in layer),
        Part(f"{stack}.norm", (RmsNorm(call.rows, width, b),)),
    )


def _layer(config: T5Config, stack: str, call: Call, *, first: bool) -> tuple[Part, ...]:
    """One layer; the first makes the biases of all.

    Branches: biases of zeros for cross attention are made only where a further layer takes them.
    """
    width, heads, b, keys = sym("text_hidden"), sym("text_heads"), call.item_bytes, call.past + call.tokens
    memory, decodes = call.memory + call.memory_past, stack == "decoder"
    block = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        cached=decodes,
        causal=decodes,
        mask="heads",
        beside=(DistanceBuckets(call.tokens, keys),) if first else (),
    )
    cross = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        mask="inside" if first else "heads",
        beside=(NoBias(heads, call.tokens, memory, b, config.decoder_layers > 1),) if first else (),
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation, gated=config.gated, bias=False)
    layer = TransformerLayer(width, block, mlp, added_apart=True, cross=cross if decodes else None)
    table = Part(f"{stack}.layer.attention.bias", (Embedding(call.tokens * keys, sym("text_buckets"), heads, b),))
    return (*layer.parts(f"{stack}.layer", call), *((table,) if first else ()))
