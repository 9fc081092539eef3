"""The list of known mistakes in docs/claims.md is the table that the search uses."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from pathlib import Path

import pytest

from costproof.claims.catalogue import mistake_table
from costproof.claims.effects import IN_BYTES, Mistakes
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
COMMUNICATION: tuple[Metric, ...] = ("comm_bytes", "comm_payload_bytes", "messages")
GROUPS: tuple[tuple[tuple[Metric, ...], str], ...] = (
    (("params", "params_active", "weight_bytes"), "parameters"),
    (("kv_read_bytes", "kv_cache_bytes"), "cache"),
    (COMMUNICATION, "communication"),
    (tuple(PEAK_METRICS), "peaks"),
)
"""Metrics that lists have under one name, as the page explains."""
TARGETS = ("deepseek-ocr", "deepseek-v3", "qwen2-5-vl", "qwen3-vl-vision")


def markdown(own: Mapping[str, Mistakes]) -> str:
    """Return the known mistakes as Markdown lists, one for each set of metrics, one item for each meaning.

    Args:
        own: name of a target -> the mistakes that it adds.
    """
    parts = []
    for title, table in (
        ("Every model", mistake_table(Mistakes())),
        *((f"`{name}`", m.table) for name, m in own.items()),
    ):
        metrics: dict[tuple[str, str], set[Metric]] = {}
        for row in table:
            metrics.setdefault((row.cause, row.what), set()).update(
                m for m in (*SUMMED, *PEAK_METRICS) if m in row.metrics
            )
        lists: dict[str, dict[str, list[tuple[str, str]]]] = {}
        for (cause, what), found in metrics.items():
            if _VARIANT.search(what):
                continue
            meaning = _DECODER.sub("these parameters of the decoder", _without_name(cause, what))
            same = re.sub(r"\d+", "#", meaning)  # items that differ only in numbers or names are one
            lists.setdefault(words(found), {}).setdefault(same, []).append((cause, meaning))
        parts.append(f"**{title}**")
        for head, items in lists.items():
            lines = []
            for alike in items.values():
                meanings = {meaning for _, meaning in alike}
                meaning = meanings.pop() if len(meanings) == 1 else re.sub(r"\d+", "N", alike[0][1])
                lines.append(f"- {', '.join(f'`{cause}`' for cause, _ in alike)}: {meaning}")
            parts += [f"{head[0].upper()}{head[1:]}:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


_VARIANT = re.compile(r", two classes$|, and attention$")
"""Ends of meanings of variants, which the page states above the list."""
_DECODER = re.compile(r"(all|active) parameters of the decoder( but the embedding)?")
"""Parameters of rules of thumb, which their names state."""


def _without_name(cause: str, what: str) -> str:
    """Return a meaning without the subject that the name has: ``norms missing``, norms are left out -> left out."""
    subject = re.sub(r" (missing|counted)$", "", cause)
    for end in ("left out", "counted, not all", "counted as FLOPs"):
        if re.fullmatch(rf"(the )?{re.escape(subject)} (is|are) {end}", what):
            return end
    return re.sub(rf"^the {re.escape(cause).replace('counted', 'is counted')}[,:] ", "", what)


def words(metrics: Container[Metric]) -> str:
    every = (*SUMMED, *PEAK_METRICS)
    given = [m for m in every if m in metrics]
    summed = [m for m in SUMMED if m in metrics]
    missing = [m for m in SUMMED if m not in metrics]
    if not missing:
        return "all metrics"
    of_calls = [m for m in SUMMED if m not in HELD]
    for group, title in (
        ([m for m in SUMMED if m in HELD], "metrics of a model"),
        (of_calls, "metrics of a call"),
        ([m for m in of_calls if m not in COMMUNICATION], "metrics of a call but communication"),
        ([m for m in every if m in IN_BYTES or m in PEAK_METRICS], "bytes and peaks"),
    ):
        if given == group:
            return title
    if summed and len(missing) <= FEW:
        return "all metrics but " + ", ".join(f"`{m}`" for m in missing)
    named, rest = [], given
    for members, title in GROUPS:
        if all(m in rest for m in members):
            named.append(title)
            rest = [m for m in rest if m not in members]
    return ", ".join([*named, *(f"`{m}`" for m in rest)])


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
