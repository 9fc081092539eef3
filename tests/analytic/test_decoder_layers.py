"""The layers of decoders with latents or mixtures of experts against arithmetic done by hand, written out beside it."""

from __future__ import annotations

import pytest
import sympy

from costproof.algebra.series import ROW_SIZES, ROW_SUMS
from costproof.algebra.symbols import sym
from costproof.analytic.attention import Attention, PackedAttention
from costproof.analytic.collectives import (
    AllGather,
    AllReduce,
    ExchangedPairs,
    GatheredParameters,
    GatheredTokens,
    Joined,
    ReduceScatter,
    Send,
)
from costproof.analytic.costs import Layer
from costproof.analytic.embedding import PickedPositions
from costproof.analytic.experts import ClampedExperts, MaskedRows
from costproof.analytic.latent_attention import AbsorbedAttention, LatentAttention
from costproof.analytic.norms import WideRmsNorm
from costproof.analytic.rotary import RotaryAxes, RotaryComplex, RotaryHalves, RotaryPairs
from costproof.analytic.shared_sequence import AttentionOfParts, RingAttention, StepOfHeads, UlyssesAttention
from tests.analytic.test_layers import Expected, check

DECODERS: list[tuple[str, Layer, Expected]] = [
    (
        "positions of rows that get logits",
        PickedPositions(rows=3, width=4, item_bytes=2),
        # 3*4 elements of 2 bytes, in and out
        Expected(incoming=24, outgoing=24),
    ),
    (
        "rms norm in float32 to the end",
        WideRmsNorm(rows=3, width=4, item_bytes=2),
        # 4*12 + 2*3 = 54
        Expected(params=4, read=8, vector={"norm": 54}, incoming=24, outgoing=24),
    ),
    (
        "one cosine and one sine per angle",
        RotaryHalves(positions=3, head_dim=8, item_bytes=2),
        # 3*4 = 12 angles: product, cos, sin, two scalings; 4 frequencies of 4 bytes in, held twice, 2*12 out
        Expected(vector={"elementwise": 60}, incoming=16, outgoing=48, buffers=32),
    ),
    (
        "cosines and sines on three axes",
        RotaryAxes(positions=6, head_dim=8, item_bytes=2),
        # 3*6*4 = 72 angles: product, cos, sin, two scalings; 4 frequencies of 4 bytes in, held twice, 2*6*8 out
        Expected(vector={"elementwise": 360}, incoming=16, outgoing=192, buffers=32),
    ),
    (
        "complex numbers",
        RotaryComplex(positions=3, head_dim=8, item_bytes=2),
        # 12 angles: product, cos, sin, four products of parts; 4 frequencies held twice; 12 numbers of 8 bytes out
        Expected(vector={"elementwise": 84}, incoming=16, outgoing=96, buffers=32),
    ),
    (
        "rotation of pairs",
        RotaryPairs(batch=2, positions=3, heads=4, kv_heads=2, head_dim=8, item_bytes=2),
        # 2*3*4 pairs in each of 6 heads, 144: four products and two sums; tables of 3*4 pairs, for all sequences, in
        Expected(vector={"elementwise": 864}, incoming=48),
    ),
    (
        "clamped experts",
        ClampedExperts(tokens=5, hidden=4, intermediate=3, experts=6, top_k=2, item_bytes=2),
        # an expert: 3*4*3 = 36 weights, 2*3 + 4 = 10 biases; 10 rows: the weights of all 6 and 10*10 biases are read;
        # 10*36 MACs; 100 biases added, six operations and a sigmoid on 30, 40 weighted and summed;
        # 20 tokens and 10 weights in
        Expected(
            params=276,
            active=92,
            read=632,
            flops={"expert_gemm": 720},
            vector={"elementwise": 360, "sigmoid": 30},
            incoming=60,
            outgoing=40,
        ),
    ),
    (
        "attention with sinks, 2 heads share keys",
        Attention(batch=2, queries=3, heads=4, kv_heads=2, head_dim=5, item_bytes=2, sinks=True),
        # 72 scores of 10 MACs, scaled; with the 4 parameters for 2*3 queries, 24, there are 96 in the softmax, of which
        # the greatest is found and taken off; 120 + 2*60 in, 120 out
        Expected(
            params=4,
            read=8,
            flops={"attention": 1440},
            vector={"softmax": 480, "elementwise": 72 + 96, "select": 96},
            incoming=480,
            outgoing=240,
        ),
    ),
    (
        "latent attention",
        LatentAttention(batch=2, queries=3, heads=4, nope=5, rope=2, value_dim=6, rank=8, item_bytes=2),
        # 2*4*3*3 = 72 scores of 7 MACs, scaled, and sums of 6 MACs: 936 MACs; queries 2*3*4*7 = 168, rotated keys
        # 2*3*2 = 12, keys and values 2*3*4*(5 + 6) = 264 in; 2*3*4*6 out; 2*3*(8 + 2) kept
        Expected(
            flops={"attention": 1872},
            vector={"softmax": 360, "elementwise": 72},
            incoming=888,
            outgoing=288,
            cache=120,
        ),
    ),
    (
        "latent attention with 2 in the cache and a mask",
        LatentAttention(
            batch=2, queries=3, heads=4, nope=5, rope=2, value_dim=6, rank=8, item_bytes=2, past=2, bias="input"
        ),
        # 2*4*3*5 = 120 scores, scaled and masked, 1560 MACs; 168 + 2*3*2 + 2*5*4*11 = 620, the new latents 2*3*8 = 48
        # and the mask 2*3*5 = 30 in: 698; 144 and the joined latents 2*5*8 out; 2*2*(8 + 2) = 40 of the cache
        Expected(
            flops={"attention": 3120},
            vector={"softmax": 600, "elementwise": 240},
            incoming=1396,
            outgoing=448,
            past=80,
            cache=120,
        ),
    ),
    (
        "a step that absorbs the expansion, 2 in the cache",
        AbsorbedAttention(batch=2, queries=1, heads=4, nope=5, rope=2, value_dim=6, rank=8, item_bytes=2, past=2),
        # 2*4*3 = 24 scores of 8 + 2 MACs, scaled, and sums of 8: 432 MACs; 2*4 rows through 8*(5 + 6): 704 MACs, and
        # 4*8*(5 + 6) = 352 weights read; queries 2*4*7 = 56 and what is new 2*(8 + 2) = 20 in; 2*4*6 out; 2*2*10 past
        Expected(
            flops={"attention": 864, "matmul": 1408},
            vector={"softmax": 120, "elementwise": 24},
            read=704,
            incoming=152,
            outgoing=96,
            past=80,
            cache=40,
        ),
    ),
    (
        "all-reduce of 10 elements with a bias of 5",
        AllReduce(elements=10, ranks=4, item_bytes=2, bias=5),
        # 5 parameters, and 10 additions after the sum; what leaves the module is counted by what computes it
        Expected(params=5, read=10, vector={"elementwise": 10}),
    ),
    (
        "all-gather of 3 rows of 10 columns, of which this rank has 1",
        AllGather(rows=3, width=10, own=1, ranks=4, item_bytes=2),
        # chunks of 3 columns: 3 * 12 * 2 bytes leave, of which the operator before it counts 3 * 1 * 2
        Expected(outgoing=72 - 6),
    ),
    (
        "reduce-scatter of 8 elements to 2 on each of 4 ranks, with a bias of 5",
        ReduceScatter(elements=8, ranks=4, item_bytes=2, bias=5),
        # 2 of the 8 elements leave that the operator before it counts
        Expected(params=5, read=10, vector={"elementwise": 2}, outgoing=-12),
    ),
    (
        "parts of parameters, 10 elements on each of 4 ranks",
        GatheredParameters(elements=10, ranks=4, item_bytes=2),
        Expected(read=20),
    ),
    (
        "10 elements sent to the next stage",
        Send(elements=10, item_bytes=2),
        Expected(incoming=20),
    ),
    (
        "attention in a ring of 3 ranks with 4 positions, the last one",
        RingAttention(
            local=Attention(2, 4, 6, 2, 5, 2, cached=True, causal=True),
            batch=2,
            tokens=4,
            heads=6,
            kv_heads=2,
            key_dim=5,
            value_dim=5,
            ranks=3,
            rank=2,
            item_bytes=2,
        ),
        # 3 parts of 12 heads x 4 x 4 = 192 scores, each a product of 5 terms and a weighted row of 5;
        # two merges of 48 rows: 3 * 240 + 8 * 48 each; in 240 queries and 160 of keys and values
        Expected(
            flops={"attention": 576 * 20},
            vector={"softmax": 2880, "elementwise": 576 + 2 * 1104},
            incoming=800,
            outgoing=480,
            cache=320,
        ),
    ),
    (
        "attention in zigzag order, the first of 3 ranks",
        RingAttention(
            local=Attention(2, 4, 6, 2, 5, 2, cached=True, causal=True),
            batch=2,
            tokens=4,
            heads=6,
            kv_heads=2,
            key_dim=5,
            value_dim=5,
            ranks=3,
            rank=0,
            item_bytes=2,
            zigzag=True,
        ),
        # half of its queries see both later parts: 192 + 2 * 96 scores, two merges of 24 rows
        Expected(
            flops={"attention": 384 * 20},
            vector={"softmax": 1920, "elementwise": 384 + 1104},
            incoming=800,
            outgoing=480,
            cache=320,
        ),
    ),
    (
        "attention of a step to 4 positions on one of 3 ranks, another keeps the new token",
        AttentionOfParts(
            local=Attention(2, 1, 6, 2, 5, 2, past=4, new_keys=0),
            batch=2,
            heads=6,
            value_dim=5,
            ranks=3,
            item_bytes=2,
            elsewhere=20,
        ),
        # 12 rows of 4 scores; 3 logarithms a row: 4 each and 2, minus, power; 60 products; in 60 queries and 20 keys
        Expected(
            flops={"attention": 48 * 20},
            vector={"softmax": 240, "elementwise": 48 + 12 * 16 + 60},
            incoming=160,
            outgoing=120,
            past=320,
        ),
    ),
    (
        "attention of 2 of 6 heads on all 12 positions of 3 ranks",
        UlyssesAttention(
            local=Attention(2, 12, 2, 1, 5, 2, cached=True, causal=True),
            batch=2,
            tokens=4,
            heads=6,
            kv_heads=3,
            key_dim=5,
            value_dim=5,
            ranks=3,
            item_bytes=2,
        ),
        # 2 * 2 heads x 12 x 12 scores; in 2 * 12 * (2 + 1 + 1) * 5 elements, out 2 * 12 * 2 * 5, cached 2 * 12 * 2 * 5
        Expected(
            flops={"attention": 2 * 2 * 144 * 20},
            vector={"softmax": 5 * 576, "elementwise": 576},
            incoming=960,
            outgoing=480,
            cache=480,
        ),
    ),
    (
        "a step of 2 of 6 heads with sinks behind a window of 5, on 3 ranks",
        StepOfHeads(
            local=Attention(2, 1, 2, 1, 5, 2, past=11, cached=True, causal=True, window=5, sinks=True),
            batch=2,
            heads=6,
            kv_heads=3,
            key_dim=5,
            value_dim=5,
            ranks=3,
            item_bytes=2,
        ),
        # 4 rows of 5 scores and a sink; all 6 sinks are there, 2 are read. In come 2 * (6 + 3) * 5 queries and keys and
        # 2 * 5 own values; out go 2 * 6 * 5; of the past 4 keys and values of 5 are read, and none is added.
        Expected(
            params=6,
            read=4,
            flops={"attention": 20 * 20},
            vector={"softmax": 5 * 24, "elementwise": 20 + 24, "select": 24},
            incoming=2 * (90 + 10),
            outgoing=2 * 60,
            past=2 * 2 * 4 * 10,
        ),
    ),
    ("parts of a result joined again", Joined(elements=10, item_bytes=2), Expected()),
    (
        "rows of experts of other ranks",
        MaskedRows(rows=3, hidden=4, intermediate=5, item_bytes=2, weight_item=4),
        Expected(),
    ),
    (
        "tokens of 4 ranks with 3 each",
        GatheredTokens(tokens=3, every=12, following=3, hidden=4, top_k=2, item_bytes=2, weight_item=4),
        # experts count 4 * (24 + 24) bytes in and 4 * 24 out, of which a rank has a quarter
        Expected(incoming=-3 * (24 + 24), outgoing=-3 * 24),
    ),
    (
        "6 pairs of 3 tokens, of which 4 are sent, and 5 that others send",
        ExchangedPairs(tokens=3, hidden=4, top_k=2, ranks=4, experts=8, sent=4, got=5, item_bytes=2, weight_item=4),
        # 7 pairs arrive or stay, of 8 bytes and a weight of 2, which the experts count; 24 and weights of 24 come in.
        # 6 x 4 results are weighted and added.
        Expected(vector={"elementwise": 2 * 24}, incoming=24 + 24 - 7 * 10, outgoing=24 - 7 * 8),
    ),
]


@pytest.mark.parametrize(
    ("layer", "sent", "payload", "unfused"),
    [
        # chunks of 3; written, read and added to a bias, which is read: 10 elements 4 times, and 5
        (AllReduce(elements=10, ranks=4, item_bytes=2, bias=5), 2 * 3 * 3 * 2, 20, 2 * (4 * 10 + 5)),
        (AllReduce(elements=8, ranks=4, item_bytes=2, masked=True), 2 * 3 * 2 * 2, 16, 2 * (4 * 8 + 2)),
        # one column padded to three, 9 elements a chunk: 3 read, 9 written, 9 sent, 36 received, joined and returned.
        # The operator before it writes the 3 and counts them among what leaves.
        (AllGather(3, 10, 1, 4, 2), 3 * 18, 72, 2 * (3 + 9 + 9 + 36 + 36 + 36)),
        (AllGather(3, 12, 3, 4, 2), 3 * 18, 72, 2 * (9 + 36 + 36 + 36)),
        (AllGather(1, 12, 3, 4, 2, one_row=True), 3 * 6, 24, 2 * (3 + 12)),
        # put in order, 8 elements read and written, then read, and 2 of them written
        (ReduceScatter(8, 4, 2), 3 * 2 * 2, 16, 2 * (8 + 8 + 8 + 2)),
        # read and written with zeros, one zero written and read, then 8 read and 2 written
        (ReduceScatter(8, 4, 2, masked=True, in_order=True), 3 * 2 * 2, 16, 2 * (2 * 9 + 8 + 2)),
        # 8 read, 2 written, read again with a bias of 5, written
        (ReduceScatter(8, 4, 2, bias=5, in_order=True), 3 * 2 * 2, 16, 2 * (8 + 2 + 2 + 5 + 2)),
        (Send(elements=10, item_bytes=2), 20, 20, 20),
        # 10 read, and as a copy written and read; 40 written, and read to put them together
        (GatheredParameters(elements=10, ranks=4, item_bytes=2), 60, 80, 2 * (10 + 10 + 10 + 40 + 40)),
    ],
)
def test_collectives_by_hand(
    layer: AllReduce | AllGather | ReduceScatter | Send | GatheredParameters, sent: int, payload: int, unfused: int
) -> None:
    costs = layer.costs()
    (found,) = costs.exchanges.values()
    assert (found.sent_bytes, found.payload_bytes, found.messages) == (sent, payload, 1)
    assert costs.unfused_bytes == unfused


def test_tokens_of_four_ranks_by_hand() -> None:
    """Hidden states 3 x 4 x 2 = 24 bytes, numbers 3 x 2 x 8 = 48, weights 24; three others send and get them.

    24 + 24 enter, 4 x 48 are written and read by the experts, 4 x 24 written by them and read, 24 returned; what
    enters and leaves the experts is counted there.
    """
    costs = GatheredTokens(tokens=3, every=12, following=3, hidden=4, top_k=2, item_bytes=2, weight_item=4).costs()
    gather, scatter = (costs.exchanges[kind] for kind in ("all_gather", "reduce_scatter"))
    assert (gather.payload_bytes, gather.sent_bytes, gather.messages) == (4 * 96, 3 * 96, 3)
    assert (scatter.payload_bytes, scatter.sent_bytes, scatter.messages) == (4 * 24, 3 * 24, 1)
    experts = 4 * (24 + 24) + 4 * 24
    assert costs.unfused_bytes is not None
    assert experts + costs.unfused_bytes == 24 + 24 + 2 * 4 * 48 + 2 * 4 * 24 + 24


def test_tokens_of_uneven_ranks_by_hand() -> None:
    """Of batches of 3, 5, 1 and 4 tokens of 8 + 16 + 8 bytes the first rank passes on all but the 5 of the next one.

    Of 13 sums of 8 bytes it passes on all but its own 3. 32 + 16 bytes of 10 tokens more are written and read by the
    experts than enter, and 8 bytes for each of 10 results more leave them than return.
    """
    one = GatheredTokens(tokens=3, every=13, following=5, hidden=4, top_k=2, item_bytes=2, weight_item=4)
    gather, scatter = (one.costs().exchanges[kind] for kind in ("all_gather", "reduce_scatter"))
    assert (gather.payload_bytes, gather.sent_bytes) == (13 * 32, 8 * 32)
    assert (scatter.payload_bytes, scatter.sent_bytes) == (13 * 8, 10 * 8)
    assert (one.costs().input_bytes, one.costs().output_bytes) == (-10 * 16, -10 * 8)
    assert one.costs().intermediate_bytes == 2 * 13 * 16 + 2 * 13 * 8


def test_pairs_of_four_ranks_by_hand() -> None:
    """A pair has 8 bytes; 4 are sent and 5 results returned, and 3 other ranks are told the pairs of 2 experts each.

    6 copies of 3 tokens are written and read, 7 rows and their weights of 2 bytes arrive, 7 results leave; 6 return,
    are put in order, of which a tensor is made, written and read, and are weighted and added in float32.
    """
    costs = ExchangedPairs(3, 4, 2, 4, 8, 4, 5, item_bytes=2, weight_item=4).costs()
    (moved,) = costs.exchanges.values()
    assert (moved.payload_bytes, moved.sent_bytes, moved.messages) == (13 * 8 + 64, 9 * 8 + 3 * 2 * 8, 3)
    experts = 7 * (8 + 2) + 7 * 8  # what they read and return
    every = 24 + 6 * 8 * 2 + 2 * 7 * (8 + 2) + 2 * 7 * 8 + 6 * 8 * 6 + 24 + 2 * 6 * 16 + 24
    assert costs.unfused_bytes is not None
    assert experts + costs.unfused_bytes == every - 2 * 7 * 2  # less a mask of weights that gathered tokens have


@pytest.mark.parametrize(("layer", "expected"), [c[1:] for c in DECODERS], ids=[c[0] for c in DECODERS])
def test_costs_by_hand(layer: Layer, expected: Expected) -> None:
    check(layer, expected)


@pytest.mark.parametrize(("by_flag", "pairs"), [(True, 4 + 5), (False, 4 + 4)])
def test_a_window_hides_no_keys_of_a_call_that_is_causal_by_a_flag(by_flag: bool, pairs: int) -> None:
    """2 tokens behind 3 and a window of 4: causal by a flag they see 4 and 5 keys, by the mask of the window 4 each.

    A call has no mask before its keys reach the window, so its formula is the causal one for every past.
    """
    core = Attention(1, 2, 3, 3, 4, 2, past=3, window=4, filling=True, causal=True, by_flag=by_flag)
    assert core.costs().kept_scores == {"attention": 3 * pairs}


def test_rows_of_a_batch_by_hand() -> None:
    """2 tokens behind 3, and in two sequences 1 token behind 5: 2*5 + 2*6 = 22 pairs; 2 heads of 4 elements.

    A causal mask leaves 2*3 + 3 of the first row and 6 of each sequence of the second: 21.
    """
    rows = ((1, 2, 3), (2, 1, 5))
    batch, tokens, past = ROW_SIZES
    one = Attention(batch, tokens, 2, 2, 4, item_bytes=2, past=past, cached=True, causal=True)
    sums = {sym(f"{name}_1"): sum(b**i * s**j * c**k for b, s, c in rows) for (i, j, k), name in ROW_SUMS.items()}

    def cost(several: bool, name: str) -> int:
        found = getattr(PackedAttention((one,), 4 * 2 * 4, 2, several=several).costs(), name)
        found = sum(found.values()) if isinstance(found, dict) else found
        return int(sympy.sympify(found).subs(sums))

    assert cost(True, "flops") == 4 * 22 * 2 * 4
    assert cost(True, "kept_scores") == 21 * 2
    assert cost(True, "vector_flops") == 6 * 22 * 2  # a scale and a softmax of 5 for each score
    assert cost(True, "kv_read_bytes") == (3 + 2 * 5) * 2 * (4 + 4) * 2
    assert cost(True, "kv_cache_bytes") == (2 + 2 * 1) * 2 * (4 + 4) * 2
    assert cost(True, "output_bytes") == (2 + 2 * 1) * 2 * 4 * 2
    # The results are joined: 4*2*4 elements are written and read once more.
    assert cost(True, "intermediate_bytes") - cost(False, "intermediate_bytes") == 2 * 32 * 2
