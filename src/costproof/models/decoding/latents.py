"""Decoders with latent attention and mixtures of experts: what configurations and targets of their families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from costproof.ledger.conventions import Conventions
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import Experts, Workload
from costproof.models import settings
from costproof.models.decoding.base import CausalTarget
from costproof.models.decoding.config import SIZES, TextConfig
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.mixtures import BESIDE, MixtureConfig, experts_of, number_of
from costproof.models.section import Section
from costproof.models.target import Setting

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
    """Sizes of latent attention, of a mixture with shared experts and groups, and the layers without one."""

    expert_width: int = 0
    shared: int = 1
    """Shared experts of a layer, run as one MLP."""
    dense_layers: int = 0
    """Layers at the beginning that have an MLP."""
    groups: int = 1
    """Groups of routed experts."""
    best_groups: int = 1
    """Groups that a token's experts are chosen from."""
    q_rank: int = 0
    """Width of a query's latent; 0: queries have none."""
    kv_rank: int = 0
    nope: int = 0
    rope: int = 0
    value: int = 0
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
    beside: ClassVar[Mapping[str, str]] = {
        **BESIDE,
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
    follows: ClassVar[Mapping[str, str]] = {
        **MixtureConfig.follows,
        "text_experts": "text_router_groups*text_group",
        **{f"text_{name}": f"2*text_{name}_halves" for name in ("kv_rank", "nope", "rope")},
    }

    def __post_init__(self) -> None:
        """Every head has keys and values of its own."""
        object.__setattr__(self, "kv_heads", self.heads)
        object.__setattr__(self, "head_dim", self.nope + self.rope)

    def routed(self) -> tuple[bool, ...]:
        """For every layer whether it has a mixture of experts."""
        return tuple(i >= self.dense_layers for i in range(self.layers))

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        own = {f"text_{name}": getattr(self, name) for name in (*_LATENT, "shared", "intermediate")}
        own |= {"text_q_rank": self.q_rank} if self.q_rank else {}
        own |= {"text_router_groups": self.groups, "text_dense": self.dense_layers, "text_moe": self.expert_width}
        usual = MixtureConfig.symbols(self)
        return {k: v for k, v in usual.items() if k not in ("text_kv_heads", "text_head_dim")} | own

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {**TextConfig.native(self), "q_lora_rank": self.q_rank or None, "num_key_value_heads": self.heads}

    @classmethod
    def sizes(cls, top: Section) -> dict[str, Any]:
        """The sizes of every decoder; all heads have keys and values of their own."""
        found = top.sizes({field: cls.keys[field] for field in SIZES})
        why = "latent attention has keys and values for every head"
        top.fixed("num_key_value_heads", found["heads"], None, why=why, default=cls.left_out.get("num_key_value_heads"))
        # The class of transformers sets it to the width of the rotated part.
        top.waive({"head_dim": "the class does not read it"})
        return {**found, "kv_heads": found["heads"], "head_dim": 0}

    @classmethod
    def random(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """The fields of a random configuration that are not drawn as for every decoder."""
        return drawn_latents(sizes, rng)

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
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


def latents_of(top: Section, usual: LatentConfig) -> dict[str, Any]:
    """Experts, dense layers and the widths of latent attention, as a file has them.

    Args:
        usual: as for :func:`number_of`.
    """
    named = ("expert_width", "shared", *_LATENT)
    top.fixed("moe_layer_freq", 1, why="the class has experts in every layer behind the dense ones")
    rank = top.take("q_lora_rank", usual.q_rank)
    return {
        **experts_of(top, usual, "num_local_experts", "num_experts"),
        **{field: number_of(top, usual, field) for field in named},
        "dense_layers": number_of(top, usual, "dense_layers", least=0),
        "q_rank": 0 if rank is None else top.check_integer(rank, "q_lora_rank"),
    }


def drawn_latents(sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
    """The fields of a random configuration that are not drawn as for every decoder."""
    experts = sizes["text_router_groups"] * sizes["text_group"]
    usual = MixtureConfig.random({**sizes, "text_experts": experts}, rng)
    return {
        **usual,
        "intermediate": sizes["text_intermediate"],
        "expert_width": usual["intermediate"],
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
    """Whether decode steps absorb the expansion; the classes of transformers expand."""
    return workload.inputs.get(DECODING.name) == DECODING.choices[1]


@dataclass(frozen=True, slots=True)
class LatentTarget(CausalTarget[L]):
    """A decoder whose cache holds latents."""

    more: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS, DECODING)

    @property
    def decoder(self) -> Decoder:
        """How the class of transformers is called."""
        return Decoder(latent=(self.config.kv_rank, self.config.rope))

    def workload(self, preset: str | None = None, **given: Any) -> Workload:
        """A preset with changes; what the class of transformers does goes without saying."""
        if given.get(DECODING.name) == DECODING.choices[0]:
            del given[DECODING.name]
        made = CausalTarget.workload(self, preset, **given)
        return replace(made, what="absorbed decoding") if absorbs(made) else made

    def conventions(self, workload: Workload) -> Conventions:
        """The conventions of all numbers made for this workload."""
        return replace(CausalTarget.conventions(self, workload), mla=DECODING.choices[absorbs(workload)])

    def _build(self, workload: Workload, experts: Experts) -> nn.Module:
        model = CausalTarget._build(self, workload, experts)
        if absorbs(workload):
            from costproof.models.decoding.absorbed import absorb

            absorb(model, f"{self.decoder.stack}.layers")
        return model
