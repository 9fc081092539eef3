"""Published totals of known models, in the forms in which they were published: bytes of files, figures of cards."""

from __future__ import annotations

from typing import Final

import pytest

from costproof.models.decoding.target import CausalTarget
from costproof.models.known import KNOWN
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas

# metadata.total_size of model.safetensors.index.json: bytes of all tensors, 2 an element.
INDEXED: Final = {
    "deepseek-ai/DeepSeek-V2": ("deepseek-v2", 471_482_869_760),
    "deepseek-ai/DeepSeek-V2-Lite": ("deepseek-v2-lite", 31_412_968_448),
    "google/gemma-2-9b-it": ("gemma-2-9b", 18_483_411_968),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", 141_107_412_992),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama-3.2-3b", 6_425_499_648),
    "mistralai/Mistral-7B-v0.3": ("mistral-7b-v0.3", 14_496_047_104),
    "mistralai/Mixtral-8x22B-v0.1": ("mixtral-8x22b", 281_241_268_224),
    "Qwen/Qwen2.5-72B-Instruct": ("qwen2.5-72b", 145_412_407_296),
    "Qwen/Qwen3-4B": ("qwen3-4b", 8_044_936_192),
    "Qwen/Qwen3-32B": ("qwen3-32b", 65_524_246_528),
    "Qwen/Qwen3-235B-A22B": ("qwen3-235b-a22b", 470_187_269_120),
}
# The same, of files that hold the tied table twice: 751,632,384 elements in the header of the one file of the first.
TWICE: Final = {
    "Qwen/Qwen3-0.6B": ("qwen3-0.6b", 2 * 751_632_384),
    "Qwen/Qwen3-1.7B": ("qwen3-1.7b", 4_063_479_808),
}
# Elements that the headers of the safetensors files add up to (the model pages' "Model size").
COUNTED: Final = {
    "clip-b-32": 87_456_000,
    "dinov2-b": 86_580_480,
    "gemma-3-270m": 268_098_176,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "qwen2.5-0.5b": 494_032_768,
}
# In billions: all parameters, and all but the tables of words (input and output), where the source says so.
CARDS: Final = {
    # OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, table 1.
    "gpt-oss-20b": ("20.91", ""),
    "gpt-oss-120b": ("116.83", ""),
    # Gemma Team 2024, Gemma 2, table 2; 2025, Gemma 3, table 1.
    "gemma-2-9b": ("", "8.324"),
    "gemma-3-1b": ("", "0.698"),
    # Model cards of Qwen2.5 and Qwen3: "Number of Parameters", "Number of Parameters (Non-Embedding)".
    "qwen2.5-0.5b": ("0.49", "0.36"),
    "qwen2.5-7b": ("", "6.53"),
    "qwen2.5-72b": ("72.7", ""),
    "qwen3-0.6b": ("0.6", "0.44"),
    "qwen3-1.7b": ("1.7", "1.4"),
    "qwen3-4b": ("4.0", "3.6"),
    "qwen3-8b": ("8.2", "6.95"),
    "qwen3-32b": ("32.8", "31.2"),
    "qwen3-30b-a3b": ("30.5", "29.9"),
    "qwen3-235b-a22b": ("235", "234"),
    # Model cards of Llama 3.2, and of Mixtral ("141B parameters").
    "llama-3.2-3b": ("3.21", ""),
    "mixtral-8x22b": ("141", ""),
}
NO_SOURCE: Final = {"llava-1.5-13b"}
"""Known models of which no published total to the last parameter was found."""


def params(target: CausalTarget) -> int:  # type: ignore[type-arg]
    """Parameters of a model, by the formulas, on a prompt that fills its windows."""
    return evaluate_formulas(target, target.workload(text_tokens=600)).total("params") or 0


def decoder(name: str) -> CausalTarget:  # type: ignore[type-arg]
    """The target of that name."""
    made = load_target(name)
    assert isinstance(made, CausalTarget)
    return made


@pytest.mark.parametrize("repository", [*INDEXED, *TWICE])
def test_the_bytes_of_the_published_files(repository: str) -> None:
    name, size = (INDEXED | TWICE)[repository]
    target = decoder(name)
    again = target.config.vocab * target.config.hidden if repository in TWICE else 0
    assert target.config.tied >= (repository in TWICE)
    assert 2 * (params(target) + again) == size


@pytest.mark.parametrize("name", COUNTED)
def test_the_elements_of_the_published_files(name: str) -> None:
    assert {known.name: known.params for known in KNOWN}[name] == COUNTED[name]


@pytest.mark.parametrize("name", CARDS)
def test_the_figures_of_cards_and_papers(name: str) -> None:
    target = decoder(name)
    total = params(target)
    tables = (1 if target.config.tied else 2) * target.config.vocab * target.config.hidden
    for said, ours in zip(CARDS[name], (total, total - tables), strict=True):
        assert said in ("", f"{ours / 1e9:.{len(said.partition('.')[2])}f}")


def test_every_known_model_is_held_against_a_published_total() -> None:
    from tests.models.test_known import PUBLISHED

    held = {name for name, _ in (*INDEXED.values(), *TWICE.values())} | COUNTED.keys() | PUBLISHED.keys()
    assert {known.name for known in KNOWN} - held == NO_SOURCE
