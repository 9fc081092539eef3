"""What a side of a diff may be: a file of ours, one in git, or a target with settings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from costproof.ledger.baseline import Baseline, Folded, baseline_in, baseline_of
from costproof.ledger.capture import Capture
from costproof.ledger.conventions import Conventions
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.files import json_in, read_json
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE
from costproof.ledger.node import exact_sum
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.workload import TargetInfo, Workload
from costproof.models.changing import key_named, keys_of
from costproof.models.registry import TARGETS, load_target
from costproof.models.target import WithKeys
from costproof.run.capture import count
from costproof.run.prepare import Prepared, chosen
from costproof.run.request import Settings, request, settings

Given = str | os.PathLike[str] | Capture | Baseline
FORMS: Final = (
    "a capture, a folder of reports, static_compute.json, a baseline, REVISION:FILE, or TARGET@PRESET,NAME=VALUE"
)
WHOLE_STAGE: Final = "(stage)"
"""Stands for the parts of a stage in a file that has none."""
_STATIC: Final = "costproof/static_compute"


@dataclass(frozen=True, slots=True)
class Read:
    """A side, read."""

    baseline: Baseline
    target: WithKeys | None
    """The target of its configuration, for other points than its own; ``None``: no formulas describe it."""


def read_side(given: Given, config: str | os.PathLike[str] | None = None) -> Read:
    """Read one side.

    Args:
        given: see :data:`FORMS`; a registered target's name is one even where a file has that name.
        config: a configuration file, of a target.

    Raises:
        BadInput: it is none of these, or cannot be read or counted by formulas.
    """
    if isinstance(given, Capture | Baseline):
        baseline = given if isinstance(given, Baseline) else baseline_of(given)
        return Read(baseline, _target_of(baseline))
    text = os.fspath(given)
    name = text.partition(",")[0].partition("@")[0]
    if name in TARGETS.all() or name.startswith("hf:"):
        return _counted(name, text[len(name) :], config)
    if config is not None:
        raise BadInput("only a target takes a configuration file", where=text, got=os.fspath(config))
    path = Path(text)
    if path.exists():
        file = path / "capture.json" if path.is_dir() else path
        data = read_json(file, what="capture" if path.is_dir() else "file")
    else:
        data = json_in(_in_git(text), where=text, what="file")
    static = isinstance(data, dict) and data.get("schema") == _STATIC
    baseline = _of_static(data, text) if static else baseline_in(data, where=text)
    return Read(baseline, _target_of(baseline))


def _in_git(text: str) -> bytes:
    """A file at a revision: ``main:baselines/deepseek-ocr.json``."""
    revision, colon, path = text.partition(":")
    if not (revision and colon and path) or revision.startswith("-"):
        raise BadInput(
            "there is no such file or target",
            where=text[:120],
            expected=FORMS,
            fix=did_you_mean(revision, TARGETS.all()),
        )
    try:
        done = subprocess.run(["git", "cat-file", "blob", text], capture_output=True, check=False)
    except OSError as error:
        raise BadInput("git is not installed", where=text, got=error.strerror) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BadInput("git does not have this file", where=text, got=said[0][:200] if said else None)
    return done.stdout


def _counted(name: str, rest: str, config: str | os.PathLike[str] | None) -> Read:
    """``@PRESET,NAME=VALUE,…``: settings of a workload and keys of the configuration, evaluated by the formulas."""
    preset, *pairs = rest.removeprefix("@").split(",") if rest else [""]
    target = load_target(name, None if config is None else Path(config))
    if not isinstance(target, WithKeys):
        fix = f"costproof capture {name} -o FILE counts it by graph and run; give the file"
        raise BadInput("no formulas describe this target", where=name, fix=fix)
    known = {s.name for s in settings(name)}
    workload: dict[str, str] = {}
    keys: dict[str, Any] = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("this is not a setting", where=name + rest, expected="NAME=VALUE", got=pair[:80])
        if option.replace("-", "_") in known:
            workload[option.replace("-", "_")] = value
        else:
            keys[key_named(target.config, option, name + rest)] = _value(value)
    target = target.with_keys(keys) if keys else target
    asked = request(name, place=lambda n: f"{n} of {name}{rest}", preset=preset or None, **workload)
    assert isinstance(asked.workload, Settings)
    found = count(Prepared(target, chosen(target, asked.workload), ("analytic",)))
    return Read(baseline_of(found.capture), target)


def _value(text: str) -> Any:
    """A value of a key as JSON has it; ``2+5+8`` is a list, other text is itself."""
    if "+" in text and all(part.isdecimal() for part in text.split("+")):
        return tuple(int(part) for part in text.split("+"))
    try:
        return json.loads(text)
    except ValueError:
        return text


def _target_of(side: Baseline) -> WithKeys | None:
    """The target that a file is about, with its configuration."""
    if side.target.name not in TARGETS.all() or side.target.implementation != "native" or side.target.config is None:
        return None
    usual = load_target(side.target.name)
    if not isinstance(usual, WithKeys):
        return None
    known = keys_of(usual.config)
    own = side.target.config
    if own.keys() != known.keys():
        return None  # written by another version, of which the formulas here know nothing
    try:
        return usual.with_keys({k: v for k, v in own.items() if v != known[k]})
    except BadInput:
        return None


@dataclass(frozen=True, slots=True)
class _Header:
    """What all files begin with."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]


def _of_static(data: Mapping[str, Any], where: str) -> Baseline:
    """A side of the numbers of whole stages, which is all that ``static_compute.json`` has of a source."""
    from costproof.reports.static_compute import STATIC_COMPUTE

    kind = FileKind(STATIC_COMPUTE.name, STATIC_COMPUTE.version, _Header)
    kept = {
        name: data[name] for name in ("schema", "schema_version", *(f.name for f in fields(_Header))) if name in data
    }
    head = from_data(kept, kind, where=where, make_again="costproof report TARGET -o DIR")
    try:
        stages = {str(s["id"]): dict(s["sources"]) for s in data["stages"]}
        totals = {str(name): dict(costs) for name, costs in data["sources"].items()}
        numbers = [
            n for costs in (*totals.values(), *(c for s in stages.values() for c in s.values())) for n in costs.values()
        ]
    except (KeyError, TypeError, AttributeError):
        raise BadInput("the static_compute is damaged", where=where, expected="stages and sources") from None
    if any(n is not None and type(n) is not int for n in numbers):
        raise BadInput("the static_compute is damaged", where=where, expected="integers")
    sources = {}
    for source, whole in totals.items():
        own = {stage: of[source] for stage, of in stages.items() if source in of}
        metrics = tuple(m for m in EVERY_METRIC if all(m in costs for costs in (whole, *own.values())))
        repeated = {m: _minus(exact_sum(c[m] for c in own.values()), whole[m]) for m in metrics if m in STAGE_WIDE}
        rows = {stage: {WHOLE_STAGE: {"": {m: costs[m] for m in metrics}}} for stage, costs in own.items()}
        sources[source] = Folded(metrics, tuple(own), rows, repeated)
    return Baseline(head.conventions, head.target, head.workload, head.environment, sources)


def _minus(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def of_stages(side: Baseline) -> Baseline:
    """The side without its parts, to compare with one that has none."""
    sources = {}
    for name, folded in side.sources.items():
        rows = {s: {WHOLE_STAGE: {"": {m: folded.total(m, s) for m in folded.metrics}}} for s in folded.stages}
        sources[name] = Folded(
            folded.metrics, folded.stages, rows, folded.repeated, folded.conventions, folded.formulas
        )
    return Baseline(side.conventions, side.target, side.workload, side.environment, sources)


def has_parts(side: Baseline) -> bool:
    """Whether the side tells more than whole stages."""
    return any(part != WHOLE_STAGE for f in side.sources.values() for parts in f.rows.values() for part in parts)
