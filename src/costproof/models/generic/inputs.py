"""Build example inputs of a module from its signature and its configuration, on the meta device."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.generic import structured  # noqa: F401  # fill the registry
from costproof.models.generic.makers import MAKERS, Case, Example, makes
from costproof.models.specs import SymbolicSize

_SHAPE: Final = re.compile(r"(?P<name>\w+)=(?P<shape>\d+(x\d+)*)?(:(?P<dtype>\w+))?")
_WHOLE: Final = ("ids", "labels", "mask", "positions", "lengths")
"""Suffixes of argument names that are integer tensors by default."""
_USUAL: Final = (
    "input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values", "past_values",
    "past_observed_mask", "future_values", "future_time_features", "flattened_patches",
)  # fmt: skip
"""Optional arguments that are passed by default."""
_BESIDE: Final = (
    "grid_thw", "image_grid_thw", "image_grid_hw", "image_sizes", "image_merge_sizes", "high_res_pixel_values",
    "aspect_ratio_ids", "aspect_ratio_mask", "position_ids",
)  # fmt: skip
"""Arguments that are passed together with an image, if the model takes them."""
_VIDEOS: Final = "pixel_values_videos"
_MASKS: Final = (
    "input_features_mask", "feature_attention_mask", "padding_mask", "pixel_attention_mask", "spatial_shapes",
    "image_embeds_position_mask", "chunk_sample_lengths", "audio_input_ids",
)  # fmt: skip
"""Mask arguments for images and sounds, which only some models require."""
KINDS: Final = frozenset(
    ("pixel_values", "input_features", "input_values", "image_pixel_values", "audio_input_features", "audio_input_ids")
)
"""Arguments that hold images or sounds."""
_SOUNDS: Final = ("input_values", "input_features")


@dataclass(frozen=True, slots=True)
class Inputs:
    """Example arguments of a forward by name, and their symbolic dimensions."""

    args: Mapping[str, Any]
    sizes: tuple[SymbolicSize, ...]

    @property
    def values(self) -> dict[str, int]:
        """Return the value of each symbol in these inputs."""
        return {s.symbol: int(self.args[str(s.argument[0])].shape[s.dim]) for s in self.sizes}


def input_choices(case: Case) -> list[tuple[str, ...]]:
    """Return the sets of argument names with which ``forward`` may be called, most complete inputs first.

    In order: the default arguments, with and without those that accompany an image; with masks of images and sounds;
    with all other known arguments except a video next to an image; the defaults with sound in place of text, with only
    one of several forms of sound, or without sound; last only the required arguments.
    """
    known = [name for name in MAKERS if name in case.takes and (name != _VIDEOS or "pixel_values" not in case.takes)]
    must = [n for n in known if case.needs(n) or n == attribute(case.module, "main_input_name", None)]
    plain = [name for name in known if name in must or name in _USUAL]
    usual = [name for name in known if name in plain or name in _BESIDE]
    masked = [name for name in known if name in usual or name in _MASKS]
    sounds = [name for name in _SOUNDS if name in usual]
    either = [[n for n in usual if n == sound or n not in sounds] for sound in sounds if len(sounds) > 1]
    silent = [name for name in usual if name not in _SOUNDS]
    # An encoder may hear in place of reading.
    heard = [name for name in usual if name != "input_ids"] if sounds and "decoder_input_ids" in usual else usual
    return list(
        dict.fromkeys(
            map(tuple, (usual, plain, masked, known, heard, *either, *([silent] if sounds and silent else []), must))
        )
    )


def example_inputs(case: Case, own: Mapping[str, Any] | None = None, names: tuple[str, ...] | None = None) -> Inputs:
    """Return example keyword arguments: the module's own, or those its signature requires, with the user's shapes.

    In arguments that come with the module, dimension 0 is the batch, and dimension 1 of integers is the sequence.

    Args:
        names: one set of :func:`input_choices` (default: the first).

    Raises:
        BadInput: a given input is not an argument of ``forward``, or not a valid shape.
        Incomplete: a required argument of ``forward`` is not known.
    """
    shapes = _given(case)
    if own is not None:
        args = {**own, **{name: e.tensor for name, e in shapes.items()}}
        return Inputs(args, symbolic(args))
    found: dict[str, Example] = {}
    for name in input_choices(case)[0] if names is None else names:
        if name not in shapes and (example := MAKERS[name](case)) is not None:
            found[name] = _as_declared(example, case.takes[name])
    found |= shapes
    missing = [name for name in case.takes if case.needs(name) and name not in found]
    if missing or not found:
        raise Incomplete(
            "the inputs of this model are not known",
            where=type(case.module).__name__,
            expected=f"--input {(missing or ['NAME'])[0]}=SHAPE[:DTYPE], such as {(missing or ['x'])[0]}=3x224x224",
            got=f"forward({', '.join(case.takes)})",
        )
    sizes = [SymbolicSize((n,), dim, s) for n, e in found.items() for dim, s in e.symbols.items()]
    return Inputs({n: e.tensor for n, e in found.items()}, tuple(sizes))


def _as_declared(example: Example, parameter: inspect.Parameter) -> Example:
    """Return an input in the dtype that the signature names, such as ``BoolTensor`` for a mask."""
    if "BoolTensor" not in str(parameter.annotation) or isinstance(example.tensor, list):
        return example
    return Example(example.tensor.bool(), example.symbols)


def symbolic(args: Mapping[str, Any]) -> tuple[SymbolicSize, ...]:
    """Return the dimensions to keep symbolic: the common batch, and the length of integer tensors."""
    tensors = {key: value for key, value in args.items() if attribute(value, "dim", int)()}
    if len({int(v.shape[0]) for v in tensors.values()}) != 1:
        return ()
    found = [SymbolicSize((key,), 0, "B") for key in tensors]
    lengths: dict[int, str] = {}
    for key, value in tensors.items():
        if not value.is_floating_point() and value.dim() > 1:
            length = int(value.shape[1])
            symbol = lengths.setdefault(length, "T" if key.startswith("decoder_") else f"S{len(lengths) or ''}")
            found.append(SymbolicSize((key,), 1, symbol))
    return tuple(found)


def other_dtypes(case: Case) -> tuple[str, ...]:
    """Return a note on each input with a dtype that no parameter has; only a real run would refuse it."""
    own = {p.dtype for p in case.module.parameters() if p.is_floating_point()}
    given = {name: e.tensor.dtype for name, e in _given(case).items() if not isinstance(e.tensor, list)}
    return tuple(
        f"{name} is {str(dtype).removeprefix('torch.')}, and no parameter is: on shapes only, nothing refuses it, "
        "a run may (--run cpu tells)"
        for name, dtype in given.items()
        if own and dtype.is_floating_point and dtype not in own
    )


def _given(case: Case) -> dict[str, Example]:
    """Return the inputs that the user gave as shapes."""
    import torch

    found: dict[str, Example] = {}
    for text in filter(None, case.given.split(",")):
        read = _SHAPE.fullmatch(text.strip())
        dtype = attribute(torch, read["dtype"], None) if read and read["dtype"] else None
        if read is None or (read["dtype"] and not isinstance(dtype, torch.dtype)):
            raise BadInput(
                "cannot read this shape of an input",
                where="--input",
                expected="NAME=SHAPE[:DTYPE], such as x=3x224x224:float32",
                got=text,
            )
        name, shape = read["name"], [int(n) for n in (read["shape"] or "").split("x") if n]
        if name not in case.takes and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in case.takes.values()):
            raise BadInput("forward has no such argument", where="--input", expected=", ".join(case.takes), got=name)
        made = case.whole(*shape) if dtype is None and name.endswith(_WHOLE) else case.floats(*shape)
        found[name] = Example(made if dtype is None else made.to(dtype), {})
    return found


@makes("past_values")
def _past(case: Case) -> Example:
    """Create the past values of time series: [B, past], [B, past, channels] for several series, or transposed."""
    return Example(case.floats(case.batch, _seen(case), *_channels(case)))


@makes("past_observed_mask")
def _observed(case: Case) -> Example | None:
    """Create the observation mask of the past values of a time series, for models with time features."""
    return _past(case) if case.needs("past_time_features") else None


@makes("future_values")
def _future(case: Case) -> Example | None:
    """Create the future values of a time series: decoder inputs, or the target of the loss."""
    if not case.needs("past_time_features"):
        return None
    return Example(case.floats(case.batch, _coming(case), *_channels(case)))


def _times(case: Case, future: bool) -> Example | None:
    """Create the time features of a series, [B, positions, features]."""
    if not case.needs("past_time_features"):
        return None
    positions = _coming(case) if future else _seen(case)
    return Example(case.floats(case.batch, positions, case.number("num_time_features", default=0)))


for _name, _future_ones in {"past_time_features": False, "future_time_features": True}.items():
    makes(_name)(partial(_times, future=_future_ones))


def _channels(case: Case) -> tuple[int, ...]:
    """Return the channel dimension of a time series as a tuple, empty for a single series."""
    channels = case.number("num_input_channels", "input_size", default=1)
    return (channels,) if channels > 1 or case.turned else ()


def _seen(case: Case) -> int:
    """Return the number of past positions of a time series that the model reads, including the largest lag."""
    context = case.number("context_length", "prediction_length", default=case.length)
    lags: list[int] = attribute(case.config, "lags_sequence", None) or [0]
    return context + max(lags)


def _coming(case: Case) -> int:
    return case.number("prediction_length", default=case.target)
