"""Generate claims with planted mistakes, with code that shares nothing with the search for causes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from costproof.claims.judge import judge_claim
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, Judgement, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.evaluate import evaluate_ledger
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.oracles.wrong_models import Model

VIEWS = ("view missing: global", "view missing: crops", "view twice: global", "one crop")


HEADS = ("lm_head missing", "lm_head halved", "lm_head last token")


EXPERTS = (
    "top-k missing", "all experts", "MoE as a dense FFN", "dense-first ignored", "shared experts missing",
    "router missing", "expert width = dense width", "gate matrix missing", "one shared expert",
)  # fmt: skip


MISTAKES: dict[str, tuple[str, ...]] = {
    "sam": (
        "mac", "windows as full attention", "window padding missing", "relative positions missing",
        "patch convolution missing", "merger on patches", "norms counted", "biases counted",
        "attention missing", *VIEWS,
    ),
    "clip": ("mac", "class token missing", "norms counted", "biases counted", "attention missing", *VIEWS),
    "projector": ("mac", "projector on patches", "projector with class token", *VIEWS),
    "prefill": (
        "mac", *HEADS, "embedding as a GEMM", "causal triangle", "causal half", "causal 1.8", "norms counted",
        "head_dim = hidden / heads: text", "GQA ignored: text", *EXPERTS,
    ),
    "decode": (
        "mac", "lm_head missing", "lm_head halved", "context attention missing", "embedding as a GEMM",
        "one decode step", "norms counted", "head_dim = hidden / heads: text", "GQA ignored: text", *EXPERTS,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planted:
    """A wrong claim and what is wrong with it."""

    stage: str
    mistakes: frozenset[str]
    value: int
    digits: int
    """Digits printed; 0: all."""


def printed(planted: Planted) -> Amount:
    """The number as a table would print it."""
    size = len(str(planted.value))
    if not planted.digits or size <= planted.digits:
        return Amount(str(planted.value), planted.value, planted.value)
    unit = 10 ** (size - planted.digits)
    middle = (planted.value + unit // 2) // unit * unit
    return Amount(f"{planted.value:.{planted.digits}e}", middle - unit // 2, middle + unit // 2)


@cache
def world() -> tuple[Capture, Model]:
    """A model whose sizes are pairwise different, at a workload with both kinds of views."""
    usual = OcrConfig()
    text = replace(usual.text, dense_layers=3, kv_heads=5, topk=4, shared_experts=7)
    target = DeepseekOcr(replace(usual, text=text))
    workload = target.workload("dsocr-standard-v1", grid="3x2", batch=2, new_tokens=5)
    capture = count_sources(Prepared(target, workload, ("analytic",))).capture
    # Heads that are not width / heads wide: the native class has none, the formulas do.
    symbols = {**capture.target.symbols, "text_head_dim": 192}
    values = {(i.stage, i.id): i.symbols for i in capture.invocations}
    ledger = evaluate_ledger(target.formulas(workload), values, symbols)
    capture = replace(capture, target=replace(capture.target, symbols=symbols), ledgers=(ledger,))
    # The geometry by hand: a global view of 1024, six crops of 640 a page, newlines and a separator.
    vision = 16 * 17 + 1 + (2 * 10) * (3 * 10 + 1)
    prompt = vision + workload.text_tokens
    model = Model(symbols, len(usual.sam.global_layers), {"global": (2, 1024), "crops": (12, 640)}, 2, prompt, prompt,
                  5, vision)  # fmt: skip
    return capture, model


def causes(judged: Judgement) -> list[frozenset[str]]:
    """The sets of causes that a judgement names."""
    return [frozenset(s.cause for s in e.steps) for e in judged.explanations]


def judged_in(capture: Capture, planted: Planted) -> Judgement:
    """The verdict on the number."""
    claim = PublishedClaim("c", "$", planted.stage, "flops", printed(planted))
    return judge_claim(case_of(capture, planted.stage).claiming(claim))


_CASES: dict[str, ClaimCase] = {}


def case_of(capture: Capture, stage: str) -> ClaimCase:
    """One of each stage: what is worked out for it serves every number."""
    if stage not in _CASES:
        claim = PublishedClaim("c", "$", stage, "flops", Amount("0", 0, 0))
        case = _CASES[stage] = ClaimCase(claim, capture, capture.by_source["analytic"], DeepseekOcr.mistakes())
        assert not case.stated  # what hangs on it, terms and causes, is there for all numbers
    return _CASES[stage]
