"""Describe temporary replacements of attributes of other packages, and apply them in a context manager."""

from __future__ import annotations

import gc
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Patch:
    """An attribute of another package that is replaced while a model is exported or traced."""

    target: str
    """``module:attribute``; the attribute may be a path, such as ``torch:Tensor.tolist``."""
    make: Callable[..., Any]
    """Function from (original, *context) to the replacement; original is ``None`` for an attribute to be created."""
    reason: str
    """Why the original attribute cannot be used."""
    test: str
    """The test file that fails without the patch, relative to ``tests``."""
    missing: Literal["error", "skip", "create"] = "error"
    """What happens if the installed version lacks the target."""

    @property
    def package(self) -> str:
        """Return the package that owns the target."""
        return self.target.partition(":")[0].partition(".")[0]

    def install(self, undo: ExitStack, *context: Any) -> None:
        """Replace the target; ``undo`` restores it."""
        from unittest import mock

        place, _, name = self.target.rpartition("." if "." in self.target.partition(":")[2] else ":")
        try:
            owner = pkgutil.resolve_name(place)
            original = getattr(owner, name, None) if self.missing == "create" else getattr(owner, name)
        except (ImportError, AttributeError):
            if self.missing != "skip":
                raise
            return
        create = self.missing == "create"
        undo.enter_context(mock.patch.object(owner, name, self.make(original, *context), create=create))


@dataclass(frozen=True, slots=True)
class SettingPatch(Patch):
    """A configuration variable of another package that is set while a model is traced, if it exists."""

    def install(self, undo: ExitStack, *context: Any) -> None:
        """Set the variable; ``undo`` restores its previous value."""
        module, _, name = self.target.partition(":")
        config = pkgutil.resolve_name(module)
        if hasattr(config, name):
            before = getattr(config, name)
            undo.callback(setattr, config, name, before)
            setattr(config, name, self.make(before, *context))


@dataclass(frozen=True, slots=True)
class LoadedPatch(Patch):
    """Patch of a module's attribute that applies only if that module is already imported."""

    def install(self, undo: ExitStack, *context: Any) -> None:
        """Replace the target if its module has it; ``undo`` restores it."""
        from unittest import mock

        module, _, path = self.target.partition(":")
        owner_name, _, name = path.rpartition(".")
        owner: Any = sys.modules.get(module)
        if owner_name and owner is not None:
            owner = vars(owner).get(owner_name)
        if owner is not None and hasattr(owner, name):
            undo.enter_context(mock.patch.object(owner, name, self.make(getattr(owner, name), *context)))


@contextmanager
def patched(*patches: Patch, context: tuple[Any, ...] = ()) -> Iterator[None]:
    """Apply patches in order while the block runs, and undo them in reverse order.

    Patches may be nested: each wraps the attribute that it finds at entry.

    Args:
        context: further arguments of :attr:`Patch.make`.
    """
    with ExitStack() as undo:
        for patch in patches:
            patch.install(undo, *context)
        yield


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection while the block runs: tracing creates many long-lived objects."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def is_complete(module: Any) -> bool:
    """Return whether a Python module is installed and fully imported, so that its variables no longer change.

    A module outside of packages may be reloaded or written to, and one with a custom class may import attributes
    lazily.
    """
    if type(module) is not ModuleType:
        return False
    spec = getattr(module, "__spec__", None)
    return is_installed(module) and spec is not None and not getattr(spec, "_initializing", False)


def is_installed(module: ModuleType) -> bool:
    """Return whether a Python module belongs to a package, to the standard library or to this program."""
    package = module.__name__.partition(".")[0]
    if package == __name__.partition(".")[0] or package in sys.stdlib_module_names:
        return True
    return f"{os.sep}site-packages{os.sep}" in (getattr(module, "__file__", None) or "")
