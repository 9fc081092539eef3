"""Costs and parameters of experts of which the data decides which run, on their container."""

from __future__ import annotations

from typing import Any

from costproof.ledger.node import CostNode
from costproof.opgraph.merge import group_costs, group_parameters


def node(module: str, kind: str, **costs: Any) -> CostNode:
    return CostNode("prefill", "prompt", module, kind, dict(costs))


def test_costs_are_summed_and_calls_dropped() -> None:
    nodes = [
        node("mlp", "", calls=1),
        node("mlp.experts.0.up", "linear", flops=30),
        node("mlp.experts.2.up", "linear", flops=70),
        node("mlp.experts.0", "", calls=1, output_bytes=6),
        node("mlp.experts.0.up", "", calls=1, weight_read_bytes=40),
        node("mlp.experts.2.up", "", calls=1, weight_read_bytes=40),
        node("mlp.experts_gate", "", calls=1),
    ]
    found = {n.id: n.costs for n in group_costs(nodes, {"mlp.experts": (3, 0, 7, 0)})}
    # 10 rows reach 2 of 4 experts; at most min(4, 10) = 4 are read, 40 bytes each.
    assert found == {
        "prefill[prompt]/mlp": {"calls": 1},
        "prefill[prompt]/mlp.experts_gate": {"calls": 1},
        "prefill[prompt]/mlp.experts:linear": {"flops": 100},
        "prefill[prompt]/mlp.experts": {"output_bytes": 6, "weight_read_bytes": 160},
    }


def test_a_run_with_few_rows_reads_few_experts() -> None:
    (found,) = group_costs([node("mlp.experts.1.up", "", weight_read_bytes=40)], {"mlp.experts": (0, 2, 0, 0)})
    assert found.costs["weight_read_bytes"] == 2 * 40


def test_experts_that_no_row_reached_count_in_every_model_of_reuse() -> None:
    nodes = [
        node("mlp.experts.1.up", "", weight_read_bytes=40, unfused_bytes=40 + 12),
        node("mlp.experts.3.up", "", weight_read_bytes=40, unfused_bytes=40 + 30),
        node("mlp.experts.3.act", "", unfused_bytes=7),
    ]
    (found,) = group_costs(nodes, {"mlp.experts": (0, 2, 0, 5)})
    assert found.costs == {"weight_read_bytes": 4 * 40, "unfused_bytes": 4 * 40 + 12 + 30 + 7}


def test_experts_that_are_not_alike_are_unknown() -> None:
    costs = {"weight_read_bytes": 41, "unfused_bytes": 50, "output_bytes": 5}
    (found,) = group_costs([node("mlp.experts.1.up", "", **costs)], {"mlp.experts": (3, 3, 1, 0)})
    assert found.costs == {"weight_read_bytes": None, "unfused_bytes": None, "output_bytes": 5}


def test_one_token_passes_rows_per_position() -> None:
    held = [
        CostNode("prefill", "", f"mlp.experts.{i}.up", "", {"params": 20, "params_active": 20, "weight_bytes": 40})
        for i in range(4)
    ]
    (found,) = group_parameters(held, {"mlp.experts": (3, 0, 7, 0)}, 5)
    # 10 rows for 5 positions: 2 of 4 experts, 2 * 20 elements.
    assert found.module == "mlp.experts"
    assert found.costs == {"params": 80, "params_active": 40, "weight_bytes": 160}
