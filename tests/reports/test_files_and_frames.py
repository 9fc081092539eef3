"""Folders written whole, formats found by name, schemas without drift, tables with exact integers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import jsonschema
import pandas as pd
import pytest

from costproof import compare, frame
from costproof.foreign import skipped
from costproof.ledger.errors import BadInput
from costproof.ledger.files import json_text
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.writing import write_texts
from costproof.reports.outputs import OUTPUTS, Output
from costproof.reports.report import Report, write_report
from costproof.run.schemas import file_kinds, kind_names, schema_names, schema_of
from tests.support.running import costproof
from tests.support.toy import asked, toy

ASKED = [o for o in OUTPUTS if o.kind and o.of_capture and o.name != "counters-json"]
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


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Offer an object of ``tests.reports.plugin`` as an output of another distribution."""

    def offer(name: str, attribute: str) -> None:
        point = EntryPoint(name, f"tests.reports.plugin:{attribute}", "costproof.outputs")
        found = lambda group: (point,) if group == point.group else ()  # noqa: E731
        monkeypatch.setattr("costproof.plugins.entry_points", found)

    return offer


def test_a_plug_in_adds_a_format(plugged: Callable[[str, str], None], tmp_path: Path) -> None:
    plugged("one-line", "OUTPUT")
    assert compare(toy()).render("one-line") == "toy: exact\n"
    assert "one-line" in costproof("render", "--list", cwd=tmp_path).stdout


def test_a_format_of_ours_stays_ours(plugged: Callable[[str, str], None]) -> None:
    plugged("summary", "OUTPUT")
    assert "Status" in compare(toy()).render("summary")
    (error,) = skipped()
    assert error.got == "costproof and tests.reports.plugin:OUTPUT"


def test_a_plug_in_of_another_type_is_refused(plugged: Callable[[str, str], None]) -> None:
    plugged("bad", "NOT_AN_OUTPUT")
    with pytest.raises(BadInput, match="a str, not a Output"):
        compare(toy()).render("bad")


def test_the_table_of_outputs_is_sound() -> None:
    assert len({o.name for o in OUTPUTS}) == len({o.file for o in OUTPUTS}) == len(OUTPUTS)
    for output in OUTPUTS:
        assert (output.kind is None) != (output.write is None), output.name
        assert output.write is None or callable(output.write())
    # Help texts take the names without loading the kinds; a kind's own name must be the same.
    assert {name: f"costproof/{name}" for name in kind_names()} == {n: k.name for n, k in file_kinds().items()}


def test_files_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    """A callgraph and its picture belong to the capture before; a file that is not ours stays."""
    first = write_report(Report(asked()), tmp_path)
    assert first.removed == ()
    for name in ("callgraph.svg", "notes.md", "certificate.md"):
        (tmp_path / name).write_text("old")
    second = write_report(Report(replace(toy(), callgraph=None)), tmp_path)
    assert [p.name for p in second.removed] == ["callgraph.json", "callgraph.svg"]
    left = {*(p.name for p in second.files), "notes.md", "certificate.md"}
    assert {p.name for p in tmp_path.iterdir()} == left


def test_only_what_a_report_wrote_is_removed(tmp_path: Path) -> None:
    """A capture alone is no report: whoever put files beside it keeps them."""
    (tmp_path / "capture.json").write_text(Report(toy()).render("capture-json"))
    mine = ["callgraph.svg", "profile.md"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    assert write_report(Report(replace(toy(), callgraph=None)), tmp_path).removed == ()
    assert [(tmp_path / name).read_text() for name in mine] == ["mine", "mine"]
    assert [p.name for p in write_report(Report(replace(toy(), callgraph=None)), tmp_path).removed] == ["callgraph.svg"]
    assert (tmp_path / "profile.md").read_text() == "mine", "no manifest names it"


@pytest.mark.parametrize("name", ["manifest.json", "callgraph.json"])
def test_a_file_of_somebody_else_with_our_name_is_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "my web app"}')
    done = costproof("report", "gpt2", "--sources", "analytic", "-o", ".", cwd=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert f"error: a file of this name exists, and costproof did not write it\n  where:    {name}" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", sorted(schema_names()))
def test_committed_schemas_have_not_drifted(name: str, request: pytest.FixtureRequest) -> None:
    path = SCHEMAS / f"{name}.schema.json"
    text = json_text(schema_of(name))
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "pytest --update-goldens writes the schemas anew"


@pytest.mark.parametrize("output", ASKED, ids=[o.name for o in ASKED])
def test_files_follow_their_schema(output: Output) -> None:
    name, format_ = output.file.removesuffix(".json"), output.name
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    data = json.loads(compare(asked()).render(format_))
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
    assert modules["output_bytes"].dtype == pd.Int64Dtype()
    ledger = found.capture.ledger("dynamic")
    assert frame(ledger)["params"].sum() == 83


def test_integers_beyond_64_bits_stay_exact() -> None:
    node = CostNode("s", "c", "m", "k", {"flops": 2**70 + 1})
    table = frame(Ledger("analytic", (node,), ("flops",), ("s",)))
    assert table["flops"][0] == 2**70 + 1


def test_a_value_without_a_table_says_so() -> None:
    with pytest.raises(BadInput, match="no table"):
        frame(replace(toy()).workload)
