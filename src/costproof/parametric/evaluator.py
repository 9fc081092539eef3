"""Evaluate the formulas of one target at any configuration and workload, compiling each regime of them once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from costproof.ledger.errors import BadInput, Bug, CostproofError, Problems
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.changing import key_named, keys_of
from costproof.models.registry import load_target
from costproof.models.target import WithKeys
from costproof.parametric.formulas import Configurable, evaluate_formulas
from costproof.parametric.path_conditions import merge_paths
from costproof.parametric.regimes import PointChoices, PointCosts, Regime, trace_regime
from costproof.parametric.typed_settings import option, typed_settings

NO_CHANGES: Final[Mapping[str, Any]] = {}


T = TypeVar("T", bound=Configurable)


@dataclass(slots=True)
class Evaluator(Generic[T]):
    """The formulas of one target at any point, where a point is a configuration and a workload.

    Formulas are traced and compiled once for each regime, that is for all points at which the target takes the same
    branches.
    """

    target: T
    varied: set[str] = field(default_factory=set)
    """Configuration keys that some earlier point changed. Later points set them too, to share regimes."""
    regimes: dict[Any, list[Regime]] = field(default_factory=dict)
    """Non-numeric choices of a point -> the regimes found with them."""

    @classmethod
    def of(cls, name: str, config: Path | None = None, *, trusted: bool = False) -> Evaluator[WithKeys]:
        """Return the evaluator of a registered target, or of a configuration file.

        Raises:
            BadInput: there is no such target, or it has no formulas.
        """
        target = load_target(name, config, trusted=trusted)
        if not isinstance(target, WithKeys):
            raise BadInput(
                "no formulas describe this target",
                where=name,
                expected="a family of costproof targets",
                fix=f"costproof derive {name} reads closed forms off its graph; costproof report {name} counts one run",
            )
        return Evaluator(target)

    def key(self, name: str, where: str = "") -> str:
        """Return the configuration key that a name means; see :func:`~costproof.models.changing.key_named`."""
        return key_named(self.target.config, name, where or name)

    def keys(self) -> dict[str, Any]:
        """Return every configuration key with its value."""
        return keys_of(self.target.config)

    def at(
        self: Evaluator[WithKeys],
        keys: Mapping[str, Any] = NO_CHANGES,
        preset: str | None = None,
        settings: Mapping[str, Any] = NO_CHANGES,
    ) -> PointCosts:
        """Return the costs at one point.

        Args:
            keys: overrides of configuration keys, by full name.
            preset: name of a workload (default: the target's default workload).
            settings: overrides of the workload, by the target's names.

        Raises:
            Problems: everything that makes this an invalid model or workload.
        """
        self.varied.update(keys)
        now = self.keys()
        choices = self.choices({name: keys.get(name, now[name]) for name in sorted(self.varied)}, preset, settings)
        regime, numbers = self.regime(choices)
        if regime.ledger is None:
            raise self.refusal(choices, numbers)
        return regime.costs_at(numbers)

    def choices(
        self: Evaluator[WithKeys], keys: Mapping[str, Any], preset: str | None, settings: Mapping[str, Any]
    ) -> PointChoices:
        """Return the choices of a point with settings of the types that the target declares.

        Raises:
            Problems: a setting that does not exist or has the wrong type.
        """
        problems: list[CostproofError] = []
        chosen = typed_settings(self.target.settings(), settings, option, problems)
        if problems:
            raise Problems("invalid workload", problems)
        return PointChoices(keys, preset, chosen)

    def regime(self, choices: PointChoices) -> tuple[Regime, dict[str, int]]:
        """Return the regime of a point, and the numbers of the point that vary within it."""
        now = self.keys()
        given = {f"key:{k}": v for k, v in choices.keys.items() if now[k] is None or type(now[k]) is int}
        given |= {f"setting:{k}": v for k, v in choices.settings.items()}
        numbers = {name: value for name, value in given.items() if type(value) is int}
        found = next((regime for regime in self.known(choices, numbers) if regime.holds(numbers)), None)
        return found or self.trace(choices, numbers), numbers

    def known(self, choices: PointChoices, numbers: Collection[str]) -> list[Regime]:
        """Return the regimes found so far for points with these choices; :meth:`trace` extends the list."""
        return self.regimes.setdefault(_without_numbers(choices, numbers), [])

    def trace(self, choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        """Trace a point that none of the known regimes covers.

        If the formulas are those of a known regime, its path conditions are extended and it is returned.
        """
        found, known = trace_regime(self.target, choices, numbers), self.known(choices, numbers)
        for other in known:
            if found.equals(other):
                other.paths = merge_paths([*other.paths, *found.paths])
                return other
        known.append(found)
        return found

    def ledger(self, choices: PointChoices, numbers: Mapping[str, int]) -> Ledger:
        """Evaluate the formulas at a point one by one, without the compiled regimes.

        Raises:
            Problems, BadInput: the target refuses the point.
        """
        target, workload = self.run(choices, numbers)
        return evaluate_formulas(target, workload)

    def run(self, choices: PointChoices, numbers: Mapping[str, int]) -> tuple[T, Workload]:
        """Return the model and the workload of a point.

        Raises:
            Problems, BadInput: as :meth:`ledger`.
        """
        keys = {k: numbers.get(f"key:{k}", v) for k, v in choices.keys.items()}
        settings = {k: numbers.get(f"setting:{k}", v) for k, v in choices.settings.items()}
        target = self.target.with_keys(keys) if keys else self.target
        return target, target.workload(choices.preset, **settings)

    def refusal(self, choices: PointChoices, numbers: Mapping[str, int]) -> CostproofError:
        """Return the error with which the target refuses a point of a regime without formulas."""
        try:
            self.ledger(choices, numbers)
        except CostproofError as error:
            return error
        raise Bug("a point was taken for one that the target refuses", where=str(choices))


def _without_numbers(choices: PointChoices, numbers: Collection[str]) -> Any:
    """Return the choices of a point without the values of its numbers, as a key of a dictionary."""
    others = [
        (name, None if name in numbers else str(value))
        for name, value in (
            *((f"key:{k}", v) for k, v in choices.keys.items()),
            *((f"setting:{k}", v) for k, v in choices.settings.items()),
        )
    ]
    return choices.preset, tuple(sorted(others, key=lambda pair: pair[0]))
