"""The configuration of a BERT: everything that decides a cost, and nothing else. The defaults are BERT-base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.encoding.config import TextEncoderConfig


@dataclass(frozen=True, slots=True)
class BertConfig(TextEncoderConfig):
    """Sizes, and the class of transformers; the output projection of masked words is the embedding's table."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "BertModel"
    types: int = 2
    """Kinds of segments."""

    model_type: ClassVar[str] = "bert"
    architectures: ClassVar = {"BertForMaskedLM": False, "BertModel": False, "BertForSequenceClassification": True}
    keys: ClassVar = {**TextEncoderConfig.keys, "types": "type_vocab_size"}
    unused_keys: ClassVar = {
        "classifier_dropout": "of training alone",
        "position_embedding_type": "the class does not read it",
        "gradient_checkpointing": "of training alone",
    }

    def sizes(self) -> dict[str, int]:
        """Values of the configuration's symbols, without the prefix."""
        return TextEncoderConfig.sizes(self) | {"types": self.types}
