"""Ten models of odd shape in one: each child of :class:`Odd` is one oddity, small enough to draw by hand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from costproof.models.specs import Run


@dataclass
class Parts:
    """What :class:`Split` returns."""

    left: torch.Tensor
    right: torch.Tensor
    count: int = 2


class Twice(nn.Module):
    """1. A shared module, called twice, its second call on what the first gave."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """fc(relu(fc(x)))."""
        result: torch.Tensor = self.fc(torch.relu(self.fc(x)))
        return result


class Arm(nn.Module):
    """2. One of two parents of a module; the second arm of :class:`Odd` holds the first one's ``core``."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """core(x) + x."""
        result: torch.Tensor = self.core(x) + x
        return result


class Recursive(nn.Module):
    """3. Calls itself twice, then its layer: three calls deep."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        """fc(fc(fc(x)))."""
        if depth:
            x = self(x, depth - 1)
        result: torch.Tensor = self.fc(x)
        return result


class OutOfOrder(nn.Module):
    """4. A list of four whose members run as 2, 0, 1; the last one never does."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual stream: x + step(x), three times."""
        for i in (2, 0, 1):
            x = x + self.steps[i](x)
        return x


class Nested(nn.Module):
    """5. Containers in containers; only the innermost are called."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.ModuleDict({"rows": nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.GELU())])})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One sequence, found through a dictionary and a list."""
        rows: Any = self.table["rows"]
        result: torch.Tensor = rows[0](x)
        return result


class Split(nn.Module):
    """6. Returns a dataclass of tensors and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Parts:
        """Both halves of fc(x), each [n, 5, 2]."""
        left, right = self.fc(x).chunk(2, dim=-1)
        return Parts(left, right)


class Raising(nn.Module):
    """Runs its layer, then raises."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Never returns."""
        self.fc(x)
        raise ValueError("on purpose")


class Catching(nn.Module):
    """7. A child raises, and the parent goes on with another."""

    def __init__(self) -> None:
        super().__init__()
        self.bad = Raising()
        self.good = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """good(x)."""
        with suppress(ValueError):
            x = self.bad(x)
        result: torch.Tensor = self.good(x)
        return result


class Functional(nn.Module):
    """8. No children at all: operators alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """softmax(x @ W)."""
        return functional.softmax(functional.linear(x, self.weight), dim=-1)


class Tied(nn.Module):
    """10. Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4, bias=False)
        self.exit = nn.Linear(4, 4, bias=False)
        self.exit.weight = self.enter.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """exit(enter(x))."""
        result: torch.Tensor = self.exit(self.enter(x))
        return result


class Odd(nn.Module):
    """All of them in a row. ``compiled`` is oddity 9: a module behind ``torch.compile``."""

    def __init__(self) -> None:
        super().__init__()
        core = nn.Linear(4, 4)
        self.twice = Twice()
        self.one, self.other = Arm(core), Arm(core)
        self.recursive = Recursive()
        self.out_of_order = OutOfOrder()
        self.nested = Nested()
        self.split = Split()
        self.catching = Catching()
        self.functional = Functional()
        self.compiled = torch.compile(nn.Linear(4, 4), backend="eager")
        self.tied = Tied()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 5, 4] -> [n, 5, 4]."""
        x = self.twice(x)
        x = self.one(x) + self.other(x)
        x = self.out_of_order(self.recursive(x))
        parts = self.split(self.nested(x))
        x = torch.cat([parts.right, parts.left], dim=-1)
        x = self.compiled(self.functional(self.catching(x)))
        result: torch.Tensor = self.tied(x)
        return result


def odd(device: str = "meta") -> Odd:
    """The model, in eval mode."""
    torch.manual_seed(0)
    with torch.device(device):
        return Odd().eval()


def odd_run(module: nn.Module, device: str = "meta") -> Run:
    """One forward on [2, 5, 4]."""
    x = torch.ones(2, 5, 4, device=device)
    return Run("odd", module, {"x": x}, lambda path, call: ("stage", "once"))
