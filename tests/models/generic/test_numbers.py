"""Integers that a model looks at, and inputs that come from a grid of patches: a small tower, counted by hand."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from costproof.models.generic.export_wrappers import around
from costproof.models.generic.factories import Given
from costproof.models.generic.inputs import example_inputs
from costproof.models.generic.makers import Case
from costproof.models.generic.module import GenericTarget
from costproof.patches.input_values import KnownIntegers, precomputed
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.snapshots.copies import with_tensors

IMAGES = [[1, 4, 6], [2, 2, 3]]
"""24 patches, and twice 6."""


def numbers(values: Any = IMAGES) -> KnownIntegers:
    return KnownIntegers(values, torch.empty(0, device="meta"))


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "in an export"])
def test_what_is_worked_out_of_numbers_alone_has_values(watched: bool) -> None:
    grid = numbers()
    with FakeTensorMode(allow_non_fake_inputs=True) if watched else torch.no_grad():
        lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        ends = F.pad(lengths.cumsum(0), (1, 0))
        assert ends.tolist() == [0, 24, 30, 36]
        assert (ends[1:] - ends[:-1]).max().item() == 24
        assert [int(rows) for _, rows, _ in grid] == [4, 2]
        assert (len(grid), grid.shape, grid.prod(-1).tolist(), grid.to("cpu").device.type) == (
            2, (2, 3), [24, 12], "meta",
        )  # fmt: skip


def test_beside_a_tensor_with_values_they_have_theirs() -> None:
    flags: Any = numbers([1, 0, 1])
    assert (torch.tensor([5, 6, 7]) * flags).tolist() == [5, 0, 7]
    assert (~numbers([1, 0]).bool()).tolist() == [False, True]
    marked: Any = numbers([7, 5, 7])
    assert ((marked == 7) & (marked != 5)).int().sum().item() == 2
    assert marked.new_ones(1, 2).tolist() == [[1, 1]]
    assert torch.arange(3)[numbers([1, 0, 1]).bool()].tolist() == [0, 2]


def test_beside_a_tensor_of_the_model_only_their_shape_is_left() -> None:
    made = numbers()[:, 1] * torch.empty(5, 2, device="meta")
    assert (type(made), tuple(made.shape), made.device.type) == (torch.Tensor, (5, 2), "meta")
    assert torch.empty(24, device="meta").view(numbers()[0, 1], -1).shape == (4, 6)
    assert copy.deepcopy(numbers()).tolist() == IMAGES


def ends(grid: Any, merge: int, kwargs: dict[str, Any] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Ends of the sequences, and the turned order of all patches: a loop over values, which may be left out."""
    if kwargs and "ends" in kwargs:
        return kwargs.pop("ends"), kwargs.pop("order")
    counts = [rows * columns for _, rows, columns in grid.tolist()]
    assert merge == 2
    found = torch.arange(sum(counts))
    return torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32), found[found >= 0].flip(0)


def chunks(x: Any, lengths: Any, size: int, kwargs: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Parts of a tensor and their lengths, which are worked out with values, or come prepared."""
    if kwargs and "parts" in kwargs:
        return kwargs.pop("parts"), kwargs.pop("lengths")
    whole = torch.full((int((lengths // size).sum()),), size)
    return nn.utils.rnn.pad_sequence(x.split(whole.tolist()), batch_first=True), whole


class Chunked(nn.Module):
    """A sound in parts of 3 frames; each attends to itself."""

    def forward(self, x: torch.Tensor, lengths: Any, **kwargs: Any) -> torch.Tensor:
        """[parts, 3, 5]."""
        parts, found = chunks(x, lengths, 3, kwargs=kwargs)
        seen = torch.arange(found.max().item(), device=x.device) < found.unsqueeze(1)
        made: torch.Tensor = parts @ parts.mT @ parts * seen.unsqueeze(-1)
        return made


def test_a_tensor_that_is_cut_by_numbers_leaves_the_lengths_of_its_parts_known() -> None:
    with precomputed(Chunked()):
        parts, lengths = chunks(torch.empty(12, 5, device="meta"), numbers([6, 6]), 3)
        made = Chunked()(torch.empty(12, 5, device="meta"), numbers([6, 6]))
    # 6 frames are 2 parts of 3, and so are the other 6.
    assert (tuple(parts.shape), parts.device.type, lengths.tolist()) == ((4, 3, 5), "meta", [3, 3, 3, 3])
    assert tuple(made.shape) == (4, 3, 5)


class Written(nn.Module):
    """Rows in a grid twice as fine as the one that it gets; one more in front of each image."""

    def forward(self, x: Any, grid: Any) -> torch.Tensor:
        """[patches of the first, patches of all]."""
        fine = grid.cpu() * torch.tensor([1, 2, 2])
        first = torch.repeat_interleave(torch.arange(len(fine), device=x.device), fine.prod(-1))
        made: torch.Tensor = x.split(fine.prod(-1).tolist())[0] @ x.T + first
        return made


@pytest.mark.parametrize("exported", [False, True])
def test_beside_integers_that_the_code_writes_down_they_have_values(exported: bool) -> None:
    module, x, grid = Written(), torch.empty(24 + 8, 5, device="meta"), numbers([[1, 2, 3], [1, 1, 2]])
    with precomputed(module):
        if exported:
            found = torch.export.export(Around(module, grid), (x,), strict=False)
            made = list(found.graph.nodes)[-1].args[0][0].meta["val"]
        else:
            made = module(x, grid)
    # 4 x 6 rows of the first image, 2 x 4 of the second one: 24 and 8.
    assert tuple(made.shape) == (24, 32)


class Around(nn.Module):
    def __init__(self, module: nn.Module, grid: KnownIntegers) -> None:
        super().__init__()
        self.module, self.grid = module, grid

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x, self.grid)


class Tower(nn.Module):
    """Patches of several images in a row; each attends to those of its image."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(patch_size=2, image_size=7, spatial_merge_size=2)
        self.table = nn.Embedding(50, 5)
        self.embed = nn.Conv2d(3, 5, 2, 2, bias=False)

    def forward(self, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """[patches, 5]."""
        places, order = ends(grid_thw, 2, kwargs=kwargs)
        x = self.embed(hidden_states.view(-1, 3, 2, 2)).view(-1, 5)[order] + self.table(order)
        parts = torch.split(x, (places[1:] - places[:-1]).tolist())
        return torch.cat([part @ part.T @ part for part in parts])


def test_a_tower_that_gets_patches_and_their_grid() -> None:
    with torch.device("meta"):
        module = Tower()
    # 7 pixels are 4 patches of 2, since two and two of them are merged; a patch has 3 channels of 2 x 2.
    made = example_inputs(Case(module, 2, 5, 7)).args
    assert {name: tuple(v.shape) for name, v in made.items()} == {"hidden_states": (32, 12), "grid_thw": (2, 3)}
    assert made["grid_thw"].tolist() == [[1, 4, 4], [1, 4, 4]]
    target = GenericTarget("tower", Given("tower", "here", module))
    found = count_sources(Prepared(target, target.workload(batch=2), ("static", "dynamic"), no_cache=True))
    assert (found.verdict, [ledger.notes for ledger in found.capture.ledgers]) == ("exact", [(), ()])
    for ledger in found.capture.ledgers:
        # 32 patches through 12 x 5; two images of 16 patches, two products of 16 x 16 x 5 each; 2 FLOPs a product.
        assert ledger.total("flops") == 2 * (32 * 12 * 5 + 2 * 2 * 16 * 16 * 5)


def test_what_may_be_left_out_is_worked_out_before() -> None:
    with precomputed(Tower()):
        places, order = ends(numbers([[1, 2, 2], [1, 2, 3]]), 2)
    assert (type(places).__name__, places.tolist()) == ("KnownIntegers", [0, 4, 10])
    assert (type(order).__name__, tuple(order.shape), order.device.type) == ("Tensor", (10,), "meta")


class Rows(nn.Module):
    """Images in rows of patches, with a shape for each."""

    config = SimpleNamespace(patch_size=2, image_size=[4, 6])

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 5)

    def forward(
        self,
        pixel_values: torch.Tensor | None = None,
        spatial_shapes: torch.Tensor | None = None,
        pixel_attention_mask: torch.Tensor | None = None,
    ) -> None:
        """Nothing."""


class Columns(nn.Module):
    """Images side by side in one, with a size for each."""

    config = SimpleNamespace(patch_size=2, image_size=4)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 5, 2, 2)

    def forward(self, pixel_values: torch.Tensor, target_sizes: torch.Tensor | None = None) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (Rows(), {"pixel_values": (2, 6, 12), "spatial_shapes": (2, 2), "pixel_attention_mask": (2, 6)}),
        (Columns(), {"pixel_values": (1, 3, 2, 2 * 2 * 4), "target_sizes": (2, 2)}),
    ],
    ids=["rows", "columns"],
)
def test_images_in_patches(module: nn.Module, shapes: dict[str, tuple[int, ...]]) -> None:
    made = example_inputs(Case(module, 2, 5, 7), None, tuple(shapes)).args
    assert {name: tuple(v.shape) for name, v in made.items()} == shapes


class Reads(nn.Module):
    def forward(self, x: torch.Tensor, grid: KnownIntegers) -> torch.Tensor:
        read: torch.Tensor = grid.prod(-1) - torch.ones(1, device=grid.device)
        return x + read


def test_numbers_in_a_wrapper_move_with_its_tensors() -> None:
    """What a model makes of them is on the model's device, also where a run imitates another one."""
    meta = torch.empty(0, device="meta")
    module = around(Reads(), ("x",), {"grid": numbers([[1, 2, 3]])})
    moved = with_tensors(module, lambda tensor: torch.empty_like(tensor, device="cpu"))
    assert [result.tolist() for result in moved(x=torch.ones(1))] == [[6]]
    assert [result.device.type for result in module(x=meta.new_empty(1))] == ["meta"]
