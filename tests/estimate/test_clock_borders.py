"""Where the device clock begins to bind: solved from formulas, and found by trying every value."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from costproof.estimate.clocks import StageClocks
from costproof.estimate.measured import ClockBorder, MeasuredStage
from costproof.estimate.roofline import Roof
from costproof.ledger.metrics import TRAFFIC
from costproof.models.target import WithKeys
from costproof.parametric.run_family import Threshold
from costproof.run.measure import clock_borders, earlier
from costproof.run.operands import baseline_by_formulas, target_with_settings

S = 10**9
ROOF = Roof(8 * 10**9, 10**9, math="bfloat16")
"""8 GFLOP and 1 GB a second."""
NOTHING: Any = None


def row(stage: str, invocation: str, host: int, device: int, run: str = "prompt") -> MeasuredStage:
    """A stage with two planted clocks, in nanoseconds."""
    clocks = StageClocks(1, 1, host, device, host + device, host, 0, 0, 0)
    measured: Any = None
    return MeasuredStage(run, stage, invocation, NOTHING, NOTHING, 0, 0, measured, None, None, None, clocks=clocks)


def solved(text: str, *rows: MeasuredStage, of: Roof = ROOF) -> tuple[ClockBorder, ...]:
    target, workload = target_with_settings(text)
    return clock_borders(rows, target, workload, of)


def tried(text: str, setting: str, stage: str, host: int, device: int, of: Roof) -> int | None:
    """The first value at which the scaled device clock is longer, from the counts of the run at each value."""
    target, workload = target_with_settings(text)
    assert isinstance(target, WithKeys)

    def seconds(value: int) -> Fraction:
        folded = baseline_by_formulas(target, replace(workload, **dict[str, Any]({setting: value}))).sources["analytic"]
        flops, *moved = (folded.total(metric, stage) for metric in ("flops", *TRAFFIC))
        return max(Fraction(flops or 0, of.flops), Fraction(sum(m or 0 for m in moved), of.bandwidth))

    own = seconds(getattr(workload, setting))
    return next((value for value in range(1, 99) if device * seconds(value) / own > host), None)


LLAMA = "llama-3.1-8b@chat,layers=1,hidden=64,intermediate=96,heads=4,kv_heads=4,head_dim=16,vocab=100"
PREFILL, DECODE = ("prefill", "prompt", "prompt"), ("decode", "steps", "step@20")


@pytest.mark.parametrize(("place", "host"), [(PREFILL, 250), (DECODE, 110)], ids=["prefill", "decode"])
@pytest.mark.parametrize("rate", [8, 8000], ids=["by compute", "by memory"])
def test_the_border_is_where_trying_every_value_finds_it(place: tuple[str, str, str], host: int, rate: int) -> None:
    text = f"{LLAMA},batch=2,text_tokens=20,new_tokens=3"
    stage, invocation, run = place
    of = replace(ROOF, flops=rate * 10**9)
    borders = solved(text, row(stage, invocation, host, 100, run), of=of)
    assert [b.border.setting for b in borders] == ["batch", "text_tokens"]
    for b in borders:
        assert (b.run, b.invocation, b.border.stage, b.border.outcome) == (run, invocation, stage, "from")
        assert b.border.at == tried(text, b.border.setting, stage, host, 100, of)
        before, at = b.border.points
        assert before.at + 1 == at.at > 1
        assert Fraction(before.left) <= Fraction(before.right) == Fraction(host, S) < Fraction(at.left)


def test_at_the_own_value_the_device_clock_is_the_planted_one() -> None:
    batch, _ = solved(f"{LLAMA},batch=2,text_tokens=20", row(*PREFILL[:2], 100, 100))
    # Equal clocks: the host binds, and the device does from the next batch on.
    assert [(p.at, Fraction(p.left) * S == 100) for p in batch.border.points] == [(2, True), (3, False)]
    batch, _ = solved(f"{LLAMA},batch=2,text_tokens=20", row(*PREFILL[:2], 99, 100))
    assert batch.border.at == 2


def test_a_length_that_the_model_refuses_is_no_border() -> None:
    text = f"{LLAMA},max_positions=64,text_tokens=20,new_tokens=3"
    _, length = solved(text, row(*PREFILL[:2], 10_000, 100))
    assert (length.border.outcome, len(length.border.points)) == ("refused", 1)
    assert length.border.at is not None
    assert length.border.at > 64
    assert length.border.why


def test_what_does_not_depend_on_a_setting_has_no_border_there() -> None:
    found = solved("deepseek-ocr@tiny", row("sam", "global", 300, 100, "page"))
    assert [b.border.setting for b in found] == ["batch"]


def test_each_call_of_a_stage_has_the_borders_of_its_first_forward() -> None:
    rows = [row(*DECODE[:2], 110, 100, f"step@{at}") for at in (20, 21, 22)]
    assert {b.run for b in solved(f"{LLAMA},text_tokens=20,new_tokens=3", *rows)} == {"step@20"}


def test_without_a_device_clock_or_formulas_there_is_no_border() -> None:
    target, workload = target_with_settings(LLAMA)
    no_formulas: Any = object()
    assert solved(LLAMA, row(*PREFILL[:2], 300, 0)) == ()
    assert solved(LLAMA, replace(row(*PREFILL[:2], 300, 100), clocks=None)) == ()
    assert clock_borders([row(*PREFILL[:2], 300, 100)], no_formulas, workload, ROOF) == ()
    assert clock_borders([row(*PREFILL[:2], 300, 100)], target, workload, ROOF)


def test_a_condition_of_two_sides_holds_from_the_earlier_on() -> None:
    early, late, never = Threshold("from", 3, before=2), Threshold("from", 9, before=8), Threshold("never")
    refused, unsolved = Threshold("refused", 2, "too long"), Threshold("not solved", None, "why")
    assert earlier(late, early) == earlier(early, late) == earlier(early, never) == early
    assert earlier(refused, late) == late
    assert earlier(never, refused) == refused
    assert earlier(early, unsolved) == unsolved
    assert earlier(never, never) == never
