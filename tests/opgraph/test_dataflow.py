"""Which call feeds which, on graphs drawn by hand."""

from __future__ import annotations

from costproof.opgraph.costed import cost_graph, data_edges, feeding_calls
from costproof.opgraph.graph import Graph, ModuleCall, OpCall, Value
from tests.tracers.realistic import deep_config
from tests.tracers.small import PAGE

INPUT = Value("in", (2,), "float32", "input")


class Drawn:
    """A graph under construction: calls with their callers, operators with what they read."""

    def __init__(self, *calls: tuple[str, int, tuple[str, int] | None]) -> None:
        self.calls = tuple(ModuleCall(module, call, parent, "M") for module, call, parent in calls)
        self.ops: list[OpCall] = []

    def op(self, module: str, *tensors: Value, call: int = 1, name: str = "relu") -> Value:
        """One operator under a call; gives its result."""
        label = f"op{len(self.ops)}"
        out = Value(label, (2,), "float32")
        self.ops.append(OpCall(label, name, module, call, tensors, (out,)))
        return out

    def edges(self) -> dict[str, int]:
        """The edges that the code finds."""
        return {
            f"{a}->{b}": n for (a, b), n in data_edges(cost_graph(Graph(tuple(self.ops), (), (), self.calls))).items()
        }


ROOT = ("", 1)


def test_a_chain() -> None:
    drawn = Drawn(("", 1, None), ("a", 1, ROOT), ("b", 1, ROOT), ("c", 1, ROOT))
    drawn.op("c", drawn.op("b", drawn.op("a", INPUT)))
    assert drawn.edges() == {"a->b": 1, "b->c": 1}


def test_siblings_that_read_the_same_do_not_feed_each_other() -> None:
    drawn = Drawn(("", 1, None), ("e0", 1, ROOT), ("e1", 1, ROOT), ("join", 1, ROOT))
    x = drawn.op("", INPUT)
    drawn.op("join", drawn.op("", drawn.op("e0", x), drawn.op("e1", x), name="add"))
    assert drawn.edges() == {"e0->join": 1, "e1->join": 1}


def test_a_residual_stream_of_the_caller_feeds_all_later_ones() -> None:
    drawn = Drawn(("", 1, None), ("a", 1, ROOT), ("b", 1, ROOT), ("c", 1, ROOT))
    x = drawn.op("", INPUT)
    for module in ("a", "b"):
        x = drawn.op("", x, drawn.op(module, x), name="add")
    drawn.op("c", x)
    assert drawn.edges() == {"a->b": 1, "a->c": 1, "b->c": 1}


def test_views_carry_data_and_shapes_do_not() -> None:
    drawn = Drawn(("", 1, None), ("a", 1, ROOT), ("b", 1, ROOT), ("c", 1, ROOT))
    made = drawn.op("a", INPUT)
    drawn.op("b", drawn.op("", made, name="view"))
    drawn.op("c", drawn.op("", made, name="zeros_like"))
    assert drawn.edges() == {"a->b": 1}


def test_the_innermost_common_caller_has_the_edge() -> None:
    inner = ("outer", 1)
    drawn = Drawn(
        ("", 1, None), ("first", 1, ROOT), (*inner, ROOT), ("outer.x", 1, inner), ("outer.y", 1, inner),
        ("last", 1, ROOT),
    )  # fmt: skip
    x = drawn.op("outer.x", drawn.op("first", INPUT))
    y = drawn.op("outer.y", x)
    drawn.op("last", x, y)
    assert drawn.edges() == {"first->outer": 1, "outer.x->outer.y": 1, "outer->last": 1}


def test_a_module_called_twice_feeds_itself_or_not() -> None:
    calls = (("", 1, None), ("a", 1, ROOT), ("a", 2, ROOT))
    series, apart = Drawn(*calls), Drawn(*calls)
    series.op("a", series.op("a", INPUT), call=2)
    apart.op("a", INPUT)
    apart.op("a", INPUT, call=2)
    assert series.edges() == {"a->a": 1}
    assert apart.edges() == {}


def test_pairs_of_calls_are_counted_once_however_many_tensors_pass() -> None:
    drawn = Drawn(("", 1, None), ("a", 1, ROOT), ("b", 1, ROOT), ("b", 2, ROOT))
    one, two = drawn.op("a", INPUT), drawn.op("a", INPUT)
    for call in (1, 2):
        drawn.op("b", one, two, call=call, name="add")
        drawn.op("b", one, call=call)
    assert drawn.edges() == {"a->b": 2}


def test_every_edge_of_a_model_runs_forward_between_calls_of_one_caller() -> None:
    from costproof.models.families.deepseek_ocr import native
    from costproof.tracers.torchlens_trace import trace_graph

    work = cost_graph(trace_graph(native.READER.shape_runs(native.build_model(deep_config()), PAGE)[0]).graph)
    parents = {(c.module, c.call): c.parent for c in work.graph.calls}
    pairs = feeding_calls(work)
    assert all(parents[a] == parents[b] for a, b in pairs)
    edges = data_edges(work)
    for stack, depth, calls in (("sam_encoder.layers", 3, 2), ("vision_encoder.encoder.layers", 2, 2)):
        path = f"model.vision_tower.{stack}"
        found = {e: n for e, n in edges.items() if e[0].startswith(path) and e[0].count(".") == path.count(".") + 1}
        chain = {(f"{path}.{i}", f"{path}.{i + 1}"): calls for i in range(depth - 1)}
        assert {e: n for e, n in found.items() if e[1].startswith(path)} == chain
    assert edges["model.vision_tower", "model.multi_modal_projector"] == 2
    assert edges["model.multi_modal_projector", "model.language_model"] == 2
    # Attention feeds the second norm over the residual addition of the layer itself.
    layer = "model.language_model.layers.0"
    assert edges[f"{layer}.self_attn", f"{layer}.post_attention_layernorm"] == 1
