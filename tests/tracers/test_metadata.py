from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch

from costproof.ledger.callgraph import PlainAt, TensorAt
from costproof.tracers.hooks import MAX_VALUES, describe_arguments, describe_output

X = torch.empty(2, 3, dtype=torch.float16, device="meta")
Y = torch.empty(4, dtype=torch.int64, device="meta")


@dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Layer:
    def __init__(self) -> None:
        self.keys, self.values, self._scratch, self.seen = X, torch.empty_like(X), X, 7


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer()]


class OldCache:
    def __init__(self) -> None:
        self.key_cache, self.value_cache = [X], [Y]


def test_every_tensor_has_its_place() -> None:
    pair = namedtuple("pair", "left right")
    found = describe_arguments((X, [Y, {"a b": torch.empty(1)}]), {"pair": pair(torch.empty(5), None)}, call=3)
    assert found == (
        TensorAt((2, 3), "float16", "args[0]", 3),
        TensorAt((4,), "int64", "args[1][0]", 3),
        TensorAt((1,), "float32", "args[1][1]['a b']", 3),
        TensorAt((5,), "float32", "kwargs.pair.left", 3),
        PlainAt("NoneType", None, "kwargs.pair.right", 3),
    )


def test_what_is_no_tensor_is_marked() -> None:
    found = describe_arguments((True, 3, 0.5, "text", "x" * 81, float("inf"), torch.float16, object()), {})
    assert [(v.kind, v.value) for v in found if isinstance(v, PlainAt)] == [
        ("bool", True),
        ("int", 3),
        ("float", 0.5),
        ("str", "text"),
        ("str", None),
        ("float", "inf"),
        ("dtype", "float16"),
        ("object", None),
    ]


def test_results_of_every_form() -> None:
    assert describe_output(X) == (TensorAt((2, 3), "float16", "output"),)
    assert describe_output((X, 1)) == (TensorAt((2, 3), "float16", "output[0]"), PlainAt("int", 1, "output[1]"))
    assert describe_output(Result(X)) == (
        TensorAt((2, 3), "float16", "output.logits"),
        PlainAt("NoneType", None, "output.loss"),
    )
    assert describe_output(None) == (PlainAt("NoneType", None, "output"),)


def test_a_cache_is_no_activation() -> None:
    assert describe_arguments((), {"past": Cache()}) == (
        PlainAt("Cache", None, "kwargs.past"),
        TensorAt((2, 3), "float16", "kwargs.past.layers[0].keys", 1, "cache"),
        TensorAt((2, 3), "float16", "kwargs.past.layers[0].values", 1, "cache"),
    )
    assert [v.place for v in describe_output(OldCache())] == ["output", "output.key_cache[0]", "output.value_cache[0]"]


def test_a_tensor_that_comes_again_is_named_by_its_first_place() -> None:
    assert describe_output({"last": X, "all": (X,)}) == (
        TensorAt((2, 3), "float16", "output.last"),
        PlainAt("same tensor", "output.last", "output.all[0]"),
    )


def test_long_lists_and_many_values_are_cut_with_a_word() -> None:
    assert describe_arguments((list(range(17)),), {}) == (PlainAt("list[17]", None, "args[0]"),)
    many = describe_output([torch.empty(1) for _ in range(MAX_VALUES + 3)])
    assert len(many) == MAX_VALUES + 1
    assert many[-1] == PlainAt("left out", 3, "output")


def test_a_value_inside_itself_ends() -> None:
    loop: list[object] = [X]
    loop.append(loop)
    assert describe_output(loop)[-1] == PlainAt("list", None, "output[1]")
