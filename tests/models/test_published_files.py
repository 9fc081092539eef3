"""Configurations as they were published: each is read without an edit, cut to few layers, or refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

import costproof
from costproof.ledger.errors import Problems
from costproof.ledger.run import RunOptions
from costproof.models.generic.huggingface import HuggingFace
from costproof.models.generic.module import GenericTarget
from costproof.models.registry import load_target
from costproof.views.describe import model_line

FILES: Final = {file.stem: file for file in sorted(Path(__file__).with_name("configs").glob("*.json"))}
REFUSED: Final = "llava-v1.5-13b-vendor"
"""Its sizes stand where the class reads none: the keys are named."""
# Words of the line that every text has, for the rows of which each shows something of its own.
BUILT: Final = {
    "DBRX": ("DbrxForCausalLM of transformers", "own code not run"),
    "DeepSeek-V3.2": ("4 of 61 layers (2 asked: one of each kind of layer)", "(MTP): num_nextn_predict_layers"),
    "Jamba-Mini-1.6": ("JambaForCausalLM of transformers", "5 of 32 layers (2 asked"),
    "Kimi-K2": ("counted as the type of its architecture: model_type", "2 of 61", "own code not run"),
    "Mamba-Codestral-7B": ("keys that nothing reads: intermediate_size, time_step_init_scheme, time_step_scale",),
    "MiniMax-M2.5": ("(MTP): mtp_transformer_layers, num_mtp_modules, use_mtp", "own code not run"),
    "Nemotron-3-Nano-30B-NVFP4": ("6 of 52 layers (2 asked", "own code not run"),
    "Phi-3.5-mini": ("Phi3ForCausalLM of transformers", "own code not run"),
    "Qwen3-Coder-480B": ("cut to decoder layers 2 of 62",),
    "gpt-oss-20b": ("native, published configuration",),
    "Llama-3.1-70B": ("native, published configuration",),
    "Llama-2-7b": ("native, configuration",),
}


def _cut(name: str) -> Any:
    return load_target(f"hf:{FILES[name]}").with_options(RunOptions(layers=2))  # type: ignore[attr-defined]


def test_all_files_are_there() -> None:
    assert len(FILES) == 51


@pytest.mark.parametrize("name", [name for name in FILES if name != REFUSED])
def test_a_published_file_is_read(name: str) -> None:
    target = load_target(f"hf:{FILES[name]}")
    if isinstance(target, GenericTarget):
        assert isinstance(target.maker, HuggingFace)
        # Nothing of the file is lost on the way: its own sizes are those of the class's configuration.
        sizes, own = target.maker.config().to_dict(), json.loads(FILES[name].read_text(encoding="utf-8"))
        text = own.get("text_config", own)
        width = next(text[key] for key in ("hidden_size", "d_model", "n_embd") if key in text)
        assert width in {v for part in (sizes, sizes.get("text_config") or {}) for v in part.values() if type(v) is int}
    else:
        assert "changed" not in model_line(target.info())


@pytest.mark.parametrize("name", BUILT)
def test_what_is_said_of_a_published_file(name: str) -> None:
    line = model_line(_cut(name).info())
    assert [words for words in BUILT[name] if words not in line] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in FILES if name not in (*BUILT, REFUSED)])
def test_a_published_file_is_built(name: str) -> None:
    cut = _cut(name)
    cut.check(cut.workload())
    assert "; cut to " in model_line(cut.info()).replace(", cut to ", "; cut to ")


def test_flat_keys_of_llava_are_named() -> None:
    with pytest.raises(Problems) as caught:
        load_target(f"hf:{FILES[REFUSED]}").info()
    told = str(caught.value)
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"):
        assert f"$.text_config.{key}" in told


@pytest.mark.usefixtures("one_process")
def test_a_rotation_that_asks_for_the_largest_position_is_counted_on_shapes(tmp_path: Path) -> None:
    """As InternVL3 has it: within its context it is the usual one."""
    file = tmp_path / "config.json"
    olmo: dict[str, Any] = {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
        "max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    }  # fmt: skip
    file.write_text(json.dumps(olmo), encoding="utf-8")
    report = costproof.report(f"hf:{file}", seq_len=8, sources=("static", "dynamic"))
    # Of each of 8 + 1 tokens: four projections (4 and 2 heads of 8), an MLP of three, the head; scores and values of 8
    # times 8 pairs, and of 9 in the step, each with 4 heads of 8.
    token = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 32 * 64)
    assert report.discrepancy.verdict == "exact"
    assert report.figures.totals["flops"] == 9 * token + 2 * 2 * (8 * 8 + 9) * 32


def test_a_warning_of_transformers_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Llama 4 has equal factors for high and low frequencies: 86 lines, one for each copy of its configuration."""
    target = load_target(f"hf:{FILES['Llama-4-Scout']}")
    assert isinstance(target, GenericTarget)
    assert isinstance(target.maker, HuggingFace)
    for _ in range(3):
        target.maker.config().to_dict()
    assert capfd.readouterr().err.count("high_freq_factor field must be greater") <= 1


def test_the_tower_of_qwen3_vl_is_counted_at_its_published_size() -> None:
    """Its features go into several layers of the decoder, at places that only numbers tell: a run on shapes has none.

    9 of its 27 blocks, until one gives features: a patch embedding of 16 x 16 x 2 pixels, a table of 2,304 places,
    blocks of 4 products with biases and 2 norms, a merger, and another one for the features of block 8.
    """
    cut = _cut("Qwen3-VL-8B")
    run = cut.workload()
    assert cut.info().stages == ("visual", "prefill", "decode")
    assert run.arguments["pixel_values"] == "bfloat16[196,1536]"  # 14 x 14 patches of 3 x 2 x 16 x 16 numbers
    tower = cut.build(run).model.visual
    wide, inner, merged, out = 1152, 4304, 4 * 1152, 4096
    block = 4 * wide * wide + 4 * wide + 2 * wide * inner + inner + wide + 4 * wide
    merger = merged * merged + merged + merged * out + out
    parts = 1536 * wide + wide + 2304 * wide + 9 * block + (merger + 2 * wide) + (merger + 2 * merged)
    assert sum(p.numel() for p in tower.parameters()) == parts


def test_a_text_alone_of_a_model_that_can_also_see() -> None:
    cut = _cut("Devstral-Small-2-24B-FP8")
    with pytest.raises(Problems) as caught:
        cut.workload(seq_len=64)
    assert "--image-size 0, which leaves only the text" in str(caught.value)
    run = cut.workload(seq_len=64, image_size=0)
    assert (run.text_tokens, run.arguments) == (64, {"input_ids": "int64[1,64]"})
    assert [call.stage for call in cut.invocations(run)] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Falcon-40b", "the class caches keys and values of 128 heads; the configuration names 8"),
        ("Llama-4-Scout", "the class runs all 16 experts for every token; the configuration names 1"),
        ("Qwen3-Next-80B-A3B", None),
        ("MPT-7b", None),
    ],
)
def test_what_a_class_does_beyond_its_configuration_is_noted(name: str, words: str | None) -> None:
    cut = _cut(name)
    run = cut.workload()
    notes = [note for job in cut.export_jobs(cut.build(run), run) for note in job.notes if "the class" in note]
    assert len(notes) == (words is not None)
    assert all(note.startswith(words or "") for note in notes)
