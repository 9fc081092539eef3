"""What images and sounds fill of a text, and what a mask without numbers is taken to hide of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from costproof.ledger.node import total
from costproof.models.generic.export_wrappers import around
from costproof.models.generic.memo import places
from costproof.models.generic.towers import NONE, towers
from costproof.models.specs import ExportJob
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.patches.inference import inference_context
from costproof.patches.input_values import ALL_ROWS
from costproof.tracers.exported import export_graph


class Seeing(nn.Module):
    """Puts 3 rows per image, of which a mask may hide some, where a text has place for them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.decoder = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.tower, self.lists = nn.Linear(6, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        rows = pixel_values[(pixel_values != 0).any(-1)]
        found: torch.Tensor = self.tower(rows)
        for part in self.lists:
            found = part(found)
        return found

    def get_placeholder_mask(
        self, input_ids: torch.Tensor, embedded: torch.Tensor, features: torch.Tensor
    ) -> torch.Tensor:
        mask = (input_ids == 5).unsqueeze(-1).expand_as(embedded)
        assert embedded[mask].numel() == features.numel()
        assert embedded[input_ids == 5].shape == features.shape
        return mask

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        embedded = self.embed(input_ids)
        if pixel_values is not None:
            features = self.get_image_features(pixel_values)
            embedded = embedded.masked_scatter(self.get_placeholder_mask(input_ids, embedded, features), features)
        found: torch.Tensor = self.decoder(embedded)
        return found


class Splitting(Seeing):
    """Splits what it made by the number of images that each text has."""

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        real = (pixel_values == 0).sum(dim=(-1, -2)) != pixel_values.shape[2:].numel()
        images = pixel_values[real]
        parts = self.tower(images).split(real.sum(dim=1).tolist())
        return torch.cat([part.flatten(0, 1) for part in parts])


class Choosing(Seeing):
    """Sends rows one way or the other: what a mask picks here is work."""

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        embedded: torch.Tensor = self.embed(input_ids)
        return embedded[input_ids == 5]


def _on_meta(kind: type[nn.Module]) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    with torch.device("meta"):
        return kind(), {"input_ids": torch.zeros(2, 8, dtype=torch.long), "pixel_values": torch.empty(2, 3, 6)}


def test_no_row_of_an_image_is_taken_for_padding() -> None:
    model, inputs = _on_meta(Seeing)
    with inference_context(model) as notes:
        assert model(**inputs).shape == (2, 8, 4)
    assert ALL_ROWS in notes
    # Afterwards all is as it was: which rows these are is not known.
    with pytest.raises(NotImplementedError):
        model(**inputs)


def test_every_image_of_a_batch_is_one() -> None:
    with torch.device("meta"):
        model, pixels = Splitting(), torch.empty(2, 3, 5, 6)
    with inference_context(model):
        assert model.get_image_features(pixels).shape == (2 * 3 * 5, 4)
    some = torch.ones(2, 3, 5, 6)
    some[0, 1:] = 0
    real = Splitting()
    with inference_context(real):
        assert real.get_image_features(some).shape == (4 * 5, 4)


def test_elsewhere_a_mask_is_not_guessed() -> None:
    model, inputs = _on_meta(Choosing)
    with inference_context(model), pytest.raises(NotImplementedError):
        model(**inputs)


def test_with_numbers_a_mask_hides_what_it_hides() -> None:
    ids = torch.tensor([[5, 5, 0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0]])
    pixels = torch.ones(2, 3, 6)
    pixels[0, 0], pixels[1, 1:] = 0, 0
    model = Seeing()
    with inference_context(model) as notes:
        assert model.get_image_features(pixels).shape == (3, 4)
        assert model(ids, pixels).shape == (2, 8, 4)
    assert ALL_ROWS not in notes


class Picking(Seeing):
    """Asks which rows are not padding, and picks these."""

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        rows = pixel_values.flatten(0, -2)
        found: torch.Tensor = self.tower(rows.index_select(0, (rows != 0).any(-1).nonzero().squeeze(-1)))
        return found


def test_an_export_that_follows_numbers_hides_what_a_mask_hides() -> None:
    pixels = torch.ones(2, 3, 6)
    pixels[0, 0], pixels[1, 1:] = 0, 0
    args = {"input_ids": torch.tensor([[5, 5, 0], [5, 0, 0]]), "pixel_values": pixels}
    module = around(Picking(), tuple(args))
    graph = export_graph(ExportJob("e", "s", ("i",), module, {"part": ""}, args, numbers=True)).graph
    nodes = account(cost_graph(graph), lambda path, call: ("s", "i")).nodes
    # 3 of the 6 rows through 6 x 4; 2 x 3 tokens through 4 x 4.
    assert total(nodes, "flops") == 2 * (3 * 6 * 4 + 2 * 3 * 4 * 4) == 336


def test_places_of_an_image_in_a_text() -> None:
    model, inputs = _on_meta(Seeing)
    assert places(model, inputs) == 2 * 3
    assert places(model, {"input_ids": inputs["input_ids"]}) == 0


def test_towers_are_what_a_text_does_not_reach() -> None:
    model, inputs = _on_meta(Seeing)
    found = towers(model, inputs)
    assert dict(found.stages) == {"tower": "tower", "lists": "lists"}
    assert [found.stage_of(path) for path in ("tower", "lists.1", "towers", "embed")] == ["tower", "lists", None, None]
    assert towers(model, {"input_ids": inputs["input_ids"]}) is NONE


ORDER = ("embed", "one", "two", "three", "four", "five", "six", "seven", "eight")


class Pairing(nn.Module):
    """Compares a text with an image, and wants both."""

    def __init__(self) -> None:
        super().__init__()
        for name in reversed(ORDER[1:]):
            setattr(self, name, nn.Linear(4, 4))
        self.embed = nn.Embedding(9, 4)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        """[B, S] and [B, 4] -> [B, B]."""
        first, *others = (getattr(self, name) for name in ORDER[1:])
        text, image = first(self.embed(input_ids[:, 0])), pixel_values
        for part in others:
            image = part(image)
        compared: torch.Tensor = text @ image.T
        return compared


def test_parts_beside_each_other_stand_in_the_order_in_which_they_run() -> None:
    inputs = {"input_ids": torch.ones(2, 3, dtype=torch.int64), "pixel_values": torch.ones(2, 4)}
    assert towers(Pairing(), inputs).names == ORDER
