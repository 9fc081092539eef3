"""The targets by name: our own, and those that other distributions offer under ``costproof.targets``."""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from costproof import models
from costproof.ledger.errors import BadInput
from costproof.models.known import KNOWN
from costproof.models.target import NamedWorkload, Setting, Target
from costproof.plugins import Plugin, Registry, at

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes


class TargetFactory(Protocol):
    """What a registered name stands for.

    A factory may have ``model_types``, a tuple of names: the types of configurations that :meth:`from_file` reads.
    """

    def default(self) -> Target:
        """The target with its published configuration."""
        ...

    def from_file(self, path: Path) -> Target:
        """The target with the configuration in a file.

        Raises:
            BadInput: the file cannot be used.
        """
        ...

    def settings(self) -> tuple[Setting, ...]:
        """What can be chosen about a run of this target beside the preset."""
        ...

    def presets(self) -> tuple[NamedWorkload, ...]:
        """Its named workloads; one is the default."""
        ...


@runtime_checkable
class ReadsFolders(Protocol):
    """A factory that makes targets of folders as well: snapshots that bring their own code."""

    def reads(self, folder: Path) -> bool:
        """Whether this folder is meant for it; nothing in the folder runs."""
        ...

    def folder_holds(self) -> str:
        """What such a folder holds, in words."""
        ...

    def from_folder(self, folder: Path, *, trusted: bool) -> Target:
        """The target in a folder.

        Args:
            trusted: whether the Python code in it may run.

        Raises:
            BadInput: the folder cannot be used, or is not trusted.
        """
        ...


@runtime_checkable
class KnowsMistakes(Protocol):
    """A factory that knows what wrong models of its target do, beside what is done wrong with every model."""

    def mistakes(self) -> Mistakes:
        """Its mistakes, as functions over what a claim is made of."""
        ...


_FACTORY: Final = re.compile(r"[\w.]+:\w+")


def _built_in() -> tuple[Plugin[TargetFactory], ...]:
    """The families, and the known models that they describe.

    Every folder beside this file with formulas is a family: its first line, and ``TARGET`` in ``target.py``.
    """
    folders = [import_module(f"{models.__name__}.{m.name}") for m in iter_modules(models.__path__) if m.ispkg]
    families = [f for f in folders if any(m.name == "formulas" for m in iter_modules(f.__path__))]
    found = [
        Plugin(
            family.__name__.rpartition(".")[2].replace("_", "-"),
            (family.__doc__ or "").partition("\n")[0].rstrip("."),
            at(f"{family.__name__}.target:TARGET"),
        )
        for family in families
    ]
    known: list[Plugin[TargetFactory]] = [Plugin(k.name, k.what, partial(_itself, k)) for k in KNOWN]
    return (*found, *known)


def _itself(made: TargetFactory) -> TargetFactory:
    return made


TARGETS: Final[Registry[TargetFactory]] = Registry("targets", "target", _built_in(), command="costproof targets")


def is_folder(name: str) -> bool:
    """Whether a folder is meant, not a registered name."""
    return name not in TARGETS.all() and (Path(name).is_dir() or "/" in name or "\\" in name)


def is_model(name: str) -> bool:
    """Whether a configuration file or a factory of a module is meant, of which closed forms can be derived."""
    named = Path(name).is_file() or name.endswith(".json") or _FACTORY.fullmatch(name)
    return bool(named) and name not in TARGETS.all()


def target_factory(name: str) -> TargetFactory:
    """What makes the target of that name, or of that folder; nothing in the folder runs.

    Raises:
        BadInput: no such target, or no target reads the folder.
    """
    if is_model(name):
        raise BadInput(
            "this names no target",
            where=name[:80],
            expected=", ".join(TARGETS.all()) + ", or the folder of a snapshot",
            fix=f"costproof derive {name[:80]} reads closed formulas off any model; --config FILE configures a target",
        )
    return _reader(Path(name)) if is_folder(name) else TARGETS.load(name)


def load_target(name: str, config_path: Path | None = None, *, trusted: bool = False) -> Target:
    """The target of that name, with the configuration in a file if one is given, or the target in a folder.

    Args:
        trusted: whether the Python code in a folder may run.

    Raises:
        BadInput: no such target, or the file or folder cannot be used.
    """
    made = target_factory(name)
    if is_folder(name):
        if config_path is not None:
            raise BadInput("a snapshot brings its own configuration", where="--config", got=str(config_path))
        assert isinstance(made, ReadsFolders)
        return made.from_folder(Path(name), trusted=trusted)
    return made.default() if config_path is None else made.from_file(config_path)


def mistakes_of(name: str) -> Mistakes:
    """The mistakes that the target of that name, as a capture states it, adds to the general ones."""
    from costproof.claims.effects import Mistakes

    made = TARGETS.load(name) if name in TARGETS.all() else None
    return made.mistakes() if isinstance(made, KnowsMistakes) else Mistakes()


def _reader(folder: Path) -> TargetFactory:
    if not folder.is_dir():
        raise BadInput(
            "there is no such folder",
            where=str(folder),
            expected="the folder of a snapshot, or a target's name",
            fix="see: costproof targets",
        )
    readers = {name: made for name, item in TARGETS.all().items() if isinstance(made := item.load(), ReadsFolders)}
    meant = {name: made for name, made in readers.items() if made.reads(folder)}
    if len(meant) != 1:
        raise BadInput(
            "two targets read this folder" if meant else "no target reads this folder",
            where=str(folder),
            expected="; ".join(f"{made.folder_holds()} ({name})" for name, made in readers.items()),
            got=" and ".join(meant) or "none",
        )
    return next(iter(meant.values()))
