"""The list of known mistakes in docs/claims.md is the table that the search uses."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from pathlib import Path

import pytest

from costproof.claims.catalogue import mistake_table
from costproof.claims.effects import Mistakes
from costproof.ledger.metrics import PEAK_METRICS, SUMMED, Metric
from costproof.models.registry import mistakes_of

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
BEGIN, END = "<!-- known mistakes: ", "<!-- end of known mistakes -->"
FEW = 4
"""Up to this many missing metrics are listed as exceptions: ``all metrics but ...``."""
HELD: Container[Metric] = (
    "params", "params_active", "weight_bytes", "buffer_bytes", "stored_bytes", "stored_elements", "resident_bytes",
)  # fmt: skip
"""Metrics of a model; all others are of a call."""
COMMUNICATION: Container[Metric] = ("comm_bytes", "comm_payload_bytes", "messages")
TARGETS = ("deepseek-ocr", "deepseek-v3", "qwen2-5-vl", "qwen3-vl-vision")


def markdown(own: Mapping[str, Mistakes]) -> str:
    """Return the known mistakes as Markdown lists, one for each set of metrics, one item for each meaning.

    Args:
        own: name of a target -> the mistakes that it adds.
    """
    lists: dict[str, list[str]] = {}
    for title, table in (
        ("Every model", mistake_table(Mistakes())),
        *((f"`{name}`", m.table) for name, m in own.items()),
    ):
        metrics: dict[tuple[str, str], set[Metric]] = {}
        for row in table:
            metrics.setdefault((row.cause, row.what), set()).update(
                m for m in (*SUMMED, *PEAK_METRICS) if m in row.metrics
            )
        items: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for (cause, what), found in metrics.items():  # items that differ only in numbers, names or classes are one
            same = re.sub(r"\d+", "#", what.removesuffix(", two classes"))
            items.setdefault((f"{title}, {words(found)}:", same), []).append((cause, what))
        for (head, _), alike in items.items():
            names = ", ".join(f"`{cause}`" for cause, _ in alike)
            meanings = {what.removesuffix(", two classes") for _, what in alike}
            meaning = meanings.pop() if len(meanings) == 1 else re.sub(r"\d+", "N", alike[0][1])
            lists.setdefault(head, []).append(f"- {names}: {meaning}")
    return "\n\n".join(f"{head}\n\n" + "\n".join(items) for head, items in lists.items()) + "\n"


def words(metrics: Container[Metric]) -> str:
    given = [m for m in SUMMED if m in metrics]
    missing = [m for m in SUMMED if m not in metrics]
    if not missing:
        return "all metrics"
    of_calls = [m for m in SUMMED if m not in HELD]
    for group, title in (
        ([m for m in SUMMED if m in HELD], "metrics of a model"),
        (of_calls, "metrics of a call"),
        ([m for m in of_calls if m not in COMMUNICATION], "metrics of a call but communication"),
    ):
        if given == group and not any(m in metrics for m in PEAK_METRICS):
            return title
    if given and len(missing) <= FEW:
        return "all metrics but " + ", ".join(f"`{m}`" for m in missing)
    return ", ".join(f"`{m}`" for m in (*SUMMED, *PEAK_METRICS) if m in metrics)


def test_the_list_is_current(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    marker, listed = rest.split("\n", 1)
    listed, after = listed.split(END)
    current = f"\n{markdown({name: mistakes_of(name) for name in TARGETS})}\n"
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(f"{before}{BEGIN}{marker}\n{current}{END}{after}", encoding="utf-8")
    else:
        assert listed == current, "run pytest --update-goldens tests/claims/test_known_mistakes.py"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_adds_rows(name: str) -> None:
    assert mistakes_of(name).table
