"""The data of static_compute.json, against the hand-counted toy model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof import compare
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Bug
from costproof.ledger.schema import to_data
from costproof.reports.static_compute import STATIC_COMPUTE, StageCompute, StaticCompute, check_sums, static_compute
from tests.reports.toy import incomplete, ledger, toy, with_ledger, wrong


def made(capture: Capture) -> StaticCompute:
    return static_compute(capture, compare(capture).verdict)


def stage(result: StaticCompute, name: str) -> StageCompute:
    return next(s for s in result.stages if s.id == name)


def test_stages_and_totals_are_the_hand_counted_ones() -> None:
    result = made(toy())
    sam, clip, decode = (stage(result, s) for s in ("sam", "clip", "decode"))
    assert (sam.flops, sam.macs, sam.params, sam.weight_bytes) == (1024 + 768, 896, 40, 80)
    assert [(i.id, i.calls, i.flops) for i in sam.invocations] == [("global", 1, 1024), ("crops", 1, 768)]
    assert sam.flops_by_kind == {"linear": 1792}
    assert (clip.flops, clip.params, clip.params_executed, clip.invocations) == (0, 7, 0, ())
    assert (decode.flops, decode.kv_cache_bytes, decode.activation_bytes) == (864, 72, 36)
    assert result.totals["flops"] == 1792 + 864
    assert result.totals["params"] == 40 + 7 + 36
    assert result.totals["params_executed"] == 40 + 36
    assert result.sources["static"]["flops"] == 2656


def test_what_no_source_gives_is_null_and_not_zero() -> None:
    sam = stage(made(toy()), "sam")
    assert sam.vector_flops is None
    assert sam.io_bytes is None
    assert "vector_flops" not in sam.sources["static"]


def test_sources_that_disagree_give_no_headline() -> None:
    result = made(wrong())
    sam = stage(result, "sam")
    assert (sam.flops, sam.macs, sam.flops_by_kind) == (None, None, {"linear": None})
    assert sam.sources["analytic"]["flops"] == 896
    assert sam.sources["dynamic"]["flops"] == 1792
    assert result.totals["flops"] is None
    assert result.totals_at_least == {}
    assert stage(result, "decode").flops == 864


def test_an_operator_without_a_rule_leaves_a_lower_bound() -> None:
    result = made(incomplete())
    decode = stage(result, "decode")
    assert decode.flops is None
    assert decode.at_least["flops"] == 864
    assert decode.sources["static"]["flops"] is None
    assert decode.params == 36
    assert stage(result, "sam").flops == 1792
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
    assert stage(result, "sam").params == 40 + 36
    assert result.totals["params"] == 83


def test_an_odd_number_of_flops_has_no_macs() -> None:
    nodes = tuple(
        replace(n, costs={"flops": 865}) if n.stage == "decode" and n.kind else n for n in ledger("analytic").nodes
    )
    alone = replace(toy(), ledgers=(replace(ledger("analytic"), nodes=nodes),))
    assert stage(made(alone), "decode").macs is None


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
