"""What the title and the notes of a module say: its past, stored elements, rows that another path drops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from costproof.ledger.progress import silent
from costproof.models.generic.factories import Given
from costproof.models.generic.module import GenericTarget


def target(module: nn.Module, **inputs: Any) -> GenericTarget:
    return GenericTarget("own", Given("own", "a module", module, inputs))


def test_the_title_of_a_chunk_names_its_past() -> None:
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, vocab_size=32,
    )  # fmt: skip
    cache = DynamicCache(config=config)
    cache.update(torch.zeros(1, 1, 24, 8), torch.zeros(1, 1, 24, 8), 0)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    workload = target(model, input_ids=torch.zeros(1, 8, dtype=torch.long), past_key_values=cache).workload()
    assert workload.what == "input_ids int64[1,8], past_key_values of 24 tokens"


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(2, 8, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Unregistered(nn.BatchNorm1d):
    """A tensor that is a plain attribute, of 1,000,000 bytes or of 4 less; a view of a weight is none of its own."""

    def __init__(self, numbers: int) -> None:
        super().__init__(4)
        self.table, self.same = torch.zeros(numbers), [self.weight.detach()[:2]]


LAYER = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Packed(), "counted as the elements that are stored"),
        (nn.TransformerEncoder(LAYER, 1).eval(), "drops rows that a padding mask hides"),
        (nn.TransformerEncoder(LAYER, 1, enable_nested_tensor=False).eval(), ""),
        (Unregistered(250_000), "are in no number of bytes of modules: 1,000,000 B"),
        (Unregistered(249_999), ""),
        (nn.BatchNorm1d(4), ""),  # its count of batches is an integer and no weight
    ],
)
def test_notes_on_modules(module: nn.Module, says: str) -> None:
    made = target(module, x=torch.zeros(2, 4, 8)) if isinstance(module, Packed) else target(module)
    if isinstance(module, nn.TransformerEncoder):
        made = target(module, src=torch.zeros(2, 4, 8))
    elif isinstance(module, nn.BatchNorm1d):
        made = target(module, input=torch.zeros(2, 4))
    notes = made.build_run(made.workload(), silent).notes
    assert [says in note for note in notes] == ([True] if says else [])
