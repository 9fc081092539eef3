"""What a gate prints: for people, and for the programs that run it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import pytest

from costproof.compare.diff.types import Side
from costproof.compare.gate.types import Gate
from costproof.reports.gate import MOST, gate_github, gate_junit, gate_sarif
from costproof.reports.markdown import BUDGET
from costproof.reports.outputs import variants
from costproof.views.describe import counted_lines
from tests.compare.test_gate import policy, said, side
from tests.conftest import Golden
from tests.support.toy import HOSTILE

gate_md, gate_text = (variants("gate")[kind].text for kind in ("md", "text"))
ALLOWED = (
    "metric: flops, stage: decode, increase: 36, reason: wider, until: 2026-12-31",
    "metric: flops, stage: sam, increase: 9, reason: old, until: 2026-01-31",
)
RULES = ("metric: flops, stage: '*', increase: 0", "metric: flops, budget: 2690", "metric: flops, increase: 0")


def over() -> Gate:
    return said(policy(*RULES, allowed=ALLOWED), side(900, sam=520))


def incomplete() -> Gate:
    head = side(900)
    return said(policy(*RULES, top=""), replace(head, sources={"analytic": head.sources["analytic"]}))


def many() -> Gate:
    found = over()
    (first,) = (c for c in found.checks if c.place == "sam")
    checks = [replace(first, role=f"part.{i}" + 90 * "x") for i in range(3_000)]
    return replace(found, checks=(*checks, *(replace(c, status="passed", why="") for c in checks)))


def hostile() -> Gate:
    found = over()
    checks = tuple(replace(c, stage=HOSTILE, why=HOSTILE) for c in found.checks)
    return replace(found, policy="a,b:c\n.yaml", checks=checks, incomplete=(HOSTILE,))


@pytest.mark.parametrize(("name", "made"), [("over", over), ("incomplete", incomplete)])
def test_texts(name: str, made: Callable[[], Gate], golden: Golden) -> None:
    texts = [
        f"=== {kind}\n{output.text(made())}"
        for kind, output in variants("gate").items()
        if kind not in ("json", "html")
    ]
    golden(f"reports/gate-{name}.txt", "".join(texts))


def test_one_green_line_where_everything_passed() -> None:
    passed = said(policy("metric: flops, increase: 0"), side())
    assert gate_md(passed) == f"✅ Passed: 1 check (toy at toy-v1). {passed.base.counted}\n"
    assert gate_text(passed) == f"Passed: 1 check (toy at toy-v1).\n{passed.base.counted}\n"
    assert gate_github(passed) == "Passed: 1 check (toy at toy-v1).\n"


def test_junit_counts_what_it_holds() -> None:
    for made, counts in ((over(), (5, 3, 0)), (incomplete(), (6, 3, 1)), (hostile(), (6, 3, 1))):
        root = ET.fromstring(gate_junit(made))
        (suite,) = root
        cases = list(suite)
        found = (len(cases), len(suite.findall("testcase/failure")), len(suite.findall("testcase/error")))
        assert found == tuple(int(suite.attrib[k]) for k in ("tests", "failures", "errors"))
        assert found == counts


def test_sarif_writes_the_policy_as_an_address() -> None:
    (run,) = json.loads(gate_sarif(replace(over(), policy="a b/50%:x.yaml")))["runs"]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/50%25%3Ax.yaml"


def test_sarif_results_of_one_line_are_told_apart() -> None:
    """GitHub takes results with the same rule, line and fingerprint for one."""
    (run,) = json.loads(gate_sarif(many()))["runs"]
    keys = [(r["ruleId"], r["partialFingerprints"]["primaryLocationLineHash"]) for r in run["results"]]
    assert len({*keys}) == len(keys) == 3_000


def test_sarif_points_at_the_lines_of_the_policy() -> None:
    (run,) = json.loads(gate_sarif(over()))["runs"]
    assert {r["id"] for r in run["tool"]["driver"]["rules"]} >= {r["ruleId"] for r in run["results"]}
    places = [r["locations"][0]["physicalLocation"] for r in run["results"]]
    assert {p["artifactLocation"]["uri"] for p in places} == {"policy.yaml"}
    assert sorted(p["region"]["startLine"] for p in places) == [4, 5, 6]  # limits begin at line 4
    assert json.loads(gate_sarif(said(policy(RULES[0]), side())))["runs"][0]["results"] == []


def test_at_most_ten_annotations_of_a_kind_and_the_first_says_how_many() -> None:
    shown = gate_github(many()).splitlines()
    errors = [line for line in shown if line.startswith("::error ")]
    assert len(errors) == MOST
    assert "3,000 errors, of which 9 are shown." in errors[0]


def test_annotations_are_one_line_each_whatever_the_names_are() -> None:
    first, *_ = gate_github(hostile()).splitlines()
    assert first.startswith("::error file=a%2Cb%3Ac\\n.yaml,line=1,title=costproof gate::")
    assert all(line.startswith("::") for line in gate_github(hostile()).splitlines()[:-1])


def test_a_comment_stays_below_the_limits_of_github_and_its_first_table_is_short() -> None:
    text = gate_md(many())
    assert len(text.encode()) < BUDGET
    assert "Left out, to stay below 60,000 bytes" in text
    table, _, rest = text.partition("\n\n- ")
    assert table.count("\n| ") == 1 + 15  # with its head
    assert rest
    assert gate_md(many()) == text


def test_names_are_never_markup() -> None:
    text = gate_md(hostile())
    assert "<script>" not in text
    assert "\x1b" not in gate_text(hostile())


def test_what_the_numbers_of_two_sides_leave_out_says_of_which() -> None:
    base = Side("m", "native", "run", "", "0", (), {}, counted="Counted: weights and cache bfloat16")
    assert counted_lines(base, base) == [base.counted]
    head = replace(base, counted="Counted: weights and cache float32")
    assert counted_lines(base, head) == [
        "Counted in the base: weights and cache bfloat16",
        "Counted in the head: weights and cache float32",
    ]
