"""What a device settles, in a few minutes: ``make gpu-check``, which writes docs/gpu.md and the CSV files beside it.

The minutes are spent in the order of what is worth most: the machine, counts, peaks, times, random weights. Every part
has a share of them; a step that does not fit, hangs or fails is a line of the page and ends no other. Rows are written
as they come. With ``--small``, or where there is no GPU, all parts run on the processor with small models.

Exit 1 where sources differ, a time is below its floor, a goal is missed or a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.gpu_page import PAGE, Page

WORK: Final = Path("out/gpu-check")
OCR: Final = "deepseek-ocr"
PRESETS: Final = ("tiny", "small", "base", "large", "gundam", "gundam-m")
FLASH: Final = "flash_attention_2"
ABREAST: Final = 5
"""Counts and peaks that run at once beside a GPU: they are the work of one core of its host."""
PATIENCE: Final = 3
"""How many times as long as expected a step may take; LEAST is always allowed."""
LEAST: Final = {"cuda": 60.0, "cpu": 400.0}
"""Seconds, by the kind of device: a processor may be shared."""


@dataclass(frozen=True)
class Step:
    """Something that :mod:`benchmarks.gpu_steps` runs."""

    what: str
    run: str
    choices: Mapping[str, Any]
    guess: float
    """Seconds that it is expected to take, before others of its part have run."""
    kernels: bool = False
    """Whether it needs FlashAttention's kernels."""


@dataclass(frozen=True)
class Part:
    """Steps with a share of the time."""

    title: str
    share: float
    steps: tuple[Step, ...]
    abreast: int = 1
    """How many steps run at once, in processes of their own; 1 where they are timed."""

    def units(self) -> list[tuple[Step, ...]]:
        """Return the steps that run at once."""
        return [self.steps[i : i + self.abreast] for i in range(0, len(self.steps), self.abreast)]


def plan(run: str, folder: Path, *, small: bool) -> list[Part]:
    """The parts in the order of what is worth most."""
    machine = Step("doctor and rates", "machine", {"run": run, "folder": str(folder)}, 20)
    base: dict[str, Any] = {"run": run, "dtype": "bfloat16" if run == "cuda" else "float32"}

    def counts(target: str, guess: float, *, kernels: bool = False, **choices: Any) -> Step:
        what = ", ".join([target, *(str(v) for k, v in choices.items() if k != "config")])
        return Step(what, "counts", {"target": target, "choices": base | choices}, guess, kernels)

    def times(
        preset: str, guess: float, attention: str = "sdpa", ways: Sequence[str] = ("eager", "graph"), **choices: Any
    ) -> Step:
        every = base | {
            "preset": preset,
            "attention": attention,
            "profile": (3 if small else 5) if run == "cpu" else 20,
            **choices,
        }
        given = {"target": OCR, "choices": every, "folder": str(folder), "ways": list(ways)}
        cut = f"{choices['layers']} layers" if "layers" in choices else "whole"
        what = ", ".join([OCR, preset, attention, cut, *ways[2:]])
        return Step(what, "times", given, guess, attention == FLASH)

    if run == "cpu":
        whole = [] if small else [counts(OCR, 200, preset="tiny")]
        presets = ("tiny",) if small else ("tiny", "small", "gundam")
        return [
            Part("machine", 0.1, (machine,)),
            Part("counts", 0.4, tuple(
                [counts(OCR, 15, preset=p, attention="sdpa", layers=2) for p in presets]
                + [counts(target, 5, config=str(file)) for target, file in small_models(folder)] + whole
            )),
            Part("peaks", 0.1, (Step("llama", "allocations", {"case": "llama"}, 10),)),
            Part("times", 0.35, tuple(times(p, 40, layers=2) for p in presets)),
            Part("weights", 0.05, (Step("draw", "weights", {"run": run, "numbers": 2**26}, 5),)),
        ]  # fmt: skip
    cut: dict[str, Any] = {"layers": 2}

    def predicted(preset: str, guess: float) -> Step:
        given = {"target": OCR, "choices": base | {"preset": preset, "profile": 5}, "folder": str(folder)}
        return Step(f"{OCR}, {preset}, predicted", "predictions", given, guess)

    def peaks(preset: str, attention: str = "sdpa", **choices: Any) -> Step:
        given = {"target": OCR, "choices": base | {"preset": preset, "attention": attention, **choices}}
        return Step(f"{OCR}, {preset}, {attention}", "peaks", given, 20, attention == FLASH)

    return [
        Part("machine", 0.05, (machine,)),
        Part("counts", 0.4, (
            *(counts(OCR, 16, preset=p, attention="sdpa", **cut) for p in PRESETS),
            counts("llama-3.1-8b", 16, **cut),
            counts("qwen3-30b-a3b", 16, **cut),
            counts("deepseek-v3", 16, **cut),
            *(counts(OCR, 16, kernels=True, preset=p, attention=FLASH, **cut) for p in PRESETS),
            counts(OCR, 60, preset="tiny", attention="sdpa"),
            counts("deepseek-v3", 30, layers=4),
        ), ABREAST),
        Part("peaks", 0.1, (
            peaks("tiny", **cut), peaks("gundam", **cut), peaks("tiny", FLASH, **cut), peaks("base", "eager", **cut),
        ), ABREAST),
        Part("times", 0.42, (
            times("tiny", 30, layers=4), times("gundam", 35, layers=4), times("tiny", 45),
            predicted("tiny", 15), times("base", 35, layers=4),
            times("tiny", 60, ways=("eager", "graph", "compiled"), layers=2), times("tiny", 30, FLASH, layers=4),
            times("gundam", 60),
        )),
        Part("weights", 0.03, (Step("draw", "weights", {"run": run, "numbers": 2**31}, 8),)),
    ]  # fmt: skip


def small_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write configurations with grouped heads, experts and latent attention; their targets and files."""
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    }  # fmt: skip
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
    latent = {
        "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "q_lora_rank": 32,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
    }  # fmt: skip
    families: dict[str, dict[str, Any]] = {
        "llama": {},
        "qwen3-moe": {**experts, "num_experts": 8, "head_dim": 16},
        "deepseek-v3": {**experts, **latent},
    }
    for target, own in families.items():
        path = folder / f"{target}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"model_type": target.replace("-", "_"), **sizes, **own}), encoding="utf-8")
        yield target, path


@dataclass
class Budget:
    """The seconds of a run, by part, and how long steps take."""

    total: float
    now: Callable[[], float]
    least: float = LEAST["cuda"]
    began: float = field(init=False)
    taken: dict[str, list[float]] = field(default_factory=dict)
    """Part -> how many times as long as guessed its steps took."""

    def __post_init__(self) -> None:
        self.began = self.now()

    @property
    def room(self) -> float:
        """Seconds that are left."""
        return self.total - (self.now() - self.began)

    def expected(self, part: str, step: Step) -> float:
        """Seconds that a step will take, by the steps of its part that ran."""
        return step.guess * median(self.taken.get(part, [1.0]))

    def took(self, part: str, step: Step, seconds: float) -> None:
        """Note how long a step took."""
        self.taken.setdefault(part, []).append(seconds / step.guess)


Execute = Callable[[str, Sequence[Step], float], None]
"""Runs some steps of a part at once, for at most some seconds."""


def carry_out(
    parts: Sequence[Part],
    budget: Budget,
    execute: Execute,
    kernels: Callable[[float], str | None],
) -> Iterator[tuple[str, Step, str]]:
    """Run what fits, and yield what does not, with the reason.

    The first step of a part runs if there is time at all; the others while the part has time left, which it hands on.
    What was left out or had to wait is tried again at the end, in order.

    Args:
        kernels: waits some seconds for FlashAttention's kernels; returns why there are none, an empty text if they are
            there, and ``None`` if they are still being built.
    """
    late: list[tuple[str, Step]] = []

    def done(part: str, steps: Sequence[Step]) -> bool:
        longest = max(steps, key=lambda step: step.guess)
        wanted = budget.expected(part, longest)
        if wanted > budget.room:
            return False
        begin = budget.now()
        execute(part, steps, min(budget.room, max(budget.least, PATIENCE * wanted)))
        budget.took(part, longest, budget.now() - begin)
        return True

    end = budget.began
    for part in parts:
        end += part.share * budget.total
        for i, unit in enumerate(part.units()):
            ready: list[Step] = []
            for step in unit:
                why = kernels(0) if step.kernels else ""
                if why:
                    yield part.title, step, why
                elif why is None:
                    late.append((part.title, step))
                else:
                    ready.append(step)
            expected = max((budget.expected(part.title, step) for step in ready), default=0)
            if ready and ((i and budget.now() + expected > end) or not done(part.title, ready)):
                late += [(part.title, step) for step in ready]
    for title, step in sorted(late, key=lambda one: one[1].kernels and kernels(0) is None):
        why = kernels(max(0.0, budget.room - budget.expected(title, step))) if step.kernels else ""
        if why is None:
            why = "FlashAttention's kernels were not built in time"
        room = budget.room
        if why or not done(title, [step]):
            yield title, step, why or f"takes about {budget.expected(title, step):.0f} s; {room:.0f} s were left"


class Worker:
    """The process that runs steps; a new one is started where it hangs or ends."""

    def __init__(self, paths: Sequence[Path], command: Sequence[str] = ("-m", "benchmarks.gpu_steps")) -> None:
        self._paths, self._command = paths, command
        self._process: subprocess.Popen[str] | None = None
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def start(self, seconds: float) -> None:
        """Start the process and wait until it has imported everything."""
        if self._process is not None and self._process.poll() is None:
            return
        paths = [*map(str, self._paths), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, *self._command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}, start_new_session=True,
        )  # fmt: skip
        self._messages = queue.Queue()
        threading.Thread(target=_read, args=(self._process, self._messages), daemon=True).start()
        for message in self._until(seconds):
            if message["kind"] == "ready":
                return

    def run(self, step: Step, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the messages of a step; the last is ``end``, or ``error`` with the reason.

        Raises:
            TimeoutError: it ran longer than it may, and its process was ended.
            RuntimeError: its process ended.
        """
        begin = time.monotonic()
        self.start(seconds)
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"run": step.run, "choices": step.choices}) + "\n")
        self._process.stdin.flush()
        for message in self._until(seconds - (time.monotonic() - begin)):
            yield message
            if message["kind"] == "end":
                return

    def _until(self, seconds: float) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + seconds
        while True:
            try:
                message = self._messages.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise TimeoutError(f"stopped after {seconds:.0f} s") from None
            if message is None:
                self.stop()
                raise RuntimeError("its process ended")
            yield message

    def stop(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def _read(process: subprocess.Popen[str], into: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        into.put(json.loads(line))
    into.put(None)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Kernels:
    """FlashAttention's kernels: there, built in the background, or not to be had."""

    def __init__(self, sources: Path | None, folder: Path) -> None:
        self.path = folder
        self.said = ""
        self._process: subprocess.Popen[str] | None = None
        self._began = time.monotonic()
        self._why: str | None = None
        if find_spec("flash_attn") is None:
            self._why = "flash-attn is not installed"
        elif find_spec("flash_attn_2_cuda") is not None or any(folder.glob("flash_attn_2_cuda*.so")):
            self._why, self.said = "", "FlashAttention's kernels were there."
        elif sources is None or not (sources.is_file() or (sources / "csrc").is_dir()):
            self._why = "FlashAttention's kernels are not there, and no sources were given (--flash-attn)"
        elif shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
            self._why = "FlashAttention's kernels are not there, and neither is nvcc"
        else:
            arch = _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").replace(".", "")
            jobs = max(1, (os.cpu_count() or 1) - 2)
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "benchmarks.flash_kernels", str(sources), str(folder),
                    "--arch", arch.split()[0] if arch else "90", "--jobs", str(jobs),
                ],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float) -> str | None:
        """Return why there are none, an empty text if they are there, ``None`` if they are still being built."""
        if self._process is None:
            return self._why
        try:
            _, text = self._process.communicate(timeout=max(0.01, seconds))
        except subprocess.TimeoutExpired:
            return None
        took = time.monotonic() - self._began
        self._why = "" if not self._process.returncode else f"FlashAttention's kernels were not built: {text.strip()}"
        self.said = self._why or f"FlashAttention's kernels were built in {took:.0f} s, in the background."
        self._process = None
        return self._why

    def stop(self) -> None:
        """End the build."""
        if self._process is not None:
            _end(self._process)


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def device_here(*, small: bool) -> tuple[str, str]:
    """``cuda`` or ``cpu``, and why it is not ``cuda``; asked of the driver, since torch is not imported here."""
    if small:
        return "cpu", "--small was given"
    found = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return ("cuda", "") if found else ("cpu", "there is no NVIDIA GPU here")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time for everything (default: 10)")
    parser.add_argument("--small", action="store_true", help="small models on the processor, in a few minutes")
    parser.add_argument("--page", type=Path, default=PAGE, help=f"page to write, CSV files beside it (default: {PAGE})")
    parser.add_argument("--work", type=Path, default=WORK, help=f"folder of what is made on the way (default: {WORK})")
    parser.add_argument("--flash-attn", type=Path, help="sdist of flash-attn, to build its kernels from")
    options = parser.parse_args(arguments)
    run, why = device_here(small=options.small)
    options.work.mkdir(parents=True, exist_ok=True)
    page = Page(run, options.page, budget=f"Within {options.minutes:g} minutes.")
    if why:
        page.left.append(f"everything on a GPU: {why}")
    kernels = Kernels(options.flash_attn if run == "cuda" else None, options.work / "kernels")
    workers = [Worker([options.work / "kernels"]) for _ in range(ABREAST)]
    parts = plan(run, options.work, small=options.small)
    budget = Budget(options.minutes * 60, time.monotonic, LEAST[run])
    tried: set[str] = set()
    lock = threading.Lock()

    def one(part: str, step: Step, seconds: float, worker: Worker) -> None:
        begin, state = time.monotonic(), ""
        try:
            for message in worker.run(step, seconds):
                with lock:
                    page.take(message)
                    if message["kind"] == "error":
                        page.failed(f"{part}, {step.what}", message["value"])
                        state = "failed"
        except (TimeoutError, RuntimeError, OSError) as error:
            with lock:
                page.failed(f"{part}, {step.what}", str(error))
            state = "stopped"
        with lock:
            page.add("steps", (part, step.what, f"{time.monotonic() - begin:.1f}", state))
            page.write()

    def execute(part: str, steps: Sequence[Step], seconds: float) -> None:
        tried.update(f"{part}, {step.what}" for step in steps)
        names = "; ".join(step.what for step in steps)
        print(f"# {part}: {names} (at most {seconds:.0f} s, {budget.room:.0f} s are left)", flush=True)
        if len(steps) == 1:
            for other in workers[1:]:
                other.stop()
            return one(part, steps[0], seconds, workers[0])
        with ThreadPoolExecutor(len(steps)) as pool:
            jobs = [pool.submit(one, part, *job) for job in zip(steps, [seconds] * len(steps), workers, strict=False)]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                for each in workers:
                    each.stop()  # which ends the threads that wait for them
                raise

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        for part, step, reason in carry_out(parts, budget, execute, kernels.wait):
            tried.add(f"{part}, {step.what}")
            page.left.append(f"{part}, {step.what}: {reason}")
    finally:
        for worker in workers:
            worker.stop()
        kernels.stop()
        every = [f"{part.title}, {step.what}" for part in parts for step in part.steps]
        page.left += [f"{what}: the run was ended before" for what in every if what not in tried]
        page.budget += f" It took {(time.monotonic() - budget.began) / 60:.1f}. {kernels.said}".rstrip()
        page.write()
    return 1 if page.wrong or any(met == "NO" for *_, met in page.goals()) else 0


if __name__ == "__main__":
    sys.exit(main())
