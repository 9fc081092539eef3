"""RoBERTa: BERT whose position ids start after the padding id and depend on the text (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.elementwise import Activation
from costproof.analytic.linear import Linear
from costproof.configs.reader import Section
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.encoding.formulas import TextEncoderStyle, masked_words
from costproof.models.encoding.texts import TextTarget
from costproof.models.families.bert import BertConfig, bert_names

if TYPE_CHECKING:
    from costproof.models.encoding.domain import Domain


@dataclass(frozen=True, slots=True)
class RobertaConfig(BertConfig):
    """Sizes, the class of transformers, and the padding id, after which position ids start; by default RoBERTa-base."""

    vocab: int = 50265
    max_positions: int = 514
    """Number of rows of the position table."""
    architecture: str = "RobertaModel"
    types: int = 1
    padding: int = 1
    """Padding id; position ids start after it."""

    model_type: ClassVar[str] = "roberta"
    architectures: ClassVar = {
        "RobertaForMaskedLM": False, "RobertaModel": False, "RobertaForSequenceClassification": True,
    }  # fmt: skip
    class_defaults: ClassVar = {"max_position_embeddings": 512, "type_vocab_size": 2}
    head_first: ClassVar[bool] = False
    """Whether the class creates the masked-word head before the encoder, so that the head owns the shared table."""

    @property
    def longest(self) -> int:
        """Return the maximum text length in tokens."""
        return self.max_positions - self.padding - 1

    def native(self) -> dict[str, Any]:
        return {**BertConfig.native(self), "pad_token_id": self.padding}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read the padding id."""
        return {"padding": top.integer("pad_token_id", 1, least=0)}

    def contradictions(self) -> list[CostproofError]:
        found, most = TextEncoderConfig.contradictions(self), min(self.vocab - 1, self.max_positions - 2)
        if self.padding > most:
            what, expected = "the padding id leaves no word or no position", f"at most {most}"
            found.append(BadInput(what, where="$.pad_token_id", expected=expected, got=self.padding))
        return found


_PADDINGS: Final = range(10)
"""Padding ids from which a proof draws."""


@dataclass(frozen=True, slots=True)
class Roberta(TextTarget[RobertaConfig]):
    """Target: ``RobertaModel``, or a class with a head, with one configuration.

    Source: Liu et al. 2019, RoBERTa; ``RobertaModel``, ``RobertaForMaskedLM``, ``RobertaForSequenceClassification``
    (transformers).
    """

    config: RobertaConfig = field(default_factory=RobertaConfig)
    name: str = "roberta"
    model_types: ClassVar[tuple[str, ...]] = ("roberta",)
    prefix: ClassVar[str] = "roberta."

    def style(self) -> TextEncoderStyle:
        return TextEncoderStyle(positions_from_ids=True, head_first=self.config.head_first)

    def names(self, path: str) -> Mapping[str, str]:
        return {
            **bert_names(path),
            "cls.predictions": "lm_head",
            "cls.dense": "lm_head.dense",
            "cls.norm": "lm_head.layer_norm",
            "lm_head": "lm_head.decoder",
            "classifier.dense": "classifier.dense",
            "classifier.dropout": "classifier.dropout",
            "classifier.out": "classifier.out_proj",
        }

    def head(self) -> tuple[ModulePart, ...]:
        """Return the parts of the masked-word head, whose activation is fixed, or of the classifier."""
        texts, b, width, words = sym("B"), sym("b"), sym("text_hidden"), "cls.predictions"
        if self.config.masked:
            owns = self.config.head_first
            return (ModulePart("root"), *masked_words("gelu", holds_bias=words, activates=words, owns_words=owns))
        return (
            ModulePart("root"),
            ModulePart("classifier.dense", (Linear(texts, width, width, b),)),
            ModulePart("classifier", (Activation(texts * width, "tanh", b),)),
            ModulePart("classifier.dropout", times=2),
            ModulePart("classifier.out", (Linear(texts, width, sym("text_labels"), b),)),
        )

    def domain(self) -> Domain:
        """Return the domain of a proof, with enough positions for the longest text after the largest padding id."""
        found = TextTarget.domain(self)
        ranges = found.parameters.ranges
        positions = ranges["text_positions"]
        moved = range(positions.start + len(_PADDINGS), positions.stop + len(_PADDINGS))
        return replace(found, parameters=replace(found.parameters, ranges={**ranges, "text_positions": moved}))

    @classmethod
    def draw_fields(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Return the drawn number of segment types and a random padding id."""
        return {"types": p["text_types"], "padding": rng.choice(_PADDINGS)}


TARGET: Final = Roberta
