"""Targets that are a class of transformers with one configuration, read from a file of the family."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.ledger.errors import CostproofError, Problems
from costproof.ledger.files import read_configuration
from costproof.ledger.workload import NO_CLASS
from costproof.models.changing import put
from costproof.models.checkpoint import Stored, stored, without, without_dtype
from costproof.models.configured import Config, Configured
from costproof.models.keys import type_of_class
from costproof.models.section import Section


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
        """The configuration in a ``config.json``, told from the published one that it is, if it is one."""
        usual = cls.default()
        data = read_configuration(path)
        config = type(usual.config).of(data, path)
        published = next((p for p in usual.every_published() if p.normalised() == config.normalised()), None)
        known = published is not None
        return replace(usual, config=config, published=published, is_known=known, stored=stored(data, path))

    def every_published(self) -> tuple[C, ...]:
        """Return the published configuration of the family, and those of known models of it."""
        from costproof.models.known import KNOWN

        return (self.config, *(put(self.config, known.config) for known in KNOWN if known.family == self.name))

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


def check_type(top: Section, kind: str) -> None:
    """Check that a configuration is of a model type, or of none of transformers' with a class of this one."""
    if top.data.get("model_type") != kind and type_of_class(top.data) == kind:
        top.waive({"model_type": NO_CLASS})
    else:
        top.fixed("model_type", kind, why="this is the configuration of another model")
