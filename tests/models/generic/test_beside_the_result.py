"""What a call does and returns beside its result: work that nothing reads, caches inside of results, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


class Keeping(nn.Module):
    """Puts keys and values into the cache that it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor, past_key_values: DynamicCache) -> torch.Tensor:
        keys, values = self.kv(x).unsqueeze(1).chunk(2, -1)
        past_key_values.update(keys, values, 0)
        return x * 2


class Listening(nn.Module):
    """Returns the cache of its encoder under the encoder's name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.config = Keeping(), BaseConfig()

    def forward(self, x: torch.Tensor) -> ModelOutput:
        cache = DynamicCache()
        return ModelOutput(first=self.inner(x, past_key_values=cache), encoder_past_key_values=cache)


@pytest.mark.parametrize("device", DEVICES)
def test_an_encoder_may_keep_a_cache_too(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Listening(), torch.ones(2, 3, 8))
    assert found.verdict == "exact", found.sentence
    assert said(found, "kv_cache_bytes") == {2 * 2 * 3 * 8 * 4}
    assert said(found, "output_bytes") == {2 * 3 * 8 * 4}


class BaseConfig:
    """Says that the model may keep a cache."""

    use_cache = True


class PartsConfig:
    """Says so of a part of the model."""

    sub_configs = ("inner",)
    inner = BaseConfig()


class Drawn(nn.Module):
    """Mixes its input with noise, as much of it as is drawn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones((), device=x.device)
        share = torch.distributions.Beta(ones, ones, validate_args=False).sample((x.shape[0], 1))
        return x + share


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_drawn_is_no_work(device: str) -> None:
    found = costproof.count(Drawn(), torch.ones(2, 3, device=device))
    assert found.verdict == "exact", found.sentence
    assert said(found, "vector_flops") == {2 * 3}


@pytest.mark.parametrize("config", ["BaseConfig", "PartsConfig"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_inside_of_a_result_is_a_cache(device: str, config: str) -> None:
    with torch.device(device):
        outer = Outer()
        outer.config = globals()[config]()
        found = costproof.count(outer, torch.ones(2, 3, 8))
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


class Pairs(nn.Module):
    """Returns keys and values as a plain tuple, under the name of a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.kv = nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        keys, values = self.kv(x).chunk(2, -1)
        return {"out": self.out(x), "past_key_values": ((keys, values),)}


def test_a_cache_without_a_class_of_its_own_is_written() -> None:
    found = costproof.count(Pairs(), torch.ones(2, 3, 4))
    assert found.verdict == "exact", found.sentence
    assert said(found, "kv_cache_bytes") == {2 * 2 * 3 * 4 * 4}
    # 24 numbers come in, 24 and 48 go out, and there are both weights with their biases.
    assert said(found, "floor_bytes") == {4 * (24 + 24 + 48 + 4 * 4 + 4 + 4 * 8 + 8)}


class Scores(nn.Module):
    """[B, S, 4] -> [B, S, S]."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x @ self.rows(x).transpose(1, 2)
        return result


class Replacing(nn.Module):
    """Puts another part in the place of one when it first runs, and has it keep the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.part = "long", Scores()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "long":
            other = Scores()
            other.rows = self.part.rows
            self.kind, self.part = "short", other
        result: torch.Tensor = self.part(x)
        return result


@pytest.mark.parametrize("device", DEVICES)
def test_a_part_that_is_made_when_the_model_runs_does_its_own_work(device: str) -> None:
    with torch.device(device):
        found = costproof.count(Replacing(), torch.ones(2, 3, 4))
    assert found.verdict == "exact", found.sentence
    for ledger in found.capture.ledgers:
        flops = {n.module: n.cost("flops") for n in ledger.nodes if n.cost("flops")}
        assert flops == {"part": 2 * 2 * 3 * 3 * 4, "part.rows": 2 * 2 * 3 * 4 * 4}


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


class Written(nn.Module):
    """Writes into a part of what its first layer gives, and hands the whole on."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.first, self.second, self.write = nn.Linear(4, 6), nn.Linear(6, 2), write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.write(y)
        result: torch.Tensor = self.second(y)
        return result


def add_to_a_column(y: torch.Tensor) -> None:
    y[:, 0] += 1


@pytest.mark.parametrize(
    "write",
    [add_to_a_column, lambda y: y[:, 0].mul_(2), lambda y: nn.functional.relu_(y[:, 0])],
    ids=["augmented", "mul_", "relu_"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_who_reads_a_tensor_reads_all_of_it_though_a_part_was_written(
    device: str, write: Callable[[torch.Tensor], object]
) -> None:
    with torch.device(device):
        found = costproof.count(Written(write), torch.ones(3, 4))
    assert found.verdict == "exact", found.sentence
    assert said(found, "vector_flops") == {3}
    # Both layers read and write all of theirs; the column is read and written beside.
    assert said(found, "input_bytes") == {4 * (3 * 4 + 3 * 6 + 3)}
    assert said(found, "output_bytes") == {4 * (3 * 6 + 3 * 2 + 3)}


def nothing(y: torch.Tensor) -> None:
    y[False] = y[:, 0]


def a_number(y: torch.Tensor) -> None:
    y[:, 0] = 1.0


def a_number_by_list(y: torch.Tensor) -> None:
    y[:, [0]] = 1.0


@pytest.mark.parametrize(
    ("write", "moved"),
    [
        (nothing, 0),
        (a_number, 0),
        (lambda y: y[:, 0].fill_(1), 0),
        (lambda y: y[:, 0].zero_(), 0),
        (a_number_by_list, 18),
    ],
    ids=["nothing", "number", "fill_", "zero_", "list"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_number_written_over_a_part(device: str, write: Callable[[torch.Tensor], object], moved: int) -> None:
    with torch.device(device):
        found = costproof.count(Written(write), torch.ones(3, 4))
    assert found.verdict == "exact", found.sentence
    # Written over a view like a copy: whoever reads the tensor reads all of it. What an index picks makes it anew.
    assert said(found, "input_bytes") == {4 * (3 * 4 + 3 * 6 + moved)}
    assert said(found, "output_bytes") == {4 * (3 * 6 + 3 * 2 + moved)}


class States(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@pytest.mark.parametrize("kind", [lambda *two: two, States, lambda *two: list(two)], ids=["tuple", "named", "list"])
def test_arguments_may_be_tuples_of_tensors(kind: Callable[..., Any]) -> None:
    layer = nn.LSTM(4, 6)
    found = costproof.count(layer, torch.ones(5, 2, 4), kind(torch.zeros(1, 2, 6), torch.zeros(1, 2, 6)))
    assert found.verdict == "exact", found.sentence
    # Five steps of two rows through four gates, each of 4 and of 6 numbers.
    assert said(found, "flops") == {5 * 2 * 2 * 4 * 6 * (4 + 6)}
