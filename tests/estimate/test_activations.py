"""The bound of activations that formulas give is never less than what the modules as written hold."""

from __future__ import annotations

import pytest

from costproof import api
from costproof.estimate.arithmetic import layer_of
from costproof.estimate.memory import unfused_attention
from costproof.opgraph.liveness import peak_of
from costproof.parametric.run_family import SettingCurve
from costproof.run.operands import read_operand, target_with_settings
from costproof.tracers.peaks.calls import calls, eager_timeline

NARROW = "layers=1,hidden=8,heads=1,kv_heads=1,head_dim=8,intermediate=8,vocab=64"
"""Where masks are all that counts."""
LATENT = (
    "deepseek-v3@chat,new_tokens=2,layers=1,hidden=16,heads=16,vocab=2,kv_rank=8,q_rank=8,expert_width=8,intermediate=8,"
    "config.experts=4,top_k=2,groups=2,best_groups=1"
)
RUNS = (
    f"llama-3.2-1b@chat,text_tokens=1000,attention=eager,{NARROW}",
    f"llama-3.2-1b@chat,text_tokens=1000,attention=sdpa,{NARROW}",
    f"mistral-7b@chat,text_tokens=1000,batch=4,attention=sdpa,window=100,{NARROW}",
    f"mistral-7b@chat,text_tokens=1000,batch=4,attention=eager,dtype=float32,window=100,{NARROW}",
    # Eight heads of queries for one of keys: in a step the repeated keys are all that counts.
    "gpt-oss-20b@chat,text_tokens=3000,layers=2",
    "gemma-3-270m@chat,text_tokens=1000,attention=sdpa,layers=6",
    "gemma-2-2b@chat,layers=2,attention=eager",
    "qwen3-moe@chat,layers=2,attention=sdpa",
    "deepseek-v2-lite@chat,layers=2,attention=eager",
    # Queries and keys of another width than values: no fused kernel takes them, and their scores are written out.
    f"{LATENT},text_tokens=400,rope=2,nope=2,value=64",
    f"{LATENT},text_tokens=300,rope=64,nope=2,value=2,batch=3",
    f"{LATENT},text_tokens=900,rope=64,nope=2,value=66,decoding=absorbed",
    "deepseek-ocr@tiny,attention=eager,text.layers=2,clip.layers=1",
    "deepseek-ocr@tiny,attention=sdpa,text.layers=2",
    "clip-l-336@,attention=eager",
    "t5-small@,layers=2",
)
ALIKE = ("gemma", "qwen3-moe", "clip", "deepseek-ocr@tiny,attention=sdpa")
"""Of layers that the others have too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [pytest.param(r, marks=pytest.mark.thorough if r.startswith(ALIKE) else ()) for r in RUNS]
)
def test_no_stage_holds_more(run: str) -> None:
    """A step that is run alone also has the cache from before as an argument; in a run a layer gives its own back."""
    found = api.fits(run, memory=10**15)
    most = {s.id: s.activations_bytes for s in found.stages}
    target, workload = target_with_settings(run)
    for _, job in calls(target, workload):  # type: ignore[arg-type]
        eager = peak_of(eager_timeline(job, {}))  # needs no export
        given = sum(t.bytes for t in eager.alive if not t.operator)
        bound = most[job.stage]
        assert bound is not None
        assert found.cache_bytes is not None
        assert eager.bytes - given <= bound + found.cache_bytes


def held_by_scores(run: str, stage: str) -> int:
    """What attention of two widths adds to the bound of a stage."""
    read = read_operand(run)
    assert read.target is not None
    along = SettingCurve(read.baseline, read.target, "batch")
    return along.value(along.own, unfused_attention(read.baseline, along.sizes(along.own), stage))


def test_scores_that_no_fused_kernel_takes_by_hand() -> None:
    """16 heads, 400 tokens, queries and keys of 2 + 2, values of 64, latents of 8."""
    run = f"{LATENT},text_tokens=400,rope=2,nope=2,value=64"
    assert held_by_scores(run, "prefill") == 16 * (13 * 400**2 + (400 + 400) * (12 * 4 + 8 * 64)) == 40_448_000
    # The last of two steps sees 402 tokens.
    assert held_by_scores(run, "decode") == 16 * (13 * 402 + (1 + 402) * (12 * 4 + 8 * 64)) == 3_694_496
    assert held_by_scores(f"{run},batch=3,dtype=float32", "prefill") == 3 * 40_448_000
    # A step that absorbs reads latents, 8 + 2 wide as keys and 8 as values, whatever the widths of heads are.
    absorbed = 16 * (13 * 402 + (1 + 402) * (12 * 10 + 8 * 8))
    assert held_by_scores(f"{run},decoding=absorbed", "decode") == absorbed
    fused = f"{LATENT},text_tokens=400,rope=2,nope=2,value=4"
    assert [held_by_scores(fused, stage) for stage in ("prefill", "decode")] == [0, 0]
    assert held_by_scores(f"{fused},decoding=absorbed", "decode") == absorbed
    # What eager attention writes out counts already; other families have one width.
    assert held_by_scores(f"{run},attention=eager", "prefill") == 0
    assert held_by_scores("llama-3.2-1b", "prefill") == 0


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("model.layers.3", "model.layers.3"), ("model.layers.13.mlp.experts.5", "model.layers.13"), ("lm_head", ""),
        ("", ""), ("blocks.0.norm1", "blocks.0"), ("fc2.weight", ""), ("0.lin", "0"),
    ],
)  # fmt: skip
def test_the_outermost_number_is_the_layer(module: str, layer: str) -> None:
    assert layer_of(module) == layer
