"""Ranks that store parts of parameters and gather them layer by layer: formula, graph and torch's ``fully_shard``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from costproof.ledger.errors import Problems
from costproof.models.decoding.fsdp import keep_parts
from costproof.models.decoding.target import CausalTarget
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.patches.sharding import PARTS, FullySharded, plans_of
from costproof.run.fits import fits
from costproof.run.peaks import gathered_bytes, measure_peaks
from costproof.run.roofline import roofline
from costproof.tracers.dynamic import dynamic_ledger
from costproof.tracers.static import static_ledger
from tests.oracles.gloo_fsdp import CASES as CASES_OF_RANKS
from tests.oracles.gloo_fsdp import rank_main
from tests.oracles.gloo_ranks import run_ranks
from tests.tracers.test_ranks import LATENT, but_thorough, by_module, collectives, small, workload
from tests.tracers.test_real_ranks import REASON

LONG: Final = {"batch": 7, "text_tokens": 16}
CASES: Final = {
    "tied table": ("llama", {"tied": True}, {"fsdp": 4, "rank": 3, "batch": 5}),
    "biases": ("qwen2", {}, {"fsdp": 2, "rank": 1}),
    "more ranks than experts": ("qwen3-moe", {"experts": 3}, {"fsdp": 4, "rank": 3, "batch": 4}),
    "experts": ("mixtral", {}, {"fsdp": 3, "rank": 2, "batch": 3}),
    "biases of experts and sinks": ("gpt-oss", {}, {"fsdp": 4, "rank": 0, "batch": 4}),
    "soft caps": ("gemma2", {"tied": True}, {"fsdp": 8, "rank": 6, "batch": 9}),
    "replicas": ("llama", {"tied": True}, {"fsdp": 2, "dp": 2, "rank": 3, "batch": 5}),
    "tensor": ("qwen2", {"tied": True}, {"fsdp": 3, "tp": 2, "rank": 3, "batch": 3}),
    "experts of a rank, tensor": ("mixtral", {}, {"fsdp": 3, "tp": 2, "ep": 2, "rank": 4, "batch": 3}),
    "latents, tensor and replicas": (
        "deepseek-v3",
        LATENT,
        {"fsdp": 3, "tp": 2, "dp": 2, "rank": 7, "batch": 6},
    ),
    "stage between": ("qwen3-moe", {"layers": 3}, {"fsdp": 2, "pp": 3, "tp": 2, "ep": 2, "batch": 3, "rank": 6}),
    "ring of sequences": (
        "llama",
        {"kv_heads": 4, "tied": True},
        {"fsdp": 2, "cp": 2, "cp_plan": "ring", "rank": 3, **LONG},
    ),
    "zigzag, tensor and replicas": (
        "qwen2",
        {"kv_heads": 4},
        {"fsdp": 3, "cp": 2, "tp": 2, "dp": 2, "rank": 17, **LONG},
    ),
    "experts, stages and sequences": (
        "qwen3-moe",
        {"window": 0, "layers": 2},
        {"fsdp": 2, "cp": 3, "pp": 2, "rank": 4, **LONG, "text_tokens": 18},
    ),
    "latents, ulysses": ("deepseek-v2", LATENT, {"fsdp": 2, "cp": 2, "cp_plan": "ulysses", "rank": 1, **LONG}),
    "latents absorbed, tensor": (
        "deepseek-v2",
        {**LATENT, "layers": 1},
        {"fsdp": 2, "cp": 2, "tp": 2, "cp_plan": "ulysses", "decoding": "absorbed", "rank": 2, **LONG},
    ),
    "sinks and windows, ulysses": (
        "gpt-oss",
        {"kv_heads": 4, "heads": 4},
        {"fsdp": 2, "cp": 2, "cp_plan": "ulysses", "rank": 3, "batch": 3, "text_tokens": 16},
    ),
    "last stage": ("llama", {"layers": 3, "tied": True}, {"fsdp": 2, "pp": 2, "tp": 2, "batch": 3, "rank": 6}),
}


IMPLIED: Final = {
    "biases", "experts", "biases of experts and sinks", "replicas", "tensor", "ring of sequences", "latents, ulysses"
}  # fmt: skip
"""Cases whose family, mesh and layout are each in another case, or in those without parts of ``test_shared_sequences``.
"""


@pytest.mark.parametrize(("family", "sizes", "mesh"), but_thorough(CASES, IMPLIED))
def test_three_sources_are_equal(family: str, sizes: dict[str, Any], mesh: dict[str, Any]) -> None:
    """All metrics of all modules, those of the collectives included, are equal."""
    target = small(family, **{"layers": 2 if sizes is LATENT else 1, **sizes})
    work = workload(target, **{"new_tokens": 1, "text_tokens": 9, **mesh})
    formula, graph, run = evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work)
    assert not graph.unknown_ops
    assert not run.ledger.unknown_ops
    assert {*formula.metrics} == {*graph.metrics} == {*run.ledger.metrics}
    of = [by_module(ledger, {*formula.metrics}) for ledger in (formula, graph, run.ledger)]
    assert of[0] == of[1] == of[2]
    assert len(of[0]) > 200
    assert not dist.is_initialized()


@pytest.mark.parametrize("mesh", [{"fsdp": 4, "batch": 4}, {"fsdp": 2, "cp": 2, "batch": 2, "text_tokens": 80}])
def test_collectives_and_parts_by_hand(mesh: dict[str, Any]) -> None:
    """Llama of 2 layers on 4 ranks, the last of which has 24 of 102 rows of each table, and stores 26.

    A layer: q, o are 64 x 64, k, v 32 x 64, gate and up 96 x 64, down 64 x 96; a quarter of each is 16 x 64, 8 x 64,
    24 x 64 and 16 x 96 elements; of two norms of 64 it has 16 each. The root: two tables of 26 x 64 and 16 of the last
    norm. In bfloat16 a rank sends three times its parts, in the prompt once and in four steps four times. Two ranks
    that share the batch, and each sequence with another one, store parts as four do.
    """
    target = small("llama", kv_heads=4)
    work = workload(target, **{"text_tokens": 40, **mesh}, rank=3)
    layer = 2 * (2 * 16 * 64 + 2 * 8 * 64 + 2 * 24 * 64 + 16 * 96 + 2 * 16)
    root = 2 * (2 * 26 * 64 + 16)
    sizes = {"": root, "model.layers.0": layer, "model.layers.1": layer}
    expected = {
        (stage, module, "all_gather"): (calls * 3 * size, calls * 4 * size, calls)
        for stage, calls in (("prefill", 1), ("decode", 4))
        for module, size in sizes.items()
    }
    run = dynamic_ledger(target, work)
    for ledger in (evaluate_formulas(target, work), static_ledger(target, work), run.ledger):
        gathers = {x: n for x, n in collectives(ledger).items() if not x[1].endswith("self_attn")}
        assert gathers == expected
        assert ledger.stage_total("prefill", "weight_bytes") == 2 * layer + root
        padding = 2 * 2 * 64  # two entries of two tables
        assert ledger.stage_total("prefill", "params") == (2 * layer + root) // 2 - padding
        assert ledger.stage_total("prefill", "stored_bytes") == 2 * layer + root - 2 * padding
        assert ledger.stage_total("prefill", "resident_bytes") == 2 * layer + root + 2 * 4 * 4  # two tables
        flops = {n.module: n.cost("flops") for n in ledger.nodes if n.stage == "prefill" and n.cost("flops")}
        assert flops["lm_head"] == 2 * 40 * 64 * 102  # one sequence of 40 tokens, or half of one of 80, all entries


def test_llama_70b_on_8_ranks() -> None:
    """80 layers of 855,654,400 parameters and two tables of 128,256 x 8,192 with a norm; 8 divides every dimension.

    A rank sends 7/8 of 141,107,412,992 bytes in a prompt, and as much in every step.
    """
    target = load_target("llama-3.1-70b")
    assert isinstance(target, CausalTarget)
    work = target.workload(text_tokens=1, new_tokens=2, fsdp=8, batch=8)
    found = count_ranks(target, work, evaluate_formulas(target, work))
    layer = 8192 * (64 + 64 + 8 + 8) * 128 + 3 * 8192 * 28_672 + 2 * 8192
    every = 80 * layer + 2 * 128_256 * 8192 + 8192
    assert (layer, 2 * every) == (855_654_400, 141_107_412_992)
    (row,) = {tuple(sorted(r.stages[""].items())) for r in found.ranks}
    stored = {
        "params": every // 8, "weight_bytes": every // 4, "buffer_bytes": 512, "params_active": every,
        "stored_elements": every // 8, "stored_bytes": every // 4, "resident_bytes": every // 4 + 512,
    }  # fmt: skip
    assert dict(row) == stored
    sent = {c.stage: 0 for c in found.collectives}
    for c in found.collectives:
        sent[c.stage] += c.sent_bytes
    assert sent == {"prefill": 7 * every // 4, "decode": 2 * 7 * every // 4}
    assert {(c.module, c.stage): c.count for c in found.collectives} == {
        ("(root)", "prefill"): 1, ("model.layers.*", "prefill"): 80,
        ("(root)", "decode"): 2, ("model.layers.*", "decode"): 160,
    }  # fmt: skip
    copies = {(d.stage, d.metric, d.what): d.amount for d in found.duplicates}
    own, read = "copies of data-parallel ranks", "parts of parameters that ranks read to gather them"
    assert (copies["", "buffer_bytes", own], copies["", "params_active", own]) == (7 * 512, 7 * every)
    for stage, times in (("prefill", 1), ("decode", 2)):  # each row of the table is looked up once
        assert copies[stage, "weight_read_bytes", read] == times * 2 * every
        assert copies[stage, "weight_read_bytes", own] == times * 7 * 2 * (every - 128_256 * 8192)


def test_parts_of_tensor_parallel_ranks_by_hand() -> None:
    """Llama of 2 layers on tp 4 x fsdp 3 x dp 2; ranks along tp have 26, 26, 26 and 24 of 102 rows of each table.

    The last of these stores ceil(24 / 3) = 8 rows, the others 9. Of a layer q, k, v are 16 x 64, of which a rank stores
    6 rows of 64, o is 64 x 16 (22 rows of 16), gate and up 24 x 64 (8 rows of 64), down 64 x 24 (22 rows of 24), two
    norms have 64 (22 elements each). It sends its parts twice, to the ranks 4 apart of its own replica.
    """
    target = small("llama")
    work = workload(target, fsdp=3, tp=4, dp=2, rank=19, batch=6, new_tokens=1)
    formula = evaluate_formulas(target, work)
    found = count_ranks(target, work, formula)
    layer = 2 * (3 * 6 * 64 + 22 * 16 + 2 * 8 * 64 + 22 * 24 + 2 * 22)
    root = {rank: 2 * (2 * (8 if rank % 4 == 3 else 9) * 64 + 22) for rank in range(24)}
    every = {r: row.stages[""]["weight_bytes"] for row in found.ranks for r in row.ranks}
    assert every == {rank: 2 * layer + root[rank] for rank in range(24)}
    gathers = {(c.module, c.bytes, c.sent_bytes, c.ranks) for c in found.collectives if c.group == "fsdp"}
    group = (15, 19, 23)
    assert gathers == {
        ("(root)", 3 * root[19], 2 * root[19], group), ("model.layers.*", 6 * layer, 4 * layer, group),
    }  # fmt: skip
    own, whole = sum(r.stages[""]["params"] * len(r.ranks) for r in found.ranks), 2 * 102 * 64 + 64
    whole += 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64)
    assert own == 2 * (whole + 3 * 5 * 64)  # two replicas, and the norms of four ranks
    (padding,) = (d.amount for d in found.duplicates if d.metric == "weight_bytes" and d.what.startswith("padding"))
    copies = {d.what: d.amount for d in found.duplicates if d.metric == "weight_bytes"}
    assert copies["norms"] == 2 * 3 * 5 * 64
    assert sum(every.values()) == 2 * (2 * whole + copies["norms"] + padding)


@pytest.mark.parametrize("ranks", [3, 5, 16, 200])
def test_ranks_without_rows(ranks: int) -> None:
    """A dimension d on n ranks: rank r has the rows from r c on, c = ceil(d / n), of d; each rank stores c."""
    target = small("gpt-oss", layers=1)
    work = workload(target, fsdp=ranks, batch=ranks, new_tokens=0)
    found = count_ranks(target, work, evaluate_formulas(target, work))
    with torch.device("meta"):
        shapes = [p.shape for p in target.built(work, "grouped_mm").parameters()]
    own = {r: sum(len([*range(s[0])][r * -(-s[0] // ranks) :][: -(-s[0] // ranks)]) * s[1:].numel() for s in shapes)
           for r in range(ranks)}  # fmt: skip
    assert {r: row.stages[""]["params"] for row in found.ranks for r in row.ranks} == own
    stored = 2 * sum(-(-s[0] // ranks) * s[1:].numel() for s in shapes)
    assert {row.stages[""]["weight_bytes"] for row in found.ranks} == {stored}
    (padding,) = (d.amount for d in found.duplicates if d.metric == "weight_bytes")
    assert padding == ranks * stored - 2 * sum(s.numel() for s in shapes)


def test_parts_of_a_tied_and_uneven_model() -> None:
    """Both readings store the same parts: 7 rows on 4 ranks are 2, 2, 2 and 1; the tied table is one parameter."""
    target = small("llama", tied=True, layers=1, vocab=7)
    work = workload(target)
    for rank, rows in enumerate((2, 2, 2, 1)):
        ours: Any = target.built(work, "grouped_mm")
        theirs: Any = target.built(work, "grouped_mm")
        keep_parts(ours, 4, rank)
        FullySharded(theirs, 4, rank)
        assert vars(ours)[PARTS] == vars(theirs)[PARTS]
        part = vars(ours)[PARTS]["model.embed_tokens.weight"]
        assert (part.own, part.bytes, part.whole) == (rows * 64, 2 * 64 * 2, 7 * 64)
        assert ours.lm_head.weight is ours.model.embed_tokens.weight
        assert type(theirs).__name__ == type(ours).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(("vocab", "root_first", "tensor"), [(1000, True, 1), (8, False, 1), (1000, True, 2)])
def test_gathered_parameters_of_a_real_run(vocab: int, root_first: bool, tensor: int) -> None:
    """The most that torch holds of gathered parameters at once is what ``fits`` adds: 2 R + 2 L, or R + 3 L."""
    target = small("llama", vocab=vocab, layers=3)
    work = workload(target, fsdp=4, tp=tensor, batch=4, new_tokens=0)
    model: Any = target.built(work, "grouped_mm").to_empty(device="cpu")
    found = FullySharded(model, 4, 0, tensor=tensor, plans=plans_of(model, tensor, 1))

    class Gathered(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Sums up the storages that are allocated while parameters are gathered."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.made: list[Any] = []
            self.most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if str(func) == "aten.empty.memory_format" and result.dim() == 1:
                self.made.append(ref(result))
            alive = {
                t.untyped_storage()._cdata: t.untyped_storage().nbytes() for r in self.made if (t := r()) is not None
            }
            self.most = max(self.most, sum(alive.values()))
            return result

    with found.running(), torch.no_grad(), Gathered() as seen:
        model(torch.zeros(1, 8, dtype=torch.long))
    layer = 2 * ((4 * 64 * 64 + 3 * 64 * 96) // tensor + 2 * 64)
    root = 2 * (2 * vocab * 64 // tensor + 64)
    expected = 2 * root + 2 * layer if root_first else root + 3 * layer
    assert seen.most == expected
    assert gathered_bytes(target, work) == expected


def test_fits_adds_gathered_parameters() -> None:
    """Two layers of Llama-3.1-70B on 8 ranks: R = 4,202,708,992, L = 1,711,308,800 bytes; both twice at the first."""
    found = fits("llama-3.1-70b@chat,layers=2,batch=8,fsdp=8,rank=0", on="8xh100-sxm")
    assert found.unpacked_bytes == 2 * 4_202_708_992 + 2 * 1_711_308_800
    assert found.held_weights == (4_202_708_992 + 2 * 1_711_308_800) // 8
    assert found.most_bytes == found.held_weights + 512 + (found.live_bytes or 0) + found.unpacked_bytes
    assert found.verdict == "fits"


def test_peaks_leave_gathered_parameters_apart() -> None:
    """The rank's graph holds what its formula says, as that of a rank with its layers whole; the rest is apart."""
    target = small("llama", layers=1)
    parted, whole = ({"tp": 2, "batch": 4, "new_tokens": 0, **more} for more in ({"fsdp": 4, "rank": 3}, {"rank": 1}))
    work = workload(target, **parted)
    (found,) = measure_peaks(target, work, eager=False)
    (alike,) = measure_peaks(target, replace(workload(target, **whole), batch=1), eager=False, forms=False)
    assert found.graph == alike.graph
    assert found.graph is not None
    assert found.formula == found.graph.bytes
    layer, root = 2 * ((4 * 64 * 64 + 3 * 64 * 96) // 2 + 2 * 64), 2 * (2 * 52 * 64 + 64)  # 51 rows in 4 parts of 13
    assert found.gathered_bytes == 2 * root + 2 * layer


def test_a_roofline_names_its_reads_of_gathered_parameters() -> None:
    found = roofline("llama-3.1-8b@chat,batch=2,fsdp=2", on="2xh100-sxm")
    assert any("as they arrive reads less" in note for note in found.notes)


@pytest.mark.skipif(not (dist.is_gloo_available() and sys.platform == "linux"), reason=REASON)
@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_return_the_same_and_send_as_much(ranks: int) -> None:
    """Two and four processes return one device's logits; wider layers send the bytes of the formula more.

    In float32, of two layers: three matrices of 64 more columns or rows of 64, and in each of 6 experts, of which
    4 ranks store 2 each. A rank of n sends n - 1 of its parts; headers are equal and cancel. Two ranks along tp have
    half of each matrix, and exchange nothing that depends on the inner width; replicas exchange nothing. Of a prompt
    more, 2 ranks that share its 8 tokens send 4 keys and values of 4 heads of 8 in each layer; they store parts too.
    """
    matrices = 2 * 3 * 64 * 64 * 4
    more = {(4, "replicas"): matrices // 2, (4, "tensor"): matrices // 4,
            (4, "sequences"): 3 * matrices // 4 + 2 * 4 * 64 * 4,
            (4, "experts and tensor"): 6 * matrices // 4, (2, "llama"): matrices // 2, (4, "llama"): 3 * matrices // 4,
            (2, "qwen3_moe"): 3 * matrices, (4, "qwen3_moe"): 3 * 2 * matrices}  # fmt: skip
    for rank in run_ranks(rank_main, ranks):
        assert rank.keys() == CASES_OF_RANKS[ranks].keys()
        for name, found in rank.items():
            assert found["largest"] > 0.5
            assert found["theirs"] < 1e-5
            assert found["ours"] < 1e-5
            narrow, wide = found["sent"]
            if narrow is not None:
                assert wide - narrow == more[ranks, name]


def test_bytes_of_parts_and_sequences_are_those_of_real_ranks() -> None:
    """The difference of two widths and batches, as above for two ranks by two."""
    counted = []
    for batch, width in ((4, 32), (6, 96)):
        target = small("llama", kv_heads=4, layers=2, intermediate=width, tied=True, attention_bias=True)
        mesh = {"fsdp": 2, "cp": 2, "batch": batch, "text_tokens": 8, "new_tokens": 0, "dtype": "float32"}
        nodes = evaluate_formulas(target, workload(target, **mesh)).nodes
        counted.append(sum(node.cost("comm_bytes") or 0 for node in nodes if "comm_bytes" in node.costs))
    assert counted[1] - counted[0] == 3 * 2 * 3 * 64 * 64 * 4 // 4 + 2 * 4 * 64 * 4


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"dp": 2, "batch": 7}, "--batch"), ({"tp": 2, "plan": "vllm"}, "--plan"),
        ({"dp": 2, "batch": 8, "ep": 2}, "--fsdp, --ep"),
        ({"batch": 3}, "--batch"), ({"fsdp": 0}, "--fsdp"), ({"rank": 4}, "--rank"),
        ({"fsdp": 1, "cp": 2}, "--fsdp, --cp"),
    ],
)  # fmt: skip
def test_other_meshes_are_refused(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(Problems) as refused:
        workload(small("llama"), **{"fsdp": 4, "batch": 4, **settings})
    assert any(where in str(problem.where) for problem in refused.value.problems)


def test_parts_along_sequences_are_not_proved_as_whole_parameters() -> None:
    with pytest.raises(Problems, match="torchtitan"):
        small("llama").proof(1, 0, fsdp=1, cp=2)
    assert "fsdp" not in workload(small("llama"), fsdp=1, tp=2).inputs
