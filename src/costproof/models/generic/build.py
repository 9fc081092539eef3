"""Targets of configuration files and of factories. Models are built on meta: no weights, whatever their size."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.ledger.errors import BadInput, Incomplete, first_line
from costproof.models.generic.module import GenericTarget

if TYPE_CHECKING:
    from torch import nn


def huggingface(path: Path) -> GenericTarget:
    """The model of a configuration file, or of a folder with a ``config.json``, built by ``AutoModel``.

    Raises:
        BadInput: the file is not a configuration with a ``model_type`` that transformers knows.
        Incomplete: the model cannot be built, or its inputs are not known.
    """
    from costproof.ledger.files import read_json

    file = path / "config.json" if path.is_dir() else path
    data = read_json(file, what="configuration")
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise BadInput(
            "this is not a Hugging Face configuration", where=str(file), expected="a JSON object with a model_type"
        )
    return from_config(data, where=str(file))


def from_config(data: Mapping[str, Any], *, where: str) -> GenericTarget:
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
    return GenericTarget(data["model_type"], model, _with_head_width(numbers(config.to_dict())))


def factory(address: str) -> GenericTarget:
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
    return GenericTarget(attribute, model.eval())


def numbers(data: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Integers above 1 of a configuration that may be sizes, nested names joined by an underscore.

    Limits (``max_position_embeddings``) and ids of tokens are not sizes of a computation, numbers of layers
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


def counts_layers(name: str) -> bool:
    """Whether a name of a configuration is a number of layers."""
    return name.endswith(("layers", "_layer"))
