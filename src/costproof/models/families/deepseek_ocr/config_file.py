"""Configuration files: the vendor's or the native one, told apart by their keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.files import read_configuration
from costproof.models.checkpoint import without, without_dtype
from costproof.models.config_reader import Section
from costproof.models.families.deepseek_ocr import native_config, vendor_config
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.consistency import contradictions


def load_config(path: Path) -> OcrConfig:
    """Read a configuration file, the vendor's or the native one.

    Raises:
        Problems: every key that is missing, unknown, out of range, or contradicts another.
        BadInput: the file is not a JSON object, or neither kind of configuration.
    """
    return parse_config(read_configuration(path), where=str(path))


def parse_config(data: object, *, where: str) -> OcrConfig:
    """:func:`load_config` for a value that is already read; ``where`` names it in error messages."""
    if not isinstance(data, dict):
        raise BadInput("a configuration must be a JSON object", where=f"$ in {where}", expected="a JSON object")
    vendor = any(k in data for k in ("language_config", "projector_config"))
    native = "text_config" in data or data.get("model_type") == "unlimited_ocr"
    if vendor == native:
        raise BadInput(
            "this is not a configuration of DeepSeek-OCR",
            where=f"$ in {where}",
            expected="vision_config with language_config and projector_config (the vendor's config.json), or "
            "model_type 'unlimited_ocr' with vision_config and text_config (transformers' native one)",
            got="keys " + (", ".join(sorted(str(k)[:40] for k in data)[:8]) or "none"),
        )
    top = Section(without_dtype(without(data)), "$", [])
    config = vendor_config.read_vendor(top) if vendor else native_config.read_native(top)
    config = replace(config, waived=top.finish(strict=True))
    problems = top.problems or contradictions(config, (vendor_config if vendor else native_config).PATHS)
    if problems:
        raise Problems(f"the configuration {where} cannot be used", problems)
    return config
