"""Baselines: equal layers folded, sums kept, unknown stays unknown, damaged files refused.

Numbers are those of the toy, by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.baseline import BASELINE, Baseline, BaselineRow, fold_capture, parse_baseline, read_baseline
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.files import json_text
from costproof.ledger.metrics import STAGE_WIDE
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.schema import to_data
from tests.support.toy import hostile, incomplete, toy
from tests.support.written import write_capture


def written(found: Baseline) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json_text(to_data(BASELINE, found)))
    return data


def test_equal_layers_are_one_row_over_all_calls_of_the_stage() -> None:
    rows = dict(fold_capture(toy()).sources["analytic"].items())
    assert rows[BaselineRow("sam", "sam.layers.*.lin", "linear", "flops")] == 2 * 512 + 2 * 384
    assert rows[BaselineRow("sam", "sam.layers.*.lin", "", "params")] == 2 * (4 * 4 + 4)
    assert rows[BaselineRow("decode", "text.attn", "", "kv_cache_bytes")] == 2 * 3 * 6 * 2
    assert str(BaselineRow("sam", "sam.layers.*.lin", "linear", "flops")) == "sam/sam.layers.*.lin:linear, flops"


def test_a_role_that_one_source_knows_names_the_part_in_all() -> None:
    analytic, *others = toy().ledgers
    named = replace(analytic, nodes=tuple(replace(n, role="tower.linear") for n in analytic.nodes[:4]))
    found = fold_capture(replace(toy(), ledgers=(named, *others)))
    assert found.sources["static"].rows["sam"]["tower.linear"]["aten.linear"] == {"flops": 512 + 384}


@pytest.mark.parametrize("source", ["analytic", "static", "dynamic"])
def test_sums_are_those_of_the_ledger(source: str) -> None:
    ledger, folded = toy().ledger(source), fold_capture(toy()).sources[source]
    for metric in ledger.metrics:
        assert folded.total(metric) == ledger.total(metric)
        assert [folded.total(metric, s) for s in ledger.stages] == [
            ledger.stage_total(s, metric) for s in ledger.stages
        ]


def test_a_module_that_works_in_two_stages_has_its_parameters_once_in_the_total() -> None:
    nodes = tuple(CostNode(s, "", "m.0", "", {"params": 5, "weight_bytes": None}) for s in ("prefill", "decode"))
    ledger = Ledger("analytic", nodes, ("params", "weight_bytes"), ("prefill", "decode"))
    folded = fold_capture(replace(toy(), ledgers=(ledger,))).sources["analytic"]
    assert (folded.total("params", "prefill"), folded.total("params", "decode"), folded.total("params")) == (5, 5, 5)
    assert folded.repeated == {"params": 5}
    assert folded.total("weight_bytes") is None


def test_what_has_no_rule_is_an_unknown_row_that_names_the_operator() -> None:
    folded = fold_capture(incomplete()).sources["static"]
    hidden = {m for m in folded.metrics if m != "calls" and m not in STAGE_WIDE}
    assert dict.fromkeys(hidden) == folded.rows["decode"]["text.attn"]["aten.mystery"]
    assert (folded.total("flops"), folded.total("flops", "sam"), folded.total("params")) == (None, 1792, 83)


def test_a_metric_that_the_source_does_not_give_is_unknown() -> None:
    folded = fold_capture(toy()).sources["analytic"]
    assert (folded.total("vector_flops"), folded.total("flops", "nowhere")) == (None, None)


def test_versions_are_those_of_what_counted() -> None:
    formulas = replace(toy(), ledgers=toy().ledgers[:1])
    assert fold_capture(formulas).environment == {"costproof": "0.1.0"}
    assert fold_capture(toy()).environment == toy().environment


def test_another_expression_is_another_version_of_its_formula_alone() -> None:
    analytic = toy().ledgers[0]
    changed = tuple(replace(n, exprs={"flops": "7*P"}) if n.kind == "attention" else n for n in analytic.nodes)
    before, after = (
        fold_capture(replace(toy(), ledgers=(x,))).sources["analytic"].formulas
        for x in (analytic, replace(analytic, nodes=changed))
    )
    assert before["linear"] == after["linear"]
    assert before["attention"] != after["attention"]


def test_it_reads_back_equal_with_the_same_bytes(tmp_path: Path) -> None:
    for number, made in enumerate((toy(), hostile(), incomplete())):
        path, found = tmp_path / f"{number}.json", fold_capture(made)
        path.write_text(json_text(to_data(BASELINE, found)), encoding="utf-8")
        assert read_baseline(path) == found
        assert json_text(to_data(BASELINE, read_baseline(path))) == path.read_text(encoding="utf-8")


def test_a_capture_is_read_as_one(tmp_path: Path) -> None:
    write_capture(tmp_path / "capture.json", toy())
    assert read_baseline(tmp_path / "capture.json") == fold_capture(toy())


def set_metric(data: dict[str, Any]) -> None:
    data["sources"]["analytic"]["rows"]["decode"]["text.attn"][""]["flop"] = 1


def set_stage(data: dict[str, Any]) -> None:
    rows = data["sources"]["static"]["rows"]
    rows["encode"] = rows["sam"]


def set_below_0(data: dict[str, Any]) -> None:
    data["sources"]["analytic"]["rows"]["decode"]["text.attn"][""]["params"] = -1


def set_repeated(data: dict[str, Any]) -> None:
    data["sources"]["analytic"]["repeated"] = {"params": 40 + 7 + 36 + 1}  # all that the toy has, and one more


def set_stage_twice(data: dict[str, Any]) -> None:
    data["sources"]["analytic"]["stages"].append("decode")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_metric, ("no such metric", "$.sources.analytic", "flop")),
        (set_stage, ("no such stage", "$.sources.static", "encode")),
        (set_repeated, ("the repeated amount", "$.sources.analytic.repeated, params", None)),
        (set_stage_twice, ("occurs twice", "$.sources.analytic.stages", None)),
        (set_below_0, ("a cost below 0", "$.sources.analytic.rows, decode/text.attn, params", "-1")),
        (
            lambda d: d["sources"]["static"]["rows"].update(sam=3),
            ("should be an object", "$.sources.static.rows.sam", "3"),
        ),
    ],
)
def test_a_damaged_one_is_refused(change: Callable[[dict[str, Any]], None], expected: tuple[str, str, str]) -> None:
    data = written(fold_capture(toy()))
    change(data)
    with pytest.raises(Problems) as error:
        parse_baseline(data, where="b.json")
    (problem,) = error.value.problems
    assert expected[0] in problem.what
    assert (problem.where, problem.got) == expected[1:]
    assert error.value.fix is not None
    assert "make baselines" in error.value.fix


def test_another_major_version_is_refused_with_the_command() -> None:
    data = {**written(fold_capture(toy())), "schema_version": "1.0"}
    with pytest.raises(BadInput, match="another major version") as error:
        parse_baseline(data, where="b.json")
    assert error.value.fix is not None
    assert "make baselines" in error.value.fix


def test_the_configuration_of_a_real_target_is_in_it_by_key(tmp_path: Path) -> None:
    from costproof.models.registry import load_target

    config = load_target("deepseek-ocr").info().config
    assert config is not None
    assert (config["text.topk"], config["text.hidden"], config["sam.global_layers"]) == (6, 1280, (2, 5, 8, 11))
    assert config["text.sliding_window"] is None
