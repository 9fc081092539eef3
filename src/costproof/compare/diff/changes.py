"""What is not the same about two sides: their inputs, and what counted them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from costproof.compare.diff.types import Change, Changes
from costproof.ledger.baseline import Baseline
from costproof.ledger.workload import ConfigValue, Workload

WORKLOAD: Final = "workload."
INPUTS: Final = "inputs."
FORMULA_SOURCE: Final = "analytic"
_KERNELS: Final = ("attention", "experts")
_NO_SETTINGS: Final = (*_KERNELS, "name", "inputs", "what", "arguments")
SETTINGS: Final = tuple(f.name for f in fields(Workload) if f.name not in _NO_SETTINGS)
"""What every workload has; the target's own inputs come on top."""
OF_THE_WORKLOAD: Final = ("attention", "dtype", "expert_kernel", "logits", "mla")
"""Conventions that a workload or an implementation decides."""


@dataclass(frozen=True, slots=True)
class Differences:
    """What changed, by kind. The first two are inputs; the rest is not a key of anything."""

    config: Changes
    workload: Changes
    conventions: Changes
    libraries: Changes
    implementation: Changes
    formulas: Changes

    @property
    def keys(self) -> tuple[str, ...]:
        """The inputs that changed."""
        return tuple(c.key for c in (*self.config.changed, *self.workload.changed))


def differences(base: Baseline, head: Baseline) -> Differences:
    """What is not the same about the sides."""
    versions = [dict(side.environment) for side in (base, head)]
    own = [{"costproof": v.pop("costproof", None)} for v in versions]
    formulas = [
        side.sources[FORMULA_SOURCE].formulas if FORMULA_SOURCE in side.sources else {} for side in (base, head)
    ]
    # A formula that one side alone uses, or that describes other classes, has not changed.
    alike = base.target.implementation == head.target.implementation
    both = formulas[0].keys() & formulas[1].keys() if alike else frozenset[str]()
    targets = base.target, head.target
    # Without keys the sizes say what changed; beside keys they would say it again.
    described = [t.config is not None for t in targets]
    alike_described = described[0] == described[1]
    keys = [(t.config if all(described) else t.symbols if alike_described else {}) or {} for t in targets]
    config = _changes(*keys)
    arguments = [_inputs(side.workload.arguments) if alike_described else {} for side in (base, head)]
    workload = _changes(*(settings(side) | given for side, given in zip((base, head), arguments, strict=True)))
    follow = bool(config.changed) and all(described)
    if not (workload.changed or follow):
        # The target may say in its calls alone what goes in. What a stage hands to the next follows from the keys.
        # Only formulas have symbols of their own for what goes in.
        calls = (
            {n: c if alike_described else c.partition(" at ")[0] for n, c in s.calls.items()} for s in (base, head)
        )
        workload = _changes(*map(_inputs, calls))
    return Differences(
        config=config,
        workload=workload,
        conventions=_changes(_conventions(base), _conventions(head)),
        libraries=_changes(*versions),
        implementation=_changes(_implementation(base), _implementation(head)),
        formulas=_changes(*(o | {n: v for n, v in f.items() if n in both} for o, f in zip(own, formulas, strict=True))),
    )


def settings(side: Baseline) -> dict[str, ConfigValue]:
    """The inputs of a workload, by key; its name is not one."""
    given = {name: getattr(side.workload, name) for name in SETTINGS} | dict(side.workload.inputs)
    return {f"{WORKLOAD}{name}": value for name, value in given.items()}


def _inputs(given: Mapping[str, str]) -> dict[str, ConfigValue]:
    return {f"{INPUTS}{name}": text for name, text in given.items()}


def _implementation(side: Baseline) -> dict[str, ConfigValue]:
    return {"classes": side.target.implementation, **{name: getattr(side.workload, name) for name in _KERNELS}}


def _conventions(side: Baseline) -> dict[str, ConfigValue]:
    return {name: value for name, value in asdict(side.conventions).items() if name not in OF_THE_WORKLOAD}


def _changes(base: Mapping[str, ConfigValue], head: Mapping[str, ConfigValue]) -> Changes:
    keys = [*base, *(k for k in head if k not in base)]
    pairs = ((key, base.get(key), head.get(key)) for key in keys)
    return Changes(tuple(Change(key, b, h) for key, b, h in pairs if (type(b), b) != (type(h), h)))
