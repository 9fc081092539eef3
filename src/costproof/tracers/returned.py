"""Whether a traced run returns what the untraced one returned, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from costproof.models.jobs import Run

if TYPE_CHECKING:
    import torch


@contextmanager
def returned(run: Run) -> Iterator[list[Any]]:
    """Collect what the model returns while it is open; nothing for runs without numbers."""
    results: list[Any] = []
    with ExitStack() as undo:
        if run.expected is not None:
            keep = run.model.register_forward_hook(lambda module, args, output: results.append(_first(output)))
            undo.callback(keep.remove)
        yield results


def _first(output: Any) -> torch.Tensor:
    """The logits of a forward, or whatever a model without a head returns first."""
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output[0]
    return found


def changed(run: Run, results: list[torch.Tensor]) -> list[str]:
    """One sentence per traced forward that returned other bits than the untraced one."""
    import torch

    return [
        f"run {run.id}: traced forward {number} returned other logits than the untraced one"
        for number, result in enumerate(results, start=1)
        if run.expected is not None and not torch.equal(_bits(result), _bits(run.expected))
    ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits as integers, since a NaN does not equal itself."""
    import torch

    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
