"""Peaks as text and as Markdown, of numbers that are written by hand; and how the command ends."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import costproof
from costproof.ledger.peaks import PEAKS, CallPeaks, GapPart, LiveTensor, Peak, Peaks, by_stage
from costproof.ledger.schema import to_data
from costproof.reports.outputs import variants
from tests.conftest import Golden
from tests.reports.test_html import check_policy
from tests.support.toy import toy

X = LiveTensor("x", (2, 5), "float32", 40, "", "")
WIDE = LiveTensor("addmm", (10, 8), "float32", 320, "aten.addmm.default", "mlp.up")
ACTIVE = LiveTensor("gelu", (10, 8), "float32", 320, "aten.gelu.default", "mlp")
MASK = LiveTensor("full", (), "bool", 1, "aten.full.default", "")
HOSTILE = LiveTensor("a|b", (1,), "int8", 1, "x.<script>", "m|`<script>")


def made(*tensors: LiveTensor) -> Peak:
    return Peak(sum(t.bytes for t in tensors), tensors[-1].operator, tensors[-1].module, tensors)


def peaks(*calls: CallPeaks) -> Peaks:
    of = toy()
    return Peaks(of.conventions, of.target, of.workload, of.environment, by_stage(calls), calls)


CALLS = (
    CallPeaks(
        "sam", "global", "sam@64", made(X, WIDE), made(X, WIDE, ACTIVE, MASK),
        (
            GapPart("held", 320, ACTIVE, ("Mlp.forward: active", "Layer.forward: kept")),
            GapPart("eager only", 1, MASK),
            GapPart("graph only", -1, MASK),
            GapPart("elsewhere", 1, None, where="mlp.down"),
        ),
        form="Max(360*n, 40*B + n**2)",
    ),
    CallPeaks("decode", "steps", "step", None, None, notes=("graph peak not known: an operator", "eager peak too")),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["text", "md"])
def test_peaks_for_people(kind: str, golden: Golden) -> None:
    golden(f"reports/peaks.{'txt' if kind == 'text' else kind}", variants("peaks")[kind].text(peaks(*CALLS)))


def test_peaks_as_a_page() -> None:
    """By hand: 40 + 320 + 320 + 1 bytes; of two calls one is not known."""
    texts = [variants("peaks")["html"].text(peaks(*calls)) for calls in (CALLS, CALLS[:1], ())]
    both, one, none = (re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text)) for text in texts)
    largest = "The largest peak is 681 bytes (681 B), of sam, global, sam@64."
    assert f"{largest} Peaks of 1 of 2 calls are not known." in both
    assert "sam 360 B, 360 681 B, 681" in both
    assert 'class="verdict incomplete"' in texts[0]
    assert "graph peak in symbols: Max(360*n, 40*B + n**2)" in both
    assert largest in one
    assert "not known" not in one
    assert "Nothing is called at this workload." in none
    assert "together 681" in one
    for text in texts:
        check_policy(text)


def test_what_is_not_known_is_null_and_ends_with_3() -> None:
    found = peaks(*CALLS)
    assert [(s.stage, s.graph_peak_bytes, s.eager_peak_bytes) for s in found.stages] == [
        ("sam", 40 + 320, 40 + 320 + 320 + 1),
        ("decode", None, None),
    ]
    assert (found.exit_code, peaks(CALLS[0]).exit_code, peaks().exit_code) == (3, 0, 3)
    assert to_data(PEAKS, found)["calls"][1]["graph"] is None


def test_a_formula_that_differs_from_its_graph_ends_with_1() -> None:
    """A graph of 360 B: the same by formula is no finding, one byte more is; another peak may be unknown."""
    right = replace(CALLS[0], formula=360, gathered_bytes=123_456)
    wrong = replace(right, formula=361)
    assert (peaks(right).exit_code, peaks(wrong).exit_code, peaks(wrong, CALLS[1]).exit_code) == (0, 1, 1)
    texts = {kind: variants("peaks")[kind].text(peaks(wrong)) for kind in ("text", "md", "html")}
    for text in texts.values():
        assert "361, 1 more than the graph has" in text
        assert "gathered parameters and their buffers are held besides: at most 123,456 B" in text
    assert 'class="verdict unexplained"' in texts["html"]


def test_hostile_names_stay_in_their_cells() -> None:
    call = CallPeaks(
        "s|t", "<script>", "p", made(X), made(X, HOSTILE), (GapPart("eager only", 1, HOSTILE, ("f|: g",)),)
    )
    text = variants("peaks")["md"].text(peaks(call))
    assert "<script" not in text
    for block in (b for b in text.split("\n\n") if b.startswith("| ")):
        assert len({line.replace(r"\|", "").count("|") for line in block.splitlines()}) == 1


def test_a_loop_over_experts_has_no_peaks(tmp_path: Path) -> None:
    """Its export stands for it with other operators."""
    config = {
        "model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "num_experts": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "intermediate_size": 48, "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps(config), encoding="utf-8")
    found = costproof.peaks(
        "qwen3-moe", config=tmp_path / "m.json", text_tokens=4, new_tokens=1, experts="eager", run="cpu"
    )
    assert found.exit_code == 3
    assert [(c.stage, c.graph, c.eager) for c in found.calls] == [("prefill", None, None), ("decode", None, None)]
    assert {c.notes for c in found.calls} == {("not what runs: the export has expert_kernel grouped_mm",)}
