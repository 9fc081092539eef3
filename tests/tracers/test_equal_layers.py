"""A static ledger from exports of a few layers equals that of the whole export; unequal layers are exported whole."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import sympy

from costproof.algebra.symbols import parse
from costproof.ledger.node import Ledger
from costproof.ledger.progress import silent
from costproof.ledger.workload import Workload
from costproof.models.generic.huggingface import HuggingFace
from costproof.models.registry import load_target
from costproof.opgraph.liveness import MemoryProgram, timeline
from costproof.tracers import equal_layers, static
from costproof.tracers.cache import cached_export
from costproof.tracers.equal_layers import ledger_of_equal_layers
from costproof.tracers.peaks import calls
from costproof.tracers.static import exported_ledger, static_ledger

FALCON: Final = {
    "model_type": "falcon", "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2, "vocab_size": 64,
    "num_hidden_layers": 6, "new_decoder_architecture": True,
}  # fmt: skip
HYBRID: Final = {
    "model_type": "falcon_h1", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "mamba_d_head": 8, "mamba_d_ssm": 16, "mamba_d_state": 4, "mamba_n_heads": 2,
    "mamba_n_groups": 1, "mamba_chunk_size": 8, "vocab_size": 64, "num_hidden_layers": 7,
}  # fmt: skip
MOE: Final = {
    "model_type": "ernie4_5_moe", "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_hidden_layers": 8, "vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "moe_num_experts": 4,
    "moe_k": 2, "moe_layer_start_index": 2, "moe_num_shared_experts": 1,
}  # fmt: skip
TOWERS: Final = {
    "model_type": "paligemma", "projection_dim": 16, "image_token_index": 60,
    "text_config": {
        "model_type": "gemma", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 7, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 6,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14, "projection_dim": 16,
    },
}  # fmt: skip
KINDS: Final = {
    "model_type": "granitemoehybrid", "hidden_size": 16, "intermediate_size": 8, "shared_intermediate_size": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "mamba_d_head": 8, "mamba_d_state": 4,
    "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "position_embedding_type": "nope", "num_hidden_layers": 8,
    "layer_types": 2 * ["mamba", "attention", "attention", "mamba"],
}  # fmt: skip
EQUAL: Final = [
    pytest.param(MOE, id="other layers first"),
    pytest.param(TOWERS, id="two stacks", marks=pytest.mark.thorough),
    pytest.param(HYBRID, id="a note with layers", marks=pytest.mark.thorough),
    pytest.param(KINDS, id="two kinds"),
]  # fmt: skip
DIFFERENT: Final[dict[str, dict[str, Any]]] = {
    "few layers": {**FALCON, "num_hidden_layers": 4},
    "a pattern": {
        "model_type": "olmo3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8, "vocab_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 8,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def of_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models take the way of those with many layers."""
    monkeypatch.setattr(equal_layers, "_FEWEST", 3)
    monkeypatch.setenv("COSTPROOF_CACHE", "")


def target_of(data: dict[str, Any], folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps(data))
    return load_target(f"hf:{folder}")


def counted(target: Any, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> tuple[Ledger, Ledger]:
    """The ledger as it is made, and that of the whole export."""
    found = static_ledger(target, workload)
    with monkeypatch.context() as patch:
        patch.setattr(static, "ledger_of_equal_layers", lambda *_: None)
        return found, static_ledger(target, workload)


def is_extrapolated(ledger: Ledger) -> bool:
    return any(equal_layers.COUNTED_FROM in note for note in ledger.notes)


@pytest.mark.parametrize("data", EQUAL)
def test_ledgers_are_equal(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(data, tmp_path)
    found, whole = counted(target, target.workload(), monkeypatch)
    assert is_extrapolated(found)
    assert not is_extrapolated(whole)
    mine, theirs = ({n.id: n for n in ledger.nodes} for ledger in (found, whole))
    assert [*mine] == [*theirs]
    for name, node in theirs.items():
        assert (mine[name].costs, mine[name].owner, mine[name].role) == (node.costs, node.owner, node.role), name
        assert mine[name].exprs.keys() == node.exprs.keys()
        for metric, text in node.exprs.items():
            assert sympy.expand(parse(text) - parse(mine[name].exprs[metric])) == 0, (name, metric)
    notes = tuple(note for note in found.notes if equal_layers.COUNTED_FROM not in note)
    assert replace(found, nodes=(), notes=notes) == replace(whole, nodes=())


def without_whole_export(target: Any, **settings: Any) -> tuple[Ledger | None, int]:
    """The ledger from truncated models, if there is one, and the number of those that were exported."""
    exported: list[Ledger] = []
    workload = target.workload(**settings)

    def count(one: Any, built: Any) -> Ledger:
        values = {(i.stage, i.id): i.symbols for i in one.invocations(workload)}
        jobs = one.export_jobs(built, workload)
        exported.append(exported_ledger(one, workload, built, jobs, one.info().stages, values))
        return exported[-1]

    return ledger_of_equal_layers(target, workload, target.build(workload), count), len(exported)


@pytest.mark.parametrize("data", DIFFERENT.values(), ids=DIFFERENT)
def test_other_models_are_exported_whole(data: dict[str, Any], tmp_path: Path) -> None:
    assert without_whole_export(target_of(data, tmp_path)) == (None, 0)


def test_a_layer_that_works_otherwise_by_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither parameters nor attributes show what a layer does with its index: a run of the whole model does.
    from transformers.models.falcon import modeling_falcon

    forward, build = modeling_falcon.FalconMLP.forward, HuggingFace.make

    def twice(self: Any, x: Any) -> Any:
        found = forward(self, x)
        return forward(self, x) + found if getattr(self, "number", None) == 4 else found

    def numbered(self: Any, *given: Any) -> Any:
        made: Any = build(self, *given)
        for i, layer in enumerate(made.module.transformer.h):
            object.__setattr__(layer.mlp, "number", i)
        return made

    right, _ = without_whole_export(target_of(FALCON, tmp_path), new_tokens=0)
    assert right is not None
    monkeypatch.setattr(modeling_falcon.FalconMLP, "forward", twice)
    monkeypatch.setattr(HuggingFace, "make", numbered)
    other = {**FALCON, "vocab_size": 72}  # models are memoized by their configuration
    assert without_whole_export(target_of(other, tmp_path), new_tokens=0) == (None, 2)


# --- Live peaks ------------------------------------------------------------------------------------------------------

PROMPT: Final = Workload("prompt", 5, 0, 1, "bfloat16", "sdpa")
GRANITE: Final = {
    "model_type": "granitemoehybrid", "hidden_size": 16, "intermediate_size": 8, "shared_intermediate_size": 8,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "mamba_d_head": 8, "mamba_d_state": 4,
    "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "position_embedding_type": "nope", "num_hidden_layers": 8, "layer_types": 4 * ["mamba", "attention"],
}  # fmt: skip
JAMBA: Final = {
    "model_type": "jamba", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "vocab_size": 64,
    "num_key_value_heads": 1, "mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "use_mamba_kernels": False, "attn_layer_offset": 1, "attn_layer_period": 2, "num_hidden_layers": 8,
}  # fmt: skip
QWEN3_NEXT: Final = {
    "model_type": "qwen3_next", "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "vocab_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4,
    "shared_expert_intermediate_size": 8, "num_experts_per_tok": 2, "full_attention_interval": 2,
    "num_hidden_layers": 8,
}  # fmt: skip
DEEPSEEK_V4: Final = {
    "model_type": "deepseek_v4", "hidden_size": 32, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "vocab_size": 64, "num_experts_per_tok": 2, "q_lora_rank": 16, "num_attention_heads": 2, "head_dim": 16,
    "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": 4, "hc_mult": 2, "hc_sinkhorn_iters": 2, "num_hash_layers": 0, "num_hidden_layers": 7,
    "compress_ratios": [0, *3 * [4, 128]],
}  # fmt: skip
OLMO3: Final = {
    "model_type": "olmo3", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 16, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 4,
}  # fmt: skip


def layers_of(data: dict[str, Any], kinds: str) -> dict[str, Any]:
    """A configuration whose layers are of the kinds that the letters name: m or l, and a."""
    names = {"m": "mamba", "l": "linear_attention", "a": "attention" if "m" in kinds else "full_attention"}
    return {**data, "num_hidden_layers": len(kinds), "layer_types": [names[kind] for kind in kinds]}


TWO_STEPS: Final = replace(PROMPT, new_tokens=2)
CHUNK: Final = replace(PROMPT, inputs={"past": 3})
COMPOSED: Final = [
    pytest.param({**FALCON, "num_hidden_layers": 5}, TWO_STEPS, 2, id="equal layers"),
    pytest.param(FALCON, TWO_STEPS, 2, id="an even number", marks=pytest.mark.thorough),
    pytest.param(MOE, replace(PROMPT, attention="eager"), 4, id="other layers first", marks=pytest.mark.thorough),
    pytest.param(HYBRID, TWO_STEPS, 2, id="states", marks=pytest.mark.thorough),
    pytest.param(HYBRID, CHUNK, 2, id="chunk", marks=pytest.mark.thorough),
    pytest.param(layers_of(GRANITE, "mmamammam"), TWO_STEPS, 5, id="granite, no period"),
    pytest.param(JAMBA, TWO_STEPS, 4, id="jamba", marks=pytest.mark.thorough),
    pytest.param(QWEN3_NEXT, TWO_STEPS, 4, id="qwen3-next", marks=pytest.mark.thorough),
    # Two chunks of 64 tokens; the last layer is of the kind that is not the last of the truncated model.
    pytest.param(layers_of(QWEN3_NEXT, "lalalal"), replace(TWO_STEPS, text_tokens=70), 4, id="two chunks"),
    pytest.param(layers_of(QWEN3_NEXT, "lalalal"), CHUNK, 4, id="qwen3-next, chunk", marks=pytest.mark.thorough),
    # A step reads no state of a compressor that has too few tokens, but gets and returns all of them.
    pytest.param(DEEPSEEK_V4, replace(TWO_STEPS, attention="eager"), 5, id="deepseek-v4"),
    pytest.param(
        {**DEEPSEEK_V4, "num_hash_layers": 2, "num_hidden_layers": 9, "compress_ratios": [0, *4 * [4, 128]]},
        replace(TWO_STEPS, text_tokens=16, batch=2, attention="eager"), 6, id="deepseek-v4, hashes",
        marks=pytest.mark.thorough,
    ),
    # Each cache of a window has a number, which the graph copies outside of the layers.
    pytest.param(OLMO3, TWO_STEPS, 8, id="windows", marks=pytest.mark.thorough),
]  # fmt: skip


@pytest.mark.thorough
def test_a_step_without_costs_in_symbols_is_exported_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth step of a compressor does more, which has no closed sum: in 3 layers, and so in 5 of 11."""
    exports: list[tuple[str, int, bool]] = []
    export = cached_export

    def noting(job: Any) -> Any:
        layers = sum(type(m).__name__ == "DeepseekV4DecoderLayer" for m in job.module.modules())
        exports.append((job.id, layers, bool(job.sizes)))
        return export(job)

    monkeypatch.setattr(static, "cached_export", noting)
    deep = {**DEEPSEEK_V4, "num_hidden_layers": 11, "compress_ratios": [0, *5 * [4, 128]]}
    target = target_of(deep, tmp_path)
    workload = target.workload(seq_len=8, new_tokens=1)
    found = static_ledger(target, workload)
    assert is_extrapolated(found)
    assert exports == [
        ("prefill", 3, True), ("step", 3, True), ("step", 3, False), ("prefill", 5, True), ("step", 5, False),
    ]  # fmt: skip
    with monkeypatch.context() as patch:  # as if each model were the first
        patch.setattr(static, "cost_job", partial(apart, static.cost_job))
        assert static_ledger(target, workload) == found
    assert exports[5:] == [*exports[:4], ("step", 5, True), exports[4]]


def apart(cost_job: Any, *args: Any, refused: object = None, **kwargs: Any) -> Any:
    return cost_job(*args, **kwargs)


@pytest.mark.parametrize(("data", "workload", "kept"), COMPOSED)
def test_live_peaks_are_those_of_the_whole_export(
    data: dict[str, Any], workload: Workload, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_layers, "_TIMES", 0)
    target = target_of(data, tmp_path)
    model = target.build(workload)
    cut = equal_layers.truncated_by_kinds(target, workload, model)
    assert cut is not None
    assert [stack.kept for stack in cut[1]] == [kept]
    whole = [job for _, job in calls.calls(target, workload)]
    found = calls._from_kinds(target, workload, model, whole, silent)
    assert found is not None
    # Not the peak alone: the bytes after all that the graph allocates and releases, once it has its inputs.
    assert [*map(held, found)] == [held(calls._program(job)) for job in whole]


def held(program: MemoryProgram) -> list[int]:
    return timeline(program, inputs_held=False).held()[len(program.inputs) - 1 :]


@pytest.mark.thorough
def test_formulas_of_live_peaks_are_those_of_the_whole_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_layers, "_TIMES", 0)
    target = target_of(FALCON, tmp_path)
    found = calls.released_forms(target, PROMPT)
    monkeypatch.setattr(calls, "truncated_by_kinds", lambda *_: None)
    assert [call.form for call in found] == [call.form for call in calls.released_forms(target, PROMPT)]


def test_a_deep_layer_that_holds_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Layers 0 and 1 of 6 are alike, which the truncated model has.
    from transformers.models.falcon import modeling_falcon

    forward, build = modeling_falcon.FalconMLP.forward, HuggingFace.make

    def holding(self: Any, x: Any) -> Any:
        more = x.new_zeros(7) if self.number == 5 else None
        return forward(self, x) if more is None else forward(self, x) + more.sum()

    def numbered(self: Any, *given: Any) -> Any:
        made: Any = build(self, *given)
        for i, layer in enumerate(made.module.transformer.h):
            object.__setattr__(layer.mlp, "number", i)
        return made

    monkeypatch.setattr(equal_layers, "_TIMES", 0)
    monkeypatch.setattr(modeling_falcon.FalconMLP, "forward", holding)
    monkeypatch.setattr(HuggingFace, "make", numbered)
    target = target_of({**FALCON, "vocab_size": 80}, tmp_path)
    model = target.build(PROMPT)
    whole = [job for _, job in calls.calls(target, PROMPT)]
    assert calls._from_kinds(target, PROMPT, model, whole, silent) is None
    monkeypatch.setattr(calls, "events_by_layer", lambda *_: {})  # the run alone contradicted
    assert calls._from_kinds(target, PROMPT, model, whole, silent) is not None


def test_models_with_few_layers_of_a_kind_are_exported_whole(tmp_path: Path) -> None:
    # Two layers replace the export of 4 or more.
    assert equal_layers.truncated_by_kinds(target_of({**FALCON, "num_hidden_layers": 3}, tmp_path), PROMPT) is None
    assert equal_layers.truncated_by_kinds(target_of({**FALCON, "num_hidden_layers": 4}, tmp_path), PROMPT)
