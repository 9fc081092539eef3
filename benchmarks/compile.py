"""Modules eager and compiled: the same count, their times and peaks side by side: ``python -m benchmarks.compile``.

Each module is counted as it is and through ``torch.compile``, and run both ways in turns with random numbers on one
thread. The peak is what the allocator holds at once beside inputs and parameters. Compiled code needs a C++ compiler;
where there is none the graphs run as they were traced, and the head of the table says so. Exits 1 where counts differ.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import costproof
from benchmarks.allocations import _allocations
from costproof.models.generic.live_module import graphs
from costproof.reports.escape import table

Case = tuple[nn.Module, dict[str, Any]]
HEAD: Final = (
    "module", "FLOPs, eager", "FLOPs, compiled", "graphs", "ms, eager", "ms, compiled", "eager / compiled",
    "peak MiB, eager", "peak MiB, compiled",
)  # fmt: skip


class Branching(nn.Module):
    """An MLP that looks at a number half way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, width]."""
        y = self.first(x).relu()
        if y.mean() > 10:
            y = y / 10
        found: torch.Tensor = self.second(y)
        return found


def _mlp() -> Case:
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024))]
    return nn.Sequential(*layers), {"input": torch.randn(256, 1024)}


def _convolutions() -> Case:
    def block(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]

    first = [nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *block(64), *block(64), *block(64)), {"input": torch.randn(1, 3, 224, 224)}


def _llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, vocab_size=4096, **sizes))
    return model, {"input_ids": torch.randint(0, 4096, (1, 256)), "use_cache": False}


def _sam() -> Case:
    from transformers import SamVisionConfig, SamVisionModel

    sizes = {"hidden_size": 192, "mlp_dim": 768, "num_attention_heads": 4, "num_hidden_layers": 4, "image_size": 256}
    model = SamVisionModel(SamVisionConfig(global_attn_indexes=[1, 3], **sizes))
    return model, {"pixel_values": torch.randn(1, 3, 256, 256)}


CASES: Final[Mapping[str, Callable[[], Case]]] = {
    "MLP, 4 layers of 1024": _mlp,
    "convolutions, 64 channels": _convolutions,
    "Llama, 4 layers of 512": _llama,
    "SAM's encoder, 4 layers of 192": _sam,
    "MLP with a branch on a number": lambda: (Branching(1024), {"x": torch.randn(256, 1024)}),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=__doc__)
    parser.add_argument("--turns", type=int, default=30, help="calls of each, in turns")
    turns = parser.parse_args().turns
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    backend = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"
    print(f"torch {torch.__version__}, one thread, backend {backend}, median of {turns} calls\n")
    rows = [_row(name, *make(), backend, turns) for name, make in CASES.items()]
    print("\n".join(table(HEAD, "lrrlrrrrr", rows)))
    sys.exit(any(row[1] != row[2] for row in rows))


def _row(name: str, module: nn.Module, inputs: dict[str, Any], backend: str, turns: int) -> tuple[str, ...]:
    module.eval()
    compiled: Any = torch.compile(module, backend=backend)
    counts = [costproof.count(one, **inputs).capture.ledger("dynamic").total("flops") for one in (module, compiled)]
    ways = [lambda: module(**inputs), lambda: compiled(**inputs)]
    with torch.no_grad():
        seconds = _seconds(ways, turns)
        peaks = [_peak(way) for way in ways]
    said = graphs(module, inputs).removeprefix("torch.compile makes ").replace(" of this call", "")
    return (
        name,
        *(f"{count:,}" for count in counts),
        said.split(":")[0],
        *(f"{1000 * s:.2f}" for s in seconds),
        f"{seconds[0] / seconds[1]:.2f}",
        *(f"{p / 2**20:.2f}" for p in peaks),
    )


def _seconds(ways: list[Callable[[], Any]], turns: int) -> list[float]:
    """The median time of each, which take turns; what the first calls compile is not in it."""
    for way in ways:
        way(), way()
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(turns):
        for way, times in zip(ways, taken, strict=True):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in taken]


def _peak(run: Callable[[], Any]) -> int:
    """Bytes that are held at once, of those that the call allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = run()
    del result
    events = sorted(_allocations(record.profiler.kineto_results.experimental_event_tree()), key=lambda e: e[0])
    alive: dict[int, int] = {}
    most = 0
    for _, address, size, _ in events:
        if size > 0:
            alive[address] = size
        else:
            alive.pop(address, None)
        most = max(most, sum(alive.values()))
    return most


if __name__ == "__main__":
    main()
