"""How the weights and activations of a decoder lie on the ranks of a mesh: plans, local widths, and collectives.

A rank of a decoder is the same decoder with local widths. Its formulas keep the symbols of the configuration, divided
by ``tp`` or ``ep``; the rows of the vocabulary, which may be uneven, have a symbol of their own, ``text_vocab_rank``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import sympy

from costproof.algebra.symbols import sym
from costproof.estimate.routing import RoutedLayers
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import DISPATCH, EP_BATCHES, PAIRS, Mesh, pairs_of, shard, splits_of
from costproof.ledger.workload import Workload

if TYPE_CHECKING:
    from costproof.analytic.compose import ModulePart, StackCall
    from costproof.analytic.costs import Size
    from costproof.models.decoding.config import DecoderConfig
    from costproof.models.decoding.formulas import DecoderStyle

Part = Literal["attention", "mlp", "experts", "shared", "embedding", "head"]
"""A part of a decoder that a plan splits or leaves whole."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which parts of a decoder tensor parallelism splits; all others are whole on each rank.

    Attention is split by head: q, k, v by columns and the output projection by rows. An MLP and an expert are split by
    inner width: gate and up projections by columns, the down projection by rows. Embedding and output projection are
    split by rows of the vocabulary. Norms, routers, and the projections to latents are never split.
    """

    name: str
    source: str
    split: frozenset[Part]

    def patterns(self) -> dict[str, str]:
        """Return the plan in the form of transformers: module pattern -> layout, for the dense modules."""
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
_TRANSFORMERS: Final = "transformers: base_model_tp_plan and _tp_plan of the class"
SPLIT_ALL: Final = ShardPlan("transformers", _TRANSFORMERS, frozenset(_PARTS))
WHOLE_ATTENTION: Final = ShardPlan("transformers", _TRANSFORMERS, frozenset(_PARTS) - {"attention"})
HEAD_ONLY: Final = ShardPlan("transformers", _TRANSFORMERS, frozenset({"head"}))
"""Plans of the classes of transformers."""


def mesh_symbols(config: DecoderConfig, workload: Workload) -> dict[str, int]:
    """Return the values of ``MESH_SYMBOLS`` for the counted rank; empty for one device."""
    mesh = workload.mesh
    if mesh.one:
        return {}
    start, stop = shard(config.vocab, mesh.tp, mesh.coordinates(workload.rank).tp)
    found = {"tp": mesh.tp, "ep": mesh.ep, "text_vocab_rank": stop - start}
    splits = splits_of(workload.inputs, workload.rank)
    if splits is not None:
        (sent, got), own = splits, mesh.coordinates(workload.rank).ep
        found |= {"text_pairs_sent": sum(sent) - sent[own], "text_pairs_got": sum(got) - got[own]}
    return found


@dataclass(frozen=True, slots=True)
class Shards:
    """The local widths of one rank, in symbols."""

    plan: ShardPlan
    mesh: Mesh
    kv_heads: int
    latent: bool = False
    """Whether attention caches latents instead of keys and values."""
    hidden: int = 0
    """Width of the decoder."""
    biased: frozenset[str] = frozenset()
    """Roles of modules whose bias is added after a sum over ranks."""
    wide_weights: bool = True
    """Whether the router's weights are in float32."""
    exchanges: bool = False
    """Whether ranks send pairs of a token and an expert to the rank of the expert; else all tokens are gathered."""
    routed: RoutedLayers | None = None
    """The mixtures of experts that ranks share; ``None`` without them."""

    @classmethod
    def of(
        cls, config: DecoderConfig, workload: Workload, plan: ShardPlan, style: DecoderStyle | None = None
    ) -> Shards:
        """Return the shards of the rank that a workload counts."""
        latent = getattr(config, "kv_rank", 0) > 0
        out = "out" in style.bias if style is not None else False
        biased = {
            "text.layer.attention.out": bool(config.attention_bias) if latent else out,  # type: ignore[attr-defined]
            "text.layer.mlp.down": style is not None and style.mlp_bias,
        }
        roles = frozenset(role for role, has in biased.items() if has and _REDUCED[role] in plan.split)
        wide = style is None or style.routing is None or not style.routing.narrow
        mixtures = _mixtures(config, style) if workload.mesh.ep > 1 else None
        exchanges = PAIRS in workload.inputs
        return cls(plan, workload.mesh, config.kv_heads, latent, config.hidden, roles, wide, exchanges, mixtures)

    @property
    def gathers(self) -> bool:
        """Return whether ranks gather the tokens of several batches for their experts."""
        return self.mesh.batches > 1 and not self.exchanges

    @property
    def origin(self) -> str:
        """Return the origin of the plan."""
        return self.plan.source

    def axis_of(self, role: str, kind: str) -> str:
        """Return the group of the mesh in which a module runs a kind of collective."""
        if role != "text.layer.experts" or self.mesh.ep == 1:
            return "tp"
        if self.mesh.batches == 1:
            return "ep"
        return "tp" if kind == "all_reduce" else EP_BATCHES

    def added_on_each(self, role: str) -> tuple[int, str]:
        """Return the elements of a bias that each rank has whole, and its name; 0 if there is none."""
        return (self.hidden, "biases added after a sum over ranks") if role in self.biased else (0, "")

    def of_part(self, size: Size, part: Part) -> Size:
        """Return a rank's share of heads or of an inner width."""
        return size / sym("tp") if self.mesh.tp > 1 and self.splits(part) else size

    def splits(self, part: Part) -> bool:
        """Return whether ranks have parts of the widths of a part; under ``ep`` each expert is whole on one of them."""
        return part in self.plan.split and not (part == "experts" and self.mesh.ep > 1)

    def own_kv_heads(self, size: Size) -> Size:
        """Return the key/value heads of a rank.

        Branches: of fewer heads than ranks each rank has one, and several ranks have copies of the same.
        """
        return 1 if self.copies > 1 else self.of_part(size, "attention")

    @property
    def copies(self) -> int:
        """Return how many ranks hold copies of the same key/value head."""
        return max(1, self.mesh.tp // self.kv_heads) if "attention" in self.plan.split else 1

    def held_by(self, role: str, metric: str) -> tuple[int, str]:
        """Return how many times the ranks of one group along ``tp`` have a cost of one device, and why if several do.

        Args:
            role: of a module, as formulas name it.
            metric: parameters or bytes that are held, or FLOPs.
        """
        if metric == "buffer_bytes":
            return self.mesh.tp, "buffers"
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

    def vocabulary(self, part: Part) -> Size:
        """Return the rows of the vocabulary that a rank holds in a part, ``embedding`` or ``head``."""
        return sym("text_vocab_rank") if self.mesh.tp > 1 and part in self.plan.split else sym("text_vocab")

    def further_dtypes(self, axis: str, kind: str) -> tuple[str, ...]:
        """Return the dtypes, other than the run's, of tensors in a kind of collective in a group."""
        if axis != EP_BATCHES:
            return ()
        gathered = ("int64", *(("float32",) * self.wide_weights))
        return {"all_gather": gathered, "all_to_all": ("int64",)}.get(kind, ())

    def copies_of_batches(self, role: str) -> int:
        """Return how many groups of ranks, each with all of a module, share the batch: ``dp``, for experts fewer."""
        shared = part_of(role) == "experts" and self.mesh.ep > 1
        return self.mesh.dp // self.mesh.batches if shared else self.mesh.dp

    def _of_experts(self, metric: str) -> tuple[int, str]:
        """Return as :meth:`held_by` for experts, each of which one rank of a group has whole."""
        if metric == "flops" and not self.exchanges:
            return self.mesh.ep, "rows of experts of other ranks, which the kernel gets and skips"
        return 1, ""

    def padded_vocabulary(self) -> Size:
        """Return the columns of the logits that a decoder returns; those of uneven shards are padded."""
        if self.mesh.tp == 1 or "head" not in self.plan.split:
            return sym("text_vocab")
        return sym("tp") * sympy.ceiling(sym("text_vocab") / sym("tp"))

    def with_collectives(
        self, parts: Iterable[ModulePart], call: StackCall, positions: Size, *, one_row: bool
    ) -> Iterator[ModulePart]:
        """Yield the modules of a decoder with the collectives that the plan puts into them.

        Args:
            positions: positions per sequence that get logits.
            one_row: whether a single position gets logits.
        """
        if self.mesh.tp == self.mesh.ep == 1:
            yield from parts
            return
        from costproof.analytic.collectives import (
            AllGather,
            AllReduce,
            ExchangedPairs,
            GatheredTokens,
            Joined,
            MaskedRows,
        )
        from costproof.analytic.experts import ClampedExperts, Experts
        from costproof.analytic.linear import Linear

        ranks, width, b = sym("tp"), sym("text_hidden"), call.item_bytes
        split = self.plan.split if self.mesh.tp > 1 else frozenset[Part]()
        reduced = {role for role, part in _REDUCED.items() if part in split}
        reduced |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        latent = self.latent and "attention" in split
        for part in parts:
            if part.role.endswith(".kv_down") and latent:
                yield replace(
                    part, layers=(*part.layers, Joined(call.rows * (sym("text_kv_rank") + sym("text_rope")), b))
                )
            elif part.role in reduced:
                first, *others = part.layers
                bias = width if isinstance(first, Linear) and first.bias else 0
                own = (replace(first, bias=False),) if isinstance(first, Linear) else (first,)
                if isinstance(first, Experts | ClampedExperts) and self.mesh.ep > 1:
                    item = first.weight_item if isinstance(first, Experts) else b
                    others.append(MaskedRows(first.rows, width, first.intermediate, b, item, first.batched))
                    if self.exchanges:
                        pairs = sym("text_pairs_sent"), sym("text_pairs_got")
                        sizes = call.rows, width, sym("text_topk"), sym("ep"), sym("text_experts")
                        others.append(ExchangedPairs(*sizes, *pairs, b, 4 if self.wide_weights else b))
                    if self.gathers:
                        others.append(GatheredTokens(call.rows, width, first.top_k, sym("ep") / ranks, b, item))
                if self.mesh.tp > 1:
                    others.append(AllReduce(call.rows * width, ranks, b, bias, masked=part.role == "text.embedding"))
                yield replace(part, layers=(*own, *others))
            elif part.role == "lm_head" and "head" in split:
                own_rows = self.vocabulary("head")
                gather = AllGather(call.batch * positions, sym("text_vocab"), own_rows, ranks, b, one_row)
                yield replace(part, layers=(*part.layers, gather))
            else:
                yield part


_REDUCED: Final[Mapping[str, Part]] = {
    "text.embedding": "embedding",
    "text.layer.attention.out": "attention",
    "text.layer.mlp.down": "mlp",
    "text.layer.experts": "experts",
    "text.layer.shared.down": "shared",
}
"""Role of a module whose results are parts of a sum over ranks -> part of the plan."""


KV_COPIES: Final = "key/value heads that several ranks hold"
_LATENTS: Final = (".q_down", ".q_norm", ".kv_down", ".kv_norm")
"""Ends of roles of modules whose results are latents, which every rank needs whole."""


def part_of(role: str) -> Part | None:
    """Return the part of a plan that a module belongs to; ``None`` for norms, routers and containers.

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
    """Return the name of what every rank has whole."""
    if latent:
        return "latents of MLA, and the projections to them"
    if part is not None:
        return f"{part}, which the plan leaves whole"
    return "routers" if role.endswith(".router") else "norms" if "norm" in role else "tables of rotary embedding"


def _mixtures(config: DecoderConfig, style: DecoderStyle | None) -> RoutedLayers | None:
    """Return the mixtures of experts of a decoder with the limits of its router; ``None`` without them."""
    experts, routed = getattr(config, "experts", 0), getattr(config, "routed", None)
    if not experts or routed is None or style is None or style.routing is None:
        return None
    limits = (1, 1)
    if style.routing.groups != 0:
        limits = config.groups, config.best_groups  # type: ignore[attr-defined]
    inner = getattr(config, "expert_width", 0) or config.intermediate
    top_k: int = config.top_k  # type: ignore[attr-defined]
    return RoutedLayers(sum(routed()), experts, top_k, config.hidden, inner, *limits)


def mesh_problems(config: DecoderConfig, workload: Workload, plan: ShardPlan) -> list[BadInput]:
    """Return an error for each reason why a decoder cannot be split over the mesh of a workload."""
    mesh = workload.mesh
    if mesh.one and not workload.rank:
        return []
    found = mesh.problems(workload.rank)
    if workload.rows:
        what, where = "a batch of unequal rows is counted on one device only", f"--rows, {mesh.text}"
        found.append(BadInput(what, where=where, expected="one device, or equal sequences"))
    if found:
        return found
    for what, size, part in _divided(config):
        if part in plan.split and size % mesh.tp and not (part == "experts" and mesh.ep > 1):
            expected = f"a divisor of the {size} {what}"
            why = f"tensor parallelism must divide the {what}"
            found.append(BadInput(why, where="--tp", expected=expected, got=mesh.tp))
    if "attention" in plan.split and config.kv_heads % mesh.tp and mesh.tp % config.kv_heads:
        expected = f"a divisor or a multiple of the {config.kv_heads} key/value heads"
        found.append(BadInput("ranks would share key/value heads", where="--tp", expected=expected, got=mesh.tp))
    if workload.batch < mesh.dp:
        what = "there are fewer sequences than data-parallel ranks"
        found.append(BadInput(what, where="--batch", expected=f"at least {mesh.dp}", got=workload.batch))
    found += _pair_problems(config, workload)
    if mesh.batches > 1 and workload.batch % mesh.dp:
        what = "ranks that gather each other's tokens need equal batches"
        found.append(BadInput(what, where="--batch", expected=f"a multiple of dp {mesh.dp}", got=workload.batch))
    if mesh.ep > 1:
        experts = getattr(config, "experts", 0)
        if not experts or experts % mesh.ep:
            expected = f"a divisor of the {experts} routed experts" if experts else "1, since no layer has experts"
            found.append(BadInput("the ranks must have equal numbers of experts", where="--ep", expected=expected,
                                  got=mesh.ep))  # fmt: skip
    return found


def _pair_problems(config: DecoderConfig, workload: Workload) -> Iterator[BadInput]:
    """Yield an error for each reason why tokens cannot be sent to the experts of other ranks."""
    mesh, inputs = workload.mesh, workload.inputs
    if (DISPATCH in inputs) != (PAIRS in inputs):
        what, fix = "how many pairs of a token and an expert ranks send each other depends on the routing", ""
        where, expected = f"--{DISPATCH}, --{PAIRS}", "both, or none"
        if DISPATCH in inputs:
            fix = "name the pairs, or see the means and bounds that a report of the mesh without --dispatch has"
        yield BadInput(what, where=where, expected=expected, got=str(inputs.get(DISPATCH, inputs.get(PAIRS)))[:80],
                       fix=fix)  # fmt: skip
        return
    if PAIRS not in inputs:
        return
    if mesh.tp > 1 or mesh.ep == 1 or workload.new_tokens or workload.batch % mesh.dp:
        what, where = "the pairs of ranks are those of one prompt on ranks with whole attention", f"--{PAIRS}"
        expected = "--ep above 1, --tp 1, --new-tokens 0, and equal batches"
        yield BadInput(what, where=where, expected=expected, got=f"{mesh.text}, {workload.new_tokens} new tokens")
        return
    try:
        pairs = pairs_of(inputs)
    except BadInput as error:
        yield error
        return
    each = workload.batch // mesh.dp * workload.text_tokens * getattr(config, "top_k", 0)
    if len(pairs) != mesh.world or any(len(row) != mesh.ep or sum(row) != each for row in pairs):
        expected = f"{mesh.world} rows of {mesh.ep} numbers, each with the sum {each}: tokens of a rank x top-k"
        yield BadInput("these are not the pairs of the ranks", where=f"--{PAIRS}", expected=expected,
                       got=str(inputs[PAIRS])[:80])  # fmt: skip
    elif not all(sum(column) for column in _columns(pairs, mesh)):
        yield BadInput("a rank without a single pair runs no experts", where=f"--{PAIRS}", got=str(inputs[PAIRS])[:80],
                       expected="at least one pair for each rank")  # fmt: skip


def _columns(pairs: tuple[tuple[int, ...], ...], mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Yield, for each rank, the pairs that it gets from those of its group."""
    for rank in range(mesh.world):
        yield tuple(pairs[other][mesh.coordinates(rank).ep] for other in mesh.group("ep", rank))


def _divided(config: DecoderConfig) -> Iterator[tuple[str, int, Part]]:
    """Yield (name, size, part) of each width that tensor parallelism divides."""
    yield "attention heads", config.heads, "attention"
    routed = getattr(config, "routed", None)
    kinds = routed() if routed is not None else (False,) * config.layers
    if not all(kinds):
        yield "elements of an MLP's inner width", config.intermediate, "mlp"
    if any(kinds):
        inner = getattr(config, "expert_width", 0) or config.intermediate
        yield "elements of an expert's inner width", inner, "experts"
