"""Numbers for a model of transformers that was built on meta: seeded random ones, or those of a checkpoint."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.progress import Progress
from costproof.ledger.run import RANDOM, RunOptions
from costproof.ledger.workload import Workload
from costproof.models import flash_attention
from costproof.models.decoding.decoder import Decoder
from costproof.models.jobs import Built
from costproof.models.loading import Names, load, no_other_names, plan
from costproof.models.memory import require_room
from costproof.models.serving import require_device

if TYPE_CHECKING:
    import torch
    from torch import nn

SPREAD: Final = 0.02
"""Standard deviation of random weights, the one that the model is initialised with for training."""


def with_numbers(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    options: RunOptions,
    progress: Progress,
    names: Names = no_other_names,
) -> Built:
    """A model that was built on meta as its run wants it: on meta, or with numbers on a device, and what was done.

    Args:
        names: where tensors of a checkpoint go whose names are not the model's.

    Raises:
        Problems: the checkpoint does not fit.
        BadInput: there is no checkpoint.
        Incomplete: the device is not there or has no room, or no kernel of FlashAttention.
    """
    notes = flash_attention.notes(decoder.beside) if workload.attention == flash_attention.FLASH else ()
    if not options.real:
        return Built(model, notes)
    if notes:
        flash_attention.require_kernels()
    require_device(options.device)
    # The whole plan stands before a byte is allocated: a checkpoint that does not fit fails at once.
    found = None if options.weights == RANDOM else plan(options.weights, model, names, cut=options.layers is not None)
    require_room(model, options.device)
    _emptied(model, options.device)
    done = load(found, model, progress) if found else _random(model, options.seed, progress)
    return Built(model, (*done, *notes))


def _random(model: nn.Module, seed: int, progress: Progress) -> tuple[str, ...]:
    """Norms 1, biases 0, all else normal: a generator per tensor, so that a cut model has the same numbers."""
    import torch

    parameters = list(model.named_parameters())
    with torch.no_grad():
        for done, (name, parameter) in enumerate(parameters):
            progress("random weights", done, len(parameters))
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.fill_(1)
            elif parameter.dim() == 1 and name.endswith("bias"):
                parameter.zero_()
            else:
                # Drawn on the CPU: a GPU draws other numbers from the same seed.
                drawn = torch.empty(parameter.shape, dtype=parameter.dtype)
                parameter.copy_(drawn.normal_(0, SPREAD, generator=generator(seed, name)))
    return (f"random weights, seed {seed}: norms 1, biases 0, all others normal with standard deviation {SPREAD}",)


def generator(seed: int, name: str) -> torch.Generator:
    """A generator on the CPU that depends on the seed and on what it draws."""
    import torch

    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _emptied(model: nn.Module, device: str) -> None:
    """Memory for every parameter, one for those that are tied, and buffers (rotary frequencies) with their numbers.

    transformers initialises everything that is not marked as loaded; parameters are marked for that time.
    """
    model.to_empty(device=device)
    tie, initialise = (getattr(model, name, None) for name in ("tie_weights", "initialize_weights"))
    if tie is not None:
        tie()
    if initialise is None:
        raise Incomplete("the installed transformers cannot initialise buffers", fix="pip install 'transformers>=5'")
    marked: list[Any] = list(model.parameters())
    try:
        for parameter in marked:
            parameter._is_hf_initialized = True
        initialise()
    finally:
        for parameter in marked:
            del parameter._is_hf_initialized
