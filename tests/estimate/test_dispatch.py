"""Copies of tokens for the experts of other ranks: published tables and logs, enumeration, and random routings."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

import costproof
from costproof.estimate import routing
from costproof.estimate.routing import (
    DISPATCHES,
    RoutedCall,
    RoutedLayers,
    dispatch_rows,
    fp8_bytes,
    is_table,
    routing_data,
    stored_routing,
)
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import Dispatch, Mesh

V3: Final = RoutedLayers(58, 256, 8, 7168, 2048)
"""DeepSeek-V3 without the limit to 4 of 8 groups."""
LIMITED: Final = RoutedLayers(58, 256, 8, 7168, 2048, groups=8, best_groups=4)
MIXTRAL: Final = RoutedLayers(32, 8, 2, 4096, 14_336)
ONE_LAYER: Final = RoutedLayers(1, 8, 2, 4096, 14_336)
FORMS: Final = {form.name: form for form in DISPATCHES}


def copies(form: str, sizes: RoutedLayers, ranks: int, *, uniform: bool = True) -> Fraction:
    return FORMS[form].copies(sizes, Mesh(dp=ranks, ep=ranks), 8, uniform=uniform)


@pytest.mark.parametrize(("ranks", "known"), [(8, "4.633"), (32, "7.040"), (64, "7.556")])
def test_copies_by_rank_of_a_uniform_routing(ranks: int, known: str) -> None:
    """The table of copies for 256 experts of which a token chooses 8: (g - 1) (1 - C(E - E/g, 8) / C(E, 8))."""
    assert f"{float(copies('by-rank', V3, ranks)):.3f}" == known


@pytest.mark.parametrize(("ranks", "more"), [(8, 51.1), (32, 13.6), (64, 5.9)])
def test_copies_of_aiconfigurator(ranks: int, more: float) -> None:
    """It counts min(k, E, ep - 1) copies, so many per cent more."""
    assert round(100 * (min(8, 256, ranks - 1) / float(copies("by-rank", V3, ranks)) - 1), 1) == more


def test_a_log_of_deepep() -> None:
    """DeepEP#28: EP 16, 128 tokens of which 10 of 1,024 choices are masked: 42.24 GB/s in 521.97 us.

    A message has 7,168 bytes, 56 scales of 4 and a header of 16; the result has 7,168 x 2 bytes.
    """
    header = FORMS["low-latency"].header
    assert (fp8_bytes(7168), header) == (7168 + 56 * 4, 16)
    sent = (128 * 8 - 10) * (fp8_bytes(7168) + header + 2 * 7168)
    assert sent == 22_048_416
    assert f"{sent / 521.97e-6 / 1e9:.4f}" == "42.2408"


def test_copies_of_mixtral() -> None:
    """Two of 8 experts: a rank with one of them gets a token in 7 of 28 cases, one with four in all but 6 of 28."""
    assert copies("by-rank", MIXTRAL, 8) == 7 * Fraction(7, 28)
    assert copies("by-rank", MIXTRAL, 2) == Fraction(22, 28)
    assert copies("all-to-all", MIXTRAL, 8) == Fraction(7, 4)
    assert copies("all-gather", MIXTRAL, 8) == 7
    assert copies("all-to-all", MIXTRAL, 2, uniform=False) == 2


def test_a_limit_to_groups() -> None:
    """DeepSeek-V3 on 8 nodes of 8: a token reaches at most 4 of them, 3 if one of these is its own is not assured."""
    assert copies("by-node", LIMITED, 64, uniform=False) == 4
    assert copies("by-node", V3, 64, uniform=False) == 7
    # Each node is a group: it is among the 4 of 8, and not all 8 experts are from the 96 of the others.
    assert copies("by-node", LIMITED, 64) == 7 * Fraction(1, 2) * (1 - choose(96, 8) / choose(128, 8))


def choose(items: int, of: int) -> Fraction:
    found = Fraction(1)
    for i in range(of):
        found *= Fraction(items - i, i + 1)
    return found


SMALL: Final = (RoutedLayers(1, 12, 3, 1, 1), RoutedLayers(1, 12, 3, 1, 1, 4, 2), RoutedLayers(1, 12, 2, 1, 1, 3, 2),
                RoutedLayers(1, 12, 4, 1, 1, 6, 3), RoutedLayers(1, 8, 2, 1, 1, 4, 2))  # fmt: skip


@pytest.mark.parametrize("sizes", SMALL)
def test_every_choice_of_a_small_router(sizes: RoutedLayers) -> None:
    """Average and most over all choices of groups, and of experts in them, one by one."""
    group = sizes.experts // sizes.groups
    for units in (2, 3, 4, 6, 12):
        if sizes.experts % units or not sizes.nested(units):
            continue
        share, reached, most = sizes.experts // units, Fraction(0), 0
        sets = list(combinations(range(sizes.groups), sizes.best_groups))
        for best in sets:
            every = list(combinations([e for e in range(sizes.experts) if e // group in best], sizes.top_k))
            found = [len({e // share for e in chosen}) for chosen in every]
            reached += Fraction(sum(found), len(every) * len(sets))
            most = max(most, *found)
        assert units * sizes.reached(units) == reached
        assert sizes.most_units(units) == most


def test_random_routings() -> None:
    """200 routings of 64 tokens on 8 ranks: none needs more than the bound, and on average they need the mean."""
    rng, sent, pairs = random.Random(1), 0, 0
    for _ in range(200):
        for token in range(64):
            home, chosen = token // 8, rng.sample(range(256), 8)
            ranks = {expert // 32 for expert in chosen} - {home}
            remote = sum(expert // 32 != home for expert in chosen)
            assert len(ranks) <= copies("by-rank", V3, 8, uniform=False)
            assert remote <= copies("all-to-all", V3, 8, uniform=False)
            sent, pairs = sent + len(ranks), pairs + remote
    assert abs(sent / (200 * 64) - float(copies("by-rank", V3, 8))) < 0.05
    assert abs(pairs / (200 * 64) - float(copies("all-to-all", V3, 8))) < 0.05


def test_bytes_and_flops_of_a_rank() -> None:
    """Mixtral on two ranks, each with 3 prompts of 5 tokens and two steps: 30 tokens in a call of the prompt."""
    calls = (RoutedCall("prefill", "prompt", (15, 15), 1), RoutedCall("decode", "steps", (3, 3), 2))
    rows = dispatch_rows(MIXTRAL, Mesh(dp=2, ep=2), 0, calls, 2)
    found = {(d.stage, d.form, d.routing): d for d in rows}
    assert len(found) == 2 * (1 + 3 * 2)
    narrow = 4096 + 32 * 4
    row = 6 * 4096 * 14_336
    gathered = found["prefill", "all-gather", "any"]
    assert gathered == Dispatch("prefill", "prompt", "all-gather", "any", "1", 32 * 15 * 16_384,
                                32 * 15 * (narrow + 8192), 32 * 60 * row, 32 * 15 * 16_384)  # fmt: skip
    uniform = found["decode", "by-rank", "uniform"]
    assert (uniform.copies, uniform.sent_bytes) == ("11/14", -(-32 * 2 * 3 * 11 * 16_384 // 14))
    assert uniform.expert_flops == 32 * 2 * 6 * row  # half of 6 tokens x 2 choices
    most = found["prefill", "low-latency", "bound"]
    assert (most.copies, most.sent_bytes) == ("2", 32 * 15 * 2 * (16_384 + 16))
    assert most.expert_flops == gathered.expert_flops  # all tokens may choose two of its four experts


def test_a_rank_returns_the_results_of_all_tokens_that_choose_it() -> None:
    """Of eight ranks with one expert each, rank 0 sends 7 results of 8,192 bytes if all other tokens choose its expert.

    Its own token may leave as 2 copies at the same time. Unequal batches of 3 and 1 tokens: rank 0 gathers one token,
    and sends parts of sums for it.
    """
    call = RoutedCall("decode", "steps", (1,) * 8, 1)
    found = {(d.form, d.routing): d for d in dispatch_rows(ONE_LAYER, Mesh(dp=8, ep=8), 0, [call], 2)}
    assert found["all-to-all", "bound"].sent_bytes == (2 + 7 * 1) * 8192  # of its single expert
    assert found["by-rank", "bound"].sent_bytes == (2 + 7) * 8192
    assert found["all-to-all", "uniform"].sent_bytes == 2 * Fraction(7, 4) * 8192
    uneven = RoutedCall("prefill", "prompt", (3, 1), 1)
    gathered = [next(dispatch_rows(ONE_LAYER, Mesh(dp=2, ep=2), rank, [uneven], 2)) for rank in (0, 1)]
    # All but the part of the next rank goes on, and partial sums of all tokens but the rank's own.
    assert [d.sent_bytes for d in gathered] == [(3 + 1) * 8192, (1 + 3) * 8192]


def test_forms_that_a_mesh_lacks() -> None:
    """Nodes of 8 need more than 8 ranks, and a mean needs groups that ranks do not cut."""
    calls = [RoutedCall("prefill", "prompt", (1,) * 8, 1)]
    forms = {d.form for d in dispatch_rows(V3, Mesh(dp=8, ep=8), 0, calls, 2)}
    assert forms == set(FORMS) - {"by-node"}
    cut = RoutedLayers(1, 12, 2, 1, 1, 3, 2)
    two = [RoutedCall("prefill", "prompt", (1, 1), 1)]
    means = {d.form for d in dispatch_rows(cut, Mesh(dp=2, ep=2), 0, two, 2) if d.routing == "uniform"}
    assert means == {"all-to-all", "low-latency"}


# --- Routings from a file --------------------------------------------------------------------------------------------


def written(folder: Path, routing: object) -> str:
    file = folder / "routing.json"
    file.write_text(json.dumps(routing), encoding="utf-8")
    return stored_routing(str(file))


def test_a_routing_by_hand(tmp_path: Path) -> None:
    """Two ranks with four experts each and tokens of 8,192 bytes: rank 0 has two tokens, rank 1 one.

    Token 0 chooses experts 0 and 5: one copy leaves. Token 1 chooses 4 and 5, both of rank 1: two copies by expert,
    one by rank. Token 2, of rank 1, chooses 6 and 3: one copy leaves. Rank 0 sends 3 copies and one result, or 2 and 1.
    Its experts get the pairs 0, and 3: 2 pairs; those of rank 1 get 5, 4, 5 and 6.
    """
    routing = written(tmp_path, {"prefill": [[[[0, 5], [4, 5], [6, 3]]]]})
    call, mesh = RoutedCall("prefill", "prompt", (2, 1), 1), Mesh(dp=2, ep=2)
    for rank, by_expert, by_rank, to, pairs in ((0, (3, 1), (2, 1), (1, 3), 2), (1, (1, 3), (1, 2), (1, 1), 4)):
        rows = dispatch_rows(ONE_LAYER, mesh, rank, [call], 2, routing)
        found = {d.form: d for d in rows if d.routing == "given"}
        assert {*found} == {"all-to-all", "low-latency", "by-rank"}
        for form, (out, into) in (("all-to-all", by_expert), ("low-latency", by_expert), ("by-rank", by_rank)):
            header, narrow = FORMS[form].header, 4096 + 32 * 4
            assert found[form].sent_bytes == out * (8192 + header) + into * 8192
            assert found[form].received_bytes == into * (8192 + header) + out * 8192
            assert found[form].fp8_bytes == out * (narrow + header) + into * 8192
            assert Fraction(found[form].copies) == Fraction(out, (2, 1)[rank])
            assert found[form].expert_flops == pairs * 6 * 4096 * 14_336
        assert found["all-to-all"].sent_to == to


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        (Mesh(dp=4, ep=4), RoutedLayers(2, 8, 2, 8, 4)),
        (Mesh(dp=4, ep=2), RoutedLayers(2, 8, 3, 8, 4)),
        (Mesh(tp=2, dp=2, ep=4), RoutedLayers(3, 16, 4, 8, 4, 4, 2)),
        (Mesh(tp=2, dp=4, ep=4), RoutedLayers(1, 8, 3, 8, 4)),
        (Mesh(dp=16, ep=16), RoutedLayers(2, 32, 4, 8, 4, 8, 4)),
        (Mesh(tp=2, dp=16, ep=32), RoutedLayers(1, 64, 5, 8, 4)),
    ],
)
def test_random_routings_of_all_ranks(mesh: Mesh, sizes: RoutedLayers, tmp_path: Path) -> None:
    """Every token is sent by itself, in unequal batches, steps and layers, and counted where it arrives.

    None is above the bound.
    """
    rng, world = random.Random(repr((mesh, sizes))), mesh.tp * mesh.dp
    batches = tuple(n for n in [rng.randint(0, 5) for _ in range(mesh.dp)] for _ in range(mesh.tp))
    calls = [RoutedCall("prefill", "prompt", batches, 1), RoutedCall("decode", "steps", batches, 3)]
    total = sum(batches) // mesh.tp

    def choice() -> list[int]:
        groups = rng.sample(range(sizes.groups), sizes.best_groups)
        return rng.sample([e for e in range(sizes.experts) if e * sizes.groups // sizes.experts in groups], sizes.top_k)

    data = {c.stage: [[[choice() for _ in range(total)] for _ in range(sizes.layers)] for _ in range(c.calls)]
            for c in calls}  # fmt: skip
    routing = written(tmp_path, data)
    for call in calls:
        sent, got, held = Counter[tuple[str, int]](), Counter[tuple[str, int]](), Counter[int]()
        for layer in (layer for one in data[call.stage] for layer in one):
            queue = list(layer)
            for batch in range(mesh.dp):
                mine = [queue.pop(0) for _ in range(batches[batch * mesh.tp])]
                for i, chosen in enumerate(mine):
                    home = batch * mesh.tp + i // -(-len(mine) // mesh.tp)
                    group = home - home % mesh.ep
                    at = [group + e // (sizes.experts // mesh.ep) for e in chosen]
                    held.update(at)
                    moves = [("all-to-all", r) for r in at] + [("by-rank", r) for r in {*at}]
                    moves += [("by-node", n * 8 + home % 8) for n in {r // 8 for r in at}] if mesh.ep > 8 else []
                    for form, to in moves:
                        if to != home:
                            sent[form, home] += 1
                            got[form, to] += 1
        for rank in range(world):
            rows = [*dispatch_rows(sizes, mesh, rank, [call], 2, routing, 8)]
            found = {(d.form, d.routing): d for d in rows}
            for form in ("all-to-all", "by-rank", *(("by-node",) if mesh.ep > 8 else ())):
                given, most = found[form, "given"], found[form, "bound"]
                out, into = sent[form, rank], got[form, rank]
                assert given.sent_bytes == given.received_bytes == (out + into) * 16
                assert given.fp8_bytes == out * (8 + 4) + into * 16
                assert given.expert_flops == held[rank] * 6 * 8 * 4
                for metric in ("sent_bytes", "received_bytes", "fp8_bytes", "expert_flops"):
                    assert getattr(given, metric) <= getattr(most, metric)


def test_nodes_of_a_named_device(tmp_path: Path) -> None:
    """Of 128 experts a token chooses 8. Of 16 ranks in nodes of 8 as h100-sxm has them, one other node; of 4 x 4 three.

    Uniform: another node has one of them unless all 8 are outside its share, C(64, 8) or C(96, 8) of C(128, 8) choices.
    In the file the token of rank 0 chooses experts of ranks 0, 1, 4, 5, 8, 9, 12 and 13 (8 experts each): one other
    node of 8, and all three others of 4, in each of 48 layers. Nodes of 72, and of one node, have no such form.
    """
    rows = [[8 * r for r in (0, 1, 4, 5, 8, 9, 12, 13)]] * 16
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [[rows] * 48]}), encoding="utf-8")
    run: dict[str, Any] = {"text_tokens": 1, "new_tokens": 0, "batch": 16, "dp": 16, "ep": 16}
    counted = costproof.capture("qwen3-30b-a3b", sources="analytic", pairs=tmp_path / "routing.json", **run)
    made = {}
    for on in ("", "16xh100-sxm", "4x4xh100-sxm", "h100-sxm", "16xgb300", "1x16xh100-sxm"):
        found = counted if not on else costproof.compare(counted, on=on).capture
        assert found.parallel is not None
        made[on] = {d.routing: (d.copies, d.node, d.sent_to) for d in found.parallel.dispatches if d.form == "by-node"}
        others = [d for d in found.parallel.dispatches if d.form != "by-node"]
        assert others == [d for d in counted.parallel.dispatches if d.form != "by-node"]  # type: ignore[union-attr]
    assert made[""] == made["16xh100-sxm"] == made["h100-sxm"] == {
        "given": ("1", 8, (48, 48)), "bound": ("1", 8, ()), "uniform": (str(1 - choose(64, 8) / choose(128, 8)), 8, ()),
    }  # fmt: skip
    assert made["4x4xh100-sxm"] == {
        "given": ("3", 4, (48,) * 4), "bound": ("3", 4, ()),
        "uniform": (str(3 * (1 - choose(96, 8) / choose(128, 8))), 4, ()),
    }  # fmt: skip
    assert made["16xgb300"] == made["1x16xh100-sxm"] == {}
    page = costproof.compare(counted, on="4x4xh100-sxm").render("html")
    assert "Nodes of by-node are those of 4x4xh100-sxm, of 4 ranks" in page
    assert "Nodes of by-node are those of h100-sxm, of 8 ranks" in costproof.compare(counted).render("static-md")
    assert "16 devices in nodes of 8" in costproof.compare(counted, on="16xh100-sxm").render("html")


def test_a_mean_over_all_ranks_is_that_of_every_token() -> None:
    """Ranks of a group along tp send slices, one of them none; all together send the copies of all tokens."""
    sizes, mesh = RoutedLayers(1, 8, 2, 8, 4), Mesh(tp=2, dp=2, ep=4)
    call = RoutedCall("decode", "steps", (1, 1, 1, 1), 1)
    rows = [
        {d.form: d for d in dispatch_rows(sizes, mesh, rank, [call], 2) if d.routing == "uniform"} for rank in range(4)
    ]
    # Two tokens, each with 2 choices of which 3/4 leave, 16 bytes to go and 16 to come back.
    assert sum(of["all-to-all"].sent_bytes for of in rows) == 2 * 2 * Fraction(3, 4) * 32
    # Ranks 1 and 3 send no token, and results of both tokens: 2 x 1/2 in the mean.
    assert [of["all-to-all"].sent_bytes for of in rows] == [24 + 8, 16, 24 + 8, 16]


GOOD: Final[dict[str, Any]] = {"prefill": [[[[0, 1], [2, 3]]]]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"prefill": [[[[0, 1]]]]}, r"wrong number of tokens.*\n.*prefill\[0\]\[0\]\n.*2\n.*1"),
        ({"prefill": [[[[0, 8], [2, 3]]]]}, r"invalid choice of experts.*\n.*\[0\]\[0\]\[0\]\n.*0 to 7\n.*8"),
        ({"prefill": [[[[0, 1], [2, 2]]]]}, r"invalid choice.*\n.*\[0\]\[0\]\[1\]\n.*2 different"),
        ({"prefill": [[[[0, 1], [2, 3]], [[0, 1], [2, 3]]]]}, r"wrong number of layers.*\n.*\n.*1\n.*2"),
        ({"prefill": [*GOOD["prefill"], *GOOD["prefill"]]}, "wrong number of calls"),
        ({"decode": GOOD["prefill"]}, "no entry for this stage"),
        ([], "no entry for this stage"),
    ],
)
def test_routings_that_do_not_match(data: object, said: str, tmp_path: Path) -> None:
    call = RoutedCall("prefill", "prompt", (1, 1), 1)
    with pytest.raises(BadInput, match=said):
        list(dispatch_rows(ONE_LAYER, Mesh(dp=2, ep=2), 0, [call], 2, written(tmp_path, data)))


def test_experts_of_more_groups_than_a_router_selects(tmp_path: Path) -> None:
    """Of 4 groups of 2 experts a token passes 2: 0, 3 and 5 are of three."""
    sizes, call = RoutedLayers(1, 8, 3, 8, 4, 4, 2), RoutedCall("prefill", "prompt", (1, 0), 1)
    with pytest.raises(BadInput, match=r"router chooses no such.*\n.*\n.*at most 2 of the 4 groups\n.*of 3 groups"):
        list(dispatch_rows(sizes, Mesh(dp=2, ep=2), 0, [call], 2, written(tmp_path, {"prefill": [[[[0, 3, 5]]]]})))


def test_files_of_routings(tmp_path: Path) -> None:
    """A byte-order mark is no content; a pipe is read once; a changed, empty or missing file is named."""
    file = tmp_path / "routing.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    stored = stored_routing(str(file))
    assert routing_data(stored) == GOOD
    assert stored_routing(stored) == stored
    assert [is_table(x) for x in ("6,2;3,5", "6+2;3+5", "2,x;2", str(file), stored)] == [True, True, True, False, False]
    routing._READ.clear()
    file.write_text(json.dumps({"prefill": []}))
    with pytest.raises(BadInput, match=r"not the one of this run(.*\n){4}.*count the run again"):
        stored_routing(stored)
    for text, said in (("", "an empty file"), ("[1", "is not JSON")):
        file.write_text(text)
        with pytest.raises(BadInput, match=said):
            stored_routing(str(file))
    with pytest.raises(BadInput, match=r"cannot read the routing.*\n.*\n.*No such file"):
        stored_routing(str(tmp_path / "none.json"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_text(json.dumps(GOOD)))
    writer.start()
    stored = stored_routing(str(pipe))
    writer.join()
    assert routing_data(stored) == GOOD
