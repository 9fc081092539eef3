"""Define base classes of target configurations; read them from files, override single keys, and compare them."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.configs.known_keys import type_of_class
from costproof.configs.reader import LARGEST, MOST_LAYERS, Section, shown
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.files import read_configuration
from costproof.ledger.mesh import no_such_setting, of_mesh
from costproof.ledger.workload import NO_CLASS
from costproof.weights.stored import without, without_dtype


class Config(ABC):
    """Frozen dataclass of all facts about a model that affect a cost.

    Its defaults are the published configuration.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]
    waived: tuple[tuple[str, str], ...]
    """Keys that were read but deliberately not used, with the reason."""
    not_drawn: ClassVar[Mapping[str, str]] = {}
    """Fields that no draw of a proof varies, with the reason; fields of parts by their dotted path."""

    @abstractmethod
    def symbols(self) -> dict[str, int]:
        """Return the values of the configuration's symbols, by their names in the formulas."""

    @abstractmethod
    def contradictions(self) -> list[CostproofError]:
        """Return an error for each value that no model can have or that contradicts another value."""

    def normalised(self) -> dict[str, Any]:
        """Return every field that affects a cost, as JSON data."""
        return {key: value for key, value in asdict(self).items() if key != "waived"}

    def config_hash(self) -> str:
        """Return the first twelve hex digits of the SHA-256 of the normalised configuration."""
        return hashlib.sha256(json.dumps(self.normalised(), sort_keys=True).encode()).hexdigest()[:12]


C = TypeVar("C", bound=Config)


class NativeConfig(Config):
    """Configuration that is read from, and written as, the ``config.json`` of a Hugging Face model class."""

    __slots__ = ()
    model_type: ClassVar[str]
    """Model type in a configuration file, under which transformers registers the class of the model."""
    not_null: ClassVar[tuple[str, ...]] = ()
    """Keys for which transformers' configuration class refuses ``null``, although formulas would take a default.

    A test compares them with the pinned version.
    """
    not_as_in_file: ClassVar[Mapping[str, str]] = {}
    """Dotted keys that :meth:`native` sets to another value than the file, with the reason."""

    def in_file(self) -> Self:
        """Return the configuration with the values that a ``config.json`` can state; by default, itself."""
        return self

    @classmethod
    def for_class(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the JSON object of a file to the form that the configuration class of transformers reads.

        By default the object is returned unchanged.
        """
        return dict(data)

    @classmethod
    @abstractmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """Parse the JSON value of a configuration file; append every error to ``problems``."""

    @abstractmethod
    def native(self) -> dict[str, Any]:
        """Return the keyword arguments of the configuration class of transformers."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a ``config.json`` of the family.

        Raises:
            Problems: every key that is missing, unknown, out of range, or contradicts another.
        """
        return cls.of(read_configuration(path), path)

    @classmethod
    def of(cls, data: object, path: Path) -> Self:
        """Build the configuration from JSON data, as :meth:`load` does from a file."""
        problems: list[CostproofError] = []
        config = cls.read(without_dtype(without(data)), problems)
        if problems:
            raise Problems(f"the configuration {path} cannot be used", problems)
        return config


def activation(top: Section, key: str, usual: str) -> str:
    """Return the name of an activation function in a section; record a problem if there is no formula for it."""
    return str(top.fixed(key, *ACTIVATION_FLOPS, why="no formula for this activation", default=usual))


def yes_or_no(top: Section, key: str, *, default: bool = False) -> bool:
    """Return the boolean value of a key in a section; record a problem for any other value."""
    return bool(top.fixed(key, False, True, why="this is yes or no", default=default))


def check_type(top: Section, kind: str) -> None:
    """Check ``model_type``, or for a type without a class in transformers, the class that the file names."""
    if top.data.get("model_type") != kind and type_of_class(top.data) == kind:
        top.waive({"model_type": NO_CLASS})
    else:
        top.fixed("model_type", kind, why="this is the configuration of another model")


def check_padding(top: Section, vocab: int) -> None:
    """Check that the padding id is a row of the token embedding, as ``torch.nn.Embedding`` requires."""
    key, value = "pad_token_id", top.data.get("pad_token_id")
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is None or any(str(p.where).endswith(".vocab_size") for p in top.problems):
        return
    if not whole or not -vocab <= value < vocab:
        what, expected = "the table of tokens has no such row", f"null, or an id below {vocab}"
        top.problem(what, key, expected=expected, got=shown(value))


def check_returns(top: Section) -> None:
    """Check that ``return_dict`` is not false, since the outer model class reads the outputs of its parts by name."""
    if top.data.get("return_dict") is False:
        what = "the class reads the result of its decoder by name, and fails on a tuple"
        top.problem(what, "return_dict", expected="true, or no such key", got="false")


_WAIVED: Final = "waived"
_MAY_BE_0: Final = ("dense_layers", "image_token", "q_rank", "window")
"""Fields that may be 0, which means that the model has no such part."""
_TEXTS: Final = {
    "activation": "|".join(map(re.escape, ACTIVATION_FLOPS)),
    "pattern": "[fw]{1,200}",
    "kinds": "[dm]{1,200}",
}
"""Regular expressions of text fields' values, by field; other text fields name a class, which affects other keys."""


def keys_of(config: Any, within: str = "") -> dict[str, Any]:
    """Return the values of all keys that affect a cost; nested keys are dotted, as in ``text.hidden``."""
    found: dict[str, Any] = {}
    for one in fields(config):
        value, name = getattr(config, one.name), within + one.name
        if one.name != _WAIVED:
            found |= keys_of(value, f"{name}.") if is_dataclass(value) else {name: value}
    return found


def changes(config: Config, published: Config) -> dict[str, str]:
    """Return the differences from a published configuration by key, as JSON: ``8, published 6`` for ``text.topk``."""
    mine, theirs = ({k: json.dumps(v) for k, v in keys_of(c).items()} for c in (config, published))
    return {key: f"{mine[key]}, published {value}" for key, value in theirs.items() if mine[key] != value}


KEY: Final = "config."
"""Prefix that marks a setting as the override of a configuration key."""
KEYS_IN_FILE: Final = "a model without formulas takes its configuration from its file: change a key in a copy of that"
"""What to do where a target without formulas was given the value of a key."""


def key_named(config: Any, name: str, where: str) -> str:
    """Return the full key for a name: the name itself, or the only key that ends in it, as ``topk`` for ``text.topk``.

    ``config.experts`` always means the key, also if a setting of the workload has the same name.

    Raises:
        BadInput: no key matches, or several do.
    """
    known = keys_of(config)
    name = name if name in known else name.removeprefix(KEY)
    meant = [name] if name in known else [key for key in known if key.endswith(f".{name}")]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise BadInput("several keys have this name", where=where, expected="one of " + ", ".join(meant), got=name)
    if of_mesh(name):
        raise no_such_setting(name, where, known)
    fix = did_you_mean(name, known)
    raise BadInput("no such key", where=where, expected="one of " + ", ".join(known), got=name[:80], fix=fix)


def with_keys(config: C, changes: Mapping[str, Any]) -> C:
    """Return the configuration with other values for some keys, checked.

    Raises:
        Problems: a value is invalid for its key, or contradicts another.
    """
    problems: list[CostproofError] = []
    known = keys_of(config)
    for key, value in changes.items():
        problem = _wrong(key, known[key], value)
        if problem is not None:
            problems.append(problem)
    if not problems:
        made: C = put(config, changes)
        problems += [
            BadInput(
                "this key follows from other keys and cannot be set",
                where=f"$.{key}",
                expected=shown(got),
                got=shown(changes[key]),
            )
            for key, got in keys_of(made).items()
            if key in changes and got is not changes[key] and got != _plain(changes[key])
        ]
        problems += [] if problems else made.contradictions()
        if not problems:
            return made
    raise Problems("the configuration cannot be used", problems)


def put(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return the configuration with other values for some keys, without checking them."""
    own: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        part, dot, rest = key.partition(".")
        if dot:
            nested.setdefault(part, {})[rest] = value
        else:
            own[part] = _plain(value)
    return replace(config, **own, **{part: put(getattr(config, part), inner) for part, inner in nested.items()})


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _wrong(key: str, now: Any, value: Any) -> BadInput | None:
    """Return the error if ``value`` cannot replace a key's current value ``now``, or ``None`` if it can."""
    where, name = f"$.{key}", key.rpartition(".")[2]
    if isinstance(now, bool):
        ok, expected = isinstance(value, bool), "true or false"
    elif isinstance(now, tuple):
        ok = isinstance(value, list | tuple) and all(map(_whole, value))
        expected = "a list of integers"
    elif isinstance(now, str):
        pattern = _TEXTS.get(name.removeprefix("pooler_"))
        if pattern is None:
            fix = "--config FILE with all of these keys"
            what = "this key cannot be set by itself, since other keys depend on it"
            return BadInput(what, where=where, expected=shown(now), got=shown(value), fix=fix)
        ok = isinstance(value, str) and re.fullmatch(pattern, value) is not None
        expected = pattern.replace("|", ", ").replace("\\", "")
    elif isinstance(now, float):
        ok, expected = isinstance(value, int | float) and not isinstance(value, bool) and value > 0, "a positive number"
    elif now is None:
        ok, expected = value is None or (_whole(value) and value > 0), "a positive integer, or null"
    else:
        absent = now == 0 and name not in _MAY_BE_0
        if absent and value != 0:
            fix = "--config FILE of a model with this part"
            what = "this part cannot be added, since the model was configured without it"
            return BadInput(what, where=where, expected=0, got=shown(value), fix=fix)
        least = 0 if now == 0 or name in _MAY_BE_0 else 1
        most = MOST_LAYERS if name.endswith("layers") else LARGEST
        ok = _whole(value) and least <= value <= most
        expected = f"an integer from {least} to {most}"
    return None if ok else BadInput("a key cannot have this value", where=where, expected=expected, got=shown(value))
