"""The small model of :mod:`tests.tracers.small` as a full target, formulas included, for real runs."""

from __future__ import annotations

from typing import Any

from costproof.ledger.run import RunOptions
from costproof.models.families.deepseek_ocr.config import parse_config
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.tracers.small import CONFIG


def small_ocr(**options: Any) -> DeepseekOcr:
    """The small configuration, run as the options say."""
    config = parse_config({**CONFIG, "model_type": "unlimited_ocr"}, where="test")
    return DeepseekOcr(config).with_options(RunOptions(**options))


def quiet(what: str, done: int, total: int) -> None:
    """No progress."""
