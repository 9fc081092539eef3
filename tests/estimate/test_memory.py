"""Whether a run fits: bytes by hand, limits that are solved, three verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.estimate.memory import FITS, Fits, HeldKind, MemoryLimit, parse_size
from costproof.ledger.capture import CAPTURE
from costproof.ledger.errors import BadInput, Bug, Problems
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peak
from costproof.ledger.schema import from_data, to_data
from costproof.reports.outputs import variants
from costproof.run import fits as fits_module
from tests.conftest import Golden
from tests.support.running import costproof
from tests.support.toy import toy

H100 = 80 * 10**9
# Llama 3.1 8B in bfloat16; bytes of a token: h = 2 x 4096, k = 2 x 8 x 128, m = 2 x 14336.
H, K, M = 8192, 2048, 28672
WEIGHTS = 2 * 8_030_261_248
BUFFERS = 2 * 64 * 4
"""Frequencies of the rotation, and those that it began with."""
LASTING = WEIGHTS + BUFFERS
TOKEN = 32 * 2 * K
"""Of keys and values."""
# Both norms, q, attention, out, down and both additions write h; k and v write k; gate, up, activation, product m.
LAYER_OUT = 8 * H + 2 * K + 4 * M
OUTSIDE_OUT = 2 * H + 2 * 128256 + 2 * 2 * 128
"""Word, last norm, logits and angles."""
WRITTEN = 32 * LAYER_OUT + OUTSIDE_OUT
# What modules of one layer read: norms, q, k, v, out, gate, up, their activation and down; rotation and attention;
# the product of gate and up; both additions, of which one is read by the other.
LAYER_IN = 2 * H + 4 * H + (H + 2 * K + 2 * 2 * 128) + 2 * H + M + M + 2 * M + 3 * H
# And every operator alone. A norm in float32, with the mean and what is done with it: 9 h + 24. The halves of q and k
# turned, joined, both products and their sum 10 1/2 times, attention once.
NORM = 9 * H + 24
LAYER_MOVED = 2 * NORM + 4 * H + 2 * (H + K) + 21 * (H + K) // 2 + (2 * H + 2 * K) + 3 * (H + M) + 2 * M + 3 * M + 6 * H
OUTSIDE_IN = H + H
"""The last norm and the logits; beside them half a byte of a frequency for each of 512 tokens."""
# A word is written (its row is a weight), the angles are 4608, the last norm, the logits.
OUTSIDE_MOVED = H + 4608 + NORM + (H + 2 * 128256)
HELD = WRITTEN + LAYER_MOVED + OUTSIDE_MOVED + LAYER_IN + OUTSIDE_IN + LAYER_OUT + OUTSIDE_OUT
"""Of a token, at most, with one layer at a time."""
FREQUENCIES = 2 * 64 * 4
"""Of the angles, once a call: read by the module, and by an operator."""


@pytest.fixture(scope="module")
def llama() -> Fits:
    return api.fits("llama-3.1-8b", on="h100-sxm")


CACHE: HeldKind = "weights and cache"
PEAK: HeldKind = "weights and graph peak"
LIVE: HeldKind = "weights and live peak"
BOUND: HeldKind = "weights, cache and bound"
PROMPT = TOKEN + H + 2 * 128256
"""Of a token of the prompt, where the logits are made: keys and values, the last norm, logits."""
fits_text = variants("fits")["text"].text


def limit(found: Fits, setting: str, held: HeldKind) -> MemoryLimit:
    (one,) = (x for x in found.limits if (x.setting, x.held) == (setting, held))
    return one


def test_bytes_by_hand(llama: Fits) -> None:
    assert llama.weights_bytes == WEIGHTS == 16_060_522_496
    assert llama.buffers_bytes == BUFFERS == 512
    assert llama.cache_bytes == 513 * TOKEN == 67_239_936
    prefill, decode = llama.stages
    # The angles are the same for all sequences; there is one here. Masks: 10 bytes for each query and key.
    assert prefill.activations_bytes == 512 * HELD + FREQUENCIES + 10 * 512**2 == 4_020_015_616
    # The last step joins 512 keys and values in one layer with its own, which reads and writes 513 of them and reads
    # them once more, and may repeat them for 32 heads: 513 keys and values of 32 x 128 elements.
    joined = 32 * 513 * 2 * 128 * 2 + (2 * 513 + 512) * 2 * K
    assert decode.activations_bytes == HELD + FREQUENCIES + joined == 22_551_624
    assert llama.activations_bytes == 4_020_015_616 + 22_551_624
    assert llama.peak_bytes is None
    # A step holds most where the last layer joins its values with those before, which the run then gives back: all new
    # keys and values of 513 tokens, the old values of one layer; the residual, the queries, and values of one token.
    step = 64 * 513 * K + 512 * K + 2 * H + K
    assert (prefill.live_bytes, decode.live_bytes) == (512 * PROMPT, step) == (202_637_312, 68_306_944)
    assert (llama.live_bytes, llama.token_bytes) == (202_637_312, TOKEN)
    assert (llama.verdict, llama.exit_code) == ("fits", 0)


@pytest.mark.parametrize(("text", "expected"), [(1, 128), (2, None), (4, 0), (9, 0)])
def test_the_next_token_of_a_window(text: int, expected: int | None, tmp_path: Path) -> None:
    """A window of 5 keeps 4 tokens: keys and values of 1 head of 16, 2 layers, 2 bytes.

    After a prompt of 2, one of 3 is refused, since its two steps would reach the end of the window.
    """
    data = {
        "model_type": "mistral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 5, "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    found = api.fits(f"hf:{tmp_path / 'config.json'},text_tokens={text},new_tokens=2", memory="10MB")
    assert found.token_bytes == expected


def test_limits_by_hand(llama: Fits) -> None:
    room = H100 - LASTING
    assert limit(llama, "batch", CACHE).at == room // (513 * TOKEN) + 1 == 951
    # P tokens of text and one new one.
    assert limit(llama, "text_tokens", CACHE).at == room // TOKEN == 487_819
    assert limit(llama, "batch", LIVE).at == room // (512 * PROMPT) + 1 == 316
    long = limit(llama, "text_tokens", LIVE)
    assert (long.outcome, long.at) == ("refused", room // PROMPT + 1)
    assert not [x for x in llama.limits if x.held == BOUND]
    said = fits_text(llama)
    assert "The largest batch at this length: 315 (by the cache alone 950)." in said
    assert "The longest text in this batch: 131,071, the most that is accepted." in said  # and 1 new token
    assert "with --logits last it is" in said


def test_memory_that_is_left_to_the_runtime() -> None:
    """A tenth of 80 GB, or a size: 72 * 10^9 bytes remain for 355 prompts of 512 tokens less the weights."""
    for reserve in ("0.1", "8GB", 8 * 10**9):
        found = api.fits("llama-3.1-8b", on="h100-sxm", reserve=reserve)
        assert (found.memory_bytes, found.reserve_bytes) == (72 * 10**9, 8 * 10**9)
        assert limit(found, "batch", LIVE).at == (72 * 10**9 - LASTING) // (512 * PROMPT) + 1 == 277
    assert "left to the runtime, by --reserve" in fits_text(found)
    assert "none of these numbers" not in fits_text(found)
    assert "--reserve leaves room for it, as much as the caller says" in fits_text(found)
    for nothing in ("0", "0GB", "0.0", 0, None):
        found = api.fits("llama-3.1-8b", on="h100-sxm", reserve=nothing)
        assert (found.memory_bytes, found.reserve_bytes) == (80 * 10**9, 0)
    assert "What a runtime takes for itself is in none of these numbers." in fits_text(found)
    for wrong in ("80GB", "1.0", "-1", "a tenth", ""):
        with pytest.raises(BadInput):
            api.fits("llama-3.1-8b", on="h100-sxm", reserve=wrong)


def test_both_sides_of_a_limit(llama: Fits) -> None:
    fits, not_any_more = limit(llama, "batch", LIVE).points
    assert (fits.at, not_any_more.at) == (315, 316)
    assert fits.bytes <= H100 < not_any_more.bytes
    for point in (fits, not_any_more):
        assert api.fits(f"llama-3.1-8b@chat,batch={point.at}", on="h100-sxm").most_bytes == point.bytes


def test_a_limit_by_graph_peaks_by_hand() -> None:
    """Llama 3.1 8B holds most beside its logits, of which a prompt has as many as tokens.

    A token: its number 8, keys and values, the last norm h, logits 2 x 128256. Of a step: the cache before it and the
    cache after it, which is longer; the first is an argument.
    """
    prompt, last = 8 + TOKEN + H + 2 * 128256, 8 + H + 2 * 128256 + TOKEN
    assert (prompt, last) == (395_784, 395_784)
    of = replace(api.capture("llama-3.1-8b", sources=("analytic",)), peaks=(
        CallPeaks("prefill", "prompt", "", None, None, form=f"Max({prompt}*B*S, 2*S**2)", given="8*B*S"),
        CallPeaks("decode", "steps", "", None, None, form=f"{2 * TOKEN}*B*P + {last}*B", given=f"{TOKEN}*B*P + 8*B"),
        CallPeaks("decode", "steps", "other", None, None, form="unheard*B", given="0"),
    ))  # fmt: skip
    found = api.fits(of, memory=H100)
    room, one = H100 - LASTING, 512 * (prompt - 8)
    by_batch = limit(found, "batch", PEAK)
    assert by_batch.at == room // one + 1 == 316
    assert [p.bytes for p in by_batch.points] == [LASTING + 315 * one, LASTING + 316 * one]
    # Of 161,555 tokens, at one sequence, the positions would be too few; where memory ends before, it is a limit.
    assert limit(found, "text_tokens", PEAK).outcome == "refused"
    small = api.fits(of, memory=LASTING + 1000 * (prompt - 8))
    assert limit(small, "text_tokens", PEAK).at == 1001
    assert limit(api.fits(of, memory=H100), "batch", CACHE).at == 951
    assert "weights, buffers and the largest graph peak, arguments apart, do not fit from batch 316 on" in fits_text(
        found
    )


def test_a_limit_by_a_graph_that_does_not_hold_there_is_not_told() -> None:
    counted = api.capture("llama-3.1-8b", sources=("analytic",))

    def found(memory: int, *holds: str) -> Fits:
        call = CallPeaks("prefill", "prompt", "", None, None, form="1000*B*S", holds=holds)
        return api.fits(replace(counted, peaks=(call,)), memory=LASTING + memory)

    # At one sequence 1,000 tokens fit; at 512 tokens one sequence does, and two need 1,024,000 bytes.
    for text_tokens, batch, holds in (
        (1001, 2, ()),
        (1001, 2, ("1001 - S",)),  # it holds on both sides
        (None, 2, ("1000 - S", "9 - B")),
        (None, 2, ("1000 - S",)),
        (1001, None, ("1 - B",)),
    ):
        outcome = found(1_000_000, *holds)
        assert (limit(outcome, "text_tokens", PEAK).at, limit(outcome, "batch", PEAK).at) == (text_tokens, batch)
    why = limit(found(1_000_000, "1000 - S"), "text_tokens", PEAK)
    assert (why.outcome, why.why) == ("not solved", "the graph of prefill holds only where 1000 - S >= 0")
    # 200,000 tokens are more than the model takes, which with one more that is new is 131,071.
    for holds, said in (((), "refused"), (("131071 - S",), "refused"), (("131070 - S",), "not solved")):
        assert limit(found(200_000_000, *holds), "text_tokens", PEAK).outcome == said
    graph = CallPeaks("prefill", "prompt", "", None, None, form="1000*B*S")
    # Two sequences were counted; of one, which the exporter takes for none, the graph may be another.
    two = replace(api.capture("llama-3.1-8b", sources=("analytic",), batch=2), peaks=(graph,))
    for memory, said in ((512_000, "not solved"), (1_024_000, "from")):
        assert limit(api.fits(two, memory=LASTING + memory), "batch", PEAK).outcome == said
    # From 4,096 tokens on the window of a Mistral fills: its formulas are others, and its graph may be.
    of = replace(api.capture("mistral-7b", sources=("analytic",)), peaks=(graph,))
    weights = api.fits(of, memory=H100).lasting_bytes or 0
    for tokens, said in ((4000, "from"), (4200, "not solved")):
        of_window = limit(api.fits(of, memory=weights + 1000 * tokens), "text_tokens", PEAK)
        assert of_window.outcome == said
    assert of_window.why == "other formulas hold at text_tokens 4,200, and maybe another graph"
    # A symbol that the run does not have: nothing is known of this call.
    assert not [x for x in found(1_000_000, "unheard").limits if x.held == PEAK]


def test_a_length_that_the_model_does_not_take(llama: Fits) -> None:
    found = limit(llama, "text_tokens", CACHE)
    assert found.outcome == "refused"  # 131,072 positions
    assert "longer than the model's context" in found.why
    assert [(p.at, p.bytes) for p in found.points] == [(131_071, LASTING + 131_072 * TOKEN)]


WINDOW = (
    "mistral@chat,layers=2,hidden=64,heads=4,kv_heads=2,head_dim=16,vocab=16,intermediate=96,window=8,"
    "max_positions=24,new_tokens=3"
)
"""A window that fills behind 7 tokens: prompts of 5 and 6 would fill it while steps run, and are refused."""


def every_length() -> dict[int, Fits]:
    found = {}
    for tokens in range(1, 25):
        if tokens not in (5, 6) and tokens <= 21:
            found[tokens] = api.fits(f"{WINDOW},text_tokens={tokens}", memory=10**9)
        else:
            with pytest.raises(Problems):
                api.fits(f"{WINDOW},text_tokens={tokens}", memory=10**9)
    return found


def test_limits_along_a_window_are_those_of_every_length_one_by_one() -> None:
    """Two layers keep 7 tokens at most, of 2 x 2 x 16 elements in 2 bytes: 1,792 bytes, as at 4 + 3 tokens."""
    found = every_length()
    assert {n: f.cache_bytes for n, f in found.items()} == {n: 256 * min(n + 3, 7) for n in found}
    weights = found[1].weights_bytes or 0
    assert weights == 127_616
    certain, most = (
        {n: f.certain_bytes or 0 for n, f in found.items()},
        {n: f.most_bytes or 0 for n, f in found.items()},
    )
    rooms = {129_409, 129_407, 399_271, *(most[n] - 1 for n in (1, 4, 7, 21)), *(most[n] for n in (4, 21))}
    for room, own in zip(sorted(rooms), cycle((1, 7, 18))):
        limits = api.fits(f"{WINDOW},text_tokens={own}", memory=room)
        for held, of in ((CACHE, certain), (LIVE, most)):
            one, first = limit(limits, "text_tokens", held), next((n for n in of if of[n] > room), None)
            # The cache has no more bytes at any length; the live peak grows on.
            assert one.outcome == ("from" if first else "never" if held == CACHE else "refused")
            if first:
                before = max((n for n in of if n < first), default=None)
                assert one.at == first
                assert [(p.at, p.bytes) for p in one.points] == [(n, of[n]) for n in (before, first) if n]
            elif one.outcome == "refused":
                assert (one.at or 0) > max(found)


def test_a_limit_behind_a_window_does_not_depend_on_the_run() -> None:
    room = api.fits("gemma-3-1b@chat,text_tokens=32759", memory=1).most_bytes
    found = {own: api.fits(f"gemma-3-1b@chat,text_tokens={own}", memory=room) for own in (256, 32759, 32760)}
    for answer in found.values():
        one = limit(answer, "text_tokens", LIVE)
        assert (one.outcome, one.at, [p.at for p in one.points]) == ("from", 32760, [32759, 32760])
    assert [answer.verdict for answer in found.values()] == ["fits", "fits", "does not fit"]


def test_a_cache_that_is_full_grows_no_more() -> None:
    """4,095 x 131,072 bytes of Mistral 7B at most; with 24 GB they never fail, with 15 GB before the window is full."""
    never = limit(api.fits("mistral-7b", memory="24GB"), "text_tokens", CACHE)
    assert (never.outcome, never.at) == ("never", None)
    full = api.fits("mistral-7b@chat,text_tokens=8192", memory="15GB")
    assert full.cache_bytes == 4095 * 131_072
    one = limit(full, "text_tokens", CACHE)
    # The prompt and one new token: 3,941 x 131,072 bytes are too much.
    assert one.at == (15 * 10**9 - (full.lasting_bytes or 0)) // 131_072 == 3940


def test_the_length_of_a_text_that_an_encoder_reads() -> None:
    """T5 small keeps keys and values of the text in 6 layers, 12,288 bytes a token, and of 65 tokens of its own."""
    found = api.fits("t5-small", memory=130 * 10**6)
    assert found.weights_bytes == 121_013_248
    assert found.cache_bytes == (512 + 65) * 12_288
    assert limit(found, "text_tokens", CACHE).at == (130 * 10**6 - 121_013_248) // 12_288 - 65 + 1 == 667
    for point in limit(found, "text_tokens", LIVE).points:
        there = api.fits(f"t5-small@text,seq_len={point.at}", memory=10**9)
        assert there.live_bytes is not None
        assert point.bytes == (there.lasting_bytes or 0) + there.live_bytes


# Tests above have limits with windows, of Gemma 3 among others.
@pytest.mark.parametrize(
    "target",
    [
        "deepseek-ocr@gundam:2x2,text.layers=2,clip.layers=2", "deepseek-v2-lite@,layers=2",
        pytest.param("gemma-3-270m@,layers=6", marks=pytest.mark.thorough), "t5-small@", "clip-l-336@,layers=2",
        "gpt2@,layers=2",
    ],
)  # fmt: skip
def test_limits_are_where_it_ends_to_fit(target: str) -> None:
    whole = api.fits(target, memory=10**15)
    assert whole.most_bytes is not None
    found = api.fits(target, memory=3 * whole.most_bytes)
    one = limit(found, "batch", BOUND if whole.live_bytes is None else LIVE)
    assert one.outcome == "from"
    assert one.at is not None
    for batch in (one.at - 1, one.at):
        held = api.fits(f"{target},batch={batch}", memory=10**15)
        assert held.most_bytes is not None
        assert (held.most_bytes <= 3 * whole.most_bytes) == (batch < one.at)


def test_of_steps_the_last_is_held() -> None:
    # Latent attention makes keys and values anew in every step: the last writes most.
    many = api.fits("deepseek-v2-lite@chat,text_tokens=512,new_tokens=8", memory="80GB")
    last = api.fits("deepseek-v2-lite@chat,text_tokens=519,new_tokens=1", memory="80GB")
    first = api.fits("deepseek-v2-lite@chat,text_tokens=512,new_tokens=1", memory="80GB")
    assert many.stages[1].activations_bytes == last.stages[1].activations_bytes
    assert (first.stages[1].activations_bytes or 0) < (last.stages[1].activations_bytes or 0)
    assert many.cache_bytes == last.cache_bytes


def test_three_verdicts(llama: Fits, monkeypatch: pytest.MonkeyPatch) -> None:
    certain = LASTING + 513 * TOKEN
    most = LASTING + 512 * PROMPT
    assert llama.most_bytes == llama.least_bytes == most
    for memory, why in ((most - 1, "weights, buffers and the live peak are more"), (certain - 1, "weights and cache")):
        found = api.fits("llama-3.1-8b", memory=memory)
        assert (found.verdict, found.exit_code) == ("does not fit", 1)
        assert why in fits_text(found)
    assert api.fits("llama-3.1-8b", memory=most).exit_code == 0
    # Without a formula of the live peak, and without a graph, nothing is known between certain bytes and the bound.
    monkeypatch.setattr(fits_module, "_live_memory", lambda target, workload: (None, ()))
    of = api.capture("clip-l-336", sources=("analytic",))
    clip = api.fits(of, memory=10**12)
    for memory, verdict, code in (
        (clip.bound_bytes or 0, "fits", 0), ((clip.certain_bytes or 0) + 1, "not known", 3),
        ((clip.certain_bytes or 0) - 1, "does not fit", 1),
    ):  # fmt: skip
        found = api.fits(of, memory=memory)
        assert (found.verdict, found.exit_code) == (verdict, code)


@pytest.mark.parametrize(("memory", "verdict", "code"), [(10**9, "not known", 3), (237, "does not fit", 1)])
def test_without_formulas_nothing_bounds_the_activations(memory: int, verdict: str, code: int) -> None:
    # By hand: weights 2 x 40 + 14 + 72 = 166, cache 72.
    found = api.fits(toy(), memory=memory)
    assert (found.certain_bytes, found.activations_bytes, found.bound_bytes) == (238, None, None)
    assert (found.verdict, found.exit_code, found.limits) == (verdict, code, ())
    assert "Only formulas bound activations" in fits_text(found)


def test_without_a_formula_the_graph_says_what_is_live() -> None:
    """3 rows of 16 numbers, 192 bytes, are given back once there are 3 x 32; beside these, 384 bytes, their ReLU."""
    found = api.fits("docs/examples/my_model.py:make", memory=3_232 + 768)
    assert (found.weights_bytes, found.live_bytes, found.live_source) == (3_232, 768, "graph")
    assert (found.verdict, found.exit_code) == ("fits", 0)
    assert "the exported graph of a stage holds at once" in fits_text(found)
    less = api.fits("docs/examples/my_model.py:make", memory=3_232 + 767)
    assert (less.verdict, less.exit_code) == ("does not fit", 1)
    # Weights that do not fit alone need no graph.
    assert api.fits("docs/examples/my_model.py:make", memory=3_231).live_bytes is None


def test_scores_that_are_written_out_are_no_small_thing() -> None:
    # 32 heads, 32,768 x 32,768 scores of 2 bytes: 68.7 GB in one tensor, of which a layer has several.
    found = api.fits("llama-3.2-1b@document,text_tokens=32768,attention=eager", memory="80GB")
    scores = 32 * 32768**2 * 2
    assert (found.activations_bytes or 0) > 5 * scores  # at least five at once, where softmax is in float32
    assert (found.verdict, found.exit_code) == ("does not fit", 1)
    # The eager peak of that run, by `capture --peaks`, is 347.63 GB: the bound is one of modules as written. Its graph
    # holds the scores in 16 bits and, for the softmax, twice in 32.
    assert (found.bound_bytes or 0) > 347_630_000_000
    assert 5 * scores < (found.live_bytes or 0) < 347_630_000_000


def peak(stage: str, call: str, size: int | None) -> CallPeaks:
    """One call whose graph holds less than its module."""
    if size is None:
        return CallPeaks(stage, call, "", Peak(0, "", "", ()), None)
    tensor = LiveTensor("add", (size,), "uint8", size, "add", "")
    held = Peak(size, "add", "", (tensor,))
    return CallPeaks(stage, call, "", Peak(0, "", "", ()), held, (GapPart("held", size, tensor),))


PEAKS = (
    peak("sam", "global", 500), peak("sam", "crops", 300), peak("clip", "global", 50), peak("decode", "steps", 90),
)  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "verdict", "said"),
    [
        (1106, "fits", "Fits into 1,106 B with the peaks of all stages at once"),
        (1105, "not known", "not the peaks of all stages at once"),
        (666, "not known", ""),
        (665, "does not fit", "weights and the largest peak alone are more"),
        (237, "does not fit", "weights and cache alone are more"),
    ],
)
def test_peaks_of_a_capture_by_hand(memory: int, verdict: str, said: str) -> None:
    # Weights 166: at least 166 + 500, at most 166 + 500 + 300 + 50 + 90. Weights and cache are 238.
    found = api.fits(replace(toy(), peaks=PEAKS), memory=memory)
    assert (found.peak_bytes, found.least_bytes, found.most_bytes) == (500, 666, 1106)
    assert [(s.peak_bytes, s.peaks_bytes) for s in found.stages] == [(500, 800), (50, 50), (90, 90)]
    assert found.verdict == verdict
    assert said in fits_text(found)
    assert "940" not in fits_text(found)  # of all stages: only with the weights
    assert from_data(to_data(FITS, found), FITS, where="it", make_again="") == found


@pytest.mark.parametrize("peaks", [(*PEAKS[:3], peak("decode", "steps", None)), PEAKS[:3]])
def test_where_one_peak_is_not_known_the_others_are_held(peaks: tuple[CallPeaks, ...]) -> None:
    for memory, verdict in ((666, "not known"), (665, "does not fit")):
        found = api.fits(replace(toy(), peaks=peaks), memory=memory)
        assert (found.peak_bytes, found.least_bytes, found.most_bytes) == (500, 666, None)
        assert found.verdict == verdict
        assert "Some peaks are not known" in fits_text(found)


def test_one_call_without_a_peak_hides_no_other_of_its_stage() -> None:
    found = api.fits(replace(toy(), peaks=(peak("sam", "global", 5000), peak("sam", "crops", None))), memory=722)
    assert (found.least_bytes, found.verdict, found.exit_code) == (5166, "does not fit", 1)


def test_what_a_stage_was_given_is_not_held_for_certain() -> None:
    # A step that is run alone has the cache from before beside the one that it makes; in a run it is gone.
    keys, made = (LiveTensor(n, (90,), "uint8", 90, op, "") for n, op in (("keys.0", ""), ("cat", "aten.cat")))
    held = Peak(180, "aten.cat", "", (keys, made))
    found = api.fits(replace(toy(), peaks=(CallPeaks("decode", "steps", "", None, held),)), memory=10**9)
    assert (found.stages[2].peak_bytes, found.stages[2].peaks_bytes) == (90, 180)
    assert found.least_bytes == 166 + 90


def test_eager_peaks_do_not_decide_beside_a_live_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of Llama 3.1 8B holds 512 tokens of logits and cache at once; its modules hold 1,000 B more.

    At least as modules: weights, buffers and the largest peak. At most: both peaks, the 700 B of decode beside.
    """
    live = 512 * PROMPT
    peaks = peak("prefill", "prompt", live + 1000), peak("decode", "steps", 700)
    of = replace(api.capture("llama-3.1-8b", sources=("analytic",)), peaks=peaks)
    for memory, verdict in ((LASTING + live, "fits"), (LASTING + live - 1, "does not fit")):
        found = api.fits(of, memory=memory)
        assert found.verdict == api.fits("llama-3.1-8b", memory=memory).verdict == verdict
        assert (found.least_bytes, found.most_bytes) == (LASTING + live, LASTING + live)
        rows = [" ".join(line.split()) for line in fits_text(found).splitlines()]
        for name, held in (("live", live), ("largest", live + 1000), ("all", live + 1700)):
            said = f"weights, buffers and {name} peak{'s' if name == 'all' else ''} {LASTING + held:,} "
            assert any(row.startswith(said) for row in rows), said
    monkeypatch.setattr(Fits, "least_bytes", property(lambda found: LASTING + live + 1))
    with pytest.raises(Bug, match="counted in another way"):
        api.fits(of, memory=10**12)


def test_a_folder_tells_its_peaks(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text(json.dumps(to_data(CAPTURE, replace(toy(), peaks=PEAKS))))
    for given in (tmp_path, tmp_path / "capture.json"):
        assert api.fits(given, memory=1106).most_bytes == 1106


def test_what_is_not_known_is_no_yes() -> None:
    made = toy()
    ledger = made.ledger("analytic")
    nodes = tuple(
        replace(n, costs={**n.costs, "kv_cache_bytes": None}) if n.module == "text.attn" else n for n in ledger.nodes
    )
    found = api.fits(replace(made, ledgers=(replace(ledger, nodes=nodes),)), memory=10**9)
    assert (found.activations_bytes, found.bound_bytes, found.verdict) == (None, None, "not known")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("80GB", 80 * 10**9),
        ("80 GiB", 80 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("12", 12),
        ("12 B", 12),
        ("2kB", 2000),
        ("8.03e9", 8_030_000_000),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_size(text, "--memory") == number


@pytest.mark.parametrize("text", ["", "GB", "80G", "-1GB", "80gb", "1e-9", "0GB", "1.5B", "80GBs"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(BadInput, match=r"invalid memory size|not a whole number of bytes") as caught:
        parse_size(text, "--memory")
    assert caught.value.where == "--memory"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "neither a device nor a memory size is given"),
        ({"on": "h100"}, "no such device"),
        ({"memory": "x"}, "invalid memory size"),
    ],
)
def test_wrong_input(given: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        api.fits("llama-3.1-8b", **given)


def test_the_outputs(golden: Golden, tmp_path: Path, llama: Fits) -> None:
    done = costproof("fits", "llama-3.1-8b", "--on", "h100-sxm", cwd=tmp_path)
    assert done.code == 0
    golden("cli/fits.txt", done.stdout)
    golden("cli/fits.md", costproof("fits", "llama-3.1-8b", "--on", "h100-sxm", "-f", "md", cwd=tmp_path).stdout)
    data = json.loads(costproof("fits", "llama-3.1-8b", "--on", "h100-sxm", "-f", "json", cwd=tmp_path).stdout)
    assert from_data(data, FITS, where="it", make_again="") == llama
    assert costproof("fits", "llama-3.1-70b", "--on", "h100-sxm", cwd=tmp_path).code == 1
