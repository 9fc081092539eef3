"""A module that is at hand, as a target, with the arguments of one call."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.generic.copies import own_copy, own_inputs
from costproof.models.generic.factory import bound
from costproof.models.generic.made import Given
from costproof.models.generic.module import GenericTarget
from costproof.models.jobs import ExportJob

if TYPE_CHECKING:
    from torch import nn

_AS_GIVEN: Final = "its own weights"


class OneCall(GenericTarget):
    """A module of which one call is asked about."""

    __slots__ = ()

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """At the sizes of the call: an export in symbols takes twice as long, and would serve no other call."""
        return tuple(replace(job, sizes=()) for job in super().export_jobs(model, workload))


def at_hand(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OneCall:
    """The call of a copy that shares the parameters, in evaluation.

    Raises:
        BadInput: it is not a module, or forward does not take these arguments.
        Incomplete: it cannot be copied.
    """
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not isinstance(module, nn.Module):
        fix = "costproof.report counts a model by its name" if isinstance(module, str) else None
        got = type(module).__name__
        raise BadInput("this is not a module", where="count", expected="a torch.nn.Module", got=got, fix=fix)
    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        fix = "call the module once before"
        raise BadInput("a parameter has no shape before the first call", where=type(module).__name__, fix=fix)
    copied = own_copy(module).eval()
    name = type(copied).__name__
    given = own_inputs(bound(copied, args, kwargs))
    made = Given(name, f"{name}, as it was given", copied, given, notes=_of_compiled(module, copied, given))
    return OneCall(name, made, _options(made))


def _of_compiled(module: nn.Module, copied: nn.Module, given: dict[str, Any]) -> tuple[str, ...]:
    """Of a module that is compiled, into how many graphs; it is counted as it was written."""
    from costproof.models.generic.compiled import graphs, is_compiled

    return (graphs(own_copy(copied), own_inputs(given)),) if is_compiled(module) else ()


@contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients, tensors as outside of ``inference_mode``, and afterwards the random numbers as they were."""
    import torch

    # Asking a GPU that nobody has used yet would set it up.
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    drawn, numpy = random.getstate(), sys.modules.get("numpy.random")
    of_numpy = None if numpy is None else numpy.get_state()
    try:
        with torch.inference_mode(mode=False), torch.no_grad(), torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(drawn)
        if numpy is not None:
            numpy.set_state(of_numpy)


def _options(made: Given) -> RunOptions:
    """Where the call runs: where tensors are; on meta if any of them has no numbers."""
    from torch.utils._pytree import tree_leaves

    tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
    kinds = {t.device.type for t in tensors if hasattr(t, "device")}
    if not kinds or "meta" in kinds:
        return RunOptions()
    return RunOptions(device="cuda" if "cuda" in kinds else "cpu", weights=_AS_GIVEN)
