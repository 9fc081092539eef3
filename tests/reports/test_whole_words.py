"""What reports say of a whole model that was worked out of its first layers."""

from __future__ import annotations

from dataclasses import replace

import costproof.api  # noqa: F401  (which sets how notebooks show results)
from costproof.ledger.capture import WholeModel
from costproof.reports.escape import markdown
from costproof.reports.outputs import variants
from costproof.reports.report import Report
from costproof.reports.static import stack_sentences, unknown_sentences
from costproof.reports.summary import summary_text
from tests.support.toy import toy

static_md = variants("static")["md"].text

WHOLE = WholeModel(
    times={"model.layers": (1, 1, 22, 8), "vision|blocks": (27,)},
    checked={"model.layers": 8, "vision|blocks": 2},
    stages={"sam": {"flops": 12_000, "params": 70}, "decode": {"flops": 345, "params": 80}},
    totals={"flops": 12_345, "params": 150},
    left_out={"output_bytes": "two numbers", "floor_bytes": "two numbers", "kv_cache_bytes": "no rule"},
)


def test_every_stack_says_what_its_layers_stand_for() -> None:
    assert stack_sentences(WHOLE) == [
        "model.layers: 4 of 32 layers were counted and stand for 1, 1, 22 and 8; checked with 8",
        "vision|blocks: 1 of 27 layers were counted and stand for 27; checked with 2",
    ]
    assert unknown_sentences(WHOLE) == [
        "not known: activation bytes written, bytes, floor: two numbers", "not known: key/value cache bytes: no rule",
    ]  # fmt: skip


def test_both_texts_have_its_numbers_apart_from_those_that_were_counted() -> None:
    found = Report(replace(toy(), whole=WHOLE))
    text, page = summary_text(found), static_md(found)
    assert "The whole model, worked out of its first layers:" in text
    assert "12.35 kFLOP" in text
    assert "## The whole model, worked out of its first layers" in page
    assert "| total | 150 | 12,345 | ? | ? |" in page
    assert f"{markdown('vision|blocks')}: 1 of 27" in page
    assert found.static.whole == WHOLE
    assert "whole model, worked out" not in static_md(Report(toy())) + summary_text(Report(toy()))


def test_the_page_and_the_notebook_have_them_too() -> None:
    found = Report(replace(toy(), whole=WHOLE))
    for page in (found.render("html"), found._repr_html_() or ""):
        assert "The whole model, worked out of its first layers" in page
        assert "vision|blocks: 1 of 27 layers were counted and stand for 27; checked with 2." in page
        assert '<td class="n">12,345</td>' in page
        assert "not known: key/value cache bytes: no rule." in page
    assert "whole model, worked out" not in Report(toy()).render("html")
