"""The data of static_compute.json, against the hand-counted toy model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import compare
from costproof.ledger import metrics
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Bug
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peak
from costproof.ledger.schema import to_data
from costproof.reports.outputs import variants
from costproof.reports.report import Report
from costproof.views.static_compute import STATIC_COMPUTE, StageCompute, StaticCompute, check_sums, static_compute
from tests.support.toy import incomplete, ledger, toy, with_ledger, wrong

static_md = variants("static")["md"].text


def made(capture: Capture) -> StaticCompute:
    return static_compute(capture, compare(capture).verdict)


def stage(result: StaticCompute, name: str) -> StageCompute:
    return next(s for s in result.stages if s.id == name)


def test_stages_and_totals_are_the_hand_counted_ones() -> None:
    result = made(toy())
    sam, clip, decode = (stage(result, s) for s in ("sam", "clip", "decode"))
    assert (sam.costs["flops"], sam.costs["macs"], sam.costs["params"], sam.costs["weight_bytes"]) == (
        1024 + 768,
        896,
        40,
        80,
    )
    assert [(i.id, i.calls, i.costs["flops"]) for i in sam.invocations] == [("global", 1, 1024), ("crops", 1, 768)]
    assert sam.flops_by_kind == {"linear": 1792}
    assert (clip.costs["flops"], clip.costs["params"], clip.costs["params_executed"], clip.invocations) == (0, 7, 0, ())
    assert (decode.costs["flops"], decode.costs["kv_cache_bytes"], decode.costs["activation_bytes"]) == (864, 72, 36)
    assert result.totals["flops"] == 1792 + 864
    assert result.totals["params"] == 40 + 7 + 36
    assert result.totals["params_executed"] == 40 + 36
    assert result.sources["static"]["flops"] == 2656


def test_what_no_source_gives_is_null_and_not_zero() -> None:
    sam = stage(made(toy()), "sam")
    assert sam.costs["vector_flops"] is None
    assert sam.costs["io_bytes"] is None
    assert "vector_flops" not in sam.sources["static"]


def test_sources_that_disagree_give_no_headline() -> None:
    result = made(wrong())
    sam = stage(result, "sam")
    assert (sam.costs["flops"], sam.costs["macs"], sam.flops_by_kind) == (None, None, {"linear": None})
    assert sam.sources["analytic"]["flops"] == 896
    assert sam.sources["dynamic"]["flops"] == 1792
    assert result.totals["flops"] is None
    assert result.totals_at_least == {}
    assert stage(result, "decode").costs["flops"] == 864


def test_an_operator_without_a_rule_leaves_a_lower_bound() -> None:
    result = made(incomplete())
    decode = stage(result, "decode")
    assert decode.costs["flops"] is None
    assert decode.at_least["flops"] == 864
    assert decode.sources["static"]["flops"] is None
    assert decode.costs["params"] == 36
    assert stage(result, "sam").costs["flops"] == 1792
    assert result.totals["flops"] is None
    assert result.totals_at_least["flops"] == 1792 + 864


def test_a_module_that_works_in_two_stages_counts_once() -> None:
    def twice(source: str) -> Capture:
        old = ledger(source)
        again = tuple(replace(n, stage="sam") for n in old.nodes if n.module == "text.attn" and not n.invocation)
        return with_ledger(toy(), replace(old, nodes=old.nodes + again))

    capture = toy()
    for source in ("analytic", "static", "dynamic"):
        capture = with_ledger(capture, next(x for x in twice(source).ledgers if x.source == source))
    result = made(capture)
    assert stage(result, "sam").costs["params"] == 40 + 36
    assert result.totals["params"] == 83


def test_an_odd_number_of_flops_has_no_macs() -> None:
    nodes = tuple(
        replace(n, costs={"flops": 865}) if n.stage == "decode" and n.kind else n for n in ledger("analytic").nodes
    )
    alone = replace(toy(), ledgers=(replace(ledger("analytic"), nodes=nodes),))
    assert stage(made(alone), "decode").costs["macs"] is None


def test_rows_that_do_not_sum_are_a_bug() -> None:
    result = made(toy())
    sam = replace(result.stages[0], flops_by_kind={"linear": 1791})
    with pytest.raises(Bug, match="do not sum"):
        check_sums(replace(result, stages=(sam, *result.stages[1:])))


def test_the_file_meets_its_contract() -> None:
    data = to_data(STATIC_COMPUTE, compare(toy()).static)
    header = ("schema", "schema_version", "conventions", "target", "workload", "environment")
    assert tuple(data)[:6] == header
    needed = {
        "id", "params", "flops", "macs", "vector_flops", "flops_by_kind", "weight_bytes", "activation_bytes",
        "io_bytes", "kv_cache_bytes", "invocations", "sources", "formulas",
    }  # fmt: skip
    for entry in data["stages"]:
        assert needed <= set(entry)
        for call in entry["invocations"]:
            assert {"id", "calls", "flops", "inputs"} <= set(call)
            assert all(set(t) == {"shape", "dtype"} for t in call["inputs"])
        for formula in entry["formulas"].values():
            assert {"expression", "latex", "version"} <= set(formula)
    assert all(set(n) == {"what", "why"} for n in data["not_counted"])
    assert data["not_counted"]


def test_a_source_that_leaves_a_stage_out_gives_no_total() -> None:
    static = ledger("static")
    partial = replace(static, stages=("sam", "clip"), nodes=tuple(n for n in static.nodes if n.stage != "decode"))
    result = made(with_ledger(toy(), partial))
    assert stage(result, "sam").sources["static"]["flops"] == 1024 + 768
    assert "flops" not in result.sources["static"]
    assert result.totals["flops"] == 1792 + 864


def test_a_new_metric_is_one_entry(tmp_path: Path) -> None:
    """The table with one entry more, in a process of its own: file, schema, page, frame and totals have it."""
    table = Path(metrics.__file__).read_text(encoding="utf-8")
    entry = '    "heat": MetricInfo("joules", False, "heat given off", "what a module gives off"),\n'
    before = '    "kv_cache_bytes": MetricInfo('
    assert table.count(before) == 1
    (tmp_path / "metrics.py").write_text(table.replace(before, entry + before), encoding="utf-8")
    script = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("costproof.ledger.metrics", sys.argv[1])
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from dataclasses import replace
from costproof import compare, frame
from costproof.ledger.schema import json_schema
from costproof.views.static_compute import STATIC_COMPUTE
from tests.support.toy import toy
hot = tuple(
    replace(x, metrics=(*x.metrics, "heat"),
            nodes=tuple(replace(n, costs={**n.costs, "heat": 7}) if n.kind else n for n in x.nodes))
    for x in toy().ledgers)
found = compare(replace(toy(), ledgers=hot))
data = json.loads(found.render("static-json"))
print(json.dumps([
    data["stages"][0]["heat"], data["stages"][0]["invocations"][0]["heat"], data["totals"]["heat"],
    data["sources"]["static"]["heat"], sorted(map(int, frame(found.static)["heat"])),
    [line for line in found.render("static-md").splitlines() if "heat" in line],
    "heat" in json_schema(STATIC_COMPUTE)["$defs"]["StageCompute"]["required"],
    [f.status for f in found.discrepancy.findings if f.metric == "heat" and f.level == "total"],
]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "metrics.py")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    # Two layers in two calls of sam, one call of decode: 7 in each.
    table_row = "| heat given off | 28 | 0 | 7 | 35 |"
    assert json.loads(done.stdout) == [28, 14, 35, 35, [0, 7, 28], [table_row], True, ["exact"]]


def held(size: int) -> Peak:
    """A peak of one tensor."""
    return Peak(size, "aten.mm.default", "m", (LiveTensor("mm", (size,), "uint8", size, "aten.mm.default", "m"),))


def test_the_peak_of_a_stage_is_the_largest_of_its_calls_and_stands_beside_the_sum() -> None:
    calls = (
        CallPeaks("sam", "global", "sam@64", held(100), held(130), (GapPart("held", 30, None),)),
        CallPeaks("sam", "crops", "sam@32", held(120), held(120)),
        CallPeaks("decode", "steps", "step", held(70), None, notes=("eager peak not known: why",)),
    )
    result = made(replace(toy(), peaks=calls))
    found = {s.id: (s.graph_peak_bytes, s.eager_peak_bytes) for s in result.stages}
    assert found["sam"] == (120, 130)
    assert found["decode"] == (70, None)
    assert found["clip"] == (None, None)
    data = to_data(STATIC_COMPUTE, result)["stages"][0]
    assert (data["graph_peak_bytes"], data["eager_peak_bytes"]) == (120, 130)
    page = static_md(Report(replace(toy(), peaks=calls)))
    head, _, sam = [line for line in page.splitlines() if line.startswith("|")][:3]
    assert head.endswith("| Activations written, sum | KV cache | Graph peak | Eager peak |")
    total = next(line for line in page.split("\n") if line.startswith("| **total**"))
    # Of another stage nobody knows a peak.
    assert total.endswith("| ? | ? |")
    one = tuple(CallPeaks(s, "", "", held(size), held(size)) for size, s in enumerate(result.target.stages, 100))
    every = static_md(Report(replace(toy(), peaks=one)))
    total = next(line for line in every.split("\n") if line.startswith("| **total**"))
    assert total.endswith("| 102 B | 102 B |")  # of 100, 101 and 102
    assert sam.endswith("| 120 B | 130 B |")


def test_peaks_that_nobody_asked_for_are_null_and_have_no_column() -> None:
    assert {(s.graph_peak_bytes, s.eager_peak_bytes) for s in made(toy()).stages} == {(None, None)}
    assert "Graph peak" not in static_md(Report(toy()))
