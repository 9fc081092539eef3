"""The same stages under the plain tools: what ``costproof report`` cannot be faster than.

Each function is run in a process of its own by :mod:`benchmarks.report`. Building the model and its
inputs is left to costproof's target, because no plain tool can; everything after that is the tool alone.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

from costproof.models.deepseek_ocr.target import DeepseekOcr
from costproof.models.jobs import Run


def _runs() -> tuple[Run, ...]:
    from costproof.models.deepseek_ocr.workloads import make_workload

    target = DeepseekOcr()
    workload = make_workload("dsocr-standard-v1")
    return target.runs(target.build(workload), workload)


def exports() -> None:
    """Every ``torch.export.export`` call that the static source makes."""
    import torch

    from costproof.models.deepseek_ocr.workloads import make_workload
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
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    for run in _runs():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run.model(**copy.deepcopy(dict(run.kwargs)))
        print(run.id, counter.get_total_flops())
