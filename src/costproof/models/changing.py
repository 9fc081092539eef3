"""Single keys of a configuration, by their names in its normalised form: ``text.hidden``, ``layers``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, TypeVar

from costproof.analytic.mlp import ACTIVATION_FLOPS
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.models.section import LARGEST, MOST_LAYERS, shown

if TYPE_CHECKING:
    from costproof.models.configured import Config

C = TypeVar("C", bound="Config")

_WAIVED: Final = "waived"
_MAY_BE_0: Final = ("dense_layers", "image_token", "q_rank", "window")
"""Fields of which 0 says that the model has none of these, whatever they are now."""
_TEXTS: Final = {
    "activation": "|".join(map(re.escape, ACTIVATION_FLOPS)),
    "pattern": "[fw]{1,200}",
    "kinds": "[dm]{1,200}",
}
"""Fields that are texts -> what one looks like. The others name a class, which decides other keys too."""


def keys_of(config: Any, within: str = "") -> dict[str, Any]:
    """Key -> value of all that decides a cost; what is nested has its place before a dot."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value, name = getattr(config, field.name), within + field.name
        if field.name != _WAIVED:
            found |= keys_of(value, f"{name}.") if is_dataclass(value) else {name: value}
    return found


def changes(config: Config, published: Config) -> dict[str, str]:
    """Where a configuration is not the published one, as JSON spells it: ``text.topk`` -> ``8, published 6``."""
    mine, theirs = ({k: json.dumps(v) for k, v in keys_of(c).items()} for c in (config, published))
    return {key: f"{mine[key]}, published {value}" for key, value in theirs.items() if mine[key] != value}


KEY: Final = "config."
"""Before a name that is the key's."""


def key_named(config: Any, name: str, where: str) -> str:
    """The key that a name means: itself, or the only one that ends in it, as ``topk`` means ``text.topk``.

    ``config.experts`` is a key beyond doubt, where a setting of the workload has the same name.

    Raises:
        BadInput: there is none, or there are several.
    """
    known = keys_of(config)
    name = name if name in known else name.removeprefix(KEY)
    meant = [name] if name in known else [key for key in known if key.endswith(f".{name}")]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise BadInput("several keys have this name", where=where, expected="one of " + ", ".join(meant), got=name)
    fix = did_you_mean(name, known)
    raise BadInput("no such key", where=where, expected="one of " + ", ".join(known), got=name[:80], fix=fix)


def with_keys(config: C, changes: Mapping[str, Any]) -> C:
    """The configuration with other values under some keys.

    Raises:
        Problems: a value is not one that the key can have, or contradicts another.
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
            BadInput("this key follows from others", where=f"$.{key}", expected=shown(got), got=shown(changes[key]))
            for key, got in keys_of(made).items()
            if key in changes and got is not changes[key] and got != _plain(changes[key])
        ]
        problems += [] if problems else made.contradictions()
        if not problems:
            return made
    raise Problems("the configuration cannot be used", problems)


def put(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with other values under some keys, which are trusted."""
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
    """Why a key that is ``now`` cannot have a value."""
    where, name = f"$.{key}", key.rpartition(".")[2]
    if isinstance(now, bool):
        ok, expected = isinstance(value, bool), "yes or no"
    elif isinstance(now, tuple):
        ok = isinstance(value, list | tuple) and all(map(_whole, value))
        expected = "a list of integers"
    elif isinstance(now, str):
        pattern = _TEXTS.get(name.removeprefix("pooler_"))
        if pattern is None:
            fix = "give a configuration file that has it"
            return BadInput("other keys depend on this one", where=where, got=shown(value), fix=fix)
        ok = isinstance(value, str) and re.fullmatch(pattern, value) is not None
        expected = pattern.replace("|", ", ").replace("\\", "")
    elif isinstance(now, float):
        ok, expected = isinstance(value, int | float) and not isinstance(value, bool) and value > 0, "a positive number"
    elif now is None:
        ok, expected = value is None or (_whole(value) and value > 0), "a positive integer, or null"
    else:
        absent = now == 0 and name not in _MAY_BE_0
        if absent and value != 0:
            fix = "give a configuration file that has it"
            return BadInput("the model has nothing of this kind", where=where, expected=0, got=shown(value), fix=fix)
        least = 0 if now == 0 or name in _MAY_BE_0 else 1
        most = MOST_LAYERS if name.endswith("layers") else LARGEST
        ok = _whole(value) and least <= value <= most
        expected = f"an integer from {least} to {most}"
    return None if ok else BadInput("a key cannot have this value", where=where, expected=expected, got=shown(value))
