"""Numbers for a snapshot's model: random ones, or those of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from costproof.ledger.progress import Progress
from costproof.ledger.run import RANDOM, RunOptions
from costproof.models.decoding.weights import SPREAD, generator
from costproof.models.deepseek_ocr.checkpoint import placed
from costproof.models.deepseek_ocr.remote_code.build import build
from costproof.models.deepseek_ocr.remote_code.snapshot import Snapshot
from costproof.models.loading import load, plan
from costproof.models.serving import require_device

if TYPE_CHECKING:
    from torch import nn

_BLOCK: Final = 1_000_003


def with_numbers(
    snapshot: Snapshot, dtype: str, options: RunOptions, progress: Progress
) -> tuple[nn.Module, tuple[str, ...]]:
    """The model on the device of the run with random weights or those of a checkpoint; what was done, in sentences.

    Raises:
        BadInput: as :func:`build`, or there is no checkpoint.
        Problems: the checkpoint does not fit the model.
    """
    require_device(options.device)
    if options.weights == RANDOM:
        model = build(snapshot, dtype, options.device)
        random_weights(model, options.seed)
        return model, (f"the vendor's code with random weights, seed {options.seed}",)
    # A checkpoint that does not fit is told before a byte is allocated.
    found = plan(options.weights, build(snapshot, dtype, "meta"), placed, cut=options.layers is not None)
    model = build(snapshot, dtype, options.device)
    return model, ("the vendor's code with the weights of a checkpoint", *load(found, model, progress))


def random_weights(model: nn.Module, seed: int) -> None:
    """Fill all parameters from one seeded block of normal numbers, repeated; norms scale by 1.

    Drawing 3.3 billion numbers takes longer than the run. The block's length is a prime, so no two rows of a
    matrix are alike; where a tensor begins in it follows from its name, so that a cut model has the same numbers.
    """
    import torch

    drawn = torch.randn(_BLOCK, generator=generator(seed, "block")) * SPREAD
    blocks = {parameter.dtype: drawn.to(parameter.dtype) for parameter in model.parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.fill_(1.0)
                continue
            flat, block = parameter.view(-1), blocks[parameter.dtype]
            start, done = generator(seed, name).initial_seed() % _BLOCK, 0
            while done < flat.numel():
                taken = min(flat.numel() - done, _BLOCK - start)
                flat[done : done + taken] = block[start : start + taken]
                done, start = done + taken, 0
