"""Plans of engines and of users: hand arithmetic, agreement of formula, graph and run, and errors with their place."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from costproof.ledger.errors import Incomplete, Problems
from costproof.ledger.mesh import Parallel
from costproof.models.decoding.plans import LAYOUTS, stored_plan
from costproof.models.decoding.target import CausalTarget
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers.dynamic import dynamic_ledger
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

SIZES: Final[dict[str, Any]] = {
    "hidden": 64, "intermediate": 96, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab": 102,
}  # fmt: skip
MIXED: Final[dict[str, Any]] = {**SIZES, "experts": 8, "top_k": 2, "expert_width": 64}
LATENT: Final[dict[str, Any]] = {
    **MIXED, "groups": 1, "best_groups": 1, "dense_layers": 1, "kv_rank": 16, "q_rank": 24, "nope": 16, "rope": 8,
    "value": 16,
}  # fmt: skip
ATTENTION: Final = """\
model.layers.*.self_attn.q_proj: by_head
model.layers.*.self_attn.k_proj: by_head
model.layers.*.self_attn.v_proj: by_head
model.layers.*.self_attn.o_proj: row
"*.mlp.*_proj": replicated
"""
"""A plan that splits attention only."""


def small(family: str, **changes: Any) -> CausalTarget[Any]:
    target = load_target(family)
    assert isinstance(target, CausalTarget)
    known = {k: v for k, v in {**SIZES, **changes}.items() if k in target.config.__dataclass_fields__}
    return replace(target, config=replace(target.config, **known))


def ranks(target: CausalTarget[Any], **settings: Any) -> Parallel:
    work = target.workload(**{"text_tokens": 8, "new_tokens": 0, "logits": "last", **settings})
    return count_ranks(target, work, evaluate_formulas(target, work))


def sent(found: Parallel, stage: str = "prefill") -> dict[tuple[str, str], tuple[int, int]]:
    """Return (kind, module) -> (times, bytes sent)."""
    return {(c.kind, c.module): (c.count, c.sent_bytes) for c in found.collectives if c.stage == stage}


def test_vllm_pads_the_vocabulary_to_a_multiple_of_64() -> None:
    """102 entries are 128, 32 on each of 4 ranks; 26 rows of 64 in two tables are padding."""
    found = ranks(small("llama"), tp=4, plan="vllm", rank=3)
    assert [row.ranks for row in found.ranks] == [(0, 1, 2, 3)]
    copies = {(d.what, d.metric): d.amount for d in found.duplicates}
    assert copies["padding of the vocabulary", "params"] == 26 * 64 * 2
    assert copies["padding of the vocabulary", "flops"] == 2 * 26 * 64  # one position
    layer = 4 * 64 * 16 + 3 * 64 * 24 + 2 * 64
    assert found.ranks[0].stages[""]["params"] == 2 * layer + 2 * 32 * 64 + 64
    assert sent(found)["all_gather", "lm_head"] == (1, 3 * 32 * 2)


def test_a_padded_vocabulary_that_is_even_is_the_same() -> None:
    """128,256 entries of Llama 3 are a multiple of 64: the plans of vLLM and transformers are one."""
    target, token = load_target("llama-3.1-70b"), {"text_tokens": 1, "new_tokens": 0, "tp": 8}
    assert isinstance(target, CausalTarget)
    theirs, ours = (ranks(target, **token, **plan) for plan in ({}, {"plan": "vllm"}))
    assert (theirs.ranks, theirs.collectives) == (ours.ranks, ours.collectives)
    assert "vLLM" in ours.plan


def test_vllm_adds_shared_and_routed_experts_before_one_sum() -> None:
    """DeepSeek-V3 of one dense layer and one with experts: transformers leaves attention whole, and sums both."""
    target = small("deepseek-v3", **LATENT)
    theirs, ours = (ranks(target, tp=2, **plan) for plan in ({}, {"plan": "vllm"}))
    layer, one = "model.layers.*", (1, 8 * 64 * 2)
    summed = {("all_reduce", f"{layer}.mlp.{x}"): one for x in ("down_proj", "experts", "shared_experts.down_proj")}
    first = {("all_reduce", "model.embed_tokens"): one}
    assert {k: v for k, v in sent(theirs).items() if k[0] == "all_reduce"} == {**first, **summed}
    assert {k: v for k, v in sent(ours).items() if k[0] == "all_reduce"} == {
        **first,
        ("all_reduce", f"{layer}.self_attn.o_proj"): (2, 2 * 8 * 64 * 2),
        ("all_reduce", f"{layer}.mlp.down_proj"): one,
        ("all_reduce", f"{layer}.mlp"): one,
    }


def test_megatron_scatters_and_gathers_what_an_all_reduce_sends() -> None:
    """102 entries are 512 of 4 ranks, 128 each. Of M = 8 x 64 x 2 bytes both send 3 / 4, as an all-reduce 6 / 4."""
    found = ranks(small("llama"), tp=4, plan="megatron")
    each, layer = 3 * 8 * 64 * 2 // 4, "model.layers.*"
    assert sent(found) == {
        ("reduce_scatter", "model.embed_tokens"): (1, each),
        ("reduce_scatter", f"{layer}.self_attn.o_proj"): (2, 2 * each),
        ("reduce_scatter", f"{layer}.mlp.down_proj"): (2, 2 * each),
        ("all_gather", f"{layer}.input_layernorm"): (2, 2 * each),
        ("all_gather", f"{layer}.post_attention_layernorm"): (2, 2 * each),
        ("all_gather", "model.norm"): (1, each),
        ("all_gather", "lm_head"): (1, 3 * 128 * 2),
    }
    assert found.ranks[0].stages[""]["params"] == 2 * (4 * 64 * 16 + 3 * 64 * 24 + 2 * 64) + 2 * 128 * 64 + 64


def test_collectives_of_shared_tokens_in_a_run() -> None:
    """Of M = 2 x 20 x 64 x 2 bytes a rank of 4 sends 3 / 4 in each; 102 entries are padded to 512, 128 of a rank."""
    target = small("llama")
    work = target.workload(text_tokens=20, new_tokens=0, batch=2, tp=4, plan="megatron")
    ledger = dynamic_ledger(target, work).ledger
    state, logits = 2 * 20 * 64 * 2, 2 * 20 * 128 * 2
    found = {n.module: (n.cost("comm_payload_bytes"), n.cost("comm_bytes")) for n in ledger.nodes if n.cost("messages")}
    half = {"self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"}
    each = (state, 3 * state // 4)
    assert found.pop("lm_head")[1] == 3 * logits
    assert found == {
        "model.embed_tokens": each, "model.norm": each,
        **{f"model.layers.{i}.{name}": each for i in (0, 1) for name in half},
    }  # fmt: skip
    assert any("padded" in note for note in ledger.notes)


def test_ranks_that_share_tokens_share_norms_and_additions() -> None:
    """Of 8 tokens a rank of 4 norms two: its norms and additions do a quarter of what they do on whole tokens."""
    target = small("llama")
    own = {}
    for plan in ("vllm", "megatron"):
        ledger = evaluate_formulas(target, target.workload(text_tokens=8, new_tokens=0, tp=4, plan=plan))
        vector: Counter[str] = Counter()
        for node in ledger.nodes:
            vector[node.role] += node.cost("vector_flops") or 0
        own[plan] = vector
    for role in ("text.layer", "text.layer.norm1", "text.layer.norm2", "text.norm"):
        assert own["vllm"][role] == 4 * own["megatron"][role] > 0


AGREE: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]]] = {
    "vllm, tied": ("llama", {"tied": True, "layers": 1}, {"tp": 4, "rank": 3, "plan": "vllm"}, ("static", "dynamic")),
    "vllm, copies of heads": (
        "qwen3-moe", {**MIXED, "layers": 1, "kv_heads": 2}, {"tp": 4, "rank": 1, "plan": "vllm"}, ("static", "dynamic")
    ),
    "vllm, latents": ("deepseek-v3", LATENT, {"tp": 4, "rank": 3, "batch": 2, "plan": "vllm"}, ("static",)),
    "vllm, by expert": ("deepseek-v2", LATENT, {"tp": 2, "ep": 2, "rank": 1, "plan": "vllm"}, ("static",)),
    "vllm, biases and sinks": ("gpt-oss", MIXED, {"tp": 4, "rank": 3, "plan": "vllm"}, ("static",)),
    "vllm, capped logits": (  # those of 102 entries, and none of the padding
        "gemma2", {"layers": 1, "logits_capped": True}, {"tp": 2, "plan": "vllm"}, ("static", "dynamic")
    ),
    "vllm, run": ("llama", {"vocab": 128}, {"tp": 2, "rank": 1, "plan": "vllm"}, ("static", "dynamic")),
    "megatron, biases": (
        "llama", {"attention_bias": True, "mlp_bias": True, "layers": 1}, {"tp": 4, "rank": 3, "plan": "megatron"},
        ("static", "dynamic"),
    ),
    "megatron, batch": (
        "qwen3", {"layers": 1}, {"tp": 2, "batch": 2, "logits": "all", "plan": "megatron"},
        ("static", "dynamic"),
    ),
    "megatron, eager": (
        "gemma3", {}, {"tp": 2, "rank": 1, "attention": "eager", "plan": "megatron"}, ("static", "dynamic")
    ),
    "given": ("llama", {"kv_heads": 2}, {"tp": 2, "rank": 1, "plan": ATTENTION}, ("static", "dynamic")),
    "given, copies of heads": (
        "llama", {"kv_heads": 2, "layers": 1}, {"tp": 4, "rank": 1, "plan": ATTENTION}, ("static",)
    ),
}  # fmt: skip


IMPLIED: Final = {"vllm, latents"}
"""Latents and ``tp`` are in the case by expert."""


@pytest.mark.parametrize("case", with_variants(AGREE, AGREE.keys() - IMPLIED))
def test_sources_agree_on_a_rank_of_a_plan(case: str, tmp_path: Path) -> None:
    family, sizes, run, sources = AGREE[case]
    target = small(family, **sizes)
    file = tmp_path / "plan.yaml"
    file.write_text(ATTENTION)
    plan = str(file) if case.startswith("given") else run["plan"]
    work = target.workload(text_tokens=8, new_tokens=2, **{**run, "plan": plan})
    found = count_sources(Prepared(target, work, ("analytic", *sources)))
    assert [f.id for f in found.discrepancy.findings if f.status != "exact"] == []
    assert {x.source for x in found.capture.ledgers} == {"analytic", *sources}
    assert found.capture.parallel is not None
    assert found.capture.parallel.problems() == []


_EXPERTS = "model.layers.*.mlp.experts"


@pytest.mark.parametrize(
    ("family", "run", "why"),
    [
        ("deepseek-v3", {"plan": "vllm"}, "single sum over ranks"),
        ("gpt-oss", {"plan": f"{_EXPERTS}.gate_up_proj: column; {_EXPERTS}.down_proj: row"}, "one after the other"),
    ],
)
def test_what_transformers_cannot_run_says_why(family: str, run: dict[str, Any], why: str) -> None:
    target = small(family, **({**LATENT, "vocab": 128} if family == "deepseek-v3" else {}))
    with pytest.raises(Incomplete, match=why):
        dynamic_ledger(target, target.workload(text_tokens=8, new_tokens=0, tp=2, **run))


def test_a_plan_is_stored_as_text(tmp_path: Path) -> None:
    """What a workload stores does not depend on the file, and is a setting again."""
    file = tmp_path / "plan.yaml"
    file.write_text(ATTENTION)
    target = small("llama")
    work = target.workload(tp=2, plan=str(file))
    text = work.inputs["plan"]
    assert str(text).startswith("model.layers.*.self_attn.q_proj: by_head; ")
    assert str(text).endswith("*.mlp.*_proj: replicated")
    file.unlink()
    assert target.workload(tp=2, plan=text) == work
    assert target.workload(tp=2, plan="transformers") == target.workload(tp=2)
    assert target.workload(tp=1, plan="vllm") == target.workload()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name here")
def test_a_plan_may_come_from_a_pipe(tmp_path: Path) -> None:
    """Which can be read only once."""
    pipe = tmp_path / "plan.yaml"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(ATTENTION,), daemon=True)
    writer.start()
    plan = small("llama").workload(tp=2, plan=str(pipe)).inputs["plan"]
    writer.join(10)
    assert str(plan).endswith("*.mlp.*_proj: replicated")


def test_a_stored_plan_may_be_longer_than_a_path() -> None:
    """Four layouts of attention, and three of the MLP, are 300 characters; the name of a file has at most 255."""
    text = "; ".join((
        *(f"model.layers.*.self_attn.{x}_proj: by_head" for x in "qkv"), "model.layers.*.self_attn.o_proj: row",
        *(f"model.layers.*.mlp.{x}_proj: column" for x in ("gate", "up")), "model.layers.*.mlp.down_proj: row",
    ))  # fmt: skip
    assert len(text) > 255
    assert small("llama").workload(tp=2, plan=text).inputs["plan"] == text


Q: Final = "model.layers.*.self_attn.q_proj"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{Q}: columns", f"no such layout, {Q}, did you mean column?"),
        ("model.layers.*.self_attn.o_proj: rows", "no such layout, model.layers.*.self_attn.o_proj, did you mean row?"),
        (f"{Q}: [column]", f"no such layout, {Q}, list"),
        ("'a b': column", "not a pattern of modules, a b"),
        ("'*.*.*.*.*.x': column", "at most 4 *"),
        ("nothing.*: column", "the pattern matches no module, --plan, nothing.*, model.embed_tokens"),
        (f"{Q}: row", f"{Q} cannot have this layout, column, by_head, replicated, row"),
        (f"{Q}: column", f"must be split together, --plan, {Q}, model.layers.*.self_attn.k_proj"),
        ("model.layers.0.self_attn.q_proj: column", f"in all layers or in none, {Q}, with * for the layer"),
        (f"{Q}: column\n'*.q_proj': replicated", f"two layouts of {Q}"),
        ("model.norm: column", "model.norm cannot have this layout"),
        (ATTENTION.replace("by_head", "column"), "no copies of key/value heads, --tp, or by_head"),
        ("- a\n- b", "a plan maps module patterns to layouts, a list"),
        ("a: &x column", "anchors and aliases are not allowed"),
        ("a: !!python/object:os.system column", "tags are not allowed"),
        (f"{Q}: column\n{Q}: row", "occurs twice"),
        ("x: column\n" + "".join(f"x{i}: row\n" for i in range(200)), "too many patterns, at most 200"),
        ("x" * 300_000, "a plan is too large"),
    ],
)
def test_plans_that_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    target = small("llama", kv_heads=2)
    with pytest.raises(Problems) as caught:
        target.workload(tp=4, plan=str(file))
    told = str(caught.value)
    assert [part for part in said.split(", ") if part not in told] == [], told


@pytest.mark.parametrize(
    ("family", "run", "said"),
    [
        ("llama", {"tp": 2, "plan": "vlm"}, "did you mean vllm?"),
        ("llama", {"tp": 2, "plan": "none.yaml"}, "No such file"),
        ("llama", {"tp": 4, "plan": "megatron", "text_tokens": 6}, "a multiple of tp 4"),
        ("llama", {"tp": 2, "plan": "megatron", "past": 4}, "without a past"),
        ("deepseek-v3", {"tp": 2, "plan": "megatron"}, "only for dense decoders"),
        ("llama", {"tp": 3, "plan": "vllm"}, "padded to a multiple of 64"),
        ("llava", {"tp": 2, "plan": "vllm"}, "only the plan of transformers"),
    ],
)
def test_runs_that_a_plan_does_not_fit(family: str, run: dict[str, Any], said: str) -> None:
    target: Any = small(family) if family == "llama" else load_target(family)
    with pytest.raises(Problems, match=said.replace("?", r"\?")):
        target.workload(**run)


def test_layouts_by_expert_need_ep() -> None:
    target, experts = small("qwen3-moe", **MIXED), "model.layers.*.mlp.experts"
    stored = stored_plan(f"{experts}: by_expert")
    assert target.workload(tp=2, ep=2, plan=stored).inputs["plan"] == stored
    with pytest.raises(Problems, match="nothing is split by expert"):
        target.workload(tp=2, plan=stored)
    with pytest.raises(Problems, match="does not split experts by expert"):
        target.workload(tp=2, ep=2, plan=f"{experts}.gate_up_proj: column; {experts}.down_proj: row")
    assert "by_expert" in LAYOUTS
