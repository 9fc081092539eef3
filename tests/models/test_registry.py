"""The registry of targets: lazy, open to others, and strict about names."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from costproof.ledger.errors import BadInput
from costproof.models import registry
from costproof.models.deepseek_ocr.config import default_config
from costproof.models.deepseek_ocr.target import DeepseekOcr

VENDOR = Path(__file__).parents[1] / "data" / "vendor-config.json"


def test_our_own_target() -> None:
    target = registry.load_target("deepseek-ocr")
    assert target == DeepseekOcr()
    assert registry.load_target("deepseek-ocr", VENDOR) == target


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(BadInput) as caught:
        registry.load_target("deepseekocr")
    assert caught.value.expected == "deepseek-ocr"
    assert caught.value.fix == "did you mean 'deepseek-ocr'?"


def test_others_may_add_targets() -> None:
    point = EntryPoint("mine", "costproof.models.deepseek_ocr.target:DeepseekOcr", registry.GROUP)
    found = registry.targets([point])
    assert set(found) == {"deepseek-ocr", "mine"}
    assert found["mine"].load() is DeepseekOcr


def test_a_clash_names_both_owners() -> None:
    point = EntryPoint("deepseek-ocr", "other.place:Target", registry.GROUP)
    with pytest.raises(BadInput) as caught:
        registry.targets([point])
    assert caught.value.where == "deepseek-ocr"
    assert caught.value.got == "costproof and other.place:Target"


def test_a_broken_entry_point_says_whose_it_is() -> None:
    point = EntryPoint("mine", "no_such_module_of_anybody:Target", registry.GROUP)
    with pytest.raises(BadInput, match="cannot be loaded") as caught:
        registry.targets([point])["mine"].load()
    assert caught.value.where == "mine"


def test_a_spec_builds_the_same_target_elsewhere() -> None:
    data = json.loads(json.dumps(default_config().normalised()))
    for spec in (
        registry.TargetSpec("deepseek-ocr"),
        registry.TargetSpec("deepseek-ocr", config_path=str(VENDOR)),
        registry.TargetSpec("deepseek-ocr", config_data=data),
    ):
        assert pickle.loads(pickle.dumps(spec)).load() == DeepseekOcr()


def test_loading_a_target_imports_no_torch() -> None:
    code = (
        "import sys; from costproof.models.registry import load_target; "
        "from costproof.models.deepseek_ocr.workloads import make_workload; "
        "t = load_target('deepseek-ocr'); t.invocations(make_workload()); t.checkpoint(); t.info(); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
