"""A request as YAML: what ``--request`` reads and ``--dry-run`` prints."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from costproof.ledger.document import Value, read_document, read_source
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.run import RunOptions
from costproof.ledger.schema import adapter, location
from costproof.ledger.workload import Workload
from costproof.run.request import LISTS, OPTIONS, SWITCHES, RunRequest, Settings, request

WHAT: Final = "a request file"
_KEYS: Final = ("target", "config", "workload", "sources", "run", "all_calls", "counters", "rules", "trust_remote_code")
_RUN: Final = {"device" if name == "run" else name: name for name in OPTIONS}
"""Key under ``run`` -> name of the choice."""


def request_yaml(asked: RunRequest) -> str:
    """The request as a file; what is not chosen is left out."""
    import yaml

    workload = asked.workload
    if isinstance(workload, Settings):
        named = {} if workload.preset is None else {"preset": workload.preset}
        told: dict[str, Any] = {**named, **{k: _plain(v) for k, v in workload.values.items()}}
    else:
        told = _without_none(adapter(Workload).dump_python(workload, mode="json"))
    run = {f.name: getattr(asked.run, f.name) for f in fields(RunOptions)}
    data = {
        "target": asked.target,
        "config": asked.config,
        "workload": told,
        "sources": list(asked.sources),
        "run": {k: v for k, v in run.items() if v not in (None, 0) or k == "seed"},
        **{name: list(getattr(asked, name)) for name in LISTS[1:]},
        **{name: getattr(asked, name) for name in SWITCHES},
    }
    kept = {k: data[k] for k in _KEYS if data[k] not in (None, {}, [], False)}
    return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def read_request(path: Path, target: str | None = None) -> RunRequest:
    """Read a request file; arguments and errors as for :func:`costproof.api.read_request`.

    Paths in it are meant from the working folder, as on the command line.
    """
    data = read_document(read_source(path, WHAT), where=str(path), what=WHAT)
    return request_from(data, where=str(path), target=target)


def request_from(data: Value, *, where: str, target: str | None = None) -> RunRequest:
    """:func:`read_request` for a document that is already read."""
    if not isinstance(data, dict):
        raise BadInput("not a request file", where=f"$ in {where}", expected="a map with target, workload, …")
    problems: list[CostproofError] = []
    places: dict[str, str] = {}
    choices: dict[str, Any] = {}

    def take(section: str, given: Value, names: dict[str, str] | None) -> None:
        """The keys of a section; ``names`` are those that it may have, all if ``None``."""
        if not isinstance(given, dict):
            problems.append(BadInput("this is a map", where=section))
            return
        for key, value in given.items():
            name = names.get(key) if names is not None else key
            if name is None:
                assert names is not None
                problems.append(_unknown(f"{section}.{key[:60]}", key, names))
            elif not _nothing(value):
                choices[name], places[name] = value, f"{section}.{key}"

    for key in data:
        if key not in _KEYS:
            problems.append(_unknown(f"$.{key[:60]}", key, _KEYS))
    named = data.get("target", "")
    if not isinstance(named, str):
        problems.append(BadInput("this is a short text", where="$.target"))
    for key in ("config", *LISTS, *SWITCHES):
        if key in data and not _nothing(data[key]):
            choices[key], places[key] = data[key], f"$.{key}"
    take("$.run", data.get("run", {}), _RUN)
    workload = data.get("workload", {})
    if isinstance(workload, dict) and "name" in workload:
        choices["workload"] = _workload(workload, problems)
    else:
        take("$.workload", workload, None)
    for name in list(choices):
        try:
            choices[name] = _typed(name, choices[name], places.get(name, "$.workload"))
        except BadInput as error:
            problems.append(error)
            del choices[name]
    chosen = target or (named if isinstance(named, str) and not _nothing(named) else None)
    if chosen is None and not problems:
        raise BadInput(
            "no target to count", where=f"$.target in {where}", expected="a name", fix="see: costproof targets"
        )
    try:
        found = request(chosen or "", place=lambda n: places.get(n, f"$.{n}"), **choices) if chosen else None
    except Problems as error:
        problems += error.problems
    except BadInput as error:
        problems.append(error)
    if problems or found is None:
        raise Problems(f"the request file {where} is wrong", problems)
    return found


def _typed(name: str, value: Any, where: str) -> Any:
    if name == "workload":
        return value
    if name in LISTS:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(i, str) for i in items):
            raise BadInput("this is a list of texts", where=where)
        return items
    if isinstance(value, list) and all(isinstance(i, str) and i.isdecimal() for i in value):
        return tuple(int(i) for i in value)
    if not isinstance(value, str):
        raise BadInput("this is one value", where=where, expected="a text or an integer")
    if name in SWITCHES:
        if value not in ("true", "false"):
            raise BadInput("this is true or false", where=where, got=repr(value[:40]))
        return value == "true"
    return value


def _workload(data: dict[str, Value], problems: list[CostproofError]) -> Workload | None:
    """A whole workload, as a capture holds it."""
    from pydantic import ValidationError

    plain = _with_none(data)
    if isinstance(plain.get("inputs"), dict):
        # An input may be a text or an integer, and every scalar of the file is read as a text.
        plain["inputs"] = {k: int(v) if isinstance(v, str) and v.isdecimal() else v for k, v in plain["inputs"].items()}
    try:
        return adapter(Workload).validate_python(plain, extra="forbid")
    except ValidationError as error:
        problems += [
            BadInput(e["msg"], where=location(("workload", *e["loc"])), got=repr(e.get("input"))[:60])
            for e in error.errors(include_url=False)[:20]
        ]
        return None


def _unknown(where: str, key: str, known: Any) -> BadInput:
    return BadInput("unknown key", where=where, expected="one of " + ", ".join(known), fix=did_you_mean(key, known))


def _nothing(value: Value) -> bool:
    """Whether YAML's ways to say nothing stand there; every scalar is read as a text."""
    return value in ("", "null", "~")


def _with_none(value: Value) -> Any:
    if isinstance(value, dict):
        return {k: _with_none(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_none(v) for v in value]
    return None if _nothing(value) else value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value if isinstance(value, int) else os.fspath(value)
