"""Time at the roof by hand, and its sums and borders."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from costproof import api
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.hardware import Device, DeviceFigure, DevicePeak
from costproof.estimate.roofline import (
    ROOFLINE,
    BottleneckThreshold,
    Roof,
    Roofline,
    ThresholdPoint,
    WorkBound,
    _contradictions,
    bounds,
    choose_source,
)
from costproof.ledger.baseline import read_baseline
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.schema import from_data
from costproof.reports.roofline import border_sentences as words
from costproof.reports.roofline import roofline_csv
from costproof.views.static_compute import static_compute
from tests.baselines import Named, named
from tests.conftest import Golden
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import write_capture

PEAK, WIDTH = 989 * 10**12, 3350 * 10**9
"""H100 SXM, bfloat16."""
SLOW = Device(
    "slow", "a slow one", "measured", {}, (DevicePeak("bfloat16", 8, "dense", "matrix", ()),), DeviceFigure(2, ())
)
"""8 FLOP and 2 bytes a second: they meet at 4 FLOP per byte."""


@pytest.fixture(scope="module")
def llama() -> Roofline:
    return api.roofline("llama-3.1-8b", on="h100-sxm")


# Llama 3.1 8B in bfloat16: width 4096, 32 layers, 32 heads of 128, 8 of keys and values, MLPs of 14336, 128256 words.
LAYER = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336
WEIGHTS = 2 * (32 * (LAYER + 2 * 4096) + 4096 + 128256 * 4096)
"""Bytes of all weights without the table of words, of which a token reads one row."""
ROW = 2 * 4096
PAST = 2 * 32 * 2 * 8 * 128
"""Bytes of keys and values of a token."""
PRODUCTS = 2 * (32 * LAYER + 128256 * 4096)
"""FLOPs of a token but for its scores."""
SCORES = 32 * 4 * 32 * 128
"""FLOPs of a token's scores and values for each token that it sees."""


def decode(found: Roofline) -> tuple[WorkBound, WorkBound]:
    stage = found.stages[-1]
    assert stage.id == "decode"
    return stage.modules, stage.floor


def test_a_step_of_decode_by_hand(llama: Roofline) -> None:
    modules, floor = decode(llama)
    assert floor.flops == PRODUCTS + SCORES * 513 == 15_278_276_608
    # Out go the logits, in come 64 frequencies of 4 bytes.
    lasting = WEIGHTS + ROW + (512 + 1) * PAST
    assert floor.bytes == lasting + 2 * 128256 + 256 == 15_077_354_240
    assert floor.seconds == str(Fraction(15_077_354_240, WIDTH))  # 4.501 ms; the products take 15 us
    assert floor.bound == "memory"
    # What a layer reads and writes beside weights: (in, out) of each module, h = 8192 bytes, k = 2048, m = 28672.
    h, k, m, angles = 8192, 2048, 28672, 2 * 2 * 128
    moved = {
        "norms": 2 * 2 * h,
        "q, k, v, out": (h + h) + 2 * (h + k) + (h + h),
        "attention": (h + 2 * k + angles) + h,
        "additions": 3 * h + 2 * h,
        "gate, up, down": 3 * (h + m),
        "activation": 2 * m,
        "product": 2 * m + m,
    }
    outside = h + (256 + angles) + 2 * h + (h + 2 * 128256)  # word, angles, norm, lm_head
    assert modules.bytes == lasting + 32 * sum(moved.values()) + outside == 15_090_248_960


def test_a_step_operator_by_operator_by_hand(llama: Roofline) -> None:
    # What moves beside the borders of modules. A norm of 4096: 3 elements of 2 bytes and 8 bytes of float32 each, three
    # numbers of a row twice; queries and keys, 5120 elements, rotated by ten reads and writes, with both tables once
    # more; keys and values of 513 tokens joined, written and read; the sum between both additions read once more.
    norm, pairs = (3 * 2 + 8) * 4096 + 3 * 8, 4096 + 1024
    layer = 2 * norm + 10 * 2 * pairs + 2 * 2 * 128 + 2 * 2 * 513 * 2 * 1024 + 8192
    table = 32 * 128  # the angles, doubled, cosine, sine, in float32
    stage = llama.stages[-1]
    assert stage.unfused is not None
    assert stage.unfused.bytes == (stage.modules.bytes or 0) + 32 * layer + norm + table
    assert stage.unfused.flops == stage.modules.flops


def test_the_prefill_of_llama_by_hand(llama: Roofline) -> None:
    # 512 tokens: each a row of the table, each written to the cache; nothing is in the cache before.
    floor = llama.stages[0].floor
    assert floor.bytes == WEIGHTS + 512 * ROW + 512 * PAST + 512 * 2 * 128256 + 256 == 15_212_486_912
    # Scores of every pair; lm_head on all positions.
    assert floor.flops == 512 * PRODUCTS + 512 * 512 * SCORES


def test_the_decoder_of_deepseek_ocr_by_hand() -> None:
    # Width 1280, 10 heads of 128, 12 layers: one with an MLP of 6848, the others with 64 experts of 896, of which a
    # token takes 6, and two shared ones. 129280 words; 7 tokens and two steps, of one sequence and of three.
    attention, expert = 4 * 1280 * 1280 + 2 * 1280, 3 * 1280 * 896
    token = 2 * 12 * 2 * 1280
    for batch in (1, 3):
        found = api.roofline(f"deepseek-ocr@text-only,text_tokens=7,new_tokens=2,batch={batch}", on="h100-sxm")
        prefill, decode = (s.floor for s in found.stages if s.id in ("prefill", "decode"))

        def weights(rows: int) -> int:
            touched = 6  # those of one token: all tokens may choose alike
            mixture = attention + (touched + 2) * expert + 64 * 1280
            once = 11 * mixture + attention + 3 * 1280 * 6848 + 1280 + 129280 * 1280
            return 2 * (once + rows * 1280)

        # Logits of every position go out, 64 frequencies of 4 bytes come in with every call.
        logits = 2 * 129280
        assert prefill.bytes == weights(7 * batch) + 7 * batch * (token + logits) + 256
        assert decode.bytes == 2 * weights(batch) + batch * token * (7 + 8 + 2) + 2 * (batch * logits + 256)


def test_a_tied_table_is_read_once() -> None:
    # GPT-2 medium, 7 tokens of a prompt: width 1024, 24 layers of 12 h² + 13 h parameters, a norm, 7 positions, and a
    # table of 50257 words that look-up and logits share; keys and values written, logits of all positions.
    found = api.roofline("gpt2-medium@chat,text_tokens=7,new_tokens=1", on="h100-sxm")
    h, tokens, words = 1024, 7, 50257
    weights = 24 * (12 * h * h + 13 * h) + 2 * h + tokens * h + words * h
    assert found.stages[0].floor.bytes == 2 * (weights + 24 * 2 * tokens * h + tokens * words)


@pytest.mark.parametrize("which", list(named()), ids=lambda w: w.path.stem)
def test_a_larger_region_takes_no_longer(which: Named) -> None:
    # With a roof of one byte and one FLOP a second; of bytes alone, the roof of products out of reach.
    _, folded = choose_source(read_baseline(which.path))
    for of in (Roof(1, 1, math="bfloat16"), Roof(10**30, 1, math="bfloat16")):
        run, stages, _ = bounds(folded, of, Arithmetic("bfloat16", folded.bounds))
        for stage in (run, *stages):
            assert stage.floor.bytes is not None
            assert stage.modules.bytes is not None
            assert stage.floor.bytes <= stage.modules.bytes
            assert Fraction(stage.floor.seconds or "-1") <= Fraction(stage.modules.seconds or "-1")
            assert stage.unfused is not None
            assert stage.modules.bytes <= (stage.unfused.bytes or 0)
            assert Fraction(stage.modules.seconds or "-1") <= Fraction(stage.unfused.seconds or "-1")


def border(found: Roofline, stage: str, question: str) -> BottleneckThreshold:
    (one,) = (b for b in found.borders if b.stage == stage and question in b.question)
    return one


def test_the_batch_at_which_the_products_pass_the_weights(llama: Roofline) -> None:
    def longer(batch: int) -> bool:
        return Fraction(batch * (PRODUCTS + SCORES * 513), PEAK) > Fraction(WEIGHTS + batch * ROW, WIDTH)

    assert (longer(290), longer(291)) == (False, True)
    found = border(llama, "decode", "computes longer")
    assert (found.outcome, found.at, [p.at for p in found.points]) == ("from", 291, [290, 291])
    assert found.points[1].left == str(Fraction(291 * (PRODUCTS + SCORES * 513), PEAK))


def test_where_it_never_is(llama: Roofline) -> None:
    # At 512 tokens a further sequence reads 67 MB of keys and values, 20 us, and computes for 15 us.
    assert Fraction(512 * PAST, WIDTH) > Fraction(PRODUCTS + SCORES * 513, PEAK)
    assert border(llama, "decode", "is bound by compute").outcome == "never"


def test_the_length_at_which_scores_pass_the_mlps(llama: Roofline) -> None:
    # 2 S (S + 1) a d kept against 6 S h m: S + 1 = 3 m, for a d = h.
    found = border(llama, "prefill", "scores")
    assert (found.at, found.points[0].left == found.points[0].right) == (3 * 14336, True)


def test_the_context_at_which_the_past_passes_the_weights(llama: Roofline) -> None:
    found = border(llama, "decode", "past")
    assert found.at == (WEIGHTS + ROW) // PAST + 1 == 114_517
    assert [p.left for p in found.points] == [str(114_516 * PAST), str(114_517 * PAST)]


def test_a_border_beyond_the_model_says_so() -> None:
    found = border(api.roofline("bert-base", on="h100-sxm"), "forward", "scores")
    # 4 S^2 h against 4 S h m, where m = 4 h = 3072: S = m.
    assert (found.outcome, found.at) == ("refused", 3073)
    assert found.why == "the length of the text is out of range; in --seq-len; got 3073"


@pytest.mark.parametrize("own", [256, 1000])
def test_a_border_behind_a_window_does_not_depend_on_the_run(own: int) -> None:
    """Gemma 3 1B: 26 layers, every sixth without a window, one head of 256; a window holds 511 tokens of the past."""
    found = border(api.roofline(f"gemma-3-1b@chat,text_tokens={own}", on="h100-sxm"), "decode", "past")
    token, read = 2 * 256 * 2, 2 * 999_885_952 + 2 * 1152
    # 4 layers read all of the past, 22 the last 511 of it.
    assert (found.outcome, found.at) == ("refused", (read - 22 * 511 * token) // (4 * token) + 1)
    assert found.at == 485_416


def test_a_window_reads_no_more_however_long_the_past() -> None:
    found = api.roofline("mistral-7b", on="h100-sxm")
    # A step reads 4,095 x 131,072 bytes at most, and 14.2 GB of weights.
    assert border(found, "decode", "past").outcome == "never"


def test_the_borders_of_a_text_that_an_encoder_reads() -> None:
    found = api.roofline("t5-small", on="h100-sxm")
    # 4 S^2 a d against 4 S h m: S = m h / a d = 2048 with 8 heads of 64.
    assert border(found, "encode", "scores").at == 2049
    # A token of its own beside S of the text: 4 (S + 1) a d against 4 h m.
    assert border(found, "prefill", "scores").at == 2048


def test_sides_that_are_shown_alike_get_more_digits() -> None:
    points = (
        ThresholdPoint(1, "2051/1000000000", "2051/1000000000"),
        ThresholdPoint(2, "20514001/10000000000000", "20514/10000000000"),
    )
    one = BottleneckThreshold("decode", "batch", "is bound by compute", "compute", "memory", "s", "from", 2, points)
    assert words(one)[1] == (
        "compute against memory, at batch 1: 2.051 µs ≤ 2.051 µs; at batch 2: 2.0514001 µs > 2.0514000 µs"
    )


@pytest.mark.parametrize("ridge", [1, 3])
def test_experts_are_one_piece_after_another(ridge: int) -> None:
    # 8 experts of which a token takes 2: up to 4 tokens more of them are read with each, from there on all are.
    device = replace(SLOW, peaks=(replace(SLOW.peaks[0], flops=ridge * 10**12),), bandwidth=DeviceFigure(10**12, ()))
    target = "mixtral-8x7b@chat,text_tokens=1"
    found = border(api.roofline(target, on=device), "prefill", "computes longer")
    assert found.outcome == "from"
    assert found.at is not None
    assert (found.at > 4) == (ridge > 1)  # before and behind the place where the minimum changes
    for batch in (found.at - 1, found.at):
        stage = api.roofline(f"{target},batch={batch}", on=device).stages[0]
        floor = stage.full or stage.floor  # with as many experts as are counted
        more = Fraction(floor.compute_s or "-1") > Fraction(floor.memory_s or "-1")
        assert more == (batch >= found.at), batch


TARGETS = ("llama-3.1-8b", "deepseek-ocr@gundam:2x2,batch=2", "mixtral-8x7b", "clip-l-336", "gemma-3-270m")


@pytest.mark.parametrize("target", TARGETS)
def test_sums_and_order(target: str) -> None:
    found = api.roofline(target, on="a100-sxm-80gb")
    for stage in found.stages:
        own = [p.at_roof for p in found.parts if p.stage == stage.id]
        assert Fraction(stage.modules.seconds or "-1") == sum(Fraction(b.seconds or "-1") for b in own)
        assert stage.modules.flops == sum(b.flops or 0 for b in own)
        assert stage.modules.bytes == sum(b.bytes or 0 for b in own)
        assert Fraction(stage.floor.seconds or "-1") <= Fraction(stage.modules.seconds or "-1")
        for b in (*own, stage.floor):
            assert Fraction(b.seconds or "-1") == max(Fraction(b.compute_s or "-1"), Fraction(b.memory_s or "-1"))
    assert Fraction(found.run.modules.seconds or "-1") == sum(Fraction(s.modules.seconds or "-1") for s in found.stages)
    for one in found.borders:
        if one.outcome == "from":
            signs = [Fraction(p.left) > Fraction(p.right) for p in one.points]
            assert signs == ([False, True] if len(signs) == 2 else [True])


def test_the_table_of_a_stage_is_that_of_static_compute() -> None:
    made = api.capture("llama-3.1-8b", sources=["analytic"])
    found, static = api.roofline(made, on="h100-sxm"), static_compute(made, "exact", formulas=False)
    for mine, its in zip(found.stages, static.stages, strict=True):
        assert mine.modules.bytes == its.costs["io_bytes"]
        assert mine.modules.flops == its.costs["flops"]


def test_a_capture_is_the_same_as_its_target(tmp_path: Path, llama: Roofline) -> None:
    write_capture(tmp_path / "c.json", api.capture("llama-3.1-8b", sources=["analytic"]))
    read = api.roofline(tmp_path / "c.json", on="h100-sxm")
    assert replace(read, environment={}) == replace(llama, environment={})


def test_what_is_not_known_makes_the_sum_unknown(tmp_path: Path) -> None:
    made = toy()
    # The toy has no input_bytes at all, so nothing can be said of its traffic.
    with pytest.raises(Incomplete, match="no source has the required metrics"):
        api.roofline(made, on=SLOW)
    whole = api.capture("llama-3.1-8b", sources=["analytic"])
    ledger = whole.ledger("analytic")
    nodes = tuple(
        replace(n, costs={**n.costs, "flops": None}, exprs={}) if n.module == "lm_head" and "flops" in n.costs else n
        for n in ledger.nodes
    )
    found = api.roofline(replace(whole, ledgers=(replace(ledger, nodes=nodes),)), on="h100-sxm")
    assert found.exit_code == 3
    assert (found.run.modules.seconds, found.run.floor.seconds, found.run.modules.flops) == (None, None, None)
    assert {p.part for p in found.parts if p.at_roof.seconds is None} == {"lm_head"}


def test_another_peak_and_none() -> None:
    wide = api.roofline("llama-3.1-8b@chat,dtype=float32", on="h100-sxm", math="tf32")
    assert (wide.dtype, wide.peak_flops) == ("tf32", 4945 * 10**11)
    with pytest.raises(BadInput, match="the dense peak of this dtype is not known") as caught:
        api.roofline("llama-3.1-8b", on="h20")
    assert "h20, bfloat16" in str(caught.value)
    with pytest.raises(BadInput, match="bandwidth"):
        api.roofline("llama-3.1-8b", on=replace(SLOW, bandwidth=None))
    with pytest.raises(BadInput, match="no such source"):
        api.roofline("llama-3.1-8b", on="h100-sxm", source="static")


def test_the_outputs(golden: Golden, tmp_path: Path, llama: Roofline) -> None:
    def run(*more: str) -> str:
        done = costproof("roofline", "llama-3.1-8b", "--on", "h100-sxm", *more, cwd=tmp_path)
        assert done.code == 0, done.stderr
        return done.stdout

    golden("cli/roofline.txt", run())
    golden("cli/roofline.md", run("-f", "md"))
    golden("cli/roofline.csv", run("-f", "csv"))
    data = json.loads(run("-f", "json"))
    assert from_data(data, ROOFLINE, where="it", make_again="") == llama


def test_the_picture_has_every_part_on_the_roof(tmp_path: Path, llama: Roofline) -> None:
    costproof("roofline", "llama-3.1-8b", "--on", "h100-sxm", "-o", "roof.svg", cwd=tmp_path)
    root = ET.fromstring((tmp_path / "roof.svg").read_text())
    name = "{http://www.w3.org/2000/svg}"
    (line,) = root.iter(f"{name}polyline")
    start, corner, end = (tuple(map(float, p.split(","))) for p in str(line.get("points")).split())
    points = [c for c in root.iter(f"{name}circle") if c.find(f"{name}title") is not None]
    assert len(points) == sum(1 for p in llama.parts if p.at_roof.flops and p.at_roof.bytes)
    for point in points:
        x, y = float(str(point.get("cx"))), float(str(point.get("cy")))
        slope = (corner[1] - start[1]) / (corner[0] - start[0])
        on_roof = start[1] + slope * (x - start[0]) if x < corner[0] else end[1]
        assert abs(y - on_roof) < 0.6


def test_scores_that_a_causal_mask_hides_are_in_one_column_of_flops(llama: Roofline) -> None:
    prefill, decode = (stage.modules for stage in llama.stages)
    tokens = llama.workload.text_tokens
    # Query i sees i of the S keys: of S^2 scores S (S + 1) / 2 are kept.
    assert prefill.flops is not None
    assert prefill.kept == prefill.flops - SCORES * (tokens**2 - tokens * (tokens + 1) // 2)
    assert decode.kept == decode.flops
    floor, full = llama.stages[0].floor, llama.stages[0].full
    assert full is not None
    assert (floor.kept, floor.compute_s) == (prefill.kept, str(Fraction(prefill.kept, PEAK)))
    assert full.compute_s == str(Fraction(prefill.flops, PEAK))
    shown = roofline_csv(llama).splitlines()
    assert shown[0].split(",")[3:5] == ["flops", "kept"]
    assert any(f",{prefill.flops},{prefill.kept}," in line for line in shown)


def test_more_kept_flops_than_flops_are_refused(llama: Roofline) -> None:
    stage = llama.stages[0]
    wrong = replace(stage, modules=replace(stage.modules, kept=(stage.modules.flops or 0) + 1))
    found = list(_contradictions(replace(llama, stages=(wrong, *llama.stages[1:]))))
    assert [problem.where for problem in found] == ["$.stages[0].modules.kept"]


@pytest.mark.parametrize(
    ("target", "stage"),
    [
        ("deepseek-v3@chat,layers=5", "decode"),
        ("deepseek-v3@chat,decoding=absorbed", "decode"),
        ("gpt-oss-20b@chat,layers=2", "prefill"),
    ],
)
def test_the_clocks_of_a_border_are_those_of_its_stage(target: str, stage: str) -> None:
    """Also where products of one kind run in two dtypes, and what may be skipped is in the narrower one.

    A decode step of DeepSeek-V3 that expands the latents of 513 tokens in fp8 needs none of these products. Taken off
    at the rate of bfloat16, they were twice as many, and left a negative time.
    """
    found = api.roofline(target, on="h200-sxm")
    (border,) = (
        b for b in found.borders if (b.question, b.stage, b.setting) == ("is bound by compute", stage, "batch")
    )
    point = border.points[0]
    at = found if point.at == found.workload.batch else api.roofline(f"{target},batch={point.at}", on="h200-sxm")
    own = next(one.modules for one in at.stages if one.id == stage)
    assert (point.left, point.right) == (own.compute_s, own.memory_s)
