"""What a call does and returns beside its result: work that nothing reads, caches inside of results, integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPast, ModelOutput

import costproof
from costproof.ledger.metrics import Metric

DEVICES = ("meta", "cpu")


def said(found: Any, metric: Metric) -> set[int | None]:
    return {ledger.total(metric) for ledger in found.capture.ledgers}


class Places(nn.Module):
    """A number -> that many places, as numbers."""

    def forward(self, count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.float32) * 2


class Unread(nn.Module):
    """Works out of places alone what it then leaves, and calls an Identity on nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.places, self.unread, self.nothing = nn.Linear(4, 4), Places(), nn.Linear(3, 5), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.nothing(None)
        self.unread(self.places(3))
        result: torch.Tensor = self.read(x) + self.places(4)
        return result


@pytest.mark.parametrize("device", DEVICES)
def test_work_whose_result_nothing_reads_is_counted(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Unread(), torch.ones(2, 4))
    assert found.verdict == "exact", found.sentence
    assert said(found, "flops") == {2 * 2 * 4 * 4 + 2 * 3 * 5}
    # Seven places doubled; eight sums of bias and eight of places, five sums of the other bias.
    assert said(found, "vector_flops") == {7 + 8}
    # The root, both linear layers, and the places twice.
    assert said(found, "calls") == {1 + 2 + 2}


@pytest.mark.parametrize("device", DEVICES)
def test_pieces_of_a_larger_operator_are_not_work_of_their_own(device: str) -> None:
    # On meta torch's own code takes normalisation apart, roots of variances first, which come from no input.
    with torch.device(device):
        found = costproof.count(nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)), torch.ones(2, 3, 4, 4))
    assert found.verdict == "exact", found.sentence
    assert said(found, "flops") == {2 * 2 * 5 * 3 * 16}


class Inner(nn.Module):
    """[B, S, 8] -> itself, and a cache of keys and values that it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> BaseModelOutputWithPast:
        keys, values = self.kv(x).unsqueeze(1).chunk(2, -1)
        cache = DynamicCache()
        cache.update(keys, values, 0)
        return BaseModelOutputWithPast(last_hidden_state=x * 2, past_key_values=cache)


class Outer(nn.Module):
    """Returns the result of its decoder inside of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.config = Inner(), BaseConfig()

    def forward(self, x: torch.Tensor) -> ModelOutput:
        return ModelOutput(first=torch.relu(x), decoder=self.inner(x))


class BaseConfig:
    """Says that the model may keep a cache."""

    use_cache = True


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_inside_of_a_result_is_a_cache(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Outer(), torch.ones(2, 3, 8))
    assert found.verdict == "exact", found.sentence
    # Keys and values of 2 x 3 positions of 8 numbers in float32; beside them two results of the size of x.
    assert said(found, "kv_cache_bytes") == {2 * 2 * 3 * 8 * 4}
    assert said(found, "floor_bytes") == {4 * (2 * 3 * 8 * (1 + 2 + 2) + 8 * 16 + 16)}


class Codes(nn.Module):
    """[B, S] -> the sums of its rows as integers, and twice itself."""

    def forward(self, x: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x.sum(1).to(torch.int64),))


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_in_integers_is_no_activation(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Codes(), torch.ones(2, 3))
    assert found.verdict == "exact", found.sentence
    assert said(found, "output_bytes") == {2 * 3 * 4}


class Filled(nn.Module):
    """Puts a number of its code where the input is negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.tensor(0.5, dtype=x.dtype, device=x.device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_number_in_the_code_comes_from_nowhere(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Filled(), torch.ones(2, 3))
    assert found.verdict == "exact", found.sentence
    assert said(found, "input_bytes") == {2 * 3 * 4}
    assert said(found, "floor_bytes") == {2 * 2 * 3 * 4}
