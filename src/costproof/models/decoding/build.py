"""Build a model of transformers on the meta device, and give it random or published weights for a real run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from costproof.ledger.errors import Incomplete
from costproof.ledger.progress import Progress
from costproof.ledger.run import RANDOM, RunOptions
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel, Workload
from costproof.models.decoding.decoder import PACKED, ROW_ATTENTION, SHARED, Decoder, config_of
from costproof.models.specs import Built
from costproof.models.target import require_device
from costproof.patches import flash_attention
from costproof.patches.modules import prepared_masks, running
from costproof.weights.loading import Names, keep_in_float32, load, no_other_names, plan, require_room
from costproof.weights.random_values import fill_random

if TYPE_CHECKING:
    from torch import nn


def build(
    base: Any,
    config: Any,
    *,
    dtype: Dtype,
    attention: AttentionKind,
    experts: ExpertKernel | None = None,
    parts: Mapping[str, str] | None = None,
    replaced: Mapping[str, Any] | None = None,
    inner: Iterable[str] = (),
) -> nn.Module:
    """Build a model of a transformers class on the meta device from a configuration, in eval mode.

    Its forward patches the mask builders of transformers while it runs, see :func:`patch_forward`.

    Args:
        base: a class of transformers with ``_from_config``.
        config: its configuration; the attention and expert implementations are written into it.
        dtype: of all parameters. Buffers keep their dtype: rotary frequencies stay float32, as when a checkpoint is
            loaded in bfloat16.
        experts: kernel of the routed experts; ``None`` for a model without experts.
        parts: attention implementation by part of the configuration, if parts differ from ``attention``.
        replaced: names in the module of ``base`` -> their replacements (default: :func:`prepared_masks`).
        inner: other modules of transformers whose mask builders are replaced: those of a decoder that the class takes
            from another family.

    Raises:
        Incomplete: the package of FlashAttention is missing.
    """
    import torch

    config._attn_implementation = attention if parts is None else dict(parts)
    if experts is not None:
        config._experts_implementation = experts
    flash = attention == flash_attention.FLASH
    with flash_attention.on_meta() if flash else nullcontext(), torch.device("meta"):
        model: nn.Module = patch_forward(base, replaced, inner)._from_config(config, dtype=getattr(torch, dtype))
    keep_in_float32(model)
    return model.eval()


def patch_forward(base: Any, replaced: Mapping[str, Any] | None = None, inner: Iterable[str] = ()) -> Any:
    """Return a subclass whose forward runs inside :func:`running`; arguments as for :func:`build`."""
    modeling = sys.modules[base.__module__]
    names = {modeling: prepared_masks(modeling) if replaced is None else replaced}
    names |= {module: prepared_masks(module) for module in map(import_module, inner)}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flash = uses_flash(self) and self.device.type != "cuda"
        with running(names, self.dtype, flash=flash), own_attention(self):
            return base.forward(self, *args, **kwargs)

    return type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


@contextmanager
def own_attention(model: nn.Module) -> Iterator[None]:
    """Register our attention functions for batches of rows and for context parallelism while the block runs."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known: dict[str, Any] = ALL_ATTENTION_FUNCTIONS._global_mapping
    name = config_of(model).get_text_config()._attn_implementation
    added = name in (PACKED, SHARED) and name not in known
    if added and name == PACKED:
        from costproof.models.decoding.modules import attend_rows

        known[name] = attend_rows
    elif added:
        from costproof.models.decoding.sequence_model import attend_own

        known[name] = attend_own
    try:
        yield
    finally:
        if added:
            del known[name]


def uses_flash(model: nn.Module) -> bool:
    """Return whether the decoder runs FlashAttention."""
    name = getattr(model, ROW_ATTENTION, config_of(model).get_text_config()._attn_implementation)
    return bool(name == flash_attention.FLASH)


def with_numbers(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    options: RunOptions,
    progress: Progress,
    names: Names = no_other_names,
) -> Built:
    """Return a model with notes on its run; for a real run, allocate it on the device and load or draw its weights.

    The model stays on the meta device unless ``options`` ask for a real run.

    Args:
        names: maps tensors of a checkpoint whose names differ from those of the model.

    Raises:
        Problems: the checkpoint does not fit.
        BadInput: there is no checkpoint.
        Incomplete: the device is missing or too small, or the kernels of FlashAttention are missing.
    """
    notes = flash_attention.notes(decoder.beside) if workload.attention == flash_attention.FLASH else ()
    if not options.real:
        return Built(model, notes)
    if notes:
        flash_attention.require_kernels()
    require_device(options.device)
    # Planned before anything is allocated, so that a checkpoint that does not fit fails at once.
    checkpoint = (
        None if options.weights == RANDOM else plan(options.weights, model, names, cut=options.layers is not None)
    )
    require_room(model, options.device)
    _allocate(model, options.device)
    done = load(checkpoint, model, progress) if checkpoint else fill_random(model, options.seed, progress)
    return Built(model, (*done, *notes))


def _allocate(model: nn.Module, device: str) -> None:
    """Allocate parameters, each tied one once, and compute buffers such as rotary frequencies.

    ``initialize_weights`` of transformers fills every tensor that is not marked as loaded. Parameters are marked during
    the call, so only buffers are computed.
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
