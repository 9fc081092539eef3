"""Define kinds of files with versions and JSON Schemas, and parse them strictly.

A file begins with ``schema`` and ``schema_version`` ("major.minor"). Newer minor versions only add fields, so they are
read; other major versions are refused. Contents are dataclasses: pydantic validates them strictly on reading and
derives the JSON Schema, so neither can drift from the code.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.files import read_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class FileKind(Generic[T]):
    """A kind of file: its name, the version that is written, and the type of its content."""

    name: str
    version: tuple[int, int]
    type: type[T]
    left_out: tuple[str, ...] = ()
    """Fields that the file contains only if they are not empty."""


_adapters: dict[type, TypeAdapter[Any]] = {}


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return pydantic's adapter of a dataclass; pydantic is imported only here, since few commands need it."""
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_data(kind: FileKind[T], value: T) -> dict[str, Any]:
    """Return the JSON object of a file, header first."""
    body: dict[str, Any] = adapter(kind.type).dump_python(value, mode="json")
    body = {name: part for name, part in body.items() if part or name not in kind.left_out}
    return {"schema": kind.name, "schema_version": "{}.{}".format(*kind.version), **body}


_CONFIGURATION_KEYS: Final = ("model_type", "architectures")


def load(path: Path, kind: FileKind[T], *, make_again: str) -> T:
    """Read a costproof file, and check that it is of this kind, of a known version and valid.

    Args:
        make_again: command that creates such a file, for the error text.

    Raises:
        Problems: all invalid fields, each with its path.
        BadInput: the file is not of this kind or version.
    """
    return from_data(read_json(path, what=kind.name.split("/")[-1]), kind, where=str(path), make_again=make_again)


def from_data(data: object, kind: FileKind[T], *, where: str, make_again: str) -> T:
    """Convert parsed JSON to the content of a file; see :func:`load`."""
    from pydantic import ValidationError

    short = kind.name.split("/")[-1]
    if not isinstance(data, dict):
        raise BadInput(f"not a {short} file", where=f"$ in {where}", expected="a JSON object", got=_name(data))
    if data.get("schema") != kind.name:
        configuration = "schema" not in data and not data.keys().isdisjoint(_CONFIGURATION_KEYS)
        raise BadInput(
            f"not a {short} file",
            where=f"$.schema in {where}",
            expected=kind.name,
            got="the configuration of a model" if configuration else data.get("schema", "nothing"),
            fix=f"hf:{where} names the model in the file" if configuration else make_again,
        )
    version = data.get("schema_version")
    major, minor = _version(version)
    if major != kind.version[0]:
        raise BadInput(
            f"this {short} has another major version",
            where=f"$.schema_version in {where}",
            expected=f"{kind.version[0]}.x",
            got=version,
            fix=make_again,
        )
    newer = minor > kind.version[1]
    body = {k: v for k, v in data.items() if k not in ("schema", "schema_version")}
    try:
        # Through JSON text, because strictness differs: an array may be a tuple there, but "3" is not 3.
        return adapter(kind.type).validate_json(json.dumps(body), strict=True, extra="ignore" if newer else "forbid")
    except ValidationError as error:
        problems = [
            BadInput(e["msg"], where=location(e["loc"]), got=_shown(e.get("input")))
            for e in error.errors(include_url=False)[:20]
        ]
        raise Problems(f"the {short} {where} is damaged", problems, fix=make_again) from error


def json_schema(kind: FileKind[T]) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a kind of file."""
    schema: dict[str, Any] = adapter(kind.type).json_schema(mode="serialization")
    schema["$schema"] = DIALECT
    schema["title"] = kind.name
    header = {
        "schema": {"const": kind.name, "type": "string"},
        "schema_version": {"type": "string", "pattern": rf"^{kind.version[0]}\.\d+$"},
    }
    schema["properties"] = {**header, **schema.get("properties", {})}
    schema["required"] = sorted({"schema", "schema_version", *schema.get("required", [])})
    return schema


SCALAR: Final = {"type": ["string", "number"]}
"""Schema of a string or number in files that people write; editors read ``12`` as a number, whose digits are kept."""
MAP: Final = {"type": "object", "additionalProperties": SCALAR}


def form_schema(title: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a kind of file that people write."""
    return {"$schema": DIALECT, "title": title, **schema}


def _version(text: object) -> tuple[int | None, int]:
    """Return (major, minor) of a version as integers; major is ``None`` for an invalid text."""
    found = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found else (None, 0)


def location(parts: tuple[int | str, ...]) -> str:
    """Return a path in a file as in messages: ``$.claims[2].id``."""
    return "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts)


def _name(value: object) -> str:
    return {list: "an array", str: "a string", type(None): "null"}.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
