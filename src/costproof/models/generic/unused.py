"""Keys of a configuration that its model does not use, for models without formulas.

A class of transformers has fields, and its code reads further keys by name; what neither has, nothing reads.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.workload import FURTHER_TOKENS, UNREAD
from costproof.models.keys import HARMLESS, contradiction, harmless
from costproof.models.section import shown

if TYPE_CHECKING:
    from torch import nn

_ELSEWHERE: Final = frozenset(("architectures", "quantization_config"))
"""Keys that are read where a class is chosen, and where weights are."""


def unused(config: Any, data: Mapping[str, Any], module: nn.Module, where: str) -> dict[str, str]:
    """Return the path of every key that decides no cost -> the reason.

    Args:
        config: what transformers made of the configuration.
        data: the configuration as the file has it.
        module: the model.
        where: the file, for messages.

    Raises:
        Problems: keys are read in a part of the configuration alone, and have another value there.
        BadInput: a key says that the class does what it does not.
    """
    read = _names_in({type(part).__module__ for part in module.modules()})
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
    config: Any, data: Mapping[str, Any], path: str, read: frozenset[str]
) -> Iterator[tuple[str, str, Any, str, str | None]]:
    """Yield path, key, value, reason, and the path of a part that has the key with another value."""
    from transformers import PretrainedConfig

    kind = str(getattr(config, "model_type", ""))
    parts = {k: p for k, p in vars(config).items() if isinstance(p, PretrainedConfig)}
    own = _fields(config)
    known = own | read | _names_in({base.__module__ for base in type(config).__mro__})
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
    """The first part that reads a key, where none of those that do has this value."""
    decoder_first = sorted(parts.items(), key=lambda item: "text" not in item[0])
    found = [(name, part) for name, part in decoder_first if key in _fields(part)]
    values = [vars(part).get(type(part).attribute_map.get(key, key)) for _, part in found]
    return found[0][0] if found and value not in values else None


def _fields(config: Any) -> frozenset[str]:
    """The keys that the class of a configuration has."""
    kind = type(config)
    named = getattr(kind, "__dataclass_fields__", None) or inspect.signature(kind).parameters
    return frozenset((*named, *getattr(kind, "attribute_map", {})))


def _names_in(modules: set[str]) -> frozenset[str]:
    """Every name and every text in the code of modules of models, but for texts that are more than a name."""
    return frozenset[str]().union(*map(_names, sorted(m for m in modules if m.startswith("transformers"))))


@lru_cache(maxsize=64)
def _names(module: str) -> frozenset[str]:
    import sys

    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found = (getattr(node, "attr", getattr(node, "value", None)) for node in ast.walk(tree))
    arguments = (node.arg for node in ast.walk(tree) if isinstance(node, ast.arg | ast.keyword) and node.arg)
    return frozenset((*(name for name in found if isinstance(name, str)), *arguments))
