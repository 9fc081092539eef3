"""The page of a capture as a file: its policy, its data, what hostile names and large numbers become."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from costproof import compare
from costproof.ledger.capture import Capture, SymbolDoc
from costproof.ledger.node import CostNode
from costproof.reports.html.document import h, payload
from costproof.reports.html.mathml import mathml
from tests.support.toy import hostile, incomplete, toy, wrong

CASES: dict[str, Callable[[], Capture]] = {"toy": toy, "wrong": wrong, "incomplete": incomplete, "hostile": hostile}
EVIL = "</script><img src=x onerror=alert(1)>"


def page(capture: Capture) -> str:
    return compare(capture).render("html")


def even(capture: Capture) -> Capture:
    """The capture with the class of both layers of sam, which make them equal."""
    assert capture.callgraph is not None
    types = {**capture.callgraph.module_types, "sam.layers.1.lin": "Linear"}
    return replace(capture, callgraph=replace(capture.callgraph, module_types=types))


def renamed(capture: Capture, old: str, new: str) -> Capture:
    """The capture with one module under another path."""

    def node(n: CostNode) -> CostNode:
        return replace(n, module=new) if n.module == old else n

    ledgers = tuple(replace(x, nodes=tuple(map(node, x.nodes))) for x in capture.ledgers)
    return replace(capture, ledgers=ledgers, callgraph=None)


def scaled(capture: Capture, factor: int) -> Capture:
    """The capture with its FLOPs multiplied, in all sources and formulas alike."""

    def node(n: CostNode) -> CostNode:
        if "flops" not in n.costs:
            return n
        exprs = {**n.exprs, "flops": f"{factor}*({n.exprs['flops']})"} if "flops" in n.exprs else n.exprs
        return replace(n, costs={**n.costs, "flops": factor * (n.costs["flops"] or 0)}, exprs=exprs)

    return replace(capture, ledgers=tuple(replace(x, nodes=tuple(map(node, x.nodes))) for x in capture.ledgers))


class _Tags(HTMLParser):
    """The tags of a file with their attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inside.append((self.tags[-1][0], data))


def read_tags(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """The tags of a file with their attributes, as a parser of HTML sees them."""
    return _Tags(text).tags


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    parsed: dict[str, Any] = json.loads(found[1])
    return parsed


def check_policy(text: str) -> None:
    """Only our script and style may run, and nothing is loaded."""
    read = _Tags(text)
    (policy,) = [a["content"] for t, a in read.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for tag in ("script", "style"):
        # Between the tags, byte for byte: the element without attributes.
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    for tag, attributes in read.tags:
        assert not [a for a in attributes if a.startswith("on") or a in ("style", "src", "srcset", "action")], tag
        assert (attributes.get("href") or "#").startswith("#")
    assert [t for t, _ in read.tags].count("script") == 2


@pytest.mark.parametrize("case", CASES)
def test_only_our_script_and_style_may_run_and_nothing_is_loaded(case: str) -> None:
    check_policy(page(CASES[case]()))


@pytest.mark.parametrize("name", [EVIL, "]]>&<\u2028\u202e\x07\ud800", "a.[0-3].b", "../x", "constructor"])
def test_names_are_data(name: str) -> None:
    text = page(renamed(toy(), "text.attn", name))
    plain = _Tags(page(toy()))
    read = _Tags(text)
    assert {t for t, _ in read.tags} <= {t for t, _ in plain.tags}
    assert [t for t, _ in read.tags].count("script") == 2
    assert "\x07" not in text
    assert "\u202e" not in text
    text.encode()  # lone surrogates are made visible


def test_data_cannot_end_its_script_and_come_back_whole() -> None:
    said = payload({"a": EVIL + "&\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(said)
    # What no reader can see is made visible: the line separators as their escapes.
    assert json.loads(said) == {"a": EVIL + "&\\u2028\\u2029"}


def test_markup_is_escaped_where_it_enters() -> None:
    assert h("p", EVIL, h("b", "&"), title='"') == (
        '<p title="&quot;">&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;<b>&amp;</b></p>'
    )


def test_large_integers_go_as_text() -> None:
    assert payload([2**53 - 1, 2**53, -(2**53), None, True]) == (
        '[9007199254740991,"9007199254740992","-9007199254740992",null,true]'
    )


def test_numbers_that_no_float_holds_are_whole() -> None:
    """864 * (2**60 + 1) FLOP in decode: 864 * 1152921504606846977 = 996124179980315788128."""
    text = page(scaled(toy(), 2**60 + 1))
    assert "996,124,179,980,315,788,128" in text
    (row,) = [r for r in data(text)["rows"] if r["stage"] == "decode" and r["parent"] is None]
    assert row["sum"]["flops"] == "996124179980315788128"


def test_equal_layers_are_one_row_and_rows_sum_up() -> None:
    """By hand (see the toy): both layers of sam together 1024 + 768 FLOP, 40 parameters; decode 864, 36; clip 0, 7."""
    rows = data(page(even(toy())))["rows"]
    named = {(r["stage"], r["path"]): r for r in rows}
    layers = named["sam", "sam.layers.[0-1].lin"]
    assert (layers["n"], layers["sum"]["flops"], layers["sum"]["params"]) == (2, 1792, 40)
    assert layers["own"]["calls"] == 4
    assert named["sam", ""]["sum"]["flops"] == 1792
    assert named["decode", ""]["sum"] == {
        "params": 36, "weight_bytes": 72, "flops": 864, "weight_read_bytes": 216, "output_bytes": 36,
        "kv_cache_bytes": 72,
    }  # fmt: skip
    assert "flops" not in named["clip", ""]["sum"]
    for at, row in enumerate(rows):
        below = [r for r in rows if r["parent"] == at]
        for metric, whole in row["sum"].items():
            assert whole == row["own"].get(metric, 0) + sum(r["sum"].get(metric, 0) for r in below)


def test_a_layer_that_differs_is_a_row_of_its_own() -> None:
    """The static source has one FLOP more in the second layer."""
    made = toy()
    place = ("sam.layers.1.lin", "global", "aten.linear")
    nodes = made.by_source["static"].nodes
    other = tuple(replace(n, costs={"flops": 513}) if (n.module, n.invocation, n.kind) == place else n for n in nodes)
    ledgers = tuple(replace(x, nodes=other) if x.source == "static" else x for x in made.ledgers)
    found = data(page(replace(made, ledgers=ledgers)))
    named = {r["path"]: r for r in found["rows"] if r["stage"] == "sam"}
    assert named["sam.layers.0.lin"]["sum"]["flops"] == 896
    assert named["sam.layers.1.lin"]["sum"]["flops"] == {"analytic": 896, "static": 897, "dynamic": 896}
    assert named["sam.layers.1.lin"]["status"] == "unexplained"
    assert named["sam.layers.1.lin"]["findings"]


def test_open_findings_come_before_everything_else() -> None:
    text = page(wrong())
    assert 0 < text.index('id="verdict"') < text.index('id="findings"') < text.index('id="cost"')
    assert 'id="findings"' not in page(toy())


def test_a_stage_of_disputed_cost_is_not_drawn_as_nothing() -> None:
    """The formulas of sam are wrong, so its FLOPs are disputed; its parameters are not."""
    assert page(wrong()).count("Unknown or disputed, so not in the bar: sam.") == 1
    assert "Unknown or disputed" not in page(toy())


def test_why_a_result_is_incomplete() -> None:
    assert "aten.mystery" in page(incomplete())
    assert re.search(r'class="verdict incomplete"', page(incomplete()))


def test_same_bytes_whatever_the_order_of_hashes() -> None:
    begin = "import sys; from costproof import compare; from tests.support.toy import toy, wrong"
    code = f"{begin}; sys.stdout.write(compare(toy()).render('html') + compare(wrong()).render('html'))"
    made = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def test_a_page_weighs_little_before_its_numbers() -> None:
    assert len(page(toy())) < 80_000


H = SymbolDoc(r"h_{\mathrm{sam}}", "")


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("2*h", "<mn>2</mn><mo>·</mo><msub><mi>h</mi><mtext>sam</mtext></msub>"),
        ("a_b + 1", "<mi>a_b</mi><mo>+</mo><mn>1</mn>"),
        ("a - b - c", "<mi>a</mi><mo>−</mo><mi>b</mi><mo>−</mo><mi>c</mi>"),
        ("a*(b + 1)", "<mi>a</mi><mo>·</mo><mrow><mo>(</mo><mi>b</mi><mo>+</mo><mn>1</mn><mo>)</mo></mrow>"),
        ("a/2*b", "<mfrac><mrow><mi>a</mi><mo>·</mo><mi>b</mi></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        ("a/(b*c)", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi><mo>·</mo><mi>c</mi></mrow></mfrac>"),
        (
            "(a + b)**2",
            (
                "<msup><mrow><mrow><mo>(</mo><mi>a</mi><mo>+</mo><mi>b</mi><mo>)</mo></mrow></mrow>"
                "<mrow><mn>2</mn></mrow></msup>"
            ),
        ),
        ("ceiling(a*2)", "<mrow><mo>⌈</mo><mi>a</mi><mo>·</mo><mn>2</mn><mo>⌉</mo></mrow>"),
        ("Min(a, b)", "<mrow><mi>min</mi><mo>(</mo><mi>a</mi><mo>,</mo><mi>b</mi><mo>)</mo></mrow>"),
        ("-a*b", "<mo>−</mo><mi>a</mi><mo>·</mo><mi>b</mi>"),
    ],
)
def test_formulas_are_typeset(expression: str, written: str) -> None:
    assert mathml(expression, {"h": H}) == f"<math><mrow>{written}</mrow></math>"


def test_a_sum_too_long_to_be_typeset_is_text() -> None:
    assert mathml(" + ".join(f"a{i}" for i in range(500)), {}).count("<mi>") == 500
    endless = " + ".join(f"a{i}" for i in range(30_000))
    assert mathml(endless, {}) == f"<math><mtext>{endless}</mtext></math>"
