"""``make gpu-check``: its plan, its budget, its page, and that a step which hangs or fails ends no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copy
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import gpu
from benchmarks.flash_kernels import kernel_files, stubs
from benchmarks.gpu import Budget, Part, Step, carry_out, plan
from benchmarks.gpu_page import KINDS, TABLES, Page, beside, read, renew, sections
from benchmarks.gpu_steps import STEPS, clocks, held, timed, too_little
from benchmarks.gpu_summary import SPLIT, counts, goals, parts, peaks, ranks, times
from benchmarks.requested import Requested

import costproof
from costproof.run.request import request
from costproof.tracers import replay

ROOT = Path(__file__).parents[2]


class Clock:
    """A clock that steps move."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def step(what: str, guess: float, *, kernels: bool = False) -> Step:
    return Step(what, "counts", {}, guess, kernels)


def carried_out(
    seconds: float, parts: list[Part], takes: Callable[[Step], float], kernels: str | None = ""
) -> tuple[list[str], list[str]]:
    """What ran, in order, and what was left with the reason."""
    clock = Clock()
    ran: list[str] = []

    def execute(part: str, steps: Sequence[Step], limit: float) -> None:
        ran.extend(one.what for one in steps)
        clock.time += min(max(map(takes, steps)), limit)

    left = carry_out(parts, Budget(seconds, clock), execute, lambda wait: kernels)
    return ran, [f"{one.what}: {why}" for _, one, why in left]


def test_every_part_gets_its_share_and_hands_on_what_it_leaves() -> None:
    parts = [
        Part("counts", 0.5, tuple(step(f"c{i}", 10) for i in range(8))),
        Part("times", 0.5, (step("t0", 10), step("t1", 10))),
    ]
    # 100 s: five counts in 50 s, both times in 20 s, and the 30 s that are left for the three counts that had to wait.
    ran, left = carried_out(100, parts, lambda one: 10)
    assert ran == ["c0", "c1", "c2", "c3", "c4", "t0", "t1", "c5", "c6", "c7"]
    assert left == []


def test_steps_abreast_take_as_long_as_the_longest() -> None:
    steps = (step("a", 10), step("b", 30), step("c", 10), step("d", 10, kernels=True), step("e", 10))
    parts = [Part("counts", 0.5, steps, abreast=2), Part("times", 0.5, (step("t", 10),))]
    # a and b in 30 s, c and d in 10 s; e would end at 50 s, after the 45 s of its part: t runs, then e.
    ran, left = carried_out(90, parts, lambda one: one.guess)
    assert (ran, left) == (["a", "b", "c", "d", "t", "e"], [])
    assert carried_out(90, parts, lambda one: one.guess, "no nvcc")[0] == ["a", "b", "c", "t", "e"]


def test_steps_are_expected_to_take_what_those_before_took() -> None:
    parts = [Part("counts", 1.0, (step("a", 10), step("b", 20), step("c", 10)))]
    # a takes 25 s, 2.5 times as long as guessed: b would take 50, c 25.
    ran, left = carried_out(60, parts, lambda one: 25)
    assert ran == ["a", "c"]
    assert left == ["b: takes about 50 s; 10 s were left"]


def test_a_step_is_stopped_in_time() -> None:
    parts = [Part("counts", 0.2, (step("hangs", 20),)), Part("times", 0.8, (step("t", 20),))]
    ran, left = carried_out(200, parts, lambda one: 10_000 if one.what == "hangs" else 20)
    assert (ran, left) == (["hangs", "t"], [])


def test_steps_wait_for_the_kernels_and_say_why_they_did_not_run() -> None:
    parts = [Part("counts", 0.5, (step("flash", 10, kernels=True), step("sdpa", 10)))]
    assert carried_out(100, parts, lambda one: 10)[0] == ["flash", "sdpa"]
    assert carried_out(100, parts, lambda one: 10, "no nvcc") == (["sdpa"], ["flash: no nvcc"])
    unfinished = "flash: FlashAttention's kernels were not built in time"
    assert carried_out(100, parts, lambda one: 10, None) == (["sdpa"], [unfinished])


@pytest.mark.parametrize("run", ["cpu", "cuda"])
@pytest.mark.parametrize("small", [False, True])
def test_the_plan_has_only_steps_that_exist(run: str, small: bool, tmp_path: Path) -> None:
    parts = plan(run, tmp_path, small=small)
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert {one.run for part in parts for one in part.steps} <= STEPS.keys()
    assert all(len({one.what for one in part.steps}) == len(part.steps) for part in parts)
    for one in (one for part in parts for one in part.steps if "choices" in one.choices):
        request(one.choices["target"], **one.choices["choices"])  # its settings exist


def test_a_page_and_its_rows_keep_the_part_of_the_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "gpu.md"
    for kind, preset in (("cpu", "tiny"), ("cuda", "small"), ("cpu", "base")):
        page = Page(kind, path, budget="Within 10 minutes.")
        page.take({"kind": "row", "table": "counts", "value": [preset, None, "sdpa", 2, "Exact | all."]})
        page.write()
    text = path.read_text(encoding="utf-8")
    begin, end = text.index("\n## On a GPU"), text.index("\n## On a processor")
    assert begin < text.index("| small |") < end < text.index("| base |")
    assert "| tiny |" not in text
    assert (tmp_path / "gpu-counts.csv").read_text(encoding="utf-8") == (
        "on,model,preset,attention,layers,verdict\ncuda,small,,sdpa,2,Exact | all.\ncpu,base,,sdpa,2,Exact | all.\n"
    )
    Page("cpu", path).write()  # a run that has nothing yet
    assert list(read(tmp_path / "gpu-counts.csv")) == ["cuda"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_in_docs_is_what_its_files_sum_up_to(kind: str, tmp_path: Path) -> None:
    page = ROOT / "docs/gpu.md"
    own = dict(sections(page.read_text(encoding="utf-8")))[KINDS[kind]]
    text = "\n".join(own)
    rows = {name: read(beside(page, name)).get(kind, []) for name in TABLES}
    for name, one in TABLES.items():
        assert not rows[name] or "\n".join(["", *one.summary(rows[name]), ""]) in text
        assert bool(rows[name]) == (f"[gpu-{name}.csv]" in text)
    for goal in goals(kind, {}, rows["times"]):
        assert goal[3] == "unknown" or f"| {' | '.join(goal)} |" in text
    for path in (page, *(beside(page, name) for name in TABLES)):
        copy(path, tmp_path)
    renew(tmp_path / "gpu.md", kind, own, rows)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (page.parent / path.name).read_bytes()


def time(form: str, stage: str, predicted: int | None, measured: int | None = 100, **more: str) -> dict[str, str]:
    """A row of a time, with its error."""
    off = "" if predicted is None or measured is None else str(abs(predicted - measured) / measured)
    numbers = {"predicted": str(predicted or ""), "measured": str(measured or ""), "off": off}
    what = {"model": "ocr", "attention": "sdpa", "layers": "2", "stage": stage, "form": form}
    return dict.fromkeys(TABLES["times"].head, "") | what | numbers | more


def test_goals_are_judged_by_stage() -> None:
    # sam: 5 %, 30 % and 1 %, the median 5 %; clip: 30 %; as a graph 11 %.
    errors = (("sam@page", 105), ("clip", 130), ("sam", 70), ("sam", 101))
    figures: dict[str, list[dict[str, Any]]] = {
        "counts": [{"good": True}, {"good": False}],
        "floor": [{"good": True, "rows": 5}],
    }
    timed = [*(time("eager", *one) for one in errors), time("graph", "sam", 111)]
    assert list(goals("cuda", figures, timed)) == [
        ("counts exact or explained", "all", "1 of 2", "NO"),
        ("peaks to the byte or by named workspaces", "all", "0 of 0", "unknown"),
        ("times below their floor", "0", "0 of 5", "yes"),
        ("eager: median error by stage", "≤ 20%", "30.0% in clip, largest of 2", "NO"),
        ("graph: median error by stage", "≤ 10%", "11.0% in sam, largest of 1", "NO"),
    ]
    assert list(goals("cuda", {}, timed[::2]))[3][2:] == (
        "30.0% in sam, largest of 1",
        "NO",
    )  # of two the larger one
    assert list(goals("cuda", {}, timed[:1]))[3:] == [
        ("eager: median error by stage", "≤ 20%", "5.0% in sam, largest of 1", "yes"),
        ("graph: median error by stage", "≤ 10%", "none measured", "unknown"),
    ]
    ranked = [time("eager", "sam", 1, 2), time("eager", "clip", 3)]
    found = list(goals("cpu", {}, ranked))
    assert found[-1] == ("rank correlation of predicted and measured", "0.99", "1.0000", "yes")


def test_times_are_summed_up_by_stage_and_form() -> None:
    rows = [
        *(time("eager", stage, p) for stage, p in (("sam", 105), ("clip", 130), ("sam", 70), ("sam", 101))),
        time("graph", "sam", None, None, why="it waits"),
        time("graph", "clip", 90) | {"of peak": "0.25"},
        time("compiled", "sam", None, 50),
        time("compiled", "clip", None, None, why="not tried"),
        time("never run", "clip", 120, least="101"),
        time("never run", "sam", 110, least="99"),
    ]
    # eager: 105 + 130 + 70 + 101 = 406 of 400, and never run 230 of 200; 100 is not in 101 to 120, but in 99 to 110.
    table = [
        "| stage | eager | graph | never run | of peak (MFU), at most |",
        "|---|---|---|---|---:|",
        "| sam | 5.0%, at most 30.0% (3) |  | 10.0% (1) | unknown |",
        "| clip | 30.0% (1) | 10.0% (1) | 20.0% (1) | 25.0% |",
    ]
    said = """
- eager: predicted / measured, all added: 1.015; worst: 30.0% (ocr, sdpa, 2, clip), 30.0% (ocr, sdpa, 2, sam), \
5.0% (ocr, sdpa, 2, sam).
- graph: predicted / measured, all added: 0.900; worst: 10.0% (ocr, sdpa, 2, clip); not measured: 1 sam (it waits).
- compiled: 1 measured, none predicted.
- never run: predicted / measured, all added: 1.150; 1 of 2 inside the interval; worst: 20.0% (ocr, sdpa, 2, clip), \
10.0% (ocr, sdpa, 2, sam)."""
    assert times(rows) == [*table, *said.splitlines()]


def test_counts_peaks_and_parts_are_summed_up() -> None:
    def count(preset: str, verdict: str) -> dict[str, str]:
        return dict(zip(TABLES["counts"].head, ("ocr", preset, "sdpa", "2", verdict), strict=True))

    exact, named = count("tiny", "Exact: all 2."), count("base", "Explained: all but 1.")
    row = "| ocr | sdpa | 2 | base, tiny | 1 of 2 |"
    assert counts([exact, named])[2:] == [row, "", "- ocr, sdpa, 2, base: Explained: all but 1."]

    def peak(stage: str, *sizes: str, which: str = "") -> dict[str, str]:
        return dict(zip(TABLES["peaks"].head, ("ocr", "tiny", "sdpa", "2", stage, *sizes, which), strict=True))

    rows = [
        peak("sam, page", "10", "10", "12", "12", "512", "1536"),
        peak("sam, crops", "1000", "3000", "12", "12", "1024", "3072", which="workspace of a 1500; results of b 500"),
        peak("clip", "10", "9", "12", "12", "512", "512"),
        peak("decode", "", "9", "", "12", "", "512"),
    ]
    assert peaks(rows)[2:] == [
        "| sam | 1 of 2 | 2,000 | workspace of a; results of b |",
        "| clip | 0 of 1 | -1 | not named |",
        "| decode | 0 of 1 | unknown | not named |",
        "",
        "The allocator gave at most 1,526 bytes more than it was asked for.",
    ]

    def part(binds: str, **split: str) -> dict[str, str]:
        return dict.fromkeys(SPLIT, "0") | {"stage": "sam@page", "binds": binds} | split

    # Of 10, 20 and 10 ms: dispatch 60 %, 70 % and 80 %, the floor 40 %, 55 % and 30 %, the residual 0, -25 % and -10 %.
    split = [
        part("host", dispatch="6", floor="4"),
        part("device", dispatch="14", floor="11", residual="-5"),
        part("host", dispatch="8", floor="3", residual="-1"),
    ]
    row = "| sam | {} | dispatch 70%, floor 40%, residual -10% |"
    assert parts(split)[2:] == [row.format("2 of 3")]
    assert parts([*split, part("", python="")])[2:] == [row.format("2 of 4")]


def test_equal_values_share_their_places() -> None:
    # 1 | 5 5 | 7: places 0, (1 + 2) / 2 twice, 3
    assert ranks([5, 1, 7, 5]) == [1.5, 0, 3, 1.5]


def test_what_the_device_holds_beyond_the_tensors() -> None:
    one = Requested("sam", graph=1_000, program=1_004, eager=None, module=1_500, rounded=1_024, allocated=1_536)
    assert held(one) == ("sam", 1_000, 1_004, None, 1_500, 1_024, 1_536, "")
    assert len(held(one)) == len(TABLES["peaks"].head) - 4
    named = replace(one, of_program=(("workspace of aten.mm.default", 4),))
    assert held(named)[-1] == "workspace of aten.mm.default 4"
    assert named.unnamed == (0, None)


def test_a_run_that_holds_less_than_liveness_says_is_wrong() -> None:
    one = Requested("sam", graph=1_000, program=999, eager=None, module=1_500, rounded=1_024, allocated=1_024)
    assert too_little(one) == ["sam: the program asked for 999 bytes, of which 1,000 are alive at once"]
    assert too_little(replace(one, program=1_000)) == []
    assert len(too_little(replace(one, eager=1_501, allocated=512))) == 3
    # A kernel of the GPU may return less than that of a processor.
    assert too_little(replace(one, of_program=(("results of aten.sdpa.default", -1),))) == []


def test_a_stage_has_a_prediction_in_each_form() -> None:
    # 50 % of the peak in 2 ms are 100 % in 1 ms; predicted 1.5 ms eager, 25 % off, and 1.1 ms as a graph, 10 % off.
    bound = SimpleNamespace(seconds="0.000001")
    ran = SimpleNamespace(predicted=1_100_000, time=SimpleNamespace(median=1_000_000), why="")
    row: Any = SimpleNamespace(
        run="page", stage="sam", invocation="global", floor=bound, roof=bound, replay=900_000, of_peak="1/2",
        measured=SimpleNamespace(median=2_000_000), predicted=1_500_000, graph=ran,
        compiled=SimpleNamespace(predicted=None, time=None, why="it synchronises"),
    )  # fmt: skip
    eager, graph, compiled = timed(row)
    bounds = ["0.001000", "0.001000", None]
    assert eager == ["page", "sam@global", "eager", *bounds, "1.500000", "2.000000", "0.250000", "0.500000", ""]
    assert graph == ["page", "sam@global", "graph", *bounds, "1.100000", "1.000000", "0.100000", "1.000000", ""]
    assert compiled == ["page", "sam@global", "compiled", *bounds, None, None, None, None, "it synchronises"]
    assert len(eager) == len(TABLES["times"].head) - 3
    row.clocks = None
    assert len(clocks(row)) == len(TABLES["parts"].head) - 3 - len(SPLIT)


SPEAKS = """
import json, sys, time
print(json.dumps({"kind": "ready", "value": None}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)["run"]
    print(json.dumps({"kind": "text", "value": asked}), flush=True)
    if asked == "hangs":
        time.sleep(60)
    if asked == "dies":
        raise SystemExit
    print(json.dumps({"kind": "end", "value": None}), flush=True)
"""


def test_a_step_that_hangs_or_dies_ends_no_other() -> None:
    worker = gpu.Worker([], command=["-c", SPEAKS])

    def messages(run: str, seconds: float) -> list[str]:
        return [message["value"] for message in worker.run(replace(step("", 1), run=run), seconds)]

    try:
        assert messages("runs", 20) == ["runs", None]
        with pytest.raises(TimeoutError, match="stopped after"):
            messages("hangs", 0.3)
        with pytest.raises(RuntimeError, match="its process ended"):
            messages("dies", 20)
        assert messages("runs", 20) == ["runs", None]
    finally:
        worker.stop()


def test_what_happened_to_a_step_is_a_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __init__(self, paths: object) -> None: ...

        def run(self, one: Step, seconds: float) -> Any:
            if one.run == "machine":
                yield {"kind": "text", "value": "a processor"}
                yield {"kind": "error", "value": "Incomplete: the device is gone"}
            else:
                raise TimeoutError(f"stopped after {seconds:.0f} s")

        def stop(self) -> None: ...

    monkeypatch.setattr(gpu, "Worker", Fails)
    page = tmp_path / "gpu.md"
    assert gpu.main(["--small", "--page", str(page), "--work", str(tmp_path), "--minutes", "30"]) == 1
    text = page.read_text(encoding="utf-8")
    assert "- everything on a GPU: --small was given" in text
    assert "- machine, doctor and rates ended in an error: Incomplete: the device is gone" in text
    assert "- peaks, llama ended in an error: stopped after " in text
    assert "| times below their floor | 0 | 0 of 0 | unknown |" in text


def test_counts_on_a_gpu_run_abreast_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[int, list[str]] = {}

    class Runs:
        def __init__(self, paths: object) -> None: ...

        def run(self, one: Step, seconds: float) -> Any:
            ran.setdefault(id(self), []).append(one.run)
            yield {"kind": "row", "table": "counts", "value": [one.what, "", "", "", "Exact"]}

        def stop(self) -> None: ...

    monkeypatch.setattr(gpu, "Worker", Runs)
    monkeypatch.setattr(gpu, "device_here", lambda *, small: ("cuda", ""))
    monkeypatch.setattr(gpu, "find_spec", lambda name: object() if name == "flash_attn" else None)
    page = tmp_path / "gpu.md"
    assert gpu.main(["--page", str(page), "--work", str(tmp_path)]) == 0
    text = page.read_text(encoding="utf-8")
    steps = [one for part in plan("cuda", tmp_path, small=False) for one in part.steps]
    for one in steps:
        reason = f"{one.what}: FlashAttention's kernels are not there, and no sources were given (--flash-attn)"
        assert (reason in text) == one.kernels
    assert sum(map(len, ran.values())) == sum(not one.kernels for one in steps)
    assert len(ran) == gpu.ABREAST
    # What is timed runs in the first process alone.
    assert [mine for mine in ran.values() if "times" in mine] == [next(iter(ran.values()))]


def test_kernels_that_are_not_built_raise() -> None:
    assert kernel_files([128]) == [
        "flash_fwd_hdim128_bf16_sm80.cu", "flash_fwd_hdim128_bf16_causal_sm80.cu",
        "flash_fwd_split_hdim128_bf16_sm80.cu", "flash_fwd_split_hdim128_bf16_causal_sm80.cu",
    ]  # fmt: skip
    # 3 functions, 2 dtypes, 6 widths, causal or not, less the four that are built.
    assert stubs([128]).count("TORCH_CHECK") == 3 * 2 * 6 * 2 - 4
    assert "run_mha_fwd_<cutlass::bfloat16_t, 128" not in stubs([128])
    assert "run_mha_bwd_<cutlass::bfloat16_t, 128" in stubs([128])


def test_only_what_a_gpu_needs_of_flash_attention_is_fetched_ahead() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ngpu-check: $(VENV)/dev $(VENV)/flash $(VENV)/flash-sources " in recipe
    target = recipe.split("\n$(VENV)/flash-sources:")[1].split("\n\n")[0]
    assert "nvcc" in target
    assert "download" in target


def test_a_gpu_sleeps_until_the_call_is_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def elapsed_time(self, other: object) -> float:
            return 0.25

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: done.append("synchronize"))
    monkeypatch.setattr("torch.cuda._sleep", lambda cycles: done.append("sleep"))
    assert replay._clock("cuda", False, 100_000, 0, lambda: done.append("call"))[0] == 150_000
    assert done == ["event", "event", "synchronize", "sleep", "event", "call", "event", "synchronize"]


@pytest.mark.usefixtures("one_process")
def test_counts_are_judged_apart_from_the_format_of_a_checkpoint(tmp_path: Path) -> None:
    """The run has the dtype that was asked for, so that a published checkpoint in fp8 leaves nothing uncounted."""
    file = dict(gpu.small_models(tmp_path))["deepseek-v3"]
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    one = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    file.write_text(json.dumps({**json.loads(file.read_text()), **one, "quantization_config": fp8}))
    choices: dict[str, Any] = {"run": "meta", "dtype": "bfloat16", "config": str(file), "text_tokens": 8}
    assert costproof.report("deepseek-v3", **choices).discrepancy.verdict == "exact"
    assert counted("deepseek-v3", choices) == ("figure", "counts", {"good": True})
    plain = dict(gpu.small_models(tmp_path))["llama"]
    plain.write_text(json.dumps({**json.loads(plain.read_text()), "num_hidden_layers": 1}))
    choices["config"] = str(plain)
    assert counted("llama", choices) == ("figure", "counts", {"good": True})


def counted(target: str, choices: dict[str, Any]) -> tuple[Any, ...]:
    """The last message of a count, after that of its row."""
    said: list[tuple[Any, ...]] = []
    STEPS["counts"](lambda kind, value=None, **more: said.append((kind, value, more)), target, choices)
    assert len(said[0][1]) == len(TABLES["counts"].head)
    return said[-1]
