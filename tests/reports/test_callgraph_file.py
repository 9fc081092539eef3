"""``callgraph.json``: what other tools read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.errors import Problems
from costproof.ledger.schema import json_schema, to_data
from costproof.reports.callgraph_json import CALLGRAPH, callgraph_file, read_callgraph
from tests.reports.toy import toy
from tests.written import dump

NEEDED = {"call_counts", "edges", "op_call_counts", "module_children", "module_types"}
HEADER = {"schema", "schema_version", "conventions", "target", "workload", "environment"}


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    path = tmp_path / "callgraph.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_reads_back_equal(tmp_path: Path) -> None:
    made = callgraph_file(toy())
    dump(tmp_path / "callgraph.json", CALLGRAPH, made)
    assert read_callgraph(tmp_path / "callgraph.json") == made
    assert made.callgraph() == toy().callgraph


def test_a_file_without_the_metadata_keys_loads_with_empty_fields(tmp_path: Path) -> None:
    data = {k: v for k, v in to_data(CALLGRAPH, callgraph_file(toy())).items() if k in NEEDED | HEADER}
    found = read_callgraph(written(tmp_path, data)).callgraph()
    assert found == CallGraph(**vars_of(toy().callgraph))
    absent = (found.constructor_params, found.input_metadata, found.output_metadata, found.data_edges)
    assert not any((*absent, found.module_aliases, found.tied_parameters, found.events))


def vars_of(graph: CallGraph | None) -> dict[str, Any]:
    assert graph is not None
    return {name: getattr(graph, name) for name in NEEDED}


def test_shapes_of_the_first_version_still_load(tmp_path: Path) -> None:
    data = to_data(CALLGRAPH, callgraph_file(toy()))
    data["schema_version"] = "1.0"
    data["input_metadata"] = {"text.attn": [{"shape": [1, 2], "dtype": "int64"}]}
    found = read_callgraph(written(tmp_path, data)).input_metadata["text.attn"][0]
    assert (found.place, found.call, found.kind) == ("", 1, "tensor")


def test_what_is_written_meets_the_schema() -> None:
    data = json.loads(json.dumps(to_data(CALLGRAPH, callgraph_file(toy()))))
    jsonschema.validate(data, json_schema(CALLGRAPH))


def test_a_damaged_entry_is_told_with_its_path(tmp_path: Path) -> None:
    data = to_data(CALLGRAPH, callgraph_file(toy()))
    data["data_edges"] = {"a->b": "often"}
    with pytest.raises(Problems) as caught:
        read_callgraph(written(tmp_path, data))
    assert [p.where for p in caught.value.problems] == ["$.data_edges.a->b"]
