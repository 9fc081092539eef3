"""GPT-2: layer norms, a fused query/key/value projection, learned positions (transformers' native class)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock, PackedBlock
from costproof.analytic.compose import CONTAINER, ModulePart, StackCall, analytic_ledger, in_layer, prefill_and_decode
from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.analytic.embedding import Embedding, LearnedPositions
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.transformer import DecoderStack, TransformerLayer
from costproof.configs.reader import Section
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import ROWS_INVOCATION, Workload
from costproof.models.cache_dtype import cache_share
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.formulas import (
    ALL_PROJECTIONS,
    is_packed,
    logits_and_masks,
    masked_chunk,
    picked_positions,
    positions_kept,
    row_calls,
)
from costproof.models.decoding.memory import decoder_tapes, row_tapes
from costproof.models.decoding.names import STAGES
from costproof.models.decoding.sharding import ShardPlan
from costproof.models.decoding.target import CausalTarget
from costproof.storage.scheme import CheckpointLayout

if TYPE_CHECKING:
    from costproof.analytic.memory_tape import MemoryTape
    from costproof.models.decoding.domain import Drawn

_LAYER: Final = "transformer.h.{i}"
_NAMES: Final = {
    "root": "",
    "text": "transformer",
    "text.embedding": "transformer.wte",
    "text.positions": "transformer.wpe",
    "text.layer": _LAYER,
    "text.layer.norm1": f"{_LAYER}.ln_1",
    "text.layer.attention": f"{_LAYER}.attn",
    "text.layer.attention.qkv": f"{_LAYER}.attn.c_attn",
    "text.layer.attention.out": f"{_LAYER}.attn.c_proj",
    "text.layer.norm2": f"{_LAYER}.ln_2",
    "text.layer.mlp": f"{_LAYER}.mlp",
    "text.layer.mlp.up": f"{_LAYER}.mlp.c_fc",
    "text.layer.mlp.activation": f"{_LAYER}.mlp.act",
    "text.layer.mlp.down": f"{_LAYER}.mlp.c_proj",
    "text.norm": "transformer.ln_f",
    "text.dropout": "transformer.drop",
    "text.layer.attention.dropout": f"{_LAYER}.attn.resid_dropout",
    "text.layer.mlp.dropout": f"{_LAYER}.mlp.dropout",
    "lm_head": "lm_head",
}

_DROPOUTS: Final = ("text.layer.attention.dropout", "text.layer.mlp.dropout")
"""Modules that run in a forward but have no effect outside of training."""
_SUMMARY = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")


@dataclass(frozen=True, slots=True)
class Gpt2Config(DecoderConfig):
    """Sizes, with as many key/value heads as heads, which divide the width; by default the smallest GPT-2."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 50257
    max_positions: int = 1024
    tied: bool = True
    activation: str = "gelu_new"

    model_type: ClassVar[str] = "gpt2"
    not_null: ClassVar = (
        "attn_pdrop", "embd_pdrop", "initializer_range", "layer_norm_epsilon", "resid_pdrop",
        "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "summary_first_dropout", "summary_proj_to_labels",
        "summary_type", "summary_use_proj", "use_cache",
    )  # fmt: skip
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    rotates: ClassVar = False
    pads: ClassVar = False
    keys: ClassVar = {
        "hidden": "n_embd",
        "intermediate": "n_inner",
        "layers": "n_layer",
        "heads": "n_head",
        "vocab": "vocab_size",
        "max_positions": "n_positions",
        "tied": "tie_word_embeddings",
        "activation": "activation_function",
    }
    ranges: ClassVar = {"text_positions": range(128, 228)}
    derived: ClassVar = {"text_head_dim": "text_share"}
    class_defaults: ClassVar = {"n_positions": 1024, "tie_word_embeddings": True, "activation_function": "gelu_new"}
    unused_keys: ClassVar = {
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), "affects only training"),
        **dict.fromkeys(("layer_norm_epsilon", "scale_attn_weights"), "decides no cost"),
        "scale_attn_by_inverse_layer_idx": "decides no cost",
        **{f"summary_{x}": "of a class with a head for a summary" for x in _SUMMARY},
        **dict.fromkeys(("n_ctx", "n_special", "predict_special_tokens"), "the class does not read it"),
    }

    def symbols(self) -> dict[str, int]:
        return {**DecoderConfig.symbols(self), "text_positions": self.max_positions}

    def __post_init__(self) -> None:
        """Set ``kv_heads`` to ``heads``, and ``head_dim`` to the width divided by ``heads``."""
        object.__setattr__(self, "kv_heads", self.heads)
        object.__setattr__(self, "head_dim", self.hidden // self.heads)

    @classmethod
    def read_sizes(cls, top: Section) -> dict[str, Any]:
        """Read the sizes; an omitted MLP width is four times the width."""
        for key in ("add_cross_attention", "reorder_and_upcast_attn"):
            top.fixed(key, False, why="the formulas do not describe this")
        found = top.sizes({field: cls.keys[field] for field in ("hidden", "layers", "heads", "vocab")})
        inner = top.take("n_inner", None)
        return {**found, "intermediate": 4 * found["hidden"] if inner is None else top.check_integer(inner, "n_inner")}

    def contradictions(self) -> list[CostproofError]:
        """Return an error if the heads do not divide the width."""
        if self.hidden % self.heads == 0:
            return []
        expected = f"a divisor of {self.hidden}"
        return [BadInput("the heads must divide the width", where="$.n_head", expected=expected, got=self.heads)]


@dataclass(frozen=True, slots=True)
class Gpt2(CausalTarget[Gpt2Config]):
    """Target: ``GPT2LMHeadModel`` with one configuration.

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners; ``GPT2LMHeadModel``
    (transformers).
    """

    config: Gpt2Config = field(default_factory=Gpt2Config)
    name: str = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    plan: ClassVar[ShardPlan | None] = None
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(linear_class="Conv1D")

    @property
    def decoder(self) -> Decoder:
        return Decoder(stack="transformer", attention="h.{i}.attn")

    @classmethod
    def drawn(cls, sizes: Mapping[str, int], rng: Random) -> Drawn:
        """Draw a random small configuration for a proof, with heads that add up to the width."""
        from costproof.models.decoding.domain import features

        heads = sizes["text_kv_heads"] * sizes["text_groups"]
        config = Gpt2Config(
            hidden=heads * sizes["text_share"],
            intermediate=sizes["text_intermediate"],
            layers=sizes["layers"],
            heads=heads,
            vocab=sizes["text_vocab"],
            max_positions=sizes["text_positions"],
            tied=rng.random() < 0.5,
            activation=rng.choice(tuple(ACTIVATION_FLOPS)),
        )
        return cls(config), features(config)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``).

        Branches: a run without decode steps has no decode stage; the prompt reads a cache only if there is a past.
        """
        width = sym("text_hidden")

        def parts(call: StackCall) -> tuple[ModulePart, ...]:
            positions = positions_kept(workload, call)
            return (
                ModulePart("root", picked_positions(workload, call) or (CONTAINER,)),
                ModulePart("text", (LearnedPositions(call.batch, call.tokens, width, call.item_bytes),)),
                ModulePart("text.positions", (Embedding(call.tokens, sym("text_positions"), width, call.item_bytes),)),
                *self._stack(workload, call).parts("text", call, positions),
                ModulePart("text.dropout"),
                *(part for i in range(self.config.layers) for part in in_layer(i, map(ModulePart, _DROPOUTS))),
            )

        border = partial(logits_and_masks, workload, config=self.config)
        cache, decode, past = cache_share(workload, latent=False), workload.new_tokens > 0, workload.past > 0
        first = ROWS_INVOCATION if workload.rows else "prompt"
        nodes = prefill_and_decode(parts, _NAMES, border=border, decode=decode, cache=cache, past=past, first_id=first)
        return analytic_ledger(nodes, STAGES)

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        tapes = row_tapes if workload.rows else decoder_tapes
        return tapes(self.config, workload, lambda call: self._stack(workload, call))

    def _stack(self, workload: Workload, call: StackCall) -> DecoderStack:
        width = sym("text_hidden")
        attention: AttentionBlock | PackedBlock
        if is_packed(workload, call):
            each = list(row_calls(workload, call, self.config))
            blocks = tuple(self._attention(one, whole) for one, whole, _ in each)
            attention = PackedBlock(blocks, tuple(own for _, _, own in each), several=len(workload.rows) > 1)
        else:
            attention = self._attention(workload, call)
        mlp = Mlp(width, sym("text_intermediate"), self.config.activation)
        layer = TransformerLayer(width, attention, mlp, norm="layer")
        return DecoderStack(
            width, sym("text_vocab"), (layer,) * self.config.layers, norm="layer", tied=self.config.tied
        )

    @staticmethod
    def _attention(workload: Workload, call: StackCall) -> AttentionBlock:
        width, heads = sym("text_hidden"), sym("text_heads")
        return AttentionBlock(
            width=width,
            heads=heads,
            kv_heads=heads,
            head_dim=sym("text_head_dim"),
            inner=width,
            bias=ALL_PROJECTIONS,
            fused=True,
            causal=True,
            mask="input" if workload.attention == "eager" else "boolean" if masked_chunk(workload, call) else "none",
            written_out=workload.attention == "eager",
            upcast=False,
        )


TARGET: Final = Gpt2
