"""The closed formulas of dense decoders, composed of model-neutral blocks: a family says in what it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.analytic.attention_block import AttentionBlock, Projection
from costproof.analytic.compose import CONTAINER, Call, Part, prefill_and_decode
from costproof.analytic.feed_forward import Mixture, Mlp
from costproof.analytic.norms import NormKind
from costproof.analytic.soft_cap import SoftCap
from costproof.analytic.transformer import Decoder, TransformerLayer
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding.config import TextConfig
from costproof.models.decoding.names import STAGES, decoder_names


@dataclass(frozen=True, slots=True)
class Style:
    """In what the decoders of two families differ, beside their sizes."""

    bias: tuple[Projection, ...] = ()
    """Projections of attention with a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether each head's queries and keys are normalised."""
    norm: NormKind = "rms"
    norm_after: bool = False
    """Whether attention and MLP are normalised once more before they are added."""
    scaled: bool = False
    """Whether a constant scales the embeddings."""
    scores_capped: bool = False
    logits_capped: bool = False
    tables: int = 1
    """Tables of cosines and sines: one for every kind of layer with frequencies of its own."""


ALL: Final[tuple[Projection, ...]] = ("q", "k", "v", "out")


def ledger(
    config: TextConfig,
    workload: Workload,
    style: Style,
    names: Mapping[str, str] | None = None,
    feed_forward: Callable[[int], Mlp | Mixture] | None = None,
) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        names: role -> module path; as most models have them unless given.
        feed_forward: what follows attention in layer i; a gated MLP unless given.
    """
    width, head_dim = sym("text_hidden"), sym("text_head_dim")
    mlp = Mlp(width, sym("text_intermediate"), config.activation, gated=True, bias=style.mlp_bias)
    windows = config.windows() or (0,) * config.layers

    def parts(call: Call) -> tuple[Part, ...]:
        positions = call.tokens if workload.logits == "all" else 1
        layers = tuple(
            TransformerLayer(
                width,
                attention(workload, style, call, window),
                mlp if feed_forward is None else feed_forward(i),
                norm=style.norm,
                norm_after=style.norm_after,
            )
            for i, window in enumerate(windows)
        )
        decoder = Decoder(
            width,
            sym("text_vocab"),
            layers,
            table=head_dim,
            tables=style.tables,
            norm=style.norm,
            tied=config.tied,
            scaled=style.scaled,
        )
        capped = SoftCap(call.batch * positions * sym("text_vocab"), call.item_bytes)
        return (
            Part("root", (capped if style.logits_capped else CONTAINER,)),
            Part("text"),
            *decoder.parts("text", call, positions),
        )

    found = names or decoder_names("model")
    nodes = prefill_and_decode(parts, found, decode=workload.new_tokens > 0)
    return Ledger("analytic", tuple(nodes), tuple(METRICS), STAGES)


def attention(workload: Workload, style: Style, call: Call, window: int) -> AttentionBlock:
    """The attention of one layer in one call.

    Fused attention is causal by a flag, and gets a mask of yes or no where keys are outside of the window.

    Args:
        window: of the layer, 0 for none. A prompt of one token less fills its part of the cache, and each step after it
            sees a window's keys: no run goes from below that to beyond.
    """
    eager = workload.attention == "eager"
    filled = 0 < window <= workload.text_tokens + 1
    hidden = filled and (call.past != 0 or workload.text_tokens >= window)
    return AttentionBlock(
        width=sym("text_hidden"),
        heads=sym("text_heads"),
        kv_heads=sym("text_kv_heads"),
        head_dim=sym("text_head_dim"),
        bias=style.bias,
        qk_norm="head" if style.qk_norm else "none",
        qk_norm_kind=style.norm,
        rotary=sym("text_head_dim"),
        window=sym("text_window") if filled else 0,
        mask="input" if eager else "boolean" if hidden else "none",
        capped=style.scores_capped,
    )
