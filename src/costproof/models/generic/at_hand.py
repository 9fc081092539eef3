"""A module that is at hand, as a target, with the arguments of one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.generic.copies import inputs_on_meta, on_meta, own_copy, own_inputs
from costproof.models.generic.described import check_parts
from costproof.models.generic.factory import bound, check_call
from costproof.models.generic.made import Given
from costproof.models.generic.module import GenericTarget
from costproof.models.specs import ExportJob, Run

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.generic.as_it_was import Before

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
def at_hand(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: Before | None = None
) -> Iterator[OneCall]:
    """The call of a copy that shares the parameters, in evaluation, without gradients and outside of all modes.

    Args:
        before: saves what its owner puts back; by default it is put back at the end of the block.

    Raises:
        BadInput: it is not a module, or forward does not take these arguments.
        Incomplete: it cannot be copied.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_leaves

    from costproof.models.generic.as_it_was import Before, evaluated, watching

    if before is None:
        before = Before()
        try:
            with at_hand(module, args, kwargs, before) as target:
                yield target
        finally:
            before.put_back()
            before.check()
        return
    before.modes.lift()
    _check(module, [args, kwargs])
    check_parts(module)
    named = [*enumerate(args), *kwargs.items()]
    state = before.save(module, {f"argument {name}": value for name, value in named})
    before.modes.lift(default_device=True)
    with torch.inference_mode(mode=False), torch.no_grad():
        tensors = (*module.parameters(), *module.buffers(), *tree_leaves([args, kwargs]))
        fake = any(isinstance(t, FakeTensor) for t in tensors)
        with watching(state):  # a model may merge its weights as it leaves training
            copied = (on_meta(module) if fake else own_copy(module)).eval()
        name = type(copied).__name__
        given = bound(copied, args, kwargs)
        given = inputs_on_meta(given) if fake else own_inputs(given)
        with evaluated(module):  # code outside of the copy may run parts of the module itself
            made = Given(name, f"{name}, as it was given", copied, given, notes=_of_compiled(module, copied, given))
            yield OneCall(name, made, _options(made), whose=module)


def _check(module: Any, given: Any) -> None:
    """Whether this is a module, and tensors have shapes and memory of their own.

    Raises:
        BadInput: no.
    """
    import torch
    from torch import nn
    from torch.nn.parameter import is_lazy
    from torch.utils._pytree import tree_leaves

    if not isinstance(module, nn.Module):
        fix = "costproof.report counts a model by its name" if isinstance(module, str) else None
        got = type(module).__name__
        raise BadInput("this is not a module", where="count", expected="a torch.nn.Module", got=got, fix=fix)
    where, own = type(module).__name__, (*module.parameters(), *module.buffers())
    if any(map(is_lazy, own)):
        raise BadInput("a parameter has no shape before the first call", where=where, fix="call the module once before")
    inputs = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    check_call(module, given, where)
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (*own, *inputs))):
        fix = "count the call outside of the transform, with tensors of the shape that is meant"
        raise BadInput("a tensor belongs to a transform of torch.func (vmap, grad)", where=where, fix=fix)
    if any(isinstance(size, torch.SymInt) for t in (*own, *inputs) for size in t.shape):
        raise BadInput("a tensor has a symbolic size", where=where, fix="count a call with sizes that are numbers")


def _of_compiled(module: nn.Module, copied: nn.Module, given: dict[str, Any]) -> tuple[str, ...]:
    """Of a module that is compiled, into how many graphs; it is counted as it was written."""
    from costproof.models.generic.as_it_was import unwritten
    from costproof.models.generic.compiled import graphs, is_compiled

    return (graphs(own_copy(copied), own_inputs(given), partial(unwritten, module)),) if is_compiled(module) else ()


def _options(made: Given) -> RunOptions:
    """Where the call runs: where tensors are; on meta if any of them has no numbers."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
    kinds = {t.device.type for t in tensors if isinstance(t, torch.Tensor)}
    if not kinds or "meta" in kinds:
        return RunOptions()
    return RunOptions(device="cuda" if "cuda" in kinds else "cpu", weights=_AS_GIVEN)
