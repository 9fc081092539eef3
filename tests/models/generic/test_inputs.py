"""Inputs that a module is given when nobody says which, and what is read off the module and its results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import MusicgenConfig, masking_utils
from transformers.modeling_outputs import BaseModelOutput

from costproof.ledger.errors import Problems
from costproof.models.generic.export_wrappers import Handed, cache_tensors
from costproof.models.generic.factories import Given
from costproof.models.generic.inputs import example_inputs, input_choices
from costproof.models.generic.makers import Case
from costproof.models.generic.memo import Choice, attention_of, choice_of, places_of
from costproof.models.generic.module import GenericTarget
from costproof.models.generic.stages import longest
from costproof.models.specs import Run
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.snapshots.copies import materialize
from costproof.tracers.cpu_fallback import with_numbers


class Heard(nn.Module):
    """A spectrum [B, frames, 80], and a mask that it cannot do without although it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(80, 4)

    def forward(self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None) -> torch.Tensor:
        """[B, frames, 4]."""
        assert input_features_mask is not None
        result: torch.Tensor = self.layer(input_features) * input_features_mask.unsqueeze(-1)
        return result


def test_the_first_choice_of_inputs_with_which_a_module_runs() -> None:
    with torch.device("meta"):
        module = Heard()
    choice = choice_of(Given("heard", "here", module), None, None)
    assert choice == Choice(("input_features", "input_features_mask"), turned=True)
    made = example_inputs(Case(module, 2, 5, 7, turned=True), None, choice.names).args
    assert {name: tuple(t.shape) for name, t in made.items()} == {
        "input_features": (2, 3000, 80),
        "input_features_mask": (2, 3000),
    }


class Either(nn.Module):
    """A sound as samples or as a spectrum, not as both."""

    config = SimpleNamespace()

    def forward(self, input_values: torch.Tensor | None = None, input_features: torch.Tensor | None = None) -> None:
        """None of its parameters."""
        assert (input_values is None) != (input_features is None)
        assert input_values is None or input_values.shape == (2, 15_360)


def test_a_sound_comes_one_way_where_a_module_refuses_both() -> None:
    assert input_choices(Case(Either(), 2, 5, 7)) == [
        ("input_features", "input_values"), ("input_values",), ("input_features",), (),
    ]  # fmt: skip


def _configured(**config: object) -> nn.Module:
    module = nn.Module()
    module.config = SimpleNamespace(**config)  # type: ignore[assignment]
    return module


def test_sizes_of_the_part_that_hears() -> None:
    for part in ("encoder_config", "asr_config"):
        module = _configured(**{part: SimpleNamespace(num_mel_bins=128)})
        assert Case(module, 2, 5, 7).number("num_mel_bins", default=80) == 128
    assert Case(nn.Linear(3, 4), 2, 5, 7).number("num_mel_bins", default=80) == 80


def test_sizes_of_a_part_of_a_part() -> None:
    module = _configured(audio_config=SimpleNamespace(asr_config=SimpleNamespace(num_mel_bins=64)))
    assert Case(module, 2, 5, 7).number("num_mel_bins", default=80) == 64


class Looks(nn.Module):
    """Sees an image only where numbers tell that there is one; a text alone runs on shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None) -> torch.Tensor:
        """[B, 4]."""
        if pixel_values is None:
            return torch.zeros(len(input_ids), 4, device=input_ids.device)
        assert pixel_values.sum().item() == pixel_values.sum().item()
        seen: torch.Tensor = self.layer(pixel_values.mean((2, 3)))
        return seen


def test_an_image_that_needs_numbers_comes_before_a_text_that_runs_on_shapes() -> None:
    with torch.device("meta"):
        assert choice_of(Given("looks", "here", Looks()), None, None) == Choice(("input_ids", "pixel_values"))


class Merging(nn.Module):
    """Reads a text in which 7 stands for what it hears: 6 frames of each sound, where ids say so, and nowhere else."""

    config = SimpleNamespace(audio_token_id=7, max_source_positions=3)

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.layer = nn.Linear(80, 4)

    def forward(self, input_ids: torch.Tensor, input_features: torch.Tensor | None = None) -> torch.Tensor:
        """[B, S, 4]."""
        text: torch.Tensor = self.table(input_ids)
        if input_features is None:
            return text
        places = input_ids == 7
        if (places[:, :-1] & places[:, 1:]).sum() == 0:
            raise ValueError("a sound that is nowhere in the text")
        return text.masked_scatter(places.unsqueeze(-1), self.layer(input_features.transpose(1, 2)))


def test_a_text_says_where_a_sound_is_if_the_model_looks_for_it() -> None:
    with torch.device("meta"):
        target = GenericTarget("merging", Given("merging", "here", Merging()))
    assert choice_of(target.maker, None, None) == Choice(("input_ids", "input_features"), placed=True)
    # 2 x 3 frames of each sound.
    assert places_of(target.maker, None, None, None) == 6
    run = target.workload(batch=2, seq_len=8)
    ids: Any = target.runs(target.build(run), run)[0].kwargs["input_ids"]
    assert ids.tolist() == [[7, 7, 7, 7, 7, 7, 6, 6]] * 2
    found = count_sources(Prepared(target, run, ("static", "dynamic"), no_cache=True))
    assert found.verdict == "exact"
    # 12 frames of 80 numbers become 4 each, 2 FLOPs a product.
    assert [ledger.total("flops") for ledger in found.capture.ledgers] == [2 * 12 * 80 * 4] * 2
    with pytest.raises(Problems, match="shorter than the placeholder tokens"):
        target.workload(batch=2, seq_len=5)


class Recoded(nn.Module):
    """Hears a sound, or reads a text: not both."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(80, 4)

    def forward(self, input_ids: Any = None, input_features: Any = None, decoder_input_ids: Any = None) -> torch.Tensor:
        """[B, frames, 4]."""
        assert input_ids is None
        result: torch.Tensor = self.layer(input_features.transpose(1, 2))
        return result


def test_an_encoder_hears_in_place_of_reading() -> None:
    with torch.device("meta"):
        found = choice_of(Given("recoded", "here", Recoded()), None, None)
    assert found == Choice(("decoder_input_ids", "input_features"))


def test_a_model_that_was_told_no_attention_runs_its_own() -> None:
    assert attention_of(_configured(_attn_implementation=None)) == "eager"
    assert attention_of(_configured(_attn_implementation="eager")) == "eager"
    assert attention_of(nn.Linear(3, 4)) == "sdpa"


def test_a_model_without_end_has_no_longest_text() -> None:
    assert longest(_configured(max_position_embeddings=-1)) is None
    assert longest(_configured(max_position_embeddings=512)) == 512


def test_of_two_configurations_of_texts_the_decoder_says_how_long_one_may_be() -> None:
    config = MusicgenConfig(
        text_encoder={"model_type": "t5"},
        audio_encoder={"model_type": "encodec"},
        decoder={"model_type": "musicgen_decoder", "max_position_embeddings": 77},
    )
    module = nn.Module()
    module.config = config
    assert longest(module) == 77


def test_states_of_a_recurrent_layer_are_its_cache() -> None:
    layer = SimpleNamespace(conv_states={0: torch.ones(2, 3)}, recurrent_states={0: torch.ones(4)}, number=1)
    found = cache_tensors(SimpleNamespace(cache_params=SimpleNamespace(layers=[layer])))
    assert [t.numel() for t in found] == [6, 4]


def test_a_result_that_is_handed_on_keeps_its_class() -> None:
    handed = BaseModelOutput(torch.empty(2, 3, device="meta"))
    run = Run("r", nn.Linear(3, 4), {"encoder_outputs": handed}, lambda path, call: ("", ""))
    made = with_numbers(run).kwargs["encoder_outputs"]
    assert isinstance(made, BaseModelOutput)
    assert made.last_hidden_state is not None
    assert made.last_hidden_state.device.type == "cpu"
    assert Handed(torch.ones(2)).attention_mask is None


class Strided(nn.Module):
    """Keeps a step in a buffer, as transformers' audio models do."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.scale = nn.Buffer(torch.tensor(3)), nn.Buffer(torch.zeros(2))

    def _init_weights(self, part: nn.Module) -> None:
        if isinstance(part, Strided):
            part.step.fill_(3)


def test_integers_of_buffers_are_what_the_model_sets_them_to_not_ones() -> None:
    with torch.device("meta"):
        nowhere = Strided()
    for module, scale in ((nowhere, [1.0, 1.0]), (Strided(), [0.0, 0.0])):
        found = materialize(module)
        assert (int(found.step), found.scale.tolist()) == (3, scale)  # type: ignore[arg-type, operator]


class Masked(nn.Module):
    """Runs on shapes without boxes, if nobody looks into a mask that has no numbers."""

    config = SimpleNamespace()

    def forward(self, input_ids: torch.Tensor, bbox: torch.Tensor | None = None) -> torch.Tensor:
        """[B, S]."""
        assert bbox is None
        assert input_ids.is_meta
        assert masking_utils._ignore_bidirectional_mask_sdpa(torch.ones_like(input_ids), 5, None)
        return input_ids


def test_inputs_are_chosen_as_the_model_runs() -> None:
    with torch.device("meta"):
        choice = choice_of(Given("masked", "here", Masked()), None, None)
    # Where none runs, that of most inputs is taken: with boxes.
    assert choice == Choice(("input_ids",))
