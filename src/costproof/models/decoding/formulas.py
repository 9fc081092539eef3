"""Closed formulas of decoder-only models: shared blocks that the :class:`DecoderStyle` of a family configures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import sympy

from costproof.algebra.series import CACHED, CONTEXT, ROW_SIZES, sum_over_rows
from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock, PackedBlock, Projection
from costproof.analytic.compose import (
    CONTAINER,
    ModulePart,
    StackCall,
    analytic_ledger,
    prefill_and_decode,
    prompt_call,
)
from costproof.analytic.costs import Size
from costproof.analytic.elementwise import SoftCap
from costproof.analytic.embedding import PickedPositions
from costproof.analytic.experts import RoutingRule
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.latent_attention import LatentBlock, PackedLatentBlock
from costproof.analytic.norms import NormKind
from costproof.analytic.rotary import Rotary, RotaryTable
from costproof.analytic.transformer import DecoderStack, TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.cache_dtype import cache_share
from costproof.models.decoding.config import DecoderConfig, MixtureConfig
from costproof.models.decoding.fsdp import as_stored, with_gathers
from costproof.models.decoding.names import (
    STAGES,
    decoder_names,
    latent_names,
    mixture_names,
    prefill_name,
    row_kinds,
    sandwich_names,
)
from costproof.models.decoding.sharding import OF_OWN_TOKENS, SPLIT_ALL, ShardPlan, Shards

ALL_PROJECTIONS: Final[tuple[Projection, ...]] = ("q", "k", "v", "out")


@dataclass(frozen=True, slots=True)
class DecoderStyle:
    """Differences between the decoders of families that sizes do not express: norms, biases, positions, MLP.

    The default has pre-norm layers with RMS norms, grouped-query attention without biases, rotary positions and a gated
    MLP, as Llama and Mistral do.
    """

    bias: tuple[Projection, ...] = ()
    """Attention projections that have a bias."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether the queries and keys of each head are normalised."""
    norm: NormKind = "rms"
    norm_after: bool = False
    """Whether norms also follow attention and MLP, before each residual addition."""
    scaled_embeddings: bool = False
    """Whether token embeddings are multiplied by a constant."""
    sinks: bool = False
    """Whether the softmax of each head includes a learned score in addition to those of the keys."""
    pairs: bool = False
    """Whether rotary embedding rotates pairs of elements; by default it negates and copies halves of a head."""
    scores_capped: bool = False
    """Whether attention scores pass a soft cap."""
    logits_capped: bool = False
    """Whether logits pass a soft cap."""
    table: type[RotaryTable] = RotaryTable
    """Layer class of the rotary table of cosines and sines."""
    rotated: str = "text_head_dim"
    """Symbol of the number of elements of a head that are rotated."""
    positions_per_sequence: bool = False
    """Whether each sequence of a batch has its own position ids, and so its own cosines and sines."""
    rotary_tables: int = 1
    """Number of tables of cosines and sines: one for each set of rotary frequencies."""
    routing: RoutingRule | None = None
    """Routing scheme of the mixtures of experts; ``None`` if no layer has experts."""
    router_module: str = "gate"
    """Attribute of the mixture's module that holds the router."""
    shared_experts: Size = 0
    """Total inner width of the shared experts; 0 if there are none."""
    clamped_experts: bool = False
    """Whether experts have biases and a clamped gate."""
    latent: Callable[[Workload, StackCall], LatentBlock] | None = None
    """Function that returns the latent attention of a call; ``None`` for attention with keys and values per head."""

    def names(self) -> dict[str, str]:
        """Return the module paths in a ``…ForCausalLM`` by role."""
        names = sandwich_names("model") if self.norm_after else decoder_names("model")
        if self.routing is not None:
            names |= mixture_names("model", self.router_module)
        return names | (latent_names("model") if self.latent is not None else {})


def decoder_ledger(
    config: DecoderConfig, workload: Workload, style: DecoderStyle, plan: ShardPlan | None = None
) -> Ledger:
    """Return the symbolic ledger of both stages, with formulas (``exprs``) and without numbers (``costs``).

    Args:
        plan: how the decoder is split, if the workload runs on several devices.

    Branches: a run without decode steps has no decode stage; the prompt reads a cache only if there is a past.
    """

    shards = Shards.of(config, workload, plan or SPLIT_ALL)
    vocabulary = None if style.logits_capped else shards.padded_vocabulary()

    def border(call: StackCall) -> Size:
        return logits_and_masks(workload, call, config, vocabulary, shards)

    parts, decode = decoder_parts(config, workload, style, plan), workload.new_tokens > 0
    first = prefill_name(workload)
    cache = cache_share(workload, latent=style.latent is not None)
    nodes = prefill_and_decode(
        parts, style.names(), border=border, decode=decode, cache=cache, past=workload.past > 0, first_id=first
    )
    if workload.mesh.fsdp > 1:
        nodes = as_stored(nodes)
    # A loop over experts calls the activation once for each expert that receives tokens; the formulas call it once.
    stands_for = {"expert_kernel": "grouped_mm"} if workload.experts == "eager" else {}
    return analytic_ledger(nodes, STAGES, stands_for, parallel=not workload.mesh.one)


def decoder_parts(
    config: DecoderConfig, workload: Workload, style: DecoderStyle, plan: ShardPlan | None = None
) -> Callable[[StackCall], tuple[ModulePart, ...]]:
    """Return a function from a call to the parts (role, layers) of its modules, from the root to the logits.

    Branches: parts of a single sequence lie in order.
    """

    shards = Shards.of(config, workload, plan or SPLIT_ALL, style)

    def parts(call: StackCall) -> tuple[ModulePart, ...]:
        positions = positions_kept(workload, call)
        capped = SoftCap(call.batch * positions * sym("text_vocab"), call.item_bytes)
        own = ((capped,) if style.logits_capped else ()) + picked_positions(workload, call)
        stack = decoder_stack(config, workload, style, shards)(call).parts("text", call, positions)
        if shards.shares_tokens(call):
            own_call = replace(call, tokens=call.tokens / sym("tp"))
            own_tokens = decoder_stack(config, workload, style, shards)(own_call).parts("text", own_call, positions)
            stack = tuple(o if w.role in OF_OWN_TOKENS else w for w, o in zip(stack, own_tokens, strict=True))
        found = (
            ModulePart("root", own if own and shards.last else (CONTAINER,)),
            *shards.of_stage((ModulePart("text"), *stack), call),
        )
        one_row = _one_row(workload, call)
        one_sequence = not workload.mesh.one and workload.own_batch == 1
        split = shards.with_collectives(found, call, positions, one_row=one_row, one_sequence=one_sequence)
        return tuple(with_gathers(split, call) if workload.mesh.fsdp > 1 else split)

    return parts


def _one_row(workload: Workload, call: StackCall) -> bool:
    """Return whether a call computes logits of only one position of one sequence.

    Branches: the gather of one row needs no concatenation.
    """
    if workload.mesh.one:  # which has no gather, so the lengths and the batch decide nothing
        return False
    one = call.past == CONTEXT or workload.logits == "last" or workload.text_tokens == 1
    return one and workload.own_batch == 1


def positions_kept(workload: Workload, call: StackCall) -> Size:
    """Return the number of positions per sequence whose logits are computed.

    Branches: rows of a batch, which have any number.
    """
    if is_packed(workload, call):
        return sym("L")
    return call.tokens if workload.logits == "all" else 1


def is_packed(workload: Workload, call: StackCall) -> bool:
    """Return whether a call processes the rows of a batch as one packed sequence."""
    return bool(workload.rows) and call.past == 0


def picked_positions(workload: Workload, call: StackCall) -> tuple[PickedPositions, ...]:
    """Return the layer that selects the positions with logits from all rows; empty if all positions have logits.

    Branches: whether all have them.
    """
    if not is_packed(workload, call) or all(row.logits == row.new for row in workload.rows):
        return ()
    return (PickedPositions(call.batch * sym("L"), sym("text_hidden"), call.item_bytes),)


def row_calls(
    workload: Workload, call: StackCall, config: DecoderConfig
) -> Iterator[tuple[Workload, StackCall, StackCall]]:
    """Yield (example row as a workload, its sizes in symbols as a batch, sizes of a single row) for each kind of rows.

    Branches: a row may have no past.
    """
    batch, tokens, past = ROW_SIZES
    for rows in row_kinds(workload, config):
        behind = rows[0].past > 0
        own = StackCall(batch, tokens, call.item_bytes, past=past if behind else 0)
        yield workload.of_row(rows[0]), prompt_call(past=behind), own


def decoder_stack(
    config: DecoderConfig, workload: Workload, style: DecoderStyle, shards: Shards | None = None
) -> Callable[[StackCall], DecoderStack]:
    """Return a function from a call to its :class:`DecoderStack`, the layers of the decoder.

    Branches: of several pipeline stages, the last one has a copy of a tied table.
    """
    shards = shards or Shards.of(config, workload, SPLIT_ALL)
    width = sym("text_hidden")
    inner = shards.of_part(sym("text_intermediate"), "mlp")
    mlp = Mlp(width, inner, config.activation, gated=True, bias=style.mlp_bias)

    def attention(call: StackCall, window: int) -> AttentionBlock | PackedBlock | LatentBlock | PackedLatentBlock:
        if is_packed(workload, call):
            return _packed(workload, style, call, window, config, shards)
        if style.latent is None:
            return _attention(workload, style, call, window, shards)
        return _split_latent(style.latent(workload, call), shards)

    def stack(call: StackCall) -> DecoderStack:
        mixtures = _mixtures(config, workload, style, shards, step=call.past == CONTEXT)
        equal: dict[tuple[int, int], TransformerLayer] = {}  # by identity: a comparison would become a path condition
        layers = []
        windows = windows_of(config)
        for i, window in enumerate(windows):
            key, feed_forward = (id(window), id(mixtures.get(i))), mixtures.get(i, mlp)
            if key not in equal:
                block = attention(call, window)
                equal[key] = TransformerLayer(width, block, feed_forward, norm=style.norm, norm_after=style.norm_after)
            layers.append(equal[key])
        return DecoderStack(
            width,
            shards.vocabulary("embedding"),
            tuple(layers),
            head=shards.vocabulary("head"),
            table=sym(style.rotated),
            table_kind=style.table,
            own_positions=style.positions_per_sequence,
            tables=style.rotary_tables,
            unread=max(0, style.rotary_tables - len({windows[i] for i in shards.layers})),
            norm=style.norm,
            tied=config.tied and shards.mesh.pp == 1,
            scaled=style.scaled_embeddings,
        )

    return stack


def _packed(
    workload: Workload, style: DecoderStyle, call: StackCall, window: int, config: DecoderConfig, shards: Shards
) -> PackedBlock | PackedLatentBlock:
    """Return the attention block of one layer for a packed batch of rows.

    Branches: a single row needs no concatenation.
    """
    each, kinds = list(row_calls(workload, call, config)), row_kinds(workload, config)
    calls = tuple(own for _, _, own in each)
    if style.latent is not None:
        latent = tuple(style.latent(one, whole) for one, whole, _ in each)
        saves = tuple(config.saves_by_absorbing(rows[0]) for rows in kinds)
        return PackedLatentBlock(latent, calls, tuple(map(len, kinds)), saves)
    blocks = tuple(_attention(one, style, whole, window, shards) for one, whole, _ in each)
    return PackedBlock(blocks, calls, several=len(workload.rows) > 1)


class DecoderSizes(Protocol):
    """Sizes of a decoder that decide which of its operators copy an argument."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def one_mask(self) -> bool: ...
    def windows(self) -> tuple[int, ...]: ...


def windows_of(config: DecoderSizes) -> Sequence[int]:
    """Return the sliding-window length of each layer; 0 for a layer without one."""
    return config.windows() or (0,) * config.layers


def _split_latent(block: LatentBlock, shards: Shards) -> LatentBlock:
    """Return latent attention with only the heads of one rank; every rank computes the latents in full."""
    return replace(block, heads=shards.of_part(block.heads, "attention"))


def _mixtures(
    config: DecoderConfig, workload: Workload, style: DecoderStyle, shards: Shards, *, step: bool
) -> dict[int, ExpertMixture]:
    """Return the mixture of experts of each layer that has one, by layer index; equal ones are one object.

    Args:
        step: whether the call is a decode step.

    Branches: ranks that share experts hold a part of them, and those with batches of their own gather the tokens.
    """
    if style.routing is None:
        return {}
    assert isinstance(config, MixtureConfig)
    mixture = ExpertMixture(
        width=sym("text_hidden"),
        inner=shards.of_part(sym("text_moe"), "experts"),
        held=sym("text_experts") / sym("ep") if workload.mesh.ep > 1 else None,
        batches=shards.batches,
        experts=sym("text_experts"),
        top_k=sym("text_topk"),
        function=config.activation,
        shared=shards.of_part(style.shared_experts, "shared"),
        routing=style.routing,
        clamped=style.clamped_experts,
        batched=workload.experts == "batched_mm",
    )
    layers = [i for i, routed in enumerate(config.routed()) if routed]
    routed = replace(mixture, slices=shards.slices, sliced=shards.sliced)
    made = {
        pair: replace(routed, exchanged=shards.exchanged(i, step=step), touched=shards.touched(i, step=step))
        for i, pair in enumerate(shards.pairs)
    }
    return {layer: made[shards.pairs[i]] if made else mixture for i, layer in enumerate(layers)}


def logits_and_masks(
    workload: Workload,
    call: StackCall,
    config: DecoderConfig | None = None,
    vocabulary: Size | None = None,
    shards: Shards | None = None,
) -> Size:
    """Return the activation bytes at the decoder's boundary: logits, and the masks of eager attention.

    Args:
        config: of the layers, if some have a window; layers with equal windows share one mask.
        vocabulary: columns of the logits, padded ones included (default: those of the vocabulary).
        shards: of a rank, whose pipeline stage may have a part of the layers and hidden states in place of logits.

    Branches: ranks that exchange heads for positions are given masks of a whole prompt.
    """
    windows = (0,) if config is None else windows_of(config)
    columns = sym("text_vocab") if vocabulary is None else vocabulary
    out = call.batch * positions_kept(workload, call) * columns
    if shards is not None:
        windows, out = [windows[i] for i in shards.layers], shards.border(call, out)
        if shards.by_heads and call.past != CONTEXT:  # masks are of all positions
            call = replace(call, tokens=call.tokens * sym("cp"))
    if workload.attention != "eager":
        return out * call.item_bytes
    if is_packed(workload, call) and config is not None:
        masks = (_mask_elements(one, whole, own, windows) for one, whole, own in row_calls(workload, call, config))
        return (out + sympy.Add(*(sum_over_rows(x, k) for k, x in enumerate(masks, 1)))) * call.item_bytes
    return (out + _mask_elements(workload, call, call, windows)) * call.item_bytes


def _mask_elements(workload: Workload, call: StackCall, sizes: StackCall, windows: Sequence[int]) -> Size:
    """Return the elements of the masks of eager attention; ``call`` decides whether windows are full."""
    past = (sym("text_window") - 1 if fills(workload, call, w) else sizes.past for w in {*windows})
    return sizes.batch * sizes.tokens * sum(before + sizes.tokens for before in past)


def masked_chunk(workload: Workload, call: StackCall) -> bool:
    """Return whether fused attention needs a mask because several new tokens follow cached ones.

    Its flag for causal attention aligns the first query with the first key; one token sees all keys without a mask.

    Branches: the number of new tokens; flash attention aligns the last ones.
    """
    return call.past == CACHED and workload.text_tokens > 1 and workload.attention == "sdpa"


def fills(workload: Workload, call: StackCall, window: int) -> bool:
    """Return whether the tokens that are cached before a call fill a window.

    Branches: the same as in :func:`_attention`.
    """
    if call.past == 0:
        return False
    return 0 < window <= (workload.past if call.past == CACHED else workload.context) + 1


def _filled(workload: Workload, window: int) -> bool:
    """Return whether past, prompt and first new token together reach the window length.

    Branches: the same as in :func:`_attention`.
    """
    return 0 < window <= workload.context + 1


def hides(workload: Workload, call: StackCall, window: int) -> bool:
    """Return whether a window hides some keys in a call.

    Branches: the same as in :func:`_attention`.
    """
    return _filled(workload, window) and (fills(workload, call, window) or workload.context >= window)


def _attention(workload: Workload, style: DecoderStyle, call: StackCall, window: int, shards: Shards) -> AttentionBlock:
    """Return the attention block of one layer in one call.

    Fused attention is causal by a flag. It gets a boolean mask if keys are outside of the window, and if several tokens
    follow cached ones.

    Args:
        window: of the layer; 0 for none. A context of ``window - 1`` tokens fills the cache of the layer, and each step
            after it sees ``window`` keys. No steps cross that length; a prompt after cached tokens may.

    Branches: a window that is not filled has no effect. A proof draws workloads on both sides and at the edge.
    """
    eager = workload.attention == "eager"
    filled = _filled(workload, window)
    heads = (shards.of_part(sym("text_heads"), "attention"), shards.own_kv_heads(sym("text_kv_heads")))
    own = Rotary(1, call.rows, *heads, sym("text_head_dim"), call.item_bytes)
    masked = masked_chunk(workload, call) or hides(workload, call, window)
    return AttentionBlock(
        width=sym("text_hidden"),
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=sym("text_head_dim"),
        bias=style.bias,
        qk_norm="head" if style.qk_norm else "none",
        qk_norm_kind=style.norm,
        rotary=0 if style.positions_per_sequence else sym("text_head_dim"),
        causal=True,
        window=sym("text_window") if filled else 0,
        filling=filled and call.past != 0 and not fills(workload, call, window),
        by_flag=filled and not masked and not eager,
        mask="input" if eager else "boolean" if masked else "none",
        capped=style.scores_capped,
        sinks=style.sinks,
        pairs=style.pairs,
        written_out=eager,
        beside=(own,) if style.positions_per_sequence else (),
    )
