"""What varies: ranges, lists, names in step, products one after another, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.grid import grid_axes
from costproof.run.sweep import Sweep, sweep

ONE: dict[str, Any] = {"metrics": ["params"], "stages": []}


@pytest.fixture(scope="module")
def llama() -> Evaluator[Any]:
    return Evaluator.of("llama")


def rows(made: Sweep) -> list[tuple[Any, ...]]:
    frame = made.frame()
    return [tuple(row) for row in frame[list(made.names)].itertuples(index=False)]


def test_a_product_of_ranges_and_lists() -> None:
    found = rows(sweep("llama", {"batch": "1,4:8:2", "text_tokens": "3,9"}, **ONE))
    assert found == [(b, t) for b in (1, 4, 6, 8) for t in (3, 9)]
    assert rows(sweep("llama", {"batch": [1, 4], "text_tokens": range(3, 5)}, **ONE)) == [
        (1, 3),
        (1, 4),
        (4, 3),
        (4, 4),
    ]


def test_names_in_step() -> None:
    made = sweep("llama", {"hidden/heads": "1024/16,2048:4096:2048/32", "batch": "1,2"}, **ONE)
    assert rows(made) == [(h, a, b) for h, a in ((1024, 16), (2048, 32), (4096, 32)) for b in (1, 2)]
    again = sweep("llama", {"hidden/heads": [(1024, 16), (2048, 32)]}, **ONE)
    assert rows(again) == [(1024, 16), (2048, 32)]


def test_one_product_after_another_and_a_table(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text("batch,tied\n5,true\n6,false\n")
    found = rows(sweep("llama", [{"batch": "1,2"}, {"hidden": "1024"}], table=table, **ONE))
    assert found == [(1, None, None), (2, None, None), (None, 1024, None), (5, None, True), (6, None, False)]


def test_a_table_as_spreadsheets_write_it_and_one_with_a_name_twice(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_bytes(b"\xef\xbb\xbfbatch\r\n5\r\n")
    assert rows(sweep("llama", table=table, **ONE)) == [(5,)]
    table.write_text("batch,batch\n5,6\n")
    with pytest.raises(BadInput, match="varied twice"):
        sweep("llama", table=table, **ONE)


def test_nothing_but_words_varies() -> None:
    # 128,256 x 4,096 parameters are those of the head, which a tied model does not have
    made = sweep("llama", {"tied": "false,true"}, **ONE).frame()
    assert made["params"].tolist() == [8030261248, 8030261248 - 128256 * 4096]
    with pytest.raises(BadInput, match="this must be a number"):
        sweep("deepseek-ocr", {"rope_theta": "1e4,inf"}, **ONE)


def test_what_is_not_a_number_varies_slowest() -> None:
    found = rows(sweep("deepseek-ocr", {"batch": "1,2", "grid": "2x2,3x1", "global_layers": "2+5,8"}, **ONE))
    assert found == [(b, g, s) for g in ("2x2", "3x1") for s in ((2, 5), (8,)) for b in (1, 2)]


# Of 12 points: each alone, parts that do not divide an axis of 3, and one part larger than all.
@pytest.mark.parametrize("size", [1, 2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (3, 7, 24)), 100])
def test_parts_of_any_size_are_the_same_rows(size: int) -> None:
    over = {"batch": "1:3", "text_tokens": "1:4", "hidden": "1024,100"}
    made = sweep("llama", over, size=size, **ONE)
    assert all(part.points <= size for part in made.parts())
    assert made.frame().equals(sweep("llama", over, **ONE).frame())
    assert len(made.frame()) == 12


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"btach": "1"}, "did you mean batch"),
        ({"batch": "1,x"}, "integer or a range"),
        ({"batch": "5:1"}, "not a valid range"),
        ({"batch": "1:9:0"}, "not a valid range"),
        ({"batch": ""}, "integer or a range"),
        ({"batch": []}, "nothing to vary"),
        ({"batch": [1.5]}, "this must be an integer"),
        ({"batch": [True]}, "this must be an integer"),
        ({"batch": [-1]}, "this must be an integer"),
        ({"tied": "1"}, "true or false"),
        ({"hidden/heads": "1024"}, "joined by /"),
        ({"hidden/heads": "1:3/1:2"}, "equally many"),
        ({"hidden/heads": [(1, 2, 3)]}, "tuples"),
        ({"batch": "1", "hidden/batch": "1/2"}, "varied twice"),
        ({"attention": "sdap"}, "--attention"),
    ],
)
def test_what_cannot_be_varied(llama: Evaluator[Any], over: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        list(sweep("llama", over, **ONE).parts())
    assert words in str(caught.value)


def test_two_problems_at_once(llama: Evaluator[Any]) -> None:
    with pytest.raises(BadInput) as caught:
        grid_axes(llama, {"btach": "1", "batch": "x"})
    assert "2 problems" in str(caught.value)


def test_tables_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    wrong = {"batch\n": "no points", "batch\n1,2\n": "row 2", "batch\nx\n": "row 2, batch", "": "table"}
    for text, words in wrong.items():
        file.write_text(text)
        with pytest.raises(BadInput) as caught:
            sweep("llama", table=file)
        assert words in str(caught.value)
