"""Base classes of decoders with multi-head latent attention and experts: configuration, style and target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import sym
from costproof.analytic.compose import StackCall
from costproof.analytic.experts import RoutingRule
from costproof.analytic.latent_attention import LatentBlock
from costproof.analytic.rotary import RotaryTable
from costproof.configs.reader import Section
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.metrics import Conventions
from costproof.ledger.workload import BatchRow, ExpertKernel, Workload
from costproof.models import settings
from costproof.models.decoding.config import (
    SIZES,
    UNUSED_ROUTER_KEYS,
    DecoderConfig,
    MixtureConfig,
    experts_of,
    number_of,
)
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.formulas import DecoderStyle, masked_chunk
from costproof.models.decoding.target import CausalTarget
from costproof.models.target import Setting
from costproof.patches.flash_attention import FLASH

if TYPE_CHECKING:
    from torch import nn

_WIDTHS: Final = {
    "kv_rank": "kv_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope": "qk_rope_head_dim",
    "value": "v_head_dim",
}
_LATENT: Final = ("kv_rank", "nope", "rope", "value")


@dataclass(frozen=True, slots=True)
class LatentConfig(MixtureConfig):
    """Configuration with latent attention, group-limited routed experts, shared experts, and dense first layers."""

    expert_width: int = 0
    shared: int = 1
    """Number of shared experts per layer, which run as one MLP."""
    dense_layers: int = 0
    """Number of first layers with an MLP instead of experts."""
    groups: int = 1
    """Number of groups into which the routed experts are divided."""
    best_groups: int = 1
    """Number of groups from which the experts of a token are chosen."""
    q_rank: int = 0
    """Width of the latent of a query; 0 if queries are projected directly."""
    kv_rank: int = 0
    """Width of the latent from which the keys and values of all heads are expanded."""
    nope: int = 0
    """Elements per key and head that are not rotated."""
    rope: int = 0
    """Elements of the rotated part of a key, which all heads share."""
    value: int = 0
    """Elements per value and head."""
    attention_bias: bool = False

    keys: ClassVar[Mapping[str, str]] = {
        **SIZES,
        **_WIDTHS,
        "max_positions": "max_position_embeddings",
        "tied": "tie_word_embeddings",
        "activation": "hidden_act",
        "attention_bias": "attention_bias",
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "shared": "n_shared_experts",
        "dense_layers": "first_k_dense_replace",
        "groups": "n_group",
        "best_groups": "topk_group",
    }
    unused_keys: ClassVar[Mapping[str, str]] = {
        **UNUSED_ROUTER_KEYS,
        "routed_scaling_factor": "decides no cost",
        "qk_head_dim": "the class works it out of its parts",
    }
    not_drawn: ClassVar[Mapping[str, str]] = dict.fromkeys(("window", "pattern"), "the class has no windows")
    patterns: ClassVar[tuple[str, ...]] = ("f",)
    ranges: ClassVar[Mapping[str, range]] = {
        "text_topk": range(1, 9),
        "text_moe_rows": range(1, 41),
        "text_shared": range(1, 9),
        "text_router_groups": range(1, 7),
        "text_group": range(8, 17),
        "text_q_rank": range(1, 41),
        "text_kv_rank_halves": range(1, 21),
        "text_nope_halves": range(1, 21),
        "text_rope_halves": range(1, 21),
        "text_value": range(1, 41),
    }
    derived: ClassVar[Mapping[str, str]] = {
        **MixtureConfig.derived,
        "text_experts": "text_router_groups*text_group",
        **{f"text_{name}": f"2*text_{name}_halves" for name in ("kv_rank", "nope", "rope")},
    }

    def __post_init__(self) -> None:
        """Set ``kv_heads`` and ``head_dim``: each head has its own keys and values, of nope + rope elements."""
        object.__setattr__(self, "kv_heads", self.heads)
        object.__setattr__(self, "head_dim", self.nope + self.rope)

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the cache of transformers keeps all tokens: no layer of the class has a window."""
        return cls.caches_all(data)

    def saves_by_absorbing(self, row: BatchRow) -> bool:
        both = self.nope + self.value
        expanded = 2 * row.past * self.kv_rank * both
        return expanded > row.new * (2 * row.past + row.new + 1) * (2 * self.kv_rank - both)

    def routed(self) -> tuple[bool, ...]:
        return tuple(i >= self.dense_layers for i in range(self.layers))

    def symbols(self) -> dict[str, int]:
        own = {f"text_{name}": getattr(self, name) for name in (*_LATENT, "shared", "intermediate")}
        own |= {"text_q_rank": self.q_rank} if self.q_rank else {}
        own |= {"text_router_groups": self.groups, "text_dense": self.dense_layers, "text_moe": self.expert_width}
        common = MixtureConfig.symbols(self)
        return {k: v for k, v in common.items() if k not in ("text_kv_heads", "text_head_dim")} | own

    def native(self) -> dict[str, Any]:
        return {**DecoderConfig.native(self), "q_lora_rank": self.q_rank or None, "num_key_value_heads": self.heads}

    @classmethod
    def read_sizes(cls, top: Section) -> dict[str, Any]:
        """Read the sizes that every decoder has, with as many key/value heads as attention heads."""
        found = top.sizes({field: cls.keys[field] for field in SIZES})
        why = "latent attention has keys and values for every head"
        top.fixed(
            "num_key_value_heads", found["heads"], None, why=why, default=cls.class_defaults.get("num_key_value_heads")
        )
        # The class of transformers sets it to the width of the rotated part.
        top.waive({"head_dim": "the class does not read it"})
        return {**found, "kv_heads": found["heads"], "head_dim": 0}

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random latent widths, numbers of experts and number of dense layers, for a proof."""
        return draw_latents(sizes, rng)

    def contradictions(self) -> list[CostproofError]:
        found: list[CostproofError] = []
        for what, field, wrong, expected in (
            ("rotation needs pairs", "rope", self.rope % 2, "an even width"),
            ("a token cannot pass so many experts", "top_k", self.top_k > self.experts, f"at most {self.experts}"),
            ("the groups must divide the experts", "groups", self.experts % self.groups, f"divides {self.experts}"),
            ("there are not so many groups", "best_groups", self.best_groups > self.groups, f"at most {self.groups}"),
        ):
            if wrong:
                got = getattr(self, field)
                found.append(BadInput(what, where=f"$.{self.keys[field]}", expected=expected, got=got))
        return found


def latents_of(top: Section, defaults: LatentConfig) -> dict[str, Any]:
    """Read the numbers of experts and of dense layers, and the widths of latent attention.

    Args:
        defaults: as for :func:`~costproof.models.decoding.config.number_of`.
    """
    top.fixed("moe_layer_freq", 1, why="the class has experts in every layer after the dense ones")
    rank = top.take("q_lora_rank", defaults.q_rank)
    return {
        **experts_of(top, defaults, "num_local_experts", "num_experts"),
        **{field: number_of(top, defaults, field) for field in ("expert_width", "shared", *_LATENT)},
        "dense_layers": number_of(top, defaults, "dense_layers", least=0),
        "q_rank": 0 if rank is None else top.check_integer(rank, "q_lora_rank"),
    }


def draw_latents(sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
    """Draw random latent widths, numbers of experts and number of dense layers, for a proof."""
    experts = sizes["text_router_groups"] * sizes["text_group"]
    common = MixtureConfig.draw_fields({**sizes, "text_experts": experts}, rng)
    return {
        **common,
        "intermediate": sizes["text_intermediate"],
        "expert_width": common["intermediate"],
        "shared": sizes["text_shared"],
        "dense_layers": rng.choice((0, 1, 2)),
        "groups": sizes["text_router_groups"],
        "best_groups": rng.randint(1, sizes["text_router_groups"]),
        "q_rank": rng.choice((0, sizes["text_q_rank"])),
        "pattern": "f",
        "window": 0,
        "value": sizes["text_value"],
        **{name: 2 * sizes[f"text_{name}_halves"] for name in ("kv_rank", "nope", "rope")},
    }


L = TypeVar("L", bound=LatentConfig)
DECODING: Final = Setting(
    "decoding",
    "How decode steps read the latents: all keys and values expanded, or the expansion absorbed by queries and output.",
    "choice",
    ("expanded", "absorbed"),
)


def absorbs(workload: Workload) -> bool:
    """Return whether decode steps absorb the expansion of latents into queries and outputs (``decoding="absorbed"``).

    The classes of transformers expand the cached latents in every step.
    """
    return workload.inputs.get(DECODING.name) == "absorbed"


def latent_style(
    config: LatentConfig, routing: RoutingRule, table: type[RotaryTable], *, as_complex: bool
) -> DecoderStyle:
    """Return the style of a decoder with latent attention in every layer.

    Args:
        routing: how its router chooses experts.
        table: the layer that computes cosines and sines.
        as_complex: whether pairs of elements are rotated by a complex product.

    Branches: the lower bound depends on which of the two ways of decoding is less work at these widths; a call of one
    token with a past is a step.
    """

    def attention(workload: Workload, call: StackCall) -> LatentBlock:
        return LatentBlock(
            width=sym("text_hidden"),
            heads=sym("text_heads"),
            nope=sym("text_nope"),
            rope=sym("text_rope"),
            value_dim=sym("text_value"),
            rank=sym("text_kv_rank"),
            q_rank=sym("text_q_rank") if config.q_rank else 0,
            as_complex=as_complex,
            bias=config.attention_bias,
            mask="input" if workload.attention == "eager" else "boolean" if masked_chunk(workload, call) else "none",
            written_out=workload.attention == "eager",
            absorbed=absorbs(workload) and call.past != 0 and (call.past == CONTEXT or workload.text_tokens == 1),
            wide=config.nope + config.value > 2 * config.kv_rank,
            narrow=config.nope + config.value < 4,
            equal_widths=config.nope + config.rope == config.value,
        )

    shared = sym("text_shared") * sym("text_moe")
    return DecoderStyle(table=table, rotated="text_rope", routing=routing, shared_experts=shared, latent=attention)


@dataclass(frozen=True, slots=True)
class LatentTarget(CausalTarget[L]):
    """Base class of decoders with multi-head latent attention, whose cache holds one latent vector per token."""

    extra_settings: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS, DECODING)

    @property
    def decoder(self) -> Decoder:
        return Decoder(latent=(self.config.kv_rank, self.config.rope))

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """Return the workload of a preset with changed settings; decoding is ``expanded`` by default."""
        if given.get(DECODING.name) == "expanded":
            del given[DECODING.name]
        made = CausalTarget.workload(self, preset, **given)
        return replace(made, what="absorbed decoding") if absorbs(made) else made

    def problems(self, workload: Workload) -> list[CostproofError]:
        found, config = CausalTarget.problems(self, workload), self.config
        if workload.attention != FLASH:
            return found
        where, fix = f"--attention {FLASH}", "leave --attention at sdpa"
        if absorbs(workload):
            what = "the kernels have one width for queries, keys and values, which absorbed decoding has not"
            got = f"{config.kv_rank + config.rope} and {config.kv_rank}"
            found.append(BadInput(what, where=where, expected="--decoding expanded", got=got, fix=fix))
        elif config.value > config.head_dim:
            what = "transformers pads values to the width of queries, and cannot narrow them"
            expected = f"values of at most {config.head_dim} elements"
            found.append(BadInput(what, where=where, expected=expected, got=config.value, fix=fix))
        return found

    def conventions(self, workload: Workload) -> Conventions:
        """Return the counting conventions of this workload's numbers."""
        return replace(CausalTarget.conventions(self, workload), mla=DECODING.choices[absorbs(workload)])

    def built(self, workload: Workload, experts: ExpertKernel) -> nn.Module:
        """Return the model on the meta device, with absorbed decode steps if the workload requests them."""
        model = CausalTarget.built(self, workload, experts)
        if absorbs(workload):
            from costproof.models.decoding.absorbed import absorb

            absorb(model, f"{self.decoder.stack}.layers")
        return model
