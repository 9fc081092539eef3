"""Example inputs of a module, read off its signature and its configuration: shapes on meta, no numbers.

What an argument of a certain name looks like is one function of the registry below.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.jobs import SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHAPE: Final = re.compile(r"(?P<name>\w+)=(?P<shape>\d+(x\d+)*)?(:(?P<dtype>\w+))?")
_WHOLE: Final = ("ids", "labels", "mask", "positions", "lengths")
"""Ends of the names of arguments that hold integers unless a dtype is given."""
_SAMPLES: Final = 15_360
"""Just under a second at 16 kHz: a multiple of the strides in use."""
_USUAL: Final = (
    "input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values", "past_values",
)  # fmt: skip
"""Arguments that a model is run with although it could do without."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked for, and of which module."""

    module: nn.Module
    batch: int
    length: int
    """Positions of a text."""
    target: int
    """Positions of what a decoder gets beside an encoder's input."""
    side: int | None = None
    """Pixels per side of an image; the configuration's if ``None``."""
    dtype: torch.dtype | None = None
    """Of floating-point inputs; that of the parameters if ``None``."""
    given: str = ""
    """Inputs by shape: ``NAME=SHAPE[:DTYPE]``, separated by commas."""
    turned: bool = False
    """Whether inputs have the other one of two usual layouts: images one by one in a row, frames before their bins."""

    @property
    def config(self) -> Any:
        """The module's configuration, or ``None``."""
        return getattr(self.module, "config", None)

    @property
    def takes(self) -> Mapping[str, inspect.Parameter]:
        """Arguments of its forward."""
        return inspect.signature(self.module.forward).parameters

    def number(self, *names: str, default: int) -> int:
        """The first of these that the configuration, or that of its vision, audio or encoding part, has."""
        inside = (getattr(self.config, f"{part}_config", None) for part in ("vision", "audio", "encoder", "text"))
        parts = [self.config, *inside]
        found = (getattr(part, name, None) for name in names for part in parts)
        return next((v for v in found if isinstance(v, int) and not isinstance(v, bool)), default)

    def floats(self, *shape: int) -> torch.Tensor:
        """An empty tensor on meta."""
        import torch

        usual = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        return torch.empty(*shape, dtype=self.dtype or usual, device="meta")

    def whole(self, *shape: int) -> torch.Tensor:
        """Integers on meta."""
        import torch

        return torch.zeros(*shape, dtype=torch.long, device="meta")


@dataclass(frozen=True, slots=True)
class Example:
    """One input."""

    tensor: torch.Tensor
    symbols: Mapping[int, str] = field(default_factory=lambda: {0: "B"})
    """Dimensions that a run may have in another size, and their names."""


Maker = Callable[[Case], "Example | None"]
MAKERS: Final[dict[str, Maker]] = {}
"""Name of an argument of forward -> what makes it, ``None`` where this model does not want it."""


def makes(*names: str) -> Callable[[Maker], Maker]:
    """Register what makes the arguments of these names."""

    def add(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return add


@makes("input_ids")
def _ids(case: Case) -> Example:
    return Example(case.whole(case.batch, case.length), {0: "B", 1: "S"})


@makes("decoder_input_ids")
def _target_ids(case: Case) -> Example:
    return Example(case.whole(case.batch, case.target), {0: "B", 1: "T"})


@makes("bbox")
def _boxes(case: Case) -> Example | None:
    return Example(case.whole(case.batch, case.length, 4), {0: "B", 1: "S"})


@makes("pixel_values")
def _pixels(case: Case) -> Example:
    """[B, channels, height, width]; of a video [B, frames, channels, height, width], and so of one image turned."""
    height, width = _sides(case)
    frames = case.number("num_frames", default=0)
    channels = case.number("num_channels", "in_channels", "in_chans", default=3)
    images = (frames,) if frames else (1,) if case.turned else ()
    return Example(case.floats(case.batch, *images, channels, height, width))


@makes("prompt_pixel_values", "prompt_masks")
def _examples(case: Case) -> Example:
    return Example(case.floats(case.batch, case.number("num_channels", default=3), *_sides(case)))


@makes("pixel_values_videos")
def _video(case: Case) -> Example:
    height, width = _sides(case)
    frames = case.number("num_frames", "frames_per_clip", default=16)
    return Example(case.floats(case.batch, frames, case.number("num_channels", "in_chans", default=3), height, width))


def _sides(case: Case) -> tuple[int, int]:
    if case.side is not None:
        return case.side, case.side
    parts = (getattr(case.config, "vision_config", None), case.config)
    found = (getattr(p, name, None) for p in parts for name in ("image_size", "crop_size", "input_size"))
    side = next((s for s in found if s), 224)
    return (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))


@makes("input_features", "audio_mel")
def _spectrum(case: Case) -> Example:
    """[B, mel bins, frames], turned [B, frames, mel bins]; [B, S, features] if the configuration says how many."""
    features = case.number("input_feat_per_channel", "feature_projection_input_dim", "feature_size", default=0)
    if features:
        return Example(case.floats(case.batch, case.length, features), {0: "B", 1: "S"})
    bins = case.number("num_mel_bins", "input_feat_size", default=80)
    return Example(case.floats(case.batch, *((_frames(case), bins) if case.turned else (bins, _frames(case)))))


def _frames(case: Case) -> int:
    return 2 * case.number("max_source_positions", default=1500)


@makes("input_features_mask", "feature_attention_mask", "audio_mel_mask")
def _heard(case: Case) -> Example:
    """[B, frames]."""
    return Example(case.whole(case.batch, _frames(case)))


@makes("qformer_input_ids")
def _question(case: Case) -> Example:
    return Example(case.whole(case.batch, case.length), {0: "B"})


@makes("task_inputs")
def _task(case: Case) -> Example:
    return Example(case.whole(case.batch, case.number("task_seq_len", default=77)))


@makes("input_values")
def _wave(case: Case) -> Example | None:
    """[B, samples] of a second at 16 kHz, turned [B, 1, samples]; or [B, frames, mel bins]."""
    bins, length = case.number("num_mel_bins", default=0), case.number("max_length", default=0)
    one = (1,) if case.turned else ()
    return Example(case.floats(case.batch, *((length, bins) if bins and length else (*one, _SAMPLES))))


@makes("past_values")
def _series(case: Case) -> Example:
    """[B, past], with the lags that the configuration wants; [B, past, channels] of several series, and turned."""
    context = case.number("context_length", "prediction_length", default=case.length)
    past = context + max(getattr(case.config, "lags_sequence", None) or [0])
    channels = case.number("num_input_channels", "input_size", default=1)
    return Example(case.floats(case.batch, past, *((channels,) if channels > 1 or case.turned else ())))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Keyword arguments of a forward."""

    args: Mapping[str, Any]
    sizes: tuple[SymbolicSize, ...]

    @property
    def values(self) -> dict[str, int]:
        """Symbol -> its value in these inputs."""
        return {s.symbol: int(self.args[str(s.argument[0])].shape[s.dim]) for s in self.sizes}


def input_choices(case: Case) -> list[tuple[str, ...]]:
    """Arguments that forward may be given, the best choice first.

    These are what a model is usually given; that with masks and the like as well; then only what it must have.
    """
    known = [name for name in MAKERS if name in case.takes]
    must = [n for n in known if _needed(case.takes[n]) or n == getattr(case.module, "main_input_name", None)]
    usual = [name for name in known if name in must or name in _USUAL]
    return list(dict.fromkeys(map(tuple, (usual, known, must))))


def example_inputs(case: Case, own: Mapping[str, Any] | None = None, names: tuple[str, ...] | None = None) -> Inputs:
    """Keyword arguments: those that come with the module, or what its signature asks for; given shapes on top.

    Of a module's own arguments the first dimension is the batch, and the second the sequence if they are integers.

    Args:
        names: of :func:`input_choices`; the first of them unless given.

    Raises:
        BadInput: a given input is none of forward's arguments, or no shape.
        Incomplete: an input that forward needs is not known.
    """
    shapes = _given(case)
    if own is not None:
        args = {**own, **{name: e.tensor for name, e in shapes.items()}}
        return Inputs(args, symbolic(args))
    found: dict[str, Example] = {}
    takes = case.takes
    for name in input_choices(case)[0] if names is None else names:
        if name not in shapes and (example := MAKERS[name](case)) is not None:
            found[name] = example
    found |= shapes
    missing = [n for n, p in takes.items() if _needed(p) and n not in found]
    if missing or not found:
        raise Incomplete(
            "the inputs of this model are not known",
            where=type(case.module).__name__,
            expected=f"--input {(missing or ['NAME'])[0]}=SHAPE[:DTYPE], such as {(missing or ['x'])[0]}=3x224x224",
            got=f"forward({', '.join(takes)})",
        )
    sizes = [SymbolicSize((n,), dim, s) for n, e in found.items() for dim, s in e.symbols.items()]
    return Inputs({n: e.tensor for n, e in found.items()}, tuple(sizes))


def _needed(parameter: inspect.Parameter) -> bool:
    plain = parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return plain and parameter.default is inspect.Parameter.empty


def symbolic(args: Mapping[str, Any]) -> tuple[SymbolicSize, ...]:
    """The batch of every tensor, if all have one, and the sequence of those that are integers."""
    tensors = {key: value for key, value in args.items() if getattr(value, "dim", int)()}
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


def _given(case: Case) -> dict[str, Example]:
    """Inputs by shape, such as a user gives them."""
    import torch

    found: dict[str, Example] = {}
    for text in filter(None, case.given.split(",")):
        read = _SHAPE.fullmatch(text.strip())
        dtype = getattr(torch, read["dtype"], None) if read and read["dtype"] else None
        if read is None or (read["dtype"] and not isinstance(dtype, torch.dtype)):
            raise BadInput(
                "this is not an input",
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
