"""The families of decoders: three sources agree on small configurations, with all that each has of its own."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import CONFIG_MAPPING

import costproof
from costproof.compare.compare import compare
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models import families
from costproof.models.decoding.config import SIZES as REQUIRED
from costproof.models.decoding.config import WindowedConfig, shortest
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.deepseek_v2 import DeepseekV2
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.families.gemma import Gemma
from costproof.models.families.gemma2 import Gemma2
from costproof.models.families.gemma3 import Gemma3
from costproof.models.families.gpt2 import Gpt2
from costproof.models.families.gpt_oss import GptOss
from costproof.models.families.llama import Llama
from costproof.models.families.mistral import Mistral
from costproof.models.families.mixtral import Mixtral
from costproof.models.families.qwen2 import Qwen2
from costproof.models.families.qwen3 import Qwen3
from costproof.models.families.qwen3_moe import Qwen3Moe
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.reports.summary import summary_text
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.run.proof_pieces import carry_out_piece
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

SIZES: Final = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 4096,
}  # fmt: skip
MIXED: Final = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

# Family, its file beside the sizes, and the run: a window of 8 keys is filled by the prompt, one of 64 is not.
CASES: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "qwen2": ("qwen2", {"tie_word_embeddings": True}, {"batch": 2, "attention": "eager"}),
    "qwen2 with windows": ("qwen2", {**MIXED, "use_sliding_window": True}, {"logits": "last"}),
    "qwen3": ("qwen3", {"attention_bias": True}, {"batch": 2, "dtype": "float32"}),
    "qwen3 with windows, eager": ("qwen3", {**MIXED, "use_sliding_window": True}, {"attention": "eager", "batch": 2}),
    "mistral, window not filled": ("mistral", {"sliding_window": 64}, {}),
    "mistral, window filled": ("mistral", {"sliding_window": 9}, {"batch": 2, "logits": "last"}),
    "mistral, no window": ("mistral", {"sliding_window": None}, {"attention": "eager"}),
    # As its first files have it, which mean the tanh form.
    "gemma": ("gemma", {"hidden_act": "gelu"}, {"batch": 2}),
    "gemma, heads wider than the model": ("gemma", {"hidden_size": 40, "num_attention_heads": 6}, {"batch": 2}),
    "gemma with biases, eager": (
        "gemma", {"attention_bias": True, "tie_word_embeddings": False}, {"attention": "eager", "logits": "last"},
    ),
    "gemma2": ("gemma2", MIXED, {"batch": 2}),
    "gemma2 without caps": (
        "gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "sliding_window": 64}, {},
    ),
    "gemma3": ("gemma3_text", MIXED, {"batch": 2}),
    "gemma3, caps, eager": (
        "gemma3_text",
        {"sliding_window": 64, "sliding_window_pattern": 2, "final_logit_softcapping": 30.0, "attention_bias": True},
        {"attention": "eager", "logits": "last"},
    ),
}  # fmt: skip
ALWAYS: Final = (
    "qwen2", "qwen3 with windows, eager", "mistral, window filled", "gemma", "gemma3, caps, eager",
)  # fmt: skip
"""One of each family (Gemma 2 is Gemma 3 with caps); the others in ``make test-thorough``."""
SOURCES: Final = ("analytic", "static", "dynamic")
GPT2: Final = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 40, "vocab_size": 64, "n_positions": 128,
}  # fmt: skip
LOADED: Final = [
    import_module(f"{families.__name__}.{m.name}").TARGET for m in iter_modules(families.__path__) if not m.ispkg
]
TARGETS: Final[list[type[CausalTarget[Any]]]] = [made for made in LOADED if issubclass(made, CausalTarget)]
"""Every decoder of ``models/families``; its file is all that makes it one of these."""
OF_OTHER_FILES: Final = (Llama, Mixtral, Qwen3Moe, DeepseekV2, DeepseekV3, GptOss)
"""Families whose sources are compared in ``test_llama``, ``test_mixtures`` and ``test_latents``."""

NEW: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    made.__name__: (made.model_types[0], {}, {"batch": 2})
    for made in TARGETS
    if made not in OF_OTHER_FILES
    and made.model_types[0] not in {GPT2["model_type"], *(case[0] for case in CASES.values())}
}
"""A case of the usual sizes for a family that has none in ``CASES``."""
CASES.update(NEW)

DRAWN: Final = (Qwen2, Mistral, Gemma3, Gpt2, Mixtral)
"""Biases, a window, two kinds of layers, learnt positions, experts; draws of the others are thorough."""


def exact(file: dict[str, Any], run: dict[str, Any], folder: Path, sources: tuple[str, ...] = SOURCES) -> Capture:
    """Count a configuration of a family in several ways, in a run of 20 tokens and 2 steps unless it says else."""
    path = folder / "config.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    name = file["model_type"].removesuffix("_text").replace("_", "-")
    settings = {"text_tokens": 20, "new_tokens": 2, "sources": sources, **run}
    capture: Capture = costproof.capture(name, config=path, **settings)
    compared = compare(capture)
    located = sorted(compared.findings, key=lambda f: f.error_expression is None)
    wrong = [f"{f.id}: {dict(f.values)}, {f.error_expression}" for f in located if f.status != "exact"]
    assert (compared.verdict, len(wrong)) == ("exact", 0), "\n".join(wrong[:10])
    assert {len(f.values) for f in compared.findings} == {len(sources)}
    return capture


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, (*NEW, *ALWAYS)))
def test_three_sources_agree(case: str, tmp_path: Path, thorough: bool) -> None:
    """The run goes through one code for all of these families: where time is short, one of them is run."""
    model_type, more, run = CASES[case]
    # One layer of each kind.
    kinds = {"layer_types": more["layer_types"][:2]} if "layer_types" in more else {}
    layers = 2 if thorough or kinds or "sliding_window_pattern" in more else 1
    file = {"model_type": model_type, **SIZES, **more, **kinds, "num_hidden_layers": layers}
    exact(file, run, tmp_path, SOURCES if thorough or case in (*NEW, ALWAYS[-1]) else SOURCES[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param({}, id="sdpa", marks=pytest.mark.thorough),
        pytest.param({"attention": "eager", "batch": 2, "logits": "last"}, id="eager"),
    ],
)
def test_three_sources_agree_on_gpt2(run: dict[str, Any], tmp_path: Path, *, thorough: bool) -> None:
    exact(GPT2, run, tmp_path, SOURCES if thorough else SOURCES[:2])


def test_attention_in_a_window_by_hand() -> None:
    # 4 heads of 12. The prompt computes all 20 x 20 pairs; a step sees 8 keys, 7 of the cache and its own.
    target = Mistral(Mistral.default().config.__class__(32, 48, 1, 4, 2, 12, 64, 128, window=8))
    ledger = evaluate_formulas(target, target.workload(text_tokens=20, new_tokens=3))
    flops = {n.stage: n.cost("flops") for n in ledger.nodes if n.module.endswith("self_attn") and n.cost("flops")}
    assert flops == {"prefill": 4 * 4 * 12 * 20 * 20, "decode": 3 * 4 * 4 * 12 * 8}
    # 7 keys and values of 2 heads stay of the prompt, 2 bytes an element; the steps leave it at that.
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 7 * 2 * 2 * 12 * 2
    assert ledger.stage_total("decode", "kv_cache_bytes") == 0


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
def test_a_run_without_steps_is_its_prefill(family: type[CausalTarget[Any]]) -> None:
    target = family.default()
    alone, before = (target.workload(text_tokens=20, new_tokens=steps) for steps in (0, 1))
    assert [call.stage for call in target.invocations(alone)] == ["prefill"]
    counted = count_sources(Prepared(target, alone, ("analytic",))).capture
    assert counted.target.stages == counted.ledger("analytic").stages == ("prefill",)
    whole = evaluate_formulas(target, before)
    for metric in ("flops", "params", "weight_bytes", "kv_cache_bytes"):
        assert counted.ledger("analytic").total(metric) == whole.stage_total("prefill", metric)


def test_a_run_without_steps_is_exact(tmp_path: Path) -> None:
    capture = exact({**GPT2, "n_layer": 1}, {"new_tokens": 0}, tmp_path)
    assert capture.target.stages == ("prefill",)
    # Of each of 20 tokens 4 matrices; of scores and sums 20 x 20 pairs; and the logits.
    matrices = 32 * 96 + 32 * 32 + 2 * 32 * 40
    flops = 2 * 20 * matrices + 4 * 20 * 20 * 32 + 2 * 20 * 32 * 64
    assert [capture.ledger(source).total("flops") for source in SOURCES] == [flops] * 3


@pytest.mark.parametrize(
    ("prompt", "steps", "runs"), [(4, 3, True), (5, 3, False), (6, 1, True), (6, 2, False), (7, 3, True)]
)
def test_steps_do_not_cross_the_end_of_a_window(prompt: int, steps: int, runs: bool) -> None:
    # A window of 8: after 7 tokens a step sees 8 keys and a mask.
    target = Mistral(Mistral.default().config.__class__(32, 48, 1, 4, 2, 12, 64, 128, window=8))
    if runs:
        target.workload(text_tokens=prompt, new_tokens=steps)
        return
    with pytest.raises(Problems, match="end of the window"):
        target.workload(text_tokens=prompt, new_tokens=steps)


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
def test_draws_are_configurations_that_the_classes_take(family: type[CausalTarget[Any]]) -> None:
    made = family.default().proof(20, 3)
    runs = [piece for piece in made.pieces if piece.sizes]
    assert len(runs) == 20
    for run in runs:
        target = run.target
        assert isinstance(target, family)
        assert target.config.contradictions() == []
        assert family.from_normalised(target.normalised()).config == target.config
        window = target.decoder.window
        # What the prompt does to the window, the tokens in the cache do as well.
        assert run.sizes is not None
        assert not window or (run.workload.text_tokens >= window - 1) == (run.sizes["P"] >= window - 1)


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
def test_a_file_of_another_family_is_refused(family: type[CausalTarget[Any]], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mamba", **SIZES}), encoding="utf-8")
    with pytest.raises(Problems, match="cannot be used") as caught:
        family.from_file(file)
    assert any(isinstance(p, BadInput) and p.where == "$.model_type" for p in caught.value.problems)


@pytest.mark.parametrize(
    ("changes", "pattern", "window"),
    [
        ({}, "wwwwwf", 512),
        ({"sliding_window_pattern": 2}, "wf", 512),
        ({"layer_types": ["full_attention"] * 3}, "f", 512),
        ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, "wf", 512),
    ],
)
def test_which_layers_have_a_window(changes: dict[str, Any], pattern: str, window: int) -> None:
    problems: list[CostproofError] = []
    file = {"model_type": "gemma3_text", **SIZES, "sliding_window": 512, **changes}
    config = type(Gemma3.default().config).read(file, problems)
    assert problems == []
    layers = (pattern * 3)[:3]
    assert config.windows() == tuple(window if kind == "w" else 0 for kind in layers)


@pytest.mark.parametrize("family", [Llama, Qwen2, Qwen3, Mistral, Gemma, Gemma2, Gemma3, Mixtral, Qwen3Moe, GptOss])
def test_heads_need_not_divide_the_width_where_the_class_has_no_need(family: type[CausalTarget[Any]]) -> None:
    kind, problems = type(family.default().config), list[CostproofError]()
    file = {**SIZES, "hidden_size": 40, "num_attention_heads": 6}
    file |= {k: n for k, n in (("num_experts_per_tok", 2), ("moe_intermediate_size", 16)) if k in kind.keys.values()}
    kind.read({"model_type": kind.model_type, **file}, problems)
    try:
        CONFIG_MAPPING[kind.model_type](**file)
        refused = False
    except StrictDataclassClassValidationError:
        refused = True
    assert [str(p.where) for p in problems if isinstance(p, BadInput)] == ["$.num_attention_heads"] * refused


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
def test_a_key_that_is_left_out_means_what_it_means_to_the_class(family: type[CausalTarget[Any]]) -> None:
    config, problems = type(family.default().config), list[CostproofError]()
    sizes = {key: 64 if field == "hidden" else 32 for field, key in config.keys.items() if field in REQUIRED}
    bare = CONFIG_MAPPING[config.model_type]().to_dict()
    if config is DeepseekV3Config:  # whose class has 128 heads of keys where a file names none, of values too
        sizes |= {"num_key_value_heads": 32}
    # Where the class itself has no number of experts that a token passes, a file must have one.
    sizes |= {key: 6 for field, key in config.keys.items() if field == "top_k" and bare[key] is None}
    found = config.read({"model_type": config.model_type, **sizes}, problems)
    assert problems == []
    theirs, ours = (CONFIG_MAPPING[config.model_type](**given).to_dict() for given in (sizes, found.native()))
    keys = {*config.keys.values(), "layer_types", *(("sliding_window",) if any(found.windows()) else ())}
    # Without a number in a file that leaves them out: four widths, the width's share of a head, one group of experts.
    worked_out = {key for key in ("n_inner", "head_dim", "n_group", "topk_group") if theirs.get(key) is None}
    assert {k: ours.get(k) for k in keys - worked_out} == {k: theirs.get(k) for k in keys - worked_out}
    assert getattr(found, "pattern", "") == getattr(family.default().config, "pattern", "")


def test_kinds_of_layers_that_are_none() -> None:
    problems: list[CostproofError] = []
    config = type(Gemma3.default().config)
    config.read({"model_type": "gemma3_text", **SIZES, "layer_types": ["chunked_attention"] * 3}, problems)
    assert [p.where for p in problems if isinstance(p, BadInput)] == ["$.layer_types"]


def test_the_shortest_pattern() -> None:
    assert [shortest(x) for x in ("wwwwwfwwww", "ffff", "wfwf", "ffw", "")[:4]] == ["wwwwwf", "f", "wf", "ffw"]


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
def test_formulas_are_of_the_class_that_transformers_builds(family: type[CausalTarget[Any]]) -> None:
    built = family.default().native()[0].__name__
    assert family.describes(built)
    assert not family.describes(built.replace("ForCausalLM", "Model").replace("LMHeadModel", "Model"))


def test_a_class_without_formulas_is_counted_without_them(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    data = {"model_type": "llama", "architectures": ["LlamaModel"], **SIZES, "num_hidden_layers": 1}
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(Problems, match="no formulas for this class"):
        Llama.from_file(file)
    report = costproof.report(f"hf:{file}", seq_len=4, sources=("static", "dynamic"))
    # A table of 64 words, a layer of four projections (width 32, 4 and 2 heads of 12), an MLP of 48 and two norms, and
    # a norm: without the output projection, 64 x 32 more.
    layer = 2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48 + 2 * 32
    assert (report.discrepancy.verdict, report.figures.totals["params"]) == ("exact", 64 * 32 + layer + 32)
    assert "Note: LlamaModel is a base model: no head (lm_head, classifier) is counted" in summary_text(report)


def test_every_family_says_which_files_it_reads() -> None:
    """The type that transformers has for the class, whatever the family is called."""
    assert len(TARGETS) >= 13
    for family in TARGETS:
        built, _ = family.default().native()
        assert (built.config_class.model_type,) == family.model_types
    assert issubclass(type(Qwen2.default().config), WindowedConfig)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(t, marks=() if t in (Qwen2, Mistral, Gemma3, Mixtral, Gpt2) else pytest.mark.thorough)
        for t in TARGETS
    ],
    ids=lambda t: t.__name__,
)
def test_a_draw_holds(family: type[CausalTarget[Any]]) -> None:
    draws = [piece for piece in family.default().proof(8, 5).pieces if piece.sizes]
    targets = {piece.id: piece.target for piece in draws}
    filled = [p for p in draws if isinstance(t := targets[p.id], family) and t.decoder.fills_window(p.workload)]
    found = carry_out_piece((filled or draws)[0])
    assert found.counterexamples == ()
    assert min(found.rows.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_prepared_masks_and_caches_give_what_the_model_gives_with_its_own(attention: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma3_text", **SIZES, **MIXED}), encoding="utf-8")
    target = Gemma3.from_file(file).with_options(RunOptions(device="cpu"))
    workload = target.workload(text_tokens=20, new_tokens=3, dtype="float32", attention=attention)
    model: Any = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    ids = torch.cat([run.kwargs["input_ids"] for run in runs], dim=1)
    logits = [run.expected for run in runs if run.expected is not None]
    # The class of transformers itself, which makes its masks of the 23 tokens in one prompt.
    native: Any = type(model).__mro__[1]
    with torch.no_grad():
        own = native.forward(model, input_ids=ids).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), own)


@pytest.mark.parametrize(
    ("family", "asked", "kept", "words"),
    [
        ("gemma3", 2, 6, "6 of 26 (2 asked: one of each kind of layer)"),  # five with a window, then one without
        ("gpt-oss", 1, 2, "2 of 36 (1 asked: one of each kind of layer)"),
        ("deepseek-v3", 2, 4, "4 of 61 (2 asked: one of each kind of layer)"),  # three dense, then experts
        ("llama", 1, 1, "1 of 32"),
    ],
)
def test_a_cut_keeps_one_layer_of_each_kind_and_says_so(family: str, asked: int, kept: int, words: str) -> None:
    target: Any = load_target(family)
    cut = target.with_options(RunOptions(layers=asked))
    assert (cut.config.layers, cut.info().cut) == (kept, {"decoder layers": words})
