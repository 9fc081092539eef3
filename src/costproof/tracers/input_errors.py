"""Explain why a model does not run on its inputs: the innermost failing module, its input and what it accepts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from costproof.ledger.errors import NOT_GIVEN, Incomplete, first_line
from costproof.models.specs import Run
from costproof.patches.patch import patched
from costproof.patches.tensor import REFUSE_GRADIENTS, GradientTaken
from costproof.snapshots.module_snapshot import unwritten


def explain_failure(run: Run) -> Incomplete | None:
    """Run the model; return an error that locates the failure, or ``None`` if it runs or only lacks concrete values."""
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
                    "the model takes gradients inside its forward, and an export or a trace has none",
                    where=f"{path or '(root)'} ({type(module).__name__})",
                    expected="a forward without torch.autograd.grad and backward",
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
                fix="change the inputs, or the module",
            )
    return None


def _entering(entered: list[tuple[str, nn.Module, list[torch.Tensor]]], path: str) -> Callable[..., None]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        entered.append((path, module, tensors))

    return enter


def _left(entered: list[tuple[str, nn.Module, list[torch.Tensor]]]) -> None:
    entered.pop()


def accepted_inputs(module: nn.Module) -> str:
    """Return the input that a module accepts, as text, if its class or parameters determine it; else an empty text."""
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
