"""Lay out the weights and activations of a decoder on the ranks of a mesh: plans, local widths, collectives.

A rank of a decoder is the same decoder with local widths. Its formulas keep the symbols of the configuration, divided
by ``tp`` or ``ep``; the rows of the vocabulary, which may be uneven, have a symbol of their own, ``text_vocab_rank``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Self, cast

import sympy

from costproof.algebra.series import CONTEXT, OF_EACH
from costproof.algebra.symbols import sym
from costproof.analytic.costs import IN_DTYPE_OF_RUN, CacheShares
from costproof.estimate.routing import PROMPT, RoutedLayers, pairs_sent, routed_call, splits_of, steps_differ
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems
from costproof.ledger.mesh import CP_PLAN, DISPATCH, EP_BATCHES, FSDP_CP, PLAN, Mesh, shard, stage_layers
from costproof.ledger.workload import Workload
from costproof.models.cache_dtype import cache_share
from costproof.models.decoding.names import STAGES
from costproof.models.decoding.plans import OWN, SharedDecoder, by_heads, named_plan, routed_layers, split_parts

if TYPE_CHECKING:
    from costproof.analytic.compose import ModulePart, StackCall
    from costproof.analytic.costs import Layer, Size
    from costproof.analytic.decoder_memory import RankSteps
    from costproof.analytic.experts import ClampedExperts, Experts
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
    if {"embedding", "head"} & split and padded_rows(config.vocab, multiple) % mesh.tp and multiple > 1:
        what = f"{plan.name} gives each rank equally many rows of the vocabulary, padded to a multiple of {multiple}"
        problems.append(BadInput(what, where="--tp", got=mesh.tp,
                                 expected=f"a divisor of {padded_rows(config.vocab, multiple)}"))  # fmt: skip
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


def padded_rows(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def mesh_symbols(config: SharedDecoder, workload: Workload, plan: ShardPlan, stage: str = PROMPT) -> dict[str, int]:
    """Return the values of ``MESH_SYMBOLS`` for the counted rank in a stage; empty on one device."""
    mesh = workload.mesh
    if mesh.one:
        return {}
    start, stop = shard(padded_rows(config.vocab, plan.multiple), mesh.tp, mesh.coordinates(workload.rank).tp)
    found = {"tp": mesh.tp, "ep": mesh.ep, "text_vocab_rank": stop - start}
    if mesh.cp > 1:
        found |= {"cp": mesh.cp, "cp_place": mesh.coordinates(workload.rank).cp + 1, "cp_tokens": workload.own_tokens}
    if mesh.fsdp > 1:
        found |= {"fsdp": mesh.stored_parts, "fsdp_rank": mesh.stored_part(workload.rank)}
    if batches := workload.gathered_batches:
        at = mesh.group(EP_BATCHES, workload.rank).index(workload.rank)
        found |= {"ep_sequences": sum(batches), "ep_next": batches[(at + 1) % len(batches)]}
    calls = splits_of(workload, *_routed_sizes(config), stage)
    differ = stage == STAGES[1] and steps_differ(workload, *_routed_sizes(config))
    own, held = mesh.coordinates(workload.rank).ep, _routed_sizes(config)[1] // mesh.ep
    for i, (sends, gets) in enumerate(_pair_names(config, workload)):
        layers = [call[i] for call in (calls if differ else calls[:1])]
        found[sends] = sum(sum(sent) - sent[own] for sent, _ in layers)
        found[gets] = sum(sum(got) - got[own] for _, got in layers)
        if differ:
            found[reads_of(sends)] = sum(min(held, sum(got)) for _, got in layers)
    if _pads_slices(workload):
        every = routed_call(workload, stage).batches
        tokens = every[workload.rank % len(every)]
        first, behind = shard(tokens, mesh.tp, mesh.coordinates(workload.rank).tp)
        found["slice_tokens"] = behind - first
    return found


def _pads_slices(workload: Workload) -> bool:
    """Return whether ranks along ``tp`` send unequal slices of their tokens, in any call of any rank."""
    if DISPATCH not in workload.inputs:
        return False
    stages = STAGES[: 2 if workload.new_tokens else 1]
    return any(n % workload.mesh.tp for stage in stages for n in routed_call(workload, stage).batches)


def _pair_names(config: SharedDecoder, workload: Workload) -> tuple[tuple[str, str], ...]:
    """Return the symbols of the pairs that a rank sends and gets in each layer with experts; empty if it gathers.

    Layers share them if all ranks send the same in every layer.
    """
    if DISPATCH not in workload.inputs:
        return ()
    stages = (PROMPT, *((STAGES[1],) if workload.new_tokens else ()))
    calls = [call for stage in stages for call in pairs_sent(workload, *_routed_sizes(config), stage)]
    every = [*zip(*calls, strict=True)]
    ends = ("",) * len(every) if len({*every}) == 1 else tuple(f"_{i}" for i in range(len(every)))
    return tuple((f"text_pairs_sent{end}", f"text_pairs_got{end}") for end in ends)


def reads_of(pairs: str) -> str:
    """Return the symbol of the experts that steps read in a layer, by that of the pairs that it sends."""
    return pairs.replace("text_pairs_sent", "text_experts_read")


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
    pads_slices: bool = False
    """Whether ranks along ``tp`` send unequal slices of their tokens, and pad the results of shorter ones."""
    steps_differ: bool = False
    """Whether decode steps send unequal numbers of pairs; then those of steps are of all of them together."""
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
    own_mixtures: range = range(0)
    """Which of these layers the rank's pipeline stage has, numbered from 0 among them."""
    biased_experts: bool = False
    """Whether experts have biases, see :class:`~costproof.analytic.experts.ClampedExperts`."""
    gathered_weights: bool = False
    """Whether the kernel of the experts gathers the weights of each row (``batched_mm``)."""

    @classmethod
    def of(cls, config: SharedDecoder, workload: Workload, plan: ShardPlan, style: DecoderStyle | None = None) -> Self:
        """Return the shards of the rank that the workload selects."""
        latent = getattr(config, "kv_rank", 0) > 0
        out = "out" in style.bias if style is not None else False
        biased = {
            "text.layer.attention.out": bool(config.attention_bias) if latent else out,  # type: ignore[attr-defined]
            "text.layer.mlp.down": style is not None and style.mlp_bias,
        }
        wide = [(role, config.hidden) for role, has in biased.items() if has and REDUCED[role] in plan.split]
        if style is not None and style.clamped_experts and "experts" in plan.split and workload.mesh.ep == 1:
            wide.append(("text.layer.experts", config.hidden * int(getattr(config, "experts", 0))))
        mesh = workload.mesh
        return cls(
            plan, mesh, config.kv_heads, latent, config.hidden, tuple(wide), vocab=config.vocab,
            wide_weights=style is None or style.routing is None or not style.routing.narrow,
            pairs=_pair_names(config, workload), pads_slices=_pads_slices(workload),
            steps_differ=steps_differ(workload, *_routed_sizes(config)),
            routed=_mixtures(config, style) if mesh.ep > 1 else None,
            stage=(stage := mesh.coordinates(workload.rank).pp),
            layers=(layers := stage_layers(config.layers, mesh.pp, stage)),
            own_mixtures=range(*(sum(routed_layers(config)[:i]) for i in (layers.start, layers.stop))),
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

    def exchanged(self, layer: int, *, step: bool) -> tuple[Size, Size] | None:
        """Return the pairs that the rank sends and gets in a call of a layer.

        Args:
            layer: index among those with experts.
            step: whether the call is a decode step, of unequal ones an equal part of what all have.
        """
        if not self.pairs:
            return None
        each = OF_EACH if step and self.steps_differ else 1
        sent, got = self.pairs[layer]
        return sym(sent) * each, sym(got) * each

    def touched(self, layer: int, *, step: bool) -> Size | None:
        """Return the experts that a call of a layer reads, if it is one of unequal steps; otherwise ``None``."""
        if not step or not self.steps_differ:
            return None
        return sym(reads_of(self.pairs[layer][0])) * OF_EACH

    @property
    def slices(self) -> Size:
        """Return into how many slices the ranks along ``tp`` divide their tokens to send them; 1 if each has all."""
        return sym("tp") if self.exchanges and self.mesh.tp > 1 else 1

    @property
    def sliced(self) -> Size | None:
        """Return the number of tokens in the slice whose (token, expert) pairs the rank sends.

        ``None`` if ``tp`` divides the tokens, so that all slices have tokens / tp.
        """
        return sym("slice_tokens") if self.pads_slices else None

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

    def vocabulary(self, part: Part) -> Size:
        """Return how many vocabulary entries a rank holds of a part, ``embedding`` or ``head``."""
        return sym("text_vocab_rank") if self.mesh.tp > 1 and part in self.plan.split else sym("text_vocab")

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
        reduced = {role for role, part in REDUCED.items() if part in split}
        reduced |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        reduced -= {"text.layer.experts"} if self.exchanges else set()
        joint = self.plan.joint and "text.layer.experts" in reduced
        reduced -= {"text.layer.experts", "text.layer.shared.down"} if joint else set()
        latent = self.latent and "attention" in split and self.plan.name == OWN
        done: dict[tuple[str, int], tuple[ModulePart, ModulePart]] = {}
        mixtures = self.own_mixtures.start - 1
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
            elif part.role in BEFORE_SPLIT and self.shares_tokens(call):
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
            start, stop = shard(
                padded_rows(self.vocab, self.plan.multiple), tp, self.mesh.coordinates(workload.rank).tp
            )
            padded = stop - start < -(-padded_rows(self.vocab, self.plan.multiple) // tp)
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
        if (pairs := self.exchanged(layer, step=call.past == CONTEXT)) is not None:
            sizes = call.rows, width, sym("text_topk"), sym("ep"), sym("text_experts")
            yield ExchangedPairs(*sizes, *pairs, b, 4 if self.wide_weights else b, self.slices, self.sliced)
        elif self.gathers:
            following = call.rows * (sym("ep_next") / sym("B") if self.uneven else 1)
            yield GatheredTokens(call.rows, call.rows * self.batches, following, width, experts.top_k, b, item)


BEFORE_SPLIT: Final = frozenset({"text.layer.norm1", "text.layer.norm2", "text.norm"})
"""Roles of norms before split modules, after which ranks that share tokens gather the tokens of all."""
OF_OWN_TOKENS: Final = BEFORE_SPLIT | {"text.layer", "text.layer.norm1_after", "text.layer.norm2_after"}
"""Roles of modules that process only a rank's own tokens if ranks share tokens: norms and additions."""
REDUCED: Final[Mapping[str, Part]] = {
    "text.embedding": "embedding",
    "text.layer.attention.out": "attention",
    "text.layer.mlp.down": "mlp",
    "text.layer.experts": "experts",
    "text.layer.shared.down": "shared",
}
"""Part of the plan of each module whose results ranks add up, by role."""


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
