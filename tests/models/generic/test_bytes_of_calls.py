"""Bytes of one call, by hand: caches that go in and out, hooks that compute, indices of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CLIPVisionConfig,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

import costproof
from costproof.ledger.metrics import Metric
from costproof.patches.modules import hooks_inside_forward
from costproof.patches.patch import patched
from costproof.patches.tensor import SPLIT_INDEXING

SIZES: dict[str, Any] = {
    "vocab_size": 10, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "head_dim": 8,
}  # fmt: skip
TOKEN = 2 * 16 * 4
"""Bytes of a token's key and value, of two heads of 8."""


def bytes_of(found: Any, metric: Metric) -> set[int | None]:
    """What the sources say."""
    return {ledger.total(metric) for ledger in found.capture.ledgers}


class Logits(nn.Module):
    """Keeps the cache that its decoder fills to itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past_key_values: Any) -> torch.Tensor:
        result: torch.Tensor = self.model(input_ids, past_key_values=past_key_values).logits
        return result


# Each value is in one of the first two.
@pytest.mark.parametrize(
    ("before", "returned"),
    [(0, False), (8, True), *(pytest.param(*c, marks=pytest.mark.thorough) for c in ((0, True), (8, False)))],
)
def test_a_cache_that_is_given_is_read_and_grows(before: int, returned: bool) -> None:
    config = LlamaConfig(**SIZES)
    model, cache = LlamaForCausalLM(config).eval(), DynamicCache(config=config)
    if before:
        with torch.no_grad():
            model(torch.ones(1, before, dtype=torch.long), past_key_values=cache)
    ids = torch.ones(1, 2, dtype=torch.long)
    found = costproof.count(model if returned else Logits(model), ids, past_key_values=cache)
    assert found.verdict == "exact"
    assert bytes_of(found, "kv_read_bytes") == {before * TOKEN}
    assert bytes_of(found, "kv_cache_bytes") == {2 * TOKEN}


class Projection(nn.Module):
    """Returns nothing but a cache of its own, or that beside a result."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.alone, self.kv = alone, nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> Any:
        keys, values = self.kv(x).view(1, -1, 2, 8).transpose(1, 2).chunk(2)[0].chunk(2, 1)
        cache = DynamicCache()
        cache.update(keys, values, 0)
        return cache if self.alone else (x * 2, cache)


def test_a_cache_that_is_returned_is_written() -> None:
    # Three rows of 8 come in, and 16 go out of the projection; beside them three rows of 8.
    for alone, beside in ((True, 0), (False, 3 * 8 * 4)):
        found = costproof.count(Projection(alone=alone), torch.ones(1, 3, 8))
        assert found.verdict == "exact"
        assert bytes_of(found, "output_bytes") == {3 * 16 * 4 + beside}


def test_an_image_s_decoder_fills_a_cache() -> None:
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = LlavaConfig(
        vision_config=vision, text_config=LlamaConfig(**SIZES), image_token_index=9, vision_feature_layer=-1
    )
    model = LlavaForConditionalGeneration(config).eval()
    found = costproof.count(model, torch.tensor([[1, 9, 9, 9, 9, 2]]), torch.ones(1, 3, 8, 8))
    assert found.verdict == "exact"
    assert bytes_of(found, "kv_cache_bytes") == {6 * TOKEN}


class Two(nn.Module):
    """Two linear layers, one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(self.a(x))
        return result


def test_what_hooks_compute_belongs_to_the_part_that_they_are_on() -> None:
    module, calls = Two(), list[int]()
    module.a.register_forward_hook(lambda part, given, result: result * 2)
    module.b.register_forward_pre_hook(lambda part, given: (given[0] + 1,))
    module.b.register_forward_hook(lambda part, given, kwargs, result: calls.append(len(given)), with_kwargs=True)
    hooks = [dict(h) for p in module.children() for h in (p._forward_pre_hooks, p._forward_hooks)]
    found = costproof.count(module, torch.ones(3, 8))
    assert found.verdict == "exact"
    for ledger in found.capture.ledgers:
        work = {n.module: n.costs["vector_flops"] for n in ledger.nodes if n.kind and n.costs.get("vector_flops")}
        assert work == {"a": 3 * 8, "b": 3 * 8}
    assert [dict(h) for p in module.children() for h in (p._forward_pre_hooks, p._forward_hooks)] == hooks
    assert set(calls) == {1}
    assert "forward" not in vars(module.a)


def test_a_hook_that_takes_itself_off_stays_off() -> None:
    module = Two()

    def once(part: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return result * 2

    handle = module.a.register_forward_hook(once)
    x = torch.ones(3, 8)
    with torch.no_grad():
        twice, plain = module.b(module.a.forward(x) * 2), module.b(module.a.forward(x))
        with hooks_inside_forward(module):
            assert torch.equal(module(x), twice)
        assert torch.equal(module(x), plain)
    assert not module.a._forward_hooks


class Picks(nn.Module):
    """[3, 5, 4] -> some of it."""

    def __init__(self, pick: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.pick = pick

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pick(x)


# What is read: of what numbers and slices leave the rows that are picked.
INDICES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "last of rows": (lambda x: x[torch.arange(2), -1], 2 * 4),
    "rows of the last": (lambda x: x[-1, torch.arange(2)], 2 * 4),
    "a slice beside": (lambda x: x[torch.arange(2), :2], 2 * 2 * 4),
    "a slice before": (lambda x: x[1:, torch.arange(2)], 2 * 2 * 4),
    "a number apart": (lambda x: x[0, :, torch.arange(2)], 5 * 2),
    "a new dimension": (lambda x: x[None, torch.arange(2), :, 0], 2 * 5),
    "dots": (lambda x: x[..., torch.arange(2)], 3 * 5 * 2),
    "a list": (lambda x: x[[0, 1], -1], 2 * 4),
    "a list alone": (lambda x: x[[0, 1]], 2 * 5 * 4),
    "two of tensors": (lambda x: x[torch.arange(2), [0, 1]], 2 * 4),
}


@pytest.mark.parametrize("index", INDICES)
def test_of_an_index_numbers_and_slices_come_first(index: str) -> None:
    pick, elements = INDICES[index]
    found = costproof.count(Picks(pick), torch.ones(3, 5, 4))
    assert found.verdict == "exact"
    assert bytes_of(found, "input_bytes") == {4 * elements}
    numbers = torch.arange(60.0).view(3, 5, 4)
    plain = pick(numbers)
    with patched(*SPLIT_INDEXING):
        assert torch.equal(pick(numbers), plain)
        assert torch.equal(numbers[numbers[..., 0] > 20, -1], torch.tensor([27.0 + 4 * i for i in range(9)]))


def test_a_classifier_reads_the_logits_of_the_last_token() -> None:
    model = LlamaForSequenceClassification(LlamaConfig(**SIZES)).eval()
    assert costproof.count(model, torch.ones(1, 5, dtype=torch.long)).verdict == "exact"
