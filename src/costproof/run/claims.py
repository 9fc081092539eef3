"""Claims held against a target: which truth, at which workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.claims import ClaimsFile, ClaimsReport, judge_claims, read_claims
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.registry import mistakes_of

if TYPE_CHECKING:
    from costproof.ledger.capture import Capture

_NUMBERS = frozenset({"base_size", "image_size", "text_tokens", "seq_len", "new_tokens", "batch"})
_WORDS = frozenset({"preset", "grid", "dtype", "attention", "logits", "experts"})


def check_claims(
    path: Path,
    target: str = "deepseek-ocr",
    *,
    capture: Path | None = None,
    config: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ClaimsReport:
    """Read a claims file and judge it.

    Args:
        capture: a capture to hold the claims against; the target's formulas alone if ``None``.
        settings: of the workload; they go before those that the file names.

    Raises:
        BadInput: the file, the target, the workload or a claim is wrong.
        Incomplete: the capture is not exact or explained, so it is no truth.
    """
    claims = read_claims(path)
    if claims.target and claims.target != target:
        raise BadInput("the claims are about another target", where=f"$.target in {path}", expected=claims.target,
                       got=target)  # fmt: skip
    given = {k: v for k, v in (settings or {}).items() if v is not None}
    if capture is not None:
        proved = _proved(capture, target, given, config)
        return judge_claims(claims, proved, mistakes_of(proved.target.name), truth="a capture whose sources agree")
    from costproof import api

    run = {**workload_settings(claims), **given}
    counted = api.capture(target, config=config, sources=("analytic",), **run)
    why = "the formulas of the target, not compared with a graph in this run"
    return judge_claims(claims, counted, mistakes_of(counted.target.name), truth=why)


def workload_settings(claims: ClaimsFile) -> dict[str, Any]:
    """The workload that a claims file names, as settings.

    Raises:
        BadInput: a setting that does not exist, or no integer where one belongs.
    """
    found: dict[str, Any] = {}
    for key, value in claims.workload.items():
        name = key.replace("-", "_")
        where = f"$.workload.{key[:60]}"
        if name in _NUMBERS:
            if not value.isascii() or not value.isdigit() or len(value) > 18:
                raise BadInput("this setting takes an integer", where=where, got=value[:60])
            found[name] = int(value)
        elif name in _WORDS:
            found[name] = value
        else:
            raise BadInput("no such setting", where=where, expected="one of " + ", ".join(sorted(_NUMBERS | _WORDS)))
    return found


def _proved(path: Path, target: str, settings: Mapping[str, Any], config: Path | None) -> Capture:
    from costproof import api

    if settings or config is not None:
        raise BadInput(
            "a capture has its own configuration and workload", where=", ".join(sorted({*settings, *(
                ["config"] if config is not None else [])})), fix="leave out --capture, or these options",
        )  # fmt: skip
    found = api.read(path)
    if found.target.name != target:
        raise BadInput("the capture is of another target", where=str(path), expected=target, got=found.target.name)
    if len([x for x in found.ledgers if x.source in api.SOURCES]) < 2:
        raise Incomplete(
            "a capture of one source is no truth", where=str(path), expected="analytic beside static or dynamic",
            fix="costproof capture " + target,
        )  # fmt: skip
    verdict = api.compare(found).verdict
    if verdict not in ("exact", "explained"):
        raise Incomplete("the sources of the capture do not agree, so it is no truth", where=str(path),
                         expected="exact or explained", got=verdict, fix=f"costproof compare {path}")  # fmt: skip
    return found
