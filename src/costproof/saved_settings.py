"""Save process settings and the functions of Python and torch, and restore those that foreign code changed."""

from __future__ import annotations

import builtins
import os
import sys
from contextlib import suppress
from operator import is_not
from types import ModuleType
from typing import Any, Final

from costproof.process_settings import UNKNOWN, process_settings

_WITH_CLASSES: Final = frozenset(
    ("contextlib", "json.decoder", "json.encoder", "logging", "pathlib", "subprocess", "tempfile", "threading")
)
"""Python modules whose classes a command needs to write files and start processes."""
_BUILTINS: Final = vars(builtins)
_OF_OS: Final = vars(os)
_TORCH: Final = "torch"


class SavedSettings:
    """Snapshot of all process settings and of the functions of Python and torch."""

    def __init__(self, *, everything: bool = True) -> None:
        """Take the snapshot; without ``everything``, only of built-in functions and :mod:`os`, which is much faster."""
        self._builtins, self._os = dict(_BUILTINS), dict(_OF_OS)
        self._code = [Namespace.of(place) for place in _places_of_python()] if everything else []
        self._torch = [Namespace.of(place) for place in _places_of_torch()] if everything else []
        settings = process_settings() if everything else ()
        self._before = [(setting, setting.read()) for setting in settings]

    def put_back_builtins(self) -> None:
        """Restore built-in functions and :mod:`os` without any function call, since other restoring code needs them."""
        _BUILTINS.update(self._builtins)
        _OF_OS.update(self._os)

    def put_back(self, *, in_fork: bool = False) -> list[str]:
        """Restore everything that can be restored; return the changes that could alter what a module computes.

        Args:
            in_fork: leave what belongs to a thread, and random numbers, which Python seeds in a fork.

        Returns:
            Names of what was changed: functions of torch, hooks of all modules.
        """
        self.put_back_builtins()
        for space in self._code:
            space.put_back()
        counted = self._put_back_settings(in_fork=in_fork)  # torch.Storage depends on the default dtype
        replaced = [name for space in self._torch for name in space.put_back(keep=_TORCH)]
        if replaced:  # some of them may set settings
            self._put_back_settings(in_fork=in_fork)
        return replaced + counted

    def _put_back_settings(self, *, in_fork: bool) -> list[str]:
        found = []
        for setting, before in self._before:
            if before is UNKNOWN or (in_fork and (setting.of_thread or setting.same is None)):
                continue
            with suppress(Exception):  # the folder may no longer exist; the other settings are restored anyway
                if setting.same is None or not setting.same(before, setting.read()):
                    setting.put(before)
                    found += [setting.name] if setting.counted else []
        return found

    def differences(self) -> list[str]:
        """Return a phrase for each setting that differs from the snapshot."""
        changed = (
            (setting.name, before, now)
            for setting, before in self._before
            if before is not UNKNOWN and setting.same is not None and not setting.same(before, now := setting.read())
        )
        return [name + (f" {b} -> {n}" if _is_short(b) and _is_short(n) else "") for name, b, n in changed]


class Namespace:
    """Snapshot of the attributes of a module, class or object."""

    __slots__ = ("_now", "before", "place")

    def __init__(self, place: Any) -> None:
        self.place, self.before = place, dict(vars(place))
        self._now = vars(place).values()

    @staticmethod
    def of(place: Any) -> Namespace:
        """Return a snapshot of the current attributes, reusing the last one if nothing changed.

        A comparison takes a fraction of the time of a copy.
        """
        space = _known.get(id(place))
        if space is None or space.place is not place or not space.same():
            space = _known[id(place)] = Namespace(place)
        return space

    def same(self) -> bool:
        """Return whether every attribute is still the same object."""
        return len(self._now) == len(self.before) and not any(map(is_not, self._now, self.before.values()))

    def put_back(self, *, keep: str = "") -> list[str]:
        """Restore functions and classes that were replaced, shadowed or deleted; return their names.

        Args:
            keep: leave what modules have made whose names begin with this, except another function of the same place.

        Returns:
            The names of what was put back.
        """
        if self.same():
            return []
        place, now = self.place, dict(vars(self.place))
        parents = place.__mro__[1:-1] if isinstance(place, type) else ()
        found = []
        for name in {**self.before, **now}:
            before, value = self.before.get(name), now.get(name)
            if name not in self.before:
                if not any(hasattr(parent, name) for parent in parents):
                    continue
            elif value is before or not is_code(before):
                continue
            made_by = str(getattr(getattr(value, "fget", None) or value, "__module__", ""))
            if keep and made_by.startswith(keep) and not any(value is held for held in self.before.values()):
                continue
            with suppress(Exception):  # some must not be set
                setattr(place, name, before) if name in self.before else delattr(place, name)
                found.append(f"{'torch.' if isinstance(place, type) else ''}{place.__name__}.{name}")
        return found


def is_code(value: Any) -> bool:
    """Return whether a value is a function, a class, or another descriptor."""
    return callable(value) or hasattr(type(value), "__get__")


_known: Final[dict[int, Namespace]] = {}
"""The last snapshot of each module or class, by its ``id``."""
_python: tuple[int, tuple[Any, ...]] = (0, ())
"""The length of ``sys.modules`` at the last search, and the modules and classes of Python that it found."""


def _places_of_python() -> tuple[Any, ...]:
    """Return the loaded modules of the standard library, and the classes that a command needs to write files."""
    global _python
    if _python[0] != len(sys.modules):
        modules = [
            module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in sys.stdlib_module_names and type(module) is ModuleType
        ]
        classes = {
            id(value): value
            for module in modules
            if module.__name__ in _WITH_CLASSES
            for value in list(vars(module).values())
            if type(value) is type and value.__module__ == module.__name__
        }
        _python = len(sys.modules), (*modules, *classes.values())
    return _python[1]


def _places_of_torch() -> tuple[Any, ...]:
    torch: Any = sys.modules.get("torch")
    return (torch, torch.nn.functional, torch.Tensor, torch.nn.Module) if hasattr(torch, "get_rng_state") else ()


def _is_short(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) < 4 and all(map(_is_short, value))
    return value is None or isinstance(value, bool | int | float) or type(value).__module__ == "torch"
