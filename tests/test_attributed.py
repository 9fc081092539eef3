"""Attribution by exhaustion, on a sample; ``benchmarks.attribution`` takes every key and pair of published models."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.known import KNOWN
from costproof.models.target import Target
from tests.models.test_config import small_config
from tests.oracles.attribution import Exhausted

QWEN = next(k for k in KNOWN if k.name == "qwen3-30b-a3b")


def ocr() -> Target:
    """Few layers, of both kinds where there are two."""
    config = small_config()
    return DeepseekOcr(replace(config, text=replace(config.text, layers=3, dense_layers=1, max_positions=8192)))


def qwen() -> Target:
    target = QWEN.default()
    return target.with_keys({"layers": 2})  # type: ignore[attr-defined, no-any-return]


# DeepSeek-OCR has experts too.
@pytest.mark.parametrize(
    ("target", "pairs"),
    [
        pytest.param(ocr(), 8, id="deepseek-ocr"),
        pytest.param(qwen(), 15, id="qwen3", marks=pytest.mark.thorough),
    ],
)
def test_terms_add_up_for_some_keys_and_pairs(target: Target, pairs: int) -> None:
    of = Exhausted.of(target)
    singles = of.singles_found()
    every = list(of.pairs())
    assert not of.without
    assert len(singles) > 15
    rng = Random(0)
    chosen = [*rng.sample(singles, pairs), *rng.sample(every, pairs)]
    assert [line for changes in chosen for line in of.wrong(changes)] == []
    assert of.splits > 40 * pairs
