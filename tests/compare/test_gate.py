"""Policies and what they decide, on the toy whose numbers are on its first page.

FLOPs by hand: sam 2 x (512 + 384) = 1792, decode 864, total 2656; weight bytes sam 80, clip 14, decode 72.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from datetime import date
from fractions import Fraction
from typing import Any

import pytest

from costproof.compare.gate.judge import Credits, judge
from costproof.compare.gate.policy import Allowance, Policy, PolicyAmount, PolicyPlace, policy_from_text
from costproof.compare.gate.types import Gate
from costproof.ledger.baseline import Baseline, fold_capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.metrics import Conventions, Metric
from costproof.reports.gate import gate_sentence
from tests.support.toy import incomplete, toy

DAY = date(2026, 6, 1)


NO_STATIC = "the head has no static source (sources: [analytic, dynamic] in the policy decides by what both have)"


def policy(*limits: str, allowed: tuple[str, ...] = (), top: str = "sources: analytic\n") -> Policy:
    lines = ["costproof_policy: 1", *filter(None, top.splitlines()), "limits:", *(f"  - {{{x}}}" for x in limits)]
    lines += ["allowed:", *(f"  - {{{x}}}" for x in allowed)] if allowed else []
    return policy_from_text("\n".join(lines) + "\n", where="policy.yaml")


def side(decode: int = 864, sam: int = 512) -> Baseline:
    """The toy with other FLOPs: of decode, and of one of the two layers of sam in its global view."""
    analytic, *others = toy().ledgers
    nodes = list(analytic.nodes)
    for i, node in enumerate(nodes):
        if "flops" in node.costs and node.stage == "decode":
            nodes[i] = replace(node, costs={"flops": decode})
    first = next(i for i, n in enumerate(nodes) if n.invocation == "global" and n.kind == "linear")
    nodes[first] = replace(nodes[first], costs={"flops": sam})
    return fold_capture(replace(toy(), ledgers=(replace(analytic, nodes=tuple(nodes)), *others)))


def said(rules: Policy, head: Baseline, base: Baseline | None = None) -> Gate:
    return judge(base or side(), head, rules, DAY)


def statuses(rules: Policy, head: Baseline) -> dict[str, str]:
    return {c.place: c.status for c in said(rules, head).checks}


@pytest.mark.parametrize(
    ("limit", "decode", "verdict"),
    [
        ("metric: flops, increase: 0", 864, "passed"),
        ("metric: flops, increase: 0", 865, "over"),
        ("metric: flops, increase: 0", 1, "passed"),
        ("metric: flops, increase: 36", 900, "passed"),
        ("metric: flops, increase: 36", 901, "over"),
        ("metric: flops, increase: 1 %", 864 + 26, "passed"),  # 2656 / 100 = 26.56
        ("metric: flops, increase: 1 %", 864 + 27, "over"),
        ("metric: flops, increase: 0.5%, stage: decode", 864 + 4, "passed"),  # 864 / 200 = 4.32
        ("metric: flops, increase: 0.5%, stage: decode", 864 + 5, "over"),
        ("metric: flops, stage: sam, increase: 0", 10**9, "passed"),
        ("metric: flops, budget: 2656", 864, "passed"),
        ("metric: flops, budget: 2_655", 864, "over"),
        ("metric: flops, budget: 2.657 k", 865, "passed"),
        ("metric: flops, increase: 1 P, budget: 2656", 865, "over"),
        ("metric: weight_bytes, budget: 166", 864, "passed"),  # 80 + 14 + 72
        ("metric: weight_bytes, budget: 165", 864, "over"),
    ],
)
def test_limits(limit: str, decode: int, verdict: str) -> None:
    found = said(policy(limit), side(decode))
    assert (found.verdict, found.exit_code) == (verdict, {"passed": 0, "over": 1}[verdict])


def test_what_is_over_and_by_how_much() -> None:
    (check,) = said(policy("metric: flops, stage: decode, increase: 1 %"), side(900)).checks
    assert (check.base, check.head, check.delta, check.most, check.over) == (864, 900, 36, 872, 28)
    assert (check.place, check.limit, check.line) == ("decode", "increase 1 %", 4)


def test_a_pattern_is_every_stage_or_role_by_itself() -> None:
    assert statuses(policy("metric: flops, stage: '*', increase: 0"), side(900)) == {
        "sam": "passed", "clip": "passed", "decode": "over",
    }  # fmt: skip
    roles = statuses(policy("metric: params, stage: '*', role: '*', increase: 0"), side())
    assert roles == dict.fromkeys(("sam/sam.layers.*.lin", "clip/clip.patch", "decode/text.attn"), "passed")


def test_a_role_is_the_part_and_what_is_inside_it() -> None:
    (check,) = said(policy("metric: flops, role: sam.layers, increase: 0"), side(sam=513)).checks
    assert (check.place, check.base, check.head) == ("*/sam.layers", 1792, 1793)


def test_a_pattern_of_roles_takes_every_part_without_what_is_inside_it() -> None:
    analytic = toy().ledgers[0]
    roles = {"sam": "m.inner", "decode": "m", "clip": "n"}
    nodes = tuple(replace(n, role=roles[n.stage]) for n in analytic.nodes)
    found = fold_capture(replace(toy(), ledgers=(replace(analytic, nodes=nodes),)))
    rules = policy("metric: flops, role: m, budget: 1", "metric: flops, role: 'm*', budget: 1")
    assert [(c.role, c.head) for c in said(rules, found, found).checks] == [("m", 2656), ("m", 864), ("m.inner", 1792)]


def test_an_allowance_counts_in_its_place_and_in_the_whole_until_its_day() -> None:
    rules = ("metric: flops, increase: 0", "metric: flops, stage: '*', increase: 0")
    allowance = "metric: flops, stage: decode, increase: 36, reason: wider, until: {}"
    lasting = policy(*rules, allowed=(allowance.format("2026-06-01"),))
    assert statuses(lasting, side(900)) == {
        "total": "allowed", "sam": "passed", "clip": "passed", "decode": "allowed",
    }  # fmt: skip
    assert [a.state for a in said(lasting, side(900)).allowances] == ["used"]
    assert [a.state for a in said(lasting, side(864)).allowances] == ["unused"]
    assert statuses(lasting, side(901))["decode"] == statuses(lasting, side(901))["total"] == "over"
    assert statuses(lasting, side(900, sam=513))["total"] == "over"  # what happened elsewhere is not allowed
    more = policy(rules[0], allowed=(allowance.format("2027-01-01").replace("36", "99"),))
    assert statuses(more, side(900, sam=513)) == {"total": "over"}  # and neither is what has not happened
    gone = said(policy(*rules, allowed=(allowance.format("2026-05-31"),)), side(900))
    assert (gone.verdict, [a.state for a in gone.allowances]) == ("over", ["expired"])
    assert "an allowance of 36 ran out on 2026-05-31 (wider)" in gone.checks[0].why


def test_an_allowance_for_the_whole_counts_in_every_stage_but_not_for_a_budget() -> None:
    allowed = ("metric: flops, increase: 5 %, reason: r, until: 2027-01-01",)  # 132 of 2656
    rules = policy("metric: flops, stage: decode, increase: 0", "metric: flops, budget: 2656", allowed=allowed)
    assert [c.status for c in said(rules, side(864 + 132)).checks] == ["allowed", "over"]
    assert [c.status for c in said(rules, side(864 + 133)).checks] == ["over", "over"]


@pytest.mark.parametrize(
    "limits",
    [
        ("metric: flops, stage: '*', increase: 0",),
        tuple(f"metric: flops, stage: {s}, increase: 0" for s in ("sam", "decode")),
    ],
)
def test_an_allowance_is_spent_once_over_all_stages(limits: tuple[str, ...]) -> None:
    rules = policy(*limits, allowed=("metric: flops, increase: 36, reason: wider, until: 2027-01-01",))
    assert said(rules, side(864 + 35, sam=512 + 1)).verdict == "passed"
    found = said(rules, side(864 + 36, sam=512 + 1))
    assert {c.place: c.status for c in found.checks if c.delta} == {"sam": "allowed", "decode": "over"}
    assert found.of("over")[0].why == "an allowance of 36 until 2027-01-01 (wider), of which 1 are spent elsewhere"


def test_two_allowances_never_count_the_same_increase_twice() -> None:
    twice = 2 * ("metric: flops, stage: decode, increase: 36, reason: wider, until: 2027-01-01",)
    whole = policy("metric: flops, increase: 0", allowed=twice)
    # Decode may grow by 72 and grew by 36; sam's 20 nobody allowed.
    assert statuses(whole, side(864 + 36, sam=512 + 20)) == {"total": "over"}
    assert statuses(whole, side(864 + 72)) == {"total": "allowed"}
    assert statuses(whole, side(864 + 73)) == {"total": "over"}


@pytest.mark.parametrize(("metric", "covered"), [("params", True), ("flops", False)])
def test_a_module_in_two_stages_has_its_parameters_once(metric: Metric, covered: bool) -> None:
    allowance = Allowance(PolicyPlace(metric), PolicyAmount("9", Fraction(9)), "wider", DAY)
    credit = Credits([allowance], lambda place: 100, lambda place: 109)
    assert credit.cover(PolicyPlace(metric, "prefill", line=4), 9) == (allowance,)
    assert credit.cover(PolicyPlace(metric, "prefill", line=5), 8) == (allowance,), "the same increase at another limit"
    assert (credit.cover(PolicyPlace(metric, "decode", line=4), 9) is not None) is covered
    assert credit.cover(PolicyPlace(metric, line=6), 9) == (allowance,), "the whole holds both"


def test_an_allowance_inside_a_role_does_not_count_for_the_role_alone() -> None:
    allowed = ("metric: flops, role: text.attn.inner, increase: 99, reason: r, until: 2027-01-01",)
    inside = policy("metric: flops, role: 'text*', increase: 0", allowed=allowed)
    with pytest.raises(Problems, match=r"line 6[\s\S]*text\.attn\.inner"):
        said(inside, side(900))
    other = ("metric: flops, role: sam.layers.x, stage: decode, increase: 99, reason: r, until: 2027-01-01",)
    with pytest.raises(Problems):
        said(policy("metric: flops, increase: 0", allowed=other), side(900))
    metric = ("metric: params, increase: 99, reason: r, until: 2027-01-01",)
    assert statuses(policy("metric: flops, increase: 0", allowed=metric), side(900)) == {"total": "over"}


def test_what_is_unknown_never_passes() -> None:
    rules = policy("metric: flops, increase: 10 P", "metric: flops, stage: sam, increase: 0", top="")
    found = said(rules, fold_capture(incomplete()))
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert {(c.source, c.place): c.status for c in found.checks if c.source == "static"} == {
        ("static", "total"): "unknown", ("static", "sam"): "passed",
    }  # fmt: skip
    unknown = next(c for c in found.checks if c.status == "unknown")
    assert (unknown.why, unknown.head) == ("the head does not tell it", None)
    other_way = said(rules, side(), fold_capture(incomplete()))
    assert next(c for c in other_way.checks if c.status == "unknown").why == "the base does not tell it"
    assert said(policy("metric: flops, budget: 1 P", top=""), side(), fold_capture(incomplete())).verdict == "passed"


def test_a_stage_that_a_source_no_longer_covers_is_unknown_and_one_that_is_gone_is_0() -> None:
    head = side()
    folded = head.sources["analytic"]
    less = {"analytic": replace(folded, stages=("sam", "clip"), rows={s: folded.rows[s] for s in ("sam", "clip")})}
    rules = policy("metric: flops, increase: 0", "metric: flops, stage: decode, increase: 0")
    assert [c.status for c in said(rules, replace(head, sources=less)).checks] == ["unknown", "unknown"]
    gone = replace(head, sources=less, target=replace(head.target, stages=("sam", "clip")))
    assert [(c.status, c.head) for c in said(rules, gone).checks] == [("passed", 1792), ("passed", 0)]


def without(found: Baseline, source: str) -> Baseline:
    return replace(found, sources={s: f for s, f in found.sources.items() if s != source})


@pytest.mark.parametrize(
    ("rules", "head", "reason"),
    [
        (policy("metric: flops, increase: 0", top=""), without(side(), "static"), NO_STATIC),
        (policy("metric: flops, increase: 0", top="sources: [isolated]"), side(), "the base has no isolated source"),
        (policy("metric: vector_flops, increase: 0"), side(), "no source gives vector_flops"),
        (
            policy("metric: flops, increase: 0"),
            replace(side(), workload=replace(side().workload, batch=2)),
            "base and head are of different workloads (batch: 1 → 2); inputs: any in the policy lets them be",
        ),
        (
            policy("metric: flops, increase: 0"),
            replace(side(), target=replace(side().target, name="toy2")),
            "the base is of toy, the head of toy2",
        ),
        (
            policy("metric: flops, increase: 0"),
            replace(side(), target=replace(side().target, cut={"decoder layers": "2 of 12"})),
            "the head is a part of its model: decoder layers 2 of 12",
        ),
    ],
)
def test_what_cannot_be_held_against_each_other_never_passes(rules: Policy, head: Baseline, reason: str) -> None:
    found = said(rules, head)
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert reason in found.incomplete


def test_other_inputs_can_be_let_be() -> None:
    rules = policy("metric: flops, increase: 0", top="inputs: any")
    assert said(rules, replace(side(), workload=replace(side().workload, batch=2))).verdict == "passed"


def test_another_convention_is_not_compared() -> None:
    found = said(policy("metric: flops, increase: 0"), replace(side(), conventions=Conventions(causal="triangle")))
    why = "causal is full in the base, triangle in the head"
    assert [(c.status, c.why) for c in found.checks] == [("unknown", why)]


def test_multiply_accumulates_are_two_flops_each() -> None:
    """2,656 MACs are 5,312 FLOPs, beside 2,656 FLOPs of the base."""
    limits = ("increase: 2656", "increase: 2655", "budget: 5312", "budget: 5311")
    in_macs = replace(side(), conventions=Conventions(unit="mac"))
    found = said(policy(*(f"metric: flops, {limit}" for limit in limits)), in_macs)
    assert [(c.head, c.status) for c in found.checks] == [(5312, "passed"), (5312, "over")] * 2


def test_names_that_nothing_has_are_refused_with_their_lines() -> None:
    rules = policy("metric: flops, stage: decod, increase: 0", "metric: flops, role: 'x*', increase: 0")
    with pytest.raises(Problems) as error:
        said(rules, side())
    assert [(p.what, p.where, p.fix) for p in error.value.problems] == [
        ("no such stage", "policy.yaml, line 4", "did you mean decode?"),
        ("no such role", "policy.yaml, line 5", None),
    ]


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("metric: flop, increase: 0", "no such metric"),
        ("metric: calls, increase: 0", "no such metric"),
        ("increase: 0", "no such metric"),
        ("metric: flops", "a limit without a bound lets everything pass"),
        ("metric: flops, increase: -1", "not an amount"),
        ("metric: flops, increase: 1e-9", "not an amount"),
        ("metric: flops, increase: 1.5", "not an integer"),
        ("metric: flops, increase: ''", "not an amount"),
        ("metric: flops, budget: 10 %", "a budget must be a number of units"),
        ("metric: flops, increase: 0, stages: decode", "unknown key"),
        ("metric: flops, increase: 0, stage: [decode]", "this must be a short text"),
        ("metric: params, role: text, increase: 0", "params of a role needs a stage"),
    ],
)
def test_a_wrong_limit_is_refused(limit: str, what: str) -> None:
    with pytest.raises(Problems) as error:
        policy(limit)
    assert what in [p.what for p in error.value.problems]
    assert all((p.where or "").startswith("$.limits[0]") for p in error.value.problems)


@pytest.mark.parametrize(
    ("allowance", "what"),
    [
        ("metric: flops, increase: 1, until: 2027-01-01", "an allowance must have a reason"),
        ("metric: flops, increase: 1, reason: ' ', until: 2027-01-01", "an allowance must have a reason"),
        ("metric: flops, increase: 1, reason: r", "an allowance must end on a date"),
        ("metric: flops, increase: 1, reason: r, until: soon", "an allowance must end on a date"),
        ("metric: flops, reason: r, until: 2027-01-01", "not an amount"),
        ("metric: flops, stage: '*', increase: 1, reason: r, until: 2027-01-01", "an allowance must name its place"),
    ],
)
def test_a_wrong_allowance_is_refused(allowance: str, what: str) -> None:
    with pytest.raises(Problems) as error:
        policy("metric: flops, increase: 0", allowed=(allowance,))
    assert [p.what for p in error.value.problems] == [what]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("limits: []\n", "not a policy of this version"),
        ("costproof_policy: 2\n", "not a policy of this version"),
        ("- 1\n", "not a policy of this version"),
        ("costproof_policy: 1\n", "the policy policy.yaml is wrong"),
        ("costproof_policy: 1\nlimits: 3\n", "the policy policy.yaml is wrong"),
        ("costproof_policy: 1\nlimits: [3]\n", "the policy policy.yaml is wrong"),
        ("costproof_policy: 1\nlimits: &a [{metric: flops, increase: 0}]\n", "anchors and aliases are not allowed"),
    ],
)
def test_what_is_not_a_policy_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadInput) as error:
        policy_from_text(text, where="policy.yaml")
    assert error.value.what == what


def test_what_checks_nothing_does_not_pass() -> None:
    rules = policy("metric: flops, increase: 0", top="")
    empty = said(rules, side(), replace(side(), sources={}))
    assert (empty.exit_code, empty.incomplete) == (3, ("the base has no source",))
    nowhere = said(policy("metric: kv_cache_bytes, role: 'clip*', increase: 0", "metric: flops, budget: 1 P"), side())
    assert nowhere.exit_code == 3
    assert nowhere.incomplete[0].startswith("the limit in line 4 checks nothing")


def test_a_stage_or_a_role_that_is_called_otherwise_does_not_escape_its_limits() -> None:
    head = side()
    gone = replace(head, target=replace(head.target, stages=("sam", "clip")))
    assert "the head has no stage decode" in said(policy("metric: flops, increase: 0"), gone).incomplete
    folded = head.sources["analytic"]
    renamed = replace(folded, rows={**folded.rows, "decode": {"text.other": folded.rows["decode"]["text.attn"]}})
    rules = policy("metric: flops, stage: decode, role: text.attn, increase: 0")
    found = said(rules, replace(head, sources={**head.sources, "analytic": renamed}))
    assert found.incomplete == ("the head has no text.attn, which the limit in line 4 is about",)
    assert said(rules, head).verdict == "passed"


def test_a_budget_is_in_the_units_of_the_base() -> None:
    found = said(policy("metric: flops, budget: 1 P"), replace(side(), conventions=Conventions(unit="word")))
    assert [(c.status, c.why) for c in found.checks] == [("unknown", "unit is flop in the base, word in the head")]


def test_an_amount_may_have_a_power_of_ten() -> None:
    """8.03e9 of a policy is exact: there is nothing to round."""
    form = "costproof_policy: 1\nlimits:\n- {{metric: flops, budget: {}}}"
    found = [policy_from_text(form.format(t), where="p") for t in ("8.03e9", "8.03E+9", "8.03 G", "8030000000")]
    assert [p.limits[0].budget for p in found] == [8_030_000_000] * 4


def edited(change: Callable[[dict[str, Any]], object], **config: Any) -> Baseline:
    """Return the toy's baseline with changed rows of its formulas, and a configuration."""
    found = side()
    rows: Any = deepcopy(found.sources["analytic"].rows)
    change(rows)
    folded = replace(found.sources["analytic"], rows=rows)
    target = replace(found.target, config=config or None)
    return replace(found, target=target, sources={**found.sources, "analytic": folded})


def drop(metric: Metric, stage: str) -> Callable[[dict[str, Any]], object]:
    return lambda rows: [costs.pop(metric, None) for kinds in rows[stage].values() for costs in kinds.values()]


@pytest.mark.parametrize(
    ("change", "config", "reason"),
    [
        (drop("flops", "decode"), {}, "analytic counts flops in decode of the base and none in the head"),
        (
            drop("weight_bytes", "sam"),
            {"h": 1},
            "analytic counts weight_bytes in sam of the base",
        ),
        (drop("weight_bytes", "sam"), {}, ""),  # a module may lose its parameters if nothing says what it is
        (
            lambda rows: rows["clip"].__setitem__("clip.more", rows["clip"]["clip.patch"]),
            {"h": 1},
            "analytic has no clip.more in clip of the base",
        ),
    ],
)
def test_what_is_lost_is_no_saving(
    change: Callable[[dict[str, Any]], object], config: dict[str, Any], reason: str
) -> None:
    found = said(policy("metric: params, budget: 1 P"), edited(change, **config), edited(lambda rows: None, **config))
    assert (found.exit_code, any(reason in why for why in found.silent)) == ((1, True) if reason else (0, False))


def test_a_part_that_formulas_of_one_configuration_lose_is_no_saving() -> None:
    base = edited(lambda rows: rows["clip"].__setitem__("clip.more", rows["clip"]["clip.patch"]), h=1)
    found = said(policy("metric: params, budget: 1 P"), edited(lambda rows: None, h=1), base)
    assert (found.exit_code, found.silent) == (
        1, ("analytic has no clip.more in clip of the head; the configurations are equal",)
    )  # fmt: skip


def test_lost_bounds_are_a_silence() -> None:
    base = side()
    bounded = replace(base, sources={s: replace(x, bounds=True) for s, x in base.sources.items()})
    found = judge(bounded, base, policy("metric: flops, increase: 0"), DAY)
    assert (found.exit_code, found.silent) == (
        1,
        ("analytic gives metrics of time bounds in the base and not in the head",),
    )


def test_an_exceeded_limit_is_a_finding_whatever_else_is_unknown() -> None:
    rules = policy("metric: flops, increase: 10 P", "metric: flops, stage: sam, budget: 1", top="")
    found = said(rules, fold_capture(incomplete()))
    assert {"unknown", "over"} <= {c.status for c in found.checks}
    assert (found.verdict, found.exit_code) == ("over", 1)
    assert ". Incomplete: " in gate_sentence(found)
