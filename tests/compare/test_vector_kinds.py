"""Kinds of vector work inside one module: each reading of operators by hand, and what is called by a wrong name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.compare.align import align
from costproof.compare.compare import compare
from costproof.compare.kinds import nearest, operators
from costproof.compare.proof.judge import judge
from costproof.ledger.node import CostNode, Ledger
from tests.support import builders as b

# 12 elements in 3 rows. RMS norm: 4 per element and 2 per row, 54: square, mean, two products; sum and root per row.
RMS = {"aten.pow": 12, "aten.mean": 12, "aten.mul": 24, "aten.add": 3, "aten.rsqrt": 3}
# Written out, 8 per element: two means, two differences, square, quotient, product, sum. 2 per row: sum and root.
WRITTEN = {"mean": 24, "__sub__": 24, "pow": 12, "__add__": 15, "sqrt": 3, "__truediv__": 12, "__rmul__": 12}


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        ({"aten.layer_norm": 90}, {"norm": 90}),
        (RMS, {"norm": 54}),
        (WRITTEN, {"norm": 102}),
        # A weight around 0 costs one more addition.
        ({**RMS, "aten.add": 3 + 4}, {"norm": 54, "elementwise": 4}),
        ({"aten.mul": 24, "aten.sigmoid": 12}, {"activation": 36}),
        ({"aten.mul": 24, "aten.sigmoid": 12}, {"sigmoid": 12, "elementwise": 24}),
        ({"aten.sigmoid": 12}, {"activation": 12}),
        ({"aten.sigmoid": 12}, {"sigmoid": 12}),
        ({"aten.sigmoid": 12}, {"elementwise": 12}),
        ({"aten.tanh": 12, "aten.mul": 48, "aten.pow": 12, "aten.add": 24}, {"activation": 96}),
        ({"aten.tanh": 12}, {"activation": 12}),
        ({"aten.tanh": 12, "aten.div": 12, "aten.mul": 12}, {"elementwise": 36}),
        ({"aten.sum": 9}, {"reduction": 9}),
        ({"aten.sum": 9, "aten.add": 3}, {"elementwise": 12}),
        # 10 scores: 5 for the softmax, 1 for the scale, 1 for a mask.
        ({"aten.scaled_dot_product_attention": 60}, {"softmax": 50, "elementwise": 10}),
        ({"scaled_dot_product_attention": 70}, {"softmax": 50, "elementwise": 20}),
        ({"aten._softmax": 50, "aten.mul": 10, "aten.add": 10}, {"softmax": 50, "elementwise": 20}),
        ({"aten.topk": 8, "aten._softmax": 40}, {"select": 8, "softmax": 40}),
        ({"aten.upsample_bicubic2d": 31, "aten.add": 4}, {"resample": 31, "elementwise": 4}),
    ],
)
def test_operators_are_read_as_kinds_of_work(found: dict[str, int], kinds: dict[str, int]) -> None:
    assert nearest(kinds, operators(found.items())) == kinds


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"aten.layer_norm": 90}, {"softmax": 90}),
        (RMS, {"elementwise": 54}),
        (RMS, {"activation": 54}),
        # Half of it under another name.
        (RMS, {"norm": 27, "elementwise": 27}),
        ({"aten.gelu": 96}, {"elementwise": 96}),
        ({"aten.mul": 24, "aten.sigmoid": 12}, {"elementwise": 30, "activation": 6}),
        ({"aten.scaled_dot_product_attention": 60}, {"elementwise": 60}),
        ({"aten.scaled_dot_product_attention": 60}, {"softmax": 60}),
        ({"aten.add": 12}, {"norm": 12}),
        ({"aten.add": 12}, {"activation": 12}),
    ],
)
def test_a_wrong_name_is_none_of_them(found: dict[str, int], wrong: dict[str, int]) -> None:
    assert nearest(wrong, operators(found.items())) != wrong


def called(kind: str) -> Ledger:
    """The formulas, with the norms under another name."""
    return b.edited(b.analytic(), lambda n: n.kind == "norm", kind=kind)


def test_a_report_finds_the_name_and_the_place() -> None:
    capture = b.capture()
    assert {r.kind for r in align(capture.ledgers) if r.metric == "vector_flops"} == {""}
    others = tuple(x for x in capture.ledgers if x.source != "analytic")
    found = compare(replace(capture, ledgers=(called("softmax"), *others)))
    assert found.verdict == "unexplained"
    bad = {f.id: (f.values, f.status) for f in found.select(level="module", status="unexplained")}
    # Four norms of 7*48 + 12 = 348 operations.
    assert bad == {
        "prefill[prompt]/layers.[0-3].norm:softmax#vector_flops": (
            {"analytic": 4 * 348, "static": 0, "dynamic": 0}, "unexplained",
        ),
        "prefill[prompt]/layers.[0-3].norm:norm#vector_flops": (
            {"analytic": 0, "static": 4 * 348, "dynamic": 4 * 348}, "unexplained",
        ),
    }  # fmt: skip


def test_a_proof_finds_it() -> None:
    def judged(analytic: Ledger) -> set[tuple[str, str]]:
        values = {("prefill", "prompt"): b.SIZES}
        return {(c.kind, c.metric) for c in judge(analytic, b.static(), values, b.CONFIG).counterexamples}

    right = judged(b.analytic())
    assert judged(called("softmax")) - right == {("softmax", "vector_flops"), ("norm", "vector_flops")}


def test_a_wrong_sum_is_one_row() -> None:
    node = CostNode("f", "f", "m", "softmax", {"vector_flops": 7})
    other = CostNode("f", "f", "m", "aten.layer_norm", {"vector_flops": 8})
    rows = align([Ledger(s, (n,), ("vector_flops",), ("f",)) for s, n in (("analytic", node), ("static", other))])
    assert [r.kind for r in rows] == [""]
