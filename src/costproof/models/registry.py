"""Look up targets by name (built in, or of an entry point costproof.targets) and by address."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from costproof.configs.known_keys import type_of_class
from costproof.foreign import contained, skip
from costproof.ledger.aside import scratch
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import read_configuration
from costproof.ledger.schema import adapter
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models import families
from costproof.models.generic.address import Address, address
from costproof.models.generic.huggingface import default_config, huggingface, read_config
from costproof.models.known import KNOWN, Known
from costproof.models.target import NamedWorkload, Setting, Target
from costproof.plugins import OURS, Plugin, Registry, lazy

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes


METHODS: Final = {"default": (), "from_file": ("path",), "settings": (), "presets": ()}
"""Arguments of the methods that a factory must have, by method."""
_MAKERS: Final = ("default", "from_file", "from_folder", "from_normalised")
"""Methods of a factory that return a target."""
_TARGET: Final = tuple(name for name in vars(Target) if not name.startswith("_"))


def checked_factory(made: Any, plugin: Plugin[Any]) -> Any:
    """Return the factory with each method guarded against errors and wrong results.

    Raises:
        BadInput: methods are missing, or are instance methods of a registered class.
    """
    wrong = [text for name, arguments in METHODS.items() if (text := _problem(made, name, arguments))]
    types = getattr(made, "model_types", ())
    if not (isinstance(types, tuple) and all(isinstance(t, str) for t in types)):
        wrong.append(f"model_types is {_named(types)}, not a tuple of names")
    if wrong:
        fix = "make them static or class methods of the class, or register an instance"
        raise BadInput(
            "this entry point is not a valid factory of targets",
            got="; ".join(wrong),
            expected=", ".join(METHODS),
            fix=fix,
        )
    public = {name: getattr(made, name) for name in dir(made) if not name.startswith("_") and hasattr(made, name)}
    return SimpleNamespace(
        **{name: _contained(name, value, plugin) if callable(value) else value for name, value in public.items()}
    )


def _problem(made: Any, name: str, arguments: tuple[str, ...]) -> str | None:
    method = getattr(made, name, None)
    if not callable(method):
        return f"no method {name}()"
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError as error:
        return f"{name}({', '.join(arguments)}): {error}"
    except ValueError:  # of C code, which does not say what it takes
        return None
    return None


def _contained(name: str, method: Callable[..., Any], plugin: Plugin[Any]) -> Callable[..., Any]:
    where = f"{name}() of the target {plugin.name} = {plugin.what} ({plugin.owner})"

    def call(*arguments: Any, **named: Any) -> Any:
        with contained("a target of another distribution failed", where):
            found = method(*arguments, **named)
            wrong = _returned(name, found)
            wrong_part = _wrong_part(found) if wrong is None and name in _MAKERS else None
        what = "a target of another distribution returns a wrong type"
        if wrong:
            raise BadInput(what, where=where, expected=wrong, got=_named(found))
        if wrong_part is not None:
            of, expected, got = wrong_part
            raise BadInput(what, where=f"{of}() of what {where} returns", expected=expected, got=got)
        return found

    return call


def _returned(name: str, found: Any) -> str | None:
    """Return a description of the result that a factory method must have, if ``found`` is another, else ``None``."""
    one = {"settings": Setting, "presets": NamedWorkload, "proof_settings": Setting}.get(name)
    if one is not None and not (isinstance(found, tuple) and all(isinstance(item, one) for item in found)):
        return f"a tuple of {one.__name__}"
    if name in _MAKERS:
        lacking = [method for method in _TARGET if not hasattr(found, method)]
        return f"a target, with {', '.join(lacking)}" if lacking else None
    return None


def _wrong_part(target: Any) -> tuple[str, str, str] | None:
    """Return (method, expected, returned) for the first target method with an invalid result, else ``None``.

    Invocations are those of the default workload.
    """
    if wrong := _unlike(target.info(), TargetInfo):
        return "info", *wrong
    try:
        workload = target.workload()
    except CostproofError:  # without settings there is no run of it; told where one is asked for
        return None
    if wrong := _unlike(workload, Workload):
        return "workload", *wrong
    calls = target.invocations(workload)
    if not isinstance(calls, tuple) or not all(isinstance(call, Invocation) for call in calls):
        return "invocations", "a tuple of Invocation", _named(calls)
    wrong = next(filter(None, (_unlike(call, Invocation) for call in calls)), None)
    return ("invocations", *wrong) if wrong else None


def _unlike(found: Any, kind: type[Any]) -> tuple[str, str] | None:
    """Return (expected, actual) type of a value, or of its first field, that violates its annotation.

    Else ``None``.
    """
    if not isinstance(found, kind):
        return kind.__name__, _named(found)
    from pydantic import ValidationError

    try:
        adapter(kind).validate_python({f.name: getattr(found, f.name) for f in fields(kind)})
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_input=False)
        return f"{kind.__name__}, {'.'.join(map(str, first['loc']))}: {first['msg']}", _named(found)
    return None


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(sorted({type(v).__name__ for v in value})) or 'nothing'}"
    return type(value).__name__


class TargetFactory(Protocol):
    """Factory registered under a name: an object with these methods, or a class with them as class methods.

    Factories of other distributions are checked when they are loaded, see :func:`checked_factory`.

    A factory may have ``model_types``, a tuple of names: the types of configurations that :meth:`from_file` reads.
    """

    def default(self) -> Target:
        """Return the target with its published configuration."""

    def from_file(self, path: Path) -> Target:
        """Return the target with the configuration in a file.

        Raises:
            BadInput: the file cannot be used.
        """

    def settings(self) -> tuple[Setting, ...]:
        """Return the workload settings that can be chosen besides the preset."""

    def presets(self) -> tuple[NamedWorkload, ...]:
        """Return the named workloads; one of them is the default."""


@runtime_checkable
class ReadsFolders(Protocol):
    """Protocol of factories that also make targets from folders: snapshots with their own code."""

    def reads(self, folder: Path) -> bool:
        """Return whether the factory handles this folder; nothing in the folder is run."""

    def folder_holds(self) -> str:
        """Return a description of the folders that the factory handles."""

    def from_folder(self, folder: Path, *, trusted: bool) -> Target:
        """Return the target for a folder.

        Args:
            trusted: whether the Python code in it may run.

        Raises:
            BadInput: the folder cannot be used, or is not trusted.
        """


@runtime_checkable
class KnowsMistakes(Protocol):
    """Protocol of factories with mistakes that are common in published numbers of their model only."""

    def mistakes(self) -> Mistakes:
        """Return the mistakes, which are functions of the terms of a published number."""


@runtime_checkable
class ServesTypes(Protocol):
    """Protocol of factories whose formulas describe the Hugging Face ``model_types`` that they list."""

    model_types: tuple[str, ...]
    """Values of ``model_type`` that the formulas describe."""


@runtime_checkable
class ServesClasses(Protocol):
    """Protocol of factories whose formulas describe only some classes of transformers for these model types."""

    def describes(self, architecture: str) -> bool:
        """Return whether the formulas describe this class; a configuration of another class has no family."""


@runtime_checkable
class ServesParts(Protocol):
    """Protocol of factories whose formulas describe only some configurations of their model types."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Return whether the formulas describe the model of this configuration."""


def _built_in() -> tuple[Plugin[TargetFactory], ...]:
    """Return the registrations of the built-in families, the modules of ``models.families``, and their known models."""
    found = [_family_plugin(module.name, is_package=module.ispkg) for module in iter_modules(families.__path__)]
    known: list[Plugin[TargetFactory]] = [Plugin(k.name, k.what, partial(_itself, k)) for k in KNOWN]
    return (*found, *known)


def _family_plugin(name: str, *, is_package: bool) -> Plugin[TargetFactory]:
    """Return the lazy registration of a family.

    Its description is the first line of its module, read without import.
    """
    file, place = (f"{name}/__init__.py", f"{name}.target") if is_package else (f"{name}.py", name)
    with (Path(families.__path__[0]) / file).open(encoding="utf-8") as source:
        what = source.readline().strip().strip('"').rstrip(".")
    return Plugin(name.replace("_", "-"), what, lazy(f"{families.__name__}.{place}:TARGET"))


def _itself(made: TargetFactory) -> TargetFactory:
    return made


TARGETS: Final[Registry[TargetFactory]] = Registry(
    "targets", "target", _built_in(), command="costproof targets", checked=checked_factory
)


@dataclass(frozen=True, slots=True)
class _Located:
    """Result of resolving an address: the factory with its settings, and a function that returns the target."""

    factory: TargetFactory
    load: Callable[[bool], Target]
    """Function that returns the target; its argument is whether a snapshot's code may run."""


def read_address(text: str) -> Address:
    """Parse the address of a model; a registered name takes precedence over other readings."""
    return address(text, TARGETS.all())


def target_factory(name: str) -> TargetFactory:
    """Return the factory for a name or an address; no code that it names is run.

    Raises:
        BadInput: no such target, no target reads the folder, or the configuration cannot be read.
    """
    return _located(read_address(name)).factory


def load_target(name: str, config_path: Path | None = None, *, trusted: bool = False) -> Target:
    """Return the target for a name or an address, with the configuration in a file if one is given.

    A file that the formulas of the named family do not describe is counted by its graph, as ``hf:FILE`` is.

    Args:
        trusted: whether the Python code of a snapshot may run.

    Raises:
        BadInput: no such target, or the file or folder cannot be used.
    """
    named = read_address(name)
    found = _located(named)
    if config_path is None:
        return found.load(trusted)
    if named.kind != "name":
        raise BadInput(
            "--config configures a registered target, and this model has its own configuration", where="--config",
            expected="no --config, or a name of costproof targets", got=str(config_path),
        )  # fmt: skip
    if _is_beyond(found.factory, config_path):
        return _generic(read_address(f"hf:{config_path}"), trusted)
    return found.factory.from_file(config_path)


def _is_beyond(factory: TargetFactory, path: Path) -> bool:
    """Return whether a factory handles a file's model type, but its formulas do not describe the file's options.

    Such options concern the cache, or replace a part of the model.
    """
    family = TARGETS.load(factory.family) if isinstance(factory, Known) else factory
    if not (isinstance(family, ServesTypes) and isinstance(family, ServesParts) and path.is_file()):
        return False
    data = read_configuration(path)
    if not isinstance(data, dict):
        return False
    kind = type_of_class(data) or data.get("model_type")
    return kind in family.model_types and not family.serves(data)


def _located(named: Address) -> _Located:
    if named.kind == "name":
        registered = TARGETS.load(named.place)
        return _Located(registered, lambda trusted: registered.default())
    if named.kind == "folder":
        reader = _reader(Path(named.place))
        assert isinstance(reader, ReadsFolders)
        return _Located(reader, lambda trusted: reader.from_folder(Path(named.place), trusted=trusted))
    if named.kind == "configuration":
        path = named.path
        family = _family({"model_type": named.place} if path is None else read_config(path))
        if family is not None:
            return _Located(family, lambda trusted: _of_family(family, named))
    # It has the settings and presets of a factory; a default configuration or a file of its own nobody asks it for.
    return _Located(_GENERIC(), lambda trusted: _generic(named, trusted))


_GENERIC: Final = lazy("costproof.models.generic.module:GenericTarget")


def _generic(named: Address, trusted: bool) -> Target:
    from costproof.models.generic.address import Factory
    from costproof.models.generic.module import GenericTarget

    require("trace", "a model without formulas")
    if named.kind == "configuration":
        made = huggingface(named.place, named.path, trusted=trusted)
        return GenericTarget(made.name, made)
    in_file = named.kind == "file"
    place = str(Path(named.place).absolute()) if in_file else named.place
    return GenericTarget(named.name, Factory(place, named.function, in_file))


def _of_family(family: TargetFactory, named: Address) -> Target:
    """Return the target of a configuration, or for a bare model type, its default target."""
    path = named.path
    if path is not None:
        return family.from_file(path / "config.json" if path.is_dir() else path)
    require("trace", "the default configuration of a model type")
    with scratch() as folder:
        file = folder / f"{named.label}.json"
        file.write_text(json.dumps(default_config(named.place)), encoding="utf-8")
        return family.from_file(file)


def _family(config: Mapping[str, Any]) -> TargetFactory | None:
    """Return the registered factory whose formulas describe a configuration, or ``None``."""
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else ""
    kind = type_of_class(config) or config["model_type"]
    for item, made in TARGETS.usable():
        serves = None
        with _skipped_if_theirs(item):
            serves = _serves(made, kind, architecture, config)
        if serves is not None:
            return made if serves else None
    return None


@contextmanager
def _skipped_if_theirs(item: Plugin[TargetFactory]) -> Iterator[None]:
    """Skip a plug-in that raises when it is asked whether it handles something."""
    try:
        yield
    except BadInput as error:
        if item.owner == OURS:
            raise
        skip(error)


def _serves(made: TargetFactory, kind: str, architecture: str, config: Mapping[str, Any]) -> bool | None:
    """Return whether a factory's formulas describe a configuration, or ``None`` if they cover other model types."""
    if not isinstance(made, ServesTypes) or kind not in made.model_types:
        return None
    if architecture and isinstance(made, ServesClasses) and not made.describes(architecture):
        return False
    return not isinstance(made, ServesParts) or made.serves(config)


def mistakes_of(name: str) -> Mistakes:
    """Return the mistakes that the factory of a target, named as in a capture, adds to the general ones."""
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
    holds: dict[str, str] = {}
    meant: dict[str, TargetFactory] = {}
    for item, made in TARGETS.usable():
        if isinstance(made, ReadsFolders):
            with _skipped_if_theirs(item):
                holds[item.name] = made.folder_holds()
                if made.reads(folder):
                    meant[item.name] = made
    if len(meant) != 1:
        raise BadInput(
            "two targets read this folder" if meant else "no target reads this folder",
            where=str(folder),
            expected="; ".join(f"{what} ({name})" for name, what in holds.items()),
            got=" and ".join(meant) or "none",
            fix=f"hf:{folder} counts the configuration in it" if (folder / "config.json").is_file() else None,
        )
    return next(iter(meant.values()))
