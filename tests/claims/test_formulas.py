"""Claims that are formulas: the same formula, not only the same number."""

from __future__ import annotations

import pytest

from tests.claims.test_judge import PROMPT, VOCABULARY, WIDTH, verdict
from tests.oracles.claims import causes

LM_HEAD = "stage: prefill, module: lm_head"
# 256 + 4 x 100 features through 2048 x 1280 weights.
PROJECTOR = 2 * 656 * 2048 * 1280


@pytest.mark.parametrize(
    "body",
    [
        "stage: projector, flops: 2*n*(H/64)**2*2048*1280",
        f"{LM_HEAD}, flops: 2*B*S*text_hidden*text_vocab",
        f"{LM_HEAD}, flops: B*text_vocab*S*(text_hidden + text_hidden)",
        # With the view fixed, a number for it is as good as a symbol.
        "stage: projector, invocation: global, flops: 1342177280*n, at: {H: 1024}",
        "stage: prefill, module: 'model.*.layers.[0,3-4].self_attn', flops: 3*4*B*S**2*text_hidden",
    ],
)
def test_right(body: str) -> None:
    assert verdict(body).status == "right"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("stage: projector, flops: n*(H/64)**2*2048*1280", "mac"),
        (f"{LM_HEAD}, flops: B*S*text_hidden*text_vocab", "mac"),
        ("stage: prefill, module: '*.self_attn', flops: 24*B*S*(S + 1)*text_hidden", "causal triangle"),
    ],
)
def test_causes_hold_everywhere(body: str, expected: str) -> None:
    judged = verdict(body)
    assert judged.status == "explained"
    assert causes(judged) == [frozenset({expected})]


def test_causes_that_are_the_same_everywhere_are_named_together() -> None:
    judged = verdict("stage: prefill, module: '*.self_attn', flops: 24*B*S*S*text_hidden")
    (step,) = judged.explanations[0].steps
    assert {step.cause, *step.or_else} == {"mac", "causal half"}
    # lm_head of one token: at this prompt 1/1205 of it, at another another share.
    last = verdict(f"{LM_HEAD}, flops: 2*B*text_hidden*text_vocab")
    assert causes(last) == [frozenset({"lm_head last token"})]


def test_right_here_alone() -> None:
    # 1205 in place of S; at S = 1 the truth is one token.
    here = verdict(f"{LM_HEAD}, flops: 2*B*{PROMPT}*text_hidden*text_vocab")
    assert (here.status, here.residual) == ("unexplained", 0)
    assert here.residual_expression == f"-{2 * WIDTH * VOCABULARY}*B*(S - {PROMPT})"
    example = here.counterexample
    assert example is not None
    assert example.values == {"B": 1, "S": 1}
    assert (example.claimed, example.truth) == (str(2 * PROMPT * WIDTH * VOCABULARY), 2 * WIDTH * VOCABULARY)


def test_the_smallest_counterexample() -> None:
    # Equal at S = 1 and at S = 1205: it takes S = 2, where it is off by (2 - 1) (2 - 1205).
    zero = f"(S - 1)*(S - {PROMPT})"
    judged = verdict(f"{LM_HEAD}, flops: 2*B*S*text_hidden*text_vocab + {zero}")
    assert judged.counterexample is not None
    assert judged.counterexample.values == {"B": 1, "S": 2}
    truth = 2 * 2 * WIDTH * VOCABULARY
    assert (judged.counterexample.claimed, judged.counterexample.truth) == (str(truth - 1203), truth)


def test_over_several_views() -> None:
    # A number for all views is right for these views alone.
    judged = verdict(f"stage: projector, flops: {PROJECTOR}*B")
    assert (judged.status, judged.residual) == ("unexplained", 0)
    assert judged.residual_expression == "1280*(2686976*B - H_crops**2*n_crops - H_global**2*n_global)"
    assert judged.counterexample is not None
    # 2 (1/64)^2 2048 1280 for each of two views of side 1.
    assert judged.counterexample.truth == 2 * 1280


def test_causes_that_fit_here_alone_explain_nothing() -> None:
    judged = verdict(f"{LM_HEAD}, flops: B*{PROMPT}*text_hidden*text_vocab")
    assert (judged.status, judged.explanations) == ("unexplained", ())
    assert judged.residual_expression == f"-{WIDTH * VOCABULARY}*B*(2*S - {PROMPT})"
    assert "do not fit elsewhere" in judged.note


def test_what_is_left_over() -> None:
    more = verdict(f"{LM_HEAD}, flops: 2*B*S*text_hidden*text_vocab + 7*B*S")
    assert (more.status, more.residual, more.residual_expression) == ("unexplained", 7 * PROMPT, "7*B*S")


def test_stated_conventions_hold_everywhere() -> None:
    body = "stage: projector, invocation: global, flops: 671088640*n, conventions: {unit: mac}"
    assert verdict(body).status == "unexplained"
    assert verdict(body + ", at: {H: 1024}").status == "explained"
