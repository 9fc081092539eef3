"""The comparer on hand-made captures: every expected number is worked out beside the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.compare.compare import compare
from costproof.compare.findings import Finding
from costproof.compare.verdict import exit_code, verdict_sentence
from costproof.ledger.capture import Capture, TraceCheck
from costproof.ledger.node import NO_RULE, Ledger, UnknownOp
from costproof.views.frames import finding_rows
from tests.support import builders as b


def found(capture: Capture, name: str) -> Finding:
    finding = compare(capture).finding(name)
    assert finding is not None, f"no finding {name}"
    return finding


def test_agreement_is_exact() -> None:
    d = compare(b.capture())
    assert d.verdict == "exact"
    assert exit_code(d) == 0
    assert {f.status for f in d.findings} == {"exact"}
    # 4 layers x (linear, attention, calls, vector, calls, params) + 3 of lm_head = 27.
    assert verdict_sentence(d) == "Exact: analytic, static and dynamic agree to the integer on all 27 quantities."


def test_patterns_sum_their_modules() -> None:
    finding = found(b.capture(), "prefill[prompt]/layers.[0-3].attn:attention#flops")
    assert finding.count == 4
    assert finding.values == {"analytic": 4 * 576, "static": 4 * 576, "dynamic": 4 * 576}


def test_totals_are_the_sums_of_the_ledgers() -> None:
    # 4 * (768 + 576) + 960
    assert found(b.capture(), "total#flops").values["dynamic"] == 6336
    # 4 * 16 + 80
    assert found(b.capture(), "prefill#params").values["static"] == 144


def test_wrong_factor_is_located_with_its_size_in_symbols() -> None:
    wrong = b.edited(
        b.analytic(),
        b.at("layers.1.attn", "attention"),
        costs={"flops": b.ATTENTION // 2},
        exprs={"flops": "2*B*S**2*text_hidden"},
    )
    d = compare(b.capture((wrong, b.static(), b.dynamic())))
    assert d.verdict == "unexplained"
    assert exit_code(d) == 1
    (bad,) = [f for f in d.select(level="module") if f.status != "exact"]
    assert bad.id == "prefill[prompt]/layers.1.attn:attention#flops"
    assert (bad.delta, bad.residual) == (-288, -288)
    # 2*B*S**2*8 - 32*B*S**2
    assert bad.error_expression == "-16*B*S**2"
    (cause,) = bad.causes
    assert (cause.kind, cause.accepted, cause.amount) == ("formula_term", False, -288)
    assert cause.note.startswith("factor 1/2")
    # The other three layers are one finding of their own, and the stage is as bad as its worst row.
    assert d.finding("prefill[prompt]/layers.[0,2-3].attn:attention#flops") is not None
    stage = d.finding("prefill#flops")
    assert stage is not None
    assert (stage.status, stage.delta, stage.residual) == ("unexplained", -288, -288)


def test_half_the_flops_is_no_convention_unless_the_ledger_says_so() -> None:
    halved = replace(
        b.analytic(),
        nodes=tuple(
            replace(n, costs={"flops": (n.costs["flops"] or 0) // 2}, exprs={}) if "flops" in n.costs else n
            for n in b.analytic().nodes
        ),
    )
    silent = compare(b.capture((halved, b.static(), b.dynamic())))
    assert silent.verdict == "unexplained"
    stated = compare(b.capture((replace(halved, conventions={"unit": "mac"}), b.static(), b.dynamic())))
    assert stated.verdict == "explained"
    total = stated.finding("total#flops")
    assert total is not None
    # 6336 FLOPs are 3168 MACs.
    assert (total.delta, total.residual) == (-3168, 0)
    assert [(c.kind, c.amount) for c in total.causes if c.amount] == [("convention", -3168)]


def test_equal_here_but_another_formula() -> None:
    # L = S at this workload; B = 2 stands where S = 3 would give another number, so B + 1 = S.
    wrong = b.edited(b.analytic(), b.at("layers.2.attn", "linear"), exprs={"flops": "2*B*(B + 1)*text_hidden**2"})
    d = compare(b.capture((wrong, b.static(), b.dynamic())))
    (bad,) = [f for f in d.select(level="module") if f.status != "exact"]
    assert (bad.module, bad.kind, bad.status, bad.delta) == ("layers.2.attn", "linear", "unexplained", 0)
    assert bad.error_expression in ("128*B*(B - S + 1)", "-128*B*(-B + S - 1)")


def test_logits_of_all_positions_are_the_prompt_in_other_letters() -> None:
    # The formula of lm_head is in L, the graph in S: with logits for all positions these are the same.
    assert found(b.capture(), "prefill[prompt]/lm_head:linear#flops").status == "exact"


def test_errors_that_cancel_are_still_errors() -> None:
    plus = b.edited(b.analytic(), b.at("layers.0.attn", "linear"), costs={"flops": b.LINEAR + 10}, exprs={})
    both = b.edited(plus, b.at("layers.1.attn", "linear"), costs={"flops": b.LINEAR - 10}, exprs={})
    d = compare(b.capture((both, b.static(), b.dynamic())))
    total = d.finding("total#flops")
    assert total is not None
    assert (total.delta, total.status) == (0, "unexplained")
    assert "cancel" in total.evidence[0]


def test_missing_node_counts_zero() -> None:
    wrong = b.edited(b.analytic(), b.at("layers.3.norm", "norm"), drop=True)
    bad = found(b.capture((wrong, b.static(), b.dynamic())), "prefill[prompt]/layers.3.norm#vector_flops")
    assert bad.values == {"analytic": 0, "static": 348, "dynamic": 348}
    assert bad.error_expression == "-58*B*S"
    assert bad.causes[0].note.startswith("missing")


def test_a_formula_for_what_does_not_exist() -> None:
    phantom = b.node("layers.4.attn", "linear", "flops", b.LINEAR, "2*B*S*text_hidden**2")
    extra = replace(b.analytic(), nodes=(*b.analytic().nodes, phantom))
    bad = found(b.capture((extra, b.static(), b.dynamic())), "prefill[prompt]/layers.4.attn:linear#flops")
    assert (bad.delta, bad.residual, bad.error_expression) == (768, 768, "128*B*S")


def test_two_graphs_that_disagree() -> None:
    other = b.edited(b.dynamic(), b.at("lm_head", metric="flops"), costs={"flops": b.HEAD + 1})
    bad = found(b.capture((b.analytic(), b.static(), other)), "prefill[prompt]/lm_head:linear#flops")
    assert (bad.status, bad.delta, bad.reference) == ("unexplained", -1, "dynamic")
    assert bad.causes[-1].kind == "source_disagreement"
    assert bad.deltas == {"analytic-dynamic": -1, "static-dynamic": -1}


def test_static_alone_differs_and_dynamic_does_not() -> None:
    other = b.edited(b.static(), b.at("lm_head", metric="flops"), costs={"flops": b.HEAD - 5}, exprs={})
    bad = found(b.capture((b.analytic(), other, b.dynamic())), "prefill[prompt]/lm_head:linear#flops")
    assert (bad.status, bad.delta, bad.residual, bad.reference) == ("unexplained", 5, 5, "static")


def eager(ledger: Ledger, name: str) -> Ledger:
    """Attention as two matrix products: QK^T and PV, 288 each."""
    half = b.ATTENTION // 2
    nodes = []
    for n in ledger.nodes:
        if "attention" in n.kind:
            nodes += [replace(n, kind=name, costs={"flops": half}, exprs={"flops": "16*B*S**2"} if n.exprs else {})] * 2
        else:
            nodes.append(n)
    return replace(ledger, nodes=tuple(nodes))


def test_eager_attention_is_two_matrix_products() -> None:
    d = compare(b.capture((b.analytic(), eager(b.static(), "aten.bmm"), eager(b.dynamic(), "__matmul__"))))
    assert d.verdict == "exact"
    finding = d.finding("prefill[prompt]/layers.[0-3].attn:attention#flops")
    assert finding is not None
    assert [(c.kind, c.amount) for c in finding.causes] == [("decomposition", 0)]
    assert finding.causes[0].evidence == ("analytic: attention", "static: aten.bmm", "dynamic: __matmul__")


@pytest.mark.parametrize(("more", "verdict"), [(0, "exact"), (2, "unexplained")])
def test_eager_attention_beside_a_matrix_product(more: int, verdict: str) -> None:
    # The formula has both kinds, the graphs one: of a module with a product of its own beside attention.
    def with_product(ledger: Ledger, kind: str, flops: int) -> Ledger:
        extra = [b.node(f"layers.{i}.attn", kind, "flops", flops) for i in range(b.LAYERS)]
        return replace(ledger, nodes=(*ledger.nodes, *extra))

    graphs = [with_product(eager(s, k), k, 100) for s, k in ((b.static(), "aten.bmm"), (b.dynamic(), "matmul"))]
    d = compare(b.capture((with_product(b.analytic(), "matmul", 100 + more), *graphs)))
    assert d.verdict == verdict
    bad = [(f.id, f.delta) for f in d.select(level="module", status="unexplained")]
    assert bad == ([("prefill[prompt]/layers.[0-3].attn:attention#flops", 4 * more)] if more else [])


def test_a_dropped_einsum_is_told_from_eager_attention() -> None:
    def with_einsum(ledger: Ledger) -> Ledger:
        extra = [b.node(f"layers.{i}.attn", "aten.einsum", "flops", 100) for i in range(b.LAYERS)]
        return replace(ledger, nodes=(*ledger.nodes, *extra))

    graphs = with_einsum(eager(b.static(), "aten.bmm")), with_einsum(eager(b.dynamic(), "matmul"))
    d = compare(b.capture((b.analytic(), *graphs)))
    (bad,) = [f for f in d.select(level="module") if f.status != "exact"]
    assert bad.id == "prefill[prompt]/layers.[0-3].attn:einsum#flops"
    assert (bad.delta, bad.values["analytic"]) == (-400, 0)


def test_two_errors_in_one_eager_module_stay_two() -> None:
    # No numbers match here, so only the names can tell: the sources that say matmul say einsum beside it.
    einsum = tuple(b.node(f"layers.{i}.attn", "einsum", "flops", 100) for i in range(b.LAYERS))
    graphs = [replace(x, nodes=(*x.nodes, *einsum)) for x in (eager(b.static(), "bmm"), eager(b.dynamic(), "matmul"))]
    wrong = replace(
        b.analytic(),
        nodes=tuple(
            replace(n, costs={"flops": 7}, exprs={}) if n.kind == "attention" else n for n in b.analytic().nodes
        ),
    )
    d = compare(b.capture((wrong, *graphs)))
    bad = {f.id: f.delta for f in d.select(level="module", status="unexplained")}
    assert bad == {
        "prefill[prompt]/layers.[0-3].attn:attention#flops": 4 * (7 - 576),
        "prefill[prompt]/layers.[0-3].attn:einsum#flops": -400,
    }


def test_other_expert_kernels_do_the_same_work() -> None:
    def named(source: str, kind: str) -> Ledger:
        return Ledger(source, (b.node("experts", kind, "flops", 640),), ("flops",), ("prefill",))

    d = compare(
        b.capture((named("analytic", "expert_gemm"), named("static", "aten._grouped_mm"), named("dynamic", "bmm")))
    )
    finding = d.finding("prefill[prompt]/experts:expert_gemm#flops")
    assert finding is not None
    assert finding.status == "exact"
    assert [(c.kind, c.amount) for c in finding.causes] == [("expert_kernel", 0)]


def checkpoint(**extra: int) -> Ledger:
    nodes = [n for n in b.static().nodes if "params" in n.costs]
    nodes += [b.node(m, "", "params", v, invocation="") for m, v in extra.items()]
    return Ledger("checkpoint", tuple(nodes), ("params",), ("prefill",))


def test_parameters_that_nothing_runs_are_explained() -> None:
    d = compare(b.capture((b.analytic(), b.static(), b.dynamic(), checkpoint(patch=602_112))))
    assert d.verdict == "explained"
    assert exit_code(d) == 0
    finding = d.finding("prefill/patch#params")
    assert finding is not None
    assert (finding.status, finding.delta, finding.residual) == ("explained", -602_112, 0)
    assert [c.kind for c in finding.causes] == ["unexecuted_parameters"]
    assert (stage := d.finding("prefill#params")) is not None
    assert (stage.status, stage.delta, stage.residual, stage.reference) == ("explained", -602_112, 0, "checkpoint")
    assert verdict_sentence(d) == (
        "Explained: analytic, static and dynamic agree to the integer on all but 1 of 28 quantities; "
        "that one has a named cause (unexecuted parameters) and residual 0."
    )


def test_a_file_of_a_stage_that_does_not_run_is_no_view_of_its_parameters() -> None:
    """A tower of 40 parameters in 80 bytes of a file: an export without the tower has the bytes, not the parameters."""

    def tower(ledger: Ledger, params: int) -> Ledger:
        nodes = [
            b.node("tower", "", metric, size, stage="tower", invocation="")
            for metric, size in (("params", params), ("stored_bytes", 80))
        ]
        metrics = (*ledger.metrics, "stored_bytes")
        return replace(ledger, nodes=(*ledger.nodes, *nodes), metrics=metrics, stages=("prefill", "tower"))

    d = compare(b.capture((tower(b.analytic(), 40), tower(b.static(), 0), tower(b.dynamic(), 40))))
    finding = d.finding("tower/tower#params")
    assert finding is not None
    assert (finding.status, [c.kind for c in finding.causes]) == ("explained", ["unexecuted_parameters"])


def test_parameters_of_a_module_that_runs_are_never_unexecuted() -> None:
    without = [
        b.edited(x, b.at("lm_head", metric="params"), drop=True) for x in (b.analytic(), b.static(), b.dynamic())
    ]
    finding = found(b.capture((*without, checkpoint())), "prefill/lm_head#params")
    assert (finding.status, finding.residual) == ("unexplained", -80)


def test_another_number_of_calls_is_named_and_explains_nothing() -> None:
    def twice(ledger: Ledger) -> Ledger:
        more = b.edited(ledger, b.at("lm_head", metric="calls"), costs={"calls": 2})
        return b.edited(more, b.at("lm_head", metric="flops"), costs={"flops": 2 * b.HEAD})

    d = compare(b.capture((b.analytic(), twice(b.static()), twice(b.dynamic()))))
    for name, delta in (("prefill[prompt]/lm_head:linear#flops", -960), ("prefill[prompt]/lm_head#calls", -1)):
        finding = d.finding(name)
        assert finding is not None
        assert (finding.status, finding.delta, finding.residual) == ("unexplained", delta, delta)
        (cause,) = [c for c in finding.causes if c.amount]
        assert (cause.kind, cause.accepted) == ("call_count", False)
        assert cause.note == "analytic runs the module 1 time, dynamic 2 times, at the same cost per call"
    whole = d.finding("prefill#flops")
    assert whole is not None
    assert (whole.status, whole.residual) == ("unexplained", -960)
    assert "lm_head:linear#flops, analytic - dynamic = -960" in verdict_sentence(d)


def test_without_a_graph_in_symbols_no_error_is_given_in_symbols() -> None:
    wrong = b.edited(b.analytic(), b.at("lm_head", metric="flops"), costs={"flops": 7}, exprs={})
    d = compare(b.capture((wrong, b.dynamic())))
    finding = d.finding("prefill[prompt]/lm_head:linear#flops")
    assert finding is not None
    assert (finding.delta, finding.error_expression) == (7 - b.HEAD, None)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (NO_RULE, "has no rule (1 call in lm_head, at most 10,000 FLOP)"),
        ("lengths are data", "is not counted (1 call in lm_head, at most 10,000 FLOP): lengths are data"),
    ],
)
def test_unknown_operator_makes_the_capture_incomplete(why: str, said: str) -> None:
    op = UnknownOp("aten.mystery", "prefill", "lm_head", 1, 10_000, why)
    blind = b.edited(replace(b.static(), unknown_ops=(op,)), b.at("lm_head", metric="flops"), drop=True)
    d = compare(b.capture((b.analytic(), blind, b.dynamic())))
    assert (d.verdict, exit_code(d)) == ("incomplete", 3)
    assert d.coverage["static"].unknown_ops == (op,)
    # 6336 without the 960 of lm_head
    assert d.coverage["static"].known_flops == 5376
    assert d.coverage["static"].bound_flops == 10_000
    finding = d.finding("prefill[prompt]/lm_head:linear#flops")
    assert finding is not None
    assert [(c.kind, c.amount) for c in finding.causes if c.amount] == [("uncounted_operator", 960)]
    assert verdict_sentence(d).startswith(f"Incomplete: static: operator aten.mystery {said}")


def test_unknown_operator_explains_no_more_than_its_bound() -> None:
    op = UnknownOp("aten.mystery", "prefill", "lm_head", 1, 900, NO_RULE)
    blind = b.edited(replace(b.static(), unknown_ops=(op,)), b.at("lm_head", metric="flops"), drop=True)
    finding = found(b.capture((b.analytic(), blind, b.dynamic())), "prefill[prompt]/lm_head:linear#flops")
    assert (finding.status, finding.residual) == ("unexplained", 960)


def test_unknown_value_is_never_zero() -> None:
    unknown = b.edited(b.dynamic(), b.at("lm_head", metric="flops"), costs={"flops": None})
    d = compare(b.capture((b.analytic(), b.static(), unknown)))
    finding = d.finding("prefill[prompt]/lm_head:linear#flops")
    assert finding is not None
    assert (finding.status, finding.values["dynamic"], finding.delta) == ("unsupported", None, None)
    assert d.verdict == "incomplete"


def test_one_source_proves_nothing() -> None:
    d = compare(b.capture((b.analytic(),)))
    assert (d.verdict, exit_code(d)) == ("incomplete", 3)
    assert {f.status for f in d.findings} == {"analytic-only"}
    assert d.incomplete == ("only analytic counted: a proof needs two of analytic, static, dynamic, isolated",)


def isolated(ledger: Ledger | None = None) -> Ledger:
    return replace(ledger or b.dynamic(), source="isolated")


def test_a_fourth_source_is_compared_like_the_others() -> None:
    d = compare(b.capture((isolated(), b.dynamic(), b.static(), b.analytic())))
    assert verdict_sentence(d) == (
        "Exact: analytic, static, dynamic and isolated agree to the integer on all 27 quantities."
    )
    assert list(finding_rows(d)[0])[9:13] == ["analytic", "static", "dynamic", "isolated"]
    total = d.finding("total#flops")
    assert total is not None
    assert list(total.values.items()) == [("analytic", 6336), ("static", 6336), ("dynamic", 6336), ("isolated", 6336)]


def test_a_stage_that_costs_something_else_alone() -> None:
    other = b.edited(isolated(), b.at("lm_head", metric="flops"), costs={"flops": b.HEAD + 7})
    d = compare(b.capture((b.analytic(), b.static(), b.dynamic(), other)))
    bad = d.finding("prefill[prompt]/lm_head:linear#flops")
    assert bad is not None
    assert (bad.status, bad.delta, bad.residual, bad.reference) == ("unexplained", -7, -7, "isolated")
    assert bad.causes[-1].kind == "source_disagreement"
    assert bad.deltas == {"analytic-isolated": -7, "static-isolated": -7, "dynamic-isolated": -7}
    assert verdict_sentence(d).endswith("prefill[prompt]/lm_head:linear#flops, analytic - isolated = -7.")


def test_extracted_and_isolated_alone_can_be_compared() -> None:
    d = compare(b.capture((b.dynamic(), isolated())))
    assert verdict_sentence(d) == "Exact: dynamic and isolated agree to the integer on all 27 quantities."


def test_stages_alone_prove_nothing_alone() -> None:
    d = compare(b.capture((isolated(),)))
    assert (d.verdict, {f.status for f in d.findings}) == ("incomplete", {"isolated-only"})


def test_what_is_wrong_comes_before_what_is_unknown() -> None:
    unknown = b.edited(b.dynamic(), b.at("layers.0.attn", metric="flops"), costs={"flops": None})
    wrong = b.edited(b.analytic(), b.at("lm_head", metric="flops"), costs={"flops": 1}, exprs={})
    stage = found(b.capture((wrong, b.static(), unknown)), "prefill#flops")
    assert (stage.status, stage.values["dynamic"], stage.delta) == ("unexplained", None, None)


def test_metric_that_only_formulas_give_leaves_the_verdict() -> None:
    nodes = (*b.analytic().nodes, b.node("lm_head", "", "weight_bytes", 160, invocation=""))
    more = replace(b.analytic(), nodes=nodes, metrics=(*b.METRICS, "weight_bytes"))
    d = compare(b.capture((more, b.static(), b.dynamic())))
    assert d.verdict == "exact"
    assert (f := d.finding("prefill/lm_head#weight_bytes")) is not None
    assert (f.status, f.delta) == ("analytic-only", None)


def test_stage_that_does_not_run() -> None:
    nodes = (*b.analytic().nodes, b.node("tower", "", "params", 7, invocation="", stage="sam"))
    more = replace(b.analytic(), nodes=nodes, stages=("sam", "prefill"))
    capture = b.capture((more, b.static(), b.dynamic()))
    d = compare(replace(capture, target=replace(capture.target, stages=("sam", "prefill"))))
    assert (f := d.finding("sam/tower#params")) is not None
    assert f.status == "not-executed"
    assert d.verdict == "exact"


def text_only(**params: int) -> Capture:
    """A stage ``sam`` that does not run, with the parameters of its module by source."""
    ledgers = tuple(
        replace(
            x,
            nodes=(*x.nodes, *(b.node(m, "", "params", v, invocation="", stage="sam") for m, v in held.items())),
            stages=("sam", "prefill"),
        )
        for x, held in (
            (b.analytic(), {"tower": params["analytic"], "other": 5}),
            (b.static(), {"tower": params["static"], "other": params["other"]}),
            (b.dynamic(), {"tower": params["static"], "other": params["other"]}),
        )
    )
    capture = b.capture(ledgers)
    return replace(capture, target=replace(capture.target, stages=("sam", "prefill")))


def test_graphs_that_show_only_what_runs_have_no_parameters_of_a_stage_that_does_not() -> None:
    finding = found(text_only(analytic=7, static=0, other=0), "sam/tower#params")
    assert (finding.status, finding.delta, finding.residual) == ("explained", 7, 0)


@pytest.mark.parametrize(("analytic", "static"), [(0, 7), (7, 0)])
def test_a_stage_that_does_not_run_hides_no_error(analytic: int, static: int) -> None:
    # The graphs do see the other module of the stage, so they would see this one too.
    finding = found(text_only(analytic=analytic, static=static, other=5), "sam/tower#params")
    assert (finding.status, finding.residual) == ("unexplained", analytic - static)


def test_tracers_that_differ_are_a_finding_each() -> None:
    check = TraceCheck(3, 2, ("lm_head: TorchLens 1 call, hooks 2",))
    d = compare(replace(b.capture(), trace_check=check))
    (bad,) = d.select(level="trace")
    assert (bad.status, bad.evidence) == ("unexplained", check.differences)
    assert exit_code(d) == 1


def test_parameters_of_shared_modules_are_totalled_once() -> None:
    def shared(ledger: Ledger) -> Ledger:
        again = tuple(replace(n, stage="decode") for n in ledger.nodes if "params" in n.costs)
        return replace(ledger, nodes=(*ledger.nodes, *again), stages=("prefill", "decode"))

    capture = b.capture(tuple(shared(x) for x in (b.analytic(), b.static(), b.dynamic())))
    d = compare(replace(capture, target=replace(capture.target, stages=("prefill", "decode"))))
    total, decode = d.finding("total#params"), d.finding("decode#params")
    assert total is not None
    assert decode is not None
    assert (total.values["analytic"], decode.values["analytic"]) == (144, 144)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_order_of_ledgers_does_not_matter(order: tuple[int, ...]) -> None:
    ledgers = (b.analytic(), b.static(), b.dynamic())
    wrong = (b.edited(ledgers[0], b.at("lm_head", metric="flops"), costs={"flops": 1}, exprs={}), *ledgers[1:])
    mixed = compare(b.capture([wrong[i] for i in order]))
    assert mixed.findings == compare(b.capture(wrong)).findings


def test_rows_have_a_column_per_source() -> None:
    rows = finding_rows(compare(b.capture()))
    head = next(r for r in rows if r["id"] == "prefill[prompt]/lm_head:linear#flops")
    assert (head["analytic"], head["static"], head["dynamic"], head["residual"]) == (960, 960, 960, 0)


def nothing_in(stage: str) -> Capture:
    """A capture whose sources agree that there is nothing in a stage."""
    return b.capture(tuple(b.edited(x, lambda n: n.stage == stage, drop=True) for x in b.capture().ledgers))


def other_target(*stages: str) -> Capture:
    return replace(b.capture(), target=replace(b.capture().target, stages=stages))


def calls_in(*calls: str) -> Capture:
    (call,) = b.capture().invocations
    return replace(b.capture(), invocations=tuple(replace(call, id=c) for c in calls))


def without(metric: str) -> Capture:
    made = [b.edited(x, lambda n: metric in n.costs, drop=True) for x in b.capture().ledgers]
    return b.capture([replace(x, metrics=tuple(m for m in x.metrics if m != metric)) for x in made])


@pytest.mark.parametrize(
    ("capture", "said"),
    [
        (nothing_in("prefill"), "nothing was counted: there is no quantity to compare"),
        (other_target("prefill", "ghost"), "ghost: a stage of the target that no source counted"),
        (calls_in("prompt", "second"), "prefill[second]: an invocation in which no source counted a call"),
        (without("flops"), "flops are not compared: fewer than two sources give them"),
        (without("params"), "params are not compared: fewer than two sources give them"),
        (without("calls"), "calls are not compared: fewer than two sources give them"),
    ],
    ids=["no nodes", "a stage of nobody", "an invocation of nobody", "no FLOPs", "no parameters", "no calls"],
)
def test_a_verdict_over_nothing_is_incomplete(capture: Capture, said: str) -> None:
    d = compare(capture)
    assert (d.verdict, exit_code(d)) == ("incomplete", 3)
    assert said in d.incomplete
    assert verdict_sentence(d).startswith("Incomplete: ")
