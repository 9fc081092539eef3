"""Create example arguments by argument name on the meta device: texts, images, sounds.

The registry below maps argument names to functions that create them. Arguments with a special structure are in
:mod:`costproof.models.generic.structured`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.patches.input_values import KnownIntegers

SAMPLES: Final = 15_360
"""Number of audio samples, just under a second at 16 kHz: a multiple of the strides that models use."""
PLACEHOLDERS: Final = ("audio_token_id", "audio_token_index", "image_token_id", "image_token_index")
"""Configuration keys of the placeholder token for an image or a sound in a text."""
_AXES: Final = ("time", "row", "column")
SIDE: Final = 224
"""Default side of an image in pixels, for configurations that do not state one."""
_TOWERS: Final = {"image": ("vision", "visual", "image", "vqmodel"), "audio": ("audio", "speech", "encoder")}
"""Words in the paths of the modules that process a modality, by modality, for models with several."""
_IN_CHUNKS: Final = "chunk_sample_lengths"
_CHUNK: Final = 96
"""Number of frames of a chunk of sound."""
_CODES: Final = 16
"""Number of frames of a sound in codes; fewer than the positions of a text."""
_PATCHES: Final = "patch_emb"
"""Word in the path of most models' patch embedding."""
_PARTS: Final = ("vision", "audio", "asr", "encoder", "semantic_model", "text")
"""Prefixes of the configuration sections that describe the processing of an input."""


@dataclass(frozen=True, slots=True)
class Case:
    """A module, and the sizes for which its example inputs are created."""

    module: nn.Module
    batch: int
    length: int
    """Length of a text in tokens."""
    target: int
    """Length of the decoder input of an encoder-decoder."""
    side: int | None = None
    """Side of an image in pixels; ``None`` for the configuration's."""
    dtype: torch.dtype | None = None
    """Dtype of floating-point inputs; ``None`` for the parameters' dtype."""
    given: str = ""
    """User inputs by shape: ``NAME=SHAPE[:DTYPE]``, separated by commas."""
    turned: bool = False
    """Whether to use the alternative layout: images one after another, frames before mel bins."""
    filled: int | None = None
    """Number of placeholder tokens in each text, if the model searches the token ids for placeholders; else ``None``.
    """

    @property
    def config(self) -> Any:
        """Return the module's configuration, or ``None``."""
        return attribute(self.module, "config", None)

    @property
    def takes(self) -> Mapping[str, inspect.Parameter]:
        """Return the parameters of ``forward`` by argument name."""
        return inspect.signature(self.module.forward).parameters

    def needs(self, name: str) -> bool:
        """Return whether ``forward`` requires this argument."""
        found = self.takes.get(name)
        named = found is not None and found.kind not in (found.VAR_KEYWORD, found.VAR_POSITIONAL)
        return named and found is not None and found.default is found.empty

    def number(self, *names: str, default: int) -> int:
        """Return the first integer that the configuration, or a part of it, has under these keys, else ``default``."""
        inside = [attribute(self.config, f"{part}_config", None) for part in _PARTS]
        deeper = (attribute(one, f"{part}_config", None) for one in inside for part in _PARTS)
        parts = [self.config, *inside, *deeper]
        found = (attribute(part, name, None) for name in names for part in parts)
        return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), default)

    def floats(self, *shape: int) -> torch.Tensor:
        """Return an empty floating-point tensor of this shape on meta."""
        import torch

        usual = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        return torch.empty(shape, dtype=self.dtype or usual, device="meta")

    def whole(self, *shape: int) -> torch.Tensor:
        """Return an empty integer tensor of this shape on meta."""
        import torch

        return torch.zeros(shape, dtype=torch.long, device="meta")


@dataclass(frozen=True, slots=True)
class Example:
    """Example value of one argument, with its symbolic dimensions."""

    tensor: torch.Tensor | KnownIntegers | list[list[int]]
    symbols: Mapping[int, str] = field(default_factory=lambda: {0: "B"})
    """Names of the symbolic dimensions, by dimension."""


def known(values: Sequence[int | list[int]]) -> Example:
    """Return an integer argument with concrete values on meta, for values that the model reads."""
    import torch

    from costproof.patches.input_values import KnownIntegers

    return Example(KnownIntegers(list(values), torch.empty(0, device="meta")), {})


ExampleMaker = Callable[[Case], "Example | None"]
MAKERS: Final[dict[str, ExampleMaker]] = {}
"""Functions that create an argument, or return ``None`` if the model does not need it, by argument name."""


def makes(*names: str) -> Callable[[ExampleMaker], ExampleMaker]:
    """Register a function as the creator of the arguments with these names."""

    def add(maker: ExampleMaker) -> ExampleMaker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return add


@makes("input_ids")
def _ids(case: Case) -> Example:
    """Create token ids [B, S], or [B, S, codebooks + 1] for speech; with values if placeholders are filled."""
    if case.filled is not None:
        token, filled = case.number(*PLACEHOLDERS, default=0), min(case.filled, case.length)
        return known([[token] * filled + [abs(token - 1)] * (case.length - filled)] * case.batch)
    books = case.number("num_codebooks", default=0) if case.turned else 0
    return Example(case.whole(case.batch, case.length, *((1 + books,) if books else ())), {0: "B", 1: "S"})


@makes("position_ids")
def _positions_of_images(case: Case) -> Example | None:
    """Create position ids [axes, B, S] for models whose image patches have row and column positions."""
    if not {"image_grid_thw", "target_sizes"} & case.takes.keys() or "mm_token_type_ids" not in case.takes:
        return None
    text = attribute(case.config, "text_config", case.config)
    sections = (attribute(text, "rope_parameters", None) or {}).get("mrope_section") or _AXES
    return Example(case.whole(len(sections), case.batch, case.length), {1: "B", 2: "S"})


@makes("decoder_input_ids")
def _target_ids(case: Case) -> Example:
    """Create decoder token ids [B, T], or one row per codebook for a decoder of sounds."""
    books = attribute(attribute(case.config, "decoder", None), "num_codebooks", 1)
    return Example(case.whole(case.batch * books, case.target), {0: "B", 1: "T"} if books == 1 else {1: "T"})


@makes("bbox")
def _boxes(case: Case) -> Example | None:
    return Example(case.whole(case.batch, case.length, 4), {0: "B", 1: "S"})


@makes("prompt_pixel_values", "prompt_masks")
def _examples(case: Case) -> Example:
    return Example(case.floats(case.batch, case.number("num_channels", default=3), *sides(case)))


@makes("pixel_values_videos")
def _video(case: Case) -> Example:
    height, width = sides(case)
    frames = case.number("num_frames", "frames_per_clip", default=16)
    return Example(case.floats(case.batch, frames, case.number("num_channels", "in_chans", default=3), height, width))


def sides(case: Case) -> tuple[int, int]:
    """Return the height and the width of an image in pixels.

    If images are scaled down before they are cut, they are large enough for one patch of the smallest scale; the height
    is halved if a prompt image is stacked above each image.
    """
    if case.side is not None:
        return case.side, case.side
    side = own_side(case.config) or SIDE
    ratios = attribute(case.config, "scaled_images_ratios", None)
    if ratios and isinstance(side, int):
        side = max(side, -int(-case.number("patch_size", default=1) // min(ratios)))
    height, width = (side, side) if isinstance(side, int) else map(int, side)
    return height // (2 if "prompt_pixel_values" in case.takes else 1), width


def own_side(config: Any) -> Any:
    """Return the image side in pixels that a configuration or a part of it states, or ``None``."""
    vision, backbone = (attribute(config, f"{part}_config", None) for part in ("vision", "backbone"))
    inner = attribute(attribute(config, "encoder", None), "vision_config", None)
    parts = (vision, inner, config, backbone, attribute(vision, "backbone_config", None))
    names = ("image_size", "crop_size", "input_size", "max_img_size")
    return next((s for p in parts for name in names if (s := attribute(p, name, None))), None)


@makes("input_features", "audio_mel")
def _spectrum(case: Case) -> Example:
    """Create a spectrum [B, mel bins, frames], transposed, or with frames as the first layer takes them.

    [B, S, features] if the configuration states the number of features; [B, 1, frames, mel bins] if ``forward`` takes
    ``is_longer``; [B, mel bins, frames] of one chunk if ``forward`` takes the lengths of chunks.
    """
    if _IN_CHUNKS in case.takes:
        return Example(case.floats(case.batch, case.number("feature_size", default=80), _CHUNK))
    if features := _features(case):
        symbols = {0: "B"} if case.needs("input_values") else {0: "B", 1: "S"}
        return Example(case.floats(case.batch, _positions(case), features), symbols)
    bins = case.number("num_mel_bins", "input_feat_size", default=80)
    if "is_longer" in case.takes:
        return Example(case.floats(case.batch, 1, case.number("spec_size", default=256) ** 2 // bins, bins))
    if case.turned:
        wide = attribute(
            first_layer(case, "audio"), "in_features", bins
        )  # several frames at once, unless forward stacks them
        bins = bins if wide == bins * case.number("subsampling_factor", default=1) else wide
    return Example(case.floats(case.batch, *((_frames(case), bins) if case.turned else (bins, _frames(case)))))


def _features(case: Case) -> int:
    """Return the features per position that the configuration names (stacked frames x mel bins), or 0."""
    stacked = case.number("num_stacked_frames", default=0) * case.number("num_mel_bins", default=0)
    names = ("input_feat_per_channel", "feature_projection_input_dim", "feature_size", "num_chroma")
    return stacked or case.number(*names, default=0)


def _positions(case: Case) -> int:
    """Return the number of feature positions: as many as the audio samples give, else the text length."""
    hop = case.number("hop_length", default=0) if case.needs("input_values") else 0
    return SAMPLES // hop if hop else case.length


def first_layer(case: Case, modality: str | None = None) -> nn.Module:
    """Return the first linear or convolutional layer, which receives numeric inputs such as pixels.

    Args:
        modality: ``image`` or ``audio``, for models with a tower for each.
    """
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    layers = [(path, m) for path, m in case.module.named_modules() if isinstance(m, nn.Linear | _ConvNd)]
    inside = [(path, m) for path, m in layers if any(word in path for word in _TOWERS.get(modality or "", ()))]
    # What merges patches may be written before what embeds them.
    first = [(path, m) for path, m in (*inside, *layers) if modality == "image" and _PATCHES in path]
    return next((m for _, m in (*first, *inside, *layers)), case.module)


def _frames(case: Case) -> int:
    """Return the number of frames of a spectrum, or of the frames that all text positions together take."""
    heard = case.number("audio_length_per_tok", default=0)
    return case.length * heard or 2 * case.number("max_source_positions", default=1500)


@makes("input_features_mask", "feature_attention_mask", "audio_mel_mask")
def _heard(case: Case) -> Example:
    """Create the audio mask, [B, frames] or [B, S], from which the model counts its audio placeholders."""
    length = _positions(case) if _features(case) else _frames(case)
    return known([[1] * length] * case.batch) if "input_ids" in case.takes else Example(case.whole(case.batch, length))


@makes(_IN_CHUNKS)
def _chunks(case: Case) -> Example:
    """Create the numbers of audio samples of the chunks, [B]."""
    return known([_CHUNK * case.number("hop_length", default=160)] * case.batch)


@makes("audio_input_ids")
def _codes(case: Case) -> Example:
    """Create audio codes [B, frames, codebooks]."""
    return Example(case.whole(case.batch, _CODES, case.number("num_codebooks", default=1)))


@makes("padding_mask")
def _unpadded(case: Case) -> Example | None:
    """Create the mask [B, samples] of a sound, from which the model counts the placeholders in the text."""
    return known([[1] * SAMPLES] * case.batch) if "input_values" in case.takes and "input_ids" in case.takes else None


@makes("image_embeds_position_mask")
def _where(case: Case) -> Example:
    """Create the mask [B, S] of the text positions that hold an image, one position per query token."""
    places = min(case.number("latent_query_num", default=1), case.length)
    return known([[1] * places + [0] * (case.length - places)] * case.batch)


@makes("qformer_input_ids")
def _question(case: Case) -> Example:
    return Example(case.whole(case.batch, case.length), {0: "B"})


@makes("task_inputs")
def _task(case: Case) -> Example:
    return Example(case.whole(case.batch, case.number("task_seq_len", default=77)))


@makes("input_values")
def _wave(case: Case) -> Example | None:
    """Create a waveform [B, samples] of one second at 16 kHz, [B, 1, samples], or [B, frames, mel bins]."""
    bins, length = case.number("num_mel_bins", default=0), case.number("max_length", default=0)
    one = (1,) if case.turned else ()
    return Example(case.floats(case.batch, *((length, bins) if bins and length else (*one, SAMPLES))))
