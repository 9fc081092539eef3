"""A sample of ``benchmarks.fuzz_configs``: mutated configurations end in a result or an error of ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.oracles.fuzz_configs import Maker, one


@pytest.mark.filterwarnings("ignore")
def test_mutated_configurations(tmp_path: Path, *, thorough: bool) -> None:
    make, ends = Maker(None, seed=3, built=0.01), Counter[str]()
    for number in range(250 if thorough else 100):
        made, built = make(number)
        end, trace = one(tmp_path / "config.json", made, built=built)
        assert trace == "", made
        ends[end] += 1
    assert ends["exit 2"] > 12
    assert ends["exit 0"] > 12
