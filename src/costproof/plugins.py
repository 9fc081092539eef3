"""Register targets, rules, counters and formats by name, built in or from entry points, and load them lazily.

A kind of thing has a name in the plural (``counters``). Ours stand in its registry; another distribution
adds its own by an entry point of the group ``costproof.counters``. Nothing is imported before it is asked
for, and two owners of one name are an error that names both: of theirs neither is used, of ours and theirs ours.
A plug-in that cannot be loaded harms nobody who does not ask for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from costproof.foreign import contained, owned, skip
from costproof.ledger.errors import BadInput, CostproofError, did_you_mean

T = TypeVar("T")

OURS: Final = "costproof"
"""Owner of the built-in objects."""


@dataclass(frozen=True, slots=True)
class Plugin(Generic[T]):
    """A registered object: its name, its origin, and a function that loads it."""

    name: str
    what: str
    """One line of description; for a plug-in of another distribution, where its code is."""
    load: Callable[[], T]
    """Function that imports and returns the object; called on first use."""
    owner: str = OURS


def lazy(place: str) -> Callable[[], Any]:
    """Return a function that imports ``module:attribute`` of costproof when it is called.

    The function imports the module when it is called; whatever that raises passes through.
    """

    def load() -> Any:
        module, _, attribute = place.partition(":")
        return getattr(import_module(module), attribute)

    return load


@cache
def _offered(read: Callable[..., Iterable[EntryPoint]], group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, memoized per ``sys.path``, since a look-up takes 5 ms."""
    return tuple(sorted(read(group=group), key=lambda p: (p.name, p.value)))


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """All registered objects of one kind, by name."""

    kind: str
    """Name of the kind in the plural; the entry point group is ``costproof.KIND``."""
    one: str
    """Name of the kind in the singular, for messages: ``counter``."""
    ours: tuple[Plugin[T], ...]
    instance: type | None = None
    """Type of which each object must be an instance; not checked if ``None``."""
    command: str = ""
    """The command that lists the objects, for messages."""
    checked: Callable[[Any, Plugin[Any]], Any] | None = None
    """Function that validates an object of another distribution and returns the usable form; raises BadInput."""

    @property
    def group(self) -> str:
        """Return the name of the entry point group."""
        return f"costproof.{self.kind}"

    def all(self) -> dict[str, Plugin[T]]:
        """Return the built-in objects in order, then those of other distributions by name, none of them loaded."""
        found = {item.name: item for item in self.ours}
        for item in map(self._theirs, _offered(entry_points, self.group, tuple(sys.path))):
            other = found.get(item.name)
            if other is None:
                found[item.name] = item
                continue
            clash = BadInput(
                f"two distributions offer the same {self.one}",
                where=item.name,
                got=f"{other.owner} and {item.owner}",
                fix="uninstall one of them",
            )
            if other.owner == OURS:
                skip(clash)
            else:
                found[item.name] = Plugin(item.name, other.what, _raising(clash), f"{other.owner} and {item.owner}")
        return found

    def usable(self, items: Iterable[Plugin[T]] | None = None) -> Iterator[tuple[Plugin[T], T]]:
        """Yield each object with its loaded value; plug-ins that fail to load are skipped with a note.

        Args:
            items: all unless given.
        """
        for item in self.all().values() if items is None else items:
            try:
                made = item.load()
            except BadInput as error:
                if item.owner == OURS:
                    raise
                skip(error)
            else:
                yield item, made

    def listed(self) -> dict[str, Plugin[T]]:
        """Return :meth:`all` without plug-ins that fail to load; built-in objects are not loaded."""
        known = self.all()
        theirs = [item for item in known.values() if item.owner != OURS]
        names = {item.name for item, _ in self.usable(theirs)}
        return {name: item for name, item in known.items() if item.owner == OURS or name in names}

    def load(self, name: str) -> T:
        """Load the object with this name.

        Raises:
            BadInput: nobody offers it, or what another distribution offers cannot be loaded.
        """
        known = self.all()
        if name not in known:
            advice = f"see: {self.command}" if self.command else None
            raise BadInput(
                f"there is no such {self.one}",
                where=name[:80],
                expected=", ".join(known),
                fix=did_you_mean(name, known) or advice,
            )
        return known[name].load()

    def _theirs(self, point: EntryPoint) -> Plugin[T]:
        owner = point.dist.name if point.dist is not None else point.value
        what = f"a {self.one} of another distribution cannot be loaded"
        where, fix = f"{point.name} = {point.value}", f"uninstall {owner} or ask its authors"

        def load() -> T:
            try:
                with contained(what, where, fix=fix):
                    made = point.load()
                _own(point, f"{where} ({owner})")
                if self.instance is not None and not isinstance(made, self.instance):
                    raise BadInput(what, got=f"a {type(made).__name__}, not a {self.instance.__name__}", fix=fix)
                return cast(T, made if self.checked is None else self.checked(made, found))
            except CostproofError as error:
                error.where = error.where or where
                told = error if error.where == where else BadInput(what, where=where, got=error.line, fix=fix)
                told.got = f"{told.got} ({owner})"[:300]
                raise told from error

        found: Plugin[T] = Plugin(point.name, point.value, load, owner)
        return found


def _raising(error: BadInput) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


def _own(point: EntryPoint, owner: str) -> None:
    """Record that the source files of a package belong to the plug-in that the package provides."""
    module = sys.modules.get(point.module.partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is not None:
        owned(str(Path(file).parent) if hasattr(module, "__path__") else file, owner)
