"""The analytic numbers of one target at any configuration and workload: what a diff and a sweep evaluate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, Bug, CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.changing import key_named, keys_of
from costproof.models.registry import load_target
from costproof.models.target import WithKeys
from costproof.run.formulas import analytic_ledger
from costproof.run.request import checked, option
from costproof.run.sweeping.shapes import Numbers, Place, Shape, traced
from costproof.run.sweeping.ways import joined

NO_CHANGES: Final[Mapping[str, Any]] = {}


@dataclass(slots=True)
class Points:
    """One target at any point: its formulas are written and compiled once for every form that they have."""

    target: WithKeys
    varied: set[str] = field(default_factory=set)
    """Configuration keys that some point changed: the next ones have them too, so that they share shapes."""
    shapes: dict[Any, list[Shape]] = field(default_factory=dict)
    """What is not a number at a point -> the shapes that were met there."""

    @classmethod
    def of(cls, name: str, config: Path | None = None, *, trusted: bool = False) -> Points:
        """The points around a target, or around a configuration in a file.

        Raises:
            BadInput: no such target, or it has no formulas.
        """
        target = load_target(name, config, trusted=trusted)
        if not isinstance(target, WithKeys):
            raise BadInput(
                "no formulas describe this target",
                where=name,
                expected="a family of costproof targets",
                fix=f"costproof derive {name} reads closed forms off its graph; costproof report {name} counts one run",
            )
        return cls(target)

    def key(self, name: str, where: str = "") -> str:
        """The configuration key that a name means; see :func:`~costproof.models.changing.key_named`."""
        return key_named(self.target.config, name, where or name)

    def keys(self) -> dict[str, Any]:
        """Every configuration key and its value."""
        return keys_of(self.target.config)

    def at(
        self, keys: Mapping[str, Any] = NO_CHANGES, preset: str | None = None, settings: Mapping[str, Any] = NO_CHANGES
    ) -> Numbers:
        """The numbers of one point.

        Args:
            keys: other values of configuration keys, by their whole names.
            preset: the target's default one if ``None``.
            settings: of the workload, by the names that the target gives them.

        Raises:
            Problems: everything that keeps this from being a model, or a run of it.
        """
        self.varied.update(keys)
        now = self.keys()
        place = self.place({name: keys.get(name, now[name]) for name in sorted(self.varied)}, preset, settings)
        shape, numbers = self.shape(place)
        if shape.ledger is None:
            raise self.refusal(place, numbers)
        return shape.numbers(numbers)

    def place(self, keys: Mapping[str, Any], preset: str | None, settings: Mapping[str, Any]) -> Place:
        """A point with the types that the target wants.

        Raises:
            Problems: a setting that does not exist, or has another type.
        """
        problems: list[CostproofError] = []
        chosen = checked(self.target.settings(), settings, option, problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        return Place(keys, preset, chosen)

    def shape(self, place: Place) -> tuple[Shape, dict[str, int]]:
        """The shape of a point, and the numbers that vary within it."""
        now = self.keys()
        given = {f"key:{k}": v for k, v in place.keys.items() if now[k] is None or type(now[k]) is int}
        given |= {f"setting:{k}": v for k, v in place.settings.items()}
        numbers = {name: value for name, value in given.items() if type(value) is int}
        found = next((shape for shape in self.known(place, numbers) if shape.holds(numbers)), None)
        return found or self.trace(place, numbers), numbers

    def known(self, place: Place, numbers: Collection[str]) -> list[Shape]:
        """The shapes that points with these numbers were seen to have; it grows by :meth:`trace`."""
        return self.shapes.setdefault(_but(place, numbers), [])

    def trace(self, place: Place, numbers: Mapping[str, int]) -> Shape:
        """The shape of a point that has none of the known ones."""
        found, known = traced(self.target, place, numbers), self.known(place, numbers)
        for other in known:
            if found.same(other):
                other.ways = joined([*other.ways, *found.ways])
                return other
        known.append(found)
        return found

    def ledger(self, place: Place, numbers: Mapping[str, int]) -> Ledger:
        """The formulas themselves at a point, one by one.

        Raises:
            Problems, BadInput: what the target says against it.
        """
        target, workload = self.run(place, numbers)
        return analytic_ledger(target, workload)

    def run(self, place: Place, numbers: Mapping[str, int]) -> tuple[WithKeys, Workload]:
        """The model and the workload of a point.

        Raises:
            Problems, BadInput: as :meth:`ledger`.
        """
        keys = {k: numbers.get(f"key:{k}", v) for k, v in place.keys.items()}
        settings = {k: numbers.get(f"setting:{k}", v) for k, v in place.settings.items()}
        target = self.target.with_keys(keys) if keys else self.target
        return target, target.workload(place.preset, **settings)

    def refusal(self, place: Place, numbers: Mapping[str, int]) -> CostproofError:
        """What the target says against a point of a shape that it refuses."""
        try:
            self.ledger(place, numbers)
        except CostproofError as error:
            return error
        raise Bug("a point was taken for one that the target refuses", where=str(place))


def _but(place: Place, numbers: Collection[str]) -> Any:
    """The point without the values of its numbers."""
    others = [
        (name, None if name in numbers else str(value))
        for name, value in (
            *((f"key:{k}", v) for k, v in place.keys.items()),
            *((f"setting:{k}", v) for k, v in place.settings.items()),
        )
    ]
    return place.preset, tuple(sorted(others, key=lambda pair: pair[0]))
