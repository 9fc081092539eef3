"""Experts that a call reads: by enumeration, by drawing, and in a model that ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache

from costproof import api
from costproof.estimate.roofline import Roofline, WorkBound
from costproof.estimate.routing import uniform_experts
from costproof.ledger.errors import BadInput, Problems
from tests.support.running import costproof

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 64,
}  # fmt: skip
EXPERT: Final = 3 * 32 * 24 * 4
"""Bytes of an expert in float32."""


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 1, 4), (4, 2, 3), (5, 2, 3), (5, 4, 2), (3, 3, 2)])
def test_the_closed_form_is_the_mean_of_all_routings(experts: int, top_k: int, tokens: int) -> None:
    every = list(product(combinations(range(experts), top_k), repeat=tokens))
    mean = Fraction(sum(len({e for choice in routing for e in choice}) for routing in every), len(every))
    assert uniform_experts(experts, top_k, tokens) == mean


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens"), [(64, 6, 1), (64, 6, 8), (256, 8, 32), (8, 2, 3), (128, 8, 50)]
)
def test_the_closed_form_is_near_the_mean_of_a_thousand_routings(experts: int, top_k: int, tokens: int) -> None:
    draw = Random(7)
    drawn = [len({e for _ in range(tokens) for e in draw.sample(range(experts), top_k)}) for _ in range(1000)]
    mean = Fraction(sum(drawn), len(drawn))
    assert abs(uniform_experts(experts, top_k, tokens) / mean - 1) <= Fraction(4, 100)
    assert max(drawn) <= min(experts, tokens * top_k)
    assert top_k <= uniform_experts(experts, top_k, tokens) <= min(experts, tokens * top_k)


def test_uniform_routing_of_deepseek_ocr_by_hand() -> None:
    # 64 experts of 3 x 1280 x 896 in bfloat16, 6 for a token, in 11 layers; a step of 3 sequences, and one of 1.
    expert = 3 * 1280 * 896 * 2
    for batch, touched in ((1, Fraction(6)), (3, 64 * (1 - Fraction(58, 64) ** 3))):
        target = f"deepseek-ocr@text-only,text_tokens=7,new_tokens=2,batch={batch}"
        bound, found = (api.roofline(target, on="h100-sxm", routing=r) for r in ("bound", "uniform"))
        assert (bound.routing, bound.experts, found.routing) == ("bound", (), "uniform")
        layers = [t for t in found.experts if t.stage == "decode"]
        assert [(t.layer, t.experts, t.top_k, t.tokens, t.calls) for t in layers] == [
            (i, 64, 6, batch, 2) for i in range(11)
        ]
        assert {t.touched for t in layers} == {f"64*(1 - (29/32)**{batch})"}
        assert {Fraction(t.bytes) for t in layers} == {2 * touched * expert}
        less = 2 * 11 * (min(64, 6 * batch) - touched) * expert
        for mine, its in zip((floor(found), modules(found)), (counted(bound), modules(bound)), strict=True):
            assert (its.bytes or 0) - (mine.bytes or 0) == less
            assert mine.flops == its.flops
        # The floor itself has the experts of one token, whatever is counted.
        assert (counted(bound).bytes or 0) - (floor(bound).bytes or 0) == 2 * 11 * (min(64, 6 * batch) - 6) * expert


def floor(found: Roofline) -> WorkBound:
    """Of the steps."""
    return found.stages[-1].floor


def counted(found: Roofline) -> WorkBound:
    """Of the steps, with all experts that are counted."""
    return found.stages[-1].full or floor(found)


def modules(found: Roofline) -> WorkBound:
    """Of the steps."""
    return found.stages[-1].modules


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The weights of experts that products read: (parameter, offset) -> bytes, each once."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = {p.untyped_storage().data_ptr(): name for name, p in model.named_parameters() if ".experts." in name}
        self.seen: dict[tuple[str, int], int] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten.mm.default:
            name = self.own.get(args[1].untyped_storage().data_ptr())
            if name is not None:
                self.seen[name, args[1].storage_offset()] = args[1].numel() * args[1].element_size()
        return op(*args, **(kwargs or {}))


@contextmanager
def chosen(model: Any) -> Iterator[list[list[list[int]]]]:
    """What every layer's tokens choose while this lasts."""
    found: list[list[list[int]]] = []

    def note(module: Any, args: Any) -> None:
        found.append(args[1].tolist())

    hooks = [layer.mlp.experts.register_forward_pre_hook(note) for layer in model.model.layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_given_routing_reads_what_a_run_read(batch: int, tmp_path: Path) -> None:
    torch.manual_seed(3)
    settings = CONFIG_MAPPING["mixtral"](**SIZES)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32, experts_implementation="eager").eval()
    cache, read, routing = DynamicCache(config=settings), dict[str, int](), dict[str, list[Any]]()
    for stage, tokens in (("prefill", 3), ("decode", 1), ("decode", 1)):
        ids = torch.randint(0, 64, (batch, tokens))
        with torch.no_grad(), chosen(model) as layers, Reads(model) as reads:
            model(ids, past_key_values=cache, use_cache=True)
        read[stage] = read.get(stage, 0) + sum(reads.seen.values())
        routing.setdefault(stage, []).append(layers)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral", **SIZES}), encoding="utf-8")
    file = tmp_path / "routing.json"
    file.write_text(json.dumps(routing), encoding="utf-8")
    target = f"mixtral@chat,text_tokens=3,new_tokens=2,dtype=float32,batch={batch}"
    found = api.roofline(target, on="h100-sxm", math="tf32", config=tmp_path / "config.json", routing=file)
    assert found.routing == "given"
    for stage in ("prefill", "decode"):
        layers_read = [t for t in found.experts if t.stage == stage]
        assert sum(t.bytes for t in layers_read) == read[stage]
        assert sum(Fraction(t.touched) * t.calls for t in layers_read) * EXPERT == read[stage]
    whole = api.roofline(target, on="h100-sxm", math="tf32", config=tmp_path / "config.json")
    most = 2 * (min(8, 2 * 3 * batch) + 2 * min(8, 2 * batch)) * EXPERT
    counts = whole.run.full or whole.run.floor
    assert (counts.bytes or 0) - (found.run.floor.bytes or 0) == most - sum(read.values())

    for change, said in {
        '{"prefill": []}': "wrong number of calls",
        json.dumps({**routing, "extra": []}): r"unknown stage, or it has no.*\n.*\n.*prefill or decode\n.*extra",
        "[]": "no entry for this stage",
        json.dumps(routing).replace("[[[[", "[[[[8, ", 1): "invalid choice of experts",
    }.items():
        file.write_text(change, encoding="utf-8")
        with pytest.raises(BadInput, match=said):
            api.roofline(target, on="h100-sxm", math="tf32", config=tmp_path / "config.json", routing=file)


def test_borders_with_weights_are_those_of_the_bound() -> None:
    found = api.roofline("mixtral-8x7b", on="h100-sxm", routing="uniform")
    assert {b.unit for b in found.borders} == {"FLOP"}
    with pytest.raises(BadInput, match="no routed experts"):
        api.roofline("llama-3.1-8b", on="h100-sxm", routing="uniform")
    # (1 - 2/8)**8000 has 4,817 digits below the line, more than Python converts to text.
    assert api.roofline("mixtral-8x7b,text_tokens=8000", on="h100-sxm", routing="uniform").experts


def test_the_outputs_say_which_routing(tmp_path: Path) -> None:
    for form, line in (
        ("text", "decode text.layer.experts, 32 layers: 8*(1 - (3/4)**1) of 8 experts, 2 for each of 1 tokens a call"),
        ("md", "of experts as uniform routing has it on average"),
        ("json", '"touched": "8*(1 - (3/4)**512)"'),
    ):
        done = costproof(
            "roofline", "mixtral-8x7b", "--on", "h100-sxm", "--routing", "uniform", "-f", form, cwd=tmp_path
        )
        assert (done.code, line in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(("top_k", "tokens"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_the_closed_form_of_a_rank_is_the_mean_of_all_routings(top_k: int, tokens: int) -> None:
    """Four experts on two ranks: experts touched and rows of each rank, and the longest of any convex times."""
    touched, rows, longest = [Fraction(0)] * 2, [Fraction(0)] * 2, Fraction(0)
    every = list(product(combinations(range(4), top_k), repeat=tokens))
    for routing in every:
        chosen = [[e for choice in routing for e in choice if e // 2 == rank] for rank in range(2)]
        touched = [t + Fraction(len({*mine}), len(every)) for t, mine in zip(touched, chosen, strict=True)]
        rows = [r + Fraction(len(mine), len(every)) for r, mine in zip(rows, chosen, strict=True)]
        longest += Fraction(max(max(5 * len({*mine}), 4 * len(mine)) for mine in chosen), len(every))
    mean = uniform_experts(4, top_k, tokens, 2)
    assert touched == [mean, mean]
    assert rows == [Fraction(tokens * top_k, 2)] * 2
    assert max(5 * mean, 4 * rows[0]) < longest


@pytest.mark.parametrize("mesh", ["tp=2,ep=2", "dp=2,ep=2"])
def test_uniform_routing_of_ranks_is_the_mean_of_all_routings(mesh: str, tmp_path: Path) -> None:
    """Two tokens choose one of four experts each, on two ranks: 16 files of a routing, each counted exactly.

    A rank touches 2 (1 - (3/4)^2) = 7/8 of its experts in the mean. Bytes are rounded up, and costs of rows down.
    """
    config = {"model_type": "mixtral", **SIZES, "num_hidden_layers": 1, "num_local_experts": 4}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 1}), encoding="utf-8")
    run = f"mixtral@chat,text_tokens=1,new_tokens=0,dtype=float32,batch=2,{mesh}"
    given: dict[str, Any] = {"on": "h100-sxm", "math": "tf32", "config": tmp_path / "config.json"}
    uniform = api.roofline(run, **given, routing="uniform")
    assert {(e.experts, e.top_k, e.tokens, e.touched) for e in uniform.experts} == {(2, 1, 2, "2*(1 - (3/4)**2)")}
    moved, flops, roofs, read, slowest = Fraction(0), Fraction(0), [Fraction(0)] * 2, Fraction(0), Fraction(0)
    for i, choices in enumerate(product(range(4), repeat=2)):
        file = tmp_path / f"{i}.json"
        file.write_text(json.dumps({"prefill": [[[[e] for e in choices]]]}), encoding="utf-8")
        found = api.roofline(run, **given, routing=file)
        assert found.links is not None
        moved += Fraction(found.run.modules.bytes or 0, 16)
        flops += Fraction(found.run.modules.flops or 0, 16)
        read += Fraction(sum(e.bytes for e in found.experts), 16)
        times = {rank: Fraction(row.exposed_s or 0) for row in found.links.ranks for rank in row.ranks}
        roofs = [whole + times[rank] / 16 for rank, whole in enumerate(roofs)]
        slowest += max(times.values()) / 16
    assert read == Fraction(7, 8) * EXPERT == uniform.experts[0].bytes
    assert flops == uniform.run.modules.flops
    assert uniform.run.modules.bytes == moved
    assert uniform.links is not None
    (row,) = uniform.links.ranks
    assert (row.ranks, Fraction(row.exposed_s or 0) <= min(roofs), max(roofs) < slowest) == ((0, 1), True, True)


def test_uniform_routing_of_experts_in_float8_on_eight_ranks() -> None:
    """A rank of DeepSeek-V3 has 32 experts, of which a token leaves out each with probability 31/32.

    An expert has three matrices of 7,168 x 2,048 bytes, with a scale of 4 bytes for 128 x 128. Of tp 8 a rank has an
    eighth of each expert and reads 256 / 8 as many, the same bytes.
    """
    expert = 3 * (7168 * 2048 + 56 * 16 * 4)
    run = "deepseek-v3@chat,text_tokens=4,new_tokens=1,batch=31,layers=4,decoding=absorbed,tp=8"
    moved, whole = {}, {}
    for ep in ("", ",ep=8"):
        for routing in ("bound", "uniform"):
            found = api.roofline(f"{run}{ep}", on="8xh200-sxm", routing=routing)
            (decode,) = (stage for stage in found.stages if stage.id == "decode")
            moved[ep, routing] = Fraction(decode.modules.memory_s or 0) * found.bandwidth
            assert found.links is not None
            assert [row.ranks for row in found.links.ranks] == [tuple(range(8))]
        whole[ep] = [e.bytes for e in found.experts if e.stage == "decode"]
    assert [(e.experts, e.touched) for e in found.experts if e.stage == "decode"] == [(32, "32*(1 - (31/32)**31)")]
    mean = 32 * (1 - Fraction(31, 32) ** 31)
    # The bound is 32 experts of a rank of ep 8, and eighths of 248 of tp 8.
    for ep, most in (("", 31), (",ep=8", 32)):
        assert 0 <= expert * (most - mean) - (moved[ep, "bound"] - moved[ep, "uniform"]) < 3
    (of_tp,), (of_ep,) = whole[""], whole[",ep=8"]
    assert abs(of_tp - of_ep) <= 1


def test_ranks_of_groups_with_other_tokens_have_other_means() -> None:
    """Of five sequences on four replicas ranks 0 and 1 share three, ranks 2 and 3 two; ranks hold four experts."""
    found = {
        rank: api.roofline(f"mixtral-8x7b@chat,layers=1,batch=5,dp=4,ep=2,rank={rank}", on="h100-sxm",
                           routing="uniform")
        for rank in (0, 3)
    }  # fmt: skip
    for rank, tokens in ((0, 3), (3, 2)):
        texts = {e.touched for e in found[rank].experts if e.stage == "decode"}
        assert texts == {f"4*(1 - (3/4)**{tokens})"}
    assert found[0].links is not None
    assert found[3].links is not None
    assert found[0].links.ranks == found[3].links.ranks
    assert [row.ranks for row in found[0].links.ranks] == [(0,), (1,), (2, 3)]


def test_stages_of_a_pipeline_with_and_without_experts() -> None:
    """Of five layers of DeepSeek-V3 the first three have none; two stages have two and three layers."""
    run = "deepseek-v3@chat,layers=5,text_tokens=4,batch=4,tp=2,pp=2"
    for mesh, held in (("", 256), (",ep=2", 128)):
        for rank, layers in ((0, 0), (3, 2)):
            found = api.roofline(f"{run}{mesh},rank={rank}", on="h200-sxm", routing="uniform")
            assert [e.experts for e in found.experts if e.stage == "decode"] == [held] * layers
            assert found.links is not None
            assert sorted(row.ranks for row in found.links.ranks) == [(0, 1), (2, 3)]
    with pytest.raises(BadInput, match="no routed experts"):
        api.roofline("llama-3.1-8b@chat,layers=2,pp=2", on="h100-sxm", routing="uniform")


def test_uniform_routing_of_a_run_with_given_pairs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_text(json.dumps({"prefill": [[[[0, 4], [1, 5]]]]}), encoding="utf-8")
    run = "mixtral-8x7b@chat,layers=1,text_tokens=1,new_tokens=0,batch=2,dp=2,ep=2"
    for pairs in ("dispatch=all-to-all,pairs=1,1;1,1", f"pairs={tmp_path / 'given.json'}"):
        with pytest.raises(BadInput, match="--pairs gives this run another routing"):
            api.roofline(f"{run},{pairs}", on="h100-sxm", routing="uniform")


def test_the_outputs_say_that_times_of_ranks_are_means(tmp_path: Path) -> None:
    for form, lines in (
        ("text", (
            "decode text.layer.experts, 1 layer: 4*(1 - (3/4)**2) of 4 experts of the rank, 2 for each of 2 tokens",
            "At the roof: nothing is faster in the mean of uniform routing that runs module by module",
            "All 2 ranks have these times in the mean; the slowest of them takes as long or longer.",
            "uniform routing in the mean: of the T tokens of all batches of its ep group each rank has T k / ep rows",
        )),
        ("json", ('"touched": "4*(1 - (3/4)**2)"', "the slowest rank takes as long or longer")),
        ("md", ("in the mean; the slowest of them takes as long or longer",)),
    ):  # fmt: skip
        run = ("roofline", "mixtral-8x7b@chat,layers=1,batch=2,dp=2,ep=2", "--on", "h100-sxm")
        done = costproof(*run, "--routing", "uniform", "-f", form, cwd=tmp_path)
        assert (done.code, [line for line in lines if line not in done.stdout]) == (0, []), done.stdout


PROMPT: list[list[int]] = [[0, 1], [0, 2], [1, 0], [6, 7]]
STEP: list[list[int]] = [[2, 3], [2, 3], [5, 3], [0, 7]]
LOADS: dict[str, dict[str, list[tuple[int, int, int]]]] = {
    # Of four ranks with two experts each, and one token each: (pairs, experts touched, pairs sent and returned).
    "tp=2,dp=2,ep=4": {
        # Rank 0 keeps both pairs of its token and returns results to rank 1 (one) and rank 2 (two).
        "prefill": [(5, 2, 3), (1, 1, 1), (0, 0, 2), (2, 2, 0)],
        # Rank 0 sends two and returns one; 1 keeps its own and returns three; 2 sends one; 3 keeps one of its two.
        "decode": [(1, 1, 3), (5, 2, 3), (1, 1, 1), (1, 1, 1)],
    },
    # Of two ranks with four experts each, which have the same four tokens and send none.
    "tp=2,ep=2": {"prefill": [(6, 3, 0), (2, 2, 0)], "decode": [(6, 3, 0), (2, 2, 0)]},
}


@pytest.mark.parametrize("mesh", LOADS)
@pytest.mark.parametrize("option", ["routing", "pairs"])
def test_a_given_routing_on_ranks_with_some_of_the_experts(mesh: str, option: str, tmp_path: Path) -> None:
    """Mixtral of 32 layers, whose experts have three matrices of 4,096 x 14,336, on ranks with one or two tokens.

    A token is 4,096 x 2 bytes, there or back. The path has a comma and a sign of equality.
    """
    file = tmp_path / "tokens,of=a,run.json"
    file.write_text(json.dumps({"prefill": [[PROMPT] * 32], "decode": [[STEP] * 32]}), encoding="utf-8")
    run = f"mixtral-8x7b@chat,text_tokens=1,new_tokens=1,batch=4,{mesh}"
    if option == "pairs" and "dp" not in mesh:
        with pytest.raises(Problems, match="these ranks send no tokens to experts"):
            api.roofline(f"{run},pairs={file}", on="h100-sxm")
        return
    if option == "routing":
        found = api.roofline(run, on="h100-sxm", routing=file)
    else:
        found = api.roofline(f"{run},pairs={file}", on="h100-sxm")
    assert found.routing == "given"
    matrix = 3 * 4096 * 14_336
    for stage, ranks in LOADS[mesh].items():
        mine = [load for load in found.routed_ranks if load.stage == stage]
        assert [load.rank for load in mine] == [*range(len(ranks))]
        for load, (pairs, touched, sent) in zip(mine, ranks, strict=True):
            assert (load.pairs, load.touched) == (32 * pairs, str(touched))
            assert (load.read_bytes, load.expert_flops) == (32 * touched * matrix * 2, 32 * pairs * 2 * matrix)
            assert load.sent.get("all-to-all", 0) == 32 * sent * 8192
        assert {e.tokens for e in found.experts if e.stage == stage} == {4}
        counted = next(s for s in found.stages if s.id == stage).modules
        own = 32 * ranks[0][1] * matrix * 2
        assert (counted.bytes or 0) >= own
    assert found.links is not None
    assert sorted(r for row in found.links.ranks for r in row.ranks) == [*range(len(ranks))]
    if "dp" in mesh:  # rank 2 has no expert to read in the prompt, and one in the step; rank 0 two and one
        times = {row.ranks[0]: Fraction(row.overlapped_s or 0) for row in found.links.ranks}
        assert min(times, key=lambda rank: times[rank]) == 2
        more = Fraction(32 * 2 * matrix * 2, found.bandwidth)
        assert Fraction(98, 100) < (times[0] - times[2]) / more < Fraction(102, 100)


def test_a_given_routing_of_ranks_that_send_pairs(tmp_path: Path) -> None:
    """``--dispatch all-to-all`` with ``--routing`` is that with ``--pairs``; two routings of one run are refused."""
    tokens = [[0, 2], [0, 5], [1, 4], [6, 3]]
    for name, choices in (("one", tokens), ("other", tokens[::-1])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"prefill": [[choices] * 32]}), encoding="utf-8")
    one, other = (tmp_path / f"{name}.json" for name in ("one", "other"))
    run = "mixtral-8x7b@chat,text_tokens=1,new_tokens=0,batch=4,dp=4,ep=4,dispatch=all-to-all"
    found = api.roofline(run, on="h100-sxm", routing=one)
    assert found.routed_ranks == api.roofline(f"{run},pairs={one}", on="h100-sxm").routed_ranks
    # Rank 0 has expert 0 twice and 1 once: three pairs, two experts; it sends one pair and returns two results.
    first = found.routed_ranks[0]
    assert (first.pairs, first.touched, first.sent["all-to-all"]) == (32 * 3, "2", 32 * 3 * 8192)
    assert found.links is not None
    (sent,) = (c.sent_bytes for c in found.links.collectives if c.kind == "all_to_all")
    assert sent == 32 * (3 * 8192 + 6 * 8)  # and how many pairs come for each of six other experts
    with pytest.raises(BadInput, match="two routings of one run"):
        api.roofline(f"{run},pairs={one}", on="h100-sxm", routing=other)


def test_a_given_routing_of_layers_that_differ(tmp_path: Path) -> None:
    """Stages of 16 layers each read what their own layers' tokens choose; every layer has a formula of its own.

    In even layers each of two ranks along tp has 4 pairs, of its experts 0 to 2, or 4 to 6. In odd layers rank 0 has 7,
    of two experts, and rank 1 one. Ranks send the pairs of two tokens each: two of even layers, and of odd ones rank 1
    three; results return.
    """
    even, odd = [[0, 4], [1, 5], [2, 6], [0, 4]], [[0, 1], [0, 1], [0, 1], [0, 4]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [[even, odd] * 16]}), encoding="utf-8")
    run = "mixtral-8x7b@chat,text_tokens=4,new_tokens=0,batch=1,tp=2,ep=2,dispatch=all-to-all"
    for stages, layers in ((1, 32), (2, 16)):
        found = api.roofline(f"{run},pairs={tmp_path / 'routing.json'},pp={stages}", on="h100-sxm")
        half = layers // 2
        expected = [(half * (4 + 7), "5/2", half * (2 + 2 + 0 + 3)), (half * (4 + 1), "2", half * (2 + 2 + 3 + 0))]
        assert [load.rank for load in found.routed_ranks] == [*range(2 * stages)]
        for load in found.routed_ranks:
            pairs, touched, moved = expected[load.rank % 2]
            assert (load.pairs, load.touched, load.sent["all-to-all"]) == (pairs, touched, moved * 8192)


def test_a_given_routing_of_unequal_steps(tmp_path: Path) -> None:
    """Of two steps rank 0 reads the experts 0 to 2, then 0; rank 1 reads 4, then 4 to 6: four experts each."""
    steps = [[[[0, 1], [2, 4]]] * 32, [[[4, 5], [0, 6]]] * 32]
    data = {"prefill": [[[[0, 4]] * 4] * 32], "decode": steps}
    (tmp_path / "routing.json").write_text(json.dumps(data), encoding="utf-8")
    run = "mixtral-8x7b@chat,text_tokens=2,new_tokens=2,batch=2,dp=2,ep=2,dispatch=all-to-all"
    found = api.roofline(f"{run},pairs={tmp_path / 'routing.json'}", on="h100-sxm")
    loads = [load for load in found.routed_ranks if load.stage == "decode"]
    assert [(load.pairs, load.touched) for load in loads] == [(32 * 4, "2")] * 2
    assert {load.read_bytes for load in loads} == {32 * 4 * 3 * 4096 * 14_336 * 2}


def test_the_report_has_the_load_of_each_rank(tmp_path: Path) -> None:
    (tmp_path / "a,b.json").write_text(json.dumps({"prefill": [[PROMPT] * 32], "decode": [[STEP] * 32]}))
    run = ("mixtral-8x7b@chat,text_tokens=1,new_tokens=1,batch=4", "--tp", "2", "--dp", "2", "--ep", "4")
    for option in ("--routing", "--pairs"):
        done = costproof("roofline", *run, "--on", "4xh100-sxm", option, "a,b.json", cwd=tmp_path)
        assert done.code == 0, done.stderr
        said = "prefill: rank 0 has the most pairs of a token and an expert, 160, rank 2 the fewest, 0; 64 in the mean."
        assert said in done.stdout
        assert "all-to-all 786.43 kB" in done.stdout


def test_another_routing_changes_weights_alone() -> None:
    """What operators move among themselves does not depend on which experts are read."""
    between = []
    for routing in ("bound", "uniform"):
        found = api.roofline("mixtral-8x7b@chat,batch=4", on="h100-sxm", routing=routing)
        stages = [(s.unfused, s.modules) for s in found.stages]
        between.append([(u.bytes or 0) - (m.bytes or 0) for u, m in stages if u is not None])
    assert between[0] == between[1]
    assert len(between[0]) == 2


def test_a_model_without_formulas_is_refused_before_it_is_built(tmp_path: Path) -> None:
    """The class is none that can be built: what is said is of the routing."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3", "num_attention_heads": 0}))
    for routing in ("uniform", "given.json"):
        with pytest.raises(BadInput, match="no formulas describe this run"):
            api.roofline(f"hf:{tmp_path}", on="h100-sxm", routing=routing)


def test_experts_in_float8_that_are_not_read() -> None:
    """A rank reads an expert as the checkpoint stores it: of 31 tokens 248 at most, 160 in the mean.

    DeepSeek-V3 with one layer of experts: three matrices of 7,168 x 2,048 bytes, a scale of 4 bytes for 128 x 128.
    """
    expert = 3 * (7168 * 2048 + 56 * 16 * 4)
    run = "deepseek-v3@chat,text_tokens=4,new_tokens=1,batch=31,layers=4,decoding=absorbed"
    moved = {}
    for routing in ("bound", "uniform"):
        found = api.roofline(run, on="h200-sxm", routing=routing)
        (decode,) = (stage for stage in found.stages if stage.id == "decode")
        moved[routing] = Fraction(decode.modules.memory_s or 0) * found.bandwidth
    less = expert * (248 - 256 * (1 - Fraction(31, 32) ** 31))
    assert 0 <= less - (moved["bound"] - moved["uniform"]) < 3  # bytes are rounded up
