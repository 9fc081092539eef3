"""Configurations of decoders of which some layers, or all, have a mixture of experts in place of an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import WindowedConfig
from costproof.models.section import Section

BESIDE: Final = {"router_aux_loss_coef": "of training alone"}
"""Keys of most mixtures that decide no cost, with the reason."""


@dataclass(frozen=True, slots=True)
class MixtureConfig(WindowedConfig):
    """Sizes of a mixture of experts; the inner width of an expert is ``intermediate`` unless a family has another."""

    experts: int = 8
    """Routed experts of a layer."""
    top_k: int = 2
    """Routed experts that a token passes."""

    keys: ClassVar[Mapping[str, str]] = {
        **WindowedConfig.keys,
        "experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
    }
    ranges: ClassVar[Mapping[str, range]] = {
        "text_experts": range(8, 41),
        "text_topk": range(1, 9),
        "text_moe_rows": range(1, 41),
    }
    follows: ClassVar[Mapping[str, str]] = {
        "text_hidden": "8*text_kv_heads*text_groups*text_share",
        "text_moe": "8*text_moe_rows",
    }
    """In draws with grouped GEMMs, whose rows have 16 bytes; in the others without the 8, which alters no degree."""

    def routed(self) -> tuple[bool, ...]:
        """For every layer whether it has a mixture of experts."""
        return (True,) * self.layers

    def layer_kinds(self) -> tuple[tuple[int, bool], ...]:
        """For every layer its window, or 0, and whether it has a mixture of experts."""
        return tuple((w, m) for (w, _), m in zip(WindowedConfig.layer_kinds(self), self.routed(), strict=True))

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        found = WindowedConfig.symbols(self)
        moe = found.pop("text_intermediate")
        return {**found, "text_experts": self.experts, "text_topk": self.top_k, "text_moe": moe}

    @classmethod
    def random(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """The fields of a random configuration that are not drawn as for every decoder."""
        return {
            "hidden": sizes["row"] * sizes["text_kv_heads"] * sizes["text_groups"] * sizes["text_share"],
            "intermediate": sizes["row"] * sizes["text_moe_rows"],
            "experts": sizes["text_experts"],
            "top_k": sizes["text_topk"],
        }

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found = WindowedConfig.contradictions(self)
        if self.top_k > self.experts:
            where, expected = f"$.{self.keys['top_k']}", f"at most {self.experts}, the experts of a layer"
            found.append(
                BadInput("a token cannot pass so many experts", where=where, expected=expected, got=self.top_k)
            )
        return found


def experts_of(top: Section, usual: MixtureConfig, *others: str) -> dict[str, Any]:
    """Experts, and those that a token passes, as a file has them.

    Args:
        usual: as for :func:`number_of`.
        others: other keys that it reads the number of experts under.
    """
    top.fixed("output_router_logits", False, why="the formulas do not describe the loss that is made of these")
    other = next((key for key in others if key in top.data), None)
    if other is not None and (own := usual.keys["experts"]) in top.data:
        top.fixed(own, top.data[other], why="the class has one number of experts under both keys")
    experts = number_of(top, usual, "experts") if other is None else top.integer(other)
    return {"experts": experts, "top_k": number_of(top, usual, "top_k")}


def number_of(top: Section, usual: MixtureConfig, field: str, *, least: int = 1) -> int:
    """A number of a file.

    Args:
        usual: the published configuration; it says what the class of transformers takes where the key is left out, its
            own number unless ``left_out`` has another, ``None`` for nothing that runs.
    """
    key = usual.keys[field]
    left = usual.left_out.get(key, getattr(usual, field))
    return top.integer(key, least=least) if left is None else top.integer(key, left, least=least)
