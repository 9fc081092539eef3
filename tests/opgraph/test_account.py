"""From graphs to cost nodes."""

from __future__ import annotations

import pytest

from costproof.algebra.symbols import sym
from costproof.ledger.errors import Incomplete
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Size, Value
from tests.support.opcalls import call, value


def block(rows: Size, layers: int = 1, name: str = "aten.linear.default") -> Graph:
    """Layers of linear (8 -> 8), exp and a residual in their parent."""
    ops: list[OpCall] = []
    calls = [ModuleCall("", 1, None, "Root")]
    x = value(rows, 8, origin="input")
    for i in range(layers):
        w, y, e, z = value(8, 8, origin="param", name=f"{i}.w"), value(rows, 8), value(rows, 8), value(rows, 8)
        ops += [
            call(name, [x, w], [y], module=f"{i}.proj"),
            call("aten.exp.default", [y], [e], module=f"{i}"),
            call("aten.add.Tensor", [x, e], [z], module=f"{i}"),
        ]
        calls += [ModuleCall(f"{i}", 1, ("", 1), "Layer"), ModuleCall(f"{i}.proj", 1, (f"{i}", 1), "Linear")]
        x = z
    return Graph(tuple(ops), (x,), (), tuple(calls))


def here(module: str, number: int) -> tuple[str, str]:
    return "sam", "global"


def test_nodes_of_an_integer_graph() -> None:
    found = {n.id: n for n in account(cost_graph(block(3)), here).nodes}
    assert set(found) == {
        "sam[global]/0.proj:aten.linear", "sam[global]/0:aten.exp", "sam[global]/0:aten.add",
        "sam[global]/(root)", "sam[global]/0", "sam[global]/0.proj",
    }  # fmt: skip
    linear = found["sam[global]/0.proj:aten.linear"]
    assert linear.costs == {"flops": 2 * 3 * 8 * 8}
    assert linear.exprs == {}
    assert linear.owner == "Linear"
    assert len(linear.evidence) == 1
    assert found["sam[global]/0:aten.exp"].costs == {"vector_flops": 24}
    assert found["sam[global]/0.proj"].costs == {
        "calls": 1, "weight_read_bytes": 8 * 8 * 4, "input_bytes": 96, "output_bytes": 96, "unfused_bytes": 256 + 192,
    }  # fmt: skip
    # On their own the exponential reads and writes 96, the sum reads 2 x 96 and writes 96.
    assert found["sam[global]/0"].costs == {
        "calls": 1, "input_bytes": 96 + 96, "output_bytes": 96, "unfused_bytes": 192 + 288,
    }  # fmt: skip
    # In come 3 rows of 8 and 8 x 8 weights, out go 3 rows; 4 bytes each.
    assert found["sam[global]/(root)"].costs == {"calls": 1, "floor_bytes": 4 * (3 * 8 + 8 * 8 + 3 * 8)}


def test_flops_in_another_dtype_than_the_run_stand_beside() -> None:
    """Attention of 3 queries to 3 keys of width 8: two products of 2 x 3 x 3 x 8, and 6 for each of 9 scores."""
    ops = []
    for dtype in ("float32", "bfloat16"):
        q, k, v, y = (value(1, 1, 3, 8, dtype=dtype) for _ in range(4))
        ops.append(call("aten.scaled_dot_product_attention.default", [q, k, v], [y], module=dtype))
    graph = Graph(tuple(ops), (), (), tuple(ModuleCall(dtype, 1, None, "Linear") for dtype in ("float32", "bfloat16")))
    nodes = [n for n in account(cost_graph(graph), here, run_dtype="bfloat16").nodes if n.kind]
    by_module = {n.module: {m: cost for m, cost in n.costs.items() if m.endswith("_flops")} for n in nodes}
    assert by_module == {"float32": {"vector_flops": 54, "float32_flops": 288}, "bfloat16": {"vector_flops": 54}}


def test_symbolic_graph_gives_expressions() -> None:
    found = {n.id: n for n in account(cost_graph(block(9 * sym("n"))), here).nodes}
    linear = found["sam[global]/0.proj:aten.linear"]
    assert linear.exprs == {"flops": "1152*n"}  # 2 * 9n * 8 * 8
    assert linear.costs == {}
    # what does not depend on a symbol stands in both
    proj = found["sam[global]/0.proj"]
    assert proj.costs == {"calls": 1, "weight_read_bytes": 256}
    assert proj.exprs == {
        "calls": "1", "weight_read_bytes": "256", "input_bytes": "288*n", "output_bytes": "288*n",
        "unfused_bytes": "576*n + 256",
    }  # fmt: skip


def test_stages_and_invocations_are_the_callers_matter() -> None:
    x, y = value(2, 4, origin="input"), value(2, 4)
    graph = Graph(
        (call("exp", [x], [y], module="a"), call("exp", [x], [y], module="a", number=2)), (y,), (),
        (ModuleCall("a", 1, None, "A"), ModuleCall("a", 2, None, "A")),
    )  # fmt: skip
    nodes = account(cost_graph(graph), lambda module, number: ("clip", "global" if number == 1 else "crops")).nodes
    assert {(n.id, n.costs.get("vector_flops")) for n in nodes if n.kind} == {
        ("clip[global]/a:exp", 8),
        ("clip[crops]/a:exp", 8),
    }
    together = account(cost_graph(graph), here).nodes
    assert [n.costs for n in together if n.kind] == [{"vector_flops": 16}]
    assert [n.costs["calls"] for n in together if n.module and not n.kind] == [2]
    # Each invocation reads x, 2 x 4 of 4 bytes; of y the second result is what goes out. Together they read x once.
    assert [n.costs for n in nodes if not n.module] == [{"floor_bytes": 32}, {"floor_bytes": 64}]
    assert [n.costs for n in together if not n.module] == [{"floor_bytes": 64}]


def test_unknown_operators_are_gathered_with_their_bound() -> None:
    ops = tuple(call("mylib.mystery.default", [value(3, 4)], [value(3, 5)], module="m") for _ in range(2))
    accounted = account(cost_graph(Graph(ops, ())), here)
    (unknown,) = accounted.unknown
    assert (unknown.op, unknown.stage, unknown.module, unknown.count) == ("mylib.mystery", "sam", "m", 2)
    assert unknown.bound_flops is None  # shapes alone bound nothing
    assert unknown.why == "no rule for this operator"
    symbolic = call("mylib.mystery", [value(sym("n"), 4)], [value(sym("n"), 5)])
    assert account(cost_graph(Graph((symbolic,), ())), here).unknown[0].bound_flops is None


def test_scaffolding_must_not_compute() -> None:
    x, y = value(2, 4), value(2, 4)
    quiet = Graph((call("reshape", [x], [y], module="wrapper"),), (y,), (), (ModuleCall("wrapper", 1, None, "W"),))
    assert account(cost_graph(quiet), lambda m, c: None).nodes == ()
    loud = Graph((call("exp", [x], [y], module="wrapper"),), (y,))
    with pytest.raises(Incomplete) as caught:
        account(cost_graph(loud), lambda m, c: None)
    assert "wrapper" in str(caught.value)


def test_evidence_is_cut() -> None:
    x = value(2, 4)
    ops = tuple(call("exp", [x], [value(2, 4)], module="m") for _ in range(15))
    (node,) = (n for n in account(cost_graph(Graph(ops, ())), here).nodes if n.kind)
    assert len(node.evidence) == 13
    assert node.evidence[-1] == "… and 3 more"


def test_value_ids_need_not_be_distinct_from_their_source() -> None:
    """A cast that changes nothing returns its very argument."""
    x, y = value(2, 4, origin="input"), value(2, 4)
    same = Value(y.id, y.shape, y.dtype)
    ops = (call("exp", [x], [y], module="a"), call("to", [y], [same], module="b"), call("neg", [same], [x], module="c"))
    found = {n.module: n for n in account(cost_graph(Graph(ops, ())), here).nodes if not n.kind}
    assert found["a"].costs == {"input_bytes": 32, "output_bytes": 32, "unfused_bytes": 64}
