"""How models are named, and what is found under a name; nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.models.families.llama import Llama
from costproof.models.generic.address import Address, address
from costproof.models.generic.huggingface import HuggingFace, numbers
from costproof.models.generic.inputs import example_inputs, other_dtypes
from costproof.models.generic.makers import Case
from costproof.models.generic.module import GenericTarget
from costproof.models.registry import load_target
from tests.models.test_llama import SMALL

ERNIE = {
    "model_type": "ernie", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 4,
}  # fmt: skip


def written(folder: Path, data: dict[str, Any], name: str = "config.json") -> str:
    """The address of a configuration."""
    (folder / name).write_text(json.dumps(data), encoding="utf-8")
    return f"hf:{folder / name}"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("deepseek-ocr", Address("name", "deepseek-ocr")),
        ("unknown", Address("name", "unknown")),
        ("a/b", Address("folder", "a/b")),
        ("hf:bert", Address("configuration", "bert")),
        ("hf:a/config.json", Address("configuration", "a/config.json")),
        ("a/b.py:make", Address("file", "a/b.py", "make")),
        ("a.b:make", Address("module", "a.b", "make")),
    ],
)
def test_an_address(text: str, read: Address) -> None:
    assert address(text, ("deepseek-ocr",)) == read


def test_a_registered_name_is_one_whatever_it_looks_like() -> None:
    assert address("a.b:make", ("a.b:make",)) == Address("name", "a.b:make")


@pytest.mark.parametrize(("text", "fix"), [("hf:", "hf:CONFIG.json"), ("m.json", "hf:m.json names the model")])
def test_half_an_address(text: str, fix: str) -> None:
    with pytest.raises(BadInput) as caught:
        address(text)
    assert fix in str(caught.value)


def test_a_folder_of_reports_is_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "capture.json").write_text('{"schema": "costproof/capture"}')
    with pytest.raises(BadInput, match="this folder names no target") as caught:
        address(str(tmp_path))
    assert caught.value.got == "a folder of reports"
    (tmp_path / "config.json").write_text("{}")  # a snapshot with reports in it
    assert address(str(tmp_path)).kind == "folder"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("hf:bert", "bert"),
        ("hf:a/bert/config.json", "bert"),
        ("hf:a/b.json", "b"),
        ("m.py:make", "m-make"),
        ("x", "x"),
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("hf:a/qwen2.5-7b.json", "qwen2.5-7b"),
        ("a/Llama-3.1-8B", "Llama-3.1-8B"),
    ],
)
def test_a_short_word_for_it(text: str, label: str) -> None:
    assert address(text).label == label


@pytest.mark.parametrize(
    ("text", "name", "seen"),
    [
        ("m.py:make", "m:make", "../../m.py:make"), ("a/m.py:make", "m:make", "../../a/m.py:make"),
        ("pkg.m:make", "pkg.m:make", "pkg.m:make"), ("hf:a/bert/config.json", "bert", "hf:../../a/bert/config.json"),
        ("hf:bert", "bert", "hf:bert"), ("x", "x", "x"), ("./snapshot", "snapshot", "../../snapshot"),
    ],
)  # fmt: skip
def test_what_it_is_called_and_where_it_is_from_a_folder_of_reports(text: str, name: str, seen: str) -> None:
    found = address(text)
    assert (found.name, found.seen_from(Path("out/x"))) == (name, seen)


def test_a_family_serves_the_configurations_that_it_declares(tmp_path: Path) -> None:
    found = load_target(written(tmp_path, SMALL))
    assert isinstance(found, Llama)
    assert found.config.hidden == SMALL["hidden_size"]
    assert load_target(f"hf:{tmp_path}") == found
    assert found.workload(seq_len=7) == found.workload(text_tokens=7)
    with pytest.raises(Problems, match="cannot be run"):
        found.workload(seq_len=7, text_tokens=8)


def test_no_family_and_the_class_is_built_that_the_configuration_names(tmp_path: Path) -> None:
    for named, what in (("ErnieForMaskedLM", "ErnieForMaskedLM"), ("ErnieForTokenClassification",) * 2):
        found = load_target(written(tmp_path, {**ERNIE, "architectures": [named]}))
        assert isinstance(found, GenericTarget)
        assert found.info().implementation == f"{what} of transformers"
        assert type(found.build(found.workload())).__name__ == what


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["ErnieModel"], ("ErnieModel is a base model: no head (lm_head, classifier) is counted",)),
        ([], ("the configuration names no class: ErnieForMaskedLM is counted",)),
        (["NoSuchClass"], ("transformers has no class NoSuchClass: ErnieForMaskedLM is counted",)),
        (["ErnieForMaskedLM"], ()),
    ],
)
def test_what_was_chosen_is_said(named: list[str], said: tuple[str, ...], tmp_path: Path) -> None:
    found = load_target(written(tmp_path, {**ERNIE, "architectures": named}))
    assert isinstance(found, GenericTarget)
    job = found.export_jobs(found.build(found.workload()), found.workload())[0]
    assert tuple(job.notes) == said


def test_a_configuration_of_a_part_names_the_class_of_the_whole(tmp_path: Path) -> None:
    """As files of models that were cut out of one with vision: the class of the text is built, with its 2 layers."""
    part = {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForConditionalGeneration"], "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 40,
    }  # fmt: skip
    found = load_target(written(tmp_path, part))
    assert isinstance(found, GenericTarget)
    model = found.build(found.workload())
    assert type(model).__name__ == "Gemma3ForCausalLM"
    said = "the configuration is that of a part of Gemma3ForConditionalGeneration: Gemma3ForCausalLM is counted"
    assert found.export_jobs(model, found.workload())[0].notes[0] == said


def test_code_of_its_own_must_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')", encoding="utf-8")
    named = written(tmp_path, {**ERNIE, "model_type": "own", "auto_map": {"AutoModel": "own.Own"}})
    with pytest.raises(BadInput, match="names code of its own") as caught:
        load_target(named)
    assert "--trust-remote-code" in str(caught.value.fix)


OWN = """\
import torch
from transformers import PretrainedConfig, PreTrainedModel
class OwnConfig(PretrainedConfig):
    model_type = "own"
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(config.width, 6)
        self.post_init()
    def forward(self, x):
        return self.layer(x)
"""


def test_trusted_code_is_built_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    data = {"model_type": "own", "width": 5, "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}}
    found = load_target(written(tmp_path, data), trusted=True)
    assert isinstance(found, GenericTarget)
    run = found.workload(input="x=3x5:bfloat16")
    assert [s.shape for s in found.invocations(run)[0].inputs] == [(3, 5)]
    assert found.info().implementation == f"OwnModel, the code of {tmp_path.name}"
    (job,) = found.export_jobs(found.build(run), run)
    assert job.notes == (f"ran the code in {tmp_path.name}",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"hidden_size": 3}, "not a Hugging Face configuration"),
        ({"model_type": "bertt"}, "cannot read this configuration"),
        ({**ERNIE, "num_attention_heads": 5}, "cannot build this model"),
    ],
)
def test_configurations_that_are_none(data: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((BadInput, Incomplete), match=said):
        load_target(written(tmp_path, data)).info()


def test_what_a_model_does_not_take_is_told_with_what_it_takes(tmp_path: Path) -> None:
    found = load_target(written(tmp_path, ERNIE))
    with pytest.raises(BadInput, match="has no effect on this model") as caught:
        found.workload(image_size=224, new_tokens=3)
    assert caught.value.where == "--new-tokens, --image-size" or caught.value.where == "--image-size, --new-tokens"
    assert caught.value.expected == "--batch, --seq-len, --dtype, --attention, --input"
    with pytest.raises(Problems, match="cannot be run"):
        found.workload(seq_len=513)


def test_sizes_of_a_workload(tmp_path: Path) -> None:
    found = load_target(written(tmp_path, ERNIE))
    run = found.workload(batch=2, seq_len=7, dtype="float32", attention="eager")
    (call,) = found.invocations(run)
    assert call.symbols == {"B": 2, "S": 7}
    assert [s.shape for s in call.inputs] == [(2, 7)]
    assert (run.dtype, run.attention) == ("float32", "eager")
    assert found.workload().text_tokens == 512


def test_inputs_by_shape(tmp_path: Path) -> None:
    found = load_target(written(tmp_path, ERNIE))
    (call,) = found.invocations(found.workload(input="input_ids=2x9:int32,attention_mask=2x9"))
    assert [(s.shape, s.dtype) for s in call.inputs] == [((2, 9), "int32"), ((2, 9), "int64")]
    with pytest.raises(BadInput, match="cannot read this shape of an input"):
        found.workload(input="input_ids")


def test_an_input_that_forward_does_not_take() -> None:
    with pytest.raises(BadInput, match="forward has no such argument"):
        example_inputs(Case(nn.Linear(3, 4), 2, 5, 7, given="what=3x3"))
    (made,) = example_inputs(Case(nn.Linear(3, 4), 2, 5, 7, given="input=2x3")).args.values()
    assert (made.shape, made.dtype) == ((2, 3), torch.float32)
    with pytest.raises(Incomplete, match="inputs of this model are not known"):
        example_inputs(Case(nn.Linear(3, 4), 2, 5, 7))


def test_a_model_type_alone_has_its_default_configuration() -> None:
    llama = load_target("hf:llama")
    assert isinstance(llama, Llama)
    # transformers' own defaults are those of the 7B of the second generation.
    assert (llama.config.hidden, llama.config.layers, llama.config.vocab) == (4096, 32, 32000)
    ernie = load_target("hf:ernie")
    assert ernie.name == "ernie"
    assert isinstance(ernie, GenericTarget)


def test_numbers_of_a_table_whose_keys_are_numbers() -> None:
    table = {"projector_patch_to_query_dict": {1225: 128, "4900": 256}, "max_size": 9}
    assert numbers(table) == {"projector_patch_to_query_dict_1225": 128, "projector_patch_to_query_dict_4900": 256}


def test_of_two_models_for_a_head_the_first_is_built() -> None:
    made = HuggingFace(json.dumps({"model_type": "deit", "num_hidden_layers": 1}), "here").make(None, None)
    assert type(made.module).__name__ == "DeiTForImageClassification"  # the other one has a second token to tell by


MAMBA2 = {
    "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 16, "num_heads": 4, "head_dim": 8,
    "expand": 2, "n_groups": 1, "state_size": 4, "num_hidden_layers": 1, "vocab_size": 50, "chunk_size": 4,
}  # fmt: skip


def test_a_number_that_json_does_not_have_is_read_as_transformers_writes_it(tmp_path: Path) -> None:
    limit = [0.0, {"__float__": "Infinity"}]
    target: Any = load_target(written(tmp_path, {**MAMBA2, "time_step_limit": limit}))
    assert list(target.build(target.workload(seq_len=8)).config.time_step_limit) == [0.0, float("inf")]


def test_why_transformers_refuses_a_value_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"got: .*time_step_limit"):
        load_target(written(tmp_path, {**MAMBA2, "time_step_limit": "never"})).info()


class Doubles(nn.Module):
    """Takes tensors of any shape."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice as much."""
        return x * self.factor


def test_an_input_without_a_size_is_a_scalar() -> None:
    for given, dtype in (("x=:float64", torch.float64), ("x=", torch.float32)):
        made = example_inputs(Case(Doubles(), 1, 8, 4, given=given)).args["x"]
        assert (tuple(made.shape), made.dtype) == ((), dtype)


def test_an_input_of_another_dtype_than_the_parameters_is_noted() -> None:
    assert other_dtypes(Case(Doubles(), 1, 8, 4, given="x=2x3")) == ()
    assert other_dtypes(Case(Doubles(), 1, 8, 4, given="x=2x3:int64")) == ()
    (said,) = other_dtypes(Case(Doubles(), 1, 8, 4, given="x=2x3:bfloat16"))
    assert said.startswith("x is bfloat16, and no parameter is")


@pytest.mark.parametrize(
    ("text", "label"),
    [("hf:..", "above"), ("hf:.", "here"), ("hf:../config.json", "above"), ("hf:../..", None), ("hf:/", "model")],
)
def test_a_label_is_never_a_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, label: str | None
) -> None:
    here = tmp_path / "above" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert address(text).label == (label or tmp_path.name)
