"""What a trace changes in its surroundings while it runs, put back however it ends."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torchlens_wrappers() -> Iterator[None]:
    """Take TorchLens's wrappers off torch's functions afterwards, if they were not there before.

    TorchLens wraps every function of torch on its first trace and leaves the wrappers in place. Taking
    them off, it leaves inherited methods on ``torch.Tensor`` itself; those go too.
    """
    import torch
    from torchlens import _state
    from torchlens.backends.torch.wrappers import unwrap_torch

    before, own = _state._is_decorated, frozenset(vars(torch.Tensor))
    try:
        yield
    finally:
        if not before:
            unwrap_torch()
            for name in frozenset(vars(torch.Tensor)) - own:
                delattr(torch.Tensor, name)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled modules and functions as they were written, so that a tracer sees inside them."""
    # Whoever compiled something has imported this; importing it for nothing takes a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", message="TorchLens: compiled model detected")
        yield
