"""Files are written whole or not at all, and read strictly."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from costproof.ledger.capture import CAPTURE, Capture, read_capture
from costproof.ledger.errors import NOT_GIVEN, BadInput, Problems
from costproof.ledger.files import read_json
from costproof.ledger.metrics import Conventions
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.schema import from_data, json_schema, to_data
from costproof.ledger.workload import TargetInfo
from costproof.ledger.writing import write_texts
from costproof.models.pages.page import Page, page_workload
from tests.support.written import write_capture


def small() -> Capture:
    node = CostNode("sam", "", "m", "", {"params": 2**70, "weight_bytes": None}, {"params": "sam_hidden**2"})
    return Capture(
        conventions=Conventions(),
        target=TargetInfo("toy", "native", "0" * 12, {"sam_hidden": 2**35}, ("sam",)),
        workload=page_workload("w", Page(1024, 640, (2, 3)), 5),
        environment={"costproof": "0"},
        invocations=(),
        ledgers=(Ledger("analytic", (node,), ("params", "weight_bytes"), ("sam",)),),
    )


def test_a_capture_reads_back_equal_with_integers_beyond_64_bits(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", small())
    assert read_capture(tmp_path / "c.json") == small()


def test_the_same_capture_gives_the_same_bytes(tmp_path: Path) -> None:
    write_capture(tmp_path / "a.json", small())
    write_capture(tmp_path / "b.json", small())
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_what_is_written_meets_the_published_schema() -> None:
    jsonschema.validate(json.loads(json.dumps(to_data(CAPTURE, small()))), json_schema(CAPTURE))


def damage(tmp_path: Path, change: object) -> Path:
    data = to_data(CAPTURE, small())
    path = tmp_path / "c.json"
    assert callable(change)
    change(data)
    path.write_text(json.dumps(data))
    return path


def test_a_text_where_a_number_belongs_is_refused_with_its_path(tmp_path: Path) -> None:
    def change(data: dict[str, list[dict[str, list[dict[str, dict[str, str]]]]]]) -> None:
        data["ledgers"][0]["nodes"][0]["costs"]["params"] = "3"

    with pytest.raises(Problems) as caught:
        read_capture(damage(tmp_path, change))
    assert [p.where for p in caught.value.problems] == ["$.ledgers[0].nodes[0].costs.params"]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    def change(data: dict[str, object]) -> None:
        data["workload"] = {"name": "w", "inputs": 5}
        data["surprise"] = 1

    with pytest.raises(Problems) as caught:
        read_capture(damage(tmp_path, change))
    assert {p.where for p in caught.value.problems} == {"$.workload.inputs", "$.workload.text_tokens", "$.surprise"}


@pytest.mark.parametrize(
    ("version", "read"),
    [("4.0", True), ("4.7", True), *((v, False) for v in ("3.7", "5.0", "x", "4.x", "4", None))],
)
def test_another_major_version_is_refused_and_a_newer_minor_is_read(
    tmp_path: Path, version: str | None, read: bool
) -> None:
    path = damage(tmp_path, lambda data: data.update(schema_version=version))
    if read:
        assert read_capture(path) == small()
    else:
        with pytest.raises(BadInput, match="another major version"):
            read_capture(path)


def test_a_newer_minor_version_may_add_fields(tmp_path: Path) -> None:
    path = damage(tmp_path, lambda data: data.update(schema_version=f"4.{CAPTURE.version[1] + 1}", added_later=[1]))
    assert read_capture(path) == small()


@pytest.mark.parametrize(
    ("known", "written", "newer"), [(9, "1.10", True), (10, "1.9", False), (10, "1.10", False), (2, "1.11", True)]
)
def test_minor_versions_compare_as_numbers(known: int, written: str, newer: bool) -> None:
    """Only a newer minor version may add a key; in any other the key is a mistake."""
    kind = replace(CAPTURE, version=(1, known))
    data = {**to_data(kind, small()), "schema_version": written, "added_later": 1}
    if newer:
        assert from_data(data, kind, where="c.json", make_again="again") == small()
    else:
        with pytest.raises(Problems) as caught:
            from_data(data, kind, where="c.json", make_again="again")
        assert [p.where for p in caught.value.problems] == ["$.added_later"]


def test_a_null_where_a_version_belongs_is_said() -> None:
    with pytest.raises(BadInput) as caught:
        from_data({**to_data(CAPTURE, small()), "schema_version": None}, CAPTURE, where="c.json", make_again="again")
    assert caught.value.got == "null"


def test_an_error_tells_null_from_nothing() -> None:
    """A ``null`` that was there is a value; what was not given has no line."""
    assert str(BadInput("w", got=None)) == "w\n  got:      null"
    assert str(BadInput("w", expected=None, got=0)) == "w\n  expected: null\n  got:      0"
    assert str(BadInput("w", expected=NOT_GIVEN)) == str(BadInput("w")) == "w"


def test_a_capture_without_ledgers_is_refused(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", replace(small(), ledgers=()))
    with pytest.raises(BadInput, match="without ledgers"):
        read_capture(tmp_path / "c.json")


@pytest.mark.parametrize("content", [b'{"a": ', b"\xff\xfe\x00", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(BadInput):
        read_json(tmp_path / "x.json", what="capture")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_texts({path: "half \ud800"})
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_a_path_below_a_file_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / "file" / "x.json": ""})


def test_a_folder_in_the_way_is_an_error_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(BadInput, match="cannot write"):
        write_texts({tmp_path / "x.json": ""})
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    write_texts({Path(os.devnull): "gone"})
    assert Path(os.devnull).is_char_device()


def test_a_file_begins_with_its_header_and_sorts_the_rest(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", small())
    keys = list(json.loads((tmp_path / "c.json").read_text()))
    assert keys[:6] == ["schema", "schema_version", "conventions", "target", "workload", "environment"]
    assert keys[6:] == sorted(keys[6:])


def test_a_configuration_in_place_of_our_file_is_named_as_a_target() -> None:
    for data, fix in (({"model_type": "qwen3"}, "hf:a b.json names the model in the file"), ({"model": 1}, "again")):
        with pytest.raises(BadInput, match="not a capture file") as caught:
            from_data(data, CAPTURE, where="a b.json", make_again="again")
        assert caught.value.fix == fix
