"""Claims checked against a target: which truth, at which workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costproof.claims import ClaimsFile, ClaimsReport, judge_claims, read_claims
from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.sources import USUAL_SOURCES
from costproof.models.registry import TARGETS, mistakes_of
from costproof.reports.report import Report
from costproof.run.capture import count
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request


def check_claims(
    path: Path, target: str | RunRequest | None = None, *, capture: Path | None = None, **choices: Any
) -> ClaimsReport:
    """Read a claims file and judge it; arguments and errors as for :func:`costproof.api.check`."""
    _in_order(path, target)
    claims = read_claims(path)
    named = target.target if isinstance(target, RunRequest) else target
    if claims.target and named and claims.target != named:
        raise BadInput("the claims are about another target", where=f"$.target in {path}", expected=claims.target,
                       got=named)  # fmt: skip
    name = named or claims.target
    if not name:
        raise BadInput(
            "the claims name no target", where=str(path), expected="target: NAME in the file, or TARGET after it",
            fix="see: costproof targets",
        )  # fmt: skip
    given = {k: v for k, v in choices.items() if v is not None}
    if capture is not None:
        proved = _proved(capture, name, given)
        return judge_claims(claims, proved, mistakes_of(proved.target.name), truth="a capture whose sources agree")
    base = target if isinstance(target, RunRequest) else _named(claims, name)
    asked = request(request(base, **given), sources=("analytic",))
    truth = "the formulas of the target, not compared with a graph in this run"
    counted = count(prepare(asked)).capture
    return judge_claims(claims, counted, mistakes_of(counted.target.name), truth=truth)


def _named(claims: ClaimsFile, target: str) -> RunRequest:
    """The workload that a claims file names."""
    workload = {key.replace("-", "_"): value for key, value in claims.workload.items()}
    return request(target, place=lambda name: f"$.workload.{name}", **workload)


def _in_order(path: Path, target: object) -> None:
    if isinstance(target, str) and not path.exists() and str(path) in TARGETS.all() and Path(target).is_file():
        raise BadInput(
            "the claims file comes first", where="costproof check", expected="CLAIMS TARGET", got=f"{path} {target}",
            fix=f"costproof check {target} {path}",
        )  # fmt: skip


def _proved(path: Path, target: str, choices: Mapping[str, Any]) -> Capture:
    if choices:
        raise BadInput(
            "a capture has its own configuration and workload", where=", ".join(sorted(choices)),
            fix="leave out --capture, or these options",
        )  # fmt: skip
    found = read_capture(path)
    if found.target.name != target:
        raise BadInput("the capture is of another target", where=str(path), expected=target, got=found.target.name)
    if len([x for x in found.ledgers if x.source in USUAL_SOURCES]) < 2:
        raise Incomplete(
            "a capture of one source cannot be the truth", where=str(path),
            expected="analytic beside static or dynamic",
            fix="costproof capture " + target,
        )  # fmt: skip
    verdict = Report(found).verdict
    if verdict not in ("exact", "explained"):
        raise Incomplete("the sources of the capture do not agree, so it cannot be the truth", where=str(path),
                         expected="exact or explained", got=verdict, fix=f"costproof compare {path}")  # fmt: skip
    return found
