"""A model of transformers on meta whose forward brings its own surroundings: it runs without further care."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Attention, Dtype, Experts
from costproof.models import flash_attention
from costproof.models.decoding.decoder import config_of

if TYPE_CHECKING:
    import torch
    from torch import nn


def build(
    base: Any,
    config: Any,
    *,
    dtype: Dtype,
    attention: Attention,
    experts: Experts | None = None,
    parts: Mapping[str, str] | None = None,
    replaced: Mapping[str, Any] | None = None,
    inner: Iterable[str] = (),
) -> nn.Module:
    """The model on the meta device, in eval mode.

    Args:
        base: a class of transformers with ``_from_config``.
        config: its configuration; the implementations are written into it.
        dtype: of all parameters. Buffers keep theirs: rotary frequencies stay float32, as when a checkpoint
            is loaded in bfloat16.
        experts: kernel of the routed experts; ``None`` for a model without a mixture.
        parts: attention by part of the configuration, where the parts differ; ``attention`` for all else.
        replaced: names in the module of ``base`` that a forward finds replaced (:func:`prepared_masks` unless given).
        inner: other modules of transformers whose mask builders a forward finds replaced: of a decoder that the class
            takes from another family.

    Raises:
        Incomplete: the package of FlashAttention is missing.
    """
    import torch

    config._attn_implementation = attention if parts is None else dict(parts)
    if experts is not None:
        config._experts_implementation = experts
    flash = attention == flash_attention.FLASH
    with flash_attention.on_meta() if flash else nullcontext(), torch.device("meta"):
        model: nn.Module = surrounded(base, replaced, inner)._from_config(config, dtype=getattr(torch, dtype))
    _keep_in_float32(model)
    return model.eval()


def _keep_in_float32(model: nn.Module) -> None:
    """Buffers that stay float32 whatever dtype a checkpoint is loaded in, as the class lists them."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name in kept:
                setattr(module, name, buffer.float())


def surrounded(base: Any, replaced: Mapping[str, Any] | None = None, inner: Iterable[str] = ()) -> Any:
    """A subclass of a model's class that differs in its forward alone, which brings its own surroundings."""
    modeling = sys.modules[base.__module__]
    names = {modeling: prepared_masks(modeling) if replaced is None else replaced}
    names |= {module: prepared_masks(module) for module in map(import_module, inner)}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with running(names, self.dtype, flash=uses_flash(self) and self.device.type == "meta"):
            return base.forward(self, *args, **kwargs)

    return type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})


def prepared_masks(modeling: Any) -> dict[str, Any]:
    """The mask builders of a module, replaced by what returns the mask that the model was called with.

    transformers builds a mask from values, or one more than it runs where it is exported: neither is what runs.
    """

    def given(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return attention_mask

    return {n: given for n in vars(modeling) if n.startswith("create_") and n.endswith("causal_mask")}


def uses_flash(model: nn.Module) -> bool:
    """Whether the decoder runs FlashAttention."""
    return bool(config_of(model).get_text_config()._attn_implementation == flash_attention.FLASH)


@contextmanager
def running(
    replaced: Mapping[Any, Mapping[str, Any]], dtype: torch.dtype | None = None, *, flash: bool = False
) -> Iterator[None]:
    """What a forward on meta needs, for the time of the forward alone.

    No gradients; names in some modules are replaced, such as checks that need values; for dtypes
    other than bfloat16 the shape kernel of grouped GEMMs, which on meta refuses what the real kernels take, is
    replaced by one that does not; with ``flash`` the package FlashAttention is made to run on shapes.
    """
    import torch

    before = {module: {name: vars(module)[name] for name in names} for module, names in replaced.items()}
    library = None
    try:
        for module, names in replaced.items():
            vars(module).update(names)
        if dtype not in (None, torch.bfloat16) and not torch.compiler.is_compiling():
            library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
            library.impl("_grouped_mm", _grouped_mm_shape, "Meta", allow_override=True)  # type: ignore[no-untyped-call]
        with flash_attention.on_meta() if flash else nullcontext(), torch.no_grad():
            yield
    finally:
        for module, names in before.items():
            vars(module).update(names)
        if library is not None:
            library._destroy()  # type: ignore[no-untyped-call]


def _grouped_mm_shape(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """[rows, K] by [experts, K, N] gives [rows, N]."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or mat_a.shape[1] != mat_b.shape[1]:
        raise ValueError(f"grouped GEMM of {tuple(mat_a.shape)} by {tuple(mat_b.shape)}")
    import torch

    # The operator itself, not the method: a tracer of Python calls must see one grouped GEMM here.
    result: torch.Tensor = torch.ops.aten.new_empty.default(
        mat_a, [mat_a.shape[0], mat_b.shape[2]], dtype=out_dtype or mat_a.dtype
    )
    return result
