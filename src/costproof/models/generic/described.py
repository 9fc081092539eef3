"""A module and the arguments of its call as plain data: what is compared between two captures, and hashed."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from costproof.ledger.workload import ModuleKind, ModuleKinds, Plain, folded_path

if TYPE_CHECKING:
    from torch import nn

MOST_ARGUMENTS: Final = 256
"""Leaves of the arguments that are listed one by one; the rest is one digest."""
_MOST_LEAVES: Final = 10_000
_PYTHON: Final = Path(sysconfig.get_path("stdlib")).resolve()
_LONGEST: Final = 80
_DEEPEST: Final = 8
_INDEX: Final = re.compile(r"(.*_)?(idx|index|id|number)")
"""Names under which a layer keeps its own position, which differs between equal layers."""
_VOLATILE: Final = ("_name_or_path", "name_or_path", "transformers_version")
"""Keys of configurations that say where they came from and decide nothing."""


def arguments(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of a call, nested ones by path: ``image`` -> ``float32[2,3,64,64]``."""
    return _listed(given, objects=True)


def _listed(given: Mapping[str, Any], *, objects: bool) -> dict[str, str]:
    """Return the leaves of some values.

    Args:
        objects: list what is inside objects of any class, not their class alone.
    """
    every = chain.from_iterable(_leaves(name, value, objects, frozenset()) for name, value in given.items())
    leaves = list(islice(every, _MOST_LEAVES))
    found = dict(leaves[:MOST_ARGUMENTS])
    if rest := leaves[MOST_ARGUMENTS:]:
        found[f"{len(rest):,} more"] = _digest(rest)
    return found


def _leaves(name: str, value: Any, objects: bool, above: frozenset[int]) -> Iterator[tuple[str, str]]:
    text = _leaf(value, objects)
    if text is None and (len(above) == _DEEPEST or id(value) in above):
        text = type(value).__qualname__
    if text is not None:
        yield name, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {_digest(text)}"
        return
    above |= {id(value)}
    for key, inner in _inside(value, objects):
        yield from _leaves(f"{name}.{key}", inner, objects, above)


def _leaf(value: Any, objects: bool) -> str | None:
    """Return what is not divided further as text, a list of plain values too; ``None`` for all else."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tensor_text(value)
    if isinstance(value, set | frozenset):
        return repr(sorted(map(repr, value)))
    if isinstance(value, list | tuple) and all(v is None or isinstance(v, bool | int | float | str) for v in value):
        return repr(list(value))
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__
    if hasattr(value, "named_modules") or not any(True for _ in _inside(value, objects)):
        return _named(value)
    return None


def _inside(value: Any, objects: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(k), v) for k, v in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(i), v) for i, v in enumerate(value))
    elif is_dataclass(value):
        yield from ((f.name, getattr(value, f.name, None)) for f in fields(value))
    elif objects:
        yield from sorted(getattr(value, "__dict__", {}).items())


def tensor_text(tensor: Any) -> str:
    """Return dtype and shape: ``float32[2,3,64,64]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, map(int, tensor.shape)))}]"


def module_kinds(module: nn.Module) -> ModuleKinds:
    """Return the kinds of modules under each path, numbers in paths as ``*``."""
    found: dict[str, dict[str, ModuleKind]] = {}
    for path, part in module.named_modules():
        numbers = {int(n) for n in path.split(".") if n.isdecimal()}
        settings = {name: v for name, v in _settings(part) if not (_INDEX.fullmatch(name) and v in numbers)}
        shapes = {name: tensor_text(p) for name, p in part.named_parameters(recurse=False)}
        kind = ModuleKind(type(part).__name__, settings, shapes, 1)
        here = found.setdefault(folded_path(path), {})
        key = repr((kind.kind, sorted(settings.items()), sorted(shapes.items())))
        known = here.get(key)
        here[key] = kind if known is None else ModuleKind(kind.kind, settings, shapes, known.count + 1)
    return {path: tuple(kinds.values()) for path, kinds in found.items()}


def _settings(part: nn.Module) -> Iterator[tuple[str, Plain]]:
    """Yield the plain attributes that a class gave its module."""
    for name, value in vars(part).items():
        if name.startswith("_") or name in ("training", *_VOLATILE):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            yield name, str(value)
        elif value is None or isinstance(value, bool | int | float) or _is_word(value):
            yield name, value
        elif isinstance(value, list | tuple) and len(value) <= _LONGEST and all(type(v) in (int, str) for v in value):
            yield name, tuple(value)


def _is_word(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST and not Path(value).is_absolute()


def fingerprint(module: nn.Module, numbers: Mapping[str, int]) -> str:
    """Return twelve hex digits that change with whatever of a module may change a number.

    Hashed are the class, the plain attributes, the configuration, and the shapes and dtypes of every module; of the
    classes that no installed package defines, the files too.
    """
    from torch import nn

    internal = vars(nn.Module()).keys()
    rows: list[object] = []
    classes: dict[type, None] = {}
    configurations: dict[int, Any] = {}
    for path, part in module.named_modules():
        classes[type(part)] = None
        own = {k: v for k, v in vars(part).items() if k not in internal and k not in _VOLATILE}
        for name, value in own.items():
            if callable(getattr(value, "to_dict", None)):
                configurations[id(value)] = value
                own[name] = None
        tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        rows.append(
            (path, type(part).__qualname__, _listed(own, objects=False), {n: tensor_text(t) for n, t in tensors})
        )
    texts = [_without_origin(c.to_dict()) for c in configurations.values()]
    return _digest([rows, texts, sorted(numbers.items()), _code(classes)])


def _without_origin(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _without_origin(v) for k, v in value.items() if k not in _VOLATILE}
    return [_without_origin(v) for v in value] if isinstance(value, list | tuple) else value


def _code(kinds: Iterable[type]) -> list[str]:
    """Return the code of the files that define classes, without comments; what a package or Python has is left out.

    Of a class without a file it is the compiled code of its functions.
    """
    files: dict[Path, None] = {}
    found: list[str] = []
    for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
        codes = [f.__code__ for f in vars(kind).values() if inspect.isfunction(f)]
        # Two files of one name share the name of their module: the code knows where it comes from.
        names = dict.fromkeys(code.co_filename for code in codes)  # resolving a path takes long, and most share a file
        of_code = [Path(name).resolve() for name in names if Path(name).is_file()]
        if codes and not of_code:
            found += [f"{kind.__qualname__} {code.co_name} {code.co_code.hex()} {code.co_names}" for code in codes]
        for file in of_code:
            if not {"site-packages", "dist-packages"} & {*file.parts} and not file.is_relative_to(_PYTHON):
                files[file] = None
    for file in sorted(files, key=lambda f: f.name):
        with suppress(OSError, SyntaxError, ValueError):
            found.append(ast.unparse(ast.parse(file.read_bytes())))
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_named).encode()).hexdigest()[:12]


def _named(value: object) -> str:
    """Return a text for what JSON does not have, without the address that a default ``repr`` shows."""
    return str(value) if type(value).__module__ == "torch" else type(value).__qualname__
