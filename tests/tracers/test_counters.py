"""Adapters on a small layer whose products are known by hand, and processes that fail."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from costproof.ledger.errors import BadInput
from costproof.tracers.counters.registry import counter, counters
from costproof.tracers.counters.running import Limits, run_counters
from costproof.tracers.counters.surroundings import jit_on_meta, positional
from tests.tracers import small

# Linear 6 -> 6 with bias, twice on 2 x 5 rows.
MACS = 2 * (10 * 6 * 6)
CORE = {"fvcore": MACS, "FlopCounterMode": 2 * MACS}


@pytest.mark.parametrize("name", CORE)
def test_a_linear_layer(name: str) -> None:
    model, args = positional(small.toy(), {"x": torch.empty(2, 5, 6, device="meta")})
    found = counter(name).count(model, args)
    assert found.total == CORE[name] == sum(r.value for r in found.rows)
    assert {r.module for r in found.rows} == {"proj"}


def test_torchlens_counts_the_bias_and_the_product_beside_it() -> None:
    model, args = positional(small.toy(), {"x": torch.empty(2, 5, 6, device="meta")})
    rows = {(r.module, r.kind): r.value for r in counter("torchlens").count(model, args).rows}
    assert rows == {
        ("proj", "linear"): 2 * MACS, ("proj", "linear, beside the products"): 2 * 60, ("", "__mul__"): 120,
    }  # fmt: skip


def test_a_convolution_traced_on_meta_is_that_of_the_cpu() -> None:
    totals = set()
    for device in ("meta", "cpu"):
        conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, device=device)
        model, args = positional(conv, {"input": torch.zeros(1, 3, 8, 8, device=device)})
        totals.add(counter("fvcore").count(model, args).total)
    assert totals == {16 * 4 * 3 * 9}


def test_surroundings_are_undone() -> None:
    before = torch._check, nn.functional.conv2d
    with pytest.raises(KeyboardInterrupt), jit_on_meta():
        raise KeyboardInterrupt
    assert (torch._check, nn.functional.conv2d) == before


def test_a_name_with_two_owners() -> None:
    with pytest.raises(BadInput, match="same counter") as error:
        counters([EntryPoint("fvcore", "mine:COUNTER", "costproof.counters")])
    assert error.value.got == "costproof and mine:COUNTER"


@pytest.fixture(scope="module")
def truth_and_runs() -> object:
    """The small model, on two counters, in processes."""
    return run_counters(small.SmallTarget(), small.PAGE, ["FlopCounterMode"], ("projector",), Limits(120, 0, 1))


def test_processes(truth_and_runs: tuple[object, ...]) -> None:
    truth, runs = truth_and_runs
    # The projector is a linear layer of 64 + 64 -> 80 features on 4 positions of the page and 1 of each crop.
    expected = {"global": 2 * 4 * 128 * 80, "crops": 2 * 2 * 128 * 80}
    assert {c.invocation: sum(n.costs.get("flops") or 0 for n in c.nodes) for c in truth} == expected  # type: ignore[attr-defined]
    assert {c.invocation: c.value for c in runs[0].calls} == expected  # type: ignore[index]


def test_a_process_that_is_too_slow_is_a_row() -> None:
    from costproof.orchestrate import Ready
    from costproof.tracers.counters.running import _process
    from costproof.tracers.counters.worker import Order

    order = Order(Ready(small.SmallTarget()), small.PAGE, "fvcore", 0)
    calls = _process(order, Limits(1, 0, 1), (("sam", "global"),))
    assert [(c.stage, c.error) for c in calls] == [("sam", "took longer than 1 s")]
