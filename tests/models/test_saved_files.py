"""Files that transformers saves of its own configurations are read as what they were made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from costproof.ledger.errors import BadInput, Problems
from costproof.models.families.qwen2 import Qwen2Config
from costproof.models.families.t5 import T5Config
from costproof.models.native import Native
from costproof.models.registry import TARGETS, load_target

OWN = [t for p in TARGETS.ours if isinstance((t := load_target(p.name)), Native) and hasattr(t, "model_types")]
NAMES = [target.name for target in OWN]
"""Targets whose files are read by their model type."""


def saved(folder: Path, config: Any) -> dict[str, Any]:
    """The file as the class of transformers writes it, of the file that a configuration of ours stands for."""
    native = AutoConfig.for_model(config.model_type, **config.native())
    native.architectures = [config.architecture]
    native.save_pretrained(folder)
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_file_is_read_as_what_it_was_made_of(name: str, tmp_path: Path) -> None:
    target: Any = load_target(name)
    saved(tmp_path, target.config)
    again: Any = load_target(f"hf:{tmp_path}")
    assert type(again) is type(target)
    assert replace(again.config, waived=()) == replace(target.config, waived=())


def test_all_families_with_a_class_of_transformers_are_tried() -> None:
    assert {"llama", "gemma", "gpt-oss", "deepseek-v3", "t5", "vit", "qwen3-8b", "xlm-roberta-base"} <= {*NAMES}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gpt2", {"n_special": 0, "predict_special_tokens": True, "task_specific_params": {"text": {}}}),
        ("qwen2.5-7b", {"use_mrope": False}),
        ("distilbert-base", {"finetuning_task": "sst-2", "output_past": True}),
        ("xlm-roberta-base", {"output_past": True}),
        ("llava-1.5-7b", {"vision_config": {"vocab_size": 32000}}),
        ("t5-small", {"dense_act_fn": "relu", "is_gated_act": False, "n_positions": 512}),
    ],
)
def test_keys_of_published_files_that_decide_nothing(name: str, keys: dict[str, Any], tmp_path: Path) -> None:
    target: Any = load_target(name)
    file = saved(tmp_path, target.config)
    for key, value in keys.items():
        file[key] = {**file[key], **value} if key in file and isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(file))
    again: Any = load_target(f"hf:{tmp_path}")
    assert replace(again.config, waived=()) == replace(target.config, waived=())


@pytest.mark.parametrize("scaled", [True, False])
def test_a_saved_t5_says_apart_whether_it_scales(scaled: bool, tmp_path: Path) -> None:
    # The class ties the words always, and keeps under another key what the file said about that.
    file = saved(tmp_path, T5Config(mlp="gated-gelu", scaled=scaled))
    assert (file["tie_word_embeddings"], file["scale_decoder_outputs"]) == (True, scaled)
    assert (file["dense_act_fn"], file["is_gated_act"]) == ("gelu_new", True)
    assert T5Config.load(tmp_path / "config.json").scaled is scaled


def test_a_window_that_is_not_in_use(tmp_path: Path) -> None:
    # transformers makes no mask for such a file: it needs the window.
    file = saved(tmp_path, Qwen2Config())
    assert file["layer_types"][:2] == ["full_attention", "full_attention"]
    (tmp_path / "config.json").write_text(json.dumps({**file, "layer_types": ["sliding_attention"] * 28}))
    with pytest.raises(Problems) as caught:
        Qwen2Config.load(tmp_path / "config.json")
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == ["$.layer_types"]
