"""The closed formulas of decoders, composed of model-neutral blocks: a family says in what it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costproof.analytic.attention_block import AttentionBlock, Projection
from costproof.analytic.compose import CONTAINER, Call, Part, analytic_ledger, prefill_and_decode
from costproof.analytic.costs import Size
from costproof.analytic.feed_forward import Mixture, Mlp
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.norms import NormKind
from costproof.analytic.rotary import Rotary, RotaryTable
from costproof.analytic.router import Routing
from costproof.analytic.soft_cap import SoftCap
from costproof.analytic.transformer import Decoder, TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding.config import TextConfig
from costproof.models.decoding.mixtures import MixtureConfig
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
    sinks: bool = False
    """Whether every head has a score of its own beside those of the keys."""
    pairs: bool = False
    """Whether a cosine and a sine rotate a pair of elements; else halves are negated and copied."""
    scores_capped: bool = False
    logits_capped: bool = False
    table: type[RotaryTable] = RotaryTable
    rotated: str = "text_head_dim"
    """The symbol of the elements of a head that are rotated."""
    own_positions: bool = False
    """Whether every sequence has positions of its own, so that its tables are not those of the others."""
    tables: int = 1
    """Tables of cosines and sines: one for every kind of layer with frequencies of its own."""


ALL: Final[tuple[Projection, ...]] = ("q", "k", "v", "out")
_NONE: Final[Mapping[int, Mixture]] = {}


def ledger(
    config: TextConfig,
    workload: Workload,
    style: Style,
    names: Mapping[str, str] | None = None,
    mixtures: Mapping[int, Mixture] = _NONE,
    attend: Callable[[Call], LatentBlock] | None = None,
) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty; arguments as those of :func:`modules`.

    Args:
        names: role -> module path; as most models have them unless given.

    Branches: a run without steps has no stage for them.
    """
    parts = modules(config, workload, style, mixtures, attend)

    def border(call: Call) -> Size:
        return logits_and_masks(workload, call, _windows(config))

    found = names or decoder_names("model")
    nodes = prefill_and_decode(parts, found, border=border, decode=workload.new_tokens > 0)
    # The formulas call the activation of the experts once, a loop calls it once for every expert that has tokens.
    stands_for = {"expert_kernel": "grouped_mm"} if workload.experts == "eager" else {}
    return analytic_ledger(nodes, STAGES, stands_for)


def modules(
    config: TextConfig,
    workload: Workload,
    style: Style,
    mixtures: Mapping[int, Mixture] = _NONE,
    attend: Callable[[Call], LatentBlock] | None = None,
) -> Callable[[Call], tuple[Part, ...]]:
    """All modules of one call, from the root to the output projection.

    Args:
        mixtures: layer -> the mixture of experts that it has in place of a gated MLP.
        attend: the attention of every layer in a call, where it is latent.
    """
    width = sym("text_hidden")
    mlp = Mlp(width, sym("text_intermediate"), config.activation, gated=True, bias=style.mlp_bias)

    def parts(call: Call) -> tuple[Part, ...]:
        positions = call.tokens if workload.logits == "all" else 1
        layers = tuple(
            TransformerLayer(
                width,
                attention(workload, style, call, window) if attend is None else attend(call),
                mixtures.get(i, mlp),
                norm=style.norm,
                norm_after=style.norm_after,
            )
            for i, window in enumerate(_windows(config))
        )
        decoder = Decoder(
            width,
            sym("text_vocab"),
            layers,
            table=sym(style.rotated),
            table_kind=style.table,
            own_positions=style.own_positions,
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

    return parts


def _windows(config: TextConfig) -> Sequence[int]:
    """For every layer its window, or 0."""
    return config.windows() or (0,) * config.layers


def mixtures(
    config: MixtureConfig, workload: Workload, routing: Routing, shared: Size = 0, *, clamped: bool = False
) -> dict[int, Mixture]:
    """The mixtures of experts of a decoder, all alike, by layer.

    Args:
        shared: inner width of all shared experts together; 0: there are none.
        clamped: experts have biases and a clamped gate.
    """
    one = Mixture(
        width=sym("text_hidden"),
        inner=sym("text_moe"),
        experts=sym("text_experts"),
        top_k=sym("text_topk"),
        function=config.activation,
        shared=shared,
        routing=routing,
        clamped=clamped,
        batched=workload.experts == "batched_mm",
    )
    return {i: one for i, routed in enumerate(config.routed()) if routed}


def logits_and_masks(workload: Workload, call: Call, windows: Sequence[int] = (0,)) -> Size:
    """Bytes that pass the border of a decoder from ids to logits.

    Args:
        windows: of every layer; those with equal ones get one mask, of numbers where attention is written out.
    """
    out = call.batch * (call.tokens if workload.logits == "all" else 1) * sym("text_vocab")
    if workload.attention != "eager":
        return out * call.item_bytes
    past = (sym("text_window") - 1 if call.past != 0 and _filled(workload, w) else call.past for w in {*windows})
    return (out + call.batch * call.tokens * sum(before + call.tokens for before in past)) * call.item_bytes


def _filled(workload: Workload, window: int) -> bool:
    """Whether a prompt and what follows it fill a window.

    Branches: as those of :func:`attention`.
    """
    return 0 < window <= workload.text_tokens + 1


def attention(workload: Workload, style: Style, call: Call, window: int) -> AttentionBlock:
    """The attention of one layer in one call.

    Fused attention is causal by a flag, and gets a mask of yes or no where keys are outside of the window.

    Args:
        window: of the layer, 0 for none. A prompt of one token less fills its part of the cache, and each step after it
            sees a window's keys: no run goes from below that to beyond.

    Branches: a window that nothing fills cuts nothing. A proof draws both sides of it, and its edge.
    """
    eager = workload.attention == "eager"
    filled = _filled(workload, window)
    heads = (sym("text_heads"), sym("text_kv_heads"))
    own = Rotary(1, call.rows, *heads, sym("text_head_dim"), call.item_bytes)
    hidden = filled and (call.past != 0 or workload.text_tokens >= window)
    return AttentionBlock(
        width=sym("text_hidden"),
        heads=sym("text_heads"),
        kv_heads=sym("text_kv_heads"),
        head_dim=sym("text_head_dim"),
        bias=style.bias,
        qk_norm="head" if style.qk_norm else "none",
        qk_norm_kind=style.norm,
        rotary=0 if style.own_positions else sym("text_head_dim"),
        causal=True,
        window=sym("text_window") if filled else 0,
        mask="input" if eager else "boolean" if hidden else "none",
        capped=style.scores_capped,
        sinks=style.sinks,
        pairs=style.pairs,
        written_out=eager,
        beside=(own,) if style.own_positions else (),
    )
