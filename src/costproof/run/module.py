"""Counting a module that is at hand: three lines, as with any counter of FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.extras import require
from costproof.ledger.run import RunOptions
from costproof.models.generic.made import Given
from costproof.models.generic.module import GenericTarget
from costproof.reports.report import Report
from costproof.run.capture import count as counted
from costproof.run.prepare import Prepared
from costproof.run.report import report
from costproof.run.request import RunRequest

if TYPE_CHECKING:
    from torch import nn

_AS_GIVEN: Final = "its own weights"


def count(module: nn.Module | Callable[..., Any] | str | RunRequest, *args: Any, **kwargs: Any) -> Report:
    """Count one call of a module: FLOPs, vector FLOPs, bytes and parameters, by a trace and by an export, compared.

    The call runs where the module and its arguments are: on shapes alone if they are on meta. It is made on a copy
    that shares the parameters, in evaluation and without gradients; the module stays as it is.

    Args:
        module: a module, or a ``functools.partial`` of one; or the name or address of a model, for which this is
            :func:`costproof.report`.
        args, kwargs: as the module is called; for a name, what may be chosen about a run.

    Raises:
        BadInput: it is not a module, or forward does not take these arguments.
        Incomplete: no source could count it.
    """
    if isinstance(module, str | RunRequest):
        return report(module, *args, **kwargs)
    require("trace", "counting a module")
    called: Any = module
    while isinstance(called, partial):
        called, args, kwargs = called.func, (*called.args, *args), {**called.keywords, **kwargs}
    import torch

    if not isinstance(called, torch.nn.Module):
        raise BadInput("this is not a module", where="count", expected="a torch.nn.Module", got=type(called).__name__)
    with torch.inference_mode(mode=False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        return _counted(called, args, kwargs)


def _counted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Report:
    from costproof.models.generic.copies import own_copy, own_inputs
    from costproof.models.generic.factory import bound

    copied = own_copy(module).eval()
    inputs = own_inputs(bound(copied, args, kwargs))
    name = type(copied).__name__
    made = Given(name, f"{name}, as it was given", copied, inputs)
    target = GenericTarget(name, made, _options(made))
    return counted(Prepared(target, target.workload()))


def _options(made: Given) -> RunOptions:
    """Where the call runs: where tensors are, unless all of them are on meta."""
    from torch.utils._pytree import tree_leaves

    tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
    kinds = {t.device.type for t in tensors if hasattr(t, "device")} - {"meta"}
    device = "cuda" if "cuda" in kinds else "cpu" if kinds else "meta"
    return RunOptions(device=device, weights=_AS_GIVEN) if kinds else RunOptions()  # type: ignore[arg-type]
