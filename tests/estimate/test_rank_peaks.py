"""The live peak of a rank of several devices by formula: by hand, and that of its exported graph to the byte."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import pytest

from costproof.ledger.errors import CostproofError
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, WithMemory
from costproof.opgraph.liveness import timeline
from costproof.parametric.targets import live_peaks
from costproof.run.capture import count_sources
from costproof.run.fits import fits
from costproof.run.operands import target_with_settings
from costproof.run.prepare import Prepared
from costproof.tracers.peaks.calls import calls
from costproof.tracers.peaks.program import exported_memory, on_fake_cpu
from tests.estimate.test_live_peaks import load_pieces
from tests.models.test_page_ranks import PAGE, TEXT
from tests.models.test_page_ranks import SMALL as PAGES
from tests.oracles.random_meshes import configurations

SMALL: Final = "layers=2,hidden=32,heads=4,kv_heads=2,head_dim=12,vocab=102,max_positions=4096"
DENSE: Final = f"{SMALL},intermediate=48"
MIXTURE: Final = f"{SMALL},config.experts=4,top_k=2,expert_width=16"
LATENT: Final = (
    "layers=2,hidden=32,heads=4,vocab=64,kv_rank=8,expert_width=8,intermediate=16,config.experts=4,top_k=2,rope=4,nope=4,"
    "dense_layers=1,groups=2,best_groups=1"
)
WIDE: Final = "layers=1,hidden=8,heads=4,kv_heads=2,head_dim=64,vocab=16,max_positions=4096,intermediate=8"
"""Attention decides the peak."""
RUNS: Final = {
    "llama, ring": f"llama@chat,batch=2,text_tokens=18,new_tokens=3,cp=3,cp_plan=ring,rank=1,{WIDE}",
    "llama, zigzag, float32": (
        f"llama@chat,text_tokens=18,new_tokens=2,cp=3,cp_plan=zigzag,rank=1,dtype=float32,{WIDE}"
    ),
    "qwen2, zigzag, last rank, tp": f"qwen2@chat,batch=2,text_tokens=8,new_tokens=3,cp=2,tp=2,rank=3,{WIDE}",
    "deepseek-v3, ring": f"deepseek-v3@chat,batch=2,text_tokens=8,new_tokens=2,cp=2,cp_plan=ring,{LATENT}",
    "deepseek-v2, expanded for some heads": (
        f"deepseek-v2@chat,batch=2,text_tokens=8,new_tokens=2,cp=2,cp_plan=ulysses,rank=1,{LATENT}"
    ),
    "deepseek-v3, absorbed, zigzag": (
        f"deepseek-v3@chat,text_tokens=8,new_tokens=2,cp=2,decoding=absorbed,rank=1,{LATENT}"
    ),
    "llama, last rank of an uneven vocabulary": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,tp=4,rank=3,{DENSE}",
    "llama, one row": f"llama@chat,text_tokens=24,new_tokens=2,attention=eager,logits=last,tp=4,rank=3,{DENSE}",
    "llama, biases": f"llama@chat,batch=2,text_tokens=7,attention_bias=true,mlp_bias=true,tp=2,past=4,{DENSE}",
    "llama, vllm": f"llama@chat,batch=2,text_tokens=7,new_tokens=2,tp=2,plan=vllm,{DENSE}",
    "llama, first stage": f"llama@chat,batch=2,text_tokens=7,new_tokens=2,tp=2,pp=2,{DENSE}",
    "llama, last stage": f"llama@chat,batch=2,text_tokens=7,new_tokens=2,tp=2,pp=2,rank=2,{DENSE}",
    "mistral, heads apart": f"mistral@chat,batch=2,text_tokens=24,new_tokens=2,cp=2,cp_plan=ulysses,window=16,{DENSE}",
    "gemma2, heads apart, tp": (
        "gemma2@chat,batch=2,text_tokens=24,new_tokens=2,cp=2,cp_plan=ulysses,tp=2,rank=3,window=16,"
        + DENSE.replace("kv_heads=2", "kv_heads=4")
    ),
    "gpt-oss, heads apart": (
        f"gpt-oss@chat,text_tokens=24,new_tokens=2,cp=2,cp_plan=ulysses,rank=1,window=16,{SMALL},intermediate=32,"
        "config.experts=4,top_k=2"
    ),
    "llama, heads apart": f"llama@chat,batch=2,text_tokens=24,new_tokens=2,cp=2,cp_plan=ulysses,{DENSE}",
    "gemma2, capped": f"gemma2@chat,batch=2,text_tokens=24,new_tokens=2,tp=4,rank=3,window=16,{DENSE}",
    "qwen3-moe, ep": f"qwen3-moe@chat,batch=2,text_tokens=7,new_tokens=2,tp=2,ep=2,{MIXTURE}",
    "qwen3-moe, batched": f"qwen3-moe@chat,batch=2,text_tokens=7,experts=batched_mm,tp=2,ep=2,{MIXTURE}",
    "qwen3-moe, ep over dp": f"qwen3-moe@chat,batch=4,text_tokens=7,new_tokens=2,dp=2,ep=2,{MIXTURE}",
    "deepseek-v3, ep": f"deepseek-v3@chat,batch=2,text_tokens=7,new_tokens=2,tp=2,ep=2,{LATENT}",
}


def check(target: object, work: Workload) -> int:
    """Compare all calls, with inputs held and released; return the number of calls."""
    assert isinstance(target, WithMemory)
    assert isinstance(target, Exportable)
    graphs = {(job.stage, call, job.id): exported_memory(on_fake_cpu(job)).program for call, job in calls(target, work)}
    for inputs_held in (True, False):
        found = live_peaks(target, work, inputs_held=inputs_held)
        of_graphs = {call: max(timeline(graph, inputs_held=inputs_held).held()) for call, graph in graphs.items()}
        assert found == of_graphs, (target, work)
    return len(graphs)


IMPLIED: Final = {"llama, heads apart", "qwen3-moe, ep", "gemma2, capped"}
"""Runs that differ from another one in the family alone: heads apart of Mistral, ep of DeepSeek, caps with tp 2."""


@pytest.mark.parametrize(
    "run", [pytest.param(r, id=n, marks=[pytest.mark.thorough] if n in IMPLIED else []) for n, r in RUNS.items()]
)
def test_the_live_peak_of_a_rank_is_that_of_its_graph(run: str) -> None:
    assert check(*target_with_settings(run)) >= 1


# Ranks add up token embeddings and put features into them alike in both families.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", pytest.param("qwen2-5-vl", marks=pytest.mark.thorough)])
def test_the_live_peak_of_a_rank_with_a_tower_is_that_of_its_graph(family: str) -> None:
    """Towers are whole on a rank; ranks sum up the token embeddings of the prompt before features are put into them."""
    for piece in load_pieces(family):
        work = replace(piece.workload, inputs={**piece.workload.inputs, "tp": 2, "rank": 1})
        model: Any = piece.target
        if not model.problems(work):
            assert check(model, work) >= 2
            return
    raise AssertionError("no draw can be split")


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {**PAGE, "tp": 2, "rank": 1, "batch": 2},
        {**TEXT, "dp": 2, "ep": 2, "batch": 3},
        pytest.param({**PAGE, "tp": 2, "ep": 2}, marks=pytest.mark.thorough),
        pytest.param({**PAGE, "tp": 4, "rank": 3, "logits": "last"}, marks=pytest.mark.thorough),
        pytest.param({**PAGE, "tp": 2, "dp": 2, "ep": 4, "batch": 2, "rank": 3}, marks=pytest.mark.thorough),
        pytest.param({**TEXT, "tp": 2, "attention": "eager", "dtype": "float32", "experts": "batched_mm"},
                     marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_the_live_peak_of_a_rank_of_pages_is_that_of_its_graph(given: dict[str, Any]) -> None:
    """The first rank has the first rows of the embedding alone, and masks and adds up what it looks up in a prompt."""
    assert check(PAGES, PAGES.workload(**given, new_tokens=2)) >= 2


MESHES: Final[tuple[dict[str, int], ...]] = (
    {"tp": 2}, {"tp": 4}, {"tp": 3}, {"tp": 2, "ep": 2}, {"tp": 4, "ep": 4}, {"tp": 2, "dp": 2}, {"dp": 2, "ep": 2},
    {"tp": 2, "dp": 2, "ep": 4}, {"tp": 2, "pp": 2}, {"pp": 2}, {"cp": 2}, {"cp": 3}, {"cp": 2, "tp": 2},
)  # fmt: skip


def drawn_runs(model: Any, rng: random.Random) -> Workload | None:
    """Return a random run on a random mesh; ``None`` if it does not fit the model."""
    mesh = rng.choice(MESHES)
    dp = mesh.get("dp", 1)
    run = {
        "text_tokens": rng.choice((1, 5, 12)), "new_tokens": rng.randint(0, 2), "batch": dp * rng.randint(1, 3),
        "attention": rng.choice(("sdpa", "eager")), "logits": rng.choice(("all", "last")),
        "dtype": rng.choice(("bfloat16", "float32")), "rank": rng.randrange(mesh.get("tp", 1) * dp * mesh.get("pp", 1)),
    }  # fmt: skip
    run |= {"past": rng.choice((1, 4))} if rng.random() < 0.3 and "cp" not in mesh else {}
    if cp := mesh.get("cp"):
        run |= {"attention": "sdpa", "logits": "all", "cp_plan": rng.choice(("ring", "zigzag", "ulysses"))}
        run |= {"text_tokens": 2 * cp * rng.randint(1, 5), "rank": rng.randrange(cp * mesh.get("tp", 1))}
    if getattr(model.config, "experts", 0) and rng.random() < 0.3:
        run["experts"] = "batched_mm"
    try:
        found: Workload = model.workload(**run, **mesh)
    except CostproofError:
        return None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.thorough)
     for name in ("llama", "qwen2", "qwen3-moe", "mixtral", "deepseek-v2", "deepseek-v3", "gpt-oss", "gemma2")],
)  # fmt: skip
def test_the_live_peaks_of_ranks_of_random_configurations(family: str) -> None:
    rng, models, compared = random.Random(f"peaks of {family}"), configurations(family), 0
    while compared < 40:
        model = next(models)
        for _ in range(3):
            if (work := drawn_runs(model, rng)) is not None:
                compared += check(model, work)


def peak(run: str, stage: str) -> int:
    target, work = target_with_settings(run)
    assert isinstance(target, WithMemory)
    return next(n for (of, _, _), n in live_peaks(target, work).items() if of == stage)


def test_gathered_logits_by_hand() -> None:
    """20,002 entries on 4 ranks: chunks of 5,001, of which the last rank has 4,999.

    Of 2 x 7 positions all chunks are gathered, [4, ...], and joined. Beside them are 14 ids and the cache of one of 2
    key/value heads of 12 elements, keys and values, in 2 layers.
    """
    run = f"llama@chat,batch=2,text_tokens=7,new_tokens=0,tp=4,rank=3,{DENSE}".replace("vocab=102", "vocab=20002")
    held = 14 * 8 + 2 * 2 * 14 * 12 * 2
    assert peak(run, "prefill") == held + 2 * 14 * 4 * 5001 * 2
    one = run.replace("batch=2", "batch=1,logits=last")  # whose chunks lie in order, so nothing is joined
    assert peak(one, "prefill") == 7 * 8 + 2 * 2 * 7 * 12 * 2 + (1 + 4) * 5001 * 2


def test_a_ring_by_hand() -> None:
    """Two positions of one head of 4,000: results and what is sent, which keys and values are joined to, take 4 bytes.

    While parts are passed on, the rank holds its queries, a result in float32, what it sends, a buffer, and what it
    gets; besides, its cache, hidden states of 8, 2 ids, 2 positions, and the logarithms of 2 sums.
    """
    run = f"llama@chat,text_tokens=4,new_tokens=0,cp=2,cp_plan=ring,rank=1,{WIDE}"
    run = run.replace("heads=4,kv_heads=2,head_dim=64", "heads=1,kv_heads=1,head_dim=4000")
    one = 2 * 4000 * 2
    assert peak(run, "prefill") == one + 2 * one + 3 * 2 * one + 2 * one + 2 * 8 * 2 + 2 * 8 + 2 * 8 + 2 * 4


def test_experts_of_several_batches_by_hand() -> None:
    """2 batches of 14 tokens x 2 experts: 56 rows of 2 x 4,000 columns, and the same with those of others masked.

    Of the masked ones the activation and the product, 4,000 wide each, hold as much. Beside them are 14 ids, a cache of
    14 tokens of 2 heads of 12 elements in a layer, hidden states of 32, the order of 56 rows in int64, their weights, a
    mask, and the ends of 2 experts in int32.
    """
    run = f"qwen3-moe@chat,batch=4,text_tokens=7,new_tokens=0,logits=last,dp=2,ep=2,{MIXTURE}"
    run = run.replace("layers=2", "layers=1").replace("expert_width=16", "expert_width=4000")
    held = 14 * 8 + 2 * 14 * 2 * 12 * 2 + 14 * 32 * 2 + 56 * 8 + 56 * 2 + 56 + 2 * 4
    assert peak(run, "prefill") == held + 2 * 56 * 8000 * 2


def test_a_stage_of_a_pipeline_by_hand() -> None:
    """A wide MLP in a layer each: both stages have it, and hidden states of 14 tokens of 32; the first also ids.

    The stage that sends has no logits. Of the second, hidden states are what it is given, and those after attention.
    """
    run = f"llama@chat,batch=2,text_tokens=7,new_tokens=0,logits=last,pp=2,{DENSE}"
    run = run.replace("intermediate=48", "intermediate=4000")
    cache, hidden, wide = 2 * 14 * 2 * 12 * 2, 14 * 32 * 2, 14 * 4000 * 2
    assert peak(run, "prefill") == 14 * 8 + cache + hidden + 3 * wide
    assert peak(f"{run},rank=1", "prefill") == hidden + cache + hidden + 3 * wide


def test_a_rank_fits_by_the_formula_of_its_live_peak() -> None:
    """As by hand above for gathered logits; a run releases its ids. The rank with the most is named."""
    run = f"llama@chat,batch=2,text_tokens=7,new_tokens=0,tp=4,{DENSE}".replace("vocab=102", "vocab=20002")
    found = fits(run, memory="4MB")
    assert (found.live_source, found.verdict) == ("formula", "fits")
    assert found.live_bytes == 2 * 2 * 14 * 12 * 2 + 2 * 14 * 4 * 5001 * 2
    assert [row.live_bytes for row in found.ranks] == [found.live_bytes, found.live_bytes]


def test_a_capture_of_one_stage_states_the_ranks_of_all() -> None:
    """A capture is of one rank; the other stages are counted by formulas, and the answers are those of the target."""
    run = f"llama@chat,batch=2,text_tokens=7,new_tokens=0,pp=2,{DENSE}"
    target, work = target_with_settings(run)
    capture = count_sources(Prepared(target, work, ("analytic",))).capture
    found, expected = fits(capture, memory="1MB"), fits(run, memory="1MB")
    assert found.ranks == expected.ranks
    assert sorted(row.ranks for row in found.ranks) == [(0,), (1,)]
