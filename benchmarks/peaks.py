"""Peaks of live activations against real runs on the CPU: every stage of DeepSeek-OCR at its real width, and decoders.

``python -m benchmarks.peaks [CASE ...]`` prints a table and exits 1 where a number differs. A run is what operators
returned and was alive at once, by the allocator; what kernels held for themselves beside that is in the last column.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from benchmarks.allocations import Allocated, allocated
from benchmarks.real_jobs import RealRun, as_exported, as_written, with_numbers
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.families.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from costproof.models.pages.config import PageDecoderConfig
from costproof.models.target import Exportable
from costproof.reports.escape import table
from costproof.tracers.peaks.calls import calls, peaks_of
from costproof.views.numbers import exact

ATTENTION: Final = ("sdpa", "eager")
HEAD: Final = (
    "model", "stage", "part", "attention", "graph", "run of the program", "eager", "run of the module", "gap",
    "largest part of the gap", "residual", "workspaces at the allocator's peak, program",
)  # fmt: skip
Case = tuple[Exportable, Callable[[str], Workload]]


def _ocr(preset: str) -> Case:
    """The published configuration, of whose decoder two layers are left: the dense one, and one with experts."""
    target = DeepseekOcr(OcrConfig(text=replace(PageDecoderConfig(), layers=2)))
    return target, lambda attention: target.workload(
        preset, text_tokens=16, new_tokens=2, attention=attention, dtype="float32"
    )


def _llama() -> Case:
    target = Llama(LlamaConfig(256, 1024, 4, 8, 4, 32, 1024, 4096))
    return target, lambda attention: target.workload(
        batch=2, text_tokens=512, new_tokens=2, attention=attention, dtype="float32"
    )


def _mixture(dtype: str) -> Case:
    sizes = Qwen3MoeConfig(256, 512, 2, 8, 4, 32, 1024, 4096, experts=8, top_k=2, expert_width=128)
    target = Qwen3Moe(sizes)
    return target, lambda attention: target.workload(
        batch=2, text_tokens=128, new_tokens=2, attention=attention, dtype=dtype
    )


CASES: Final[dict[str, Callable[[], Case]]] = {
    "llama": _llama,
    "qwen3-moe": lambda: _mixture("float32"),
    "qwen3-moe-bf16": lambda: _mixture("bfloat16"),
    "ocr-tiny": lambda: _ocr("tiny"),
    "ocr-base": lambda: _ocr("base"),
}


def rows(name: str) -> Iterator[tuple[bool, tuple[str | int | None, ...]]]:
    """Whether all is equal, and what the table has, of every call of every stage."""
    target, workload = CASES[name]()
    for attention in ATTENTION:
        for _, job in calls(target, workload(attention)):
            found = peaks_of(job)
            real = with_numbers(job)
            program, mine = _held(as_exported(real))
            _, its = _held(as_written(real))
            yield (
                _peaks(found) == (mine, its) and found.residual == 0,
                _cells(name, attention, found, mine, its, program),
            )


def _peaks(found: CallPeaks) -> tuple[int | None, int | None]:
    return found.graph.bytes if found.graph else None, found.eager.bytes if found.eager else None


def _held(run: RealRun) -> tuple[Allocated, int]:
    found = allocated(run.run)
    return found, found.tensors + run.inputs


def _cells(
    name: str, attention: str, found: CallPeaks, mine: int, its: int, program: Allocated
) -> tuple[str | int | None, ...]:
    part = max(found.gap, key=lambda p: p.bytes, default=None)
    largest = "" if part is None or part.tensor is None else f"{part.tensor.name} of {part.tensor.module}"
    if part is not None and part.holders:
        largest += f" by {part.holders[0]}"
    own = "; ".join(f"{op} {exact(size)}" for op, size in program.workspaces.items())
    graph, eager = _peaks(found)
    sizes = (graph, mine, eager, its, found.gap_bytes)
    return (name, found.stage, found.part, attention, *sizes, largest, found.residual, own)


def main(names: list[str]) -> int:
    """Print the table of some cases, or of all."""
    head = table(HEAD, "llllrrrrrlrl", [])
    print("\n".join(head), flush=True)
    wrong = 0
    for name in names or CASES:
        for good, cells in rows(name):
            wrong += not good
            texts = tuple(cell if isinstance(cell, str) else exact(cell) for cell in cells)
            print(table(HEAD, "llllrrrrrlrl", [texts])[-1] + ("" if good else "  DIFFERS"), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
