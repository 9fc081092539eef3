"""Where a run is traced: on shapes alone, or, where the model looks at numbers, on the CPU with some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.target import Run
from costproof.tracers.hooks import Hooked, trace_hooks
from costproof.tracers.torchlens_trace import Forward, trace_graph

if TYPE_CHECKING:
    import torch
    from torch import nn

MOST_BYTES: Final = 2 * 1024**3
"""Parameters and buffers up to which a model is given numbers."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A run as both tracers saw it."""

    run: Run
    """The one that was traced: another than was asked for where that could not be."""
    forward: Forward
    hooks: Hooked
    notes: tuple[str, ...] = ()


def trace_run(run: Run, *, all_calls: bool = False) -> Traced:
    """Trace a run; one that may run elsewhere is taken there when meta refuses.

    First come tensors on the CPU that have shapes and no numbers, which operators between devices and small constants
    do not stop; then numbers, ones in every parameter unless the run brings its own.

    Raises:
        Incomplete: it cannot be traced anywhere; the error is that of the run as it was given.
    """
    refused: Exception | None = None
    for rung in _rungs(run):
        try:
            made, around = rung.made()
            with around:
                forward, hooks = trace_graph(made), trace_hooks(made, all_calls=all_calls)
        except Exception as error:
            refused = refused or error
            if not run.elsewhere or (isinstance(error, CostproofError) and not isinstance(error, Incomplete)):
                raise
            continue
        notes = () if refused is None else (f"run {run.id}: {rung.note}, because: {_line(refused)}",)
        return Traced(made, forward, hooks, notes)
    raise refused or Incomplete("a run has no place", where=run.id)


def _line(error: Exception) -> str:
    return error.line if isinstance(error, CostproofError) else first_line(error)


@dataclass(frozen=True, slots=True)
class _Rung:
    """One place to run."""

    note: str
    made: Callable[[], tuple[Run, AbstractContextManager[Any]]]


def _rungs(run: Run) -> Iterator[_Rung]:
    yield _Rung("as it was given", lambda: (run, nullcontext()))
    if not run.elsewhere or any(p.device.type != "meta" for p in run.model.parameters()):
        return
    yield _Rung("on the CPU without numbers", lambda: _imitated(run))
    yield _Rung("on the CPU with numbers", lambda: (with_numbers(run), nullcontext()))


def _imitated(run: Run) -> tuple[Run, AbstractContextManager[Any]]:
    """The run on tensors that claim to be on the CPU."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = copy.deepcopy(run.model)
    with mode:
        kwargs = _each(run.kwargs, lambda t: torch.empty_like(t, device="cpu"))
        return replace(run, model=model.to_empty(device="cpu"), kwargs=kwargs), mode


def with_numbers(run: Run) -> Run:
    """The run on the CPU: its own one with numbers, or a copy with ones in every parameter and input.

    Raises:
        Incomplete: the copy would be too large.
    """
    if run.real is not None:
        return run.real()
    size = sum(t.nbytes for t in (*run.model.parameters(), *run.model.buffers()))
    if size > MOST_BYTES:
        raise Incomplete(
            "the model looks at numbers, and is too large to be given some",
            where=run.id,
            expected=f"at most {MOST_BYTES:,} bytes of parameters",
            got=f"{size:,}",
        )
    return replace(run, model=numbered(run.model), kwargs=_each(run.kwargs, ones))


def numbered(model: nn.Module) -> nn.Module:
    """A copy of a model on the CPU. Its numbers do not matter for what is computed, so long as none is NaN."""
    made = copy.deepcopy(model).to_empty(device="cpu")
    for tensor in (*made.parameters(), *made.buffers()):
        tensor.data.fill_(1)
    return made


def ones(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape on the CPU."""
    import torch

    return torch.ones(tensor.shape, dtype=tensor.dtype)


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested values with every tensor changed; a cache is copied, and so are its tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _each(v, change) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each(v, change) for v in value)
    if hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        made = copy.copy(value)
        made.__dict__.update({k: _each(v, change) for k, v in vars(value).items()})
        return made
    return value
