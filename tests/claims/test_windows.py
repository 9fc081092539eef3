"""Layers with a window: numbers as window-aware counters and engines print them, with their size written out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from costproof import api
from costproof.claims import Judgement, catalogue
from costproof.claims.attention_mistakes import WINDOWS
from costproof.claims.catalogue import _seen
from costproof.claims.effects import Mistake
from costproof.claims.judge import judge_claim
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, Formula, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import Metric
from costproof.models.registry import mistakes_of
from tests.oracles.claims import causes as sets_of


def causes(judgement: Judgement) -> list[set[str]]:
    """The sets of causes that it names."""
    return [set(found) for found in sets_of(judgement)]


@cache
def counted(target: str, **workload: Any) -> Capture:
    """A target's formulas at a workload."""
    return api.capture(target, sources=("analytic",), **workload)


def judged(capture: Capture, stage: str, metric: Metric, value: int, **conventions: str) -> Judgement:
    """On a claim about one stage, or all of them."""
    claim = PublishedClaim("c", "$", stage, metric, Amount(str(value), value, value), conventions=conventions)
    return judge_claim(ClaimCase(claim, capture, capture.by_source["analytic"], mistakes_of(capture.target.name)))


# gpt-oss-20b at 8,192 tokens: 24 layers of 64 heads of 64 wide, every other one with a window of 128.
S, W, LAYERS, PAIR = 8192, 128, 12, 4 * 64 * 64
"""Scores and weighted sum of one query and one key are 2 x 2 x 64 x 64 FLOPs in all heads."""
FULL = LAYERS * PAIR * S * S
"""What 12 layers cost in full: as much with a window as without."""
TRUTH = 85_487_700_148_224
WIDTH = LAYERS * PAIR * S * W
BAND = LAYERS * PAIR * (S * W - 128 * 127 // 2)
"""The first 127 queries lack 127, 126, ... 1 keys."""
TRIANGLE = LAYERS * PAIR * S * (S + 1) // 2
PROMPTS = [
    (72_499_719_045_120, TRUTH - FULL + WIDTH, {"window S x W"}),
    (72_498_121_015_296, TRUTH - FULL + BAND, {"window band"}),
    (65_799_570_063_360, TRUTH - 2 * FULL + WIDTH // 2 + FULL // 2, {"window S x W", "causal half"}),
    (None, TRUTH - 2 * FULL + BAND + FULL // 2, {"window band", "causal half"}),
    (None, TRUTH - 2 * FULL + BAND + TRIANGLE, {"window band", "causal triangle"}),
    (None, TRUTH - 2 * FULL + WIDTH + TRIANGLE, {"window S x W", "causal triangle"}),
    (None, TRUTH - 2 * FULL + WIDTH + FULL // 2, {"window S x W, not halved", "causal half"}),
    (None, TRUTH - FULL, {"causal half"}),
    (None, TRUTH - 2 * FULL + 2 * TRIANGLE, {"causal triangle"}),
    (None, (TRUTH - FULL + BAND) // 2, {"window band", "mac"}),
]


@pytest.mark.parametrize(("published", "value", "expected"), PROMPTS)
def test_scores_of_a_prompt(published: int | None, value: int, expected: set[str]) -> None:
    assert published in (None, value)
    found = judged(counted("gpt-oss-20b", text_tokens=S), "prefill", "flops", value)
    assert (found.truth, found.status, found.residual) == (TRUTH, "explained", 0)
    assert causes(found) == [expected]


@pytest.mark.parametrize(
    ("tokens", "status", "named"),
    [
        (126, "explained", [{"element size forgotten"}]),
        (127, "undetermined", [{"element size forgotten"}, {"cache of windows missing"}]),
        (128, "explained", [{"element size forgotten"}]),
    ],
)
def test_a_width_is_evidence_only_if_no_other_cause_gives_its_number(
    tokens: int, status: str, named: list[set[str]]
) -> None:
    """gpt-oss-20b caches 2 x 8 heads of 64, so 2,048 B a token: 12 layers keep all tokens, 12 keep 127.

    With 127 tokens half of the cache is that of 8-bit numbers (an alias of the cause) and that of the 12 full layers.
    """
    truth = 2048 * (12 * tokens + 12 * min(tokens, 127))
    found = judged(counted("gpt-oss-20b", text_tokens=tokens), "prefill", "kv_cache_bytes", truth // 2)
    assert (found.truth, found.status, causes(found)) == (truth, status, named)
    assert "8-bit cache" in found.explanations[0].steps[0].or_else


def test_size_and_evidence_of_a_window() -> None:
    (found,) = judged(counted("gpt-oss-20b", text_tokens=S), "prefill", "flops", TRUTH - FULL + BAND).explanations
    (step,) = found.steps
    assert (step.amount, step.evidence) == (BAND - FULL, ("prefill[prompt]/model.layers.0.self_attn:attention x 12",))


def test_a_window_that_is_stated() -> None:
    at = counted("gpt-oss-20b", text_tokens=S)
    kept = TRUTH - 2 * FULL + BAND + TRIANGLE
    assert judged(at, "prefill", "flops", kept, window="band", causal="triangle").status == "explained"
    assert judged(at, "prefill", "flops", kept, window="band").status != "explained"


@pytest.mark.parametrize("factor", [(97, 101), (13, 11), (37, 83)])
def test_windows_do_not_explain_anything(factor: tuple[int, int]) -> None:
    at = counted("gpt-oss-20b", text_tokens=S)
    assert judged(at, "prefill", "flops", TRUTH * factor[0] // factor[1]).status == "refuted"


def test_a_prompt_shorter_than_the_window_has_none() -> None:
    at = counted("gpt-oss-20b", text_tokens=100)
    truth = judged(at, "prefill", "flops", 1).truth
    wide = truth + LAYERS * PAIR * 100 * (W - 100)
    assert judged(at, "prefill", "flops", wide).status != "explained"


# A step attends to the last 128 tokens, itself among them, or to all of 8,193, 8,194 and 8,195.
@pytest.mark.parametrize(
    ("steps", "keys", "expected"),
    [
        (1, 8193, {"windows as full attention"}),
        (3, 8193 + 8194 + 8195, {"windows as full attention"}),
    ],
)
def test_steps_behind_a_long_context(steps: int, keys: int, expected: set[str]) -> None:
    at = counted("gpt-oss-20b", text_tokens=S, new_tokens=steps)
    truth = judged(at, "decode", "flops", 1).truth
    found = judged(at, "decode", "flops", truth + LAYERS * PAIR * (keys - steps * W))
    assert (found.status, causes(found)) == ("explained", [expected])


# 32 sequences of 8 heads of 64 of keys and of values in 2 bytes, 12 layers with 8,192 tokens and 12 with 127.
TOKEN = 32 * 2 * 8 * 64 * 2
CACHE = LAYERS * TOKEN * (S + W - 1)


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        (6_542_327_808, CACHE, set()),
        (12_884_901_888, 2 * LAYERS * TOKEN * S, {"windows cached in full"}),
        (6_442_450_944, LAYERS * TOKEN * S, {"cache of windows missing"}),
        (None, LAYERS * TOKEN * (S + W), {"window cached with its own token"}),
        (None, CACHE // 2, {"8-bit cache"}),
        (None, CACHE // 4, {"4-bit cache"}),
        (None, LAYERS * TOKEN * S, {"cache of windows missing"}),
    ],
)
def test_cache_of_a_prompt(published: int | None, value: int, expected: set[str]) -> None:
    assert published in (None, value)
    found = judged(counted("gpt-oss-20b", text_tokens=S, batch=32), "prefill", "kv_cache_bytes", value)
    assert found.status == ("explained" if expected else "right")
    named = [{s.cause, *s.or_else} for e in found.explanations for s in e.steps]
    assert [expected & n for n in named] == ([expected] if expected else [])


def test_cache_of_prompt_and_steps_in_full() -> None:
    """A full window gives a token back for each that a step appends; all layers kept in full do not."""
    at = counted("gpt-oss-20b", text_tokens=S, new_tokens=5)
    token = TOKEN // 32
    found = judged(at, "total", "kv_cache_bytes", 2 * LAYERS * token * (S + 5))
    assert found.truth == LAYERS * token * (S + 5 + W - 1)
    assert (found.status, causes(found)) == ("explained", [{"windows cached in full"}])


def test_reads_of_steps_in_full() -> None:
    """Three steps read 8,192, 8,193 and 8,194 tokens where a window leaves 127 each."""
    at = counted("gpt-oss-20b", text_tokens=S, new_tokens=3)
    token, read = TOKEN // 32, 8192 + 8193 + 8194
    found = judged(at, "decode", "kv_read_bytes", 2 * LAYERS * token * read)
    assert found.truth == LAYERS * token * (read + 3 * 127)
    assert {"windows cached in full"} in causes(found)


# Llama-3.1-8B: 32 layers of 8 heads of 128, keys and values in 2 bytes.
LLAMA = 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("tokens", "published", "value", "expected"),
    [
        (8192, 536_870_912, 8192 * LLAMA // 2, "8-bit cache"),
        (8192, 1_073_741_824, 8192 * LLAMA, ""),
        (8192, 2_147_483_648, 8192 * LLAMA * 2, "32-bit cache"),
        (8000, None, 8000 * LLAMA * 2, "32-bit cache"),
        (1000, None, 1008 * LLAMA, "blocks of 16 tokens"),
        (1000, None, 1024 * LLAMA, "blocks of 32 tokens"),
        (8200, None, 8320 * LLAMA, "blocks of 128 tokens"),
    ],
)
def test_cache_of_engines(tokens: int, published: int | None, value: int, expected: str) -> None:
    assert published in (None, value)
    found = judged(counted("llama-3.1-8b", text_tokens=tokens), "prefill", "kv_cache_bytes", value)
    if not expected:
        assert found.status == "right"
        return
    assert any(expected in {s.cause, *s.or_else} for e in found.explanations for s in e.steps)
    if "bit" in expected:
        assert found.status == "explained"


# Llama-3.1-8B at 4,096 tokens: 32 layers of 32 heads of 128.
PASS = 70_274_254_897_152
ATTENTION = 32 * 4 * 4096**2 * 32 * 128


@pytest.mark.parametrize(
    ("published", "value", "expected"),
    [
        (210_822_764_691_456, 3 * PASS, {"6ND"}),
        (281_097_019_588_608, 4 * PASS, {"4 x the truth"}),
        (197_628_625_158_144, 3 * (PASS - ATTENTION // 2), {"6ND", "causal half"}),
        (None, 4 * (PASS - ATTENTION // 2), {"full recompute", "causal half"}),
        (215_220_811_202_560, 3 * PASS + ATTENTION // 2, {"6ND, fused attention"}),
        (None, 4 * PASS + ATTENTION // 2, {"full recompute, fused attention"}),
        (None, 3 * PASS + ATTENTION, {"attention recomputed"}),
        (None, 3 * PASS - ATTENTION * 7 // 4 + ATTENTION // 2, {"6ND, fused attention", "causal half"}),
    ],
)
def test_passes_of_training(published: int | None, value: int, expected: set[str]) -> None:
    assert published in (None, value)
    found = judged(counted("llama-3.1-8b", text_tokens=4096), "prefill", "flops", value)
    assert (found.truth, found.status, causes(found)) == (PASS, "explained", [expected])
    assert value != 4 * PASS or found.explanations[0].steps[0].or_else == ("full recompute", "B = 4")


def test_a_forgotten_batch_is_named_beside_the_unit() -> None:
    """Half of the work of two is the work of one, and multiply-accumulates of both: nothing tells them apart."""
    (step,) = judged(counted("llama-3.1-8b", text_tokens=4096, batch=2), "prefill", "flops", PASS).explanations[0].steps
    assert (step.cause, step.or_else) == ("mac", ("batch forgotten",))
    found = judged(counted("llama-3.1-8b", text_tokens=4096, batch=3), "prefill", "flops", PASS)
    assert (found.status, causes(found)) == ("explained", [{"batch forgotten"}])
    at = counted("llama-3.1-8b", text_tokens=4096, batch=3)
    assert causes(judged(at, "prefill", "flops", PASS // 2)) == [{"1/6 x the truth"}]


# Llama-3.1-8B has 8,030,261,248 parameters.
@pytest.mark.parametrize(
    ("written", "tokens", "expected"),
    [
        ("6*8030261248*2048", 2048, {"2ND: all", "6ND"}),
        ("2*8030261248*4096", 4096, {"2ND: all"}),
        ("3*70274254897152", 4096, {"6ND"}),
        ("70274254897152/2", 4096, {"mac"}),
        ("70274254897152 * 1", 4096, None),
        ("7919*7919*7919", 4096, set()),
    ],
)
def test_constants_written_as_a_product(written: str, tokens: int, expected: set[str] | None) -> None:
    """They are a number, and get its causes."""
    at = counted("llama-3.1-8b", text_tokens=tokens)
    claim = PublishedClaim("c", "$", "prefill", "flops", Formula(written))
    found = judge_claim(ClaimCase(claim, at, at.by_source["analytic"], mistakes_of("llama")))
    assert found.claimed == written
    assert found.status == ("right" if expected is None else "explained" if expected else "refuted")
    assert found.residual_expression is None
    assert not expected or expected in causes(found)


# N D and attention, 12 L H Q T a token in training, as a well-known report has it: 6 N T + 12 x 32 x 32 x 128 x T x T.
def test_training_by_parameters_and_attention() -> None:
    tokens = 4096
    value = 6 * 8_030_261_248 * tokens + 12 * 32 * 32 * 128 * tokens**2
    found = judged(counted("llama-3.1-8b", text_tokens=tokens), "prefill", "flops", value)
    assert found.status == "explained"
    assert {"2ND and attention: all", "6ND"} in causes(found)
    halved = 6 * 8_030_261_248 * tokens + 6 * 32 * 32 * 128 * tokens**2
    found = judged(counted("llama-3.1-8b", text_tokens=tokens), "prefill", "flops", halved)
    assert {"2ND and attention: all", "6ND", "causal half"} in causes(found)


def test_keys_that_tokens_see() -> None:
    # 1 + 2 + 3 + 4 + 5, and 1 + 2 + 3 + 3 + 3.
    assert (_seen(5), _seen(5, 3), _seen(0), _seen(-1)) == (15, 12, 0, 0)


def _shifted(form: Any) -> Any:
    return lambda *of: None if (found := form(*of)) is None else found + Fraction(1, 7)


@pytest.mark.parametrize("metric", ["flops", "kv_cache_bytes", "kv_read_bytes"])
@pytest.mark.parametrize("number", [i for i, one in enumerate(WINDOWS)])
def test_a_mistaken_factor_is_found(number: int, metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a claim that no other number of the command shows to be wrong."""
    one = WINDOWS[number]
    if metric not in one.metrics or one.cause.startswith("chunk"):
        return
    at = counted("gpt-oss-20b", text_tokens=S, new_tokens=3)
    stage = "decode" if ("full" in one.cause and metric != "kv_cache_bytes") or metric == "kv_read_bytes" else "prefill"
    judged(at, stage, metric, 1)
    assert isinstance(one, Mistake)
    changes = tuple(replace(change, factor=_shifted(change.factor)) for change in one.changes)
    table = tuple(replace(one, changes=changes) if i == number else of for i, of in enumerate(WINDOWS))
    monkeypatch.setattr(catalogue, "WINDOWS", table)
    with pytest.raises(Bug, match=f"{one.cause}.*factor"):
        judged(at, stage, metric, 1)
