"""Limit the resources and side effects of building a model from a configuration: sizes, warnings, downloads."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from costproof.configs.reader import LARGEST, MOST_LAYERS, shown
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, Problems
from costproof.ledger.time_limits import check_time, time_limit

if TYPE_CHECKING:
    import torch
    from torch import nn


MOST_LABELS: Final = 100_000
"""Maximum number of classes of a classifier; transformers creates a name for each when it reads the configuration."""
MOST_ENTRIES: Final = 100_000
"""Maximum number of entries of a list or an object."""
MOST_CHARACTERS: Final = 100_000
"""Maximum length of a string."""
MOST_LEVELS: Final = 32
"""Maximum nesting depth of objects and lists."""
MOST_INTEGER: Final = 2**63 - 1
"""Largest size that torch accepts."""
MOST_MODULES: Final = 250_000
"""Maximum number of modules, twice that of the largest published model (60 layers of 384 experts of 5 modules each).

Models of transformers have up to 2,000, as their experts are stacked. 117,000 take 10 of :data:`SECONDS` and 300 MB.
"""
MOST_ELEMENTS: Final = 10**14
"""Maximum number of elements of parameters and buffers, 100 times that of the largest published model."""
MOST_COUNTED: Final = 256
"""Maximum number of layers of a stack that is counted, twice that of any published model; each takes about 0.2 s."""
SECONDS: Final = 20
"""Limit of processor time for reading a configuration, or for building a model once, in seconds."""

_LAYERS: Final = re.compile(
    r"(.*_)?(layers?|depths?|n(um)?_(attn_)?blocks?|block_(sizes|repeats)|(layers|blocks)_per_\w+|numb_of_layers)"
)
"""Names of keys that state numbers of layers: one number, or a list with one for each stage of a model."""
_NUMBER: Final = re.compile(r"(num|n)_((\w+_)?(layers?|heads?|experts|labels|channels))|(encoder|decoder)_layers")
_WIDTH: Final = re.compile(
    r"(hidden|intermediate|vocab|embedding|patch)_size|(head|embed|ffn)_dim|d_(model|ff|kv|inner)|n_embd"
)
_LIMIT: Final = re.compile(r"max_.*|model_max_length")
"""Names of keys that are upper limits, which may be very large, since no size depends on them."""
_MANY: Final = re.compile(r"(num|n)_.*|.*(layer|depth|block|expert|stage).*")
"""Names of integer keys that determine how many modules are built."""


def check_keys(data: Mapping[str, Any], path: str) -> None:
    """Check the configuration keys that no class of transformers checks, before a model is built from them.

    Args:
        path: of the file, for messages.

    Raises:
        Problems: every value that is out of bounds or of another type.
    """
    problems = [*_types(data), *_bounds("$", "", data, MOST_LEVELS)]
    if problems:
        raise Problems(f"the configuration {path} cannot be used", problems[:_SHOWN])


_SHOWN: Final = 20


def _types(data: Mapping[str, Any]) -> Iterator[CostproofError]:
    """Yield errors of the keys that select the class to build, such as ``model_type`` and ``architectures``."""
    kind = data["model_type"]
    if not (0 < len(kind) <= 100 and kind.isprintable()):
        yield _wrong("this is not a model type", "$.model_type", "a short name", kind)
    named = data.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(n, str) for n in named)):
        yield _wrong("this must be a list of names of classes", "$.architectures", "a list of texts, or null", named)
    code = data.get("auto_map")
    if code is not None and not isinstance(code, dict):
        yield _wrong("this must be an object", "$.auto_map", "an object, or null", code)


def _bounds(path: str, key: str, value: object, levels: int) -> Iterator[CostproofError]:
    """Yield an error for each value out of bounds at or below a path of the configuration."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from _integer(path, key, value)
    elif isinstance(value, str):
        if len(value) > MOST_CHARACTERS:
            yield _wrong("this text is too long", path, f"at most {MOST_CHARACTERS:,} characters", len(value))
    elif isinstance(value, dict | list):
        if levels == 0:
            yield _wrong("nested too deep", path[:200], f"at most {MOST_LEVELS} levels")
        elif len(value) > MOST_ENTRIES:
            yield _wrong("too many entries", path, f"at most {MOST_ENTRIES:,}", f"{len(value):,}")
        elif isinstance(value, dict):
            for name, part in value.items():
                yield from _bounds(f"{path}.{name}"[:400], name, part, levels - 1)
        else:
            for i, part in enumerate(value):
                yield from _bounds(f"{path}[{i}]", key, part, levels - 1)


def _integer(path: str, key: str, value: int) -> Iterator[CostproofError]:
    least, most = -MOST_INTEGER, MOST_INTEGER
    if _LIMIT.fullmatch(key):
        return
    if key in ("num_labels", "num_classes"):
        most = MOST_LABELS
    elif _LAYERS.fullmatch(key):
        most = MOST_LAYERS
    elif _WIDTH.fullmatch(key):
        least, most = 1 if key in ("hidden_size", "d_model", "n_embd") else 0, LARGEST
    if _NUMBER.fullmatch(key):
        least = 0
    if not least <= value <= most:
        expected = f"an integer from {least:,} to {most:,}" if least >= 0 else f"an integer of at most {most:,}"
        yield _wrong("this is out of range", path, expected, value)


def _wrong(what: str, where: str, expected: str, got: object = NOT_GIVEN) -> BadInput:
    return BadInput(what, where=where, expected=expected, got=got if got is NOT_GIVEN else shown(got))


@dataclass(slots=True)
class _Built:
    """Counter of the modules and elements that a thread builds, which raises beyond the limits."""

    data: Mapping[str, Any]
    where: str
    thread: int
    modules: int = 0
    elements: int = 0

    def module(self, module: nn.Module, name: str, part: nn.Module | None) -> None:
        """Count a module that is registered as a submodule."""
        if threading.get_ident() != self.thread:
            return
        self.modules += 1
        check_time()
        if self.modules > MOST_MODULES:
            raise self._refused("the model has too many modules", f"at most {MOST_MODULES:,}", _largest(self.data))

    def tensor(self, module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        """Count a parameter or a buffer."""
        if tensor is None or threading.get_ident() != self.thread:
            return
        check_time()
        self.elements += tensor.numel()
        size = max(tensor.shape, default=0)
        if size > LARGEST:
            raise self._refused(
                "a dimension of a tensor is too large", f"at most {LARGEST:,}", _place_of(self.data, size)
            )
        if self.elements > MOST_ELEMENTS:
            raise self._refused("the model is too large", f"at most {MOST_ELEMENTS:,} elements", None)

    def _refused(self, what: str, expected: str, place: str | None) -> BadInput:
        where = self.where if place is None else f"{place} in {self.where}"
        return BadInput(what, where=where, expected=expected, fix="set smaller sizes in the configuration")


@contextmanager
def bounded(data: Mapping[str, Any], where: str) -> Iterator[None]:
    """Limit what this thread may build while the block runs: modules, elements, tensor sizes, seconds.

    Args:
        data: the configuration, to name the key that is too large.

    Raises:
        BadInput: a limit is exceeded.
    """
    from torch.nn.modules import module as hooks

    built = _Built(data, where, threading.get_ident())
    what, fix = "the model takes too long to build", "smaller numbers in the configuration"
    with ExitStack() as undo:
        undo.enter_context(time_limit(SECONDS, what, where=where, fix=fix))
        for register, hook in (
            (hooks.register_module_module_registration_hook, built.module),
            (hooks.register_module_parameter_registration_hook, built.tensor),
            (hooks.register_module_buffer_registration_hook, built.tensor),
        ):
            undo.callback(register(hook).remove)
        yield


def check_depth(module: nn.Module, data: Mapping[str, Any], where: str) -> None:
    """Check that a model has at most as many layers as can be counted in some minutes.

    Raises:
        BadInput: a stack has more than :data:`MOST_COUNTED`.
    """
    from torch import nn

    lists = {path: len(part) for path, part in module.named_modules() if isinstance(part, nn.ModuleList)}
    outer = {path: n for path, n in lists.items() if not any(path.startswith(f"{other}.") for other in lists)}
    path, layers = max(outer.items(), key=lambda item: item[1], default=("", 0))
    if layers > MOST_COUNTED:
        raise BadInput(
            "the model has too many layers to count them all",
            where=f"{_place_of(data, layers) or path} in {where}",
            expected=f"at most {MOST_COUNTED}",
            got=layers,
            fix="--layers 2 counts the first layers, and from them the whole model",
        )


def _place_of(data: Mapping[str, Any], value: int) -> str | None:
    """Return the path of the first integer in a configuration that equals ``value``."""
    return next((path for path, _, number in _integers(data) if number == value), None)


def _largest(data: Mapping[str, Any]) -> str | None:
    """Return the path of the largest integer in a configuration, which an error names."""
    found = [(number, path) for path, key, number in _integers(data) if _MANY.fullmatch(key)]
    return max(found)[1] if found else None


def _integers(data: Mapping[str, Any], path: str = "$") -> Iterator[tuple[str, str, int]]:
    """Yield path, key and value of every integer in a configuration."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _integers(value, f"{path}.{key}")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{path}.{key}", key, value


_said: set[tuple[str, str]] = set()


def _is_new(record: logging.LogRecord) -> bool:
    """Return whether this process logs a message for the first time, as a filter for log handlers."""
    message = (record.name, record.getMessage())
    if message in _said:
        return False
    _said.add(message)
    return True


@contextmanager
def said_once() -> Iterator[None]:
    """Log each distinct warning of transformers once per process while the block runs."""
    with ExitStack() as undo:
        for handler in logging.getLogger("transformers").handlers:
            if _is_new not in handler.filters:
                handler.addFilter(_is_new)
                undo.callback(handler.removeFilter, _is_new)
        yield


_KERNELS: Final = (("transformers.integrations.hub_kernels", "get_kernel"), ("kernels", "get_kernel"))
"""Functions that fetch a kernel from the Hub; their callers catch exceptions and continue without the kernel."""
_ASKED: Final = ("transformers.dynamic_module_utils", "TIME_OUT_REMOTE_CODE")
"""Timeout, in seconds, of the prompt for trust in a part's remote code; 0 refuses the code immediately."""


@contextmanager
def unasked(*, builds: bool = True) -> Iterator[None]:
    """Refuse kernels of the Hub and untrusted remote code without a prompt while the block runs.

    Args:
        builds: whether the block may build models, which load the package kernels where that is installed.
    """
    if builds:
        importlib.import_module("transformers.modeling_utils")
    with ExitStack() as undo:
        for module, name in _KERNELS:
            if hasattr(sys.modules.get(module), name):
                undo.enter_context(mock.patch.object(sys.modules[module], name, _refused))
        module, name = _ASKED
        if hasattr(importlib.import_module(module), name):
            undo.enter_context(mock.patch.object(sys.modules[module], name, 0))
        yield


def _refused(kernel: object, *_: Any, **__: Any) -> None:
    raise ImportError(f"{kernel} is a kernel of the Hub, and costproof fetches none")
