"""Describe a module and the arguments of a call as plain data, to compare captures and to compute fingerprints."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import ConfigValue, ModuleKind, ModuleKinds, folded_path
from costproof.patches.nested import Jagged

if TYPE_CHECKING:
    from torch import nn

MOST_ARGUMENTS: Final = 256
"""Maximum number of values in arguments that are listed; all further ones are hashed to one digest."""
_PYTHON: Final = Path(sysconfig.get_path("stdlib")).resolve()
_LONGEST: Final = 80
_DEEPEST: Final = 100
_FEW: Final = 8
"""Maximum number of integers in a tensor that are listed: enough for image sizes and lengths, not for token ids."""
_LARGEST: Final = 10**18
_INDEX: Final = re.compile(r"(.*_)?(idx|index|id|number)")
"""Attribute names under which a layer keeps its position among equal layers."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_VOLATILE: Final = ("_name_or_path", "name_or_path", "transformers_version")
"""Keys of a configuration that state its origin and affect no cost."""


def arguments(given: Mapping[str, Any]) -> dict[str, str]:
    """Describe dtype, shape and values of all arguments of a call, by path.

    A scalar or a few integers are written out. Any other tensor has a hash of its values in their place:
    ``image`` is ``float32[2,3,64,64] 1f0c3a9be2d7``.
    """
    return _listed(given, _Leaves(objects=True, values=True))


def shapes(given: Mapping[str, Any]) -> dict[str, str]:
    """Describe the arguments as :func:`arguments` does, without hashes of tensor values."""
    return _listed(given, _Leaves(objects=True))


def _listed(given: Mapping[str, Any], how: _Leaves) -> dict[str, str]:
    found: dict[str, str] = {}
    rest, more = hashlib.sha256(), 0
    for name, text in chain.from_iterable(how.of(_written(name), value) for name, value in given.items()):
        if len(found) < MOST_ARGUMENTS:
            own = name
            while own in found:  # keys 1 and "1", or "a.b" and b in a
                own += "'"
            found[own] = text
        else:
            rest.update(f"{name} {text}\n".encode())
            more += 1
    if more:
        found[f"{more:,} more"] = rest.hexdigest()[:12]
    return found


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Converter of a value to pairs of a path and a text that describes the value there.

    Args:
        objects: whether to list the contents of objects of any class, not only their class.
        values: whether to list the values of tensors.
        model: whether the value is a model, whose weights affect nothing: only values of integers and masks are listed,
            and the code of functions.
    """

    objects: bool
    values: bool = False
    model: bool = False
    known: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """Path of a visited value, by its id, with the value, which keeps the id from being reused."""

    def of(self, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
        """Yield the pairs of path and text for a value."""
        text, inner = self._divided(value, depth)
        if inner and id(value) in self.known:
            text = f"as {self.known[id(value)][0]}"
        if text is not None:
            text = _written(text)
            yield name, text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… {_digest(text)}"
            return
        self.known[id(value)] = name, value
        for key, part in inner:
            yield from self.of(f"{name}.{_written(key)}", part, depth + 1)

    def _divided(self, value: Any, depth: int) -> tuple[str | None, list[tuple[str, Any]]]:
        """Return (text, no items) for a value without contents, or (no text, items) for a value with contents."""
        try:
            text = self._leaf(value)
            inner = [] if text is not None or depth == _DEEPEST else [*self._inside(value)]
        except Exception as error:  # of the value's own class, whatever it raises
            return f"{type(value).__qualname__}, which raises {type(error).__qualname__}", []
        return (text, inner) if text is not None or inner else (_named(value), inner)

    def _leaf(self, value: Any) -> str | None:
        """Return the text of a value without further contents, such as a list of plain values; else ``None``."""
        if isinstance(value, bool | int):
            return repr(value) if abs(value) < _LARGEST else hex(value)
        if value is None or isinstance(value, float | complex | str | bytes):
            return repr(value)
        if inspect.ismodule(value):
            return f"module {value.__name__}"
        if _is_tensor(value):
            told = self.values and not (self.model and _is_inexact(value))
            return tensor_text(value) + (_numbers(value) if told else "")
        if isinstance(value, set | frozenset):
            return repr(sorted(map(repr, value)))
        if isinstance(value, list | tuple) and all(v is None or isinstance(v, bool | float | str) for v in value):
            return repr(list(value))
        if isinstance(value, list | tuple) and all(type(v) is int and abs(v) < _LARGEST for v in value):
            return repr(list(value))
        if isinstance(value, type):
            return value.__qualname__
        if hasattr(value, "named_modules") and not self.objects:
            return _named(value)
        return None

    def _inside(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            yield from ((str(k), v) for k, v in value.items())
        elif isinstance(value, Jagged):
            yield from (("values", value.values), ("offsets", value.offsets))
        elif isinstance(value, Sequence) and not isinstance(value, range | memoryview | bytearray):
            yield from ((str(i), v) for i, v in enumerate(value))
        elif is_dataclass(value):
            yield from ((f.name, getattr(value, f.name, None)) for f in fields(value))
        elif self.objects and hasattr(value, "named_modules"):
            yield "class", type(value)
            yield from chain(value.named_parameters(), value.named_buffers())
        elif self.objects and inspect.isroutine(value):
            captured = [*self._captured(value)]
            if self.model and (code := getattr(value, "__code__", None)) and not _is_installed(Path(code.co_filename)):
                captured.append(("code", _compiled(code)))
            yield from [("function", value.__qualname__), *captured] if captured else ()
        elif self.objects:
            yield from sorted(attribute(value, "__dict__", {}).items())
            slots = chain.from_iterable(_slots(kind) for kind in type(value).__mro__)
            yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))

    def _captured(self, function: Any) -> Iterator[tuple[str, Any]]:
        """Yield the values that a function captures: its bound object, default values and closure variables."""
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
        for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
            with suppress(ValueError):  # nothing is in it yet
                yield name, cell.cell_contents
        for name in ("__self__", "__defaults__", "__kwdefaults__"):
            if (held := getattr(function, name, None)) is not None and not inspect.ismodule(held):
                yield name, held


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(n for n in names if not n.startswith("__"))


def _written(text: str) -> str:
    """Escape lone surrogates, so that a text can be encoded in UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_tensor(value: Any) -> bool:
    """Return whether a value has a dtype and a shape of integers or symbols, or is a nested tensor."""
    if getattr(value, "is_nested", False) is True:
        return True
    shape = getattr(value, "shape", None)
    return hasattr(value, "dtype") and isinstance(shape, Sequence) and not isinstance(shape, str)


def _is_inexact(tensor: Any) -> bool:
    """Return whether a tensor has a floating-point or complex dtype, as weights have."""
    return any(kind in str(tensor.dtype) for kind in ("float", "complex"))


def _numbers(tensor: Any) -> str:
    """Return the values of a scalar or a few integers as text, else a hash; empty for a tensor without values."""
    if getattr(tensor, "is_nested", False) or getattr(tensor, "is_meta", False):
        return ""
    size, dtype = math.prod(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch.")
    try:
        if not tensor.shape or ("int" in dtype and size <= _FEW):
            return f" {tensor.tolist()!r}"
        return f" {hashlib.sha256(_bytes(tensor)).hexdigest()[:12]}" if size else ""
    except (RuntimeError, NotImplementedError, TypeError):  # a tensor without values
        return ""


def _bytes(tensor: Any) -> bytes:
    """Return the memory of a torch tensor or NumPy array as bytes."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return bytes(tensor.tobytes())
    dense = tensor.detach().cpu()
    dense = (dense if dense.layout == torch.strided else dense.to_dense()).contiguous()
    return dense.view(-1).view(torch.uint8).numpy().tobytes()


def tensor_text(tensor: Any) -> str:
    """Return a text with dtype and shape: ``float32[2,3,64,64]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(_size, _shape(tensor)))}]"


def _shape(tensor: Any) -> tuple[Any, ...]:
    """Return the shape of a tensor; for a nested tensor the shape of each part, as text."""
    if getattr(tensor, "is_nested", False):
        return tuple("x".join(map(str, part.shape)) for part in tensor.unbind())
    return tuple(tensor.shape)


def _size(size: Any) -> str:
    return size if isinstance(size, str) else str(int(size))


def check_parts(module: nn.Module) -> None:
    """Check that no module contains itself, and that names of modules, parameters and buffers are valid in files.

    Raises:
        BadInput: a module contains itself, or a name is not a string or cannot be encoded.
    """
    if (path := _path_to_itself(module)) is not None:
        fix = "store the reference in a tuple, or with object.__setattr__, so that torch does not register it"
        where = f"{path} of {type(module).__qualname__}"
        raise BadInput("a module is a part of itself", where=where, expected="a tree of modules", fix=fix)
    for part in module.modules():
        tables = (vars(part).get(table, ()) for table in ("_modules", "_parameters", "_buffers"))
        for name in chain.from_iterable(table for table in tables if isinstance(table, dict)):  # TorchScript has others
            if not isinstance(name, str) or _written(name) != name:
                where = f"a part of {type(part).__qualname__}"
                what = "the name of a submodule, parameter or buffer cannot be written to a file"
                raise BadInput(what, where=where, expected="a string of valid Unicode", got=ascii(name)[:60])


def _path_to_itself(module: nn.Module) -> str | None:
    """Return the path of a module that occurs among its own ancestors; ``None`` if there is none."""
    done: set[int] = set()
    around: dict[int, tuple[str, Iterator[tuple[str, nn.Module]]]] = {id(module): ("", _children(module))}
    while around:
        (key, (path, rest)) = next(reversed(around.items()))
        name, child = next(rest, (None, module))
        if name is None:
            done.add(key)
            del around[key]
        elif id(child) in around:
            return f"{path}.{name}".lstrip(".")
        elif id(child) not in done:
            around[id(child)] = f"{path}.{name}".lstrip("."), _children(child)
    return None


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    children = vars(module).get("_modules")
    held = children.items() if isinstance(children, dict) else ()  # TorchScript has others
    return ((str(name), child) for name, child in held if child is not None)


def module_kinds(module: nn.Module) -> ModuleKinds:
    """Return the kinds of modules at each path pattern, which has ``*`` in place of numbers."""
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


def _settings(part: nn.Module) -> Iterator[tuple[str, ConfigValue]]:
    """Yield the public plain attributes of a module, which its constructor has set, as JSON values."""
    for name, value in vars(part).items():
        if name.startswith("_") or name in ("training", *_VOLATILE):
            continue
        if _written(name) != name:
            continue
        if isinstance(value, float) and not math.isfinite(value):
            yield name, str(value)
        elif type(value) is int and abs(value) >= _LARGEST:
            yield name, f"an integer of {value.bit_length()} bits"
        elif value is None or isinstance(value, bool | int | float) or _is_word(value):
            yield name, value
        elif isinstance(value, list | tuple) and len(value) <= _LONGEST and all(map(_is_plain, value)):
            yield name, tuple(value)


def _is_plain(value: Any) -> bool:
    return (type(value) is int and abs(value) < _LARGEST) or _is_word(value)


def _is_word(value: Any) -> TypeGuard[str]:
    """Return whether a value is a short text that contains no path of this machine."""
    return type(value) is str and len(value) <= _LONGEST and _written(value) == value and not Path(value).is_absolute()


def fingerprint(module: nn.Module, numbers: Mapping[str, int]) -> str:
    """Return a hash, twelve hex digits, of everything in a module that may change a cost.

    The hash covers class, attributes, hooks, configuration, shapes and dtypes of every module, the values of its
    integers, and the source files of classes that no installed package defines.
    """
    from torch import nn

    plain = vars(nn.Module())
    internal = {name for name in plain if not name.endswith("_hooks")}
    leaves = _Leaves(objects=True, values=True, model=True)
    rows: list[object] = []
    classes: dict[type, None] = {}
    configurations: dict[int, Any] = {}
    for path, part in module.named_modules():
        classes[type(part)] = None
        attributes = ((k, v) for k, v in vars(part).items() if k not in internal and k not in _VOLATILE)
        own = {k: [*v.values()] if k in plain else v for k, v in attributes if not (k in plain and not v)}
        for name, value in own.items():
            if callable(getattr(value, "to_dict", None)):
                configurations[id(value)] = value
                own[name] = None
        tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        rows.append(
            (
                path,
                type(part).__qualname__,
                _listed(own, leaves),
                _listed(dict(tensors), _Leaves(objects=False, values=True, model=True)),
            )
        )
    texts = [_without_origin(c.to_dict()) for c in configurations.values()]
    return _digest([rows, texts, sorted(numbers.items()), _code(classes)])


def _without_origin(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _without_origin(v) for k, v in value.items() if k not in _VOLATILE}
    return [_without_origin(v) for v in value] if isinstance(value, list | tuple) else value


def _code(kinds: Iterable[type]) -> list[str]:
    """Return the source, without comments, of the files that define classes, except those of installed packages.

    For a class without a file, it is the bytecode of its functions.
    """
    files: dict[Path, None] = {}
    found: list[str] = []
    for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
        codes = [f.__code__ for f in vars(kind).values() if inspect.isfunction(f)]
        # Two files of one name share the name of their module: the code knows where it comes from.
        names = dict.fromkeys(code.co_filename for code in codes)  # resolving a path takes long, and most share a file
        of_code = [Path(name).resolve() for name in names if Path(name).is_file()]
        if codes and not of_code:
            found += [f"{kind.__qualname__} {code.co_name} {_compiled(code)}" for code in codes]
        files |= {file: None for file in of_code if not _is_installed(file)}
    for file in sorted(files, key=lambda f: f.name):
        with suppress(OSError, SyntaxError, ValueError):
            found.append(_without_comments(file.read_bytes()))
    return found


@lru_cache(maxsize=32)
def _without_comments(source: bytes) -> str:
    """Return the source of a Python file without comments, in a canonical layout; memoized."""
    return ast.unparse(ast.parse(source))


def _is_installed(file: Path) -> bool:
    """Return whether a file belongs to an installed package or to Python."""
    return bool({"site-packages", "dist-packages"} & {*file.parts}) or file.is_relative_to(_PYTHON)


def _compiled(code: CodeType) -> str:
    """Return the bytecode of a function as text, with its constants and nested functions."""
    constants = [_compiled(c) if isinstance(c, CodeType) else _ADDRESS.sub("", repr(c)) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_named).encode()).hexdigest()[:12]


def _named(value: object) -> str:
    """Return a text without memory addresses for a value that JSON cannot represent.

    For a class without its own ``__repr__``, it is the name of the class.
    """
    kind = type(value)
    own = kind.__repr__ is not object.__repr__ and not hasattr(value, "named_modules")
    if inspect.isroutine(value):
        return str(getattr(value, "__qualname__", kind.__qualname__))
    try:
        return _ADDRESS.sub("", repr(value)) if own else kind.__qualname__
    except Exception:  # of the value's own class, whatever it raises
        return kind.__qualname__
