"""Claims at lengths that they do not state. Costs are written out from the published sizes; the wrong models are the
benchmark's, which shares no code with what is tested."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from costproof.claims import Judgement, claims_from_text, judge_claims
from costproof.claims.lengths import Curve
from costproof.ledger.capture import Capture
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.claims.test_judge import DENSE, HEAD, PREFILL, PROJECTIONS, PROMPT, ROUTED, ROUTER, SHARED, WIDTH, verdict
from tests.oracles.claims import causes, world
from tests.oracles.wrong_models import Model, flops

TOKEN = 12 * PROJECTIONS + DENSE + 11 * (ROUTED + SHARED + ROUTER)
"""FLOPs of one token but for scores and lm_head."""


def prefill(s: int) -> int:
    """12 layers of scores and weighted sums over S x S, everything else for each token."""
    return s * (TOKEN + HEAD) + 12 * 4 * s * s * WIDTH


def decode(p: int) -> int:
    """One step: p tokens in the cache and the new one."""
    return TOKEN + HEAD + 12 * 4 * (p + 1) * WIDTH


def enclosing(judged: Judgement, *names: str) -> tuple[tuple[int, int] | None, ...]:
    """The neighbours of a reading of the truth."""
    (reading,) = [r for r in judged.lengths[0].readings if set(r.causes) == set(names)]
    assert reading.fits is None
    return tuple(None if x is None else (x.length, x.number) for x in (reading.below, reading.above))


def test_no_prompt_gives_it() -> None:
    judged = verdict("stage: prefill, flops: 487.23 G")
    assert judged.status == "refuted"
    assert enclosing(judged) == ((415, prefill(415)), (416, prefill(416)))
    assert enclosing(judged, "mac") == ((813, prefill(813) // 2), (814, prefill(814) // 2))
    last = [s * TOKEN + HEAD + 12 * 4 * s * s * WIDTH for s in (571, 572)]
    assert enclosing(judged, "lm_head last token") == ((571, last[0]), (572, last[1]))
    # Two units, three forms of causal attention, all positions or the last.
    assert len(judged.lengths[0].readings) == 12
    # By brute force: no length fits.
    low, high = 487_225_000_000, 487_235_000_000
    assert not [s for s in range(1, 9000) for f in (1, 2) if low <= prefill(s) // f <= high]
    assert prefill(9000) > 2 * high


def test_no_context_gives_it() -> None:
    judged = verdict("stage: decode, flops: 0.49 G")
    assert judged.status == "refuted"
    assert enclosing(judged) == (None, (0, decode(0)))
    assert enclosing(judged, "mac") == (None, (0, decode(0) // 2))
    assert judged.lengths[0].coincidences == "0"


def test_an_exact_number_of_another_prompt_is_explained() -> None:
    judged = verdict(f"stage: prefill, flops: {prefill(1000)}")
    assert judged.status == "explained"
    assert causes(judged) == [frozenset({"another prompt"})]
    (step,) = judged.explanations[0].steps
    assert step.amount == prefill(1000) - PREFILL
    assert "1,000" in step.what


def test_another_context_in_another_unit() -> None:
    judged = verdict(f"stage: decode, flops: {decode(77) // 2}")
    assert causes(judged) == [frozenset({"another context", "mac"})]
    assert [s.amount for s in judged.explanations[0].steps] == [decode(77) - decode(PROMPT), -decode(77) // 2]
    assert judged.explanations[0].reaches == decode(77) // 2


@pytest.mark.parametrize(("printed", "causes_fit"), [("600 G", True), ("333 G", False)])
def test_few_digits_are_no_evidence_for_a_length(printed: str, causes_fit: bool) -> None:
    # Three digits leave 1e9, about one token.
    judged = verdict(f"stage: prefill, flops: {printed}")
    assert judged.status == "undetermined"
    assert ({"another prompt"} <= causes(judged)[0]) != causes_fit
    assert any(r.fits for r in judged.lengths[0].readings)


# The head alone is as long as the prompt: a fifth of it is 1205 / 5 tokens, whatever went wrong.
HEAD_ALONE = "stage: prefill, module: lm_head, flops: {}"


@pytest.mark.parametrize(
    "body",
    [
        f"stage: decode, flops: {4 * decode(PROMPT)}",
        # Twice as many query heads: 12 query and output projections, and scores over 1,206 keys.
        f"stage: decode, flops: {decode(PROMPT) + 12 * (4 * WIDTH * WIDTH + 4 * 1206 * WIDTH)}",
        HEAD_ALONE.format(HEAD * 1009),
    ],
)
def test_a_length_that_chance_would_give_is_no_evidence(body: str) -> None:
    judged = verdict(body)
    lengths = {"another prompt", "another context"}
    assert judged.status != "explained" or lengths.isdisjoint(set().union(*causes(judged)))


def test_lengths_end_where_the_model_ends() -> None:
    # 8,192 positions; the largest length is what lies below the claim, and nothing lies above.
    judged = verdict(f"stage: prefill, flops: {prefill(9000)}")
    assert judged.status == "refuted"
    assert judged.lengths[0].longest == 8192
    (ours,) = [r for r in judged.lengths[0].readings if not r.causes]
    assert ours.below is not None
    assert (ours.below.length, ours.below.number, ours.above) == (8192, prefill(8192), None)
    assert verdict(f"stage: prefill, flops: {prefill(8192)}").status == "explained"


@pytest.mark.parametrize("key", ["seq-len", "text_tokens"])
def test_a_length_that_the_file_states_is_not_varied(key: str) -> None:
    head = f"costproof_claims: 1\nworkload: {{{key}: {PROMPT}}}\nclaims:\n- "
    found = claims_from_text(f"{head}{{stage: prefill, flops: {prefill(1000)}}}\n", where="f")
    (judged,) = judge_claims(found, world()[0], DeepseekOcr.mistakes(), truth="t").judgements
    assert (judged.status, judged.lengths) == ("unexplained", ())


def test_a_stated_length_is_not_varied() -> None:
    stated = verdict(f"stage: prefill, flops: {prefill(1000)}, at: {{S: {PROMPT}}}")
    assert (stated.status, stated.lengths) == ("unexplained", ())


def test_stated_conventions_are_not_varied() -> None:
    judged = verdict("stage: prefill, flops: 487.23 G, conventions: {unit: flop, causal: half}")
    assert judged.status == "refuted"
    assert {r.causes for r in judged.lengths[0].readings} == {(), ("lm_head last token",)}
    half = [s * (TOKEN + HEAD) + 12 * 2 * s * s * WIDTH for s in (419, 420)]
    assert enclosing(judged) == ((419, half[0]), (420, half[1]))


def test_parameters_have_no_length() -> None:
    assert verdict("stage: prefill, params: 3").lengths == ()
    assert verdict("stage: sam, flops: 3").lengths == ()


def capped(expr: str) -> Capture:
    """The capture with attention that is another formula, equal at the prompt of the workload."""
    from tests.claims.test_judge import capture

    at = capture()
    ledger = at.ledger("analytic")
    assert ledger is not None
    nodes = tuple(
        replace(n, exprs={**n.exprs, "flops": expr})
        if n.stage == "prefill" and n.owner == "attention" and "flops" in n.exprs else n
        for n in ledger.nodes
    )  # fmt: skip
    return replace(at, ledgers=(replace(ledger, nodes=nodes),))


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("4*B*S**2*text_hidden", True),
        # A window that only long prompts feel: lengths up to it would look like a polynomial.
        ("4*B*S*Min(S, 2000000)*text_hidden", False),
        ("4*B*S*(2410 - S)*text_hidden", False),
    ],
)
def test_nothing_is_said_of_what_is_no_rising_polynomial(expr: str, says: bool) -> None:
    assert bool(verdict(f"stage: prefill, flops: {PREFILL + 1}", capped(expr)).lengths) == says


@cache
def wrong(stage: str, length: int, mistakes: frozenset[str]) -> int:
    _, model = world()
    moved: Model = replace(model, prompt=length, positions=length)
    return int(flops(moved, stage, mistakes))


@pytest.mark.parametrize(
    ("stage", "reading"),
    [
        ("prefill", ()), ("prefill", ("mac",)), ("prefill", ("causal half",)),
        ("prefill", ("lm_head last token", "mac")), ("decode", ()), ("decode", ("mac",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [211, 3_000])
def test_what_is_true_somewhere_is_never_refuted(stage: str, reading: tuple[str, ...], length: int) -> None:
    at, _ = world()
    exact = wrong(stage, length, frozenset(reading))
    word = "another context" if stage == "decode" else "another prompt"
    judged = verdict(f"stage: {stage}, flops: {exact}", at)
    # Contexts are so close to each other that one of them fits every third number of the right grain.
    status = "undetermined" if stage == "decode" else "explained"
    assert (judged.status, causes(judged)) == (status, [frozenset({word, *reading})])
    assert verdict(f"stage: {stage}, flops: {exact / 1e9:.2f} G", at).status in ("explained", "undetermined")


def test_in_a_total_the_decoding_follows_the_prompt() -> None:
    at, _ = world()
    exact = wrong("total", 3_000, frozenset({"mac"}))
    assert causes(verdict(f"stage: total, flops: {exact}", at)) == [frozenset({"another prompt", "mac"})]


def test_newtons_polynomial() -> None:
    # 3 s^2 + 5 from s = 1: 8, then 9, then 6.
    curve = Curve(1, (8, 9, 6), 1)
    assert [curve.at(s) for s in (1, 2, 10)] == [8, 17, 305]
    assert curve.first(17) == 2
    assert curve.first(18) == 3
    assert curve.first(1) == 1
