"""Time with communication: rates of groups by hand, whole runs by hand, borders by runs on both sides."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

import costproof
from costproof.estimate.hardware import machine
from costproof.estimate.links import Devices, LinkRates, devices_in, link_rates
from costproof.estimate.roofline import Roofline
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import Mesh
from tests.support.running import costproof as run

LINK = 450 * 10**9
NET = 50 * 10**9
LLAMA = "llama-3.1-70b@chat,text_tokens=1,new_tokens=0"


@pytest.mark.parametrize(
    ("kind", "group", "seconds"),
    [
        # Within a node: the payload, or all of it but the rank's own part.
        ("all_reduce", range(8), Fraction(1, LINK)),
        ("all_reduce", range(2), Fraction(1, LINK)),
        ("all_gather", range(8), Fraction(7, 8 * LINK)),
        ("reduce_scatter", range(4), Fraction(3, 4 * LINK)),
        ("all_to_all", range(4, 8), Fraction(3, 4 * LINK)),
        ("send", (0, 1), Fraction(1, LINK)),
        # Two nodes of 8: through 8 network cards at 50 GB/s goes all of a sum, and half of a gather: 1/400, 1/800.
        ("all_reduce", range(16), Fraction(1, 8 * NET)),
        ("all_to_all", range(16), Fraction(1, 2 * NET)),
        ("send", (0, 8), Fraction(1, NET)),
        ("send", (0, 1, 8, 9), Fraction(1, LINK)),  # some of these neighbours share a node
        # One rank in each node has one card of its own.
        ("all_reduce", (0, 8), Fraction(1, NET)),
        # 15/16 of a gather come through links and a card at once, 500 GB/s: longer than 1/2 through 8 cards.
        ("all_gather", range(16), Fraction(15, 16 * 500 * 10**9)),
        # Four nodes: 24/32 of it through 8 cards is 3/1600, and 31/32 through both 31/16000: the second.
        ("all_gather", range(32), Fraction(31, 32 * 500 * 10**9)),
        ("all_gather", (0, 8, 16, 24), Fraction(3, 4 * NET)),
    ],
)
def test_seconds_of_a_byte(kind: str, group: tuple[int, ...], seconds: Fraction) -> None:
    assert LinkRates(LINK, 8, NET).per_byte(kind, tuple(group)) == seconds


def test_what_is_not_known() -> None:
    known = machine("h200-sxm")
    assert link_rates(Devices(known), Mesh(tp=16))[0] == LinkRates(LINK, 8, NET)
    alone = replace(known, network=None)
    assert link_rates(Devices(alone), Mesh(tp=8))[0] == LinkRates(LINK, 8, None)
    assert link_rates(Devices(alone), Mesh(tp=16)) == (
        None, "no time has the bytes that ranks send: no source gives the rate between nodes of 8 h200-sxm",
    )  # fmt: skip
    assert link_rates(Devices(machine("rtx-4090")), Mesh(tp=2))[0] is None
    rates, said = link_rates(Devices(machine("l4")), Mesh(tp=4))
    assert rates == LinkRates(32 * 10**9, None, None)
    assert said == "all 4 l4 are taken as one node, since no source gives its size"


def test_names_of_several_devices() -> None:
    for name, count, node in (
        ("h100-sxm", None, 8),
        ("8xh100-sxm", 8, 8),
        ("8x h100-sxm", 8, 8),
        ("2x4xh100-sxm", 8, 4),
    ):
        found = devices_in(name)
        assert (found.device.name, found.count, found.node_size) == ("h100-sxm", count, node)
    for name in ("0xl4", "1000000xl4", "2x0xl4"):
        with pytest.raises(BadInput):
            devices_in(name)


def of(target: str, on: str) -> Roofline:
    found = costproof.roofline(target, on=on)
    assert found.links is not None
    return found


def test_a_token_of_llama_70b_on_eight_h100() -> None:
    """161 all-reduces of 8,192 elements and a gather of 128,256 logits, of which a rank has an eighth."""
    found = of(LLAMA, "8xh100-sxm")
    assert found.links is not None
    assert found.workload.inputs["tp"] == 8
    (stage, whole) = found.links.stages
    links = Fraction(161 * 16_384, LINK) + Fraction(128_256 * 2 * 7, 8 * LINK)
    assert Fraction(stage.seconds) == links
    assert stage.sent_bytes == 2 * 7 * 161 * 16_384 // 8 + 7 * 256_512 // 8
    roof = Fraction(found.run.modules.seconds or 0)
    assert (Fraction(stage.exposed_s or 0), Fraction(stage.overlapped_s or 0)) == (roof + links, max(roof, links))
    assert replace(whole, id="prefill") == stage
    assert [(r.ranks, r.exposed_s) for r in found.links.ranks] == [(tuple(range(8)), stage.exposed_s)]


def test_two_nodes_wait_for_the_network() -> None:
    found = of(LLAMA, "2x8xh100-sxm")
    assert found.links is not None
    sums, gather = Fraction(161 * 16_384, 8 * NET), Fraction(256_512 * 15, 16 * 500 * 10**9)
    assert Fraction(found.links.stages[-1].seconds) == sums + gather
    assert {c.nodes for c in found.links.collectives} == {2}


def test_equal_stages_that_send_within_and_between_nodes() -> None:
    """Of four stages in two nodes the first sends at 450 GB/s, the second at 50, and the third, its equal, at 450."""
    found = of("llama-3.1-8b@chat,pp=4,layers=4,text_tokens=12,new_tokens=2", "2x2xh100-sxm")
    assert found.links is not None
    exposed = {rank: Fraction(row.exposed_s or 0) for row in found.links.ranks for rank in row.ranks}
    assert exposed.keys() == {0, 1, 2, 3}
    sent = (12 + 2) * 4096 * 2  # bytes
    assert exposed[1] - exposed[2] == sent * (Fraction(1, 50 * 10**9) - Fraction(1, 450 * 10**9))


def test_the_borders_of_the_links_are_where_runs_cross() -> None:
    """On eight L40S behind PCIe: at each border the clock of a run is the longer one, and just before it is not."""
    target = "llama-3.1-70b@chat,tp=8,layers=4,max_positions=1000000"
    solved = {(b.stage, b.question, b.setting): b.at for b in of(target, "l40s").borders}
    slow, fast = "waits longer for its links than for its memory", "computes longer than it waits for its links"
    batch, length = solved["decode", slow, "batch"], solved["prefill", slow, "text_tokens"]
    far = solved["prefill", fast, "text_tokens"]
    assert None not in (batch, length, far)

    def clocks(stage: str, change: str) -> tuple[Fraction, Fraction, Fraction]:
        found = of(f"{target},{change}", "l40s")
        assert found.links is not None
        (work,) = (s.modules for s in found.stages if s.id == stage)
        (links,) = (s.seconds for s in found.links.stages if s.id == stage)
        return Fraction(work.compute_s or 0), Fraction(work.memory_s or 0), Fraction(links)

    for at, longer in ((batch, True), ((batch or 0) - 1, False)):
        _, memory, links = clocks("decode", f"batch={at}")
        assert (links > memory) == longer
    for at, longer in ((length, True), ((length or 0) - 1, False)):
        _, memory, links = clocks("prefill", f"text_tokens={at}")
        assert (links > memory) == longer
    for at, longer in ((far, True), ((far or 0) - 1, False)):
        compute, _, links = clocks("prefill", f"text_tokens={at}")
        assert (compute > links) == longer
    never = [
        b.at for b in of("llama-3.1-70b@chat,tp=8", "h100-sxm").borders if (b.stage, b.question) == ("decode", slow)
    ]
    assert never == [None, None]


def test_the_slowest_rank() -> None:
    """102 entries on 4 ranks are 26, 26, 26 and 24: the last reads and multiplies fewer."""
    found = of("llama-3.1-8b@chat,layers=2,vocab=102,tp=4", "h100-sxm").links
    assert found is not None
    assert [r.ranks for r in found.ranks] == [(0, 1, 2), (3,)]
    assert Fraction(found.ranks[0].exposed_s or 0) > Fraction(found.ranks[1].exposed_s or 0)
    other = of("llama-3.1-8b@chat,layers=2,vocab=102,tp=4,rank=3", "h100-sxm").links
    assert other is not None
    assert other.ranks == found.ranks
    assert other.stages[-1].exposed_s == found.ranks[1].exposed_s
    uneven = of("llama-3.1-8b@chat,layers=2,batch=3,tp=2,dp=2", "4xh100-sxm").links
    assert uneven is not None
    assert [r.ranks for r in uneven.ranks] == [(0, 1), (2, 3)]


def test_times_of_a_rank_are_those_of_its_own_count() -> None:
    """Ranks that gather parameters, here of 2 and of 1 sequence, have links besides those along tp."""
    run = "llama-3.1-8b@chat,layers=2,vocab=102,text_tokens=64,new_tokens=1,batch=3,fsdp=2"
    first, second = (of(f"{run},rank={rank}", "2xh100-sxm").links for rank in (0, 1))
    assert first is not None
    assert second is not None
    own = {rank: links.stages[-1] for rank, links in ((0, first), (1, second))}
    assert {r.ranks: (r.exposed_s, r.overlapped_s) for r in first.ranks} == {
        (rank,): (stage.exposed_s, stage.overlapped_s) for rank, stage in own.items()
    }
    assert Fraction(own[1].exposed_s or 0) > Fraction(own[1].seconds) > 0


def test_a_rank_that_keeps_no_new_token_reads_more_of_its_past_than_of_its_weights() -> None:
    """Half of the prompt is in its cache, 2 layers x 2 x 8 heads x 128 elements x 2 B a token.

    A step reads one row of the embedding and all other weights: q and out 4,096 x 4,096 each, k and v 1,024 rows each,
    three matrices of 14,336 x 4,096 and two norms a layer; a norm, and 102 entries.
    """
    found = of("llama-3.1-8b@chat,layers=2,vocab=102,text_tokens=64,new_tokens=1,cp=2,cp_plan=ring", "2xh100-sxm")
    (border,) = (b for b in found.borders if b.question == "reads more of its past than of its weights")
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336 + 2)
    weights = 2 * (2 * layer + 4096 * (1 + 1 + 102))
    token = 2 * 2 * 8 * 128 * 2
    assert (border.stage, border.at) == ("decode", 2 * (weights // token + 1))


MIXTURE = "qwen3-30b-a3b@chat,text_tokens=64,new_tokens=0"


def test_experts_of_a_rank_have_the_mean_of_the_rows() -> None:
    """64 tokens x 8 experts x 6 x 2,048 x 768 FLOPs in 48 layers, an eighth of them, and 16 experts read whole."""
    found = of(f"{MIXTURE},tp=4,ep=4", "4xh100-sxm")
    (part,) = (p.at_roof for p in found.parts if p.part == "text.layer.experts")
    assert part.flops == 48 * 64 * 8 * 6 * 2048 * 768 // 4
    expert = 3 * 2048 * 768 * 2
    assert (part.bytes or 0) >= 48 * 32 * expert
    assert (part.bytes or 0) - 48 * 32 * expert < 48 * expert
    assert any(note.startswith("routed experts have the mean of the ranks") for note in found.notes)


def test_no_rate_no_time() -> None:
    found = costproof.roofline("llama-3.1-8b@chat,tp=2", on="rtx-4090")
    assert found.links is None
    assert any("no source gives the rate of the links of rtx-4090: " in note for note in found.notes)
    apart = costproof.roofline("llama-3.1-8b@chat,batch=73,dp=73", on="gb300")
    assert apart.links is None
    assert any("no source gives the rate between nodes of 72 gb300: 0 B" in note for note in apart.notes)


def test_text_and_table(tmp_path: Path) -> None:
    """An all-reduce of 8,192 elements in each of two modules of 80 layers, and the same in text and as a table."""
    text = run("roofline", LLAMA, "--on", "8x h100-sxm", cwd=tmp_path, columns=200).stdout
    assert "8 devices in one node: 450.00 GB/s from each to the others, in one direction." in text
    assert "All 8 ranks have these times." in text
    assert re.search(r"text\.layer\.mlp\.down +all_reduce +8 +1 +80 +1\.31 MB +2\.29 MB", text)
    run("-q", "roofline", LLAMA, "--on", "8xh100-sxm", "-o", "x.csv", cwd=tmp_path)
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    links = Fraction(161 * 16_384, LINK) + Fraction(128_256 * 2 * 7, 8 * LINK)
    assert {r["links_s"] for r in rows if r["level"] in ("run", "stage")} == {str(links)}
    assert {r["links_s"] for r in rows if r["level"] == "part"} == {""}


def test_as_many_ranks_as_devices() -> None:
    with pytest.raises(BadInput, match="another number of ranks than there are devices"):
        costproof.roofline("llama-3.1-8b@chat,tp=4", on="8xh100-sxm")
    with pytest.raises(BadInput, match="another number of ranks than there are devices"):
        costproof.roofline("bert", on="8xh100-sxm")
    assert costproof.roofline("bert", on="1xh100-sxm").links is None


@pytest.mark.parametrize("run", [{"tp": 4, "ep": 4}, {"batch": 2, "dp": 2, "tp": 2, "ep": 4}])
def test_borders_of_shared_experts_have_the_clocks_of_the_stage(run: dict[str, int]) -> None:
    """At and below a border both sides are clocks of a run at that value, of the mean of the experts' rows."""

    @cache
    def at(**changed: int) -> Roofline:
        settings = {"layers": 2, "text_tokens": 64, "new_tokens": 0, **run, **changed}
        return of(",".join(("qwen3-30b-a3b@chat", *(f"{k}={n}" for k, n in settings.items()))), "4xh100-sxm")

    found, compared = at(), set()
    for border in (b for b in found.borders if b.unit == "s"):
        for point in border.points:
            there = at(**{border.setting: point.at})
            assert there.links is not None
            (work,) = (s.modules for s in there.stages if s.id == border.stage)
            (links,) = (s.seconds for s in there.links.stages if s.id == border.stage)
            clocks = {"compute": work.compute_s, "memory": work.memory_s, "links": links}
            for name, seconds in ((border.left, point.left), (border.right, point.right)):
                if (clock := clocks.get(name)) is not None:
                    assert abs(Fraction(seconds) / Fraction(clock) - 1) < Fraction(1, 10**6)
                    compared.add((border.setting, name))
    assert {name for _, name in compared} == {"compute", "memory", "links"}
    assert {setting for setting, _ in compared} == {"batch", "text_tokens"}


def test_the_rows_of_a_given_routing_bound_a_rank() -> None:
    """Of 8 pairs rank 0 keeps 5, sends 3 and gets 4: 9 rows of 3 products of 2 x 2,048 x 768, in each of 48 layers.

    3 + 4 rows of 2,048 elements cross its links, and the counts of 64 experts of the other rank in int64, at 450 GB/s.
    """
    run = "qwen3-30b-a3b@chat,batch=2,text_tokens=1,new_tokens=0,dp=2,ep=2,dispatch=all-to-all,pairs=5+3;4+4"
    found = of(run, "2xh100-sxm")
    assert found.links is not None
    (experts,) = (part.at_roof for part in found.parts if part.part == "text.layer.experts")
    assert experts.flops == 48 * 9 * 6 * 2048 * 768
    sent = 48 * (7 * 2048 * 2 + 64 * 8)
    (exchanged,) = found.links.collectives
    assert (exchanged.sent_bytes, Fraction(exchanged.seconds)) == (sent, Fraction(sent, 450_000_000_000))
    assert not found.borders
    assert not any("mean" in note for note in found.notes)
    assert [times.ranks for times in found.links.ranks] == [(0,), (1,)]


def test_an_even_routing_between_nodes_is_bound_by_what_leaves_the_rank() -> None:
    """Of 8 pairs each rank keeps 4: 4 + 4 rows of 2,048 elements and 64 counts of 8 bytes leave it, at 50 GB/s."""
    run = "qwen3-30b-a3b@chat,batch=2,text_tokens=1,new_tokens=0,dp=2,ep=2,dispatch=all-to-all,pairs=4+4;4+4"
    found = of(run, "2x1xh100-sxm")
    assert found.links is not None
    (exchanged,) = found.links.collectives
    assert Fraction(exchanged.seconds) == Fraction(48 * (8 * 2048 * 2 + 64 * 8), NET)


def test_bytes_of_a_given_routing_between_nodes() -> None:
    """With another rank in its node a rank sends through its links and the network at once; without, by the latter."""
    rates = LinkRates(400, 2, 50)
    assert rates.per_sent_byte((0, 1), 1) == Fraction(1, 400)
    assert rates.per_sent_byte((0, 1, 2, 3), 3) == Fraction(1, 450)
    assert rates.per_sent_byte((0, 2), 0) == Fraction(1, 50)
    assert LinkRates(400, 2, None).per_sent_byte((0, 2), 0) is None
