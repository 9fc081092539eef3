"""Represent a run as data (target, workload, sources, options), checked without loading the target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.mesh import of_mesh
from costproof.ledger.run import ALL_SOURCES, DEFAULT_SOURCES, RunOptions, run_options
from costproof.ledger.workload import Workload
from costproof.models.proof import Proves
from costproof.models.registry import read_address, target_factory
from costproof.models.settings import ChoicePlace, TypedValue, collect_problems, known_preset, option, typed_settings
from costproof.models.target import Setting, Target

OPTIONS: Final = ("run", "weights", "seed", "layers", "profile", "convention")
"""Names of the fields of a request that become :class:`RunOptions`; ``run`` is the device."""
LISTS: Final = ("sources", "counters", "rules")
SWITCHES: Final = ("all_calls", "peaks", "trust_remote_code", "no_cache")
VERBS: Final[Mapping[str, tuple[Setting, ...]]] = {
    "prove": (Setting("samples", "Random configurations to draw."), Setting("seed", "Seed of these configurations.")),
    "derive": (
        Setting("stage", "The stage whose form is read.", "text"),
        Setting("points", "Random sizes to check at."),
    ),
}
"""Settings of a command that do not depend on the target, by command."""


@dataclass(frozen=True, slots=True)
class NamedSettings:
    """The workload of a request: the name of a preset, and the settings that override it."""

    preset: str | None = None
    """Name of the preset; ``None`` for the target's default workload."""
    values: Mapping[str, TypedValue] = field(default_factory=dict)
    """Overriding values, by the names of the target's settings."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Everything that is needed to repeat a run, built and checked by :func:`request`."""

    target: str
    """A registered name, the folder of a snapshot, or an address: :mod:`costproof.models.generic.address`."""
    config: str | None = None
    """A configuration file; ``None``: the published configuration."""
    workload: NamedSettings | Workload = field(default_factory=NamedSettings)
    sources: tuple[str, ...] = DEFAULT_SOURCES
    run: RunOptions = field(default_factory=RunOptions)
    all_calls: bool = False
    """Whether the callgraph records inputs and outputs of every call of a module, not only of the first one."""
    peaks: bool = False
    """Whether to find the peaks of live activations too: :mod:`costproof.ledger.peaks`."""
    counters: tuple[str, ...] = ()
    """Third-party counters to run in addition to the sources; ``all`` means all of them."""
    rules: tuple[str, ...] = ()
    """Python files with operator rules, which are executed."""
    trust_remote_code: bool = False
    no_cache: bool = False
    """Whether to ignore the cache of exports: :mod:`costproof.tracers.cache`."""
    prove: Mapping[str, TypedValue] = field(default_factory=dict)
    """Settings of a proof: ``samples``, ``seed``, and the target's own."""
    derive: Mapping[str, TypedValue] = field(default_factory=dict)
    """Settings of a derivation: ``stage`` and ``points``."""

    @property
    def label(self) -> str:
        """A short name of the target that is valid as the name of a folder."""
        return read_address(self.target).label

    def source(self, folder: Path) -> str:
        """Return the target's address, with files and folders relative to a folder of reports."""
        return read_address(self.target).seen_from(folder)


def _within(section: str, place: ChoicePlace) -> ChoicePlace:
    return lambda name: place(f"{section}.{name}")


def settings(target: str, verb: str = "report") -> tuple[Setting, ...]:
    """Return the settings that a target declares for a workload or, for ``"prove"``, for a proof.

    Raises:
        BadInput: there is no such target.
    """
    if verb == "derive":
        return ()
    factory = target_factory(target)
    if verb == "prove":
        return factory.proof_settings() if isinstance(factory, Proves) else ()
    return factory.settings()


def request(
    target: str | RunRequest, *, verb: str = "report", place: ChoicePlace = option, **choices: Any
) -> RunRequest:
    """Return a run as data, checked as far as possible without loading the target.

    Args:
        target: its name, or a request to change.
        verb: ``"prove"`` or ``"derive"`` if the choices may be settings of these.
        place: returns where a choice was made, for messages.
        choices: as :mod:`costproof.api` lists them; ``None`` keeps the value of the request.

    Raises:
        BadInput: there is no such target.
        Problems: all choices that do not exist or have the wrong type.
    """
    before = target if isinstance(target, RunRequest) else RunRequest(target)
    given = {name: value for name, value in choices.items() if value is not None}
    problems: list[CostproofError] = []
    changes: dict[str, Any] = {}
    for name, general in VERBS.items():
        mine = dict(given.pop(name, {}))
        if mine or name == verb:
            known = (*general, *settings(before.target, name))
            mine |= {s.name: given.pop(s.name) for s in known if name == verb and s.name in given}
            changes[name] = {**getattr(before, name), **typed_settings(known, mine, _within(name, place), problems)}
    changes |= {name: _texts(given.pop(name)) for name in LISTS if name in given}
    changes |= {name: bool(given.pop(name)) for name in SWITCHES if name in given}
    if "config" in given:
        changes["config"] = os.fspath(given.pop("config"))
    problems += _wrong_sources(changes.get("sources", before.sources), place("sources"))
    if changes.get("counters") == ():
        problems.append(BadInput("no counter to run", where=place("counters"), expected="names, or all"))
    options: dict[str, Any] = {("run" if k == "device" else k): v for k, v in asdict(before.run).items()}
    options.update({name: given.pop(name) for name in OPTIONS if name in given})
    with collect_problems(problems):
        changes["run"] = run_options(options, place)
    if verb in VERBS:
        problems += _without_effect(before, verb, given, changes[verb], place)
    workload, preset = given.pop("workload", before.workload), given.pop("preset", None)
    if not isinstance(workload, NamedSettings):
        clash = sorted({*given, *(["preset"] if preset is not None else [])})
        if clash:
            where = ", ".join(map(place, clash))
            fix = "put the settings into the workload"
            problems.append(BadInput("a workload and settings exclude each other", where=where, fix=fix))
    else:
        factory = target_factory(before.target)
        if preset is not None:
            with collect_problems(problems):  # behind a colon may be a detail, which the target reads
                known_preset(str(preset).partition(":")[0], [w.name for w in factory.presets()], place("preset"))
        values = typed_settings(factory.settings(), given, place, problems)
        workload = NamedSettings(preset or workload.preset, {**workload.values, **values})
    if problems:
        raise problems[0] if len(problems) == 1 else Problems("invalid run request", problems)
    return replace(before, **changes, workload=workload)


def _without_effect(
    before: RunRequest, verb: str, given: Mapping[str, Any], own: Mapping[str, TypedValue], place: ChoicePlace
) -> Iterator[BadInput]:
    """Yield an error for each choice that a proof or a derivation, which has sizes and meshes of its own, would ignore.

    Args:
        given: choices that are not settings of the command, or of a run.
        own: settings of the command.
    """
    known = {s.name for s in target_factory(before.target).settings()} | {"preset", "workload"}
    named = [name for name in given if name in known]
    if isinstance(before.workload, NamedSettings):
        values = before.workload.values
    else:
        values = {name: size for name, size in before.workload.inputs.items() if size is not None}
    named += [name for name, size in values.items() if of_mesh(name) and size not in (1, own.get(name))]
    expected = ", ".join(sorted(s.name for s in (*VERBS[verb], *settings(before.target, verb))))
    for name in named:
        what = f"costproof {verb} holds for all sizes, and takes no settings of a workload"
        if of_mesh(name):
            what = f"costproof {verb} has no setting for several devices" if name not in expected.split(", ") else (
                f"costproof {verb} takes devices as a setting of its own")  # fmt: skip
        yield BadInput(what, where=place(name), expected=f"one of {expected}", got=given.get(name, values.get(name)))


def _texts(value: Any) -> tuple[str, ...]:
    return (os.fspath(value),) if isinstance(value, str | os.PathLike) else tuple(map(os.fspath, value))


def _wrong_sources(asked: tuple[str, ...], where: str) -> list[CostproofError]:
    known = "one or more of " + ", ".join(ALL_SOURCES)
    if not asked:
        return [BadInput("no source to count with", where=where, expected=known, got="nothing")]
    return [
        BadInput("no such source", where=where, expected=known, got=name, fix=did_you_mean(name, ALL_SOURCES))
        for name in asked
        if name not in ALL_SOURCES
    ]


def build_workload(target: Target, workload: NamedSettings | Workload) -> Workload:
    """Return the workload of a request.

    Raises:
        Problems: everything that makes it invalid for the target.
    """
    if isinstance(workload, NamedSettings):
        workload = target.workload(workload.preset, **workload.values)
    target.check(workload)
    return workload
