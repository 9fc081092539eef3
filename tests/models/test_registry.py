"""The registry of targets: lazy, open to others, and strict about names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from costproof.ledger.errors import BadInput
from costproof.models import registry
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.plugins import Plugin

VENDOR = Path(__file__).parents[1] / "data" / "vendor-config.json"
SNAPSHOT = Path(__file__).parents[1] / "vendor_like"


def test_our_own_target() -> None:
    target = registry.load_target("deepseek-ocr")
    assert target == DeepseekOcr()
    read = registry.load_target("deepseek-ocr", VENDOR)
    assert isinstance(read, DeepseekOcr)
    assert read.stored.dtype == "bfloat16"  # which its file names
    assert replace(read, stored=target.stored, file=target.file) == target


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(BadInput) as caught:
        registry.load_target("deepseekocr")
    assert {"deepseek-ocr", "gemma2", "gpt2"} <= set(str(caught.value.expected).split(", "))
    assert caught.value.fix == "did you mean deepseek-ocr?"


class Reader(DeepseekOcr):
    """A second target that takes every folder for its own."""

    @staticmethod
    def reads(folder: Path) -> bool:
        return True

    @staticmethod
    def folder_holds() -> str:
        return "anything"


def test_a_folder_that_no_target_reads(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no target reads this folder") as caught:
        registry.load_target(str(tmp_path), trusted=True)
    assert str(caught.value.expected).endswith("modeling_deepseekv2.py (deepseek-ocr)")


def test_a_folder_that_two_targets_read(monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(registry.TARGETS, ours=(*registry.TARGETS.ours, Plugin("mine", "a second one", lambda: Reader)))
    monkeypatch.setattr(registry, "TARGETS", two)
    with pytest.raises(BadInput, match="two targets read this folder") as caught:
        registry.load_target(str(SNAPSHOT), trusted=True)
    assert caught.value.got == "deepseek-ocr and mine"


def test_loading_a_target_imports_no_torch() -> None:
    code = (
        "import sys; from costproof.models.registry import load_target; "
        "from costproof.models.families.deepseek_ocr.config import make_workload; "
        "t = load_target('deepseek-ocr'); t.invocations(make_workload()); t.checkpoint(); t.info(); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
