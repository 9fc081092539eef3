"""A custom operator, and a model that uses it."""

import torch


@torch.library.custom_op("scaled::matmul", mutates_args=())
def matmul(x: torch.Tensor, w: torch.Tensor, by: float) -> torch.Tensor:
    """Return x w by."""
    return (x @ w) * by


@matmul.register_fake
def _(x: torch.Tensor, w: torch.Tensor, by: float) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


class Scaled(torch.nn.Module):
    """One call of the operator, with 16 x 64 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the operator."""
        return matmul(x, self.weight, 0.5)


def make() -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the model and a batch of 4 rows."""
    return Scaled(), torch.randn(4, 16)
