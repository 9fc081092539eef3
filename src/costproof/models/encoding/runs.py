"""A forward with numbers."""

from __future__ import annotations

from dataclasses import replace

from costproof.models.decoding.build import generator
from costproof.models.jobs import Run


def real(run: Run, highest: int, seed: int) -> Run:
    """A run on meta with numbers that depend on the seed alone, and what it must return.

    Args:
        highest: whole numbers are drawn below it; all else is normal.
    """
    import torch

    device = next(run.model.parameters()).device

    def drawn(name: str, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        source = generator(seed, name)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=source).to(device, dtype)
        return torch.randint(0, highest, shape, generator=source).to(device)

    kwargs = {k: drawn(k, v.shape, v.dtype) if isinstance(v, torch.Tensor) else v for k, v in run.kwargs.items()}
    with torch.no_grad():
        return replace(run, kwargs=kwargs, expected=run.model(**kwargs)[0])
