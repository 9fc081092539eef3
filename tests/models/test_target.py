"""The target as a whole: formulas, invocations and checkpoint fit each other."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import Problems
from costproof.ledger.run import RunOptions
from costproof.models.families.deepseek_ocr.config import ClipConfig, OcrConfig, make_workload
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.config import PageDecoderConfig, SamConfig
from costproof.models.pages.workload import page_structure
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.views.describe import model_line

WORKLOADS = ("base", "gundam:3x2", "text-only")


@pytest.mark.parametrize("preset", WORKLOADS)
def test_every_symbol_of_a_formula_has_a_value(preset: str) -> None:
    target, workload = DeepseekOcr(), make_workload(preset)
    fixed = target.info().symbols
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    ledger = target.formulas(workload)
    assert {(n.stage, n.invocation) for n in ledger.nodes if n.invocation} == set(values)
    dtype = {"b": 2}
    for node in ledger.nodes:
        known = {**fixed, **(values[node.stage, node.invocation] if node.invocation else dtype)}
        for expr in node.exprs.values():
            missing = {s.name for s in parse(expr).free_symbols} - set(known)
            assert not missing, node.id


def test_formulas_and_checkpoint_agree_on_every_module_but_the_one_never_run() -> None:
    target = DeepseekOcr()
    checkpoint = target.checkpoint()
    assert checkpoint is not None
    fixed = target.info().symbols
    analytic = {
        (n.stage, n.module): evaluate(parse(n.exprs["params"]), fixed)
        for n in target.formulas(make_workload()).nodes
        if "params" in n.exprs
    }
    published = {(n.stage, n.module): n.costs["params"] for n in checkpoint.nodes}
    never = ("clip", "model.vision_tower.vision_encoder.embeddings.patch_embedding")
    assert published.pop(never) == 1024 * 3 * 14 * 14
    assert analytic == published


def test_another_configuration_has_no_published_checkpoint() -> None:
    config = OcrConfig()
    assert DeepseekOcr(replace(config, text=replace(config.text, layers=11))).checkpoint() is None
    # The length of the context and the number of chosen experts leave the parameters as they are.
    assert DeepseekOcr(replace(config, text=replace(config.text, max_positions=99, topk=2))).checkpoint() is not None


def test_resampled_tables() -> None:
    """SAM's table is for 1024/16 = 64 patches a side; CLIP's for 224/14 = 16, which is 1024/64."""
    config = OcrConfig()
    (base,) = page_structure(config, make_workload("base")).views
    assert (base.sam_resampled, base.clip_resampled) == (False, False)
    base, crops = page_structure(config, make_workload("gundam")).views
    assert (crops.sam_resampled, crops.clip_resampled) == (True, True)
    # A SAM of 512 pixels and a CLIP of 10 x 10 patches: the other way round for crops of 640.
    other = replace(config, sam=SamConfig(image=512), clip=ClipConfig(image=140))
    base, crops = page_structure(other, make_workload("gundam")).views
    assert (base.sam_resampled, base.clip_resampled) == (True, True)
    assert (crops.sam_resampled, crops.clip_resampled) == (True, False)


def test_structure_follows_the_configuration() -> None:
    config = replace(
        OcrConfig(),
        sam=SamConfig(layers=3, global_layers=(0,)),
        clip=ClipConfig(layers=2),
        text=PageDecoderConfig(layers=5, dense_layers=4),
    )
    found = page_structure(config, make_workload("text-only", attention="eager", logits="last", experts="batched_mm"))
    assert found.views == ()
    assert (found.sam_layers, found.sam_global_layers, found.second_layers) == (3, (0,), 2)
    assert (found.text_layers, found.text_dense) == (5, 4)
    assert (found.attention, found.logits) == ("eager", "last")


def test_check_refuses_what_the_model_cannot_run() -> None:
    target, workload = DeepseekOcr(), make_workload()
    target.check(workload)
    with pytest.raises(Problems):
        target.check(replace(workload, text_tokens=9000))


def test_conventions_follow_the_workload() -> None:
    workload = make_workload(dtype="float32", attention="eager", logits="last", experts="batched_mm")
    conventions = DeepseekOcr().conventions(workload)
    assert (conventions.dtype, conventions.attention) == ("float32", "eager")
    assert (conventions.logits, conventions.expert_kernel) == ("last", "batched_mm")


def test_targets_travel_between_processes() -> None:
    target = DeepseekOcr()
    assert pickle.loads(pickle.dumps(target)) == target


def test_the_model_is_built_as_configured() -> None:
    config = replace(
        OcrConfig(),
        sam=SamConfig(hidden=16, layers=2, heads=2, mlp=24, image=128, window=3, global_layers=(1,), neck=8,
                      downsample=(8, 12)),
        clip=ClipConfig(hidden=12, layers=1, heads=2, mlp=8, image=28),
        text=PageDecoderConfig(hidden=20, layers=3, dense_layers=2, heads=2, kv_heads=1, intermediate=8, experts=4,
                               topk=2, moe_intermediate=6, vocab=50, max_positions=256),
        image_token=49,
    )  # fmt: skip
    target = DeepseekOcr(config)
    model = target.build(make_workload("tiny", config=config))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    # Relative positions of layer 1 (global: 128/16 patches a side) and layer 0 (windows of 3), heads of 8.
    assert shapes["model.vision_tower.sam_encoder.layers.1.attn.rel_pos_h"] == (2 * 8 - 1, 8)
    assert shapes["model.vision_tower.sam_encoder.layers.0.attn.rel_pos_h"] == (2 * 3 - 1, 8)
    assert shapes["model.vision_tower.vision_encoder.embeddings.position_embedding.weight"] == (2 * 2 + 1, 12)
    assert shapes["model.multi_modal_projector.weight"] == (20, 12 + 12)
    assert shapes["model.language_model.layers.2.mlp.experts.gate_up_proj"] == (4, 12, 20)
    assert shapes["model.language_model.layers.1.mlp.gate_proj.weight"] == (8, 20)
    assert shapes["model.language_model.layers.0.self_attn.k_proj.weight"] == (10, 20)
    fixed = target.info().symbols
    nodes = target.formulas(make_workload("text-only")).nodes
    params = {n.module: evaluate(parse(n.exprs["params"]), fixed) for n in nodes if "params" in n.exprs}
    assert sum(params.values()) == sum(p.numel() for p in model.parameters())


def test_what_is_not_published_is_said() -> None:
    """Of a model cut to two layers the layers are said once, as the cut, and a changed top-k as changed."""
    base = DeepseekOcr()
    assert base.info().changed == {}
    assert base.with_options(RunOptions(layers=2)).info().changed == {}
    other = DeepseekOcr(replace(base.config, text=replace(base.config.text, topk=8))).with_options(RunOptions(layers=2))
    assert other.info().changed == {"text.topk": "8, published 6"}
    start, _, cut = model_line(other.info()).partition(", cut to ")
    assert start == f"native, changed configuration {other.info().config_hash} (text.topk 8, published 6)"
    assert "decoder layers 2 of 12" in cut


@pytest.mark.parametrize("name", ["deepseek-ocr", "deepseek-ocr2", "llava", "qwen2-5-vl"])
@pytest.mark.parametrize("text_only", [True, False])
def test_a_run_of_a_model_that_sees_without_steps_is_all_before_them(name: str, text_only: bool) -> None:
    target: Any = load_target(name)
    preset = "text-only" if text_only else None
    alone, before = (target.workload(preset, new_tokens=steps) for steps in (0, 1))
    with_steps = target.invocations(before)
    assert target.invocations(alone) == with_steps[:-1]
    found, whole = evaluate_formulas(target, alone), evaluate_formulas(target, before)
    for metric in ("flops", "kv_cache_bytes"):
        totals = [found.stage_total(stage, metric) or 0 for stage in target.stages]
        assert totals == [*((whole.stage_total(s, metric) or 0) for s in target.stages[:-1]), 0]
