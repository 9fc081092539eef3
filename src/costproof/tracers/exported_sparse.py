"""Sparse tensors in an export: rules count full ones, so that a call with a sparse one is another operator here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from costproof.opgraph.rules.matmul import NONZERO

if TYPE_CHECKING:
    import torch
    from torch import fx

_PRODUCTS: Final = ("mm", "matmul", "mv", "_sparse_mm")
_PRODUCT: Final = "sparse.mm"


def is_sparse(node: fx.Node) -> bool:
    """Whether it is a tensor of another layout than a full one."""
    import torch

    return getattr(node.meta.get("val"), "layout", torch.strided) is not torch.strided


def sparse_call(
    name: str, attrs: dict[str, Any], node: fx.Node, program: torch.export.ExportedProgram
) -> tuple[str, dict[str, Any]]:
    """Name and options of a call that takes sparse tensors: of a product of them, or of an operator without a rule."""
    parts = name.split(".")
    short = parts[1] if len(parts) > 1 else name
    if short not in _PRODUCTS:
        return f"sparse.{short}", attrs
    first, *others = node.all_input_nodes
    held = None if any(map(is_sparse, others)) else _tensor(first, program)
    return _PRODUCT, attrs if held is None else {**attrs, NONZERO: int(held._nnz())}


def _tensor(node: fx.Node, program: torch.export.ExportedProgram) -> Any:
    """The tensor with its numbers that a placeholder stands for, if the program holds it."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    target = names.get(node.name)
    found = program.state_dict.get(target, program.constants.get(target)) if target is not None else None
    return found if found is not None and hasattr(found, "_nnz") and is_sparse(node) and not found.is_meta else None
