"""A mistake of a family's reader is noticed: transformers reads the same file by itself, and the two are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final

import pytest

from costproof.configs.config import NativeConfig
from costproof.ledger.errors import CostproofError, Incomplete
from costproof.ledger.workload import NOT_COMPARED
from costproof.models import native
from costproof.models.families.qwen3_moe import Qwen3MoeConfig
from costproof.models.known import KNOWN
from costproof.models.native import Native
from costproof.models.reader_check import ConfigFile, check_reader, differences, written
from costproof.models.registry import TARGETS, load_target
from costproof.run.proof_pieces import carry_out_piece
from costproof.tracers import cache
from tests.support.running import costproof

CONFIGS: Final = Path(__file__).with_name("configs")
VENDOR: Final = Path(__file__).parents[1] / "data" / "vendor-config.json"
OURS: Final = [p.name for p in TARGETS.ours if isinstance(load_target(p.name), Native)]
FAMILIES: Final = sorted({*OURS} - {known.name for known in KNOWN})

PUBLISHED: Final = {
    "BERT-base": "bert-base", "DeepSeek-V2-Lite": "deepseek-v2-lite", "DeepSeek-V3": "deepseek-v3",
    "LLaVA-1.5-7b-hf": "llava-1.5-7b", "Llama-3.1-70B": "llama-3.1-70b", "Llama-3.1-8B": "llama-3.1-8b",
    "Mixtral-8x7B": "mixtral-8x7b", "Qwen2.5-7B": "qwen2.5-7b", "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen3-30B-A3B-FP8": "qwen3-30b-a3b", "Qwen3-32B-FP8": "qwen3-32b", "Qwen3-8B": "qwen3-8b",
    "gpt-oss-120b": "gpt-oss-120b", "gpt-oss-20b": "gpt-oss-20b",
}  # fmt: skip
"""Published file -> the model that is registered with its sizes."""
OTHERWISE: Final = {"qwen2.5-7b": {"max_position_embeddings"}}
"""Registered with the context of the base model; the file is that of the instructed one, without YaRN."""

SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 4096,
}  # fmt: skip
YARN: Final = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
ENCODER: Final = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
FILES: Final[dict[str, dict[str, Any]]] = {
    "gemma3, a pattern": {"model_type": "gemma3_text", **SMALL, "sliding_window": 64, "sliding_window_pattern": 2},
    "qwen2, yarn beyond the positions": {"model_type": "qwen2", **SMALL, "rope_scaling": YARN},
    "qwen3, windows of the last layers": {
        "model_type": "qwen3", **SMALL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
    },
    "vit, a number of labels": {"model_type": "vit", **ENCODER, "architectures": ["ViTModel"], "num_labels": 5},
    "llama of another name": {"model_type": "my_llama", "architectures": ["LlamaForCausalLM"], **SMALL},
    "qwen2, a window in no layer": {
        "model_type": "qwen2", **SMALL, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3,
    },
    "qwen2, null for a window": {"model_type": "qwen2", **SMALL, "use_sliding_window": True, "sliding_window": None},
    "qwen3-moe, every other layer": {
        "model_type": "qwen3_moe", **SMALL, "num_experts_per_tok": 2, "mlp_only_layers": [1], "decoder_sparse_step": 2,
    },
    "gemma2, another scale": {"model_type": "gemma2", **SMALL, "query_pre_attn_scalar": 99},
    "gpt2, null": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_inner": None},
    "vit, lists of sides": {"model_type": "vit", **ENCODER, "image_size": [32, 32], "patch_size": [8, 8]},
    "clip without a projection": {"model_type": "clip_vision_model", **ENCODER, "projection_dim": 7},
    "distilbert, sines": {
        "model_type": "distilbert", "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
        "sinusoidal_pos_embds": True,
    },
    "llava, tied by its decoder, a layer from the front": {
        "model_type": "llava", "image_token_index": 60, "image_seq_length": 16, "vision_feature_layer": 1,
        "text_config": {"model_type": "llama", **SMALL, "tie_word_embeddings": True},
        "vision_config": {"model_type": "clip_vision_model", **ENCODER, "image_size": 28, "patch_size": 14},
    },
}  # fmt: skip
"""Forms of files that the published ones do not have."""


def of_file(file: Path) -> list[tuple[str, str, str]]:
    target: Any = load_target(f"hf:{file}")
    return list(differences(target.file)) if isinstance(target, Native) and target.file else []


def test_transformers_reads_published_files_as_we_do() -> None:
    found = {file.stem: of_file(file) for file in CONFIGS.glob("*.json") if "vendor" not in file.name}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_transformers_reads_other_forms_as_we_do(data: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(data))
    target = load_target(f"hf:{tmp_path}")
    assert isinstance(target, Native)
    assert of_file(tmp_path) == []


def test_a_file_of_the_vendor() -> None:
    target: Any = load_target("deepseek-ocr", config_path=VENDOR)
    assert list(differences(target.file)) == []
    read = json.loads(target.file.text)
    read["vision_config"]["width"]["clip-l-14-224"]["layers"] += 1
    found = list(differences(ConfigFile.of(read, target.config, VENDOR)))
    assert found == [("vision_config.encoder_config.num_hidden_layers", "25", "24")]


@pytest.mark.parametrize("name", OURS)
def test_files_that_transformers_writes_of_registered_models(name: str) -> None:
    target: Any = load_target(name)
    assert list(differences(written(target.config))) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_drawn_configurations(name: str) -> None:
    target: Any = load_target(name)
    for piece in target.proof(8, 0).pieces:
        check_reader(written(piece.target.config))


@pytest.mark.parametrize(("file", "name"), PUBLISHED.items())
def test_registered_sizes_are_the_published_ones(file: str, name: str) -> None:
    target: Any = load_target(name)
    path = CONFIGS / f"{file}.json"
    data, read = json.loads(path.read_text()), target.from_file(path)
    data.pop("architectures", None)  # BERT-base names the class without a head
    config = replace(target.config, waived=read.config.waived)
    found = {key for key, *_ in differences(ConfigFile.of(data, config, path))}
    assert found == OTHERWISE.get(name, set())


Mistake = Callable[[dict[str, Any]], dict[str, Any]]
"""What a wrong reader takes a file for."""


def without_key(key: str) -> Mistake:
    return lambda data: {k: v for k, v in data.items() if k != key}


def with_value(key: str, value: Callable[[dict[str, Any]], Any]) -> Mistake:
    return lambda data: {**data, key: value(data)}


MISTAKES: Final[dict[str, tuple[dict[str, Any], Mistake, str]]] = {
    "the wrong key": (
        {"model_type": "qwen3_moe", **SMALL, "moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2},
        with_value("moe_intermediate_size", lambda d: d["intermediate_size"]),
        "moe_intermediate_size: transformers 16",
    ),
    "a key that is ignored": (
        {"model_type": "llama", **SMALL, "attention_bias": True}, without_key("attention_bias"),
        "attention_bias: transformers true",
    ),
    "a wrong default": (
        {"model_type": "mixtral", **SMALL, "num_local_experts": 4},
        with_value("num_experts_per_tok", lambda d: d.get("num_experts_per_tok", 1)),
        "num_experts_per_tok: transformers 2",
    ),
    "two keys swapped": (
        {"model_type": "t5", "d_model": 32, "d_ff": 48, "d_kv": 8, "num_heads": 4, "num_layers": 2, "vocab_size": 64},
        lambda d: {**d, "d_model": d["d_ff"], "d_ff": d["d_model"]},
        "d_ff: transformers 48",
    ),
    "a layer too few": (
        {"model_type": "bert", **ENCODER, "vocab_size": 64, "max_position_embeddings": 64},
        with_value("num_hidden_layers", lambda d: d["num_hidden_layers"] - 1),
        "num_hidden_layers: transformers 3",
    ),
    "tied tables inverted": (
        {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
        with_value("tie_word_embeddings", lambda d: not d["tie_word_embeddings"]),
        "tie_word_embeddings: transformers true",
    ),
    "a window that is ignored": (
        {"model_type": "mistral", **SMALL, "sliding_window": 8}, with_value("sliding_window", lambda d: None),
        "sliding_window: transformers 8",
    ),
    "heads that share the width, though the file has a width": (
        {"model_type": "gemma", **SMALL},
        with_value("head_dim", lambda d: d["hidden_size"] // d["num_attention_heads"]),
        "head_dim: transformers 12",
    ),
    "classes that are not counted": (
        {"model_type": "vit", **ENCODER, "image_size": 32, "architectures": ["ViTForImageClassification"],
         "num_labels": 5},
        without_key("num_labels"),
        "num_labels: transformers 5",
    ),
    "a width that follows by default": (
        {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 40, "vocab_size": 64},
        without_key("n_inner"),
        "n_inner: transformers 40",
    ),
}  # fmt: skip
"""Kind of mistake -> the file, what the reader takes it for, and what the message has to name."""


def plant(monkeypatch: pytest.MonkeyPatch, config: Any, mistake: Mistake) -> None:
    """Make the reader of a family take each file for another."""
    right = config.read.__func__

    def wrong(cls: type[NativeConfig], data: Any, problems: list[Any]) -> Any:
        return right(cls, mistake(data), problems)

    monkeypatch.setattr(config, "read", classmethod(wrong))


@pytest.mark.parametrize(("data", "mistake", "named"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_of_a_reader_is_named(
    data: dict[str, Any], mistake: Mistake, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(data))
    target: Any = load_target(f"hf:{tmp_path}")
    plant(monkeypatch, type(target.config), mistake)
    done = costproof("report", f"hf:{tmp_path}", "--sources", "analytic,static", "-q", "-o", "out", cwd=tmp_path)
    assert done.code == 3, done.stdout + done.stderr
    assert named in done.stdout
    for file in ("capture.json", "discrepancy.json", "discrepancy.md", "static_compute.json", "report.html"):
        assert named in (tmp_path / "out" / file).read_text(), file
    assert json.loads((tmp_path / "out" / "discrepancy.json").read_text())["verdict"] == "incomplete"


FORMULAS_ONLY: Final = {
    "fits": ("fits", "FILE", "--memory", "80GB"),
    "roofline": ("roofline", "FILE", "--on", "h100-sxm"),
    "sweep": ("sweep", "FILE", "--over", "batch=1,2"),
    "report": ("report", "FILE", "--sources", "analytic"),
    "diff": ("diff", "FILE", "FILE,batch=2"),
    "a family by name": ("fits", "qwen3-moe", "--config", "config.json", "--memory", "80GB"),
}  # fmt: skip
"""Commands that build no model."""


@pytest.mark.parametrize("arguments", FORMULAS_ONLY.values(), ids=FORMULAS_ONLY)
def test_a_mistake_of_a_reader_is_named_where_only_formulas_are_evaluated(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, mistake, named = MISTAKES["the wrong key"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    given = [a.replace("FILE", f"hf:{tmp_path}") for a in arguments]
    assert "transformers" not in costproof(*given, cwd=tmp_path).stderr  # a file that agreed is known in the cache
    plant(monkeypatch, Qwen3MoeConfig, mistake)
    done = costproof(*given, cwd=tmp_path)
    assert (done.code, named in done.stderr) == (3, True), done.stderr
    assert "$.moe_intermediate_size" in done.stderr


def test_a_file_that_agreed_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTAKES["the wrong key"][0]))
    monkeypatch.setenv("COSTPROOF_CACHE", str(tmp_path / "cache"))
    compared = list[ConfigFile]()
    monkeypatch.setattr(cache, "check_reader", compared.append)
    target: Any = load_target(f"hf:{tmp_path}")
    for _ in range(2):
        cache.check_configuration_file(target)
    assert compared == [target.file]
    other_file: Any = replace(target.file, read=replace(target.config, expert_width=17))
    cache.check_configuration_file(replace(target, file=other_file))
    for damaged in (tmp_path / "cache").iterdir():
        damaged.write_bytes(b"")
    cache.check_configuration_file(target)
    assert compared == [target.file, other_file, target.file]


@pytest.mark.parametrize("arguments", FORMULAS_ONLY.values(), ids=FORMULAS_ONLY)
def test_without_transformers_it_is_said_that_the_file_was_not_compared(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTAKES["the wrong key"][0]))
    given = [a.replace("FILE", f"hf:{tmp_path}") for a in arguments]
    for module in (native, cache):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    in_files = {"report": ["-o", "out"], "sweep": ["-o", "rows.json"]}
    forms = [[], in_files.get(arguments[0], ["-f", "json"])]
    for done in (costproof(*given, *form, cwd=tmp_path) for form in forms):
        assert done.code == (3 if "report" in arguments else 0), done.stderr  # of one source
        written_files = "".join(f.read_text() for f in tmp_path.glob("**/*.json"))
        assert NOT_COMPARED in " ".join((done.stdout + done.stderr + written_files).split())
    if arguments[0] in in_files:
        file = tmp_path / ("rows.json" if arguments[0] == "sweep" else "out/static_compute.json")
        assert NOT_COMPARED in file.read_text()


@pytest.mark.parametrize(("data", "mistake", "named"), MISTAKES.values(), ids=MISTAKES)
def test_a_truncated_model_is_compared_whole(
    data: dict[str, Any], mistake: Mistake, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(data))
    right: Any = load_target(f"hf:{tmp_path}")
    cut = replace(right.options, layers=1)
    assert right.with_options(cut).native_arguments()
    plant(monkeypatch, type(right.config), mistake)
    wrong: Any = load_target(f"hf:{tmp_path}")
    with pytest.raises(Incomplete) as caught:
        wrong.with_options(cut).native_arguments()
    assert named in str(caught.value)


def test_overrides_are_no_mistakes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTAKES["the wrong key"][0]))
    target: Any = load_target(f"hf:{tmp_path}")
    changed = target.with_keys({"activation": "relu", "expert_width": 24}).native_arguments()
    assert (changed["hidden_act"], changed["moe_intermediate_size"]) == ("relu", 24)


def test_a_key_that_two_fields_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Reader and class have the table of keys in common.
    data = MISTAKES["the wrong key"][0]
    (tmp_path / "config.json").write_text(json.dumps(data))
    monkeypatch.setattr(Qwen3MoeConfig, "keys", {**Qwen3MoeConfig.keys, "expert_width": "intermediate_size"})
    assert ("moe_intermediate_size", "16", "768") in of_file(tmp_path)


def test_a_mistake_of_a_reader_in_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = load_target("qwen3-moe")
    draw = next(p for p in target.proof(1, 0).pieces if p.phase == "draws")
    plant(monkeypatch, Qwen3MoeConfig, MISTAKES["the wrong key"][1])
    with pytest.raises(Incomplete, match="moe_intermediate_size"):
        carry_out_piece(draw)


UNUSED: Final = {"sliding_window", "text_config.sliding_window"}
"""Keys that have no effect where no layer has a window, or where it is as long as the context."""


def leaves(data: dict[str, Any], within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        yield from leaves(value, (*within, key)) if isinstance(value, dict) else (((*within, key), value),)


def other(value: Any) -> Any:
    """A value of the same kind that a wrong reader may take; the same where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 8 if value else 1
    return value[::-1] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_that_is_misread_is_noticed(name: str) -> None:
    target: Any = load_target(name)
    config: Any = next(p.target for p in target.proof(1, 3).pieces if p.phase == "draws").config
    file, unnoticed, tried = written(config), set(), 0
    for path, value in leaves(json.loads(file.text)):
        data = json.loads(file.text)
        reduce(getitem, path[:-1], data)[path[-1]] = other(value)
        try:
            read = type(config).of(data, Path("a file"))
        except CostproofError:
            continue
        if read.normalised() != file.read.normalised():
            tried += 1
            unnoticed |= set() if list(differences(replace(file, read=read))) else {".".join(path)}
    assert unnoticed <= UNUSED
    assert tried > 3
