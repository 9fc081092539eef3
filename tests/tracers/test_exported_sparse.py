"""Sparse matrices in an export: products by what is not zero, nothing else by the rules of full ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import costproof

# Five numbers in a matrix of 3 x 6.
DENSE = torch.tensor([[1.0, 0, 0, 2, 0, 0], [0, 3, 0, 0, 0, 4], [0, 0, 5, 0, 0, 0]])


class Sparse(nn.Module):
    """Has a sparse buffer."""

    def __init__(self, matrix: torch.Tensor, use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.use = use
        self.register_buffer("matrix", matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        matrix: Any = self.matrix
        return self.use(matrix, x)


def static(module: nn.Module, *given: torch.Tensor) -> Any:
    """The ledger of the export; a run of it cannot be traced."""
    found = costproof.count(module, *given)
    assert found.verdict == "incomplete"
    return found.capture.by_source["static"]


@pytest.mark.parametrize("matrix", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize(
    "product", [torch.sparse.mm, torch.mm, lambda a, b: a @ b], ids=["sparse.mm", "mm", "operator"]
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_product_by_its_numbers(matrix: str, product: Any) -> None:
    ledger = static(Sparse(getattr(DENSE, matrix)(), product), torch.rand(6, 4))
    assert ledger.stage_total("forward", "flops") == 2 * 5 * 4
    assert ledger.unknown_ops == ()


def test_a_product_with_a_vector() -> None:
    ledger = static(Sparse(DENSE.to_sparse(), torch.mv), torch.rand(6))
    assert ledger.stage_total("forward", "flops") == 2 * 5


class Given(nn.Module):
    """Is given a sparse matrix."""

    def forward(self, matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = matrix @ x
        return result


def test_what_is_not_known_is_at_most_the_full_product() -> None:
    (unknown,) = static(Given(), DENSE.to_sparse(), torch.rand(6, 4)).unknown_ops
    assert unknown.bound_flops == 2 * 3 * 6 * 4


def test_other_operators_on_sparse_tensors_are_unknown() -> None:
    ledger = static(Sparse(DENSE.to_sparse(), lambda a, b: (a * 2).to_dense() @ b), torch.rand(6, 4))
    assert {op.op for op in ledger.unknown_ops} >= {"sparse.mul"}


def test_a_run_does_not_count_a_sparse_tensor_as_a_full_one() -> None:
    report = costproof.count(Given(), DENSE.to_sparse(), torch.rand(6, 4))
    assert report.capture.lacking["dynamic"].startswith("failed")
    assert report.discrepancy.verdict == "incomplete"
