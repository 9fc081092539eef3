"""The ONNX export of a forward: products by hand, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript", reason="costproof[onnx] is not installed")

from costproof.ledger.errors import Incomplete
from costproof.tracers.counters import onnx_graph
from costproof.tracers.counters.onnx_graph import onnx
from costproof.tracers.counters.tools import positional


class Layers(nn.Module):
    """A convolution that is turned round, an einsum, a product of two activations, in modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Linear(4, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 3, 4, 4]."""
        rows = self.up(x).flatten(2).transpose(1, 2)
        scores = torch.einsum("bik,bjk->bij", rows, rows).softmax(-1)
        found: torch.Tensor = self.out(scores @ rows)
        return found


def rows(module: nn.Module, **args: torch.Tensor) -> dict[tuple[str, str], int]:
    """(module, operator) -> FLOPs."""
    with torch.device("meta"):
        model, given = positional(module.to("meta"), args)
    return {(r.module, r.kind): r.value for r in onnx(model, given).rows}


def test_every_product_in_its_module() -> None:
    found = rows(Layers(), x=torch.empty(2, 3, 4, 4, device="meta"))
    # Each of 2*3*4*4 inputs is spread over 4 channels of 2 x 2; 64 rows of width 4 with each other, and back.
    assert found == {
        ("up", "convolution"): 2 * 96 * 4 * 4,
        ("", "einsum"): 2 * 2 * 64 * 64 * 4,
        ("", "matmul"): 2 * 2 * 64 * 64 * 4,
        ("out", "linear"): 2 * 2 * 64 * 4 * 5,
    }


def test_an_operator_without_a_place_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "_NO_FLOPS", onnx_graph._NO_FLOPS - {"Softmax"})
    with pytest.raises(Incomplete, match="no rule for operators of the ONNX graph") as caught:
        rows(Layers(), x=torch.empty(2, 3, 4, 4, device="meta"))
    assert caught.value.got == "Softmax"


class Refused(nn.Module):
    """An operator that the exporter has no form for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B]."""
        found: Any = torch.linalg.eigvalsh(x)
        return torch.as_tensor(found)


def test_what_cannot_be_exported_is_said() -> None:
    with pytest.raises(Incomplete, match=r"torch\.onnx cannot export the model"):
        rows(Refused(), x=torch.empty(2, 3, 3, device="meta"))
