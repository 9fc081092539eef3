"""Read and write run requests as YAML, and refuse code that the file requests but the command line does not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from costproof.ledger.document import YamlValue, read_document, read_source
from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.schema import adapter, location
from costproof.ledger.workload import Workload
from costproof.models.registry import read_address
from costproof.models.settings import collect_problems
from costproof.plugins import lazy
from costproof.run.request import LISTS, OPTIONS, SWITCHES, VERBS, NamedSettings, RunRequest, request

CODE: Final = ("target", "rules", "trust_remote_code")
"""Keys of a request that may execute code."""


def makes_module(target: str) -> bool:
    """Return whether a target is a user's function that builds the module."""
    return read_address(target).kind in ("file", "module")


def loading_runs_code(target: str, *, trusted: bool) -> bool:
    """Return whether loading a target runs code that is neither installed nor part of costproof."""
    return makes_module(target) or (trusted and read_address(target).kind != "name")


def code_named(choices: Mapping[str, Any]) -> dict[str, str]:
    """Return the command-line arguments that repeat the choices that execute code, by key of the request."""
    target, rules = choices.get("target"), choices.get("rules") or ()
    found = {"target": shlex.quote(target)} if isinstance(target, str) and makes_module(target) else {}
    if rules:
        found["rules"] = " ".join(f"--rules {shlex.quote(str(file))}" for file in rules)
    return {**found, **({"trust_remote_code": "--trust-remote-code"} if choices.get("trust_remote_code") else {})}


def refused_code(in_file: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Iterator[BadInput]:
    """Yield an error for each key of a file that executes code and that the user did not repeat on the command line.

    Args:
        in_file: the choices of the file.
        given: the choices of the command line or call, which override the file.
        where: the file.
    """
    for name, spelled in code_named({k: v for k, v in in_file.items() if not given.get(k)}).items():
        yield BadInput(
            "a request file cannot permit code to run",
            where=f"$.{name} in {where}",
            expected=f"{spelled} on the command line too, or {name}= in Python",
            fix=f"if you trust this code, add {spelled}",
        )


WHAT: Final = "a request file"
_KEYS: Final = tuple(f.name for f in fields(RunRequest))
_RUN: Final = {"device" if name == "run" else name: name for name in OPTIONS}
"""Names of the run options, by their key under ``run`` in a request file."""
_SINGLE: Final = ("config", *LISTS, *SWITCHES)
_PREPARED: Final = {
    "prove": lazy("costproof.run.proof:prepare_proof"),
    "derive": lazy("costproof.run.proof:prepare_derivation"),
}
"""Functions that check that a command can start, by command; the other commands use the check of a count."""


def request_text(asked: RunRequest, verb: str = "report") -> str:
    """Return a run as YAML text for :func:`read_request`, after checking that it can start.

    A target that is built by foreign code is not loaded, since that would execute the code; everything else is checked.

    Raises:
        BadInput, Incomplete: the run cannot start here.
    """
    unloaded = lazy("costproof.run.prepare:check_without_loading")
    prepared = _PREPARED.get(verb, lazy("costproof.run.prepare:prepare"))
    (unloaded if loading_runs_code(asked.target, trusted=asked.trust_remote_code) else prepared)()(asked)
    return request_yaml(asked)


def request_yaml(asked: RunRequest) -> str:
    """Return a request as YAML without defaults; a comment lists the code that the command line must name too."""
    import yaml

    data = {name: getattr(asked, name) for name in _KEYS}
    workload = asked.workload
    if isinstance(workload, NamedSettings):
        data["workload"] = {**({"preset": workload.preset} if workload.preset else {}), **workload.values}
    else:
        data["workload"] = adapter(Workload).dump_python(workload, mode="json", exclude_none=True)
    data["run"] = {k: v for k, v in asdict(asked.run).items() if v not in (None, 0) or k == "seed"}
    kept = {k: _plain(v) for k, v in data.items() if v not in (None, {}, (), False)}
    code = "".join(c if c.isprintable() else "?" for c in " ".join(code_named(data).values()))
    comment = f"# This runs code, which the command line has to name too: {code}\n" if code else ""
    return comment + str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def read_request(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    rules: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    trust_remote_code: bool = False,
) -> RunRequest:
    """Read a run from a YAML file, as ``costproof report --dry-run`` prints it.

    Paths in it are relative to the working folder, as on the command line. A file that names code (a function as its
    target, rules, the code of a snapshot) is accepted only if the same choice is made here.

    Args:
        path: the file.
        target: overrides the target of the file.
        rules: overrides the rules of the file.
        trust_remote_code: whether the code of a snapshot may run.

    Raises:
        Problems: everything that is wrong with the file, each with its place.
    """
    data = read_document(read_source(Path(path), WHAT), where=str(path), what=WHAT)
    return request_from(data, where=str(path), target=target, rules=rules, trust_remote_code=trust_remote_code)


def request_from(
    data: YamlValue,
    *,
    where: str,
    target: str | None = None,
    rules: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    trust_remote_code: bool = False,
) -> RunRequest:
    """Return the request in a parsed YAML document, as :func:`read_request` does for a file."""
    if not isinstance(data, dict):
        raise BadInput("not a request file", where=f"$ in {where}", expected="a map with target, workload, …")
    problems: list[CostproofError] = [_unknown_key(f"$.{key[:60]}", key, _KEYS) for key in data if key not in _KEYS]
    sections = {key: _section(data.get(key, {}), f"$.{key}", problems) for key in ("run", "workload", *VERBS)}
    found: dict[str, tuple[str, YamlValue]] = {key: (f"$.{key}", data[key]) for key in _SINGLE if key in data}
    for key, value in sections["run"].items():
        if key in _RUN:
            found[_RUN[key]] = f"$.run.{key}", value
        else:
            problems.append(_unknown_key(f"$.run.{key[:60]}", key, _RUN))
    choices: dict[str, Any] = {}
    if "name" in sections["workload"]:
        choices["workload"] = _workload(sections["workload"], problems)
    else:
        found |= {key: (f"$.workload.{key}", value) for key, value in sections["workload"].items()}
    for name, (place, value) in found.items():
        with collect_problems(problems):
            choices[name] = _typed_value(name, value, place)
    for verb in VERBS:
        choices[verb] = {}
        for key, value in sections[verb].items():
            with collect_problems(problems):
                choices[verb][key] = _typed_value(key, value, f"$.{verb}.{key}")
    named = data.get("target", "")
    if not isinstance(named, str):
        problems.append(
            BadInput("the target must be one short text", where="$.target", expected="a name, such as deepseek-ocr")
        )
    own = named if isinstance(named, str) and not _is_null(named) else None
    given = {"target": target, "rules": rules, "trust_remote_code": trust_remote_code}
    with collect_problems(problems):
        problems += refused_code({**choices, "target": own}, given, where)
    choices |= {name: value for name, value in given.items() if value and name != "target"}
    chosen = target or own
    if chosen is None and not problems:
        fix = "see: costproof targets"
        raise BadInput("no target to count", where=f"$.target in {where}", expected="a name", fix=fix)
    if chosen is not None:
        with collect_problems(problems):
            built = request(chosen, place=lambda n: found[n][0] if n in found else f"$.{n}", **choices)
    if problems:
        raise Problems(f"the request file {where} is wrong", problems)
    return built


def _section(given: YamlValue, where: str, problems: list[CostproofError]) -> dict[str, YamlValue]:
    """Return the keys of a section that have a value; report a section that is not a mapping."""
    if isinstance(given, dict):
        return {key: value for key, value in given.items() if not _is_null(value)}
    problems.append(BadInput("this must be a map", where=where, expected="NAME: VALUE lines", got=type(given).__name__))
    return {}


def _typed_value(name: str, value: Any, where: str) -> Any:
    if _is_null(value):
        return None
    if name in LISTS:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(i, str) for i in items):
            raise BadInput("this must be a list of texts", where=where, expected="[a, b]", got=repr(value)[:60])
        return items
    if isinstance(value, list) and all(isinstance(i, str) and i.isdecimal() for i in value):
        return tuple(int(i) for i in value)
    if not isinstance(value, str):
        raise BadInput("this must be a single value", where=where, expected="a text or an integer")
    if name in SWITCHES:
        if value not in ("true", "false"):
            raise BadInput("this must be true or false", where=where, expected="true or false", got=repr(value[:40]))
        return value == "true"
    return value


def _workload(data: dict[str, YamlValue], problems: list[CostproofError]) -> Workload | None:
    """Return the complete workload of a request, in the form that captures store; ``None`` if the file has none."""
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


def _unknown_key(where: str, key: str, known: Iterable[str]) -> BadInput:
    return BadInput("unknown key", where=where, expected="one of " + ", ".join(known), fix=did_you_mean(key, known))


def _is_null(value: YamlValue) -> bool:
    """Return whether a scalar, which is read as text, is one of YAML's spellings of null."""
    return value in ("", "null", "~")


def _with_none(value: YamlValue) -> Any:
    if isinstance(value, dict):
        return {k: _with_none(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_none(v) for v in value]
    return None if _is_null(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
