"""The bound of activations that formulas give is never less than what the modules as written hold."""

from __future__ import annotations

import pytest

from costproof import api
from costproof.run.one_layer import layer_of
from costproof.run.sides import target_with_settings
from costproof.tracers.peaks.calls import calls, peaks_of

NARROW = "layers=1,hidden=8,heads=1,kv_heads=1,head_dim=8,intermediate=8,vocab=64"
"""Where masks are all that counts."""
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
    "deepseek-ocr@tiny,attention=eager,text.layers=2",
    "deepseek-ocr@tiny,attention=sdpa,text.layers=2",
    "clip-l-336@,attention=eager",
    "t5-small@",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run", [pytest.param(r, marks=pytest.mark.thorough if r.endswith("sdpa,text.layers=2") else ()) for r in RUNS]
)
def test_no_stage_holds_more(run: str) -> None:
    """A step that is run alone also has the cache from before as an argument; in a run a layer gives its own back."""
    found = api.fits(run, memory=10**15)
    most = {s.id: s.activations_bytes for s in found.stages}
    target, workload = target_with_settings(run)
    for _, job in calls(target, workload):  # type: ignore[arg-type]
        eager = peaks_of(job).eager
        assert eager is not None
        given = sum(t.bytes for t in eager.alive if not t.operator)
        bound = most[job.stage]
        assert bound is not None
        assert found.cache_bytes is not None
        assert eager.bytes - given <= bound + found.cache_bytes


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("model.layers.3", "model.layers.3"), ("model.layers.13.mlp.experts.5", "model.layers.13"), ("lm_head", ""),
        ("", ""), ("blocks.0.norm1", "blocks.0"), ("fc2.weight", ""), ("0.lin", "0"),
    ],
)  # fmt: skip
def test_the_outermost_number_is_the_layer(module: str, layer: str) -> None:
    assert layer_of(module) == layer
