"""Limits in seconds: every loop over a stranger's file ends."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from costproof import api
from costproof.algebra.symbols import parse
from costproof.claims import claims_from_text, judge, judge_claims, reading
from costproof.claims.effects import Mistakes
from costproof.ledger import capture, time_limits
from costproof.ledger.errors import BadInput
from costproof.ledger.time_limits import check_time, time_limit
from costproof.reports import report
from tests.support.toy import toy
from tests.support.written import write_capture

CLAIMS = "costproof_claims: 1\nclaims: [{stage: sam, flops: H**2*n}]"


def endless() -> None:
    while True:
        check_time()


def test_a_loop_ends() -> None:
    with pytest.raises(BadInput) as caught, time_limit(0, "the file takes too long", where="x.json", fix="cut it"):
        endless()
    assert str(caught.value).split("\n") == [
        "the file takes too long",
        "  where:    x.json",
        "  expected: at most 0 s of the processor",
        "  fix:      cut it",
    ]
    check_time()


def test_time_that_is_left_is_used() -> None:
    """The clock of the thread is asked again where the clock on the wall says that the limit may be passed."""
    with time_limit(60, "x", where="x"):
        limit = time_limits._HERE.limit
        assert limit is not None
        limit.earliest = 0.0
        check_time()
        assert limit.earliest > 0.0


def test_an_error_that_somebody_kept_comes_at_the_end() -> None:
    """What was worked out after it is not to be relied on."""
    with pytest.raises(BadInput, match="too long"), time_limit(0, "too long", where="x"), pytest.raises(BadInput):
        endless()


def test_the_outer_limit_holds() -> None:
    with pytest.raises(BadInput, match="outer"), time_limit(0, "outer", where="x"), time_limit(60, "inner", where="x"):
        endless()


def test_a_limit_is_of_one_thread() -> None:
    found: list[object] = []
    with time_limit(60, "x", where="x"):
        other = threading.Thread(target=lambda: found.append(time_limits._HERE.limit))
        other.start()
        other.join()
    assert found == [None]
    assert time_limits._HERE.limit is None


def test_each_reader_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_capture(tmp_path / "c.json", toy())
    found, read = api.compare(toy()), claims_from_text(CLAIMS, where="x")
    for module in (capture, judge, reading, report):
        monkeypatch.setattr(module, "SECONDS", 0)
    with pytest.raises(BadInput, match="the capture takes too long to read"):
        api.read(tmp_path / "c.json")
    with pytest.raises(BadInput, match="the claims file takes too long to read"):
        claims_from_text(CLAIMS, where="x")
    with pytest.raises(BadInput, match="the claims take too long to check"):
        judge_claims(read, toy(), Mistakes(), truth="x")
    with pytest.raises(BadInput, match="the capture takes too long to render"):
        found.render("html")


def test_what_stands_in_these_loops_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the end: the search for causes, the evaluation of expressions, and parsing stop on their way."""
    asked: list[str] = []
    monkeypatch.setattr(time_limits, "_HERE", _Remembers(asked))
    parse.cache_clear()
    wrong = claims_from_text(CLAIMS.replace("}]", " + 5}, {stage: decode, flops: 1001}]"), where="x")
    right = claims_from_text(CLAIMS.replace("*n", "*n*sam_hidden**2/64"), where="x")
    for read in (wrong, right):
        judge_claims(read, toy(), Mistakes(), truth="x")
    assert {"parse", "_by_subject", "_sets", "evaluate", "at"} <= set(asked)


class _Remembers:
    """In place of a thread's limit: remembers who asks."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked
        self.limit = self

    def check(self) -> None:
        self.asked.append(sys._getframe(2).f_code.co_name)
