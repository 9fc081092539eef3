"""The small model of :mod:`tests.tracers.small` as a full target, formulas included, for real runs."""

from __future__ import annotations

import copy
from typing import Any

from costproof.ledger.run import RunOptions
from costproof.models.families.deepseek_ocr.config import parse_config
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from tests.tracers.small import CONFIG


def deep_config() -> dict[str, Any]:
    """Return the small configuration with a third layer in SAM and in the decoder."""
    deep = copy.deepcopy(CONFIG)
    deep["vision_config"]["sam_config"]["num_hidden_layers"] = deep["text_config"]["num_hidden_layers"] = 3
    return deep


def small_ocr(*, deep: bool = False, **options: Any) -> DeepseekOcr:
    """Return the small model with run options; ``deep``: as :func:`deep_config`, so that layers can be cut."""
    config = parse_config({**(deep_config() if deep else CONFIG), "model_type": "unlimited_ocr"}, where="test")
    return DeepseekOcr(config).with_options(RunOptions(**options))


def quiet(what: str, done: int, total: int) -> None:
    """No progress."""
