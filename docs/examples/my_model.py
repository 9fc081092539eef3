"""A model of your own, for docs/any-model.md: a function returns the module, and the inputs of a call."""

import torch
from torch import nn


def make() -> tuple[nn.Module, torch.Tensor]:
    """Two linear layers on three rows."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), torch.zeros(3, 16)
