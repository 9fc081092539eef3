"""Resolve the address of a model: a registered name, a configuration, a folder, or a user's factory function."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from costproof.foreign import contained
from costproof.ledger.errors import BadInput, first_line
from costproof.ledger.files import first_bytes
from costproof.ledger.workload import ITEM_BYTES, AttentionKind, Dtype
from costproof.models.generic.factories import Made
from costproof.patches.nested import in_parts, put_together
from costproof.snapshots.copies import innermost
from costproof.snapshots.described import check_parts
from costproof.weights.stored import PLAIN, Stored

if TYPE_CHECKING:
    from torch import nn


AddressKind = Literal["name", "folder", "configuration", "file", "module"]

CONFIGURATION: Final = "hf:"
_HEADER: Final = re.compile(rb'"schema":\s*"(costproof/[a-z_]+)"')
_HEADER_BYTES: Final = 256
FACTORY: Final = re.compile(r"(?P<place>.+\.py):(?P<function>\w+)")
_MODULE: Final = re.compile(r"(?P<place>[A-Za-z_][\w.]*):(?P<function>\w+)")
FORMS: Final = "hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION, package.module:FUNCTION"


def names_function(text: str) -> bool:
    """Return whether a text names a factory function rather than a file at a git revision (``main:baseline``).

    The module is looked up in the current folder and on Python's path; its code is not run.
    """
    if FACTORY.fullmatch(text):
        return True
    found = _MODULE.fullmatch(text)
    if found is None:
        return False
    top = found["place"].partition(".")[0]
    return Path(top).is_dir() or Path(f"{top}.py").is_file() or find_spec(top) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """Parsed address of a model: its kind, and the path, function or name in it."""

    kind: AddressKind
    place: str
    """Registered name, folder, file, module, or the path or model type after ``hf:``."""
    function: str = ""
    """Name of the factory function in a file or module."""

    @property
    def path(self) -> Path | None:
        """Return the file or folder of the configuration, or ``None`` for a bare model type."""
        here = Path(self.place)
        is_path = here.exists() or here.suffix == ".json" or "/" in self.place or "\\" in self.place
        return here if self.kind == "configuration" and is_path else None

    def seen_from(self, folder: Path) -> str:
        """Return the address as text, with its file or folder relative to ``folder``."""
        is_path = self.kind in ("file", "folder") or self.path is not None
        place = Path(os.path.relpath(self.place, folder)).as_posix() if is_path else self.place
        head = CONFIGURATION if self.kind == "configuration" else ""
        return f"{head}{place}{f':{self.function}' if self.function else ''}"

    @property
    def name(self) -> str:
        """Return the name of the target: ``bert``, or ``tiny:make`` for a factory function."""
        if self.function:
            return f"{PurePath(self.place).stem if self.kind == 'file' else self.place}:{self.function}"
        return self.label

    @property
    def label(self) -> str:
        """Return a short name that is valid as a folder name: ``bert``, ``tiny-make``."""
        if self.function:
            return self.name.replace(":", "-")
        path = PurePath(self.place)
        if not path.name or ".." in (path.name, path.parent.name):  # never the name of a folder above
            path = PurePath(os.path.abspath(self.place))
        own = path.name.removesuffix(".json")  # the rest of a name may contain dots: llama-3.1-8b
        return path.parent.name or own if path.name == "config.json" else own or "model"


def _kind_of_ours(file: Path) -> str | None:
    """Return the ``kind`` in the header of a JSON file written by costproof, or ``None`` for any other file."""
    try:
        found = _HEADER.search(first_bytes(file, _HEADER_BYTES, regular=True))
    except OSError:
        return None
    return found[1].decode() if found else None


def address(text: str, names: Container[str] = ()) -> Address:
    """Parse the address of a model; no file is opened and no code is run.

    Args:
        names: the registered names; they take precedence over other readings.

    Raises:
        BadInput: an incomplete address, or a file that costproof wrote.
    """
    if text in names:
        return Address("name", text)
    if text.startswith(CONFIGURATION):
        place = text.removeprefix(CONFIGURATION)
        if not place:
            raise BadInput("no configuration is named", where=text, expected="hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE")
        return Address("configuration", place)
    for kind, form in (("file", FACTORY), ("module", _MODULE)):
        if found := form.fullmatch(text):
            return Address("file" if kind == "file" else "module", found["place"], found["function"])
    if text.endswith(".json") or Path(text).is_file():
        if (ours := _kind_of_ours(Path(text))) is not None:
            raise _counted(text, "file", f"a file of the kind {ours}")
        fix = f"{CONFIGURATION}{text[:80]}" if text.endswith(".json") else f"{text[:80]}:FUNCTION"
        raise BadInput(
            "this names no target",
            where=text[:80],
            expected=FORMS,
            fix=f"{fix} names the model in the file; --config FILE configures a registered target",
        )
    if Path(text).is_dir() or "/" in text or "\\" in text:
        if not Path(text, "config.json").exists() and _kind_of_ours(Path(text, "capture.json")) is not None:
            raise _counted(text, "folder", "a folder of reports")
        return Address("folder", text)
    return Address("name", text)


def _counted(text: str, what: str, got: str) -> BadInput:
    """Return the error for a result file of an earlier run that was given where a target is expected."""
    return BadInput(
        f"this {what} names no target",
        where=text[:80],
        expected=FORMS,
        got=got,
        fix="costproof diff, gate, roofline and fits take a capture, a baseline or a folder of reports; "
        "costproof explain a capture or such a folder",
    )


RETURNS = "an nn.Module, or (module, inputs): a tensor, a sequence of arguments, or a dict of them by name"
_SHARD: Final = "DTensor"
"""Name of torch's tensor class for tensors that are distributed over several processes."""
_FIX = "run the file with python to see the traceback, or set COSTPROOF_DEBUG=1"


@dataclass(frozen=True, slots=True)
class Factory:
    """User function that builds a module; every process that needs the module calls the function again."""

    place: str
    """Absolute path of the file, or name of the module, that contains the function."""
    function: str
    in_file: bool = False

    numbers: ClassVar[Mapping[str, int]] = {}
    """Integers of the configuration by name: empty, since there is no configuration."""
    chooses: ClassVar[frozenset[str]] = frozenset()
    """Options that :meth:`make` can set: empty, since the function decides dtype and attention."""
    stored: ClassVar[Stored] = PLAIN

    @property
    def name(self) -> str:
        """Return ``file:function`` or ``module:function``."""
        return f"{Path(self.place).stem if self.in_file else self.place}:{self.function}"

    @property
    def what(self) -> str:
        """Return a phrase for reports that names the function."""
        place = Path(self.place).name if self.in_file else self.place
        return f"the module that {place}:{self.function} returned when it was run"

    def make(self, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
        """Call the function and check its result.

        Raises:
            BadInput: there is no such function, it fails, or it returns no module.
        """
        from torch import nn

        where = f"{self.place}:{self.function}"
        root = self.place if self.in_file else None
        with contained("the factory failed", where, root=root, expected=RETURNS, fix=_FIX), self._findable():
            made = self._function()()
            module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
            if isinstance(module, nn.Module) and inputs is None:
                own = getattr(module, "example_inputs", None)
                inputs = own() if callable(own) else None
        if not isinstance(module, nn.Module):
            raise BadInput("the factory makes no module", where=where, expected=RETURNS, got=type(made).__name__)
        check_call(module, in_parts(inputs, where), where)
        module = innermost(module)  # the wrapper of torch.compile takes any arguments, and is not what is counted
        if inputs is None:
            return Made(module)
        named = in_parts(named_inputs(module, inputs), where)
        put_together(module, named)
        return Made(module, named)

    def _function(self) -> Callable[[], Any]:
        found = getattr(self._module(), self.function, None)
        if not callable(found):
            raise BadInput(
                "there is no such function",
                where=self.place,
                expected="a function without arguments",
                got=self.function,
            )
        return found  # type: ignore[no-any-return]

    def _module(self) -> Any:
        if not self.in_file:
            return importlib.import_module(self.place)
        path = Path(self.place)
        if not path.is_file():
            raise BadInput("there is no such file", where=self.place, expected="FILE.py:FUNCTION")
        name = f"costproof:{path.stem}"  # a file may be called as a package that somebody imports later
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    @contextmanager
    def _findable(self) -> Iterator[None]:
        """Make the file's folder, or the current folder, importable while the block runs."""
        folder = str(Path(self.place).parent) if self.in_file else os.getcwd()
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with suppress(ValueError):  # the code may have put its own things there
                sys.path.remove(folder)


def check_call(module: nn.Module, given: Any, where: str) -> None:
    """Check that no module contains itself, that names fit into files, and that shapes and dtypes are known.

    Raises:
        BadInput: a check fails.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    check_parts(module)
    tensors = (*module.parameters(), *module.buffers(), *tree_leaves(given))
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors if isinstance(t, torch.Tensor)}
    if unknown := sorted(dtypes - ITEM_BYTES.keys()):
        raise BadInput(
            "a tensor has a dtype of which no source can count the bytes",
            where=where,
            expected="torch's numbers of whole bytes, as float32, int8 or float8_e4m3fn",
            got=", ".join(unknown),
            fix="count the model with the tensor in such a dtype, as integers of few bits packed in uint8",
        )
    if any(isinstance(t, torch.Tensor) and t.is_nested for t in tensors):
        raise BadInput("a parameter or buffer is a nested tensor", where=where, fix="keep its tensors separately")
    if any(type(t).__name__ == _SHARD for t in tensors):
        raise BadInput(
            "a tensor is spread over several processes",
            where=where,
            expected="the module before distribute_module, parallelize_module or fully_shard",
            got=f"a {_SHARD}",
            fix="count the whole module, made without torch.distributed: its work divides over the processes",
        )


def named_inputs(module: nn.Module, inputs: Any) -> dict[str, Any]:
    """Map the inputs of a call (a tensor, a sequence or a mapping) to the argument names of ``forward``.

    Raises:
        BadInput: ``forward`` does not accept them.
    """
    if isinstance(inputs, Mapping):
        return bound(module, (), dict(inputs))
    return bound(module, tuple(inputs) if isinstance(inputs, Sequence) else (inputs,), {})


def bound(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``forward``, positional and keyword, by name.

    A ``forward`` with variadic positional arguments is replaced by a wrapper with named ones, so pass a copy.

    Raises:
        BadInput: ``forward`` does not accept them.
    """
    import torch

    if isinstance(module, torch.jit.ScriptModule):  # a traced one has no signature, a scripted one no graph
        fix = "give the module as it was before torch.jit"
        raise BadInput("forward does not declare its arguments", where=type(module).__name__, fix=fix)
    signature = inspect.signature(module.forward)
    try:
        found = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise BadInput(
            "forward does not take these arguments",
            where=type(module).__name__,
            expected=f"forward{signature}",
            got=first_line(error),
        ) from error
    kinds = {name: p.kind for name, p in signature.parameters.items()}
    named: dict[str, Any] = {}
    for name, value in found.arguments.items():
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}_{i}": v for i, v in enumerate(value)}
        else:
            named[name] = value
    by_position = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY
    if any(kinds[name] in by_position for name in found.arguments):
        _name_arguments(module, tuple(named), len(found.args))
    _hooks_by_position(module, tuple(named)[: len(args)])
    return named


def _hooks_by_position(module: nn.Module, names: tuple[str, ...]) -> None:
    """Patch forward hooks to receive positional arguments, although the module is called by keyword."""

    def before(hook: Any, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = [name for name in names if name in kwargs]  # a tracer may give them by position after all
        found = hook(part, (*args, *(kwargs[name] for name in named)))
        if found is None:
            return None
        changed = found if isinstance(found, tuple) else (found,)
        return changed[: len(args)], {**kwargs, **dict(zip(named, changed[len(args) :], strict=True))}

    def behind(hook: Any, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        return hook(part, (*args, *(kwargs[name] for name in names if name in kwargs)), result)

    for hooks, with_kwargs, around in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, before),
        (module._forward_hooks, module._forward_hooks_with_kwargs, behind),
    ):
        for key in [k for k in hooks if k not in with_kwargs]:
            hooks[key], with_kwargs[key] = partial(around, hooks[key]), True


def _name_arguments(module: nn.Module, names: tuple[str, ...], by_position: int) -> None:
    """Give the module a ``forward`` with these argument names that passes the first ``by_position`` by position."""
    original = module.forward

    def forward(**given: Any) -> Any:
        rest = {name: given[name] for name in names[by_position:] if name in given}
        return original(*(given[name] for name in names[:by_position]), **rest)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module.forward = forward
