"""Return the JSON Schemas of all files that programs read or users write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, get_args

from costproof.ledger.run import ALL_SOURCES, Convention, RunDevice
from costproof.ledger.schema import SCALAR, form_schema
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel, Logits
from costproof.plugins import lazy
from costproof.reports.outputs import OUTPUTS

if TYPE_CHECKING:
    from costproof.ledger.schema import FileKind


WRITTEN: Final[Mapping[str, Callable[[], Callable[[], dict[str, Any]]]]] = {
    "claims.yaml": lazy("costproof.claims.reading:claims_schema"),
    "policy.yaml": lazy("costproof.compare.gate.policy:policy_schema"),
    "request.yaml": lazy("costproof.run.schemas:request_schema"),
}
"""Functions that load the schema builder of a file that users write, by file name."""


def kind_names() -> tuple[str, ...]:
    """Return the short names of the kinds of files that programs read; nothing is loaded."""
    return tuple(o.file.removesuffix(".json") for o in OUTPUTS if o.kind is not None)


def file_kinds() -> dict[str, FileKind[Any]]:
    """Return all kinds of files that programs read, by short name."""
    return {o.file.removesuffix(".json"): o.kind() for o in OUTPUTS if o.kind is not None}


def schema_names() -> tuple[str, ...]:
    """Return the names that :func:`schema_of` accepts."""
    return (*kind_names(), *WRITTEN)


def schemas() -> dict[str, str]:
    """Return the kinds of files that have a schema, each with its version: ``costproof/capture 3.1``."""
    kinds = {name: f"{kind.name} {kind.version[0]}.{kind.version[1]}" for name, kind in file_kinds().items()}
    return {**kinds, **dict.fromkeys(WRITTEN, "written by people")}


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one of :func:`schema_names`."""
    from costproof.ledger.schema import json_schema

    return WRITTEN[name]()() if name in WRITTEN else json_schema(file_kinds()[name])


MEANINGS: Final = {
    "target": "A registered name, a snapshot's folder, hf:CONFIG or FILE.py:FUNCTION; the command line may say it.",
    "config": "A configuration file; the published configuration if left out.",
    "workload": "A preset and settings of the target that replace its values, or a whole workload as a capture has it.",
    "preset": "A named workload of the target.",
    "sources": "What counts.",
    "run": "How the dynamic source runs the model.",
    "device": "meta computes shapes only; cpu and cuda run the model.",
    "weights": "random, or a folder of safetensors.",
    "seed": "Of random weights and inputs.",
    "layers": "Keep the first layers; all sources count the smaller model.",
    "profile": "Timed runs.",
    "convention": "Another tool's convention that is counted as well.",
    "all_calls": "Record the shapes of every call of a module, not only of the first.",
    "peaks": "Find the peaks of live activations too.",
    "counters": "Third-party counters to run; all stands for every one.",
    "rules": "Python files with operator rules, which are run.",
    "trust_remote_code": "Run the Python code of the snapshot, or of files next to the configuration.",
    "no_cache": "Export anew.",
    "prove": "Settings of a proof.",
    "derive": "Settings of a derivation.",
}
_NOTHING: Final = {"type": "null"}


def request_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of request files, for editors.

    :func:`~costproof.run.request_file.read_request` checks more.
    """
    from costproof.run.request import LISTS, OPTIONS, SWITCHES, VERBS, RunRequest

    names = {f.name for f in fields(RunRequest)}
    workload = {
        "preset": SCALAR,
        "batch": _whole(1),
        "dtype": _word(*get_args(Dtype)),
        "attention": _word(*get_args(AttentionKind)),
        "logits": _word(*get_args(Logits)),
        "experts": _word(*get_args(ExpertKernel)),
    }
    options = {
        "device": _word(*get_args(RunDevice)),
        "weights": SCALAR,
        "seed": _whole(0),
        "layers": _whole(1),
        "profile": _whole(0),
        "convention": _word(*get_args(Convention)),
    }
    assert options.keys() == {"device" if name == "run" else name for name in OPTIONS}
    texts = {name: _texts({"enum": list(ALL_SOURCES)} if name == "sources" else {"type": "string"}) for name in LISTS}
    own: dict[str, Any] = {
        "target": {"type": "string"},
        "config": SCALAR,
        "workload": {"type": "object", "properties": _with_descriptions(workload)},
        "run": {"type": "object", "properties": _with_descriptions(options), "additionalProperties": False},
        **texts,
        **{name: _word(True, False, "true", "false") for name in SWITCHES},
        **{name: {"type": "object"} for name in VERBS},
    }
    properties = _with_descriptions({name: own[name] for name in own if name in names})
    return form_schema("request.yaml", {"type": "object", "properties": properties, "additionalProperties": False})


def _with_descriptions(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties with each key's description added, and with null accepted as the default."""
    return {
        name: ({"anyOf": [schema, _NOTHING]} if schema.get("type") != "object" else schema)
        | ({"description": MEANINGS[name]} if name in MEANINGS else {})
        for name, schema in properties.items()
    }


def _word(*words: object) -> dict[str, Any]:
    return {"enum": list(words)}


def _whole(least: int) -> dict[str, Any]:
    return {"type": ["integer", "string"], "minimum": least, "pattern": "^[+-]?[0-9]{1,18}$"}


def _texts(one: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one string or a list of strings."""
    return {"anyOf": [one, {"type": "array", "items": one}]}
