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

from costproof.foreign import contained, skip
from costproof.ledger.aside import scratch
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.schema import adapter
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models import families
from costproof.models.config_keys import type_of_class
from costproof.models.generic.address import Address, address
from costproof.models.generic.huggingface import default_config, huggingface, read_config
from costproof.models.known import KNOWN
from costproof.models.target import NamedWorkload, Setting, Target
from costproof.plugins import OURS, Plugin, Registry, at

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes


METHODS: Final = {"default": (), "from_file": ("path",), "settings": (), "presets": ()}
"""What every factory has, with the arguments that it is called with."""
_MAKERS: Final = ("default", "from_file", "from_folder", "from_normalised")
"""Methods that return a target."""
_TARGET: Final = tuple(name for name in vars(Target) if not name.startswith("_"))


def checked_factory(made: Any, plugin: Plugin[Any]) -> Any:
    """Return the factory with every method contained.

    Raises:
        BadInput: it lacks methods, or a class has them for its instances only.
    """
    wrong = [text for name, arguments in METHODS.items() if (text := _problem(made, name, arguments))]
    types = getattr(made, "model_types", ())
    if not (isinstance(types, tuple) and all(isinstance(t, str) for t in types)):
        wrong.append(f"model_types is {_named(types)}, not a tuple of names")
    if wrong:
        fix = "make them static or class methods of the class, or register an instance"
        raise BadInput("not a target factory", got="; ".join(wrong), expected=", ".join(METHODS), fix=fix)
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
        what = "a target of another distribution returns something else"
        if wrong:
            raise BadInput(what, where=where, expected=wrong, got=_named(found))
        if wrong_part is not None:
            of, expected, got = wrong_part
            raise BadInput(what, where=f"{of}() of what {where} returns", expected=expected, got=got)
        return found

    return call


def _returned(name: str, found: Any) -> str | None:
    """What a method should have returned; ``None`` if it did."""
    one = {"settings": Setting, "presets": NamedWorkload, "proof_settings": Setting}.get(name)
    if one is not None and not (isinstance(found, tuple) and all(isinstance(item, one) for item in found)):
        return f"a tuple of {one.__name__}"
    if name in _MAKERS:
        lacking = [method for method in _TARGET if not hasattr(found, method)]
        return f"a target, with {', '.join(lacking)}" if lacking else None
    return None


def _wrong_part(target: Any) -> tuple[str, str, str] | None:
    """Return which method of a target returns something else than its type, what was expected, and what it returned.

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
    """Return what was expected and found where a value, or a field of it, is not of its declared type."""
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
    """What a registered name stands for: an object with these methods, or a class that has them without an instance.

    The family of another distribution is checked when it is loaded, see ``models.checked``.

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


@runtime_checkable
class ServesTypes(Protocol):
    """A factory whose formulas describe the models of some Hugging Face configurations."""

    model_types: tuple[str, ...]
    """What ``model_type`` says in them."""


@runtime_checkable
class ServesClasses(Protocol):
    """A factory whose formulas describe some classes of transformers for these configurations, and others not."""

    def describes(self, architecture: str) -> bool:
        """Whether they describe this class; a configuration that names another has no family."""
        ...


@runtime_checkable
class ServesParts(Protocol):
    """A factory whose formulas describe some models of these types: those whose parts are of its kinds."""

    def serves(self, config: Mapping[str, Any]) -> bool:
        """Whether they describe this model; one with another part has no family."""
        ...


def _built_in() -> tuple[Plugin[TargetFactory], ...]:
    """Return the built-in families, which are the modules of ``models.families``, and the known models of them."""
    found = [_family_plugin(module.name, is_package=module.ispkg) for module in iter_modules(families.__path__)]
    known: list[Plugin[TargetFactory]] = [Plugin(k.name, k.what, partial(_itself, k)) for k in KNOWN]
    return (*found, *known)


def _family_plugin(name: str, *, is_package: bool) -> Plugin[TargetFactory]:
    """Return the lazy registration of a family; its first line describes it, and is read without an import."""
    file, place = (f"{name}/__init__.py", f"{name}.target") if is_package else (f"{name}.py", name)
    with (Path(families.__path__[0]) / file).open(encoding="utf-8") as source:
        what = source.readline().strip().strip('"').rstrip(".")
    return Plugin(name.replace("_", "-"), what, at(f"{families.__name__}.{place}:TARGET"))


def _itself(made: TargetFactory) -> TargetFactory:
    return made


TARGETS: Final[Registry[TargetFactory]] = Registry(
    "targets", "target", _built_in(), command="costproof targets", checked=checked_factory
)


@dataclass(frozen=True, slots=True)
class _Located:
    """What an address names: the factory with its settings, and the target itself."""

    factory: TargetFactory
    load: Callable[[bool], Target]
    """(whether code of a snapshot may run) -> the target."""


def read_address(text: str) -> Address:
    """The name of a model, read; a registered name is one, whatever else it looks like."""
    return address(text, TARGETS.all())


def target_factory(name: str) -> TargetFactory:
    """What makes the target of that name or address; nothing that it names runs.

    Raises:
        BadInput: no such target, no target reads the folder, or the configuration cannot be read.
    """
    return _located(read_address(name)).factory


def load_target(name: str, config_path: Path | None = None, *, trusted: bool = False) -> Target:
    """The target of that name or address, with the configuration in a file if one is given.

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
        raise BadInput("this model has a configuration of its own", where="--config", got=str(config_path))
    return found.factory.from_file(config_path)


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


_GENERIC: Final = at("costproof.models.generic.module:GenericTarget")


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
    """The target of a configuration; of a model type alone that of its default configuration."""
    path = named.path
    if path is not None:
        return family.from_file(path / "config.json" if path.is_dir() else path)
    require("trace", "the default configuration of a model type")
    with scratch() as folder:
        file = folder / f"{named.label}.json"
        file.write_text(json.dumps(default_config(named.place)), encoding="utf-8")
        return family.from_file(file)


def _family(config: Mapping[str, Any]) -> TargetFactory | None:
    """The registered target whose formulas describe a configuration."""
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
    """Go on without a plug-in that fails while it is asked whether it is meant."""
    try:
        yield
    except BadInput as error:
        if item.owner == OURS:
            raise
        skip(error)


def _serves(made: TargetFactory, kind: str, architecture: str, config: Mapping[str, Any]) -> bool | None:
    """Whether the formulas of a factory describe a configuration; ``None`` if they are about other types."""
    if not isinstance(made, ServesTypes) or kind not in made.model_types:
        return None
    if architecture and isinstance(made, ServesClasses) and not made.describes(architecture):
        return False
    return not isinstance(made, ServesParts) or made.serves(config)


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
