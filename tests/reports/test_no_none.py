"""Unknown is ``?`` or a sentence; Python's words for it stand in no text that people read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import Capture, TraceCheck
from costproof.ledger.counter import CounterCall
from costproof.ledger.errors import Absent
from costproof.ledger.node import Ledger
from costproof.ledger.workload import TensorSpec
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.reports.listing import coverage_text
from costproof.reports.outputs import OUTPUTS, variants
from costproof.reports.report import Report
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.views.explanation import explain
from tests.models.test_config import small_config
from tests.reports.test_counters import counted, record
from tests.reports.test_profile_md import profile
from tests.support.toy import asked, hostile, incomplete, toy, wrong

explain_text = variants("explain")["text"].text
explain_md = variants("explain")["md"].text

PYTHON = re.compile(r"(?<![\w.])(?:None|nan|NaN|inf|True|False|dict\(|\{\})(?![\w])|<\w[\w.]* object at 0x")
PROGRAM = re.compile(r"<(script|style)\b.*?</\1>", re.S)
"""What a page does not show."""
TEXTS = [o for o in OUTPUTS if o.kind is None and o.data is not None and o.name != "profile-trace"]


def unknown() -> Capture:
    """Every cost of the exported graph in ``decode`` is unknown, and the call of the stage has no inputs."""

    def hide(x: Ledger) -> Ledger:
        nodes = (replace(n, costs=dict.fromkeys(n.costs)) if n.stage == "decode" else n for n in x.nodes)
        return replace(x, nodes=tuple(nodes)) if x.source == "static" else x

    made = toy()
    calls = tuple(replace(i, inputs=(TensorSpec((), "int64"),)) for i in made.invocations)
    return replace(made, ledgers=tuple(map(hide, made.ledgers)), invocations=calls)


def nowhere() -> Capture:
    """Only formulas, and they are unknown; no callgraph, no versions, nothing known of the configuration."""
    only = toy().ledgers[0]
    nodes = tuple(replace(n, costs=dict.fromkeys(n.costs), exprs={}, owner="") for n in only.nodes)
    return replace(toy(), ledgers=(replace(only, nodes=nodes),), callgraph=None, environment={}, symbols={})


def bare() -> Capture:
    """A callgraph of calls alone, and tracers that differ."""
    graph = toy().callgraph
    assert graph is not None
    calls = CallGraph(graph.call_counts, graph.edges, {}, {}, {})
    return replace(toy(), callgraph=calls, ledgers=toy().ledgers[:1], trace_check=TraceCheck(1, 1, ("a differs",)))


def truthless() -> Capture:
    """Counters without a truth, a version, or an answer."""
    made = record()
    runs = tuple(
        replace(r, version=None, calls=tuple(CounterCall(c.stage, c.invocation, error="died") for c in r.calls))
        for r in made.runs
    )
    blank = tuple(replace(c, nodes=tuple(replace(n, costs={"flops": None}) for n in c.nodes)) for c in made.truth)
    return replace(counted(), counters=replace(made, truth=blank, runs=(*runs, *made.runs)))


def real() -> Capture:
    """The real target, small, by its formulas."""
    target = DeepseekOcr(small_config())
    run = target.workload("base", base_size=256, text_tokens=8)
    return count_sources(Prepared(target, run, ("analytic",))).capture


CASES: dict[str, Callable[[], Capture]] = {
    "toy": toy, "wrong": wrong, "incomplete": incomplete, "hostile": hostile, "asked": asked, "unknown": unknown,
    "nowhere": nowhere, "bare": bare, "counted": counted, "truthless": truthless, "real": real,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_no_text_says_none(case: str) -> None:
    capture = CASES[case]()
    report = Report(capture, replace(profile(), flops={}))
    texts = {"ops": coverage_text(capture)}
    for output in TEXTS:
        assert output.data is not None
        try:
            texts[output.name] = output.text(output.data(report))
        except Absent:
            continue
    for stage in capture.target.stages:
        for metric in ("flops", "params", "kv_cache_bytes"):
            found = explain(capture, stage, metric=metric, graph=capture)
            texts |= {f"{w.__name__} {stage} {metric}": w(found) for w in (explain_text, explain_md)}
    for name, text in texts.items():
        said = PYTHON.search(PROGRAM.sub("", text))
        assert said is None, f"{name}: …{text[max(0, said.start() - 80) : said.end() + 40]}…"


def test_an_operator_of_unknown_cost_is_not_free_in_the_list_of_operators() -> None:
    (row,) = (r.split() for r in coverage_text(unknown(), "aten.scaled*").splitlines() if r.startswith("aten.scaled"))
    # One module; FLOPs unknown, so there is no share; the toy has no vector FLOPs.
    assert row == ["aten.scaled_dot_product_attention", "1", "?", "0"]
