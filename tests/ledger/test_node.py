"""Totals are sums over nodes: unknown stays unknown, and shared modules count once."""

from __future__ import annotations

from costproof.ledger.node import CostNode, Ledger, exact_sum

NODES = (
    CostNode("prefill", "", "m.q", "", {"params": 12}),
    CostNode("decode", "", "m.q", "", {"params": 12}),
    CostNode("prefill", "", "m.k", "", {"params": 5}),
    CostNode("prefill", "prompt", "m.q", "linear", {"flops": 100}),
    CostNode("decode", "steps", "m.q", "linear", {"flops": 7}),
    CostNode("decode", "steps", "m.k", "mystery", {"flops": None}),
)
LEDGER = Ledger("static", NODES, ("params", "flops"), ("prefill", "decode"))


def test_a_module_that_works_in_two_stages_owns_its_parameters_once() -> None:
    assert LEDGER.total("params") == 12 + 5
    assert LEDGER.stage_total("prefill", "params") == 17
    assert LEDGER.stage_total("decode", "params") == 12


def test_unknown_is_not_zero() -> None:
    assert LEDGER.stage_total("prefill", "flops") == 100
    assert LEDGER.stage_total("decode", "flops") is None
    assert LEDGER.total("flops") is None
    assert exact_sum([1, None]) is None
    assert exact_sum([]) == 0


def test_what_a_source_does_not_cover_is_unknown() -> None:
    assert LEDGER.total("vector_flops") is None
    assert LEDGER.stage_total("sam", "flops") is None


def test_ids_are_unique_and_readable() -> None:
    assert NODES[3].id == "prefill[prompt]/m.q:linear"
    assert NODES[0].id == "prefill/m.q"
    assert len({n.id for n in NODES}) == len(NODES)
