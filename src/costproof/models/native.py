"""Targets that are a class of transformers with one configuration, read from a file of the family."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.ledger.errors import CostproofError, Problems
from costproof.ledger.files import read_configuration
from costproof.models.configured import Config, Configured
from costproof.models.section import Section
from costproof.models.stored import Stored, stored, without, without_dtype

WAIVED: Final = {
    **dict.fromkeys(("_name_or_path", "transformers_version", "auto_map"), "says where it is from"),
    **dict.fromkeys(("torch_dtype", "dtype"), "the dtype is a matter of the run"),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "the attention is a matter of the run"),
    **dict.fromkeys(("experts_implementation", "_experts_implementation"), "how experts run is a matter of the run"),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "token ids decide no cost"),
    **dict.fromkeys(("finetuning_task", "task_specific_params", "output_past"), "of what it was trained for"),
    **dict.fromkeys(("initializer_range", "attention_dropout", "use_cache"), "of training alone"),
}
"""Keys that decide no cost of any family."""


class NativeConfig(Config):
    """A configuration as its family's files have it."""

    __slots__ = ()
    model_type: ClassVar[str]
    """As in a file, and as transformers registers the class of the model under."""

    @classmethod
    @abstractmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """The configuration in the value of a file; whatever is wrong with it goes to ``problems``."""

    @abstractmethod
    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a ``config.json`` of the family.

        Raises:
            Problems: every key that is missing, unknown, out of range, or contradicts another.
        """
        return cls.of(read_configuration(path), path)

    @classmethod
    def of(cls, data: object, path: Path) -> Self:
        """:meth:`load` of a file that is already read."""
        problems: list[CostproofError] = []
        config = cls.read(without_dtype(without(data)), problems)
        if problems:
            raise Problems(f"the configuration {path} cannot be used", problems)
        return config


C = TypeVar("C", bound=NativeConfig)


@dataclass(frozen=True, slots=True)
class Native(Configured[C]):
    """A class of transformers with one configuration."""

    model_types: ClassVar[tuple[str, ...]]
    """The types of configurations that the family reads."""
    released: ClassVar[Stored] = Stored()
    """How the published checkpoint of the default configuration stores its weights."""

    @classmethod
    def default(cls) -> Self:
        """The published configuration."""
        return cls(stored=cls.released)  # type: ignore[call-arg]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The configuration in a ``config.json``."""
        usual = cls.default()
        data = read_configuration(path)
        return replace(usual, config=type(usual.config).of(data, path), stored=stored(data, path))

    @classmethod
    def from_normalised(cls, text: str) -> Self:
        """The configuration that a certificate holds."""
        usual = cls.default()
        return replace(usual, config=type(usual.config)(**json.loads(text)))


def activation(top: Section, key: str, usual: str) -> str:
    """The name of an activation function; one without a formula is a problem."""
    return str(top.fixed(key, *ACTIVATION_FLOPS, why="no formula for this activation", default=usual))


def yes_or_no(top: Section, key: str, *, default: bool = False) -> bool:
    """A key that is yes or no."""
    return bool(top.fixed(key, False, True, why="this is yes or no", default=default))
