"""The script that compares the reports of two versions: ``benchmarks.same_numbers``."""

from __future__ import annotations

from benchmarks.same_numbers import differences

OLD = {"workload": {"page": {"grid": [2, 3]}}, "stages": [{"flops": 5, "kinds": []}], "schema_version": "1.2"}
NEW = {
    "workload": {"inputs": {"grid": [2, 3]}, "what": "views"},
    "stages": [{"flops": 5, "kinds": []}],
    "schema_version": "2.0",
}


def test_renamed_and_added_keys_are_no_difference() -> None:
    assert list(differences(OLD, NEW)) == []


def test_a_page_that_was_null_is_an_empty_setting() -> None:
    text = {"workload": {"page": None}}
    assert list(differences(text, {"workload": {"inputs": {}}})) == []
    one_view, two = ({"workload": {"page": {"side": 512, "grid": grid}}} for grid in (None, 2))
    new = {"workload": {"inputs": {"side": 512}}}
    assert list(differences(one_view, new)) == []
    assert list(differences(two, new)) == ["$.workload.inputs.grid: 2 is gone"]


def test_every_other_difference_is_told() -> None:
    assert list(differences(OLD, {**NEW, "stages": [{"flops": 6, "kinds": []}]})) == ["$.stages[0].flops: 5 is 6 now"]
    assert list(differences(OLD, {**NEW, "stages": [{"flops": 5.0, "kinds": []}]})) == [
        "$.stages[0].flops: 5 is 5.0 now"
    ]
    assert list(differences(OLD, {**NEW, "stages": [{"flops": 5}]})) == ["$.stages[0].kinds: [] is gone"]
    assert list(differences(OLD, {**NEW, "more": None})) == ["$.more: None is new"]
