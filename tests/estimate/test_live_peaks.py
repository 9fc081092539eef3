"""The live peak by formula equals that of the exported graph, to the byte, at the sizes of the run."""

from __future__ import annotations

import pytest

from costproof.models.decoding.target import CausalTarget
from costproof.models.registry import load_target
from costproof.models.specs import ExportJob
from costproof.models.target import Exportable, WithMemory
from costproof.run.operands import target_with_settings
from costproof.tracers.exporting import with_sizes
from costproof.tracers.peaks.calls import calls, graph_timeline

SMALL = "layers=2,hidden=32,intermediate=48,heads=4,kv_heads=2,head_dim=12,vocab=64,max_positions=4096"
LATENT = (
    "layers=2,hidden=32,heads=4,vocab=64,kv_rank=8,expert_width=8,intermediate=16,config.experts=4,top_k=2,rope=4,nope=4,"
    "dense_layers=1"
)
RUNS = {
    "llama": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "llama, eager": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "llama, one sequence": f"llama@chat,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "llama, float32": f"llama@chat,batch=2,text_tokens=24,dtype=float32,logits=last,attention_bias=true,{SMALL}",
    "llama, narrow MLP": f"llama@chat,batch=3,text_tokens=7,new_tokens=2,{SMALL.replace('=48', '=8')}",
    "qwen3": f"qwen3@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "mistral, window": f"mistral@chat,batch=2,text_tokens=24,new_tokens=2,window=16,{SMALL}",
    "mistral, eager": f"mistral@chat,batch=2,text_tokens=24,new_tokens=2,window=16,attention=eager,{SMALL}",
    "gemma": f"gemma@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL}",
    "gemma2": f"gemma2@chat,batch=2,text_tokens=24,new_tokens=2,attention=eager,{SMALL}",
    "gemma3": f"gemma3@chat,batch=2,text_tokens=24,new_tokens=2,window=16,{SMALL.replace('layers=2', 'layers=6')}",
    "gpt2": "gpt2@chat,batch=2,text_tokens=24,new_tokens=2,layers=2,hidden=32,heads=4,vocab=64",
    "gpt-oss": f"gpt-oss@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL},config.experts=4,top_k=2",
    "mixtral": f"mixtral@chat,batch=2,text_tokens=24,new_tokens=2,{SMALL},config.experts=4,top_k=2",
    "qwen3-moe": f"qwen3-moe@chat,batch=2,text_tokens=24,{SMALL},config.experts=4,top_k=2,expert_width=16",
    "qwen3-moe, batched": f"qwen3-moe@chat,batch=2,text_tokens=24,experts=batched_mm,{SMALL},config.experts=4,top_k=2",
    "deepseek-v3": f"deepseek-v3@chat,batch=2,text_tokens=24,{LATENT},value=8,q_rank=8,groups=2,best_groups=1",
    "deepseek-v3, unfused": f"deepseek-v3@chat,batch=2,text_tokens=24,{LATENT},value=6,q_rank=8,groups=2,best_groups=1",
    "deepseek-v3, eager": (
        f"deepseek-v3@chat,batch=2,text_tokens=24,attention=eager,{LATENT},value=6,groups=2,best_groups=1"
    ),
    "deepseek-v2, absorbed, eager": (
        f"deepseek-v2-lite@chat,batch=2,text_tokens=24,decoding=absorbed,attention=eager,{LATENT},value=8"
    ),
    "deepseek-v2, absorbed": f"deepseek-v2-lite@chat,batch=2,text_tokens=24,decoding=absorbed,{LATENT},value=8",
}
QUICK = ("llama", "llama, eager", "mistral, window", "gpt-oss")


@pytest.mark.parametrize("run", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS])
def test_a_live_peak_is_that_of_the_graph(run: str) -> None:
    target, work = target_with_settings(RUNS[run])
    assert isinstance(target, WithMemory)
    assert isinstance(target, Exportable)
    tapes, config = target.memory(work), target.info().symbols
    sizes = {(c.stage, c.id): {**config, **c.symbols} for c in target.invocations(work)}
    for invocation, job in calls(target, work):
        values = sizes[job.stage, invocation]
        last = {**values, "P": values["P"] + values["N"] - 1} if "P" in values else values
        assert tapes[job.stage, invocation].peak_bytes(last) == held(job)


def held(job: ExportJob) -> int:
    """The graph peak of a job at its own sizes."""
    return max(graph_timeline(job, {}).held())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss", pytest.param("mixtral", marks=pytest.mark.thorough)])
def test_a_live_peak_is_that_of_the_graph_of_any_configuration(family: str) -> None:
    """For random configurations, as a proof draws them; one of three has a batch of 1."""
    target = load_target(family)
    assert isinstance(target, CausalTarget)
    compared = 0
    for piece in target.proof(3, 11).pieces:
        if piece.phase != "draws" or piece.workload.experts == "eager":
            continue
        drawn, work = piece.target, piece.workload
        assert isinstance(drawn, WithMemory)
        tapes, config = drawn.memory(work), drawn.info().symbols
        calls = {(c.stage, c.id): c.symbols for c in drawn.invocations(work)}
        for job in drawn.export_jobs(drawn.build(work), work):
            (invocation,) = job.invocations
            values = {**config, **calls[job.stage, invocation], **(piece.sizes or {})}
            assert tapes[job.stage, invocation].peak_bytes(values) == held(with_sizes(job, values))
            compared += 1
    assert compared >= 4
