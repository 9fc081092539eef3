"""Who gave a quantity is said, and a source that stops giving a metric is a finding."""

from __future__ import annotations

import importlib
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

import costproof
from costproof.compare.compare import compare
from costproof.compare.diff.diff import diff
from costproof.compare.findings import Discrepancy, GivenBy
from costproof.compare.gate.judge import judge
from costproof.compare.gate.policy import policy_from_text
from costproof.compare.verdict import exit_code, verdict_sentence
from costproof.ledger.baseline import fold_capture
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import Metric
from costproof.models.specs import ExportJob
from costproof.reports.gate import gate_github, gate_sentence
from costproof.reports.outputs import variants
from costproof.tracers.cache import cached_export
from costproof.tracers.exported import Exported
from costproof.views.results import open_findings
from tests.support import builders as b

static_module: Any = importlib.import_module("costproof.tracers.static")
diff_md = variants("diff")["md"].text

EVERY = dict.fromkeys(("analytic", "static", "dynamic"), b.METRICS)
POLICY = "costproof_policy: 1\nlimits:\n- metric: flops\n  increase: 0\n"


def without(source: str, *metrics: Metric, recorded: bool = False) -> Capture:
    """Return the capture in which all agree, where one source does not give some metrics."""
    whole = b.capture()
    ledgers = tuple(x.without(metrics) if x.source == source else x for x in whole.ledgers)
    return replace(whole, ledgers=ledgers, recorded=EVERY if recorded else {})


def said(d: Discrepancy) -> tuple[str, str]:
    return verdict_sentence(d).removesuffix("."), d.verdict


# Of 27 quantities 4 are vector work (one norm in each of 4 layers), 13 FLOPs and calls of 4 layers and the head:
# 4 x (linear, attention, calls, calls) + 2 = 18 and 4 + 1 = 5 parameters: 18 + 4 + 5 = 27.


def test_what_two_sources_give_is_counted_apart() -> None:
    d = compare(without("dynamic", "vector_flops"))
    assert d.given_by == (GivenBy(("analytic", "static", "dynamic"), 23), GivenBy(("analytic", "static"), 4))
    text = "Exact: the sources agree to the integer on all 27 quantities"
    assert said(d) == (
        f"{text} (23 from analytic, static and dynamic, 4 from analytic and static)", "exact",
    )  # fmt: skip


def test_what_one_source_gives_is_compared_with_nothing() -> None:
    twice = without("dynamic", "vector_flops")
    alone = replace(twice, ledgers=tuple(x.without(("vector_flops",) * (x.source == "static")) for x in twice.ledgers))
    d = compare(alone)
    assert d.given_by == (GivenBy(("analytic", "static", "dynamic"), 23), GivenBy(("analytic",), 4))
    assert verdict_sentence(d) == (
        "Exact: analytic, static and dynamic agree to the integer on all 23 quantities "
        "(4 more from analytic alone, compared with nothing)."
    )


def test_a_wrong_formula_does_not_hide_who_gave_what() -> None:
    whole = without("dynamic", "vector_flops")
    wrong = b.edited(b.analytic(), b.at("lm_head", metric="flops"), costs={"flops": 7}, exprs={})
    d = compare(replace(whole, ledgers=(wrong, *whole.ledgers[1:])))
    assert d.verdict == "unexplained"
    assert verdict_sentence(d).endswith(" (23 from analytic, static and dynamic, 4 from analytic and static).")


def test_a_stage_that_a_source_does_not_count_is_named() -> None:
    """The static source counts the stage of the capture, and none of the decode steps."""
    d = compare(b.capture())
    steps = [replace(f, stage="decode", values={s: n for s, n in f.values.items() if s != "static"})
             for f in d.findings if f.level == "module" and f.metric == "calls"]  # fmt: skip
    assert "not counted" not in verdict_sentence(d)
    both = replace(d, findings=(*d.findings, *steps))
    assert verdict_sentence(both).endswith(" (decode not counted by static).")


def test_a_stage_on_which_a_source_failed_makes_the_capture_incomplete() -> None:
    """The reason says that the source tried; that a stage cannot be exported by design, and a note on another, do not.

    The other sources agree on all of it, as before.
    """
    whole, late = b.capture(), "late is not covered: "
    stages = replace(whole, target=replace(whole.target, stages=(*whole.target.stages, "late")))
    twice = [
        x if x.source == "static"
        else replace(x, stages=(*x.stages, "late"), nodes=(*x.nodes, *(replace(n, stage="late") for n in x.nodes)))
        for x in whole.ledgers
    ]  # fmt: skip
    both = replace(stages, ledgers=(*twice,))
    for note, code in (
        ("", 0), (f"{late}the experts run in a loop", 0), (f"{late}failed: torch.export cannot export it", 3),
        ("forward is not covered: failed: of another run", 0),
    ):  # fmt: skip
        noted = [replace(x, notes=(*x.notes, note)) if x.source == "static" else x for x in both.ledgers]
        d = compare(found := replace(both, ledgers=(*noted,)))
        reasons = (f"static: {note}",) if code else ()
        assert (exit_code(d), found.failed, d.incomplete) == (code, reasons, reasons), note
    assert verdict_sentence(compare(both)).endswith("late not counted by static).")


def test_a_graph_that_cannot_be_made_makes_a_report_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas and run agree on the steps, and the graph of the steps was asked for."""

    def export(job: ExportJob) -> Exported:
        if "decode" in job.stages:
            raise Incomplete("torch.export cannot export a part of the model", where="decode", got="planted")
        return cached_export(job)

    monkeypatch.setattr(static_module, "cached_export", export)
    found = costproof.report("llama-3.2-1b", layers=1, text_tokens=4, new_tokens=2)
    reason = "static: decode is not covered: failed: torch.export cannot export a part of the model"
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert [why.startswith(reason) for why in found.capture.failed] == [True]
    assert found.sentence.startswith(f"Incomplete: {reason}")


@pytest.mark.parametrize("source", EVERY)
def test_a_source_that_falls_silent_is_a_finding(source: str) -> None:
    assert exit_code(compare(without(source, "vector_flops"))) == 0
    d = compare(without(source, "vector_flops", recorded=True))
    assert (d.verdict, exit_code(d)) == ("unexplained", 1)
    (silent,) = open_findings(d)
    assert (silent.id, silent.level, silent.metric) == (f"{source}#vector_flops", "source", "vector_flops")
    assert [c.kind for c in silent.causes] == ["silent_source"]
    assert verdict_sentence(d).startswith(
        f"Unexplained: {source} no longer gives vector_flops; of 27 quantities compared, none differs without"
    )


def test_whoever_gives_what_is_on_record_is_not_silent() -> None:
    assert said(compare(replace(b.capture(), recorded=EVERY)))[1] == "exact"
    # The user asked for two sources: the third has not fallen silent.
    two = replace(b.capture(b.capture().ledgers[:2]), recorded=EVERY)
    assert exit_code(compare(two)) == 0


@pytest.mark.parametrize("sides", [("base", "head"), ("head", "base")])
def test_a_diff_finds_what_a_source_gives_on_one_side_only(sides: tuple[str, str]) -> None:
    of = {sides[0]: fold_capture(b.capture()), sides[1]: fold_capture(without("dynamic", "vector_flops"))}
    found = diff(of["base"], of["head"])
    assert found.silent == (f"dynamic gives vector_flops in the {sides[0]} and not in the {sides[1]}",)
    assert (found.verdict, found.exit_code, found.incomplete) == ("silent", 1, ())
    assert f"A source fell silent: {found.silent[0]}" in diff_md(found).replace("\\", "")
    assert diff(of["base"], of["base"]).exit_code == 0


def test_another_implementation_may_tell_less() -> None:
    base, head = fold_capture(b.capture()), fold_capture(without("dynamic", "vector_flops"))
    eager = replace(head, workload=replace(head.workload, attention="eager"))
    found = diff(base, eager)
    assert (found.silent, found.exit_code) == ((), 3)
    assert found.incomplete == ("vector_flops: the head does not have it",)


def test_a_gate_does_not_pass_a_source_that_fell_silent() -> None:
    policy = policy_from_text(POLICY, where="policy.yaml")
    base, head = fold_capture(b.capture()), fold_capture(without("dynamic", "vector_flops"))
    assert judge(base, base, policy, date(2026, 1, 1)).exit_code == 0
    gate = judge(base, head, policy, date(2026, 1, 1))
    text = "dynamic gives vector_flops in the base and not in the head"
    assert (gate.verdict, gate.exit_code, gate.silent) == ("over", 1, (text,))
    assert gate_sentence(gate) == f"A source fell silent: {text}."
    assert text in gate_github(gate)
