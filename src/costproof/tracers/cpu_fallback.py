"""Trace a run on the meta device, or on the CPU if the model needs concrete values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.specs import GIVEN, Run
from costproof.snapshots.copies import TooLarge, alike, materialize, unchecked
from costproof.tracers.hooks import Hooked, trace_hooks
from costproof.tracers.paths import repeat_if_modules_replaced
from costproof.tracers.torchlens_trace import TracedForward, trace_graph

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class FallbackTrace:
    """Traces of one run by TorchLens and by hooks."""

    run: Run
    """The run that was traced, which is another one after a fallback."""
    forward: TracedForward
    hooks: Hooked
    notes: tuple[str, ...] = ()


def trace_run(run: Run, *, all_calls: bool = False) -> FallbackTrace:
    """Trace a run on meta; if that fails and the run allows it, on the CPU, with its own values or with ones.

    Fake tensors on the CPU would be an intermediate step, but TorchLens refuses them.

    Raises:
        TooLarge: it needs values and is too large to be given some.
        Incomplete: it cannot be traced at all; the error is that of the original run.
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
    except Exception as error:
        # With its own values the model itself fails; with ones, these values may be the cause.
        raise error if run.real is not None and isinstance(error, Incomplete) else refused from None
    which = "ones for numbers" if run.real is None else GIVEN
    return replace(found, notes=(f"run {run.id}: on the CPU with {which}, because: {_line(refused)}",))


def _traced(run: Run, *, all_calls: bool) -> FallbackTrace:
    return FallbackTrace(
        run, repeat_if_modules_replaced(run.model, lambda: trace_graph(run)), trace_hooks(run, all_calls=all_calls)
    )


def _line(error: Exception) -> str:
    return error.line if isinstance(error, CostproofError) else first_line(error)


def with_numbers(run: Run) -> Run:
    """Return the run on the CPU: tensors keep their values, and those without values are filled with ones.

    Raises:
        Incomplete: the copy would be too large.
    """
    given = run if run.real is None else run.real()
    return replace(given, model=materialize(given.model), kwargs=_each(given.kwargs, alike(given.kwargs, _numbered)))


def _numbered(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if not tensor.is_meta:
        return tensor.detach().clone().cpu()
    if tensor.layout is not torch.strided:
        raise Incomplete(
            "a parameter or input has no values, and its layout has no fallback on the CPU", expected="torch.strided",
            got=tensor.layout, fix="pass this tensor with values, or in a dense layout",
        )  # fmt: skip
    return torch.ones_like(tensor, device="cpu")


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested values with ``change`` applied to every tensor; containers and objects (a cache) are copied."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {k: _each(v, change) for k, v in value.items()}
        return changed if type(value) is dict else type(value)(**changed)  # outputs of transformers have a class
    if type(value) in (list, tuple):
        return type(value)(_each(v, change) for v in value)
    if hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        made = copy.copy(value)
        made.__dict__.update({k: _each(v, change) for k, v in vars(value).items()})
        return made
    return value
