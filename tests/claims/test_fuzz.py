"""The parsers survive what the benchmark feeds them; it runs 100,000 inputs, this a few seconds of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from costproof.algebra.symbols import parse
from costproof.ledger.errors import BadInput

ROOT = Path(__file__).parents[2]


def test_fuzz() -> None:
    # In a process of its own: the watch on what an input does cannot be taken off again.
    code = (
        "from tests.oracles.fuzz import fuzz\n"
        "outcome = fuzz(2_000, 3, seconds=20)\n"
        "print(sum(outcome.ended.values()), outcome.bad[:3])\n"
        "raise SystemExit(bool(outcome.bad) or outcome.slowest > 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": "src", "PATH": ""}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 200


@pytest.mark.parametrize(
    "source",
    [
        "((((9**64)**64)**64)**64)**64",
        "((x**64)**64)**64",
        "((((S+1)**64+1)**64+1)**64+1)**64",
        "9" * 1_001,
        # Sympy sorts names by the numbers in them, and Python refuses to read such a number.
        "a" + "9" * 5_000 + " + b" + "9" * 5_000,
        "Max(" + ",".join("abcdefghij") + ")",
        "+".join(["floor(S/7)"] * 151),
    ],
)
def test_what_would_eat_time_or_memory_is_refused(source: str) -> None:
    start = time.process_time()
    with pytest.raises(BadInput):
        parse(source)
    assert time.process_time() - start < 5


def test_what_formulas_need_is_read() -> None:
    assert str(parse("4*n*w**4*ceiling(H/(p*w))**2")) == "4*n*w**4*ceiling(H/(p*w))**2"
    assert parse("(S + 1)**64").exp == 64
