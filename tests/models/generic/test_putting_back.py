"""What a counted module keeps in variables, and how it draws numbers, is afterwards as it was before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy
import pytest
import torch
from torch import nn

import costproof
from costproof.models.specs import Run
from costproof.patches.inference import inference_context
from costproof.tracers.dynamic import record_output

X: Final = torch.ones(3, 8)
_LIST: Final[list[torch.Tensor]] = []
_RECENT: Final[deque[torch.Tensor]] = deque(maxlen=2)
_NESTED: Final[dict[str, dict[int, torch.Tensor]]] = {"sine": {}}
_DEEP: Final[list[list[torch.Tensor]]] = [[]]


def table() -> torch.Tensor:
    """What is kept: the sine of 8 numbers."""
    return torch.arange(8.0).sin()


Made = tuple[nn.Module, Callable[[], Any]]
"""A module, and what shows what it keeps."""


class Kept(nn.Module):
    """A product with a table that a function makes or has kept."""

    def __init__(self, get: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.get = get

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.get()


def beside() -> Made:
    def get() -> torch.Tensor:
        if not _LIST:
            _LIST.append(table())
        return _LIST[0]

    return Kept(get), _LIST.copy


def recent() -> Made:
    def get() -> torch.Tensor:
        if not _RECENT:
            _RECENT.append(table())
        return _RECENT[-1]

    return Kept(get), lambda: list(_RECENT)


def nested() -> Made:
    def get() -> torch.Tensor:
        return _NESTED["sine"].setdefault(8, table()) if 8 not in _NESTED["sine"] else _NESTED["sine"][8]

    return Kept(get), lambda: [*_NESTED["sine"], len(_NESTED)]


def deep() -> Made:
    def get() -> torch.Tensor:
        if not _DEEP[0]:
            _DEEP[0].append(table())
        return _DEEP[0][0]

    return Kept(get), lambda: [len(inner) for inner in _DEEP]


def closure() -> Made:
    held: list[torch.Tensor] = []
    last: torch.Tensor | None = None

    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal last
            if not held:
                held.append(table())
            if last is None:
                last = held[0]
            return x * last

    return Closing(), lambda: (len(held), last)


def on_the_instance() -> Made:
    module, held = nn.Identity(), list[torch.Tensor]()

    def forward(x: torch.Tensor) -> torch.Tensor:
        if not held:
            held.append(table())
        return x * held[0]

    module.forward = forward  # type: ignore[method-assign,assignment]
    return module, held.copy


def hook() -> Made:
    module, held = nn.Identity(), dict[str, torch.Tensor]()

    def before(part: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if not held:
            held["sine"] = table()
        return given[0] * held["sine"]

    module.register_forward_pre_hook(before)
    return module, held.copy


class Defaults(nn.Module):
    """Keeps in a default, and as an attribute of a function."""

    def forward(self, x: torch.Tensor, _kept: list[torch.Tensor] = []) -> torch.Tensor:  # noqa: B006
        own: Any = Defaults.forward
        if not _kept:
            _kept.append(table())
        if not hasattr(own, "held"):
            own.held = _kept[0]
        result: torch.Tensor = x * own.held
        return result


def defaults() -> Made:
    return Defaults(), lambda: (Defaults.forward.__defaults__, dict(vars(Defaults.forward)))


class Table:
    """An object that makes its table when it is first asked."""

    def __init__(self) -> None:
        self.held: torch.Tensor | None = None


class Having(nn.Module):
    """Has such an object, and lists of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lists = Table(), {"all": list[torch.Tensor]()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table.held is None:
            self.table.held = table()
            self.lists["all"].append(self.table.held)
        return x * self.lists["all"][0]


def own_object() -> Made:
    module = Having()
    return module, lambda: (module.table.held, len(module.lists["all"]))


WAYS: Final = (beside, recent, nested, deep, closure, on_the_instance, hook, defaults, own_object)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_is_kept_is_made_in_every_run_and_taken_back(
    way: Callable[[], Made],
) -> None:
    module, left = way()
    before = left()
    for _ in range(2):
        found = costproof.count(module, X)
        assert found.verdict == "exact"
        # The sine of 8 numbers, and a product of 3 x 8.
        assert {s.total("vector_flops") for s in found.capture.ledgers} == {8 + 24}
        assert left() == before


def test_what_was_kept_before_and_what_holds_no_tensor_stays() -> None:
    held: list[Any] = [table()]

    class Listing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            result: torch.Tensor = x * held[0]
            return result

    first, calls = held[0], list[int]()
    costproof.count(Listing(), X)
    assert held[0] is first
    assert set(calls) == {3}


class Drawing(nn.Module):
    """Draws with numpy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(numpy.random.rand())


def test_numbers_that_numpy_draws_stay_as_they_were() -> None:
    numpy.random.seed(7)
    before: Any = numpy.random.get_state()
    costproof.count(Drawing(), X)
    after: Any = numpy.random.get_state()
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


def test_what_a_watcher_of_ours_collects_stays() -> None:
    module = nn.Linear(8, 8)
    with torch.no_grad():
        run = Run("forward", module, {"input": X}, lambda path, call: ("forward", "forward"), expected=module(X))
        with record_output(run) as results, inference_context(module):
            module(X)
    assert len(results) == 1
