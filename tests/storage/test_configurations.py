"""The table of all configurations in docs/checkpoints.md: made of its rows, with a reason for each number it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import checkpoints

from costproof import stored
from costproof.ledger.errors import CostproofError
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from tests.oracles.published import CONFIGS, COUNTED, ROWS, write_configuration

ROWS_OF_FILES: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(COUNTED.read_text("utf-8"))}
PUBLISHED: list[dict[str, Any]] = json.loads(ROWS.read_text("utf-8"))
QUICK = {"Devstral-Small-2-24B-FP8", "Qwen2.5-7B-AWQ"}


def test_the_page_is_made_of_the_rows() -> None:
    """All but the column of formats, and totals computed from configurations, which ``test_published`` computes."""
    page = checkpoints.PAGE.read_text("utf-8")
    lines = iter(page[page.index("| checkpoint |") :].splitlines()[2:])
    cells = [[cell.strip() for cell in next(lines).strip("|").split("|")] for _ in PUBLISHED]
    for row, (name, _, computed, published, _) in zip(PUBLISHED, cells, strict=True):
        totals = row["bytes"] - sum(row.get("named", {}).values()), row["bytes"]
        assert (name, computed, published) == (row["name"], *(f"{total:,}" for total in totals))
    assert checkpoints.page([tuple(row) for row in cells]) == page


def test_every_configuration_has_a_row() -> None:
    assert sorted(ROWS_OF_FILES) == sorted(file.stem for file in CONFIGS[0].glob("*.json"))
    for name, row in ROWS_OF_FILES.items():
        good = {"stored": row["stored"] is not None, "report": row["report"] in ("exact", "explained"),
                "fits": row["fits"] == "fits"}  # fmt: skip
        for answer, is_there in good.items():
            assert is_there or row["why"].get(answer) or (row[answer] is None and answer != "stored"), (name, answer)
        assert ("source" in row) == ("quantization_config" in row)


def test_rows_of_published_checkpoints_have_their_totals() -> None:
    """Of those without a module for further tokens, which the rows leave out."""
    same = [row for row in PUBLISHED if row["name"] in ROWS_OF_FILES and not row.get("mtp")]
    assert {row["name"] for row in same} >= {"gpt-oss-20b", "gpt-oss-120b"}
    for row in same:
        assert ROWS_OF_FILES[row["name"]]["stored"] == row["bytes"] - sum(row.get("named", {}).values())


def test_the_bytes_of_devstral_by_hand() -> None:
    """Matrices of its 40 layers in fp8, each with a scale of W and one of its inputs; towers and tables in bfloat16."""
    matrices = 2 * 4096 * 5120 + 2 * 1024 * 5120 + 3 * 32768 * 5120
    decoder = 40 * (matrices + 7 * 2 * 2 + 2 * 2 * 5120) + 2 * 5120 + 2 * 2 * 131_072 * 5120
    block = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024
    tower = 2 * (24 * block + 3 * 14 * 14 * 1024 + 1024)  # patches of 14 x 14, a norm before the blocks
    projector = 2 * (1024 + 4 * 1024 * 1024 + 1024 * 5120 + 5120 * 5120)
    assert ROWS_OF_FILES["Devstral-Small-2-24B-FP8"]["stored"] == decoder + tower + projector


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in ROWS_OF_FILES]
)
def test_the_bytes_of_a_row_are_counted_again(name: str, tmp_path: Path) -> None:
    row = ROWS_OF_FILES[name]
    target = write_configuration(row, tmp_path)
    if row["stored"] is None:
        with pytest.raises(CostproofError):
            stored(target)
        return
    assert stored(target).totals.bytes == row["stored"]
    assert isinstance(load_target(target), WithFormulas) == row["formulas"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ROWS_OF_FILES)
def test_the_answers_of_a_row_are_given_again(name: str) -> None:
    row = ROWS_OF_FILES[name]
    asked = [answer for answer in checkpoints.ANSWERS if row[answer] is not None or answer in row["why"]]
    assert checkpoints.counted(row, asked) == row
