"""Implement ``costproof.check``: check published numbers and formulas against a target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costproof.claims import ClaimsFile, ClaimsReport, judge_claims, read_claims
from costproof.claims.types import Formula
from costproof.ledger.baseline import fold_capture
from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import PEAK_METRICS
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import DEFAULT_SOURCES
from costproof.models.registry import TARGETS, mistakes_of, read_address
from costproof.models.target import Target, WithFormulas, WithKeys
from costproof.parametric.run_family import WorkloadFamily
from costproof.reports.report import Report
from costproof.run.capture import count_sources
from costproof.run.count_lock import count_lock
from costproof.run.operand_files import check_whole
from costproof.run.operands import target_of
from costproof.run.peaks import measure_peaks
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request
from costproof.run.request_file import refused_code


def check(
    claims: str | os.PathLike[str],
    target: str | RunRequest | None = None,
    *,
    capture: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    **choices: Any,
) -> ClaimsReport:
    """Check the published numbers and formulas in a claims file against a target.

    Args:
        claims: the claims file.
        target: ``None``: the file names it.
        capture: a capture to compare the claims with, whose sources must agree; ``None``: the formulas, or the exported
            graph of a target without formulas.
        progress: called with the steps.
        choices: choices of a run, which override those of the file.

    Raises:
        BadInput: the file, the target, the workload or a claim is invalid.
        Incomplete: the capture cannot be the truth, or torch is not installed and a claim is about a peak or the target
            has no formulas.
    """
    path = Path(claims)
    _check_order(path, target)
    published = read_claims(path)
    named = target.target if isinstance(target, RunRequest) else target
    if published.target and named and published.target != named and read_address(named).kind == "name":
        raise BadInput("the claims are about another target", where=f"$.target in {path}", expected=published.target,
                       got=named)  # fmt: skip
    name = named or published.target
    if not name:
        raise BadInput(
            "the claims name no target", where=str(path), expected="target: NAME in the file, or TARGET after it",
            fix="see: costproof targets",
        )  # fmt: skip
    for refused in refused_code({"target": published.target}, {"target": named}, str(path)):
        raise refused
    given = {k: v for k, v in choices.items() if v is not None and v is not False and v != ()}
    if capture is not None:
        proved = _read_agreed_capture(Path(capture), name, given)
        return judge_claims(published, proved, mistakes_of(proved.target.name), truth="a capture whose sources agree",
                            runs=_workload_family(published, proved, target_of(fold_capture(proved))))  # fmt: skip
    base = target if isinstance(target, RunRequest) else _request_of(published, name)
    asked = request(request(base, **given), sources=("analytic",))
    truth = "the formulas of the target, not compared with a graph in this run"
    with count_lock(asked.rules):
        prepared = prepare(asked)
        if not isinstance(prepared.target, WithFormulas):
            require("trace", "checking against an exported graph")
            prepared = replace(prepared, sources=("static",))
            truth = "the exported graph of the target (static), which has no formulas; not compared with a run here"
        counted = count_sources(prepared).capture
        if any(c.metric in PEAK_METRICS for c in published.claims):
            counted = replace(counted, peaks=measure_peaks(prepared.target, prepared.workload, progress))
            truth += "; peaks by its exported graph and by its modules as written"
        runs = _workload_family(published, counted, prepared.target)
        return judge_claims(published, counted, mistakes_of(counted.target.name), truth=truth, runs=runs)


def _workload_family(claims: ClaimsFile, counted: Capture, target: Target | None) -> WorkloadFamily | None:
    """Return the target's runs at other sizes if the target has formulas and some claim has one; else ``None``."""
    asked = any(isinstance(c.value, Formula) for c in claims.claims)
    return WorkloadFamily(fold_capture(counted), target) if asked and isinstance(target, WithKeys) else None


def _request_of(claims: ClaimsFile, target: str) -> RunRequest:
    """Return the request of a run with the workload of a claims file; its errors name the keys of that file."""
    workload = {key.replace("-", "_"): value for key, value in claims.workload.items()}
    return request(target, place=lambda name: f"$.workload.{name}", **workload)


def _check_order(path: Path, target: object) -> None:
    if isinstance(target, str) and not path.exists() and str(path) in TARGETS.all() and Path(target).is_file():
        raise BadInput(
            "the claims file comes first", where="costproof check", expected="CLAIMS TARGET", got=f"{path} {target}",
            fix=f"costproof check {target} {path}",
        )  # fmt: skip


def _read_agreed_capture(path: Path, target: str, choices: Mapping[str, Any]) -> Capture:
    if choices:
        raise BadInput(
            "a capture has its own configuration and workload", where=", ".join(sorted(choices)),
            fix="leave out --capture, or these options",
        )  # fmt: skip
    found = read_capture(path)
    if found.target.name != target:
        raise BadInput("the capture is of another target", where=str(path), expected=target, got=found.target.name)
    check_whole(fold_capture(found))
    if len([x for x in found.ledgers if x.source in DEFAULT_SOURCES]) < 2:
        raise Incomplete(
            "a capture with a single source is not verified, so claims cannot be checked against it", where=str(path),
            expected="analytic with static or dynamic",
            fix="costproof capture " + target,
        )  # fmt: skip
    verdict = Report(found).verdict
    if verdict not in ("exact", "explained"):
        raise Incomplete("the sources of the capture do not agree, so claims cannot be checked against it",
                         where=str(path), expected="exact or explained", got=verdict,
                         fix=f"costproof compare {path}")  # fmt: skip
    return found
