"""``callgraph.json``: what other tools read."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.errors import Problems
from costproof.ledger.schema import json_schema, to_data
from costproof.views.files import CALLGRAPH, CallGraphFile, callgraph_file, read_drawable
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import dump

NEEDED = {"call_counts", "edges", "op_call_counts", "module_children", "module_types"}
HEADER = {"schema", "schema_version", "conventions", "target", "workload", "environment"}


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "callgraph.json"
    path.write_text(json.dumps(data))
    return path


def loaded(path: Path) -> CallGraph:
    found = read_drawable(path)
    assert isinstance(found, CallGraph)
    return found


def test_a_file_reads_back_equal(tmp_path: Path) -> None:
    made = callgraph_file(toy())
    dump(tmp_path / "callgraph.json", CALLGRAPH, made)
    assert loaded(tmp_path / "callgraph.json") == made
    assert all(getattr(made, f.name) == getattr(toy().callgraph, f.name) for f in fields(CallGraph))


def test_a_file_without_the_metadata_keys_loads_with_empty_fields(tmp_path: Path) -> None:
    data = {k: v for k, v in to_data(CALLGRAPH, callgraph_file(toy())).items() if k in NEEDED | HEADER}
    found = loaded(written(tmp_path, data))
    assert isinstance(found, CallGraphFile)
    assert all(getattr(found, name) == getattr(toy().callgraph, name) for name in NEEDED)
    absent = (found.constructor_params, found.input_metadata, found.output_metadata, found.data_edges)
    assert not any((*absent, found.module_aliases, found.tied_parameters, found.events))


def test_shapes_without_a_place_load(tmp_path: Path) -> None:
    data = to_data(CALLGRAPH, callgraph_file(toy()))
    data["input_metadata"] = {"text.attn": [{"shape": [1, 2], "dtype": "int64"}]}
    found = loaded(written(tmp_path, data)).input_metadata["text.attn"][0]
    assert (found.place, found.call, found.kind) == ("", 1, "tensor")


def test_what_is_written_meets_the_schema() -> None:
    data = json.loads(json.dumps(to_data(CALLGRAPH, callgraph_file(toy()))))
    jsonschema.validate(data, json_schema(CALLGRAPH))


def test_a_damaged_entry_is_told_with_its_path(tmp_path: Path) -> None:
    data = to_data(CALLGRAPH, callgraph_file(toy()))
    data["data_edges"] = {"a->b": "often"}
    with pytest.raises(Problems) as caught:
        loaded(written(tmp_path, data))
    assert [p.where for p in caught.value.problems] == ["$.data_edges.a->b"]


LAYERS = [f"net.layers.{i}" for i in range(4)]
CALLS: dict[str, Any] = {
    "call_counts": {"(root)": 1, "net": 1, **dict.fromkeys(LAYERS, 3), **{f"{x}.mlp": 3 for x in LAYERS}},
    "edges": {"(root)->net": 1, **{f"net->{x}": 3 for x in LAYERS}, **{f"{x}->{x}.mlp": 3 for x in LAYERS}},
    "op_call_counts": {},
    "module_children": {"net": ["net.layers"], "net.layers": LAYERS},
    "module_types": {"(root)": "Model", "net": "Net", "net.layers": "ModuleList", **dict.fromkeys(LAYERS, "Layer"),
                     **{f"{x}.mlp": "Mlp" for x in LAYERS}},
}  # fmt: skip


def test_it_is_drawn_like_a_capture(tmp_path: Path) -> None:
    header = {k: v for k, v in to_data(CALLGRAPH, callgraph_file(toy())).items() if k in HEADER}
    path = written(tmp_path, {**header, **CALLS})
    told = costproof("graph", str(path), "-f", "mmd", cwd=tmp_path)
    assert (told.code, told.stderr) == (0, "")
    assert "Layer<br/>net.layers.[0-3]<br/>12 calls" in told.stdout
    assert "a callgraph alone: no parameters and no FLOPs" in told.stdout
    assert costproof("graph", str(path), "-f", "dot,svg", "-o", "drawn", cwd=tmp_path).code == 0
    assert {p.name for p in (tmp_path / "drawn").iterdir()} == {"callgraph.dot", "callgraph.svg"}


def test_what_is_neither_is_told_apart(tmp_path: Path) -> None:
    told = costproof("graph", str(written(tmp_path, {"edges": {}})), cwd=tmp_path)
    assert told.code == 2
    assert "not a capture file" in told.stderr
