"""Two modules without formulas, compared by part. Expected numbers are worked out by hand from the sizes."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections import deque
from datetime import date
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from costproof.compare.diff.diff import adds_up, diff
from costproof.compare.diff.types import Diff
from costproof.compare.gate.judge import judge
from costproof.compare.gate.policy import policy_from_text
from costproof.ledger.baseline import Baseline, fold_capture
from costproof.ledger.errors import BadInput
from costproof.models.generic.live_module import at_hand
from costproof.models.registry import load_target
from costproof.models.target import WithValues
from costproof.run.capture import count_sources
from costproof.run.count_lock import count_lock
from costproof.run.prepare import Prepared
from costproof.snapshots.described import MOST_ARGUMENTS, arguments, fingerprint, module_kinds, shapes


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.attention(x, x, x, need_weights=False)[0])  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, depth: int = 2, out: int = 4, heads: int = 2, extra: bool = False, wide: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(8, heads) for _ in range(depth))
        if wide:
            self.blocks[-1].mlp = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 8))
        self.head = nn.Linear(8, out)
        if extra:
            self.extra = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.extra(x) if hasattr(self, "extra") else x)  # type: ignore[no-any-return]


BLOCK = 2 * 8 * 24 + 2 * 8 * 8 + 2 * (2 * 8 * 16) + 4 * 3 * 8
"""FLOPs of a block for one of three tokens: in and out projections, two products of the MLP, scores and values."""
BLOCK_PARAMS = (8 * 24 + 24) + (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8)


@cache
def side(batch: int = 1, **sizes: Any) -> Baseline:
    with torch.device("meta"):
        module, x = Net(**sizes), torch.empty(batch, 3, 8)
    with count_lock(), at_hand(module, (x,), {}) as target:
        return fold_capture(count_sources(Prepared(target, target.workload(), ("static",))).capture)


def compared(base: Baseline, head: Baseline) -> Diff:
    found = diff(base, head)
    assert not list(adds_up(found))
    return found


def changed(found: Diff) -> dict[str, tuple[object, object]]:
    return {c.key: (c.base, c.head) for c in found.modules.changed}


def terms(found: Diff, metric: str = "flops") -> dict[tuple[str, ...], int]:
    return {t.keys: t.amount for t in found.totals[metric].terms}


def test_one_block_more_is_named_with_all_that_it_adds() -> None:
    found = compared(side(), side(depth=3))
    assert changed(found) == {"blocks.*": (2, 3)}
    assert terms(found) == {("blocks.*",): 3 * BLOCK}
    assert terms(found, "params") == {("blocks.*",): BLOCK_PARAMS}
    assert terms(found, "weight_bytes") == {("blocks.*",): 4 * BLOCK_PARAMS}
    assert terms(found, "floor_bytes").keys() == {("blocks.*",)}


def test_first_the_inputs_change_then_the_parts() -> None:
    """Two blocks and the head at batch 2 for 4, then one block more at batch 2."""
    found = compared(side(batch=4), side(batch=2, depth=3))
    inputs = "workload.batch + inputs.x"
    whole = 2 * BLOCK + 2 * 8 * 4
    assert terms(found) == {(inputs,): -2 * 3 * whole, ("blocks.*",): 2 * 3 * BLOCK}
    assert terms(found, "params") == {("blocks.*",): BLOCK_PARAMS}
    assert terms(found, "floor_bytes").keys() == {(inputs, "blocks.*")}, "the floor is of the whole call"


def test_a_model_that_grew_while_its_batch_shrank_does_not_pass_the_gate() -> None:
    """FLOPs fell, so a limit on their increase alone would be green."""
    policy = policy_from_text("costproof_policy: 1\nlimits:\n- {metric: flops, increase: 0}\n", where="policy.yaml")
    found = judge(side(batch=4), side(batch=2, depth=3), policy, date(2026, 1, 1))
    assert [c.status for c in found.checks] == ["passed"]
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert "inputs.x: float32[4,3,8] → float32[2,3,8]" in found.incomplete[0]
    assert judge(side(), side(depth=3), policy, date(2026, 1, 1)).exit_code == 1, "the same inputs: over the limit"


def test_blocks_that_do_not_cost_the_same_are_not_divided() -> None:
    found = compared(side(batch=4, wide=True), side(batch=2, depth=3, wide=True))
    assert changed(found).keys() == {"blocks.*", "blocks.*.mlp.*"}
    assert ("workload.batch + inputs.x", "blocks.*") in terms(found)


def test_other_settings_shapes_and_new_parts() -> None:
    found = compared(side(), side(out=6, extra=True))
    assert changed(found) == {
        "head": (
            "out_features 4, weight float32[4,8], bias float32[4]",
            "out_features 6, weight float32[6,8], bias float32[6]",
        ),
        "extra": (None, "Linear (weight float32[8,8])"),
    }
    assert terms(found) == {("head",): 3 * 2 * 8 * 2, ("extra",): 3 * 2 * 8 * 8}
    back = compared(side(out=6, extra=True), side())
    assert terms(back, "params") == {("head",): -2 * 9, ("extra",): -64}
    assert changed(back)["extra"] == ("Linear (weight float32[8,8])", None)


def test_heads_that_no_shape_shows_are_named_and_in_the_hash() -> None:
    base, head = side(), side(heads=4)
    assert base.target.config_hash != head.target.config_hash
    found = compared(base, head)
    assert changed(found) == {"blocks.*.attention": ("num_heads 2, head_dim 4", "num_heads 4, head_dim 2")}
    assert found.totals["flops"].delta == 0


def test_the_hash_has_shapes_dtypes_buffers_and_plain_attributes() -> None:
    assert fingerprint(Net(), {}) == fingerprint(Net(), {})

    with_buffer = Net()
    with_buffer.register_buffer("mask", torch.ones(3))
    longer = Net()
    longer.register_buffer("mask", torch.ones(4))
    deep = Net()
    deep.plan = {"sizes": [1, 2]}  # type: ignore[assignment]
    deeper = Net()
    deeper.plan = {"sizes": [1, 3]}  # type: ignore[assignment]
    every = [fingerprint(m, {}) for m in (Net(), Net().half(), with_buffer, longer, deep, deeper, Net(heads=4))]
    assert len({*every}) == len(every)


def test_the_hash_has_the_code_of_own_files(tmp_path: Path) -> None:
    """A helper that works twice leaves the module as it is; a comment changes nothing."""
    hashes = []
    for name, body in (("a", "x"), ("b", "x  # a comment"), ("c", "x @ x")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "m.py"
        file.write_text(
            "import torch\nfrom torch import nn\n"
            f"def helper(x):\n    return {body}\n"
            "class Base(nn.Module):\n    def forward(self, x):\n        return helper(x)\n"
            "class Net(Base):\n    pass\n"
            "def make():\n    return Net(), torch.zeros(2, 2)\n"
        )
        hashes.append(load_target(f"{file}:make").info().config_hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_inputs_alone() -> None:
    found = compared(side(batch=4), side(batch=2))
    assert (changed(found), terms(found)) == ({}, {("workload.batch + inputs.x",): -2 * 3 * (2 * BLOCK + 64)})


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ({"x": torch.zeros(0, 3), "scale": None, "n": 3, "train": False}, "x float32[0,3] scale None n 3 train False"),
        ({"x": [torch.zeros(1, 0), {"a": torch.zeros(2, dtype=torch.int8)}]}, "x.0 float32[1,0] x.1.a int8[2] [0, 0]"),
        ({"x": (), "y": {}, "z": 1.5, "s": "mean"}, "x [] y {} z 1.5 s 'mean'"),
        ({"ids": [1, 2, 3]}, "ids [1, 2, 3]"),
        ({"d": torch.float16, "x": torch.zeros(())}, "d torch.float16 x float32[] 0.0"),
    ],
)
def test_arguments_in_words(given: dict[str, Any], listed: str) -> None:
    assert " ".join(f"{k} {v}" for k, v in arguments(given).items()) == listed


def test_arguments_inside_objects_and_long_ones() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys, self.me = torch.zeros(1, 2), self

    assert shapes({"cache": Cache()})["cache.keys"] == "float32[1,2]"
    many = {f"x{i}": torch.zeros(i) for i in range(MOST_ARGUMENTS + 5)}
    other = {**many, f"x{MOST_ARGUMENTS + 4}": torch.zeros(1)}
    assert len(arguments(many)) == MOST_ARGUMENTS + 1
    assert arguments(many) != arguments(other)
    long = arguments({"ids": list(range(1000))})["ids"]
    assert len(long) < 100
    assert long != arguments({"ids": list(range(1, 1001))})["ids"]


class _Slots:
    __slots__ = ("tensor",)

    def __init__(self, rows: int) -> None:
        self.tensor = torch.zeros(rows, 2)


class _Raises:
    shape = "big"
    dtype = "odd"

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _nested(levels: int, rows: int) -> Any:
    return [_nested(levels - 1, rows)] if levels else torch.zeros(rows, 2)


def _closure(rows: int) -> Any:
    return lambda x: x[:rows]


@pytest.mark.parametrize(
    "one",
    [
        torch.tensor,
        np.int64,
        lambda n: torch.arange(8) < n,  # a mask
        lambda n: torch.tensor([[1, n, n]]),  # sizes of an image
        lambda n: slice(0, n),
        range,
        lambda n: deque(range(n)),
        Decimal,
        bytearray,
        _Slots,
        lambda n: partial(_nested, n),
        _closure,
        lambda n: _nested(20, n),
        lambda n: {"a": {"b": torch.zeros(n)}, "a.b": torch.zeros(1)},
        lambda n: {1: torch.zeros(n), "1": torch.zeros(1)},
        lambda n: [*[[0]] * 20_000, [n]],
        lambda n: nn.Linear(n, 2, device="meta"),
    ],
)
def test_other_arguments_have_another_text(one: Any) -> None:
    assert arguments({"x": one(4)}) == arguments({"x": one(4)})
    assert arguments({"x": one(4)}) != arguments({"x": one(3)})


class _Holds(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held
        self.layer = nn.Linear(4, 4)


def _hooked(times: int) -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda *call: call[2].repeat(times, 1))
    return module


def _buffered(times: int) -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_buffer("times", torch.tensor([times]))
    return module


def _patched(times: int) -> nn.Module:
    module = nn.Linear(4, 4)
    forward = module.forward
    module.forward = lambda x: forward(x.repeat(times, 1))  # type: ignore[method-assign, assignment]
    return module


@pytest.mark.parametrize(
    "one",
    [
        lambda n: nn.MultiheadAttention(8, n),
        lambda n: _Holds(_Slots(n)),
        lambda n: _Holds(Namespace(heads=n)),
        lambda n: _Holds({"a": [Namespace(heads=n)]}),
        lambda n: _Holds(_closure(n)),
        lambda n: _Holds(torch.tensor([n])),
        lambda n: _Holds(torch.arange(12) < n),
        _hooked,
        _buffered,
        _patched,
        lambda n: torch.fx.symbolic_trace(nn.Unflatten(0, (n, -1))),
    ],
)
def test_what_decides_a_number_is_in_the_hash(one: Any) -> None:
    assert fingerprint(one(4), {}) == fingerprint(one(4), {})
    assert fingerprint(one(4), {}) != fingerprint(one(2), {})


def test_weights_are_not_in_the_hash() -> None:
    assert fingerprint(_Holds(torch.rand(3)), {}) == fingerprint(_Holds(torch.rand(3)), {})


def test_arguments_of_any_class_have_a_text_that_a_file_holds() -> None:
    shared: list[Any] = [torch.zeros(2)]
    for _ in range(50):
        shared = [shared, shared]
    cycle: list[Any] = []
    cycle.append(cycle)
    odd = {"a": _Raises(), "b": {_Raises()}, "c": 10**5000, "\ud800": "\ud800", "d": shared, "e": cycle}
    listed = arguments(odd)
    assert json.loads(json.dumps(listed).encode()) == listed
    "".join((*listed, *listed.values())).encode()
    assert listed["e.0"] == "as e"
    assert len(listed) < 100


def test_values_are_told_apart_from_shapes(tmp_path: Path) -> None:
    file = tmp_path / "loops.py"
    file.write_text(
        "import torch\n"
        "class Loop(torch.nn.Linear):\n"
        "    def forward(self, x, times):\n"
        "        return super().forward(x)\n"
        "def make():\n"
        "    return Loop(8, 8), (torch.zeros(2, 8), torch.tensor(4))\n"
    )
    target = load_target(f"{file}:make")
    workload = target.workload()
    assert workload.arguments == {"x": "float32[2,8]", "times": "int64[]"}
    assert workload.what == "x float32[2,8], times int64[]"
    zeros = hashlib.sha256(bytes(4 * 2 * 8)).hexdigest()[:12]
    assert isinstance(target, WithValues)
    assert target.with_values(workload).arguments == {"x": f"float32[2,8] {zeros}", "times": "int64[] 4"}
    overridden = target.workload(input="x=3x8")
    assert target.with_values(overridden).arguments == {"x": "float32[3,8]", "times": "int64[] 4"}


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("net._modules['\\ud800'] = torch.nn.Linear(1, 1); x = torch.zeros(1, 2)", "cannot be written to a file"),
        ("net._modules[3] = torch.nn.Linear(1, 1); x = torch.zeros(1, 2)", "cannot be written to a file"),
        ("x = torch.nested.nested_tensor([torch.zeros(1, 2)], layout=torch.strided)", "of the strided layout"),
    ],
)
def test_factories_of_what_no_capture_can_say(tmp_path: Path, body: str, what: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(f"import torch\ndef make():\n    net = torch.nn.Linear(2, 2); {body}\n    return net, x\n")
    with pytest.raises(BadInput, match=what):
        load_target(f"{file}:make").workload()


def test_attributes_that_no_file_can_hold_are_left_out_or_written_short() -> None:
    net = nn.Linear(2, 2)
    vars(net).update({"big": 10**5000, "many": (10**400,), "half": "\ud800", "\ud800": 1, "paths": ["/home/me"]})
    settings = module_kinds(net)["(root)"][0].settings
    assert settings == {"in_features": 2, "out_features": 2, "big": "an integer of 16610 bits"}
    assert fingerprint(net, {}) != fingerprint(nn.Linear(2, 2), {})
