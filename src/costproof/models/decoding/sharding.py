"""How the weights and activations of a decoder lie on the ranks of a mesh: plans, local widths, and collectives.

A rank of a decoder is the same decoder with local widths. Its formulas keep the symbols of the configuration, divided
by ``tp`` or ``ep``; the rows of the vocabulary, which may be uneven, have a symbol of their own, ``text_vocab_rank``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, cast

import sympy

from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import sym
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems
from costproof.ledger.mesh import CP_PLAN, PLAN, Mesh, shard, stage_layers
from costproof.ledger.workload import Workload
from costproof.models.decoding.plans import OWN, named_plan, split_parts

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
    multiple: int = 1
    """The vocabulary is padded to a multiple of this number."""
    joint: bool = False
    """Whether routed and shared experts are added on each rank, before one sum over ranks."""
    sequence: bool = False
    """Whether ranks share the tokens of a prompt between the split modules."""

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
_SOURCE: Final = "transformers: base_model_tp_plan and _tp_plan of the class"
SPLIT_ALL: Final = ShardPlan(OWN, _SOURCE, frozenset(_PARTS))
WHOLE_ATTENTION: Final = ShardPlan(OWN, _SOURCE, frozenset(_PARTS) - {"attention"})
HEAD_ONLY: Final = ShardPlan(OWN, _SOURCE, frozenset({"head"}))
"""Plans of the classes of transformers."""


def chosen_plan(
    config: DecoderConfig, workload: Workload, own: ShardPlan, style: DecoderStyle, names: Mapping[str, str]
) -> ShardPlan:
    """Return the plan that a workload names, or that of the class.

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
    latent, routed = style.latent is not None, _routed(config)
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
    if config.tied and len({"embedding", "head"} & split) == 1:
        what = "embedding and output projection share one table, so they need one layout"
        problems.append(BadInput(what, where=f"--{PLAN}", expected="vocabulary for both, or for none"))
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


def _routed(config: DecoderConfig) -> tuple[bool, ...]:
    """Return, for each layer, whether it has a mixture of experts."""
    routed = getattr(config, "routed", None)
    return routed() if routed is not None else (False,) * config.layers


def _layers_of(role: str, routed: tuple[bool, ...], style: DecoderStyle) -> list[int]:
    """Return the layers that have a module."""
    mixture = role.startswith(("text.layer.experts", "text.layer.shared", "text.layer.router"))
    if role.startswith("text.layer.shared") and style.shared_experts == 0:
        return []
    if mixture or role.startswith("text.layer.mlp."):
        return [i for i, has in enumerate(routed) if has is mixture]
    return [*range(len(routed))]


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def mesh_symbols(config: DecoderConfig, workload: Workload, plan: ShardPlan) -> dict[str, int]:
    """Return the values of ``MESH_SYMBOLS`` for the counted rank; empty for one device."""
    mesh = workload.mesh
    if mesh.one:
        return {}
    start, stop = shard(_padded(config.vocab, plan.multiple), mesh.tp, mesh.coordinates(workload.rank).tp)
    found = {"tp": mesh.tp, "ep": mesh.ep, "text_vocab_rank": stop - start}
    return found | ({"cp": mesh.cp, "cp_rank": mesh.coordinates(workload.rank).cp} if mesh.cp > 1 else {})


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
    biased: tuple[tuple[str, int], ...] = ()
    """(role of a module, elements of its bias) for biases that are added after a sum over ranks."""
    vocab: int = 0
    layers: range = range(0)
    """Layers of the rank's pipeline stage."""
    stage: int = 0
    """Pipeline stage of the rank."""
    tied: bool = False
    """Whether the last stage of several has a copy of the table of the embedding."""
    cp_plan: str = ""
    """How ranks share a sequence: ``ring``, ``zigzag`` or ``ulysses``; empty if each has whole ones."""

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
        wide = [(role, config.hidden) for role, has in biased.items() if has and _REDUCED[role] in plan.split]
        if style is not None and style.clamped_experts and "experts" in plan.split and workload.mesh.ep == 1:
            wide.append(("text.layer.experts", config.hidden * int(getattr(config, "experts", 0))))
        mesh = workload.mesh
        return cls(
            plan, mesh, config.kv_heads, latent, config.hidden, tuple(wide), config.vocab,
            stage=(stage := mesh.coordinates(workload.rank).pp), layers=stage_layers(config.layers, mesh.pp, stage),
            tied=config.tied and mesh.pp > 1,
            cp_plan=str(workload.inputs.get(CP_PLAN, "zigzag")) if mesh.cp > 1 else "",
        )  # fmt: skip

    @property
    def origin(self) -> str:
        """Return the origin of the plan."""
        return self.plan.source

    def axis_of(self, role: str) -> str:
        """Return the axis of the mesh whose ranks a module exchanges results with."""
        if role in ("text", "text.layer.attention"):
            return "pp" if role == "text" else "cp"
        return "ep" if role == "text.layer.experts" and self.mesh.ep > 1 else "tp"

    def added(self, role: str) -> tuple[int, str]:
        """Return the elements that ranks with one batch have more of a module, and what they are; 0 if there are none.

        Each rank has a bias whole that is added to sums over ranks. The last stage has a copy of a tied table.
        """
        if role == "text.embedding" and self.tied:
            times = 1 if "head" in self.plan.split else self.mesh.tp
            rows = _padded(self.vocab, self.plan.multiple) if times == 1 else self.vocab
            return times * rows * self.hidden, "tables of tied output projections on the last stage"
        return (self.mesh.tp - 1) * dict(self.biased).get(role, 0), "biases added after a sum over ranks"

    @property
    def last(self) -> bool:
        """Return whether the rank is of the last pipeline stage, which has the last norm and the output projection."""
        return self.stage == self.mesh.pp - 1

    def of_stage(self, parts: Iterable[ModulePart], call: StackCall) -> Iterator[ModulePart]:
        """Yield the modules of a decoder that the rank's pipeline stage has; all but the last one send their result.

        Every stage computes the cosines and sines of its own queries and keys.
        """
        from costproof.analytic.collectives import Send

        for part in map(self._of_sequence, parts):
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

    def _of_sequence(self, part: ModulePart) -> ModulePart:
        """Return the part; if ranks share a sequence, its attention is of the rank's positions.

        Contiguous parts of a sequence are in order of the ranks. By zigzag rank r has the parts r and 2 n - 1 - r of
        2 n, which leaves each rank as many pairs of a query and a key.
        """
        from costproof.analytic.attention import Attention
        from costproof.analytic.collectives import RingAttention, UlyssesAttention

        first, *others = part.layers
        if not self.cp_plan or not isinstance(first, Attention):
            return part
        sizes = (first.batch, first.queries, first.heads, first.kv_heads, first.head_dim, sym("cp"))
        if self.cp_plan == "ulysses":
            return replace(part, layers=(UlyssesAttention(*sizes, first.item_bytes), *others))
        n, half = first.queries, first.queries / 2
        pairs = sym("cp_rank") * n**2 + n * (n + 1) / 2
        if self.cp_plan == "zigzag":
            pairs = (2 * sym("cp") - 1) * half**2 + half * (half + 1)
        return replace(part, layers=(RingAttention(*sizes, pairs, first.item_bytes), *others))

    def border(self, call: StackCall, out: Size) -> Size:
        """Return the elements that enter and leave the rank's pipeline stage: hidden states, and ``out`` at last."""
        hidden = call.rows * sym("text_hidden")
        return (hidden if self.stage > 0 else 0) + (out if self.last else hidden)

    def padding_of(self, role: str, metric: str, cost: int) -> tuple[int, str]:
        """Return what the rows that pad the vocabulary add to a cost of one device, and its name."""
        more = _padded(self.vocab, self.plan.multiple) - self.vocab
        part = part_of(role)
        padded = part in ("embedding", "head") and part in self.plan.split and metric != "buffer_bytes"
        return cost * more // self.vocab if padded and more else 0, "padding of the vocabulary"

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
            return self.mesh.tp * (self.mesh.pp if role == "text.rotary" else 1), "buffers"
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

    def _of_experts(self, metric: str) -> tuple[int, str]:
        """Return as :meth:`held_by` for experts, each of which one rank of a group has whole."""
        if metric == "flops":
            return self.mesh.ep, "rows of experts of other ranks, which the kernel gets and skips"
        return 1, ""

    def padded_vocabulary(self) -> Size:
        """Return the columns of the logits that a decoder returns; those of uneven shards are padded."""
        if self.mesh.tp == 1 or "head" not in self.plan.split:
            return sym("text_vocab")
        if self.plan.multiple > 1:
            return sym("tp") * sym("text_vocab_rank")
        return sym("tp") * sympy.ceiling(sym("text_vocab") / sym("tp"))

    def shares_tokens(self, call: StackCall) -> bool:
        """Return whether ranks share the tokens of a call between the split modules.

        Branches: only of a prompt; a decode step has one token.
        """
        return self.plan.sequence and self.mesh.tp > 1 and call.past != CONTEXT

    def with_collectives(
        self, parts: Iterable[ModulePart], call: StackCall, positions: Size, *, one_row: bool, one_sequence: bool
    ) -> Iterator[ModulePart]:
        """Yield the modules of a decoder with the collectives that the plan puts into them.

        Args:
            positions: positions per sequence that get logits.
            one_row: whether a single position gets logits.
            one_sequence: whether the rank runs a single sequence.
        """
        if self.mesh.tp == 1:
            yield from parts
            return
        from costproof.analytic.collectives import AllGather, AllReduce, Joined, MaskedRows, ReduceScatter
        from costproof.analytic.elementwise import Residual
        from costproof.analytic.experts import ClampedExperts, Experts
        from costproof.analytic.linear import Linear

        ranks, width, b = sym("tp"), sym("text_hidden"), call.item_bytes
        elements = call.rows * width
        reduced = {role for role, part in _REDUCED.items() if part in self.plan.split}
        reduced |= {"text.layer.experts"} if self.mesh.ep > 1 else set()
        joint = self.plan.joint and "text.layer.experts" in reduced
        reduced -= {"text.layer.experts", "text.layer.shared.down"} if joint else set()
        latent = self.latent and "attention" in self.plan.split and self.plan.name == OWN
        for part in parts:
            first, *others = part.layers
            if isinstance(first, Experts | ClampedExperts) and self.mesh.ep > 1:
                item = first.weight_item if isinstance(first, Experts) else b
                others.append(MaskedRows(first.rows, width, first.intermediate, b, item, first.batched))
            if part.role.endswith(".kv_down") and latent:
                others.append(Joined(call.rows * (sym("text_kv_rank") + sym("text_rope")), b))
            elif part.role in reduced:
                bias = width if isinstance(first, Linear) and first.bias else 0
                first = replace(first, bias=False) if isinstance(first, Linear) else first
                masked = part.role == "text.embedding"
                if self.shares_tokens(call):
                    others.append(ReduceScatter(elements, ranks, b, bias, masked=masked, in_order=one_sequence))
                else:
                    others.append(AllReduce(elements, ranks, b, bias, masked=masked))
            elif part.role == "text.layer.mlp" and joint and isinstance(first, Residual):
                others.append(AllReduce(elements, ranks, b))
            elif part.role in _BEFORE_SPLIT and self.shares_tokens(call):
                own = call.tokens / ranks
                others.append(AllGather(call.batch * width, call.tokens, own, ranks, b, one_sequence))
            elif part.role == "lm_head" and "head" in self.plan.split:
                own, padded = self.vocabulary("head"), self.plan.multiple > 1
                columns = ranks * own if padded else sym("text_vocab")
                others.append(AllGather(call.batch * positions, columns, own, ranks, b, one_row))
            yield replace(part, layers=(first, *others))


_BEFORE_SPLIT: Final = frozenset({"text.layer.norm1", "text.layer.norm2", "text.norm"})
"""Roles of norms before split modules, behind which ranks that share tokens gather those of all."""
OF_OWN_TOKENS: Final = _BEFORE_SPLIT | {"text.layer", "text.layer.norm1_after", "text.layer.norm2_after"}
"""Roles of modules that process the own tokens of ranks that share tokens: norms and additions."""
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
    if not role.startswith(("text.", "lm_head")):
        return "towers and projectors, which the plan leaves whole"
    if part is not None:
        return f"{part}, which the plan leaves whole"
    return "routers" if role.endswith(".router") else "norms" if "norm" in role else "tables of rotary embedding"


def refuse_ranks(workload: Workload) -> None:
    """Check that the live peak of a run on one device is asked for.

    Raises:
        Incomplete: it is of a rank of several.
    """
    if not workload.mesh.one:
        raise Incomplete("no formula gives the live peak of one rank of several", where=workload.mesh.text)


MORE_AXES: Final = ("pp", "cp")
"""Axes of a mesh by which decoders without towers are counted too."""


def mesh_problems(
    config: DecoderConfig, workload: Workload, plan: ShardPlan, more: Collection[str] = ()
) -> list[BadInput]:
    """Return an error for each reason why a decoder cannot be split over the mesh of a workload.

    Args:
        more: axes that are counted besides ``tp``, ``ep`` and ``dp``.
    """
    mesh = workload.mesh
    if mesh.cp == 1 and CP_PLAN in workload.inputs:
        what, where = "each rank has whole sequences, so no plan shares them", f"--{CP_PLAN.replace('_', '-')}"
        return [BadInput(what, where=where, expected="--cp of 2 or more", got=workload.inputs[CP_PLAN])]
    if mesh.one and not workload.rank:
        return []
    found = mesh.problems(workload.rank, more=more)
    if plan.sequence and max(mesh.pp, mesh.cp) > 1:
        what, where = "ranks that share tokens are counted without stages and shared sequences", f"--{PLAN}"
        found.append(BadInput(what, where=where, expected="--pp 1, --cp 1", got=f"{plan.name} with {mesh.text}"))
    if mesh.pp > config.layers:
        what = "there are fewer layers than pipeline stages"
        found.append(BadInput(what, where="--pp", expected=f"at most {config.layers}", got=mesh.pp))
    if workload.rows:
        what, where = "a batch of unequal rows is counted on one device only", f"--rows, {mesh.text}"
        found.append(BadInput(what, where=where, expected="one device, or equal sequences"))
    if found:
        return found
    found += _sequence_problems(config, workload) if mesh.cp > 1 else []
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
    if mesh.ep not in (1, mesh.tp):
        what = "experts are counted over the ranks that share weights, so far"
        found.append(BadInput(what, where="--ep", expected=f"1, or tp {mesh.tp}", got=mesh.ep))
    if mesh.ep > 1:
        experts = getattr(config, "experts", 0)
        if not experts or experts % mesh.ep:
            expected = f"a divisor of the {experts} routed experts" if experts else "1, since no layer has experts"
            found.append(BadInput("the ranks must have equal numbers of experts", where="--ep", expected=expected,
                                  got=mesh.ep))  # fmt: skip
    return found


def _sequence_problems(config: DecoderConfig, workload: Workload) -> list[BadInput]:
    """Return an error for each reason why ranks cannot share the sequences of a workload, or are not counted so."""
    mesh, plan = workload.mesh, workload.inputs.get(CP_PLAN, "zigzag")
    parts = mesh.cp * (2 if plan == "zigzag" else 1)
    kinds = {"a window": any(config.windows()), "latents": getattr(config, "kv_rank", 0) > 0,
             "experts": any(_routed(config))}  # fmt: skip
    found = [
        BadInput(f"ranks that share a sequence are not counted for layers with {kind}", where="--cp", expected="1",
                 got=mesh.cp)
        for kind, has in kinds.items() if has
    ]  # fmt: skip
    for wrong, where, expected, got in (
        (workload.new_tokens > 0, "--new-tokens", "0: of a shared sequence the prompt is counted", workload.new_tokens),
        (workload.past > 0, "--past", "0", workload.past),
        (workload.logits != "all", "--logits", "all: each rank has logits of its positions", workload.logits),
        (workload.attention != "sdpa", "--attention", "sdpa", workload.attention),
        (workload.text_tokens % parts > 0, "--text-tokens", f"a multiple of the {parts} parts", workload.text_tokens),
    ):
        if wrong:
            found.append(BadInput("ranks cannot share these sequences", where=where, expected=expected, got=got))
    if plan == "ulysses":
        for name, heads in (("query", config.heads), ("key/value", config.kv_heads)):
            if heads % (mesh.cp * mesh.tp):
                what, expected = f"ranks would share {name} heads", f"tp x cp a divisor of {heads}"
                found.append(BadInput(what, where="--cp", expected=expected, got=mesh.cp))
    return found


def _divided(config: DecoderConfig) -> Iterator[tuple[str, int, Part]]:
    """Yield (name, size, part) of each width that tensor parallelism divides."""
    yield "attention heads", config.heads, "attention"
    kinds = _routed(config)
    if not all(kinds):
        yield "elements of an MLP's inner width", config.intermediate, "mlp"
    if any(kinds):
        inner = getattr(config, "expert_width", 0) or config.intermediate
        yield "elements of an expert's inner width", inner, "experts"
