"""Activation bytes of a callgraph that fits on a napkin.

Two layers of class Block on [1, 3, 4] in bfloat16: 24 bytes in, 24 out each; layer 0 is called twice and
only its first call is told about. The head takes 24 bytes and a mask of 12 booleans (no activation), and gives
[1, 3, 10] in float32, 120 bytes, that very tensor once more in a list, and its cache.
"""

from __future__ import annotations

from dataclasses import replace

from costproof.ledger.callgraph import CallGraph, PlainAt, TensorAt
from costproof.views.frames import frame

HIDDEN = (TensorAt((1, 3, 4), "bfloat16", "args[0]"),)
GRAPH = CallGraph(
    call_counts={"(root)": 1, "head": 1, "layers.0": 2, "layers.1": 1},
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


def test_modules_with_exact_integers() -> None:
    table = frame(GRAPH).set_index("module")
    assert (table.loc["layers.1", "input_bytes"], table.loc["layers.1", "output_bytes"]) == (24, 24)
    assert (table.loc["head", "input_bytes"], table.loc["head", "output_bytes"]) == (24, 120)
    assert table.loc["layers.0", "first_output_bytes"] == 24
    assert table["output_bytes"].isna().tolist() == [True, False, True, False]
    assert table["first_output_bytes"].isna().tolist() == [True, False, False, False]
    assert str(table["output_bytes"].dtype) == "Int64"


def test_values_that_were_left_out_make_the_sum_unknown() -> None:
    cut = replace(GRAPH, input_metadata={"head": (*HIDDEN, PlainAt("left out", 3, "args"))})
    assert frame(cut)["first_input_bytes"].isna().all()
