"""Compute a fingerprint of everything that determines the export of a module, if that is possible.

Two exports with equal fingerprints are equal. It covers every attribute of every module and configuration, shapes,
dtypes and memory of tensors, the code of their classes, and the versions of the packages that run them. A module has no
fingerprint if something cannot be covered: values of large tensors, code outside installed packages, or objects of C
extensions.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import platform
import sys
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from costproof.ledger.attributes import own_attributes
from costproof.ledger.environment import environment, installed
from costproof.models.specs import ExportJob

_PLAIN: Final = (type(None), bool, int, float, str, bytes)
_SWITCHES: Final = ("TORCH", "PYTORCH", "TRANSFORMERS")
"""Prefixes of environment variables that a model's code may read."""
_MOST_NUMBERS: Final = 65_536
"""Maximum number of elements of a tensor whose values are covered: enough for frequency tables, not for weights."""
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_SAY_NOTHING: Final = frozenset({"__dict__", "__weakref__", "_original_object_hash"})
"""Names of ignored attributes: slots, and a hash in transformers' configurations that differs by process."""
_HEAP_TYPE: Final = 1 << 9
"""Type flag of classes that are created at run time, as all classes written in Python are."""
OWN: Final = Path(__file__).resolve().parents[1]
"""Folder of costproof's own code."""
_DECIDING: Final = ("algebra", "opgraph", "ledger", "configs", "models", "patches", "snapshots", "tracers", "weights")
"""Subpackages of costproof whose code determines the result of an export."""


class NotFingerprintable(Exception):
    """Raised if an export may depend on something that the fingerprint cannot cover."""


def fingerprint(job: ExportJob) -> str | None:
    """Return the fingerprint of a job's export, 64 hex digits; ``None`` if something cannot be covered."""
    import torch
    from torch.backends import opt_einsum

    teller = _Serializer()
    try:
        told = [
            [job.id, job.stage, sorted(job.prefix.items()), job.returns_cache, sorted(job.own_calls), job.numbers],
            [[list(size.argument), size.dim, size.symbol, size.step] for size in job.sizes],
            teller(job.module),
            teller(dict(job.args)),
            [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
            [opt_einsum.enabled, opt_einsum.strategy],
            teller.sources(),
        ]
    except (NotFingerprintable, RecursionError):  # a list in itself
        return None
    return digest([told, surroundings()])


def surroundings() -> list[Any]:
    """Return the facts on which every export depends: versions, platform, our own code, environment variables."""
    # Cache folders do not matter, and torch sets one of them on its first export.
    switches = sorted((k, v) for k, v in os.environ.items() if k.startswith(_SWITCHES) and "CACHE" not in k)
    return [environment(), platform.platform(), own_code_digest(), switches]


def digest(told: Any) -> str:
    """Return the SHA-256 digest of JSON data as 64 hex digits."""
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class _Serializer:
    """Serializer of Python objects for a fingerprint; a repeated object becomes a reference to the first occurrence."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []
        """Serialized objects, kept alive so that no other object gets the address of one."""
        self._classes: dict[type, None] = {}
        self._memories: dict[int, int] = {}
        """Number of each storage, by its address."""

    def __call__(self, value: Any) -> Any:
        """Serialize a value into bytes for the fingerprint.

        Raises:
            NotFingerprintable: it cannot be covered.
        """
        if type(value) in _PLAIN:
            return [type(value).__name__, repr(value)]
        if isinstance(value, tuple | list):  # their identity does not matter
            return [self._named(type(value)), self._inside(value)]
        if id(value) in self._numbers:
            return ["again", self._numbers[id(value)]]
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        return [self._named(type(value)), self._inside(value)]

    def sources(self) -> list[Any]:
        """Return the class code of every serialized value, with the versions of the packages."""
        return [_source(kind) for kind in self._classes]

    def _inside(self, value: Any) -> Any:
        import torch

        match value:
            case torch.Tensor():
                return self._tensor(value)
            case torch.dtype() | torch.device() | torch.layout() | torch.memory_format():
                return str(value)
            case enum.Enum():
                return value.name
            case type():
                return self._named(value)
            case dict():
                return [[[self(k), self(v)] for k, v in value.items()], self._attributes(value)]
            case list() | tuple():
                return [[self(v) for v in value], self._attributes(value)]
            case set() | frozenset():
                return sorted((self(v) for v in value), key=repr)
            case MethodType():
                return [self(value.__self__), self(value.__func__)]
            case partial():
                return [self(value.func), self(value.args), self(value.keywords)]
            case FunctionType():
                return self._function(value)
            case BuiltinFunctionType():
                return [value.__module__, value.__qualname__]
        written_in_python = all(kind.__flags__ & _HEAP_TYPE for kind in type(value).__mro__[:-1])
        if not written_in_python or not _fields(value):
            raise NotFingerprintable(type(value).__name__)
        return self._attributes(value)

    def _attributes(self, value: Any) -> Any:
        return [[name, self(held)] for name, held in own_attributes(value, _fields(value))]

    def _named(self, kind: type) -> str:
        self._classes[kind] = None
        return f"{kind.__module__}.{kind.__qualname__}"

    def _function(self, value: FunctionType) -> Any:
        _carrier(value.__module__)
        told = [value.__module__, value.__qualname__, _code(value.__code__), _reached(value)]
        cells = [self(cell.cell_contents) for cell in value.__closure__ or ()]
        return [*told, self(value.__defaults__), self(value.__kwdefaults__), cells]

    def _tensor(self, value: Any) -> Any:
        import torch

        if value.layout != torch.strided:
            raise NotFingerprintable("a sparse tensor")
        told = [list(map(int, value.shape)), list(map(int, value.stride())), str(value.dtype), str(value.device)]
        told.append(value.requires_grad)
        if value.device.type == "meta" and type(value) in (torch.Tensor, torch.nn.Parameter):
            memory = value.untyped_storage()._cdata
            return [*told, value.storage_offset(), self._memories.setdefault(memory, len(self._memories))]
        if value.device.type != "cpu" or value.numel() > _MOST_NUMBERS:
            raise NotFingerprintable("a tensor with numbers")
        numbers = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return [*told, hashlib.sha256(numbers).hexdigest()]


def _fields(value: Any) -> list[str]:
    """Return the names of an object's attributes, including slots, without those of its class."""
    slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    names = (name for found in slots for name in ([found] if isinstance(found, str) else found))
    try:
        own = getattr(value, "__dict__", ())
    except Exception as error:
        raise NotFingerprintable("an object that does not say what it holds") from error
    return [n for n in (*names, *own) if n not in _SAY_NOTHING]


def _source(kind: type) -> Any:
    """Return the code of a class, as it is in memory, and the version of its package.

    Raises:
        NotFingerprintable: its code is outside installed packages.
    """
    code = [
        [name, _code(held.__code__), _reached(held)]
        for base in kind.__mro__
        for name, held in vars(base).items()
        if isinstance(held, FunctionType)
    ]
    return [kind.__module__, _carrier(kind.__module__), hashlib.sha256(json.dumps(code).encode()).hexdigest()]


def _reached(function: FunctionType) -> list[Any]:
    """Return names and code digests of the functions that a function's code names, in its module or in imported ones.

    Packages with a faster attention replace such functions.
    """
    names = function.__code__.co_names
    held = [function.__globals__.get(name) for name in names]
    held += [vars(m).get(name) for m in held if isinstance(m, ModuleType) for name in names]
    return [[f.__module__, f.__qualname__, _code(f.__code__)] for f in held if isinstance(f, FunctionType)]


@cache
def _code(code: CodeType) -> str:
    """Return a digest of the code of a function."""
    consts = [
        _code(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    told = [code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


@cache
def _carrier(module: str | None) -> str | None:
    """Return the package and version of a Python module; ``None`` for Python itself and for costproof.

    Raises:
        NotFingerprintable: it belongs to no installed package, so a change of its helpers would go unnoticed.
    """
    if module is None:
        raise NotFingerprintable("a function that was made while it ran")
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == OWN.name:
        return None
    where, version = getattr(sys.modules.get(module), "__file__", None), installed(top)
    if where is None or version is None or not INSTALLED & set(Path(where).parts):
        raise NotFingerprintable(module)
    return f"{top} {version}"


@cache
def own_code_digest() -> str:
    """Return a digest of the costproof code that exports and costs graphs, so that a new version exports again."""
    found = hashlib.sha256()
    for file in sorted(file for part in _DECIDING for file in (OWN / part).rglob("*.py")):
        found.update(f"{file.relative_to(OWN).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()
