"""Folders written whole, formats found by name, schemas without drift, tables with exact integers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pandas as pd
import pytest

from costproof import compare, frame
from costproof.ledger.errors import BadInput
from costproof.ledger.files import json_text
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.schema import json_schema
from costproof.reports import formats
from costproof.reports.folder import write_texts
from costproof.reports.kinds import file_kinds
from tests.reports.toy import toy

SCHEMAS = Path(__file__).parents[2] / "src" / "costproof" / "schemas"


def test_all_files_or_none(tmp_path: Path) -> None:
    (tmp_path / "out" / "b.md").mkdir(parents=True)
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / "out" / "a.json": "a", tmp_path / "out" / "b.md": "b"})
    assert os.listdir(tmp_path / "out") == ["b.md"]


def test_a_folder_made_for_nothing_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / "new" / "deep" / "a": "a", tmp_path / "file" / "b": "b"})
    assert os.listdir(tmp_path) == ["file"]


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old and long")
    write_texts({tmp_path / "a": "new"})
    assert (tmp_path / "a").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_two_owners_of_a_format_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = formats.Format("summary", "s.txt", "another one", lambda: lambda v: "", owner="other-dist")
    monkeypatch.setattr(formats, "_plugged", lambda: (mine,))
    with pytest.raises(BadInput) as error:
        formats.formats()
    assert "costproof and other-dist" in str(error.value)


def test_a_plug_in_adds_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "tests.reports.plugin:FORMAT", formats.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (point,))
    assert compare(toy()).render("one-line") == "toy: exact\n"


def test_a_plug_in_that_is_no_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "tests.reports.plugin:NOT_A_FORMAT", formats.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (point,))
    with pytest.raises(BadInput, match="no Format"):
        formats.formats()


@pytest.mark.parametrize("name", sorted(file_kinds()))
def test_committed_schemas_have_not_drifted(name: str, request: pytest.FixtureRequest) -> None:
    path = SCHEMAS / f"{name}.schema.json"
    text = json_text(json_schema(file_kinds()[name]))
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest --update-goldens writes the schemas anew"


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("capture", "capture-json"),
        ("static_compute", "static-json"),
        ("discrepancy", "discrepancy-json"),
        ("callgraph", "callgraph-json"),
    ],
)
def test_files_follow_their_schema(name: str, format_: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    data = json.loads(compare(toy()).render(format_))
    jsonschema.Draft202012Validator(schema).validate(data)
    del data["conventions"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(data)


def test_tables() -> None:
    found = compare(toy())
    stages = found.stages()
    assert list(stages["stage"]) == ["sam", "clip", "decode"]
    assert list(stages["flops"]) == [1792, 0, 864]
    assert stages["flops"].dtype == pd.Int64Dtype()
    assert stages["vector_flops"].isna().all()
    nodes = found.nodes()
    assert nodes[nodes["source"] == "static"]["flops"].sum() == 2656
    assert set(found.findings()["status"]) == {"exact"}
    modules = found.modules().set_index("module")
    assert modules.loc["sam.layers.0.lin", "calls"] == 2
    ledger = found.capture.ledger("dynamic")
    assert frame(ledger)["params"].sum() == 83


def test_integers_beyond_64_bits_stay_exact() -> None:
    node = CostNode("s", "c", "m", "k", {"flops": 2**70 + 1})
    table = frame(Ledger("analytic", (node,), ("flops",), ("s",)))
    assert table["flops"][0] == 2**70 + 1


def test_a_value_without_a_table_says_so() -> None:
    with pytest.raises(BadInput, match="no table"):
        frame(replace(toy()).workload)
