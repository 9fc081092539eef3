"""The answers of explain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import costproof
from costproof import capture, frame
from costproof import explain as explained
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.reports.outputs import variants
from costproof.views.explanation import explain, peaks_in
from tests.conftest import Golden
from tests.support.running import costproof as command
from tests.support.toy import ledger, toy, with_ledger

explain_text = variants("explain")["text"].text
explain_md = variants("explain")["md"].text


def test_text(golden: Golden) -> None:
    golden("reports/explain-sam.txt", explain_text(explain(toy(), "sam", graph=toy())))
    golden("reports/explain-params.txt", explain_text(explain(toy(), "decode", metric="params")))
    golden("reports/explain-idle.txt", explain_text(explain(toy(), "clip")))


def test_markdown_says_the_same(golden: Golden) -> None:
    found = explain(toy(), "sam", graph=toy())
    golden("reports/explain-sam.md", explain_md(found))
    assert repr(found) == explain_text(found).rstrip("\n")
    table = frame(found)
    assert list(table["total"]) == [1024, 768]
    assert list(table["formula_of"]) == ["linear", "linear"]


def test_a_formula_with_its_numbers_gives_the_result() -> None:
    found = explain(toy(), "decode")
    (call,) = found.calls
    (part,) = call.parts
    assert part.numbers == {"B": 1, "N": 3, "P": 10, "text_hidden": 6}
    assert (part.each, part.total, call.total) == (864, 864, 864)
    assert set(found.docs) == {"attention"}


def test_layers_of_one_formula_stand_together() -> None:
    found = explain(toy(), "sam", graph=toy())
    assert [(p.modules, p.count, p.each, p.total) for p in found.calls[0].parts] == [
        ("sam.layers.[0-1].lin", 2, 512, 1024)
    ]
    static, dynamic = found.calls[0].parts[0].matches
    assert (static.source, static.kinds, static.value) == ("static", ("aten.linear",), 1024)
    assert (dynamic.source, dynamic.value, len(dynamic.evidence)) == ("dynamic", 1024, 2)


def test_a_layer_that_costs_something_else_stands_apart() -> None:
    made = ledger("analytic")
    nodes = tuple(
        replace(n, costs={"flops": 100}, exprs={"flops": "100*n"})
        if n.module.endswith(".1.lin") and n.kind and n.invocation == "global"
        else n
        for n in made.nodes
    )
    found = explain(with_ledger(toy(), replace(made, nodes=nodes)), "sam")
    assert [(p.modules, p.total) for p in found.calls[0].parts] == [
        ("sam.layers.0.lin", 512),
        ("sam.layers.1.lin", 100),
    ]


def test_a_glob_picks_modules() -> None:
    found = explain(toy(), "sam", module="*.1.*")
    assert [p.modules for p in found.calls[0].parts] == ["sam.layers.1.lin"]
    assert found.calls[0].total == 512


@pytest.mark.parametrize(
    ("stage", "metric", "module", "what"),
    [
        ("sem", "flops", None, "no such stage"),
        ("sam", "flop", None, "no such metric"),
        ("sam", "flops", "*mlp*", "matches the glob"),
    ],
)
def test_wrong_questions(stage: str, metric: str, module: str | None, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        explain(toy(), stage, metric=metric, module=module)


def test_without_formulas_there_is_nothing_to_explain() -> None:
    with pytest.raises(Incomplete, match="no formulas") as caught:
        explain(replace(toy(), ledgers=(ledger("static"),)), "sam")
    # Whether the target has formulas is not known where none were asked for: both kinds get advice that works.
    assert "--sources analytic" in str(caught.value.fix)
    assert "costproof explain TARGET sam --graph" in str(caught.value.fix)


def test_a_wrong_stage_is_told_before_what_the_target_lacks() -> None:
    """Else the advice would be to list the operators of a stage that is not there."""
    bare = replace(toy(), ledgers=toy().ledgers[1:], lacking={"analytic": "the target has no formulas"})
    with pytest.raises(BadInput, match="no such stage"):
        explained(bare, "nope")
    with pytest.raises(BadInput, match="no formulas to explain"):
        explained(bare, "sam")


@pytest.mark.parametrize(
    ("stage", "what"),
    [("total", "no formulas to explain"), ("prefill", "no formulas to explain"), ("nope", "no such stage")],
)
def test_a_target_without_formulas_is_refused_before_its_workload(stage: str, what: str) -> None:
    """A prompt longer than the context of 2,048 positions is no help: no prompt has formulas."""
    with pytest.raises(BadInput, match=what):
        explained("hf:opt", stage, seq_len=10_000)


def test_quantities_that_follow_from_metrics() -> None:
    """One linear layer 2048 -> 1280 on 8 x 8 tokens in bfloat16, behind two features of 1024 that are joined."""
    tokens = 64
    macs = explained("deepseek-ocr", "projector", preset="tiny", metric="macs", module="*multi_modal_projector")
    assert [c.total for c in macs.calls] == [tokens * 2048 * 1280]
    moved = explained("deepseek-ocr", "projector", preset="tiny", metric="io_bytes", module="*multi_modal_projector")
    assert [c.total for c in moved.calls] == [2 * (tokens * 2048 + tokens * 1280 + 2048 * 1280 + 1280)]
    written = explained("deepseek-ocr", "projector", preset="tiny", metric="activation_bytes")
    same = explained("deepseek-ocr", "projector", preset="tiny", metric="output_bytes")
    assert [c.total for c in written.calls] == [c.total for c in same.calls]


@pytest.mark.parametrize("metric", ["flops", "params"])
def test_all_stages_together(metric: str) -> None:
    whole = explained("deepseek-ocr", "total", preset="gundam", metric=metric)
    ledger = capture("deepseek-ocr", preset="gundam", sources="analytic").ledger("analytic")
    *calls, all_ = whole.calls
    assert (all_.place, all_.total) == ("total", ledger.total(metric))
    for stage in ledger.stages:
        mine = [c.total or 0 for c in calls if c.place.partition("[")[0] == stage]
        assert sum(mine) == ledger.stage_total(stage, metric)
    # The views have sides of their own, so their formulas have no sum; parameters have.
    assert (all_.formula is None) == (metric == "flops")
    assert f"{all_.total:,}" in repr(whole)


def test_a_peak_is_told_by_what_is_alive_not_by_a_formula() -> None:
    held = Peak(9, "", "", ())
    peaked = replace(toy(), peaks=(CallPeaks("sam", "global", "", held, held), CallPeaks("decode", "", "", held, None)))
    assert [c.stage for c in peaks_in(peaked, "sam").calls] == ["sam"]
    assert [(s.stage, s.eager_peak_bytes) for s in peaks_in(peaked, "total").stages] == [("sam", 9), ("decode", None)]
    with pytest.raises(Incomplete, match="no peaks of stage clip"):
        peaks_in(peaked, "clip")
    with pytest.raises(Incomplete, match="no peaks"):
        peaks_in(toy(), "sam")
    with pytest.raises(BadInput, match="no formula gives a peak"):
        explain(peaked, "sam", metric="graph_peak_bytes")


def test_a_folder_of_reports_and_a_capture_are_explained_as_the_run_that_they_hold(tmp_path: Path) -> None:
    costproof.report("llama", sources=["analytic"], batch=3, out=tmp_path / "out" / "mine")
    by_option = command("explain", "llama", "decode", "--capture", "out/mine/capture.json", cwd=tmp_path)
    for words in ("out/mine", "out/mine/capture.json"):
        found = command("explain", words, "decode", cwd=tmp_path)
        assert (found.code, found.stdout) == (0, by_option.stdout)
        assert "batch 3" in found.stdout
    for more in (("--graph",), ("--preset", "chat"), ("--capture", "out/mine")):
        assert command("explain", "out/mine", "decode", *more, cwd=tmp_path).code == 2
