"""The call of ``torch.export``: a part of a model, with its symbolic sizes, as it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

from costproof.ledger.errors import Incomplete, first_line, said_by
from costproof.models.as_it_runs import as_it_runs
from costproof.models.jobs import ExportJob, SymbolicSize
from costproof.tracers.direct import through_call
from costproof.tracers.exported_sizes import each_argument
from costproof.tracers.indexing import rows_of_numbers
from costproof.tracers.lean import lean
from costproof.tracers.paths import settled
from costproof.tracers.shapes import products_by_shape

if TYPE_CHECKING:
    import torch


def exported_program(job: ExportJob) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """The program, and what was taken for granted on the way."""
    return settled(job.module, lambda: _exported(job), lambda: _run(job))


def _run(job: ExportJob) -> None:
    """The forward as it is: the exporter takes back what one sets, but for the parts that it replaces."""
    from costproof.models.generic.as_it_was import unwritten

    with (
        suppress(Exception),
        unwritten(job.module),
        as_it_runs(job.module),
    ):  # code of other packages raises what it likes
        job.module(**job.args)


def _exported(job: ExportJob) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    import torch

    from costproof.tracers.following import following

    dynamic = dynamic_shapes(job)
    try:
        with ExitStack() as around:
            assumed = around.enter_context(as_it_runs(job.module))
            around.enter_context(through_call(job.module))
            around.enter_context(lean(job.module))
            around.enter_context(_silent())
            around.enter_context(rows_of_numbers())
            around.enter_context(following() if job.numbers else products_by_shape())
            program = torch.export.export(job.module, (), kwargs=dict(job.args), dynamic_shapes=dynamic, strict=False)
            return program, tuple(assumed)
    except Exception as error:
        raise Incomplete(
            "torch.export cannot export a part of the model",
            where=f"{job.stage}, export {job.id}",
            got=_reason(error),
        ) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Of an export that fails the reason is told, and not the thousand lines of the graph until there."""
    from torch.export import _trace
    from torch.fx.experimental import symbolic_shapes

    def unsaid(*args: Any, **kwargs: Any) -> None: ...

    with ExitStack() as around:
        around.enter_context(mock.patch.object(_trace, "print", unsaid, create=True))
        for log in {id(log): log for m in (_trace, symbolic_shapes) if (log := getattr(m, "log", None))}.values():
            around.enter_context(mock.patch.multiple(log, warning=unsaid, error=unsaid))
        yield


def _reason(error: Exception) -> str:
    """What the exporter says, in a line; of sizes that the code fixed, which ones."""
    said = said_by(error)
    fixed = re.findall(r"L\['(\w+)'\]\.size\(\)\[(\d+)\] .*specialized it to be a constant \((\d+)\)", said)
    if fixed:
        which = ", ".join(f"dimension {dim} of {name} (here {value})" for name, dim, value in fixed)
        return f"the model's code fixes {which}: a Python loop over a size does, or int() of one"
    return first_line(error)


def dynamic_shapes(job: ExportJob) -> dict[str, Any]:
    """Which dimensions of the arguments stay symbolic, as ``torch.export`` wants to be told."""
    import torch

    # Dimensions that are multiples of a step share one Dim per symbol; the exporter finds out the others.
    steps = {s.symbol: torch.export.Dim(s.symbol, min=2) for s in job.sizes if s.step > 1}

    def dim(size: SymbolicSize) -> Any:
        return torch.export.Dim.DYNAMIC if size.step == 1 else size.step * steps[size.symbol]

    return each_argument(job, lambda path, _: {s.dim: dim(s) for s in job.sizes if tuple(s.argument) == path} or None)
