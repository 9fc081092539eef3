"""Activation bytes of a callgraph that fits on a napkin.

Two layers of class Block on [1, 3, 4] in bfloat16: 24 bytes in, 24 out each; layer 0 is called twice and
only its first call is told about. The head takes 24 bytes and a mask of 12 booleans (no activation), and gives
[1, 3, 10] in float32, 120 bytes, that very tensor once more in a list, and its cache.
"""

from __future__ import annotations

import pytest

from costproof.ledger.callgraph import CallGraph, PlainAt, TensorAt
from costproof.ledger.errors import BadInput
from costproof.reports.activations import along, by_family, by_module, callers, tensor_bytes
from costproof.reports.frames import frame

HIDDEN = (TensorAt((1, 3, 4), "bfloat16", "args[0]"),)
GRAPH = CallGraph(
    call_counts={"(root)": 1, "layers.0": 2, "layers.1": 1, "head": 1},
    edges={"(root)->layers.0": 2, "(root)->layers.1": 1, "(root)->head": 1},
    op_call_counts={},
    module_children={},
    module_types={"(root)": "Net", "layers.0": "Block", "layers.1": "Block", "head": "Head"},
    input_metadata={
        "layers.0": HIDDEN,
        "layers.1": HIDDEN,
        "head": (*HIDDEN, TensorAt((1, 3, 4), "bool", "kwargs.mask")),
    },
    output_metadata={
        "layers.0": HIDDEN,
        "layers.1": HIDDEN,
        "head": (
            TensorAt((1, 3, 10), "float32", "output.logits"),
            PlainAt("same tensor", "output.logits", "output.all[0]"),
            TensorAt((1, 2, 3, 2), "bfloat16", "output.cache.layers[0].keys", 1, "cache"),
        ),
    },
)


def test_modules() -> None:
    rows = {r.module: r for r in by_module(GRAPH).rows}
    assert (rows["layers.1"].input_bytes, rows["layers.1"].output_bytes) == (24, 24)
    assert (rows["head"].input_bytes, rows["head"].output_bytes) == (24, 120)
    assert (rows["layers.0"].first_output_bytes, rows["layers.0"].output_bytes) == (24, None)
    assert rows["(root)"].first_output_bytes is None


def test_families_are_sums_and_unknown_stays_unknown() -> None:
    found = by_family(GRAPH).rows
    assert [(r.module, r.type, r.modules, r.calls) for r in found] == [
        ("(root)", "Net", 1, 1),
        ("layers.[0-1]", "Block", 2, 3),
        ("head", "Head", 1, 1),
    ]
    assert (found[1].first_output_bytes, found[1].output_bytes) == (48, None)


def test_along_a_path() -> None:
    table = along(GRAPH, ("layers.1", "head"))
    assert [r.output_bytes for r in table.rows] == [24, 120]
    assert table.output_bytes == 144
    assert table.peak is not None
    assert table.peak.module == "head"
    assert along(GRAPH, ("layers.0", "layers.1")).output_bytes is None
    assert callers(GRAPH, "layers.1") == ("(root)", "layers.1")
    with pytest.raises(BadInput, match="no such module"):
        along(GRAPH, ("layers.2",))


def test_values_that_were_left_out_make_the_sum_unknown() -> None:
    assert tensor_bytes((*HIDDEN, PlainAt("left out", 3, "args"))) is None


def test_the_table_is_a_frame_with_exact_integers() -> None:
    table = frame(by_family(GRAPH))
    assert list(table["module"]) == ["(root)", "layers.[0-1]", "head"]
    assert str(table["first_output_bytes"].dtype) == "Int64"
    assert table["output_bytes"].isna().tolist() == [True, True, False]
