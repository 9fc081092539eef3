"""Whether a run fits: bytes by hand, limits that are solved, three verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.estimate.memory import FITS, Fits, Limit, size
from costproof.ledger.capture import CAPTURE
from costproof.ledger.errors import BadInput
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peak
from costproof.ledger.schema import from_data, to_data
from costproof.reports.fits_text import fits_text
from tests.cli.running import costproof
from tests.conftest import Golden
from tests.reports.toy import toy

H100 = 80 * 10**9
# Llama 3.1 8B in bfloat16; bytes of a token: h = 2 x 4096, k = 2 x 8 x 128, m = 2 x 14336.
H, K, M = 8192, 2048, 28672
WEIGHTS = 2 * 8_030_261_248
TOKEN = 32 * 2 * K
"""Of keys and values."""
# Both norms, q, attention, out, down and both additions write h; k and v write k; gate, up, activation, product m.
WRITTEN = 32 * (8 * H + 2 * K + 4 * M) + 2 * H + 2 * 128256 + 2 * 2 * 128
"""With word, last norm, logits and angles."""


@pytest.fixture(scope="module")
def llama() -> Fits:
    return api.fits("llama-3.1-8b", on="h100-sxm")


def limit(found: Fits, setting: str, activations: bool) -> Limit:
    (one,) = (x for x in found.limits if (x.setting, x.activations) == (setting, activations))
    return one


def test_bytes_by_hand(llama: Fits) -> None:
    assert llama.weights_bytes == WEIGHTS == 16_060_522_496
    assert llama.cache_bytes == 513 * TOKEN == 67_239_936
    prefill, decode = llama.stages
    # The angles are the same for all sequences; there is one here.
    assert prefill.activations_bytes == 512 * WRITTEN == 3_159_883_776
    assert decode.activations_bytes == WRITTEN == 6_171_648
    assert llama.activations_bytes == 513 * WRITTEN
    assert llama.peak_bytes is None
    assert (llama.verdict, llama.exit_code) == ("fits", 0)


def test_limits_by_hand(llama: Fits) -> None:
    room = H100 - WEIGHTS
    angles = 513 * 2 * 2 * 128
    sequence = 513 * (TOKEN + WRITTEN) - angles
    assert limit(llama, "batch", False).at == room // (513 * TOKEN) + 1 == 951
    assert limit(llama, "batch", True).at == (room - angles) // sequence + 1 == 20
    # P tokens of text and one new one.
    assert limit(llama, "text_tokens", False).at == room // TOKEN == 487_819
    assert limit(llama, "text_tokens", True).at == room // (TOKEN + WRITTEN) == 10_144


def test_both_sides_of_a_limit(llama: Fits) -> None:
    fits, not_any_more = limit(llama, "batch", True).points
    assert (fits.at, not_any_more.at) == (19, 20)
    assert fits.bytes <= H100 < not_any_more.bytes
    for point in (fits, not_any_more):
        assert api.fits(f"llama-3.1-8b@chat,batch={point.at}", on="h100-sxm").bound_bytes == point.bytes


def test_a_length_that_the_model_does_not_take(llama: Fits) -> None:
    found = limit(llama, "text_tokens", False)
    assert found.outcome == "refused"  # 131,072 positions
    assert "longer than the model's context" in found.why
    assert [p.at for p in found.points] == [512]


@pytest.mark.parametrize(
    "target", ["deepseek-ocr@gundam:2x2", "deepseek-v2-lite", "gemma-3-270m", "t5-small", "clip-l-336", "gpt2"]
)
def test_limits_are_where_it_ends_to_fit(target: str) -> None:
    preset = "" if "@" in target else "@"
    whole = api.fits(target, memory=10**15)
    assert whole.bound_bytes is not None
    found = api.fits(target, memory=3 * whole.bound_bytes)
    one = limit(found, "batch", True)
    assert one.outcome == "from"
    assert one.at is not None
    for batch in (one.at - 1, one.at):
        held = api.fits(f"{target}{preset},batch={batch}", memory=3 * whole.bound_bytes)
        assert (held.verdict == "fits") == (batch < one.at)


def test_of_steps_the_last_is_held() -> None:
    # Latent attention makes keys and values anew in every step: the last writes most.
    many = api.fits("deepseek-v2-lite@chat,text_tokens=512,new_tokens=8", memory="80GB")
    last = api.fits("deepseek-v2-lite@chat,text_tokens=519,new_tokens=1", memory="80GB")
    first = api.fits("deepseek-v2-lite@chat,text_tokens=512,new_tokens=1", memory="80GB")
    assert many.stages[1].activations_bytes == last.stages[1].activations_bytes
    assert (first.stages[1].activations_bytes or 0) < (last.stages[1].activations_bytes or 0)
    assert many.cache_bytes == last.cache_bytes


@pytest.mark.parametrize(
    ("memory", "verdict", "code"),
    [(722, "fits", 0), (721, "not known", 3), (238, "not known", 3), (237, "does not fit", 1)],
)
def test_three_verdicts_on_a_capture_without_formulas_here(memory: int, verdict: str, code: int) -> None:
    # By hand: weights 2 x 40 + 14 + 72 = 166, cache 72; written 2 x (128 + 96) + 36 = 484.
    found = api.fits(toy(), memory=memory)
    assert (found.certain_bytes, found.bound_bytes) == (238, 722)
    assert (found.verdict, found.exit_code, found.limits) == (verdict, code, ())


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
def test_where_one_peak_is_not_known_the_bound_stands(peaks: tuple[CallPeaks, ...]) -> None:
    found = api.fits(replace(toy(), peaks=peaks), memory=722)
    assert (found.peak_bytes, found.least_bytes, found.most_bytes, found.verdict) == (None, 238, 722, "fits")


def test_a_folder_tells_its_peaks(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text(json.dumps(to_data(CAPTURE, replace(toy(), peaks=PEAKS))))
    for given in (tmp_path, tmp_path / "capture.json"):
        assert api.fits(given, memory=1106).most_bytes == 1106


def test_what_is_not_known_is_no_yes() -> None:
    made = toy()
    ledger = made.ledger("analytic")
    nodes = tuple(
        replace(n, costs={**n.costs, "output_bytes": None}) if n.module == "text.attn" else n for n in ledger.nodes
    )
    found = api.fits(replace(made, ledgers=(replace(ledger, nodes=nodes),)), memory=10**9)
    assert (found.activations_bytes, found.bound_bytes, found.verdict) == (None, None, "not known")


@pytest.mark.parametrize(
    ("text", "number"),
    [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("1.5GiB", 3 * 2**29), ("12", 12), ("12 B", 12), ("2kB", 2000)],
)
def test_sizes(text: str, number: int) -> None:
    assert size(text, "--memory") == number


@pytest.mark.parametrize("text", ["", "GB", "80G", "-1GB", "80gb", "1e9", "0GB", "1.5B", "80GBs"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(BadInput, match=r"not a size of a memory|not a whole number of bytes") as caught:
        size(text, "--memory")
    assert caught.value.where == "--memory"


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "no memory to fit into"), ({"on": "h100"}, "no such device"), ({"memory": "x"}, "not a size")],
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
