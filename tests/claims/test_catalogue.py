"""The mistakes that models of cost are known for: each has a name here, and the search finds it by that name."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from costproof.claims import catalogue
from costproof.claims.effects import Mistake, Mistakes
from costproof.ledger.errors import Bug
from tests.claims.test_judge import verdict
from tests.oracles.claims import causes, world
from tests.oracles.wrong_models import flops, rule

# (what is said of a wrong number, stage, cause). In the model of these tests the decoder has 5 heads of keys for 10
# of queries, heads of 192 where hidden / heads is 128, and 3 dense layers, so that nothing is the same as its mistake.
KNOWN = [
    ("MAC for FLOP", "prefill", "mac"),
    ("lm_head missing", "prefill", "lm_head missing"),
    ("lm_head halved", "prefill", "lm_head halved"),
    ("lm_head on the last token only", "prefill", "lm_head last token"),
    ("embedding counted as a GEMM", "prefill", "embedding as a GEMM"),
    ("context attention missing in decode", "decode", "context attention missing"),
    ("causal halving, S (S + 1) / 2", "prefill", "causal triangle"),
    ("causal halving, S² / 2", "prefill", "causal half"),
    ("causal halving, S² / 1.8", "prefill", "causal 1.8"),
    ("top-k not multiplied in", "prefill", "top-k missing"),
    ("all experts counted", "prefill", "all experts"),
    ("MoE as one dense FFN", "prefill", "MoE as a dense FFN"),
    ("dense-first layers ignored", "prefill", "dense-first ignored"),
    ("shared experts missing", "prefill", "shared experts missing"),
    ("router missing", "prefill", "router missing"),
    ("expert width = dense width", "prefill", "expert width = dense width"),
    ("head_dim = hidden / heads", "prefill", "head_dim = hidden / heads: text"),
    ("GQA ignored", "prefill", "GQA ignored: text"),
    ("gate matrix missing", "prefill", "gate matrix missing"),
    ("window layers as full attention", "sam", "windows as full attention"),
    ("window padding missing", "sam", "window padding missing"),
    ("relative-position terms missing", "sam", "relative positions missing"),
    ("patch convolution missing", "sam", "patch convolution missing"),
    ("merger on the wrong token count", "sam", "merger on patches"),
    ("projector on the patches", "projector", "projector on patches"),
    ("projector on the class token too", "projector", "projector with class token"),
    ("class token forgotten", "clip", "class token missing"),
    ("a view missing", "sam", "view missing: global"),
    ("a view counted twice", "clip", "view twice: global"),
    ("one crop for all", "sam", "one crop"),
    ("biases", "clip", "biases counted"),
    ("norms counted, vision", "clip", "norms counted"),
    ("norms counted, text", "decode", "norms counted"),
]


@pytest.mark.parametrize(("said", "stage", "cause"), KNOWN, ids=[k[0] for k in KNOWN])
def test_known_mistake(said: str, stage: str, cause: str) -> None:
    at, model = world()
    wrong = flops(model, stage, frozenset({cause}))
    assert wrong != flops(model, stage, frozenset()), f"{said} changes nothing here"
    judged = verdict(f"stage: {stage}, flops: {int(wrong)}", at)
    assert (judged.status, judged.residual) == ("explained", 0)
    assert causes(judged) == [frozenset({cause})]


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize(("forward", "expected"), [(True, {"2ND: all"}), (False, {"2ND: all", "6ND"})])
def test_rules_of_thumb(stage: str, forward: bool, expected: set[str]) -> None:
    at, model = world()
    judged = verdict(f"stage: {stage}, flops: {rule(model, stage, forward)}", at)
    assert causes(judged) == [frozenset(expected)]


def test_the_projector_on_other_tokens() -> None:
    at, model = world()
    weights = Fraction(2 * (model.d["clip_hidden"] + model.d["sam_down2"]) * model.d["text_hidden"] * model.batch)
    for tokens, cause in ((model.vision_tokens, "projector on V"), (model.prompt, "projector on S")):
        judged = verdict(f"stage: projector, flops: {weights * tokens}", at)
        assert causes(judged) == [frozenset({cause})]


def test_every_factor_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {cause for examples in catalogue.EXAMPLES.values() for cause in examples}
    of_nodes = {"fvcore", "kept scores", "biases missing", "parameters whole (ZeRO-2)"}
    rows = [row for row in catalogue.mistake_table(Mistakes()) if isinstance(row, Mistake)]
    blank: Any = None

    def is_fixed(row: Mistake) -> bool:
        try:
            return all(change.factor(blank) in (0, 1) for change in row.changes)
        except AttributeError:
            return False

    assert {row.cause.removesuffix(", two classes") for row in rows if not is_fixed(row)} - known == of_nodes
    right = catalogue.EXAMPLES["S=40"]
    # 40 tokens are in three blocks of 16, not in two.
    monkeypatch.setitem(catalogue.EXAMPLES, "S=40", {**right, "blocks of 16 tokens": "4/5"})
    with pytest.raises(Bug, match="counted in another way"):
        catalogue._check_examples.__wrapped__()
