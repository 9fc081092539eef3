"""The schemas of files: of those that programs read, and of those that people write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from costproof.plugins import at
from costproof.reports.outputs import OUTPUTS

if TYPE_CHECKING:
    from costproof.ledger.schema import FileKind

WRITTEN: Final[Mapping[str, Callable[[], Callable[[], dict[str, Any]]]]] = {
    "claims.yaml": at("costproof.claims.schema:claims_schema"),
    "policy.yaml": at("costproof.compare.gate.schema:policy_schema"),
    "request.yaml": at("costproof.run.request_schema:request_schema"),
}
"""Name of a file that people write -> loads what makes its schema."""


def kind_names() -> tuple[str, ...]:
    """Short names of the kinds of files that programs read; nothing is loaded."""
    return tuple(o.file.removesuffix(".json") for o in OUTPUTS if o.kind is not None)


def file_kinds() -> dict[str, FileKind[Any]]:
    """All kinds of files that programs read, by short name."""
    return {o.file.removesuffix(".json"): o.kind() for o in OUTPUTS if o.kind is not None}


def schema_names() -> tuple[str, ...]:
    """What :func:`schema_of` takes."""
    return (*kind_names(), *WRITTEN)


def schemas() -> dict[str, str]:
    """Return the kinds of files that have a schema, with their version: ``costproof/capture 3.1``."""
    kinds = {name: f"{kind.name} {kind.version[0]}.{kind.version[1]}" for name, kind in file_kinds().items()}
    return {**kinds, **dict.fromkeys(WRITTEN, "written by people")}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of one of :func:`schema_names`."""
    from costproof.ledger.schema import json_schema

    return WRITTEN[name]()() if name in WRITTEN else json_schema(file_kinds()[name])
