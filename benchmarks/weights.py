"""Measure how fast random weights are generated, compared with torch's generator, and their share of a report's time.

``python -m benchmarks.weights`` measures the processor, ``--device cuda`` a GPU. Each rate is the fastest of several
passes over one tensor, because other work on the machine can only slow it down. ``--report`` also runs ``report --run
cpu`` on DeepSeek-OCR and measures the share of its wall time in which weights are generated: of the whole model, which
a report counts by default, and of one cut to two layers, the shortest report, in which the embedding and the towers
have most of the weights and hardly any work. The goal is that of the whole model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from costproof.weights import random_values

NUMBERS = {"cpu": 2**22, "cuda": 2**30}
"""Numbers of one tensor: few on a processor, so that other work leaves some passes alone."""
GOAL = {"cpu": 300e6, "cuda": 1e9}
"""Numbers per second; on a processor with two cores."""
SHARE = 0.05
"""Largest share of the wall time of a report on the whole model."""
_MANY = 2**20
_PASSES = {"cpu": 40, "cuda": 5}


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of a generator on one dtype."""

    dtype: str
    ours: float
    """Numbers per second."""
    torchs: float
    """Numbers per second of ``Tensor.normal_``."""
    scratch: int | None
    """Peak of the memory beyond the tensor, in bytes; ``None`` on a processor, where it is two words for each number of
    a pass."""


def rates(device: str, dtypes: tuple[str, ...] = ("bfloat16", "float32")) -> Iterator[Rate]:
    """Yield the rates of both generators on a device."""
    for name in dtypes:
        tensor = torch.empty(NUMBERS[device], dtype=getattr(torch, name), device=device)
        ours, scratch = _rate(partial(random_values.fill_normal, [("w", tensor)], 0, 0.02), tensor)
        torchs, _ = _rate(partial(tensor.normal_, 0, 0.02), tensor)
        yield Rate(name, ours, torchs, scratch)


def _rate(fill: Callable[[], object], tensor: torch.Tensor) -> tuple[float, int | None]:
    on_gpu = tensor.is_cuda
    wait: Callable[[], Any] = torch.cuda.synchronize if on_gpu else int
    fill()
    wait()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(_PASSES[tensor.device.type]):
        start = time.perf_counter()
        fill()
        wait()
        best = min(best, time.perf_counter() - start)
    scratch = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() if on_gpu else None
    return tensor.numel() / best, scratch


def share_of_report(target: str = "deepseek-ocr", **choices: Any) -> tuple[float, float]:
    """Return the seconds of a report of a real run, and those in which weights are generated."""
    import costproof

    began, spent = 0.0, 0.0

    def told(phase: str, done: int, total: int) -> None:
        """Weights are generated in a process of their own; their steps are the only ones that count numbers."""
        nonlocal began, spent
        if total >= _MANY and done == 0:
            began = time.perf_counter()
        elif total >= _MANY and done == total:
            spent += time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        costproof.report(target, out=Path(folder), run="cpu", progress=told, **choices)
        return time.perf_counter() - start, spent


def main() -> int:
    """Run the benchmark; 1 if a goal is missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=sorted(NUMBERS), default="cpu")
    options.add_argument("--report", action="store_true", help="measure the share of a report's time too")
    given = options.parse_args()
    missed = False
    print("| device | dtype | ours, M/s | torch, M/s | scratch, MiB |\n|---|---|---:|---:|---:|")
    for rate in rates(given.device):
        scratch = "" if rate.scratch is None else f"{rate.scratch / 2**20:.0f}"
        missed |= rate.ours < GOAL[given.device]
        print(f"| {given.device} | {rate.dtype} | {rate.ours / 1e6:,.0f} | {rate.torchs / 1e6:,.0f} | {scratch} |")
    if given.report:
        cases: tuple[dict[str, Any], ...] = ({"layers": 2}, {})
        for cut in cases:
            whole, spent = share_of_report(**cut)
            missed |= not cut and spent > SHARE * whole
            name = "2 layers" if cut else "the whole model"
            print(f"\nreport --run cpu, {name}: {whole:.1f} s, of which weights {spent:.2f} s ({spent / whole:.1%})")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
