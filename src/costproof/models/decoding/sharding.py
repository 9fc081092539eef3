"""Lay out the weights and activations of a decoder on the ranks of a mesh: plans, local widths, collectives.

A rank of a decoder is the same decoder with local widths. Its formulas keep the symbols of the configuration, divided
by ``tp`` or ``ep``; the rows of the vocabulary, which may be uneven, have a symbol of their own, ``text_vocab_rank``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, cast

import sympy

from costproof.algebra.evaluation import SymbolValues, compile_expression
from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import sym
from costproof.analytic.costs import IN_DTYPE_OF_RUN, CacheShares
from costproof.estimate.routing import PROMPT, RoutedLayers, pairs_sent, splits_of
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems
from costproof.ledger.mesh import CP_PLAN, DISPATCH, EP_BATCHES, FSDP_CP, PLAN, Mesh, shard, stage_layers
from costproof.ledger.metrics import FLOOR, KEPT_FLOPS, UNFUSED, Metric
from costproof.ledger.node import Ledger, bearing
from costproof.ledger.workload import Workload
from costproof.models.cache_dtype import cache_share
from costproof.models.decoding.names import STAGES
from costproof.models.decoding.plans import OWN, SharedDecoder, by_heads, named_plan, routed_layers, split_parts
from costproof.models.target import DATA_COPIES, OF_MEMORY, OF_WORK, SEQUENCE_COPIES

if TYPE_CHECKING:
    from costproof.analytic.compose import ModulePart, StackCall
    from costproof.analytic.costs import Layer, Size
    from costproof.analytic.decoder_memory import RankSteps
    from costproof.analytic.experts import ClampedExperts, Experts
    from costproof.ledger.node import CostNode
    from costproof.models.decoding.config import DecoderConfig
    from costproof.models.decoding.formulas import DecoderStyle

Part = Literal["attention", "mlp", "experts", "shared", "embedding", "head"]
"""A part of a decoder that a plan splits or leaves whole on every rank."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Set of the decoder parts that tensor parallelism splits; all others are whole on each rank.

    Attention is split by head: q, k, v by columns and the output projection by rows. An MLP and an expert are split by
    inner width: gate and up projections by columns, the down projection by rows. Embedding and output projection are
    split by rows of the vocabulary. Norms, routers, and the projections to latents are never split.
    """

    name: str
    source: str
    split: frozenset[Part]
    multiple: int = 1
    """Number to a multiple of which the vocabulary is padded."""
    joint: bool = False
    """Whether each rank adds routed and shared experts before a single sum over ranks."""
    sequence: bool = False
    """Whether ranks divide the tokens of a prompt between split modules (sequence parallelism)."""

    def patterns(self) -> dict[str, str]:
        """Return the plan in the form of transformers: layouts of the dense modules by module pattern."""
        layer = "model.layers.*"
        found = {
            "attention": {**dict.fromkeys((f"{layer}.self_attn.{x}_proj" for x in "qkv"), "colwise"),
                          f"{layer}.self_attn.o_proj": "rowwise"},
            "mlp": {f"{layer}.mlp.gate_proj": "colwise", f"{layer}.mlp.up_proj": "colwise",
                    f"{layer}.mlp.down_proj": "rowwise"},
            "experts": {f"{layer}.mlp.experts.gate_up_proj": "packed_colwise",
                        f"{layer}.mlp.experts.down_proj": "rowwise", f"{layer}.mlp.experts": "moe_tp_experts"},
            "shared": {f"{layer}.mlp.shared_experts.gate_proj": "colwise",
                       f"{layer}.mlp.shared_experts.up_proj": "colwise",
                       f"{layer}.mlp.shared_experts.down_proj": "rowwise"},
            "embedding": {"model.embed_tokens": "embedding_rowwise"},
            "head": {"lm_head": "colwise_gather_output"},
        }  # fmt: skip
        return {pattern: layout for part in found for pattern, layout in found[part].items() if part in self.split}


_PARTS: Final[tuple[Part, ...]] = ("attention", "mlp", "experts", "shared", "embedding", "head")
_SOURCE: Final = "transformers: base_model_tp_plan and _tp_plan of the class"
GATHERED_BEFORE: Final = ("root", "text.layer")
"""Roles of the modules that gather sharded parameters before they run."""
FULLY_SHARD: Final = "torch.distributed.fsdp.fully_shard of every layer, then of the model"
SPLIT_ALL: Final = ShardPlan(OWN, _SOURCE, frozenset(_PARTS))
WHOLE_ATTENTION: Final = ShardPlan(OWN, _SOURCE, frozenset(_PARTS) - {"attention"})
HEAD_ONLY: Final = ShardPlan(OWN, _SOURCE, frozenset({"head"}))
"""These three are the plans that classes of transformers have."""


def chosen_plan(
    config: DecoderConfig, workload: Workload, own: ShardPlan, style: DecoderStyle, names: Mapping[str, str]
) -> ShardPlan:
    """Return the plan that a workload names; by default, that of the model class.

    Args:
        own: plan of the class.
        names: role -> module path.

    Raises:
        Problems: the plan does not fit the model.
    """
    text = workload.inputs.get(PLAN)
    if text is None or workload.mesh.tp == 1:
        return own
    plan, mesh = named_plan(str(text)), workload.mesh
    latent, routed = style.latent is not None, routed_layers(config)
    absent: tuple[str, ...] = ()
    if latent:
        absent = ("k", "v", *(("q",) if getattr(config, "q_rank", 0) else ("q_down", "q_norm", "q_up")))
    paths = {role: path for role, path in names.items() if role.removeprefix("text.layer.attention.") not in absent}
    if any(routed):
        experts = names["text.layer.experts"]
        paths |= {"text.layer.experts.gate_up": f"{experts}.gate_up_proj"}
        paths |= {"text.layer.experts.down": f"{experts}.down_proj"}
    layers = {role: _layers_of(role, routed, style) for role, path in paths.items() if "{i}" in path}
    paths = {role: path for role, path in paths.items() if layers.get(role, True)}
    split = cast("frozenset[Part]", split_parts(plan, paths, layers, mesh))
    problems: list[CostproofError] = []
    key = plan.matching(names["text.layer.attention.k"].format(i=0)) if not latent else ()
    if "attention" in split and config.kv_heads % mesh.tp and any(layout == "column" for _, layout in key):
        what = "this layout makes no copies of key/value heads"
        expected = f"a divisor of the {config.kv_heads} key/value heads, or by_head"
        problems.append(BadInput(what, where=f"--{PLAN}, {key[0][0]}, --tp", expected=expected, got=mesh.tp))
    if plan.sequence and (any(routed) or latent or workload.past):
        what = "ranks that share tokens are counted only for dense decoders without latents, and without a past"
        problems.append(BadInput(what, where=f"--{PLAN} {plan.name}", got=config.architecture))
    elif plan.sequence and workload.text_tokens % mesh.tp:
        what, expected = "ranks that share tokens must have equally many", f"a multiple of tp {mesh.tp}"
        problems.append(BadInput(what, where="--text-tokens", expected=expected, got=workload.text_tokens))
    multiple = plan.padding(mesh.tp)
    if {"embedding", "head"} & split and _padded(config.vocab, multiple) % mesh.tp and multiple > 1:
        what = f"{plan.name} gives each rank equally many rows of the vocabulary, padded to a multiple of {multiple}"
        problems.append(BadInput(what, where="--tp", got=mesh.tp,
                                 expected=f"a divisor of {_padded(config.vocab, multiple)}"))  # fmt: skip
    if problems:
        raise Problems("the plan does not fit this model", problems)
    joint = plan.joint and style.shared_experts != 0
    return ShardPlan(plan.name, plan.source, split, multiple, joint, plan.sequence)


def _layers_of(role: str, routed: tuple[bool, ...], style: DecoderStyle) -> list[int]:
    """Return the indices of the decoder layers that have the module of a role."""
    mixture = role.startswith(("text.layer.experts", "text.layer.shared", "text.layer.router"))
    if role.startswith("text.layer.shared") and style.shared_experts == 0:
        return []
    if mixture or role.startswith("text.layer.mlp."):
        return [i for i, has in enumerate(routed) if has is mixture]
    return [*range(len(routed))]


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def mesh_symbols(config: SharedDecoder, workload: Workload, plan: ShardPlan, stage: str = PROMPT) -> dict[str, int]:
    """Return the values of ``MESH_SYMBOLS`` for the counted rank in a stage; empty on one device."""
    mesh = workload.mesh
    if mesh.one:
        return {}
    start, stop = shard(_padded(config.vocab, plan.multiple), mesh.tp, mesh.coordinates(workload.rank).tp)
    found = {"tp": mesh.tp, "ep": mesh.ep, "text_vocab_rank": stop - start}
    if mesh.cp > 1:
        found |= {"cp": mesh.cp, "cp_place": mesh.coordinates(workload.rank).cp + 1, "cp_tokens": workload.own_tokens}
    if mesh.fsdp > 1:
        found |= {"fsdp": mesh.stored_parts, "fsdp_rank": mesh.stored_part(workload.rank)}
    if batches := workload.gathered_batches:
        at = mesh.group(EP_BATCHES, workload.rank).index(workload.rank)
        found |= {"ep_sequences": sum(batches), "ep_next": batches[(at + 1) % len(batches)]}
    own, splits = mesh.coordinates(workload.rank).ep, splits_of(workload, *_routed_sizes(config), stage)
    for (sends, gets), (sent, got) in zip(_pair_names(config, workload), splits, strict=True):
        found |= {sends: sum(sent) - sent[own], gets: sum(got) - got[own]}
    return found


def _pair_names(config: SharedDecoder, workload: Workload) -> tuple[tuple[str, str], ...]:
    """Return the symbols of the pairs that a rank sends and gets in each layer with experts; empty if it gathers.

    Layers share them if all ranks send the same in every layer.
    """
    if DISPATCH not in workload.inputs:
        return ()
    stages = (PROMPT, *((STAGES[1],) if workload.new_tokens else ()))
    every = [*zip(*(pairs_sent(workload, *_routed_sizes(config), stage) for stage in stages), strict=True)]
    ends = ("",) * len(every) if len({*every}) == 1 else tuple(f"_{i}" for i in range(len(every)))
    return tuple((f"text_pairs_sent{end}", f"text_pairs_got{end}") for end in ends)


def _routed_sizes(config: SharedDecoder) -> tuple[int, int, int]:
    """Return the number of layers with experts, of experts in each, and of those that a token passes."""
    return sum(routed_layers(config)), int(getattr(config, "experts", 0)), int(getattr(config, "top_k", 0))


@dataclass(frozen=True, slots=True)
class Shards:
    """Local widths of one rank, in symbols, and the rank's share in other costs."""

    plan: ShardPlan
    mesh: Mesh
    kv_heads: int
    latent: bool = False
    """Whether attention caches latents instead of keys and values."""
    hidden: int = 0
    """Width of the decoder's hidden states."""
    biased: tuple[tuple[str, int], ...] = ()
    """(role of a module, number of bias elements) of the biases that are added after a sum over ranks."""
    wide_weights: bool = True
    """Whether the router returns expert weights in float32 rather than in the dtype of the run."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Symbols of the (token, expert) pairs that the rank sends and gets, by layer with experts; empty if it gathers."""
    routed: RoutedLayers | None = None
    """Layers with routed experts, if ranks divide the experts; otherwise ``None``."""
    vocab: int = 0
    layers: range = range(0)
    """Indices of the layers in the rank's pipeline stage."""
    stage: int = 0
    """Index of the rank's pipeline stage, from 0."""
    tied: bool = False
    """Whether the last pipeline stage holds a copy of the embedding, which the first one has too."""
    cp_plan: str = ""
    """Plan of context parallelism: ``ring``, ``zigzag`` or ``ulysses``; empty if each rank has whole sequences."""
    padding: tuple[tuple[str, int], ...] = ()
    """(role of a module, bytes of padding in its sharded parameters); empty if parameters are not sharded."""
    keeps: bool = True
    """Whether the rank caches the new tokens of decode steps."""
    by_heads: bool = False
    """Whether each rank that shares a sequence attends to all positions with some heads, and caches these heads."""
    tables: tuple[int, ...] = (1, 1)
    """Number of rotary tables that the layers of the model read, and that those of each pipeline stage read."""
    uneven: bool = False
    """Whether ranks have unequal numbers of sequences, because ``dp`` does not divide the batch."""
    last_logits: bool = False
    """Whether only the last position of a prompt has logits."""
    turns_pairs: bool = False
    """Whether rotary embedding rotates pairs of elements, see :attr:`DecoderStyle.pairs`."""
    cache: CacheShares = IN_DTYPE_OF_RUN
    """Bytes of the cache in its format for each byte in the dtype of the run, see
    :func:`~costproof.models.cache_dtype.cache_share`."""
    absorbs: bool = False
    """Whether decode steps of latent attention absorb the expansion of latents."""
    windows: tuple[frozenset[int], ...] = ()
    """Window lengths of the layers of the model, then of each pipeline stage, whose eager attention is given masks: one
    mask for each length. Empty if no masks are given."""
    shares_table: bool = False
    """Whether the output projection reads the table of the embedding, on one device."""
    capped_logits: bool = False
    """Whether logits pass a soft cap."""
    mixtures: int = 0
    """Number of the model's layers with routed experts."""
    biased_experts: bool = False
    """Whether experts have biases, see :class:`~costproof.analytic.experts.ClampedExperts`."""
    gathered_weights: bool = False
    """Whether the kernel of the experts gathers the weights of each row (``batched_mm``)."""

    @classmethod
    def of(
        cls, config: SharedDecoder, workload: Workload, plan: ShardPlan, style: DecoderStyle | None = None
    ) -> Shards:
        """Return the shards of the rank that the workload selects."""
        latent = getattr(config, "kv_rank", 0) > 0
        out = "out" in style.bias if style is not None else False
        biased = {
            "text.layer.attention.out": bool(config.attention_bias) if latent else out,  # type: ignore[attr-defined]
            "text.layer.mlp.down": style is not None and style.mlp_bias,
        }
        wide = [(role, config.hidden) for role, has in biased.items() if has and _REDUCED[role] in plan.split]
        if style is not None and style.clamped_experts and "experts" in plan.split and workload.mesh.ep == 1:
            wide.append(("text.layer.experts", config.hidden * int(getattr(config, "experts", 0))))
        mesh = workload.mesh
        return cls(
            plan, mesh, config.kv_heads, latent, config.hidden, tuple(wide), vocab=config.vocab,
            wide_weights=style is None or style.routing is None or not style.routing.narrow,
            pairs=_pair_names(config, workload), routed=_mixtures(config, style) if mesh.ep > 1 else None,
            stage=(stage := mesh.coordinates(workload.rank).pp), layers=stage_layers(config.layers, mesh.pp, stage),
            tied=config.tied and mesh.pp > 1,
            cp_plan=str(workload.inputs.get(CP_PLAN, "zigzag")) if mesh.cp > 1 else "",
            keeps=workload.keeps_new_tokens or by_heads(config, workload), by_heads=by_heads(config, workload),
            uneven=bool(workload.gathered_batches), tables=_tables(config, style, mesh.pp),
            last_logits=workload.logits == "last", gathered_weights=workload.experts == "batched_mm",
            shares_table=config.tied, windows=_windows(config, mesh.pp) if workload.attention == "eager" else (),
            mixtures=sum(routed_layers(config)), capped_logits=style is not None and style.logits_capped,
            biased_experts=style is not None and style.clamped_experts,
            turns_pairs=style is not None and style.pairs, cache=cache_share(workload, latent=latent),
            absorbs=workload.inputs.get("decoding") == "absorbed",
        )  # fmt: skip

    @property
    def exchanges(self) -> bool:
        """Return whether ranks send (token, expert) pairs to the expert's rank; otherwise they gather all tokens."""
        return bool(self.pairs)

    def exchanged(self, layer: int) -> tuple[Size, Size] | None:
        """Return the pairs that the rank sends and gets in a layer, by its index among those with experts."""
        if not self.pairs:
            return None
        sent, got = self.pairs[layer]
        return sym(sent), sym(got)

    @property
    def slices(self) -> Size:
        """Return into how many slices the ranks along ``tp`` divide their tokens to send them; 1 if each has all."""
        return sym("tp") if self.exchanges and self.mesh.tp > 1 else 1

    @property
    def gathers(self) -> bool:
        """Return whether ranks gather each other's tokens for their experts."""
        return self.mesh.batches > 1 and not self.exchanges

    @property
    def batches(self) -> Size:
        """Return the number of gathered tokens for the experts, divided by the number of the rank's own tokens.

        Branches: ranks have equal batches, or not.
        """
        if not self.gathers:
            return 1
        return sym("ep_sequences") / sym("B") if self.uneven else sym("ep") / sym("tp")

    @property
    def origin(self) -> str:
        return self.plan.source if self.mesh.fsdp == 1 else FULLY_SHARD

    def axis_of(self, role: str, kind: str) -> str:
        """Return the mesh axis, or combination of axes, over which a module runs a kind of collective."""
        if self.mesh.fsdp > 1 and role in GATHERED_BEFORE:
            return "fsdp" if self.mesh.cp == 1 else FSDP_CP
        if role in ("text", "text.layer.attention"):
            return "pp" if role == "text" else "cp"
        if role != "text.layer.experts" or self.mesh.ep == 1:
            return "tp"
        if self.exchanges and self.mesh.tp > 1:
            return "tp" if kind == "all_gather" else "ep"
        if self.mesh.batches == 1:
            return "ep"
        return "tp" if kind == "all_reduce" else EP_BATCHES

    def added(self, role: str) -> tuple[int, str]:
        """Return the elements that the ranks of one batch add to a module's on one device, and their name.

        Each rank has a bias whole that is added to sums over ranks. The last stage has a copy of a tied table.
        """
        if role == "text.embedding" and self.tied:
            times = 1 if "head" in self.plan.split else self.mesh.tp
            rows = _padded(self.vocab, self.plan.multiple) if times == 1 else self.vocab
            return times * rows * self.hidden, TIED
        return (self.mesh.tp - 1) * dict(self.biased).get(role, 0), BIASES

    @property
    def last(self) -> bool:
        """Return whether the rank belongs to the last pipeline stage, which has the last norm and output projection."""
        return self.stage == self.mesh.pp - 1

    def of_stage(self, parts: Iterable[ModulePart], call: StackCall) -> Iterator[ModulePart]:
        """Yield the modules of the rank's pipeline stage; every stage except the last sends its result.

        Every stage computes the cosines and sines of its own queries and keys.
        """
        from costproof.analytic.collectives import Send

        for part in (self._of_sequence(part, call) for part in parts):
            if part.role == "text" and not self.last:
                yield replace(part, layers=(Send(call.rows * sym("text_hidden"), call.item_bytes),))
            elif part.role.startswith("text.layer"):
                if part.i in self.layers:
                    yield part
            elif part.role == "text.embedding":
                if self.stage == 0:
                    yield part
            elif part.role not in ("text.norm", "lm_head") or self.last:
                yield part

    def _of_sequence(self, part: ModulePart, call: StackCall) -> ModulePart:
        """Return the part with attention limited to the rank's positions, if ranks share a sequence.

        Branches: in a decode step another rank may keep the new token.
        """
        if not self.cp_plan:
            return part
        from costproof.analytic.attention import Attention
        from costproof.analytic.latent_attention import AbsorbedAttention, LatentAttention
        from costproof.analytic.linear import Linear
        from costproof.analytic.norms import RmsNorm
        from costproof.analytic.shared_sequence import AttentionOfParts, RingAttention, StepOfHeads, UlyssesAttention

        local, *others = part.layers
        if call.past == CONTEXT and not self.keeps:
            match part.role.removeprefix("text.layer.attention."), local:
                case "v", Linear():
                    local = replace(local, read=False)
                case "kv_norm", RmsNorm():
                    local = replace(local, read=False)
                case "kv_up", Linear():
                    # All of a context that does not grow is cached: what absorbing saves has no part of a new token.
                    own = sym("cp_tokens")
                    saved = sympy.expand(local.skippable).coeff(CONTEXT) * own
                    local = replace(local, rows=call.batch * own, skippable=saved, cached=True)
        if not isinstance(local, Attention | LatentAttention | AbsorbedAttention):
            return replace(part, layers=(local, *others))
        if isinstance(local, Attention):
            kv_heads, key_dim, value_dim = local.kv_heads, local.head_dim, local.value_dim or local.head_dim
        elif isinstance(local, AbsorbedAttention):  # which adds latents, before their projection
            kv_heads, key_dim, value_dim = 1, local.rank + local.rope, local.rank
        else:
            kv_heads, key_dim, value_dim = local.heads, local.nope + local.rope, local.value_dim
        batch, heads, b, ranks = local.batch, local.heads, local.item_bytes, sym("cp")
        sizes = (local, batch, local.queries, heads, kv_heads, key_dim, value_dim, ranks)
        shared: Layer
        if isinstance(local, Attention) and self.by_heads:
            own = replace(
                local,
                queries=local.queries * (1 if call.past == CONTEXT else ranks),
                heads=heads / ranks,
                kv_heads=kv_heads / ranks,
            )
            if call.past == CONTEXT:
                shared = StepOfHeads(own, batch, heads, kv_heads, key_dim, value_dim, ranks, b)
            else:
                shared = UlyssesAttention(own, *sizes[1:], b)
        elif call.past == CONTEXT:
            elsewhere: Size = 0
            if not self.keeps and isinstance(local, LatentAttention | AbsorbedAttention):
                local, elsewhere = replace(local, past=sym("cp_tokens"), elsewhere=True), batch * local.rope
            elif not self.keeps and isinstance(local, Attention):
                local = replace(local, past=sym("cp_tokens"), new_keys=0, causal=False, cached=False)
                elsewhere = batch * kv_heads * key_dim
            shared = AttentionOfParts(local, batch, heads, value_dim, ranks, b, elsewhere)
        elif self.cp_plan == "ulysses":
            shared = UlyssesAttention(*sizes, b, of_latents=True)
        else:
            shared = RingAttention(*sizes, sym("cp_place") - 1, b, self.cp_plan == "zigzag")
        return replace(part, layers=(shared, *others))

    def border(self, call: StackCall, out: Size) -> Size:
        """Return the elements that enter and leave the rank's pipeline stage: hidden states, or ``out`` at the end."""
        hidden = call.rows * sym("text_hidden")
        return (hidden if self.stage > 0 else 0) + (out if self.last else hidden)

    def padding_of(self, role: str, metric: str, cost: int) -> tuple[int, str]:
        """Return the cost that padding of the ranks' parts adds to that of one device, and its name."""
        if self.mesh.fsdp > 1:
            more = dict(self.padding)[role] if metric == "weight_bytes" else 0
            return more, "padding of the parts that ranks store"
        more = _padded(self.vocab, self.plan.multiple) - self.vocab
        part = part_of(role)
        padded = part in ("embedding", "head") and part in self.plan.split and metric != "buffer_bytes"
        return cost * more // self.vocab if padded and more else 0, "padding of the vocabulary"

    def of_part(self, size: Size, part: Part) -> Size:
        """Return a rank's share of a number of heads or of an inner width."""
        return size / sym("tp") if self.mesh.tp > 1 and self.splits(part) else size

    def splits(self, part: Part) -> bool:
        """Return whether the widths of a part are split over ranks; under ``ep`` each expert is whole on one rank."""
        return part in self.plan.split and not (part == "experts" and self.mesh.ep > 1)

    def own_kv_heads(self, size: Size) -> Size:
        """Return the number of key/value heads on a rank.

        Branches: with fewer heads than ranks, each rank has one head, and several ranks have the same one.
        """
        return 1 if self.copies > 1 else self.of_part(size, "attention")

    @property
    def copies(self) -> int:
        """Return how many ranks hold a copy of the same key/value head."""
        return max(1, self.mesh.tp // self.kv_heads) if "attention" in self.plan.split else 1

    def held_by(self, role: str, metric: str) -> tuple[int, str]:
        """Return the sum of a cost over a ``tp`` group, relative to one device, and the name of copies.

        Args:
            role: of a module, as formulas name it.
            metric: parameters or bytes that are held, or FLOPs.
        """
        if metric == "buffer_bytes":
            return self.mesh.tp * (self.mesh.pp if role == "text.rotary" else 1), _BUFFERS
        of_kv = role.endswith((".attention.k", ".attention.v")) or (
            role.endswith(".attention") and metric == "kv_cache_bytes" and not self.latent
        )
        part = part_of(role)
        if part == "experts" and self.mesh.ep > 1:
            return self._of_experts(metric)
        latent = self.latent and (metric == "kv_cache_bytes" or role.endswith(_LATENTS))
        if latent or part is None or part not in self.plan.split:
            return self.mesh.tp, _why_whole(role, part, latent=latent)
        return (self.copies, KV_COPIES) if of_kv else (1, "")

    def by_terms(self) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
        """Return the metrics of memory and of work whose duplicates :meth:`excess` gives, on this mesh."""
        held = OF_MEMORY[:1] if self.mesh.fsdp > 1 else OF_MEMORY
        return held, () if self.exchanges and self.mesh.tp > 1 else OF_WORK  # ranks along tp send pairs of their own

    def added_by_collectives(
        self, one: Ledger, stage: str, metric: str, item: int, stored: int
    ) -> Iterator[tuple[str, int]]:
        """Yield what collectives add to a cost of all ranks, and copies of a tied table, by cause.

        Args:
            one: evaluated formulas of one device.
            item: bytes of an element.
            stored: bytes of parameters that all ranks together store.
        """
        tp = self.mesh.tp

        def total(role: str, of: str) -> int:
            found = bearing((n for n in one.nodes if n.role == role and (not stage or n.stage == stage)), of)
            return sum(n.cost(of) or 0 for n in found)

        if metric == "weight_read_bytes" and self.mesh.fsdp > 1:
            yield "parts of parameters that ranks read to gather them", stored * _calls(one, stage)
        if metric == UNFUSED and self.mesh.fsdp > 1:  # copied to a buffer, gathered, and put together from all parts
            yield "parts of parameters that ranks read to gather them", stored * _calls(one, stage)
            yield "copies of gathered parameters", (2 + 2 * self.mesh.stored_parts) * stored * _calls(one, stage)
        if metric in OF_MEMORY and self.tied:
            held = total("text.embedding", metric)
            if metric == "resident_bytes":
                held -= total("text.embedding", "buffer_bytes")
            rows = _padded(self.vocab, self.plan.multiple)
            every = held * rows // self.vocab if "head" in self.plan.split else held * tp
            yield TIED, every
            yield SEQUENCE_COPIES, every * (self.mesh.cp - 1)
            yield DATA_COPIES, every * self.mesh.cp * (self.mesh.dp * self.mesh.fsdp - 1)

    def excess(
        self, role: str, metric: str, expr: str, one: SymbolValues, ranks: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.excess`, by cause.

        It is the formula of one device at a rank's own numbers of the sizes that ranks divide, summed over ranks, less
        the cost of one device; and of that sum what is left without these sizes, which each rank has in full.
        """
        formula, mesh, tp = compile_expression(expr), self.mesh, self.mesh.tp

        def cost(values: SymbolValues) -> int:
            return int(formula.run(values))

        part, own = part_of(role), self._own_sizes(role, metric, one)
        if self._divides_tokens(role, metric, one):
            own = tuple({**sizes, "S": one["S"] // tp} for sizes in own)
        absent, alone = dict.fromkeys(own[0], 0), cost(one)

        def of_group(values: SymbolValues) -> int:
            return sum(cost({**values, **sizes}) for sizes in own)

        if part == "experts" and self.exchanges and metric in ("weight_read_bytes", UNFUSED):
            return  # of pairs, of which a rank has its own number: all of :meth:`moved`
        if part == "experts" and mesh.batches > 1 and (metric in OF_MEMORY or not self.exchanges):
            yield from self._copies_of_shared(role, metric, cost, one, ranks, of_group)
            return
        whole, every, heads = cost({**one, **absent}), of_group(one), 0
        if "text_kv_heads" in own[0] and self.copies > 1:
            named = ({**one, **absent, "text_kv_heads": n} for n in (own[0]["text_kv_heads"], one["text_kv_heads"]))
            of_rank, of_all = (cost(values) - whole for values in named)
            heads = tp * of_rank - of_all
            yield KV_COPIES, heads
        yield self._of_format(role, metric, whole) or self._repeated(role, metric), (tp - 1) * whole
        yield self._uneven(part, metric), every - alone - (tp - 1) * whole - heads
        again = sum(map(of_group, ranks)) - every
        if mesh.cp > 1 and role == "text.layer.attention" and metric in OF_WORK:

            def group(of: SymbolValues, parts: int) -> int:
                known = [{**of, **sizes} for sizes in own]
                return sum(cost({**x, **{name: x[name] // parts for name in _HEADS if name in x}}) for x in known)

            again, skipped = self._of_core(one, ranks, group, lambda of: cost({**of, **dict.fromkeys(_HEADS, 0)}))
            yield SKIPPED, skipped
        # Ranks that share a sequence have one part of the batch, and would do the same work on whole sequences.
        known = ({**one, "B": of["B"]} if "B" in of else one for of in ranks)
        data = sum(map(of_group, known)) - mesh.cp * every if mesh.cp > 1 else again
        yield DATA_COPIES, data
        yield SEQUENCE_COPIES, again - data
        if role == "text.rotary" or (metric == "calls" and role in ("root", "text")):
            alone, *stages = self.tables if metric == "output_bytes" else (1,) * (mesh.pp + 1)
            further = Fraction(sum(stages) - alone, alone)
            for why, amount in (
                (self._repeated(role, metric), every), (DATA_COPIES, data), (SEQUENCE_COPIES, again - data),
            ):  # fmt: skip
                yield why, int(amount * further)
            if metric == UNFUSED and len({*self.tables}) > 1:  # a stage makes all tables, and reads some
                unread = mesh.pp * self.tables[0] - sum(self.tables[1:])
                table = 2 * sum(_positions(of) for of in ranks) * one["text_head_dim"] * one["b"]
                yield UNREAD, -tp * unread * table
        if role == "lm_head" and metric == "output_bytes" and "head" in self.plan.split:
            padded = _padded(self.vocab, self.plan.multiple)
            logits = sum(of["B"] * self._positions_kept(of) for of in ranks) * one["b"]
            yield GATHERED_LOGITS, (tp - 1) * padded * logits
            yield self._uneven(part, metric), tp * (tp * -(-padded // tp) - padded) * logits

    def _positions_kept(self, of: SymbolValues) -> int:
        """Return the positions of a sequence that get logits in a call of a rank, or in all steps."""
        return of["N"] if "N" in of else 1 if self.last_logits else of["S"]

    def _of_core(
        self, one: SymbolValues, ranks: Sequence[SymbolValues], group: Callable[[SymbolValues, int], int],
        whole: Callable[[SymbolValues], int],
    ) -> tuple[int, int]:  # fmt: skip
        """Return what ranks that share sequences have again of attention, and less, as they skip pairs of it.

        A prompt's cost is a polynomial in its length. Its second differences are the part that pairs of a query and a
        key have, its first ones at no length that of positions. Between them ranks have all pairs or, in a ring, those
        that the mask leaves of each part of the keys; a rank with some heads at all positions reads masks of all of
        them, and tables of its own positions.

        Args:
            group: cost of a ``tp`` group by one device's formula, with a number by which heads are divided further.
            whole: cost on one rank that does not depend on its heads.
        """
        cp, every = self.mesh.cp, group(one, 1)
        if "N" in one:
            return sum(group(of, cp if self.by_heads else 1) for of in ranks) - every, 0

        def pairs(cost: Callable[[SymbolValues], int], of: SymbolValues) -> int:
            ends = (cost({**of, "S": n * of["S"]}) for n in (2, 1, 0))
            return sum(k * end for k, end in zip((1, -2, 1), ends, strict=True)) // 2

        of_all = pairs(lambda of: group(of, 1), one)
        if self.by_heads:
            known = [{**of, "S": cp * of["S"]} for of in ranks]
            ends = [[whole({**of, "S": n * of["S"]}) for n in (2, 1, 0)] for of in known]
            tables = sum(4 * once - twice - 3 * never for twice, once, never in ends) // 2
            tables = self.mesh.tp * (tables - tables // cp)
            return sum(group(of, cp) for of in known) - every - tables, 0
        own = sum(pairs(lambda of: group(of, 1), of) for of in ranks)
        skipped = 0 if self.cp_plan == "ulysses" else of_all * (cp - 1) // (2 * cp)
        return sum(group(of, 1) for of in ranks) - every + of_all - own, -skipped

    def moved(
        self, role: str, metric: str, one: SymbolValues, ranks: Sequence[SymbolValues], modules: int
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.moved`, by cause.

        Every access of a collective to a tensor is counted by the tensor's shape. A tensor of hidden states has as many
        rows as the rank's call has tokens.
        """
        if role != "lm_head" and not role.startswith("text"):
            return
        if self.exchanges and role == "text.layer.experts":
            yield from self._of_pairs(metric, one, ranks)
            return
        found = [*self._of_collectives(role, one, ranks)] if metric == UNFUSED else []
        if role == "text" and metric == "input_bytes":
            found += [
                (SENT, (self.mesh.pp - 1) * self.mesh.tp * sum(map(_rows, ranks)) * one["text_hidden"] * one["b"])
            ]
        if (
            metric == "vector_flops"
            and self.mesh.tp > 1
            and dict(self.biased).get(role)
            and role != "text.layer.experts"
        ):
            parts = self.mesh.tp if self.plan.sequence and "N" not in one else 1
            found += [(BIASES, self.mesh.tp * sum(map(_rows, ranks)) * one["text_hidden"] // parts)]
        if self.mesh.cp > 1 and role.startswith("text.layer.attention"):
            for of in ranks:
                found += self._of_shared_sequence(role, metric, of)
        if role == "text.layer.mlp" and role in self._reduced:  # which has the sum of a mixture, not of other layers
            modules = self.mixtures
        for why, amount in found:
            yield why, modules * amount

    def _of_shared_sequence(self, role: str, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what attention to a shared sequence adds to a cost of the ranks of a ``tp`` group, by cause."""
        core, prompt = role == "text.layer.attention", "N" not in of
        if not prompt and not self.by_heads and of["cp_place"] < self.mesh.cp:
            yield from self._of_token_elsewhere(role, metric, of)
        if not core:
            return
        if prompt and self.cp_plan == "ulysses":
            if metric == UNFUSED:  # put in order, exchanged and joined
                heads, kv_heads, wide = self._heads(of)
                yield FOR_POSITIONS, 6 * _rows(of) * (heads + kv_heads) * wide * of["b"]
        elif prompt:
            yield from self._of_ring(metric, of)
        elif self.by_heads:
            yield from self._of_step_of_heads(metric, of)
        else:
            heads, _, _ = self._heads(of)
            rows = _rows(of) * heads
            width = of["text_head_dim"] if not self.latent else of["text_kv_rank"] if self.absorbs else of["text_value"]
            if metric == "vector_flops":
                yield MERGED, rows * (4 * self.mesh.cp + 4 + width)
            elif metric == UNFUSED:
                yield MERGED, rows * (4 * of["b"] * width + 36 + 8 * self.mesh.cp)

    def _heads(self, of: SymbolValues) -> tuple[int, int, int]:
        """Return the query and key/value heads of the ranks of a ``tp`` group, and the width of a key and a value."""
        tp = self.mesh.tp
        heads, kv_heads = tp * of["text_heads"], tp * self.kv_heads
        if self._splits("attention"):
            heads, kv_heads = of["text_heads"], tp * max(1, self.kv_heads // tp)
        if self.latent:
            return heads, heads, of["text_nope"] + of["text_rope"] + of["text_value"]
        return heads, kv_heads, 2 * of["text_head_dim"]

    def _of_ring(self, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what a ring adds to a prompt's cost, counted in halves of a rank's positions, step by step.

        In each step a rank attends to the part of keys that has arrived: not at all, with half of its queries, or to
        half of the keys.
        """
        heads, kv_heads, both = self._heads(of)
        cp, at, half = self.mesh.cp, of["cp_place"] - 1, _rows(of)  # twice as many halves
        key = of["text_nope"] + of["text_rope"] if self.latent else of["text_head_dim"]
        value = both - key
        zigzag = self.cp_plan == "zigzag"
        seen = [
            ((2, 1) if zigzag else (2, 2)) if source < at else (1, 2) if zigzag else (0, 0)
            for source in range(cp)
            if source != at
        ]
        merged = sum(queries for queries, _ in seen)  # halves of queries
        if metric == "vector_flops":
            yield MERGED, merged * half * heads * (3 * value + 8) // 2
        if metric != UNFUSED:
            return
        item, later = of["b"], sum(queries == 1 for queries, _ in seen)
        read = sum(queries * heads * key + (keys * kv_heads * both if queries else 0) for queries, keys in seen)
        yield READ_AGAIN, read * half * item // 2
        steps = 4 * (cp - 1) - (0 if zigzag or at == cp - 1 else 1)  # nothing reads what arrives last
        yield PASSED, steps * _rows(of) * kv_heads * both * item
        rows = half * heads
        joins = later * 8 * rows * (value + 1)
        narrow = (5 + min(1, at)) if zigzag else 6 * min(1, at)  # halves of accesses before, and behind, float32
        merges = merged * rows * ((28 + 2 * item) * value + 60) // 2
        yield MERGED, merges + joins - (4 - item) * narrow * rows * value // 2

    def _of_step_of_heads(self, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what a rank with some heads adds to a step's cost: it turns all heads, and gathers results."""
        heads, kv_heads, both = self._heads(of)
        cp, item, width = self.mesh.cp, of["b"], both // 2
        turned, result = (_rows(of) * n * width for n in (heads + kv_heads, heads))
        others = turned - turned // cp
        if metric == "vector_flops":
            yield TURNED, 3 * others if self.turns_pairs else 7 * others // 2
        elif metric == "input_bytes":
            yield TURNED, others * item
        elif metric == "output_bytes":
            yield GATHERED_HEADS, (result - result // cp) * item
        elif metric == UNFUSED:
            yield TURNED, others * item * (9 if self.turns_pairs else 10)
            yield GATHERED_HEADS, (result - result // cp + 2 * (result + result // cp)) * item

    def _of_token_elsewhere(self, role: str, metric: str, of: SymbolValues) -> Iterator[tuple[str, int]]:
        """Yield what ranks of a ``tp`` group that do not cache the new tokens have less than with these.

        In step i they have i + 1 keys less.
        """
        batch, steps, past, item = of["B"], of["N"], of["P"], of["b"]
        part = role.removeprefix("text.layer.attention").removeprefix(".")
        heads, kv_heads, both = self._heads(of)
        new, fewer, before = batch * steps, batch * steps * (steps + 1) // 2, batch * steps * (steps - 1) // 2
        old = new * past
        keys = old + fewer  # with the new ones
        fewer_of: dict[str, int] = {}  # elements that the rank has less, by metric
        cached = joined = 0  # elements that it does not cache, and further ones that it does not move
        latents: dict[str, int] = {}  # elements of cached latents that the projection reads, by metric
        tp, rank, rope = self.mesh.tp, of.get("text_kv_rank", 0), of.get("text_rope", 0)
        if part == "" and self.latent:
            fewer_of = {"vector_flops": 6 * fewer * heads, "input_bytes": tp * new * rank,
                        "kv_read_bytes": tp * before * (rank + rope)}  # fmt: skip
            cached = tp * new * (rank + rope)
            if self.absorbs:
                joined = tp * (keys * (5 * rank + 4 * rope) - old * (3 * rank + 2 * rope) + 2 * new * rope)
            else:
                expanded, width = of["text_nope"] + of["text_value"], of["text_nope"] + rope
                fewer_of["input_bytes"] += fewer * heads * expanded
                fewer_of["output_bytes"] = tp * keys * rank
                latents = {"kv_read_bytes": -tp * old * rank}
                joined = 2 * (fewer * heads * width + tp * keys * rope) + 2 * tp * new * rope
        elif part == "":
            values, cached = new * kv_heads * both // 2, new * kv_heads * both
            fewer_of = {
                "vector_flops": 6 * fewer * heads,
                "input_bytes": values,
                "kv_read_bytes": before * kv_heads * both,
            }
            joined = 2 * keys * kv_heads * both + 2 * values
        elif part == "v":
            fewer_of = {"output_bytes": new * kv_heads * both // 2}
        elif part == "kv_norm":
            fewer_of = {"output_bytes": tp * new * rank}
        elif part == "kv_up" and not self.absorbs:
            fewer_of = {"input_bytes": tp * fewer * rank,
                        "output_bytes": fewer * heads * (of["text_nope"] + of["text_value"])}  # fmt: skip
            latents = {"input_bytes": -tp * old * rank, "kv_read_bytes": tp * old * rank}
        if metric == "vector_flops":
            yield SEQUENCE_COPIES, -fewer_of.get(metric, 0)
            return
        sizes = {sym(name): n for name, n in of.items()}
        share, of_latents = (
            Fraction(str(sympy.sympify(one).xreplace(sizes))) for one in (self.cache.whole, self.cache.latents)
        )
        shares = {"input_bytes": Fraction(1), "output_bytes": Fraction(1), "kv_read_bytes": share}
        apart = {**shares, "kv_read_bytes": of_latents}
        if metric == UNFUSED:
            less = sum(n * fewer_of.get(m, 0) for m, n in shares.items()) + share * cached + joined
            yield SEQUENCE_COPIES, -int(item * less)
            yield FROM_CACHE, int(item * sum(n * latents.get(m, 0) for m, n in apart.items()))
        elif metric in shares:
            yield SEQUENCE_COPIES, -int(item * shares[metric] * fewer_of.get(metric, 0))
            yield FROM_CACHE, int(item * apart[metric] * latents.get(metric, 0))

    def _of_collectives(self, role: str, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what the collectives of one module add to its unfused bytes on all ranks, by cause."""
        mesh, tp, item, width = self.mesh, self.mesh.tp, one["b"], one["text_hidden"]
        states = [tp * _rows(of) * width * item for of in ranks]
        state, prompt = sum(states), "N" not in one
        if role == "text":
            yield SENT, (mesh.pp - 1) * state
        if role.endswith(".kv_down") and self.latent and self._splits("attention") and self.plan.name == OWN:
            rows = sum(map(_rows, ranks))
            yield JOINED, 2 * tp * rows * (one["text_kv_rank"] + one["text_rope"]) * item
        if role == "lm_head" and self._splits("head"):
            yield GATHERED_LOGITS, sum(map(self._of_gathered_logits, ranks))
        tokens = self.plan.sequence and tp > 1 and prompt
        ordered = [of["B"] == 1 for of in ranks]  # parts of several sequences are put in order
        if role in _BEFORE_SPLIT and tokens:  # a part is read, and all of them are written
            yield (
                GATHERED_STATES,
                sum(n + n // tp + (0 if one else 2 * n) for n, one in zip(states, ordered, strict=True)),
            )
        if role in self._reduced:
            if tokens:  # of whose sum each rank gets a part
                yield SUMMED, 2 * sum(n if one else 2 * n for n, one in zip(states, ordered, strict=True))
                yield ELSEWHERE, state // tp - state
            elif tp > 1:
                yield SUMMED, 2 * state
            if dict(self.biased).get(role) and tp > 1 and role != "text.layer.experts":
                yield BIASES, 2 * state // (tp if tokens else 1)
            if role == "text.embedding":
                calls = sum(of.get("N", 1) for of in ranks)
                yield ZEROS, 2 * (state + tp * calls * item)
        if role == "text.layer.experts" and mesh.ep > 1:
            yield from self._of_divided_experts(one, ranks)

    def _of_pairs(self, metric: str, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what the exchange of pairs adds to a cost of all mixtures on all ranks, by cause.

        As many pairs arrive at all ranks together as are sent, so what is linear in the number of pairs is the same as
        on one device. Each expert is read by its rank only, if any pair arrives; a kernel gets weights of 1 in the
        dtype of the run, and the rank that sent a pair weighs its result.
        """
        tp, item, ep = self.mesh.tp, one["b"], self.mesh.ep
        weight, width, inner, top_k = (
            4 if self.wide_weights else item,
            one["text_hidden"],
            one["text_moe"],
            one["text_topk"],
        )
        experts, calls = one["text_experts"], one.get("N", 1)
        layers = len(self.pairs)
        sent = [_rows(of) // calls * top_k for of in ranks]  # in one call, as the other numbers of pairs
        arrived = [[n - of[away] + of[here] for n, of in zip(sent, ranks, strict=True)] for away, here in self.pairs]
        pairs = calls * tp * layers * sum(sent)
        if metric == "vector_flops":
            yield WEIGHED, 2 * pairs * width
        if metric not in ("weight_read_bytes", UNFUSED):
            return
        chosen = tp * sum(min(experts // ep, n) for layer in arrived for n in layer)
        chosen -= layers * min(experts, _rows(one) // calls * top_k)
        yield self._uneven("experts", "weight_read_bytes"), calls * chosen * 3 * width * inner * item
        if metric == UNFUSED:
            rows = calls * tp * sum(map(sum, arrived))
            state = width * item
            yield (
                WEIGHED,
                2 * pairs * width * weight
                - (weight - item) * rows * (2 * width + 2 * (1 + width) * (not self.gathered_weights)),
            )
            yield EXCHANGED, 8 * pairs * state + 4 * rows * state
            yield OVERWRITTEN, 2 * rows * item * (2 if self.gathered_weights else 1 + 2 * width + 2 * inner)

    @property
    def _reduced(self) -> frozenset[str]:
        """Return the roles of the modules whose results the ranks of a ``tp`` group add up."""
        found = {role for role, part in _REDUCED.items() if self._splits(part)}
        found |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        if self.plan.joint and "text.layer.experts" in found:
            return frozenset(found - {"text.layer.experts", "text.layer.shared.down"} | {"text.layer.mlp"})
        return frozenset(found)

    def _splits(self, part: Part) -> bool:
        return self.mesh.tp > 1 and part in self.plan.split

    def _of_gathered_logits(self, of: SymbolValues) -> int:
        """Return the bytes by which gathering logits adds to the unfused bytes of all ranks of a ``tp`` group.

        Each reads a chunk of columns, which it has padded before if its own are fewer, and writes the chunks of all;
        several rows are read and written once more, to join the chunks.
        """
        tp, rows = self.mesh.tp, of["B"] * self._positions_kept(of)
        padded = _padded(self.vocab, self.plan.multiple)
        columns = -(-padded // tp)
        one_row = of["B"] == 1 and ("N" in of or self.last_logits or of["S"] == 1)
        found = 0
        for rank in range(tp):
            start, stop = shard(padded, tp, rank)
            found += columns + tp * columns * (1 if one_row else 3)
            found += (stop - start) + columns if stop - start < columns else 0
        return found * rows * of["b"]

    def _of_divided_experts(self, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what dividing the experts adds to the unfused bytes of a mixture on all ranks."""
        tp, item, size = self.mesh.tp, one["b"], self.mesh.batches
        weight, width, inner, top_k = (
            4 if self.wide_weights else item,
            one["text_hidden"],
            one["text_moe"],
            one["text_topk"],
        )
        tokens = [*map(_rows, ranks)]
        groups = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        every = [sum(group) for group in groups for _ in group]
        wide = weight if self.gathered_weights else 2 * (width + inner) * item
        yield OVERWRITTEN, tp * sum(every) * top_k * 2 * (weight + wide)
        if self.gathers:
            state, weights = width * item, top_k * weight
            yield GATHERED_TOKENS, tp * sum(n * (4 * state + 2 * weights) for n in every)
            others = sum(n - own for n, own in zip(every, tokens, strict=True))
            yield OUTSIDE, -tp * others * (2 * state + weights)

    @property
    def counted_once(self) -> frozenset[str]:
        """Return the roles of modules that read some weights repeatedly, of which :meth:`at_floor` has each once."""
        return frozenset({"text.embedding", *(("text.layer.experts",) if self.biased_experts else ())})

    def at_floor(
        self, nodes: Sequence[CostNode], one: SymbolValues, ranks: Sequence[SymbolValues]
    ) -> Iterator[tuple[str, int]]:
        """Yield the result of :meth:`~costproof.models.target.Sharing.at_floor`, by cause."""
        mesh, tp, item, width = self.mesh, self.mesh.tp, one["b"], one["text_hidden"]
        calls, alone = one.get("N", 1), _rows(one)
        rows = [*map(_rows, ranks)]
        yield SENT, 2 * (mesh.pp - 1) * tp * sum(rows) * width * item
        # Rows of the table that are looked up, each once, unless the output projection reads all of them.
        per_call = [of["B"] * (1 if "N" in of else of["S"]) for of in (one, *ranks)]
        first = 0 if self.shares_table else min(per_call[0], self.vocab)
        parts = [b - a for a, b in (shard(_padded(self.vocab, self.plan.multiple), tp, rank) for rank in range(tp))]
        parts = parts if self._splits("embedding") else [self.vocab] * tp
        lent = self.shares_table and mesh.pp == 1
        looked_up = 0 if lent else sum(min(n, entries) for n in per_call[1:] for entries in parts)
        yield LOOKED_UP, (looked_up - first) * calls * width * item
        corrected = sum(n.role == "text.layer.router" and "buffer_bytes" in n.exprs for n in nodes)
        yield "routers", corrected * (tp * sum(of.get("N", 1) for of in ranks) - calls) * 4 * one.get("text_experts", 0)
        if self.biased_experts:
            yield from self._of_biased_experts(one, ranks)
        # Logits.
        positions = [of["B"] * self._positions_kept(of) for of in ranks]
        kept = one["B"] * self._positions_kept(one)
        yield SEQUENCE_COPIES, (sum(positions) - kept) * self.vocab * item
        yield GATHERED_LOGITS, (tp - 1) * sum(positions) * self.vocab * item
        padded = _padded(self.vocab, self.plan.multiple)
        if self._splits("head") and not self.capped_logits:
            columns = tp * -(-padded // tp)
            yield self._uneven("head", FLOOR), tp * sum(positions) * (columns - self.vocab) * item
        # Masks of eager attention.
        for window in self.windows[0] if self.windows else ():
            copies = tp * sum(window in stage for stage in self.windows[1:])
            known = [{**of, "S": mesh.cp * of["S"]} if self.by_heads and "S" in of else of for of in ranks]
            masks = copies * sum(_mask(of, window) for of in known) - _mask(one, window)
            yield MASKS, masks * item
        # Features of images enter and leave the module around the decoder, with the prompt.
        around = [n for n in nodes if n.role == "model" and not n.kind]
        moved = sum((n.cost("input_bytes") or 0) + (n.cost("output_bytes") or 0) for n in around)
        if moved:
            yield FEATURES, (tp - 1) * (moved - 2 * alone * width * item)

    def _of_biased_experts(self, one: SymbolValues, ranks: Sequence[SymbolValues]) -> Iterator[tuple[str, int]]:
        """Yield what ranks read more of experts with biases, each of which a floor has once."""
        own = self._own_sizes("text.layer.experts", "", one)

        def read(of: SymbolValues, pairs: int) -> int:
            width, inner, calls = of["text_hidden"], of["text_moe"], of.get("N", 1)
            chosen = min(of["text_experts"], pairs // calls)
            return calls * chosen * (3 * width * inner + 2 * inner + width) * of["b"]

        size = self.mesh.batches if self.gathers else 1
        tokens = [*map(_rows, ranks)]
        pairs = [one["text_topk"] * sum(tokens[i - i % size :][:size]) for i in range(len(tokens))]
        layers = [pairs] * self.mixtures
        if self.pairs:
            calls = one.get("N", 1)
            layers = [
                [n + calls * (of[got] - of[sent]) for n, of in zip(pairs, ranks, strict=True)]
                for sent, got in self.pairs
            ]
        every = ((of, n) for layer in layers for of, n in zip(ranks, layer, strict=True))
        of_all = sum(read({**of, **sizes}, n) for of, n in every for sizes in own)
        yield EXPERTS, of_all - self.mixtures * read(one, one["text_topk"] * _rows(one))

    def _divides_tokens(self, role: str, metric: str, one: SymbolValues) -> bool:
        """Return whether ranks divide the tokens of what a prompt costs in a module (sequence parallelism)."""
        if not self.plan.sequence or self.mesh.tp == 1 or "N" in one or metric not in OF_WORK:
            return False
        if metric == "output_bytes" and role in _REDUCED:  # which end with a reduce-scatter
            return True
        return role in OF_OWN_TOKENS and not (metric == "output_bytes" and role in _BEFORE_SPLIT)

    def _copies_of_shared(
        self, role: str, metric: str, cost: Callable[[SymbolValues], int], one: SymbolValues,
        ranks: Sequence[SymbolValues], of_group: Callable[[SymbolValues], int],
    ) -> Iterator[tuple[str, int]]:  # fmt: skip
        """Yield the result of :meth:`excess` for experts that ranks with several batches share.

        A rank's experts process the tokens of all these batches; what enters and leaves the module are its own tokens.
        """
        size = self.mesh.batches
        groups = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        if metric in OF_MEMORY:
            every = size * of_group(one)
            yield self._uneven("experts", metric), every - cost(one)
            yield DATA_COPIES, (len(groups) - 1) * every
            return
        gathered = [{**of, "B": sum(x["B"] for x in group)} for group in groups for of in group]
        own, rows = 0, sum(map(of_group, gathered))
        if metric in ("input_bytes", "output_bytes") and role == "text.layer.experts":
            outside = [{**of, "text_moe": 0} for of in (*ranks, *gathered, one)]
            own = sum(map(of_group, outside[: len(ranks)]))
            rows -= sum(map(of_group, outside[len(ranks) : -1]))
            alone = cost(outside[-1])
            yield _REPEATED[metric], own - alone
            yield self._repeated(role, metric), rows - cost(one) + alone
            return
        weights = metric in _OF_WEIGHTS
        if metric == UNFUSED:  # what reads no weights depends on the rows only
            none = [{**of, "text_experts": 0} for of in (*gathered, one)]
            of_rows = sum(self.mesh.tp * cost(of) for of in none[:-1]) - cost(none[-1])
            yield self._repeated(role, metric), of_rows
            own, weights = of_rows, True
        yield self._uneven("experts", metric) if weights else self._repeated(role, metric), rows - cost(one) - own

    def _uneven(self, part: Part | None, metric: str) -> str:
        """Return the name of what ranks have more of a divided cost, where parts are not equal shares."""
        if part == "experts" and metric in ("params_active", "weight_read_bytes", UNFUSED):
            return EXPERTS
        padded = part in ("embedding", "head") and self.plan.multiple > 1
        return "padding of the vocabulary" if padded else "padding of uneven shards"

    def _own_sizes(self, role: str, metric: str, sizes: Mapping[str, int]) -> tuple[dict[str, int], ...]:
        """Return, for each rank of a ``tp`` group, its own numbers of the sizes in a module's cost that ranks divide.

        Args:
            role: of a module, as formulas name it.
            metric: of the cost; of a rank's experts at most all are active.
            sizes: numbers of the configuration by symbol.
        """
        tp, ep = self.mesh.tp, self.mesh.ep
        heads = role.endswith((".attention.q_norm", ".attention.k_norm")) and not self.latent
        part = "attention" if heads else part_of(role)
        own: dict[str, int] = {}
        if part == "experts" and ep > 1:
            own = {"text_experts": sizes["text_experts"] // ep}
            if metric == "params_active":
                own["text_topk"] = min(sizes["text_topk"], own["text_experts"])
        elif part not in self.plan.split:
            pass
        elif part == "attention":
            kv_heads = max(1, self.kv_heads // tp)
            own = {"text_heads": sizes["text_heads"] // tp, **({} if self.latent else {"text_kv_heads": kv_heads})}
        elif part in ("embedding", "head"):
            padded = _padded(self.vocab, self.plan.multiple)
            rows = (shard(padded, tp, rank) for rank in range(tp))
            return tuple({"text_vocab": stop - start} for start, stop in rows)
        elif part == "mlp":
            own = {"text_intermediate": sizes.get("text_intermediate", 0) // tp}
        elif part == "experts" or sizes["text_moe"] % tp == 0:
            own = {"text_moe": sizes["text_moe"] // tp}
        else:
            own = {"text_shared": sizes["text_shared"] // tp}
        return (own,) * tp

    def _repeated(self, role: str, metric: str) -> str:
        """Return the name of the part of a module's cost that every rank of a ``tp`` group has in full."""
        part = part_of(role)
        if metric == "calls":
            return "calls of modules that several ranks run"
        if role == "root":
            return "work on the logits of all entries"
        if role in ("text", "text.layer") or (role == "text.layer.mlp" and part in self.plan.split):
            return "additions and other work between modules"
        if part == "experts" and self.mesh.ep > 1 and metric not in _OF_WEIGHTS:
            return ROWS_ELSEWHERE
        if role.endswith(_LATENTS) and self.latent:
            return _why_whole(role, part, latent=True)
        if part is None or part not in self.plan.split:
            return _why_whole(role, part, latent=False)
        if self.latent and role == "text.layer.attention" and metric in ("output_bytes", "kv_read_bytes", UNFUSED):
            return _why_whole(role, part, latent=True)
        if metric in _OF_WEIGHTS:
            return (_BUFFERS if metric in OF_MEMORY else LOOKED_UP) if part == "embedding" else BIASES
        if role == "text.layer.attention" and metric in ("input_bytes", UNFUSED):
            return "tables and masks that the attention of every rank reads"
        return _REPEATED.get(metric, "work of split modules on whole tensors")

    def _of_format(self, role: str, metric: str, whole: int) -> str:
        """Return the name of what a quantised format stores of a module beside its divided parts; empty: nothing."""
        if metric not in OF_MEMORY or self._repeated(role, metric) != BIASES:
            return ""
        biases = dict(self.biased).get(role, 0)
        if not biases:
            return OF_FORMAT
        return "" if whole % biases == 0 and whole // biases in (1, 2, 4) else f"{BIASES}, and {OF_FORMAT}"

    def vocabulary(self, part: Part) -> Size:
        """Return how many vocabulary entries a rank holds of a part, ``embedding`` or ``head``."""
        return sym("text_vocab_rank") if self.mesh.tp > 1 and part in self.plan.split else sym("text_vocab")

    def along_sequence(self, stage: str, role: str, kind: str, metric: str, cost: int) -> tuple[int, str]:
        """Return the cost that ranks that share a sequence add to that of one device, and its name; it may be negative.

        Each rank processes the new token of a step, absorbed projections (``matmul``) included. In a prompt it skips
        the parts of keys after its own positions: of P parts of n positions P (P - 1) / 2 parts of n x n pairs, or as
        many halves.
        """
        ranks, core = self.mesh.cp, role == "text.layer.attention" and kind != "matmul"
        if ranks == 1 or core == (stage == STAGES[1]) or role.endswith(".kv_up"):  # of the own part of latents
            return 0, ""
        if not core:
            return (ranks - 1) * cost if stage == STAGES[1] else 0, SEQUENCE_COPIES
        skipped = cost * (ranks - 1) // (2 * ranks) if metric == "flops" and self.cp_plan != "ulysses" else 0
        return -skipped, SKIPPED

    def dtypes(self, axis: str, kind: str, dtype: str, role: str = "") -> tuple[str, ...]:
        """Return the dtypes of the tensors in one kind of collective of a module, in a run in ``dtype``."""
        if axis == "cp" and kind == "all_gather" and not self.by_heads:  # logarithms of sums
            return ("float32",)
        if role == "text.layer.experts" and kind == "all_gather" and self.exchanges and self.wide_weights:
            return ("float32",)
        if axis != EP_BATCHES and (axis, kind) != ("ep", "all_to_all"):
            return (dtype,)
        gathered = ("int64", *(("float32",) * self.wide_weights))
        return (dtype, *{"all_gather": gathered, "all_to_all": ("int64",)}.get(kind, ()))

    def copies_of_batches(self, role: str, metric: Metric) -> int:
        """Return how many groups of ranks divide the batch, each with the whole module: ``dp``, or fewer for experts.

        Of ranks that store parts of parameters, each has all buffers.
        """
        if metric == "buffer_bytes":
            return self.mesh.dp * self.mesh.fsdp
        shared = part_of(role) == "experts" and self.mesh.ep > 1
        return self.mesh.dp // self.mesh.batches if shared else self.mesh.dp

    def copies_of_sequences(self, metric: Metric) -> int:
        """Return how many ranks that share sequences have a whole module: 1 if they store parts of parameters."""
        return self.mesh.cp if self.mesh.fsdp == 1 or metric == "buffer_bytes" else 1

    def _of_experts(self, metric: str) -> tuple[int, str]:
        """Return the result of :meth:`held_by` for experts, each of which is whole on one rank of a group."""
        if metric in ("flops", KEPT_FLOPS) and not self.exchanges:
            return self.mesh.ep, ROWS_ELSEWHERE
        return 1, ""

    def padded_vocabulary(self) -> Size:
        """Return the number of columns of the decoder's logits, including padding of uneven shards."""
        if self.mesh.tp == 1 or "head" not in self.plan.split:
            return sym("text_vocab")
        if self.plan.multiple > 1:
            return sym("tp") * sym("text_vocab_rank")
        return sym("tp") * sympy.ceiling(sym("text_vocab") / sym("tp"))

    def shares_tokens(self, call: StackCall) -> bool:
        """Return whether ranks divide the tokens of a call between split modules.

        Branches: only of a prompt; a decode step has one token.
        """
        return self.plan.sequence and self.mesh.tp > 1 and call.past != CONTEXT

    def with_collectives(
        self, parts: Iterable[ModulePart], call: StackCall, positions: Size, *, one_row: bool, one_sequence: bool
    ) -> Iterator[ModulePart]:
        """Yield the modules of a decoder with the collectives that the plan adds to them.

        Args:
            positions: positions per sequence that get logits.
            one_row: whether a single position gets logits.
            one_sequence: whether the rank runs a single sequence.
        """
        if self.mesh.tp == self.mesh.ep == 1:
            yield from parts
            return
        from costproof.analytic.collectives import AllGather, AllReduce, Joined, ReduceScatter
        from costproof.analytic.elementwise import Residual
        from costproof.analytic.experts import ClampedExperts, Experts
        from costproof.analytic.linear import Linear

        ranks, width, b = sym("tp"), sym("text_hidden"), call.item_bytes
        elements, split = call.rows * width, self.plan.split if self.mesh.tp > 1 else frozenset[Part]()
        reduced = {role for role, part in _REDUCED.items() if part in split}
        reduced |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        reduced -= {"text.layer.experts"} if self.exchanges else set()
        joint = self.plan.joint and "text.layer.experts" in reduced
        reduced -= {"text.layer.experts", "text.layer.shared.down"} if joint else set()
        latent = self.latent and "attention" in split and self.plan.name == OWN
        done: dict[tuple[str, int], tuple[ModulePart, ModulePart]] = {}
        mixtures = -1
        for part in parts:
            mixtures += part.role == "text.layer.experts"
            key = part.role, id(part.layers)
            if key in done:  # equal layers of the model share their formulas
                yield replace(part, layers=done[key][1].layers)
                continue
            first, *others = part.layers
            if isinstance(first, Experts | ClampedExperts) and self.mesh.ep > 1:
                others += self._of_other_ranks(first, call, mixtures)
            if part.role.endswith(".kv_down") and latent:
                others.append(Joined(call.rows * (sym("text_kv_rank") + sym("text_rope")), b))
            elif part.role in reduced:
                bias = width if isinstance(first, Linear) and first.bias else 0
                first = replace(first, bias=False) if isinstance(first, Linear) else first
                masked = part.role == "text.embedding"
                if self.shares_tokens(call):
                    others.append(ReduceScatter(elements, ranks, b, bias, masked=masked, in_order=one_sequence))
                elif self.mesh.tp > 1:
                    others.append(AllReduce(elements, ranks, b, bias, masked=masked))
            elif part.role == "text.layer.mlp" and joint and isinstance(first, Residual):
                others.append(AllReduce(elements, ranks, b))
            elif part.role in _BEFORE_SPLIT and self.shares_tokens(call):
                own = call.tokens / ranks
                others.append(AllGather(call.batch * width, call.tokens, own, ranks, b, one_sequence))
            elif part.role == "lm_head" and "head" in split:
                own, padded = self.vocabulary("head"), self.plan.multiple > 1
                columns = ranks * own if padded else sym("text_vocab")
                others.append(AllGather(call.batch * positions, columns, own, ranks, b, one_row))
            split_part = replace(part, layers=(first, *others))
            done[key] = part, split_part
            yield split_part

    def steps(self, workload: Workload, call: StackCall) -> RankSteps:
        """Return the rank's steps in a call that affect its memory, besides the layers with its local widths.

        Branches: a pipeline stage, a single row of logits, and columns that fill the rank's chunk.

        Raises:
            Incomplete: ranks share the tokens of a prompt between split modules.
        """
        from costproof.analytic.decoder_memory import RankSteps, SequencePart

        if self.plan.sequence:
            raise Incomplete("no formula gives the live peak of ranks that share tokens", where=self.mesh.text)
        tp, split = self.mesh.tp, self.plan.split if self.mesh.tp > 1 else frozenset[Part]()
        gathered, padded = None, False
        if "head" in split:
            whole = self.padded_vocabulary()
            gathered = sym("text_vocab"), whole, whole / sym("tp")
            start, stop = shard(_padded(self.vocab, self.plan.multiple), tp, self.mesh.coordinates(workload.rank).tp)
            padded = stop - start < -(-_padded(self.vocab, self.plan.multiple) // tp)
        one = call.past == CONTEXT or workload.logits == "last" or workload.text_tokens == 1
        places = {"text.layer.attention.out": "attention", "text.layer.mlp.down": "mlp"}
        at, parted = self.mesh.coordinates(workload.rank).cp, self.cp_plan != "" and not self.by_heads
        return RankSteps(
            masked="embedding" in split,
            gathered=gathered,
            padded=padded,
            one_row=one and workload.own_batch == 1,
            biased=frozenset(places[role] for role, n in self.biased if role in places and n)
            if tp > 1
            else frozenset(),
            rejoined=self.latent and "attention" in split and self.plan.name == OWN,
            layers=self.layers if self.mesh.pp > 1 else None,
            first=self.stage == 0,
            last=self.last,
            sharing=sym("cp") if self.by_heads else None,
            parts=SequencePart(self.cp_plan, self.mesh.cp, at) if parted else None,
            kept=sym("cp_tokens") if parted and call.past == CONTEXT and not self.keeps else None,
        )

    def _of_other_ranks(self, experts: Experts | ClampedExperts, call: StackCall, layer: int) -> Iterator[Layer]:
        """Yield the layers that bring rows of other ranks to the experts, and mask rows of other ranks' experts.

        Args:
            layer: index among the layers with experts.
        """
        from costproof.analytic.collectives import ExchangedPairs, GatheredTokens
        from costproof.analytic.experts import MaskedRows

        width, b = sym("text_hidden"), call.item_bytes
        item = getattr(experts, "weight_item", b)
        yield MaskedRows(experts.rows, width, experts.intermediate, b, item, experts.batched)
        if (pairs := self.exchanged(layer)) is not None:
            sizes = call.rows, width, sym("text_topk"), sym("ep"), sym("text_experts")
            yield ExchangedPairs(*sizes, *pairs, b, 4 if self.wide_weights else b, self.slices)
        elif self.gathers:
            following = call.rows * (sym("ep_next") / sym("B") if self.uneven else 1)
            yield GatheredTokens(call.rows, call.rows * self.batches, following, width, experts.top_k, b, item)


_BEFORE_SPLIT: Final = frozenset({"text.layer.norm1", "text.layer.norm2", "text.norm"})
"""Roles of norms before split modules, after which ranks that share tokens gather the tokens of all."""
OF_OWN_TOKENS: Final = _BEFORE_SPLIT | {"text.layer", "text.layer.norm1_after", "text.layer.norm2_after"}
"""Roles of modules that process only a rank's own tokens if ranks share tokens: norms and additions."""
_REDUCED: Final[Mapping[str, Part]] = {
    "text.embedding": "embedding",
    "text.layer.attention.out": "attention",
    "text.layer.mlp.down": "mlp",
    "text.layer.experts": "experts",
    "text.layer.shared.down": "shared",
}
"""Part of the plan of each module whose results ranks add up, by role."""


SKIPPED: Final = "pairs with keys after a rank's own positions, which it skips"
MERGED: Final = "partial results of attention that ranks merge"
PASSED: Final = "keys and values that ranks pass around a ring"
READ_AGAIN: Final = "queries, keys and values read again for each part"
FOR_POSITIONS: Final = "heads that ranks exchange for positions"
TURNED: Final = "queries and keys of heads that other ranks attend"
GATHERED_HEADS: Final = "results of heads that ranks gather"
FROM_CACHE: Final = "latents that a rank without the new token projects from its cache"
SENT: Final = "hidden states that stages send"
SUMMED: Final = "tensors that ranks add up, read and written by the collective"
ELSEWHERE: Final = "sums for tokens of other ranks, which a rank does not get"
WEIGHED: Final = "results that a rank weighs and adds behind the exchange"
EXCHANGED: Final = "pairs of tokens and experts, copied, exchanged and put in order"
ZEROS: Final = "looked-up rows of other ranks, overwritten with zeros"
JOINED: Final = "latents that are joined again behind a divided projection"
GATHERED_LOGITS: Final = "logits that every rank gathers"
GATHERED_STATES: Final = "hidden states of other ranks that a rank gathers"
GATHERED_TOKENS: Final = "tokens, results and weights of experts that ranks gather"
OUTSIDE: Final = "rows of other ranks, which do not enter or leave a mixture"
OVERWRITTEN: Final = "rows of experts of other ranks, overwritten with zeros"
UNREAD: Final = "tables that no layer of a stage reads"
KV_COPIES: Final = "key/value heads that several ranks hold"
BIASES: Final = "biases added after a sum over ranks"
_BUFFERS: Final = "buffers"
OF_FORMAT: Final = "scales, zero biases, indices and tables of formats that every rank has"
LOOKED_UP: Final = "rows that every rank looks up"
MASKS: Final = "masks that every rank reads"
FEATURES: Final = "features of images that every rank puts into the prompt"
EXPERTS: Final = "experts that tokens of a rank choose at most"
TIED: Final = "tables of tied output projections on the last stage"
ROWS_ELSEWHERE: Final = "rows of experts of other ranks, which the kernel gets and skips"
_OF_WEIGHTS: Final = frozenset({*OF_MEMORY, "weight_read_bytes"})
_REPEATED: Final[Mapping[str, str]] = {
    "input_bytes": "inputs of split modules, which every rank reads",
    "output_bytes": "results of split modules, which every rank writes",
    UNFUSED: "inputs and results of split modules, which every rank reads or writes",
}
"""Names of the part of a split module's cost that every rank has in full, by metric."""
_HEADS: Final = ("text_heads", "text_kv_heads")
_LATENTS: Final = (".q_down", ".q_norm", ".kv_down", ".kv_norm")
"""Suffixes of the roles of modules that compute latents, which every rank needs in full."""


def part_of(role: str) -> Part | None:
    """Return the decoder part to which a module belongs; ``None`` for norms, routers and containers.

    A norm of queries or keys has one head's weights, which all heads share.
    """
    if role.endswith(("_norm", ".norm1", ".norm2", ".norm1_after", ".norm2_after")) or role == "text.norm":
        return None
    for prefix, part in _PARTS_OF.items():
        if role == prefix or role.startswith(f"{prefix}."):
            return part
    return None


_PARTS_OF: Final[Mapping[str, Part]] = {
    "text.embedding": "embedding",
    "lm_head": "head",
    "text.layer.attention": "attention",
    "text.layer.mlp": "mlp",
    "text.layer.experts": "experts",
    "text.layer.shared": "shared",
}


def _why_whole(role: str, part: Part | None, *, latent: bool) -> str:
    """Return a name for the costs of a module that is whole on every rank."""
    if latent:
        return "latents of MLA, and the projections to them"
    if not role.startswith(("text.", "lm_head")):
        return "towers and projectors, which the plan leaves whole"
    if part is not None:
        return f"{part}, which the plan leaves whole"
    if role == "text.further":
        return "projections of MTP modules"
    return "routers" if role.endswith(".router") else "norms" if "norm" in role else "tables of rotary embedding"


def _tables(config: SharedDecoder, style: DecoderStyle | None, stages: int) -> tuple[int, ...]:
    """Return :attr:`Shards.tables`: layers read a table for each kind of window."""
    if stages == 1:
        return 1, 1
    windows, most = config.windows() or (0,) * config.layers, 1 if style is None else style.rotary_tables
    parts = range(config.layers), *(stage_layers(config.layers, stages, stage) for stage in range(stages))
    return tuple(min(most, len({windows[i] for i in part})) for part in parts)


def _windows(config: SharedDecoder, stages: int) -> tuple[frozenset[int], ...]:
    """Return the window lengths of the layers of a decoder, and of those of each pipeline stage; 0 is none."""
    windows = config.windows() or (0,) * config.layers
    parts = range(config.layers), *(stage_layers(config.layers, stages, stage) for stage in range(stages))
    return tuple(frozenset(windows[i] for i in part) for part in parts)


def _mask(of: SymbolValues, window: int) -> int:
    """Return the elements of the masks of a call, or of all steps, for layers with a window; 0 is none.

    Once the cached tokens fill the window, a mask has columns for those that are left of them, and for the new ones.
    """
    if "N" not in of:
        past = of.get("C", 0)
        kept = window - 1 if past and 0 < window <= past + 1 else past
        return of["B"] * of["S"] * (kept + of["S"])
    if 0 < window <= of["P"] + 1:
        return of["B"] * of["N"] * window
    return of["B"] * (of["N"] * (of["P"] + 1) + of["N"] * (of["N"] - 1) // 2)


def _rows(of: SymbolValues) -> int:
    """Return the tokens of all sequences of a rank in a call, or in all steps."""
    return of["B"] * _positions(of)


def _positions(of: SymbolValues) -> int:
    """Return the new tokens of one sequence of a rank in a call, or in all steps."""
    return of["N"] if "N" in of else of["S"]


def _calls(one: Ledger, stage: str) -> int:
    """Return how often a stage is called."""
    return sum(n.cost("calls") or 0 for n in one.nodes if n.stage == stage and n.role == "text")


def _mixtures(config: SharedDecoder, style: DecoderStyle | None) -> RoutedLayers | None:
    """Return the mixtures of experts of a decoder with the group limits of its router; ``None`` without experts."""
    experts = getattr(config, "experts", 0)
    if not experts or style is None or style.routing is None:
        return None
    limits = (1, 1)
    if style.routing.groups != 0:
        limits = config.groups, config.best_groups  # type: ignore[attr-defined]
    inner = getattr(config, "expert_width", 0) or config.intermediate
    top_k: int = config.top_k  # type: ignore[attr-defined]
    return RoutedLayers(sum(routed_layers(config)), experts, top_k, config.hidden, inner, *limits)
