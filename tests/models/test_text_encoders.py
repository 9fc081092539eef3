"""Encoders of text by hand: BERT, RoBERTa, XLM-RoBERTa, DistilBERT."""

from __future__ import annotations

from typing import TypeVar

import pytest

from costproof.ledger.errors import Problems
from costproof.models.encoding.config import EncoderConfig
from costproof.models.encoding.target import EncoderTarget
from costproof.models.families.bert import Bert, BertConfig
from costproof.models.families.distilbert import DistilBert, DistilBertConfig
from costproof.models.families.roberta import Roberta, RobertaConfig
from costproof.models.families.xlm_roberta import XlmRoberta
from costproof.parametric.targets import evaluate_formulas

C = TypeVar("C", bound=EncoderConfig)
# Of a layer that is 768 wide: four projections, the MLP, two norms.
LAYER = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768


def params(target: EncoderTarget[C]) -> int | None:
    """Parameters of a model, by the formulas."""
    return evaluate_formulas(target, target.workload()).total("params")


def test_parameters_and_flops_of_bert_by_hand() -> None:
    # Three tables of 30522, 512 and 2 rows and a norm; the layers; the pooler.
    encoder = (30522 + 512 + 2 + 2) * 768 + 12 * LAYER
    assert encoder + 768 * 768 + 768 == 109_482_240
    ledger = evaluate_formulas(Bert(), Bert().workload(batch=2, seq_len=128))
    assert ledger.total("params") == 109_482_240
    tokens = 12 * (128 * 2 * (4 * 768 * 768 + 2 * 768 * 3072) + 128 * 128 * 4 * 768)
    assert ledger.total("flops") == 2 * (tokens + 2 * 768 * 768)
    # The head for masked words: a layer and a norm, and for every word a bias; the table is the embedding's.
    masked = Bert(BertConfig(architecture="BertForMaskedLM"))
    assert evaluate_formulas(masked, masked.workload()).total("params") == encoder + 768 * 768 + 3 * 768 + 30522


def test_parameters_and_positions_of_roberta_by_hand() -> None:
    # Tables of 50265, 514 and 1 rows and a norm; layers and pooler as of BERT; XLM has more words.
    encoder = (50265 + 514 + 1 + 2) * 768 + 12 * LAYER
    assert encoder + 768 * 768 + 768 == 124_645_632
    roberta = Roberta()
    workload = roberta.workload(batch=2, seq_len=128)
    ledger = evaluate_formulas(roberta, workload)
    assert ledger.total("params") == 124_645_632
    # The rows of words, segments and positions of 2 texts of 128 tokens come in, and their sums go out.
    (added,) = [n for n in ledger.nodes if n.module == "embeddings" and n.cost("input_bytes")]
    assert (added.cost("input_bytes"), added.cost("output_bytes")) == (3 * 256 * 768 * 2, 256 * 768 * 2)
    # The head for masked words has a bias for each; it has no pooler. That of classes has a layer for the first token.
    assert params(Roberta(RobertaConfig(architecture="RobertaForMaskedLM"))) == encoder + 769 * 768 + 2 * 768 + 50265
    classes = Roberta(RobertaConfig(architecture="RobertaForSequenceClassification", labels=3))
    assert params(classes) == encoder + 769 * 768 + 769 * 3
    assert params(XlmRoberta()) == 124_645_632 + (250_002 - 50_265) * 768
    # Positions begin at 2 of 514.
    assert (RobertaConfig().longest, RobertaConfig(padding=0).longest, workload.text_tokens) == (512, 513, 128)


def test_parameters_and_flops_of_distilbert_by_hand() -> None:
    # Two tables of 30522 and 512 rows and a norm; six layers as of BERT.
    encoder = (30522 + 512 + 2) * 768 + 6 * LAYER
    assert encoder == 66_362_880
    ledger = evaluate_formulas(DistilBert(), DistilBert().workload(batch=2, seq_len=128))
    assert ledger.total("params") == encoder
    assert ledger.total("flops") == 2 * 6 * (128 * 2 * (4 * 768 * 768 + 2 * 768 * 3072) + 128 * 128 * 4 * 768)
    masked = DistilBert(DistilBertConfig(architecture="DistilBertForMaskedLM"))
    assert params(masked) == encoder + 769 * 768 + 2 * 768 + 30522
    classes = DistilBert(DistilBertConfig(architecture="DistilBertForSequenceClassification", labels=3))
    assert params(classes) == encoder + 769 * 768 + 769 * 3


@pytest.mark.parametrize("length", [0, 513])
def test_a_text_that_bert_cannot_read(length: int) -> None:
    with pytest.raises(Problems, match="cannot be run"):
        Bert().workload(seq_len=length)
