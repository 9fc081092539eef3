"""A module that is at hand, as a target, with the arguments of one call."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.generic.copies import own_copy, own_inputs
from costproof.models.generic.factory import bound
from costproof.models.generic.made import Given
from costproof.models.generic.module import GenericTarget
from costproof.models.jobs import ExportJob, Run

if TYPE_CHECKING:
    from torch import nn

_AS_GIVEN: Final = "its own weights"


@dataclass(frozen=True, slots=True)
class OneCall(GenericTarget):
    """A module of which one call is asked about."""

    whose: nn.Module | None = None
    """The module that was given, whose parameters the runs share."""

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """At the sizes of the call: an export in symbols takes twice as long, and would serve no other call."""
        return tuple(replace(job, sizes=()) for job in GenericTarget.export_jobs(self, model, workload))

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """The call, after which the parameters are as they were before it."""
        found = GenericTarget.runs(self, model, workload)
        if self.whose is None:
            return found
        from costproof.models.generic.as_it_was import unwritten

        return tuple(replace(run, around=partial(unwritten, self.whose)) for run in found)


@contextmanager
def at_hand(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[OneCall]:
    """The call of a copy that shares the parameters, in evaluation; afterwards the module is as it was.

    Raises:
        BadInput: it is not a module, or forward does not take these arguments.
        Incomplete: it cannot be copied.
    """
    import torch
    from torch import nn
    from torch.nn.parameter import is_lazy
    from torch.utils._pytree import tree_leaves

    if not isinstance(module, nn.Module):
        fix = "costproof.report counts a model by its name" if isinstance(module, str) else None
        got = type(module).__name__
        raise BadInput("this is not a module", where="count", expected="a torch.nn.Module", got=got, fix=fix)
    if any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        fix = "call the module once before"
        raise BadInput("a parameter has no shape before the first call", where=type(module).__name__, fix=fix)
    if any(isinstance(t, torch.Tensor) and t.is_nested for t in tree_leaves([args, kwargs])):
        fix = "count a call with one of its tensors, or with all of them padded"
        raise BadInput("a nested tensor has no shape", where=type(module).__name__, fix=fix)
    from costproof.models.generic.as_it_was import as_it_was, evaluated

    with as_it_was(module) as writes:
        with writes.watching():  # a model may merge its weights as it leaves training
            copied = own_copy(module).eval()
        name = type(copied).__name__
        given = own_inputs(bound(copied, args, kwargs))
        with evaluated(module):  # code outside of the copy may run parts of the module itself
            made = Given(name, f"{name}, as it was given", copied, given, notes=_of_compiled(module, copied, given))
            yield OneCall(name, made, _options(made), whose=module)


def _of_compiled(module: nn.Module, copied: nn.Module, given: dict[str, Any]) -> tuple[str, ...]:
    """Of a module that is compiled, into how many graphs; it is counted as it was written."""
    from costproof.models.generic.as_it_was import unwritten
    from costproof.models.generic.compiled import graphs, is_compiled

    return (graphs(own_copy(copied), own_inputs(given), partial(unwritten, module)),) if is_compiled(module) else ()


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
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
    kinds = {t.device.type for t in tensors if isinstance(t, torch.Tensor)}
    if not kinds or "meta" in kinds:
        return RunOptions()
    return RunOptions(device="cuda" if "cuda" in kinds else "cpu", weights=_AS_GIVEN)
