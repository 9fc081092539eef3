"""Run forwards of classes of transformers on the meta device: masks, checks and kernels that need concrete values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

from costproof.patches import flash_attention

if TYPE_CHECKING:
    import torch


def prepared_masks(modeling: Any) -> dict[str, Any]:
    """Return replacements for the mask builders of a module that pass on the mask of the caller.

    transformers builds masks from tensor values, and builds a different one during an export.
    """

    def pass_on(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return attention_mask

    return {n: pass_on for n in vars(modeling) if n.startswith("create_") and n.endswith("causal_mask")}


def no_image_check() -> dict[str, Any]:
    """Return the replacement of the check that image tokens match features, which needs concrete values."""
    return {"torch_compilable_check": lambda *args, **kwargs: None}


def symbolic_int() -> AbstractContextManager[Any]:
    """Patch ``int()`` of the native module, which specialises symbolic sizes, to return them unchanged."""
    import torch
    from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

    return mock.patch.object(modeling, "int", lambda s: s if isinstance(s, torch.SymInt) else int(s), create=True)


@contextmanager
def running(
    replaced: Mapping[Any, Mapping[str, Any]], dtype: torch.dtype | None = None, *, flash: bool = False
) -> Iterator[None]:
    """Apply the patches that a forward on the meta device needs, and undo them at the end.

    Gradients are off. The given names of modules are replaced, for example checks that need concrete values. For
    dtypes other than bfloat16, the meta kernel of grouped GEMMs is replaced, because it rejects dtypes that the real
    kernels accept.

    Args:
        replaced: module -> name -> replacement.
        flash: whether the functions of FlashAttention are replaced by ones that run on the meta device.
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
    """Return an empty [rows, N] for [rows, K] by [experts, K, N]."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or mat_a.shape[1] != mat_b.shape[1]:
        raise ValueError(f"grouped GEMM of {tuple(mat_a.shape)} by {tuple(mat_b.shape)}")
    import torch

    # The operator itself, not the method: a tracer of Python calls must see one grouped GEMM here.
    result: torch.Tensor = torch.ops.aten.new_empty.default(
        mat_a, [mat_a.shape[0], mat_b.shape[2]], dtype=out_dtype or mat_a.dtype
    )
    return result
