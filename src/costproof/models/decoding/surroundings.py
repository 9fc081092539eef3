"""What a forward on meta needs, arranged around it and undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from costproof.models import flash_attention

if TYPE_CHECKING:
    import torch


@contextmanager
def running(
    modeling: Any, replaced: Mapping[str, Any], dtype: torch.dtype | None = None, *, flash: bool = False
) -> Iterator[None]:
    """What a forward on meta needs, for the time of the forward alone.

    No gradients; names of the module ``modeling`` are replaced, such as checks that need values; for dtypes
    other than bfloat16 the shape kernel of grouped GEMMs, which on meta refuses what the real kernels take, is
    replaced by one that does not; with ``flash`` the package FlashAttention is made to run on shapes.
    """
    import torch

    before = {name: vars(modeling)[name] for name in replaced}
    library = None
    try:
        vars(modeling).update(replaced)
        if dtype not in (None, torch.bfloat16) and not torch.compiler.is_compiling():
            library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
            library.impl("_grouped_mm", _grouped_mm_shape, "Meta", allow_override=True)  # type: ignore[no-untyped-call]
        with flash_attention.on_meta() if flash else nullcontext(), torch.no_grad():
            yield
    finally:
        vars(modeling).update(before)
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
