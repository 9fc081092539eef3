"""Mistakes in bytes, cache and parameters; the truth of each is written out from the published sizes."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from costproof.claims import claims_from_text, judge_claims
from costproof.ledger.capture import Capture
from costproof.ledger.evaluate import evaluate_ledger
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.reports.claims import document
from costproof.reports.text import TerminalPrinter
from tests.claims.test_judge import HEAD, PREFILL, PROMPT, WIDTH, capture, verdict
from tests.oracles.claims import causes

# 12 layers of 10 heads of 128 in bfloat16: keys and values of a token.
TOKEN = 12 * 2 * 10 * 128 * 2
CACHE = PROMPT * TOKEN
# Matrices of the decoder with every expert, and what of them a step reads: 6 of 64 experts, one row of the table.
EXPERT = 3 * WIDTH * 896


def grouped(steps: int) -> Capture:
    """Five heads of keys and values for ten of queries, and several steps, so that mistakes are not the truth."""
    at = capture()
    symbols = {**at.target.symbols, "text_kv_heads": 5}
    calls = tuple(
        replace(i, symbols={**i.symbols, "N": steps} if "N" in i.symbols else i.symbols) for i in at.invocations
    )
    ledger = evaluate_ledger(at.by_source["analytic"], {(i.stage, i.id): i.symbols for i in calls}, symbols)
    return replace(at, target=replace(at.target, symbols=symbols), invocations=calls, ledgers=(ledger,))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (CACHE, set()),
        (CACHE * 2, {"four bytes each"}),
        (CACHE // 12, {"one layer"}),
        (CACHE // 2, {"element size forgotten"}),
    ],
)
def test_the_cache_of_a_prompt(number: int, expected: set[str]) -> None:
    judged = verdict(f"stage: prefill, kv_cache_bytes: {number}")
    assert judged.truth == CACHE
    assert [set(c) for c in causes(judged)] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("number", "expected"),
    [(CACHE // 12 * 2, {"one layer", "four bytes each"}), (CACHE // 24, {"one layer", "element size forgotten"})],
)
def test_what_causes_lead_to_is_not_refuted(number: int, expected: set[str]) -> None:
    """A cache is a product of sizes, and so are too many of the numbers beside it; but no other prompt has it."""
    judged = verdict(f"stage: prefill, kv_cache_bytes: {number}")
    assert (judged.status, [set(c) for c in causes(judged)]) == ("undetermined", [expected])
    assert judged.note.startswith("fits, not evidence: sets")
    assert judged.lengths


def test_half_a_cache_has_three_names() -> None:
    judged = verdict(f"stage: prefill, kv_cache_bytes: {CACHE // 2}")
    (step,) = judged.explanations[0].steps
    assert (step.cause, step.or_else) == ("element size forgotten", ("8-bit cache", "keys or values alone"))


@pytest.mark.parametrize(
    ("metric", "number", "expected"),
    [
        # Four steps after the prompt, five heads.
        ("kv_cache_bytes", 4 * TOKEN // 2, None),
        ("kv_cache_bytes", 4 * TOKEN, "GQA ignored: text"),
        ("kv_cache_bytes", (PROMPT + 4) * TOKEN // 2, "whole cache"),
        ("kv_cache_bytes", TOKEN // 2, "one decode step"),
        ("kv_read_bytes", (4 * PROMPT + 6) * TOKEN // 2, None),
        ("kv_read_bytes", 4 * PROMPT * TOKEN // 2, "decode context frozen"),
    ],
)
def test_the_cache_of_steps(metric: str, number: int, expected: str | None) -> None:
    judged = verdict(f"stage: decode, {metric}: {number}", grouped(4))
    if expected is None:
        assert judged.status == "right"
        return
    assert any(expected in {s.cause, *s.or_else} for e in judged.explanations for s in e.steps)


def test_all_experts_in_place_of_those_that_a_step_reads() -> None:
    ledger = capture().by_source["analytic"]
    read = sum(n.costs.get("weight_read_bytes") or 0 for n in ledger.nodes if n.stage == "decode")
    judged = verdict(f"stage: decode, weight_read_bytes: {read + 11 * (64 - 6) * EXPERT * 2}")
    assert judged.status == "explained"
    assert causes(judged) == [{"all experts"}]


@pytest.mark.parametrize("steps", [1, 4])
def test_tables_read_whole(steps: int) -> None:
    """A step looks up a row of 1280 elements of two bytes; a whole table has 129,280 of them."""
    at = grouped(steps)
    ledger = at.ledger("analytic")
    assert ledger is not None
    read = sum(n.costs.get("weight_read_bytes") or 0 for n in ledger.nodes if n.stage == "decode")
    judged = verdict(f"stage: decode, weight_read_bytes: {read + steps * 129_279 * 1280 * 2}", at)
    assert (judged.status, [set(c) for c in causes(judged)]) == ("explained", [{"whole tables"}])


def test_binary_units_under_decimal_names() -> None:
    ledger = capture().by_source["analytic"]
    held = sum(n.costs.get("weight_bytes") or 0 for n in ledger.nodes if n.stage == "prefill")
    judged = verdict(f"stage: prefill, weight_bytes: {held / 2**30:.4f} GB")
    assert {"GiB for GB"} in causes(judged)


def test_bytes_in_place_of_parameters() -> None:
    ledger = capture().by_source["analytic"]
    held = sum(n.costs.get("params") or 0 for n in ledger.nodes if n.stage == "sam")
    assert causes(verdict(f"stage: sam, params: {4 * held}")) == [{"bytes, 4 each"}]


def test_one_view_of_what_is_written() -> None:
    # Of the crops the projector alone writes 100 features each; newlines and separator are no view's.
    ledger = capture().by_source["analytic"]
    parts = [n for n in ledger.nodes if n.stage == "projector" and n.invocation == "global"]
    alone = sum(n.costs.get("output_bytes") or 0 for n in parts)
    assert alone >= 256 * 1280 * 2
    judged = verdict(f"stage: projector, output_bytes: {alone}")
    assert {"view missing: crops"} in causes(judged)


# SAM's windowed layers at a crop of 640: 40 x 40 patches, 3 x 3 windows of 14 where 40 / 14 fit.
@pytest.mark.parametrize(
    ("cause", "windows"), [("partial windows missing", 2 * 2 * 196), ("window padding missing", 40 * 40)]
)
def test_windows(cause: str, windows: int) -> None:
    """The projections of queries, keys and values in eight windowed layers, on the rows that a mistake leaves."""
    row = 8 * 6 * 768 * 768
    right = 'stage: sam, invocation: crops, module: "*.qkv", flops: '
    ledger = capture().by_source["analytic"]
    truth = sum(
        n.costs.get("flops") or 0 for n in ledger.nodes
        if n.stage == "sam" and n.invocation == "crops" and n.module.endswith(".qkv")
    )  # fmt: skip
    judged = verdict(f"{right}{truth + 4 * row * (windows - 9 * 196)}")
    assert any(cause in {s.cause, *s.or_else} for e in judged.explanations for s in e.steps)


def test_windows_padded_one_way() -> None:
    # 3 windows along one side, 40 patches along the other.
    row = 8 * 6 * 768 * 768
    ledger = capture().by_source["analytic"]
    module = [n for n in ledger.nodes if n.stage == "sam" and n.invocation == "crops" and n.module.endswith(".qkv")]
    cost = sum(n.costs.get("flops") or 0 for n in module)
    judged = verdict(
        f'stage: sam, invocation: crops, module: "*.qkv", flops: {cost + 4 * row * (3 * 14 * 40 - 9 * 196)}'
    )
    assert any("windows padded one way" in {s.cause, *s.or_else} for e in judged.explanations for s in e.steps)


def test_crops_of_another_size() -> None:
    # Four crops of 1024 have 256 features each, those of 640 have 100.
    judged = verdict(f"stage: projector, flops: {2 * (256 + 4 * 256) * 2048 * 1280}")
    assert {"crops as large as the view"} in causes(judged)


def test_a_terminal_says_what_is_no_evidence() -> None:
    few = PREFILL - PROMPT * HEAD * 4 // 5
    found = claims_from_text(f"costproof_claims: 1\nclaims:\n- {{stage: prefill, flops: {few}}}\n", where="f")
    text = io.StringIO()
    judged = judge_claims(found, capture(), DeepseekOcr.mistakes(), truth="t")
    TerminalPrinter(Console(file=text, width=160)).document(document(judged, "text"))
    assert "text_vocab = 25856 fits, not evidence" in text.getvalue()
    assert "undetermined: 1 undetermined (fits, not evidence)" in text.getvalue()
