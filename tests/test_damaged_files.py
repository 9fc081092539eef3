"""A sample of ``benchmarks.fuzz_files``: damaged files end in a result or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.fuzz_files import KINDS, fuzzed


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    ends, slowest, traces = fuzzed(kind, 25, 8, tmp_path / "x.json")
    assert traces == []
    assert ends["refused"] > 10
    assert ends["accepted"] > 0
    assert slowest < 5
