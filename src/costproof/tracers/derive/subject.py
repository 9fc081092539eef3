"""What a formula is derived from: a module, example inputs, and the sizes that stay symbols.

A subject is a stage of a target, a Hugging Face configuration, or a factory of an ``nn.Module``.
Models are built on meta: no weights, whatever their size.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Incomplete, first_line
from costproof.models.target import ExportJob, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

_BATCH, _LENGTH, _TARGET = 3, 37, 29
"""Example sizes: above 1 and pairwise different, so that no two are taken for the same."""

_ROLES: Final = ("input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to derive formulas of."""

    name: str
    jobs: tuple[ExportJob, ...]
    config: Mapping[str, int]
    """Numbers of the configuration by name, for constants that are one of them."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Symbols of the workload that the graph holds as numbers."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Symbols that must be multiples of a number."""


def huggingface(path: Path) -> Subject:
    """The model of a configuration file, or of a folder with a ``config.json``, built by ``AutoModel``.

    Raises:
        BadInput: the file is no configuration with a ``model_type`` that transformers knows.
        Incomplete: the model cannot be built, or its inputs are not known.
    """
    from costproof.ledger.files import read_json

    file = path / "config.json" if path.is_dir() else path
    data = read_json(file, what="configuration")
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise BadInput(
            "this is no Hugging Face configuration", where=str(file), expected="a JSON object with a model_type"
        )
    return from_config(data, where=str(file))


def from_config(data: Mapping[str, Any], *, where: str) -> Subject:
    """:func:`huggingface` for a configuration that is already read."""
    import torch
    from transformers import AutoConfig, AutoModel

    options = {k: v for k, v in data.items() if k not in ("model_type", "architectures", "auto_map")}
    try:
        config = AutoConfig.for_model(data["model_type"], **options)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput("transformers cannot read this configuration", where=where, got=first_line(error)) from error
    try:
        with torch.device("meta"):
            model: nn.Module = AutoModel.from_config(config, dtype=torch.bfloat16).eval()
    except Exception as error:
        raise Incomplete("transformers cannot build this model on meta", where=where, got=first_line(error)) from error
    return of_module(model, data["model_type"], config=_with_head_width(numbers(config.to_dict())))


def factory(address: str) -> Subject:
    """The module that ``package.module:callable`` returns.

    Raises:
        BadInput: there is no such callable, or it returns no module.
        Incomplete: its inputs are not known.
    """
    import torch
    from torch import nn

    name, _, attribute = address.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(name), attribute)
        with torch.device("meta"):
            model = made()
    except Exception as error:
        raise BadInput(
            "the factory makes no module", where=address, expected="module.path:callable", got=first_line(error)
        ) from error
    if not isinstance(model, nn.Module):
        raise BadInput("the factory makes no module", where=address, expected="an nn.Module", got=type(model).__name__)
    return of_module(model.eval(), attribute, config={})


def of_module(model: nn.Module, name: str, *, config: Mapping[str, int]) -> Subject:
    """A module whose inputs are read off its signature, its configuration, or its own ``example_inputs``.

    A module of any library may have ``example_inputs()``: arguments on meta, whose first dimension is the batch,
    and whose second is the sequence if they are integers.

    Raises:
        Incomplete: no input is known.
    """
    own = getattr(model, "example_inputs", None)
    args: dict[str, Any] = dict(own()) if callable(own) else _inputs(model)
    if not args:
        raise Incomplete(
            "the inputs of this model are not known",
            where=type(model).__name__,
            expected="one of " + ", ".join(_ROLES) + " in forward's signature, or a method example_inputs()",
            got=", ".join(inspect.signature(model.forward).parameters),
        )
    sizes: list[SymbolicSize] = []
    for key, value in args.items():
        sizes.append(SymbolicSize((key,), 0, "B"))
        if not value.is_floating_point() and value.dim() > 1:
            sizes.append(SymbolicSize((key,), 1, "T" if key.startswith("decoder_") else "S"))
    from costproof.tracers.derive.wrapper import around

    job = ExportJob("forward", "forward", ("forward",), around(model, tuple(args)), {"part": ""}, args, sizes)
    return Subject(name, (job,), config if of_tokens(job) else {})


def numbers(data: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Integers above 1 of a configuration that may be sizes, nested names joined by an underscore.

    Limits (``max_position_embeddings``) and ids of tokens are no sizes of a computation, numbers of layers
    none of one module.
    """
    found: dict[str, int] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= numbers(value, f"{name}_")
        elif (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value > 1
            and not key.endswith("_token_id")
            and not key.startswith("max_")
            and not counts_layers(key)
        ):
            found[name] = value
    return found


def _with_head_width(config: dict[str, int]) -> dict[str, int]:
    """With the width of a head, which many configurations leave to be worked out."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if hidden and heads and hidden % heads == 0:
        config.setdefault("head_dim", hidden // heads)
    return config


def of_tokens(job: ExportJob) -> bool:
    """Whether constants in the costs of an export are products of widths, which have names.

    An image or a spectrum has a fixed number of positions, which is a factor of all constants and fits
    names by chance.
    """
    fixed = {s.argument[0]: 0 for s in job.sizes}
    for name, value in job.args.items():
        if hasattr(value, "shape"):
            fixed[name] = value.dim() - len({s.dim for s in job.sizes if s.argument[0] == name})
    return all(count <= 1 for count in fixed.values()) and not any("H" in s.symbol for s in job.sizes)


def counts_layers(name: str) -> bool:
    """Whether a name of a configuration is a number of layers."""
    return name.endswith(("layers", "_layer"))


def _inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    import torch

    config = getattr(model, "config", None)
    takes = inspect.signature(model.forward).parameters
    vision = getattr(config, "vision_config", None) or config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    made: dict[str, torch.Tensor] = {}

    def ids(length: int) -> torch.Tensor:
        return torch.zeros(_BATCH, length, dtype=torch.long, device="meta")

    if "input_ids" in takes:
        made["input_ids"] = ids(_LENGTH)
    if "decoder_input_ids" in takes:
        made["decoder_input_ids"] = ids(_TARGET)
    if "pixel_values" in takes:
        side = getattr(vision, "image_size", None) or 224
        height, width = side if isinstance(side, list | tuple) else (side, side)
        made["pixel_values"] = torch.empty(
            _BATCH, getattr(vision, "num_channels", 3), height, width, dtype=dtype, device="meta"
        )
    if "input_features" in takes and "input_ids" not in takes:
        bins = getattr(config, "num_mel_bins", None) or 80
        frames = 2 * getattr(config, "max_source_positions", 1500)
        made["input_features"] = torch.empty(_BATCH, bins, frames, dtype=dtype, device="meta")
    if "input_values" in takes and not made:
        mel, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
        shape: tuple[int, ...] = (16_000,) if mel is None or length is None else (length, mel)
        made["input_values"] = torch.empty(_BATCH, *shape, dtype=dtype, device="meta")
    return made
