"""The configuration of a RoBERTa: everything that decides a cost, and nothing else. The defaults are RoBERTa-base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.families.bert.config import BertConfig
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class RobertaConfig(BertConfig):
    """Sizes, the class of transformers, and the id behind which positions begin."""

    vocab: int = 50265
    max_positions: int = 514
    """Rows of the table of positions."""
    architecture: str = "RobertaModel"
    types: int = 1
    padding: int = 1
    """Its position is its own; the first token's is one behind it."""

    model_type: ClassVar[str] = "roberta"
    architectures: ClassVar = {
        "RobertaForMaskedLM": False, "RobertaModel": False, "RobertaForSequenceClassification": True,
    }  # fmt: skip
    class_defaults: ClassVar = {"max_position_embeddings": 512, "type_vocab_size": 2}
    head_first: ClassVar[bool] = False
    """Whether the class makes the head for masked words before the encoder: of the table that both have, it is the
    owner."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return self.max_positions - self.padding - 1

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {**BertConfig.native(self), "pad_token_id": self.padding}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """The padding id."""
        return {"padding": top.integer("pad_token_id", 1, least=0)}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found, most = TextEncoderConfig.contradictions(self), min(self.vocab - 1, self.max_positions - 2)
        if self.padding > most:
            what, expected = "no word or no position is left beside this one", f"at most {most}"
            found.append(BadInput(what, where="$.pad_token_id", expected=expected, got=self.padding))
        return found
