"""Claims on peaks of memory, about a toy whose tensors are written out; every expected number is added up by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.claims import Judgement, claims_from_text, judge_claims
from costproof.claims.effects import Mistakes
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.node import CostNode
from costproof.ledger.peaks import CallPeaks, LiveTensor, Peak
from costproof.run import claims as run_claims
from tests.oracles.claims import causes
from tests.support.toy import toy

# Bytes of what is alive; of one view of 64: 3 x 64 x 64 numbers of two bytes.
PIXELS = LiveTensor("pixels", (1, 3, 64, 64), "bfloat16", 24_576, "", "")
WIDE = LiveTensor("linear", (16, 1003), "bfloat16", 32_096, "aten.linear.default", "sam.layers.0.lin")
SCORES = LiveTensor("softmax", (16, 333), "float32", 21_312, "aten.softmax.int", "sam.layers.0")
MASK = LiveTensor("ones", (77,), "bool", 77, "aten.ones.default", "sam")
CROPS = LiveTensor("pixels", (3, 3, 32, 32), "bfloat16", 18_432, "", "")
NARROW = LiveTensor("linear", (12, 907), "bfloat16", 21_768, "aten.linear.default", "sam.layers.0.lin")
KEPT = LiveTensor("cat", (1, 7919), "float32", 31_676, "aten.cat.default", "text.attn")
WRITTEN = {128: 12_553, 96: 9_011}
"""Activations that a layer writes, in place of those that are products of the toy's sizes."""


def alive(*tensors: LiveTensor) -> Peak:
    return Peak(sum(t.bytes for t in tensors), "", "", tensors)


def capture() -> Capture:
    """Two calls of sam, which add 32,096 to 24,576, and 21,768 to 18,432; weights of 80, 14 and 72 bytes."""

    def written(node: CostNode) -> CostNode:
        size = node.cost("output_bytes")
        found = WRITTEN.get(size or 0)
        return node if found is None else replace(node, costs={**node.costs, "output_bytes": found}, exprs={})

    (ledger, *_) = toy().ledgers
    calls = (
        CallPeaks("sam", "global", "sam@64", alive(PIXELS, WIDE), alive(PIXELS, WIDE, SCORES, MASK)),
        CallPeaks("sam", "crops", "sam@32", alive(CROPS, NARROW), alive(CROPS, NARROW)),
        CallPeaks("decode", "steps", "step", alive(KEPT), None, notes=("eager peak not known: why",)),
    )
    return replace(toy(), ledgers=(replace(ledger, nodes=tuple(map(written, ledger.nodes))),), peaks=calls)


def judged(body: str, at: Capture | None = None) -> Judgement:
    claims = claims_from_text(f"costproof_claims: 1\nclaims:\n- {{{body}}}\n", where="f")
    return judge_claims(claims, at or capture(), Mistakes(), truth="t").judgements[0]


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("stage: sam, graph_peak_bytes: 56672", set()),
        ("stage: sam, eager_peak_bytes: 78061", set()),
        ("stage: sam, invocation: crops, eager_peak_bytes: 40200", set()),
        # Two layers in two calls: 2 x (12,553 + 9,011).
        ("stage: sam, graph_peak_bytes: 43128", {"sum for peak"}),
        ("stage: sam, invocation: crops, graph_peak_bytes: 18022", {"sum for peak"}),
        ("stage: sam, graph_peak_bytes: 78061", {"eager peak for graph peak"}),
        ("stage: sam, eager_peak_bytes: 56672", {"graph peak for eager peak"}),
        ("stage: sam, graph_peak_bytes: 31676", {"another stage: decode"}),
        ("stage: sam, invocation: crops, graph_peak_bytes: 56672", {"another call: global"}),
        ("stage: sam, graph_peak_bytes: 96872", {"calls added up"}),
        ("stage: sam, graph_peak_bytes: 32096", {"inputs left out"}),
        ("stage: sam, graph_peak_bytes: 56752", {"weights included"}),
        ("stage: sam, graph_peak_bytes: 56838", {"weights of all stages included"}),
        ("stage: sam, graph_peak_bytes: 80", {"weights alone"}),
        # 24,576 / 2 + 32,096 / 2 + 21,312 / 4 + 77, the mask has one byte each.
        ("stage: sam, eager_peak_bytes: 33741", {"element size forgotten"}),
        # 2 x (24,576 + 32,096) + 21,312 + 77.
        ("stage: sam, eager_peak_bytes: 134733", {"four bytes each"}),
        # 24,576 + 32,096 + 21,312 / 2 + 77.
        ("stage: sam, eager_peak_bytes: 67405", {"two bytes each"}),
        ("stage: sam, graph_peak_bytes: 86256", {"sum for peak", "four bytes each"}),
        ("stage: sam, graph_peak_bytes: 78141", {"eager peak for graph peak", "weights included"}),
        ("stage: sam, graph_peak_bytes: 78.1 KB", {"eager peak for graph peak"}),
    ],
)
def test_a_peak_and_what_is_read_as_one(claim: str, expected: set[str]) -> None:
    found = judged(claim)
    assert found.status == ("explained" if expected else "right")
    assert [set(c) for c in causes(found)] == ([expected] if expected else [])
    assert found.residual == 0


@pytest.mark.parametrize(("stage", "peak"), [("sam", 24_576 + 32_096), ("decode", 31_676)])
def test_a_number_that_is_none_of_them_stays_unexplained(stage: str, peak: int) -> None:
    """At no length either, though decode has one: what is alive at another length nobody has counted."""
    found = judged(f"stage: {stage}, graph_peak_bytes: {peak + 329}")
    assert (found.status, found.residual, found.lengths) == ("unexplained", 329, ())


def test_evidence_names_tensors() -> None:
    (step,) = judged("stage: sam, graph_peak_bytes: 32096").explanations[0].steps
    assert (step.amount, step.evidence) == (-24_576, ("(root): pixels [1, 3, 64, 64] bfloat16",))


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("stage: sam, graph_peak_bytes: 3*H**2*b", "a peak of memory has no formula to compare with"),
        ("stage: total, graph_peak_bytes: 56672", "a peak must belong to one stage"),
        ("stage: sam, module: sam.layers.0.lin, graph_peak_bytes: 56672", "a peak must belong to one stage"),
    ],
)
def test_a_peak_is_a_number_of_a_stage(claim: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        judged(claim)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("stage: decode, eager_peak_bytes: 5", "eager peak not known: why"),
        ("stage: clip, graph_peak_bytes: 5", "no peak"),
    ],
)
def test_what_is_not_known_refutes_nothing(claim: str, said: str) -> None:
    with pytest.raises(Incomplete) as error:
        judged(claim)
    assert (error.value.got, error.value.exit_code) == (said, 3)
    assert "--peaks" in str(error.value.fix)


def test_a_call_without_a_peak_leaves_that_of_its_stage_unknown() -> None:
    at = capture()
    known, lost, other = at.peaks
    at = replace(at, peaks=(known, replace(lost, graph=None), other))
    assert judged("stage: sam, invocation: global, graph_peak_bytes: 56672", at).status == "right"
    with pytest.raises(Incomplete):
        judged("stage: sam, graph_peak_bytes: 56672", at)


def test_peaks_are_found_for_claims_about_them_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(*_: Any) -> tuple[CallPeaks, ...]:
        asked.append(1)
        return (CallPeaks("projector", "global", "p", alive(WIDE), alive(WIDE)),)

    monkeypatch.setattr(run_claims, "measure_peaks", measured)
    head = "costproof_claims: 1\ntarget: deepseek-ocr\nworkload: {preset: base}\nclaims:\n"
    for metric, right in (("params", 2_622_720), ("eager_peak_bytes", 32_096)):
        (tmp_path / "c.yaml").write_text(f"{head}- {{stage: projector, {metric}: {right}}}\n", encoding="utf-8")
        assert api.check(tmp_path / "c.yaml").verdict == "right"
    assert asked == [1]
