"""What a module is run with: sizes of a workload, and what it has of its own where nobody says otherwise."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, get_args

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import AttentionKind, Dtype, Workload
from costproof.models.generic.kept import TARGET_LENGTH
from costproof.models.generic.made import Made
from costproof.models.generic.makers import Case

if TYPE_CHECKING:
    from torch import nn


TEXT_ALONE: Final = 0
"""Pixels per side of an image where there is none, for models that can also see."""


def side_of(workload: Workload) -> int | None:
    """Pixels per side of an image, if they were chosen."""
    side = workload.inputs.get("image_size")
    return side if isinstance(side, int) else None


def too_short(workload: Workload, filled: int) -> list[BadInput]:
    """What is wrong with a prompt in which images or sounds of one element fill so many positions."""
    if workload.text_tokens >= filled:
        return []
    what = "the prompt is shorter than what images or sounds fill of it"
    fix = "a longer prompt, or --image-size 0: a text alone"
    return [BadInput(what, where="--seq-len", expected=f"at least {filled}", got=workload.text_tokens, fix=fix)]


def case_of(made: Made, workload: Workload) -> Case:
    """What the inputs of a module are made for."""
    import torch

    return Case(
        made.module,
        workload.batch,
        workload.text_tokens,
        TARGET_LENGTH if workload.text_tokens != TARGET_LENGTH else TARGET_LENGTH + 2,
        side_of(workload),
        getattr(torch, workload.dtype),
        str(workload.inputs.get("input") or ""),
    )


def dtype_of(module: nn.Module) -> Dtype:
    """The dtype of most elements of a module's parameters, as far as a workload can say it."""
    from torch.nn.parameter import is_lazy

    elements = Counter[str]()
    for p in module.parameters():
        if p.is_floating_point() and not is_lazy(p):  # a run gives it its shape
            elements[str(p.dtype).removeprefix("torch.")] += p.numel()
    name = max(elements, key=lambda dtype: elements[dtype], default="float32")
    return name if name in get_args(Dtype) else "float32"  # type: ignore[return-value]


def dtypes_of(module: nn.Module) -> tuple[str, ...]:
    """The dtypes of a module's parameters."""
    return tuple(sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}))


def attention_of(module: nn.Module) -> AttentionKind:
    """What a model of transformers runs, without having been told."""
    config = attribute(module, "config", None)
    # A configuration that was told nothing belongs to a model that has nothing to choose from.
    name = attribute(config, "_attn_implementation", "sdpa") or "eager"
    return name if name in get_args(AttentionKind) else "sdpa"  # type: ignore[return-value]
