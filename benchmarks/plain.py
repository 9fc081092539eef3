"""The same stages under the plain tools: what ``costproof report`` cannot be faster than.

Each function is run in a process of its own by :mod:`benchmarks.report`. Building the model and its
inputs is left to costproof's target, because no plain tool can; everything after that is the tool alone.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

import torch
from torch import nn

from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.specs import Run

LAYERS, WIDTH, HEADS = 100, 64, 4


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm or a residual: [B, S, width] -> [B, S, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, S, width] -> [B, S, width]."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return result


def _layers() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Layer() for _ in range(LAYERS))), torch.ones(2, 16, WIDTH)


def count_layers() -> None:
    """``costproof.count`` of a module of 100 layers."""
    import costproof

    module, x = _layers()
    print(costproof.count(module, x).discrepancy.verdict)


def torchlens_layers() -> None:
    """``torchlens.trace`` of the same module with its default options."""
    import torchlens

    module, x = _layers()
    print(len(torchlens.trace(module, x).ops), "operators")


def _runs() -> tuple[Run, ...]:
    from costproof.models.families.deepseek_ocr.config import make_workload

    target = DeepseekOcr()
    workload = make_workload("dsocr-standard-v1")
    return target.runs(target.build(workload), workload)


def exports() -> None:
    """Every ``torch.export.export`` call that the static source makes."""
    from costproof.models.families.deepseek_ocr.config import make_workload
    from costproof.tracers.exporting import dynamic_shapes

    target = DeepseekOcr()
    workload = make_workload("dsocr-standard-v1")
    for job in target.export_jobs(target.build(workload), workload):
        with torch.no_grad():
            torch.export.export(
                job.module.eval(), (), kwargs=dict(job.args), dynamic_shapes=dynamic_shapes(job), strict=False
            )


def torchlens_page() -> None:
    """``torchlens.trace``, structure only, with its default options, over the page and one decode step."""
    import torchlens
    from torchlens.options import CaptureOptions

    for run in _runs():
        trace: Any = torchlens.trace(
            run.model, [], copy.deepcopy(dict(run.kwargs)), capture=CaptureOptions(structure_only=True)
        )
        print(run.id, len(trace.ops), "operators")
        del trace
        gc.collect()


def flop_counter() -> None:
    """``FlopCounterMode`` over the page and one decode step."""
    from torch.utils.flop_counter import FlopCounterMode

    for run in _runs():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run.model(**copy.deepcopy(dict(run.kwargs)))
        print(run.id, counter.get_total_flops())
