"""The Python interface."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import costproof
from costproof.ledger.capture import read_capture
from costproof.ledger.errors import BadInput, Problems
from costproof.reports.report import Report
from costproof.run.prepare import Prepared
from tests.support.toy import asked, toy, wrong
from tests.support.written import write_capture


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Calls of the counting machinery, which gives the toy capture at once."""
    calls: list[tuple[object, ...]] = []

    def count(*arguments: object, **_: object) -> Report:
        calls.append(arguments)
        return Report(toy())

    monkeypatch.setattr("costproof.run.report.count_sources", count)
    return calls


def test_every_public_name_exists() -> None:
    for name in costproof.__all__:
        assert getattr(costproof, name) is not None
    assert set(costproof.__all__) <= set(dir(costproof))
    with pytest.raises(AttributeError, match="no attribute 'raport'"):
        costproof.raport  # noqa: B018


def test_a_workload_is_a_preset_with_changes() -> None:
    made = costproof.workload("deepseek-ocr", "gundam", grid="3x2", batch=4)
    assert (made.inputs["grid"], made.batch, made.dtype) == ((3, 2), 4, "bfloat16")


def test_all_problems_of_a_workload_at_once() -> None:
    with pytest.raises(Problems) as error:
        costproof.workload("deepseek-ocr", "gundam", batch=0, new_tokens=-1)
    assert len(error.value.problems) == 2


def test_capture_hands_over_what_was_asked(counted: list[tuple[object, ...]]) -> None:
    run = costproof.workload("deepseek-ocr", "tiny", batch=2)
    assert costproof.capture("deepseek-ocr", workload=run, sources=["static", "analytic"]) == toy()
    prepared = counted[0][0]
    assert isinstance(prepared, Prepared)
    assert prepared.workload == run
    assert prepared.sources == ("analytic", "static")  # in the order of the sources, whatever was asked


def test_a_workload_and_settings_exclude_each_other(counted: list[tuple[object, ...]]) -> None:
    run = costproof.workload("deepseek-ocr", "tiny")
    with pytest.raises(BadInput, match="exclude each other"):
        costproof.capture("deepseek-ocr", workload=run, batch=2)
    assert counted == []


def test_a_workload_made_by_hand_is_checked(counted: list[tuple[object, ...]]) -> None:
    run = replace(costproof.workload("deepseek-ocr", "tiny"), batch=0)
    with pytest.raises(Problems):
        costproof.capture("deepseek-ocr", workload=run)
    assert counted == []


def test_report_writes_and_returns(tmp_path: Path, counted: list[tuple[object, ...]]) -> None:
    phases: list[str] = []
    found = costproof.report("deepseek-ocr", out=tmp_path / "r", progress=lambda p, d, t: phases.append(p))
    assert found.verdict == "exact"
    assert found.exit_code == 0
    assert read_capture(tmp_path / "r" / "capture.json") == toy()
    assert list(dict.fromkeys(phases)) == ["load", "compare", "write"]


def test_a_folder_that_cannot_be_is_found_before_the_work(tmp_path: Path, counted: list[tuple[object, ...]]) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(BadInput, match="need a folder"):
        costproof.report("deepseek-ocr", out=tmp_path / "f")
    assert counted == []


def test_view_takes_a_file_or_a_capture(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", wrong())
    assert costproof.compare(tmp_path / "c.json").verdict == "unexplained"
    assert costproof.compare(str(tmp_path / "c.json")).exit_code == 1
    assert costproof.compare(toy()).verdict == "exact"


def test_file_and_memory_give_the_same_reports(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", asked())
    for name in (n for n in costproof.formats() if not n.startswith("counters")):
        assert costproof.compare(tmp_path / "c.json").render(name) == costproof.compare(asked()).render(name)


def test_explain_answers_without_a_capture() -> None:
    found = costproof.explain("deepseek-ocr", "projector", preset="tiny", module="*multi_modal_projector*")
    # One page of 512 pixels: 8 x 8 tokens of 2048 features to 1280.
    assert [c.total for c in found.calls] == [2 * 64 * 2048 * 1280]


def test_explain_points_at_a_capture_only_if_it_fits() -> None:
    found = costproof.explain("deepseek-ocr", "projector", preset="tiny", graph=toy())
    assert all(part.matches == () for call in found.calls for part in call.parts)


def test_one_source_by_name() -> None:
    made = costproof.capture("deepseek-ocr", preset="tiny", sources="analytic")
    assert made.ledger("analytic") is not None
    assert [x.source for x in made.ledgers] == ["analytic", "checkpoint"]
    assert set(made.environment) >= {"costproof", "python", "sympy"}


def test_an_unknown_counter_is_refused_before_any_work(counted: list[tuple[object, ...]]) -> None:
    for names in (["fvcor"], []):
        with pytest.raises(BadInput, match="counter"):
            costproof.report("deepseek-ocr", counters=names)
    assert counted == []


def test_what_is_large_prints_as_one_line() -> None:
    found = costproof.compare(toy())
    for value in (toy(), toy().ledgers[0], found.discrepancy, found.static, toy().callgraph):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 120


def test_a_typing_error_in_a_name_is_told() -> None:
    found = costproof.compare(toy())
    for ask, meant in (
        (lambda: found.discrepancy.finding("sam#flop"), "sam#flops"),
        (lambda: toy().ledger("statik"), "static"),
        (lambda: costproof.render(toy(), "static-mb"), "static-md"),
        (lambda: costproof.schema("captur"), "capture"),
        (lambda: costproof.request("deepseek-ocr", girds="2x2"), "grid"),
        (lambda: costproof.explain(toy(), "sma"), "sam"),
    ):
        with pytest.raises(BadInput) as error:
            ask()
        assert error.value.fix == f"did you mean {meant}?"
