"""Define the target for a module object of this process, with the arguments of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, first_line
from costproof.ledger.plural import plural
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.generic.address import bound, check_call
from costproof.models.generic.factories import Given
from costproof.models.generic.module import GenericTarget
from costproof.models.specs import ExportJob, Run
from costproof.patches.nested import in_parts, put_together
from costproof.snapshots.copies import inputs_on_meta, on_meta, own_copy, own_inputs
from costproof.snapshots.described import check_parts

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.snapshots.module_snapshot import Before


_AS_GIVEN: Final = "its own weights"


@dataclass(frozen=True, slots=True)
class OneCall(GenericTarget):
    """Target for one call of one module object."""

    whose: nn.Module | None = None
    """The caller's module, with which the counted runs share parameters."""

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export job at concrete sizes, since symbolic ones would take twice as long without benefit."""
        return tuple(replace(job, sizes=()) for job in GenericTarget.export_jobs(self, model, workload))

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """Return the run of the call."""
        found = GenericTarget.runs(self, model, workload)
        if self.whose is None:
            return found
        from costproof.snapshots.module_snapshot import unwritten

        return tuple(replace(run, around=partial(unwritten, self.whose)) for run in found)


@contextmanager
def at_hand(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], before: Before | None = None
) -> Iterator[OneCall]:
    """Yield a target for one call of a module, in evaluation mode, without gradients and without torch function modes.

    The target's module is a copy that shares the parameters; what the call changes is restored afterwards.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_leaves

    from costproof.snapshots.module_snapshot import Before, evaluated, watching

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
    args, kwargs = in_parts((args, kwargs), type(module).__name__)
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
        put_together(copied, given)
        given = inputs_on_meta(given) if fake else own_inputs(given)
        with evaluated(module):  # code outside of the copy may run parts of the module itself
            made = Given(name, f"{name}, as it was given", copied, given, notes=_of_compiled(module, copied, given))
            yield OneCall(name, made, _options(made), whose=module)


def _check(module: Any, given: Any) -> None:
    """Check that the object is a module, and that its tensors have shapes and storages.

    Raises:
        BadInput: a check fails.
    """
    import torch
    from torch import nn
    from torch.nn.parameter import is_lazy
    from torch.utils._pytree import tree_leaves

    if not isinstance(module, nn.Module):
        fix = "costproof.report counts a model by its name" if isinstance(module, str) else None
        got = type(module).__name__
        raise BadInput(
            "this is not a module",
            where="the first argument of costproof.count",
            expected="a torch.nn.Module",
            got=got,
            fix=fix,
        )
    where, own = type(module).__name__, (*module.parameters(), *module.buffers())
    if any(map(is_lazy, own)):
        raise BadInput("a lazy parameter has no shape yet", where=where, fix="call the module once, then count it")
    inputs = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    check_call(module, given, where)
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (*own, *inputs))):
        fix = "count the call outside of the transform, with tensors of the shape that is meant"
        raise BadInput("a tensor belongs to a transform of torch.func (vmap, grad)", where=where, fix=fix)
    if any(isinstance(size, torch.SymInt) for t in (*own, *inputs) for size in t.shape):
        raise BadInput("a tensor has a symbolic size", where=where, fix="count a call with sizes that are numbers")


def _of_compiled(module: nn.Module, copied: nn.Module, given: dict[str, Any]) -> tuple[str, ...]:
    """Return a note on the number of graphs that ``torch.compile`` makes of the module, which is counted uncompiled."""
    from costproof.snapshots.module_snapshot import unwritten

    return (graphs(own_copy(copied), own_inputs(given), partial(unwritten, module)),) if is_compiled(module) else ()


def _options(made: Given) -> RunOptions:
    """Return the run options of a call: the device of its tensors, or meta if a tensor has no values."""
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [*made.module.parameters(), *made.module.buffers(), *tree_leaves(made.inputs)]
    kinds = {t.device.type for t in tensors if isinstance(t, torch.Tensor)}
    if not kinds or "meta" in kinds:
        return RunOptions()
    return RunOptions(device="cuda" if "cuda" in kinds else "cpu", weights=_AS_GIVEN)


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module or a part of it is compiled."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def graphs(
    module: nn.Module, inputs: Mapping[str, Any], around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> str:
    """Return a sentence on the number of graphs that ``torch.compile`` makes of a call, and on each graph break.

    The call is run once more, with a backend that does not compile the graphs. Other compiled code is not affected.

    Args:
        module: a copy, not compiled.
        around: context in which a graph runs.
    """
    import torch

    made: list[str] = []

    def kept(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        ended: Any = graph.compile_subgraph_reason
        made.append(_reason(ended) if ended.graph_break else "")

        def run(*args: Any) -> Any:
            with around():
                return graph.forward(*args)

        return run

    try:
        with torch.no_grad():
            torch.compile(module, backend=kept)(**inputs)
    except Exception as error:  # it is code of other packages, which raises what it likes
        return f"torch.compile: the graphs of this call are not known: {first_line(error)}"
    breaks = [why for why in made if why]
    if not breaks:
        return f"torch.compile makes {plural(len(made), 'graph')} of this call, without a break"
    what = f"{plural(len(made), 'graph')} of this call, {plural(len(breaks), 'break')}"
    return f"torch.compile makes {what}: {'; '.join(dict.fromkeys(breaks))}"


def _reason(ended: Any) -> str:
    """Return the reason for a graph break, with the line of code."""
    why = str(ended.reason).strip().splitlines()[0]
    at = ended.user_stack[-1] if ended.user_stack else None
    return why if at is None else f"{why} (line {at.lineno} of {Path(at.filename).name})"
