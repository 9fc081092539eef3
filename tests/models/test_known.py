"""Known models: a name, a configuration, and the published number of parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.decoding.target import CausalTarget
from costproof.models.encoding.target import EncoderTarget
from costproof.models.families.t5 import T5
from costproof.models.image_text.target import ImageTextTarget
from costproof.models.known import KNOWN, Known
from costproof.models.registry import TARGETS, load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.views.describe import model_line

# Model pages of Hugging Face, "Model size" of the published tensors, and the counts in the papers' tables.
PUBLISHED = {
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "gpt2": 124_439_808,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-8b": 8_190_735_360,
    "llava-1.5-7b": 7_063_427_072,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    # Gemma, table 2: all but the embedding, 1,981,884,416 and 7,751,248,896; the files have 256,000 rows of that.
    "gemma-2b": 256_000 * 2048 + 1_981_884_416,
    "gemma-7b": 256_000 * 3072 + 7_751_248_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "distilbert-base": 66_362_880,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "xlm-roberta-base": 278_043_648,
    "xlm-roberta-large": 559_890_432,
    "clip-l-336": 303_507_456,
    "siglip-so400m": 428_225_600,
    "dinov2-l": 304_368_640,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
}

AnyTarget = CausalTarget[Any] | EncoderTarget[Any] | ImageTextTarget[Any] | T5


def native(name: str) -> tuple[AnyTarget, Workload]:
    """The target of that name, and a run of it: of a decoder one that fills its windows."""
    made = load_target(name)
    assert isinstance(made, CausalTarget | EncoderTarget | ImageTextTarget | T5)
    return made, made.workload(text_tokens=600) if isinstance(made, CausalTarget) else made.workload()


def decoder(name: str) -> CausalTarget:  # type: ignore[type-arg]
    """The target of that name."""
    made = load_target(name)
    assert isinstance(made, CausalTarget)
    return made


@pytest.mark.parametrize("name", [k.name for k in KNOWN])
def test_the_formulas_have_the_published_parameters(name: str) -> None:
    target, workload = native(name)
    (known,) = [k for k in KNOWN if k.name == name]
    assert evaluate_formulas(target, workload).total("params") == known.params


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_class_of_transformers_has_them_too(name: str) -> None:
    target, workload = native(name)
    model = target.build(workload)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]
    assert {k.name: k.params for k in KNOWN}.get(name, PUBLISHED[name]) == PUBLISHED[name]


def test_a_known_model_is_a_target() -> None:
    target = decoder("llama-3.2-1b")
    info = target.info()
    assert (info.name, info.changed) == ("llama-3.2-1b", {})
    assert info.symbols["text_hidden"] == 2048
    assert "llama-3.2-1b" in costproof.targets()
    assert "llama-3.2-1b" not in costproof.families()
    assert costproof.workloads("llama-3.2-1b") == costproof.workloads("llama")
    assert target.options.layers is None


def test_another_configuration_is_told_from_the_published_one(tmp_path: object) -> None:
    from dataclasses import replace

    target = decoder("llama-3.2-1b")
    assert replace(target, config=replace(target.config, tied=False)).info().changed == {
        "tied": "false, published true"
    }


def test_a_certificate_finds_the_model_again() -> None:
    target = decoder("qwen3-0.6b")
    factory = TARGETS.load("qwen3-0.6b")
    assert isinstance(factory, Known)
    again: object = factory.from_normalised(target.normalised())
    assert again == target


def test_a_name_that_is_nearly_known() -> None:
    with pytest.raises(BadInput, match="no such target") as caught:
        load_target("llama-3-8b")
    assert caught.value.fix == "did you mean llama-3.1-8b?"


def test_the_table_imports_nothing() -> None:
    code = (
        "import sys; from costproof.models.registry import TARGETS; TARGETS.all(); "
        "sys.exit(bool({'torch', 'transformers', 'sympy', 'costproof.models.families.llama'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("gpt-oss-20b", {}, ", published configuration"),
        ("llama-3.1-70b", {}, ", published configuration"),
        ("llama-3.1-70b", {"intermediate_size": 28}, "native, configuration"),
    ],
)
def test_an_untouched_file_is_not_called_changed(name: str, changes: dict[str, Any], word: str, tmp_path: Path) -> None:
    """Neither is one that the table does not list: nobody knows whether it is published."""
    config: Any = load_target(name).config  # type: ignore[attr-defined]
    file = tmp_path / "config.json"
    data = {"model_type": config.model_type, **config.native(), **changes}
    file.write_text(json.dumps(data), encoding="utf-8")
    for target in (load_target(f"hf:{file}"), load_target({"gpt-oss-20b": "gpt-oss"}.get(name, "llama"), file)):
        line = model_line(target.info())
        assert word in line
        assert "changed" not in line
    assert ("changed" in model_line(load_target(name, file).info())) is bool(changes)
