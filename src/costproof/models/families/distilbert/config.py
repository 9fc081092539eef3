"""The configuration of a DistilBERT: all that decides a cost. The defaults are those of DistilBERT-base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.encoding.config import TextEncoderConfig


@dataclass(frozen=True, slots=True)
class DistilBertConfig(TextEncoderConfig):
    """Sizes, and the class of transformers; the output projection of masked words is the embedding's table."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 6
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "DistilBertModel"

    model_type: ClassVar[str] = "distilbert"
    architectures: ClassVar = {
        "DistilBertForMaskedLM": False, "DistilBertModel": False, "DistilBertForSequenceClassification": True,
    }  # fmt: skip
    keys: ClassVar = {
        **TextEncoderConfig.keys,
        "hidden": "dim",
        "intermediate": "hidden_dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "activation": "activation",
    }
    unused_keys: ClassVar = {
        **dict.fromkeys(("dropout", "qa_dropout", "seq_classif_dropout"), "of training alone"),
        "sinusoidal_pos_embds": "what the table of positions begins as decides no cost",
        "tie_weights_": "the class does not read it",
    }
