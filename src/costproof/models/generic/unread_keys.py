"""Find the keys of a configuration that its model does not use, for models without formulas.

A configuration class has fields, and the code of the model reads further keys from the configuration object. All other
keys are unread, and so are some fields, which classes keep for files of older versions.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from costproof.configs.known_keys import HARMLESS, contradiction, harmless
from costproof.configs.reader import shown
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.workload import FURTHER_TOKENS, UNREAD
from costproof.models.generic import makers, structured

if TYPE_CHECKING:
    from torch import nn

_ELSEWHERE: Final = frozenset(("architectures", "model_type", "quantization_config"))
"""Keys that are read when a class is selected or weights are loaded."""
_SHARED: Final = (
    "transformers.cache_utils", "transformers.masking_utils", "transformers.modeling_rope_utils",
    "transformers.modeling_utils", makers.__name__, structured.__name__,
)  # fmt: skip
"""Modules of transformers, besides the model's own, that read configurations: caches, masks, rotary embeddings."""


def unused(config: Any, data: Mapping[str, Any], module: nn.Module, where: str) -> dict[str, str]:
    """Return the path of every key that affects no cost, with the reason.

    Args:
        config: the configuration object of transformers.
        data: the configuration as in the file.
        module: the model.
        where: the file, for messages.

    Raises:
        Problems: keys are read only in a part of the configuration, which has a different value.
        BadInput: a key contradicts what the class does.
    """
    read = _reads({*_SHARED, *(type(part).__module__ for part in module.modules())})
    found, misplaced = dict[str, str](), list[BadInput]()
    for path, key, value, reason, below in _unused(config, data, "$", read):
        if below is None or reason != UNREAD:
            found[path] = reason
        else:
            misplaced.append(
                BadInput(
                    "nothing reads this key here",
                    where=f"{path} in {where}",
                    expected=f"{below}.{key}",
                    got=shown(value),
                    fix=f"move it to {below}.{key}",
                )
            )
    if misplaced:
        raise Problems(f"the configuration {where} cannot be used", misplaced)
    return found


def _unused(
    config: Any, data: Mapping[str, Any], path: str, read: _Reads
) -> Iterator[tuple[str, str, Any, str, str | None]]:
    """Yield (path, key, value, reason, path of a submodel that has the key with another value) for each unused key."""
    from transformers import PretrainedConfig

    kind = str(getattr(config, "model_type", ""))
    parts = {k: p for k, p in vars(config).items() if isinstance(p, PretrainedConfig)}
    of_all = {base.__module__ for base in PretrainedConfig.__mro__}
    own, by_config = _fields(config), _reads({base.__module__ for base in type(config).__mro__} - of_all)
    live = own - _dead(config, data, read.names | by_config.loaded)
    known = live | read.keys | by_config.names | _reads(of_all).taken
    for key, value in data.items():
        if isinstance(value, dict) and key in parts:
            yield from _unused(parts[key], value, f"{path}.{key}", read)
            continue
        reason, below = harmless(kind, key, value), None
        if key not in own and reason is None and type(value) is int:
            below = _read_below(parts, key, value)
        if key not in known and (wrong := contradiction(kind, key, value, f"{path}.{key}")) is not None:
            raise wrong
        if key in _ELSEWHERE or (key in known and below is None and reason != FURTHER_TOKENS and key not in HARMLESS):
            continue
        yield f"{path}.{key}", key, value, reason or UNREAD, below and f"{path}.{below}"


def _read_below(parts: Mapping[str, Any], key: str, value: object) -> str | None:
    """Return the name of the first submodel that reads a key, unless a reading submodel has the same value."""
    decoder_first = sorted(parts.items(), key=lambda item: "text" not in item[0])
    found = [(name, part) for name, part in decoder_first if key in _fields(part)]
    values = [vars(part).get(type(part).attribute_map.get(key, key)) for _, part in found]
    return found[0][0] if found and value not in values else None


def _fields(config: Any) -> frozenset[str]:
    """Return the keys of a configuration class."""
    kind = type(config)
    named = getattr(kind, "__dataclass_fields__", None) or inspect.signature(kind).parameters
    return frozenset((*named, *getattr(kind, "attribute_map", {})))


def _dead(config: Any, data: Mapping[str, Any], read: frozenset[str]) -> frozenset[str]:
    """Return the fields that a file changes from the default and that no code reads, under any alias.

    Args:
        read: names that the code of the model and of the configuration reads.
    """
    kind = type(config)
    aliases: Mapping[str, str] = getattr(kind, "attribute_map", {})
    used = (
        read | {aliases[name] for name in read if name in aliases} | {a for a, name in aliases.items() if name in read}
    )
    usual = {f.name: f.default for f in getattr(kind, "__dataclass_fields__", {}).values()}
    return frozenset(key for key, value in data.items() if key in usual and key not in used and value != usual[key])


@dataclass(frozen=True, slots=True)
class _Reads:
    """Names of the configuration keys and attributes that the code of a set of modules reads."""

    keys: frozenset[str] = frozenset()
    """Attributes read from configuration objects: ``config.x``, ``getattr(config, "x", 0)``."""
    taken: frozenset[str] = frozenset()
    """Entries of dictionaries: ``kwargs.pop("x")``."""
    loaded: frozenset[str] = frozenset()
    """Names of all attributes that are read, of any object."""
    names: frozenset[str] = frozenset()
    """Names of all attributes and arguments, and all strings that are identifiers."""

    def __or__(self, other: _Reads) -> _Reads:
        mine, theirs = astuple(self), astuple(other)
        return _Reads(*(a | b for a, b in zip(mine, theirs, strict=True)))


def _reads(modules: set[str]) -> _Reads:
    """Return the names read in modules of transformers and in the code of generic targets."""
    found = _Reads()
    for module in sorted(m for m in modules if m.startswith(("transformers", "costproof"))):
        found |= _names(module)
    return found


@lru_cache(maxsize=64)
def _names(module: str) -> _Reads:
    nodes = [*ast.walk(ast.parse(inspect.getsource(import_module(module))))]
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    asked = [
        n for call in calls if _is_config(call.args[0] if call.args else call) and (n := _text(call, "getattr", 1))
    ]
    taken = [n for call in calls for method in ("pop", "get") if (n := _text(call, method, 0))]
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    arguments = (node.arg for node in nodes if isinstance(node, ast.arg | ast.keyword) and node.arg)
    return _Reads(
        frozenset((*asked, *taken, *(a.attr for a in attributes if _is_config(a.value)))),
        frozenset(taken),
        frozenset((*asked, *taken, *(a.attr for a in attributes if isinstance(a.ctx, ast.Load)))),
        frozenset((*(a.attr for a in attributes), *texts, *arguments)),
    )


def _text(call: ast.Call, function: str, place: int) -> str | None:
    """Return the string constant at position ``place`` in a call of ``function``; else ``None``."""
    given = call.args[place] if place < len(call.args) and _last_name(call.func) == function else None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _is_config(node: ast.expr) -> bool:
    """Return whether an expression is named as a configuration: ``config``, ``self.config``, ``text_config``."""
    name = _last_name(node).lower()
    return "config" in name or "cfg" in name


def _last_name(node: ast.expr) -> str:
    """Return the last name of a variable, an attribute or a call: ``c`` for ``a.b.c(d)``."""
    while isinstance(node, ast.Call):
        node = node.func
    return str(getattr(node, "attr", getattr(node, "id", "")))
