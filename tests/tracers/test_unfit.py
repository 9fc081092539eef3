"""A model that does not take its inputs: the module, what it takes and what it got, before what a tracer says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import costproof
from costproof.ledger.errors import BadInput, Incomplete


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


class Nested(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), inner])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("inner", "shape", "where", "expected", "got"),
    [
        (nn.Sequential(nn.Linear(8, 6), nn.Linear(8, 4)), (2, 8), "blocks.1.1 (Linear)", "[..., 8]", "[2, 6] float32"),
        (nn.Conv2d(3, 4, 3), (1, 4, 9, 9), "blocks.1 (Conv2d)", "[N, 3, size, size]", "[1, 4, 9, 9] float32"),
        (nn.LayerNorm(6), (2, 5), "blocks.1 (LayerNorm)", "[..., 6]", "[2, 5] float32"),
        (nn.Embedding(10, 4), (3,), "blocks.1 (Embedding)", "integers from 0 to 9", "[3] float32"),
        (Own(), (2, 8), "blocks.1 (Own)", "what fits its own w [5, 5]", "[2, 8] float32"),
    ],
)
def test_the_module_and_both_shapes_are_named(
    inner: nn.Module, shape: tuple[int, ...], where: str, expected: str, got: str
) -> None:
    model = Nested(inner)
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    with pytest.raises(Incomplete) as caught:
        costproof.count(model, torch.zeros(shape))
    error = caught.value
    assert (error.what, error.where, error.expected) == ("the model does not run on these inputs", where, expected)
    assert str(error.got).startswith(f"{got}; ")
    assert "Expected cond" not in str(error)
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()] == hooks


class Forces(nn.Module):
    """The gradient of an energy by positions, as in learned force fields."""

    def __init__(self, *, backward: bool) -> None:
        super().__init__()
        self.net, self.backward = nn.Linear(3, 1), backward

    def forward(self, x: torch.Tensor) -> torch.Tensor | None:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.net(x).sum()
            if not self.backward:
                return torch.autograd.grad(energy, x)[0]
            energy.backward()
        return x.grad


class Transformed(nn.Module):
    """A Jacobian, or a gradient, by functions that the export or the run sees as one operator."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.net, self.transform = nn.Linear(3, 1), transform

    def forward(self, x: torch.Tensor) -> Any:
        return self.transform(lambda y: self.net(y).sum(), x)


def dual(f: Any, x: torch.Tensor) -> Any:
    level: Any = torch.autograd.forward_ad
    with level.dual_level():
        made = level.make_dual(x, torch.ones_like(x))
        return level.unpack_dual(f(made)).tangent


@pytest.mark.parametrize(
    "transform",
    [
        torch.autograd.functional.jacobian,
        lambda f, x: torch.func.grad(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
        dual,
    ],
    ids=["jacobian", "grad", "jvp", "dual"],
)
def test_gradients_that_a_source_does_not_refuse_are_named(transform: Any) -> None:
    with pytest.raises(Incomplete, match="takes gradients inside its forward"):
        costproof.count(Transformed(transform), torch.ones(4, 3))


INT4: Any = getattr(torch, "int4")  # noqa: B009
UINT1: Any = getattr(torch, "uint1")  # noqa: B009


def test_a_dtype_without_whole_bytes_is_refused() -> None:
    linear = nn.Linear(4, 4)
    linear.register_buffer("packed", torch.empty(8, dtype=UINT1))
    for model, x, got in ((linear, torch.ones(4), "uint1"), (nn.Flatten(), torch.empty(8, 2, dtype=INT4), "int4")):
        with pytest.raises(BadInput, match="dtype of which no source can count the bytes") as caught:
            costproof.count(model, x)
        assert caught.value.got == got


class Repeated(nn.Module):
    """Three products, in a loop that the export holds as one operator with a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(4))

    def forward(self, x: torch.Tensor) -> Any:
        loop: Any = torch._higher_order_ops.while_loop
        return loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ self.w), (torch.tensor(0), x))[1]


def test_graphs_in_a_graph_are_not_half_counted() -> None:
    """Without them the export would lack their reads of weights, which the run has."""
    report = costproof.count(Repeated(), torch.ones(6, 4))
    assert (report.verdict, report.exit_code) == ("incomplete", 3)
    assert "while_loop" in report.capture.lacking["static"]
    assert report.capture.ledger("dynamic").total("flops") == 3 * 2 * 6 * 4 * 4


@pytest.mark.parametrize("backward", [False, True])
def test_gradients_inside_forward_are_named(backward: bool) -> None:
    with pytest.raises(Incomplete, match="takes gradients inside its forward") as caught:
        costproof.count(Nested(Forces(backward=backward)), torch.ones(4, 3))
    assert caught.value.where == "blocks.1 (Forces)"
    assert "count the network that it differentiates" in str(caught.value.fix)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two processes, of which this one is the first and no other is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("how", ["a weight", "fully_shard", "an input"])
def test_tensors_of_several_processes_are_refused(mesh: Any, how: str) -> None:
    module, x = nn.Sequential(nn.Linear(8, 8)), torch.ones(4, 8)
    if how == "fully_shard":
        fully_shard(module, mesh=mesh)
    elif how == "an input":
        x = distribute_tensor(x, mesh, [Shard(0)])
    else:
        module[0].weight = nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]))
    with pytest.raises(BadInput, match="spread over several processes") as caught:
        costproof.count(module, x)
    assert "fully_shard" in str(caught.value.expected)
