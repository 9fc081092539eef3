"""Trace a run on the meta device, or on the CPU if the model needs concrete values, and explain failures.

An explanation has the innermost failing module, its input and what it accepts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.capture import GRADIENTS
from costproof.ledger.errors import NOT_GIVEN, CostproofError, Incomplete, first_line
from costproof.models.specs import GIVEN, Run
from costproof.patches.flex_attention import values_wanted
from costproof.patches.nested import watched
from costproof.patches.patch import patched
from costproof.snapshots.copies import TooLarge, alike, materialize, unchecked
from costproof.tracers.hooks import Hooked, trace_hooks
from costproof.tracers.paths import repeat_if_modules_replaced
from costproof.tracers.torchlens_trace import TracedForward, trace_graph

if TYPE_CHECKING:
    import torch
    from torch import nn


_NO_NESTED: Final = (
    "torch's own MultiheadAttention and TransformerEncoderLayer take no jagged tensors: call "
    "scaled_dot_product_attention on heads, or pass padded tensors with a mask"
)


@dataclass(frozen=True, slots=True)
class FallbackTrace:
    """Traces of one run by TorchLens and by hooks, on meta or, after a fallback, on the CPU."""

    run: Run
    """The traced run, which after a fallback is not the requested one."""
    forward: TracedForward
    hooks: Hooked
    notes: tuple[str, ...] = ()


def trace_run(run: Run, *, all_calls: bool = False) -> FallbackTrace:
    """Trace a run on meta or, if that fails and the run allows it, on the CPU with its own values or with ones.

    Fake tensors on the CPU would be an intermediate step, but TorchLens refuses them.

    Raises:
        TooLarge: it needs values and is too large to be given some.
        Incomplete: it cannot be traced at all; the error is that of the original run.
    """
    try:
        with values_wanted(run.elsewhere and run.real is not None) as values:
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
        if values.missed:  # then the pairs that a mask leaves stay unknown
            return _traced(run, all_calls=all_calls)
        large.what = f"meta is not enough ({_line(refused)}), and {large.what}"
        raise
    except Exception as error:
        # With its own values the model itself fails; with ones, these values may be the cause.
        raise error if run.real is not None and isinstance(error, Incomplete) else refused from None
    which = "ones for numbers" if run.real is None else GIVEN
    return replace(found, notes=(f"run {run.id}: on the CPU with {which}, because: {_line(refused)}",))


def _traced(run: Run, *, all_calls: bool) -> FallbackTrace:
    if run.dispatched:
        from costproof.tracers.dispatched_trace import trace_dispatched

        return FallbackTrace(run, trace_dispatched(run), trace_hooks(run, all_calls=all_calls))
    with watched() as nested:
        try:
            traced = repeat_if_modules_replaced(run.model, lambda: trace_graph(run))
        except Incomplete:
            if not nested.seen:
                raise
    if nested.seen:
        return _traced(replace(run, dispatched=True), all_calls=all_calls)
    return FallbackTrace(run, traced, trace_hooks(run, all_calls=all_calls))


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
    """Apply ``change`` to every tensor in nested values; containers and objects such as a cache are copied."""
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


def explain_failure(run: Run) -> Incomplete | None:
    """Run a model, and return an error that locates its failure; ``None`` if it runs or only lacks concrete values."""
    import torch

    from costproof.patches.tensor import REFUSE_GRADIENTS, GradientTaken
    from costproof.snapshots.module_snapshot import unwritten

    entered: list[tuple[str, nn.Module, list[torch.Tensor]]] = []
    with ExitStack() as around:
        around.enter_context(unwritten(run.model))
        around.enter_context(torch.no_grad())
        around.enter_context(run.around())
        around.enter_context(patched(*REFUSE_GRADIENTS))
        for path, module in run.model.named_modules():
            enter = module.register_forward_pre_hook(_entering(entered, path), with_kwargs=True)
            around.callback(enter.remove)
            around.callback(module.register_forward_hook(lambda *_: _left(entered)).remove)
        try:
            run.model(**run.kwargs)
        except Exception as error:
            said = first_line(error)
            if isinstance(error, GradientTaken):
                path, module, _ = entered[-1]
                return Incomplete(
                    GRADIENTS,
                    where=f"{path or '(root)'} ({type(module).__name__})",
                    expected="a forward without torch.autograd.grad, backward, and torch.func.jvp",
                    fix="count the network that it differentiates, as a module of its own; its backward pass has as "
                    "many FLOPs of products again for the gradients of inputs, and as many for those of weights",
                )
            ours = "meta" in said.lower() or "does not require grad" in said  # there are no gradients here
            if not entered or isinstance(error, NotImplementedError) or ours:
                return None
            path, module, tensors = entered[-1]
            shapes = ", ".join(f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)
            return Incomplete(
                "the model does not run on these inputs",
                where=f"{path or '(root)'} ({type(module).__name__})",
                expected=accepted_inputs(module) or NOT_GIVEN,
                got=f"{shapes or 'no tensor'}; {said}",
                fix=_NO_NESTED if "does not support NestedTensor" in said else "change the inputs, or the module",
            )
    return None


def _entering(entered: list[tuple[str, nn.Module, list[torch.Tensor]]], path: str) -> Callable[..., None]:
    import torch

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        entered.append((path, module, tensors))

    return enter


def _left(entered: list[tuple[str, nn.Module, list[torch.Tensor]]]) -> None:
    entered.pop()


def accepted_inputs(module: nn.Module) -> str:
    """Return a text on the input that a module accepts, if its class or parameters determine it; else an empty text."""
    from torch import nn

    match module:
        case nn.Linear():
            return f"[..., {module.in_features}]"
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            return f"[N, {module.in_channels}{', size' * len(module.kernel_size)}]"
        case nn.Embedding():
            return f"integers from 0 to {module.num_embeddings - 1}"
        case nn.LayerNorm():
            return f"[..., {', '.join(map(str, module.normalized_shape))}]"
        case nn.GroupNorm():
            return f"[N, {module.num_channels}, ...]"
        case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.BatchNorm3d():
            return f"[N, {module.num_features}, ...]"
        case nn.MultiheadAttention():
            return f"queries of [..., {module.embed_dim}]"
    own = [f"{name} {list(p.shape)}" for name, p in module.named_parameters(recurse=False)]
    return f"what fits its own {', '.join(own)}" if own else ""
