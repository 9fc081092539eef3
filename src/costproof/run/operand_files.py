"""Read operands from files and from git without loading targets, which keeps a gate fast."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import which
from typing import Any, Final

from costproof.ledger.baseline import WHOLE_STAGE, Baseline, Folded, fold_capture, fold_peaks, parse_baseline
from costproof.ledger.capture import CAPTURE, Capture, parse_capture
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.files import MAX_BYTES, WAIT, json_in, read_json
from costproof.ledger.metrics import EVERY_METRIC, PEAK_METRICS, STAGE_WIDE, Conventions
from costproof.ledger.node import exact_sum
from costproof.ledger.peaks import StagePeaks
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.workload import ATTRIBUTES, Invocation, TargetInfo, TensorSpec, Workload, describe_calls

OperandInput = str | os.PathLike[str] | Capture | Baseline
FORMS: Final = (
    "a capture, a folder of reports, static_compute.json, a baseline, REVISION:FILE, or TARGET@PRESET,NAME=VALUE"
)
_STATIC: Final = "costproof/static_compute"


def baseline_at(text: str) -> Baseline:
    """Return the baseline in a file, in a folder of reports, or at a revision of git.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    return file_at(text)[0]


def file_at(text: str) -> tuple[Baseline, Capture | None]:
    """Return the baseline of :func:`baseline_at`, and the capture if the file is a capture.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    path = Path(text)
    if path.exists():
        file = path / "capture.json" if path.is_dir() else path
        data = read_json(file, what="capture" if path.is_dir() else "file")
    else:
        data = json_in(_in_git(text), where=text, what="file")
    kind = data.get("schema") if isinstance(data, dict) else None
    if kind == CAPTURE.name:
        capture = parse_capture(data, where=text)
        return fold_capture(capture), capture
    return (_of_static(data, text) if kind == _STATIC else parse_baseline(data, where=text)), None


def _in_git(text: str) -> bytes:
    """Return the content of a file at a git revision: ``main:baselines/deepseek-ocr.json``."""
    revision, colon, path = text.partition(":")
    if not (revision and colon and path) or revision.startswith("-"):
        from costproof.models.registry import TARGETS

        raise BadInput(
            "there is no such file or target",
            where=text[:120],
            expected=FORMS,
            fix=did_you_mean(revision, TARGETS.all()),
        )
    size = _git("-s", text)
    if int(size) > MAX_BYTES:
        raise BadInput(
            "the file is too large", where=text, expected=f"at most {MAX_BYTES:,} bytes", got=f"{int(size):,}"
        )
    return _git("blob", text)


_MISSING: Final = (b"not a git repository", b"Not a valid object name")
"""Messages of git for a missing object, or for a folder of another user that git refuses to read."""


def is_revision(name: str) -> bool:
    """Return whether git knows an object of this name in the current folder, or refuses to answer.

    Raises:
        BadInput: git did not answer in time.
    """
    if name.startswith("-") or which("git") is None:
        return False
    done = _run_git("-t", name)
    return done.returncode == 0 or not any(message in done.stderr for message in _MISSING)


def _git(what: str, name: str) -> bytes:
    """Return the output of ``git cat-file`` for an object; nothing is downloaded into a partial clone."""
    done = _run_git(what, name)
    if done.returncode:
        message = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BadInput("git does not have this file", where=name, got=message[0][:200] if message else None)
    return done.stdout


def _run_git(what: str, name: str) -> subprocess.CompletedProcess[bytes]:
    # A clone without all of its objects asks its remote for them, by the program that its own configuration names.
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    command = ["git", "cat-file", what, name]
    try:
        return subprocess.run(command, capture_output=True, check=False, env=environment, timeout=WAIT)
    except OSError as error:
        raise BadInput("git is not installed", where=name, got=error.strerror) from None
    except subprocess.TimeoutExpired:
        raise BadInput("git did not answer in time", where=name, expected=f"the file within {WAIT:.0f} s") from None


def check_whole(side: Baseline) -> None:
    """Check that a side of a comparison is not a model cut to its first layers, which nobody deploys.

    Raises:
        BadInput: the model was cut.
    """
    if side.target.cut:
        raise BadInput(
            "only the first layers of this model were counted",
            where=side.target.name,
            expected="a count of the whole model",
            got=", ".join(f"{part} {of}" for part, of in sorted(side.target.cut.items())),
            fix="count without --layers, or name the target instead of the folder",
        )


def check_cut_alike(base: Baseline, head: Baseline) -> None:
    """Check that both sides of a comparison are whole models, or are cut to the same layers.

    Raises:
        BadInput: they were.
    """
    sides = [", ".join(f"{part} {of}" for part, of in sorted(side.target.cut.items())) for side in (base, head)]
    if sides[0] != sides[1]:
        raise BadInput(
            "one side has only the first layers of its model",
            where=f"{base.name}, {head.name}",
            expected="both whole, or cut alike",
            got=" and ".join(side or "the whole model" for side in sides),
            fix="count both with the same --layers, or without",
        )


@dataclass(frozen=True, slots=True)
class _Header:
    """The first fields of every costproof file with counts."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]


_AGAIN: Final = "costproof report TARGET -o DIR writes it anew"


def _of_static(data: Mapping[str, Any], where: str) -> Baseline:
    """Return the baseline in a ``static_compute.json``, which has numbers of whole stages only."""
    from costproof.views.static_compute import STATIC_COMPUTE

    kind = FileKind(STATIC_COMPUTE.name, STATIC_COMPUTE.version, _Header)
    kept = {
        name: data[name] for name in ("schema", "schema_version", *(f.name for f in fields(_Header))) if name in data
    }
    head = from_data(kept, kind, where=where, make_again="costproof report TARGET -o DIR")
    try:
        stages = {str(s["id"]): dict(s["sources"]) for s in data["stages"]}
        calls = [_call(str(s["id"]), call) for s in data["stages"] for call in s["invocations"]]
        totals = {str(name): dict(costs) for name, costs in data["sources"].items()}
        held: Any = data.get("attributes_bytes", 0)
        numbers = [
            n for costs in (*totals.values(), *(c for s in stages.values() for c in s.values())) for n in costs.values()
        ]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BadInput(
            "this static_compute.json is damaged", where=where,
            expected="$.stages with id, sources and invocations, and $.sources", fix=_AGAIN,
        ) from None  # fmt: skip
    if type(held) is not int or held < 0:
        raise BadInput(
            "the bytes of tensors that are attributes are not a number", where=f"$.attributes_bytes in {where}",
            expected="0 or more", got=repr(held)[:60], fix=_AGAIN,
        )  # fmt: skip
    numbers += (s.get(m) for s in data["stages"] for m in PEAK_METRICS)
    if wrong := [n for n in numbers if n is not None and type(n) is not int]:
        raise BadInput(
            "a cost in this static_compute.json is not an integer", where=where, expected="an integer or null",
            got=repr(wrong[0])[:60], fix=_AGAIN,
        )  # fmt: skip
    version = str(data["schema_version"])
    # No formula counts a module with such tensors; graphs and runs do, and files told of them from 3.4 on.
    unsaid = "analytic" not in totals and int(version.partition(".")[2]) < 4
    notes = (f"{ATTRIBUTES}not known of a static_compute.json of version {version}",) if unsaid else ()
    sources = {}
    for source, whole in totals.items():
        own = {stage: of[source] for stage, of in stages.items() if source in of}
        metrics = tuple(m for m in EVERY_METRIC if all(m in costs for costs in (whole, *own.values())))
        repeated = {m: _minus(exact_sum(c[m] for c in own.values()), whole[m]) for m in metrics if m in STAGE_WIDE}
        rows = {stage: {WHOLE_STAGE: {"": {m: costs[m] for m in metrics}}} for stage, costs in own.items()}
        sources[source] = Folded(metrics, tuple(own), rows, repeated, notes=notes, attributes_bytes=held)
    peaks = (StagePeaks(str(s["id"]), *(s.get(m) for m in PEAK_METRICS)) for s in data["stages"])
    sources |= fold_peaks([p for p in peaks if (p.graph_peak_bytes, p.eager_peak_bytes) != (None, None)])
    return Baseline(head.conventions, head.target, head.workload, head.environment, sources, describe_calls(calls))


def _call(stage: str, call: Mapping[str, Any]) -> Invocation:
    inputs = tuple(TensorSpec(tuple(map(int, i["shape"])), str(i["dtype"])) for i in call["inputs"])
    symbols = {str(name): int(value) for name, value in call["symbols"].items()}
    return Invocation(stage, str(call["id"]), int(call["calls"]), symbols, inputs)


def _minus(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def of_stages(side: Baseline) -> Baseline:
    """Return a baseline reduced to stage totals, for comparison with a baseline that has only these."""
    sources = {}
    for name, folded in side.sources.items():
        rows = {s: {WHOLE_STAGE: {"": {m: folded.total(m, s) for m in folded.metrics}}} for s in folded.stages}
        sources[name] = Folded(
            folded.metrics, folded.stages, rows, folded.repeated, folded.conventions, folded.formulas
        )
    return replace(side, sources=sources, modules={})


def has_parts(side: Baseline) -> bool:
    """Return whether a baseline has numbers of parts within stages."""
    return any(part != WHOLE_STAGE for f in side.sources.values() for parts in f.rows.values() for part in parts)
