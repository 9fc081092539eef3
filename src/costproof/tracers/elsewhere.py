"""Where a run is traced: on shapes alone, or, where the model looks at numbers, on the CPU with some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.generic.alike import alike
from costproof.models.generic.copies import TooLarge, unchecked, with_ones
from costproof.models.jobs import Run
from costproof.tracers.hooks import Hooked, trace_hooks
from costproof.tracers.paths import settled
from costproof.tracers.torchlens_trace import Forward, trace_graph

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Traced:
    """A run as both tracers saw it."""

    run: Run
    """The one that was traced: another than was asked for where that could not be."""
    forward: Forward
    hooks: Hooked
    notes: tuple[str, ...] = ()


def trace_run(run: Run, *, all_calls: bool = False) -> Traced:
    """Trace a run; one that may run elsewhere is given numbers on the CPU when meta refuses: ones, or its own.

    Tensors without numbers that claim to be on the CPU would be a step between; TorchLens refuses them.

    Raises:
        TooLarge: it needs numbers, and is too large to be given some.
        Incomplete: it cannot be traced anywhere; the error is that of the run as it was given.
    """
    try:
        return _traced(run, all_calls=all_calls)
    except Exception as error:
        on_meta = all(p.device.type == "meta" for p in run.model.parameters())
        if not (run.elsewhere and on_meta) or (isinstance(error, CostproofError) and not isinstance(error, Incomplete)):
            raise
        refused = error
    try:
        with unchecked() if run.real is None else nullcontext():
            found = _traced(with_numbers(run), all_calls=all_calls)
    except TooLarge as large:
        large.what = f"meta is not enough ({_line(refused)}), and {large.what}"
        raise
    except Exception:
        raise refused  # noqa: B904
    return replace(found, notes=(f"run {run.id}: on the CPU with numbers, because: {_line(refused)}",))


def _traced(run: Run, *, all_calls: bool) -> Traced:
    return Traced(run, settled(run.model, lambda: trace_graph(run)), trace_hooks(run, all_calls=all_calls))


def _line(error: Exception) -> str:
    return error.line if isinstance(error, CostproofError) else first_line(error)


def with_numbers(run: Run) -> Run:
    """The run on the CPU: its own one with numbers, or a copy with ones in every parameter and input.

    Raises:
        Incomplete: the copy would be too large.
    """
    if run.real is not None:
        return run.real()
    return replace(run, model=with_ones(run.model), kwargs=_each(run.kwargs, alike(run.kwargs, _ones)))


def _ones(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.layout is not torch.strided:
        raise Incomplete("a sparse tensor has no ones", got=tensor.layout)
    return torch.ones_like(tensor, device="cpu")


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested values with every tensor changed; a cache is copied, and so are its tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {k: _each(v, change) for k, v in value.items()}
        return changed if type(value) is dict else type(value)(**changed)  # results of transformers have a class
    if type(value) in (list, tuple):
        return type(value)(_each(v, change) for v in value)
    if hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        made = copy.copy(value)
        made.__dict__.update({k: _each(v, change) for k, v in vars(value).items()})
        return made
    return value
