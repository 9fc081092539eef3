"""Everything that can be added under a name: one lazy registry for targets, rules, counters, formats.

A kind of thing has a name in the plural (``counters``). Ours stand in its registry; another distribution
adds its own by an entry point of the group ``costproof.counters``. Nothing is imported before it is asked
for, and two owners of one name are an error that names both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from costproof.ledger.errors import BadInput, CostproofError, did_you_mean, first_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin(Generic[T]):
    """A name, what stands for it, and how to get at it."""

    name: str
    what: str
    """In one line; of another distribution's, the place of the code."""
    load: Callable[[], T]
    """Imports what is needed, and only then."""
    owner: str = "costproof"


def at(place: str) -> Callable[[], Any]:
    """What loads ``module:attribute`` of ours.

    The function imports the module when it is called; whatever that raises passes through.
    """

    def load() -> Any:
        module, _, attribute = place.partition(":")
        return getattr(import_module(module), attribute)

    return load


@cache
def _offered(read: Callable[..., Iterable[EntryPoint]], group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What other distributions on a path offer; to look takes 5 ms, and one command asks some twenty times."""
    return tuple(sorted(read(group=group), key=lambda p: (p.name, p.value)))


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """All things of one kind, by name."""

    kind: str
    """In the plural; the entry points' group is ``costproof.KIND``."""
    one: str
    """One of them, for messages: ``counter``."""
    ours: tuple[Plugin[T], ...]
    instance: type | None = None
    """What each of them must be an instance of; not checked if ``None``."""
    command: str = ""
    """The command that lists them, for messages."""

    @property
    def group(self) -> str:
        """The group of entry points."""
        return f"costproof.{self.kind}"

    def all(self) -> dict[str, Plugin[T]]:
        """Ours in their order, then those of other distributions by name; none of them is loaded.

        Raises:
            BadInput: two owners offer one name.
        """
        found: dict[str, Plugin[T]] = {}
        for item in (*self.ours, *map(self._theirs, _offered(entry_points, self.group, tuple(sys.path)))):
            if item.name in found:
                raise BadInput(
                    f"two distributions offer the same {self.one}",
                    where=item.name,
                    got=f"{found[item.name].owner} and {item.owner}",
                    fix="uninstall one of them",
                )
            found[item.name] = item
        return found

    def load(self, name: str) -> T:
        """The one of that name.

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

        def load() -> T:
            try:
                made = point.load()
            except CostproofError:
                raise
            except Exception as error:
                raise self._refused(point, owner, first_line(error)) from error
            if self.instance is not None and not isinstance(made, self.instance):
                raise self._refused(point, owner, f"a {type(made).__name__}, not a {self.instance.__name__}")
            return cast(T, made)

        return Plugin(point.name, point.value, load, owner)

    def _refused(self, point: EntryPoint, owner: str, why: str) -> BadInput:
        return BadInput(
            f"a {self.one} of another distribution cannot be loaded",
            where=f"{point.name} = {point.value}",
            got=f"{why} ({owner})"[:300],
            fix=f"uninstall {owner} or ask its authors",
        )
