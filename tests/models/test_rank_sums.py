"""What all ranks have more than one device, amount by amount, written out by hand: bytes, vector FLOPs and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from costproof.ledger.mesh import Parallel
from costproof.models.registry import load_target
from costproof.models.target import DATA_COPIES, SEQUENCE_COPIES
from costproof.parametric.targets import count_ranks, evaluate_formulas

LAYERS, HIDDEN, HEADS, KV, WIDTH, VOCABULARY = 16, 2048, 32, 8, 64, 128_256
"""Sizes of Llama 3.2 1B, whose output projection reads the table of the embedding."""
PARAMETERS: Final = 1_235_814_400


def ranks(model: str, **settings: Any) -> Parallel:
    """Return the ranks of a run; their sums have the residual 0."""
    target: Any = load_target(model)
    work = target.workload(**{"new_tokens": 0, "text_tokens": 4, "batch": 1, **settings})
    found = count_ranks(target, work, evaluate_formulas(target, work))
    assert found.problems() == []
    return found


def copies(found: Parallel, stage: str, metric: str) -> dict[str, int]:
    return {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == (stage, metric)}


def test_bytes_of_tensor_parallel_ranks() -> None:
    """Hidden states of 4 tokens have 4 x 2,048 x 2 = 16,384 bytes, on both ranks."""
    state, norms = 4 * HIDDEN * 2, 2 * LAYERS + 1
    # In and out, weights, and between operators 3 x 2 + 8 bytes an element and 24 a row.
    norm = 2 * state + 2 * HIDDEN + 14 * 4 * HIDDEN + 24 * 4
    tables = 2 * 4 * WIDTH * 2  # cosines and sines
    chunk = 4 * (VOCABULARY // 2) * 2
    found = ranks("llama-3.2-1b", tp=2)
    assert copies(found, "prefill", "unfused_bytes") == {
        "norms": norms * norm,
        "additions and other work between modules": 2 * LAYERS * 3 * state,
        "tables of rotary embedding": 4 * WIDTH // 2 + tables + 32 * 4 * WIDTH,
        # The other rank reads them for queries and for keys.
        "tables and masks that the attention of every rank reads": 2 * LAYERS * tables,
        # Read by q, k, v, gate, up and the head, written by o and down; rows of the table, read and written.
        "inputs and results of split modules, which every rank reads or writes": (7 * LAYERS + 3) * state,
        # The embedding, o and down of each layer end with a sum, which both ranks read and write.
        "tensors that ranks add up, read and written by the collective": 2 * (2 * LAYERS + 1) * 2 * state,
        "looked-up rows of other ranks, overwritten with zeros": 2 * 2 * (state + 2),  # and a zero is read
        # Both read their half of the columns and write all; several rows are read and written once more.
        "logits that every rank gathers": 2 * (chunk + 2 * chunk + 2 * 2 * chunk),
    }
    assert copies(found, "prefill", "floor_bytes") == {
        "norms": norms * 2 * HIDDEN,
        "tables of rotary embedding": 4 * WIDTH // 2,
        "logits that every rank gathers": 4 * VOCABULARY * 2,
    }


def test_bytes_of_an_uneven_batch() -> None:
    """Of 3 sequences one rank has 2: what depends on the tokens is the same in sum, weights and positions are not."""
    frequencies, tables = 4 * WIDTH // 2, 2 * 4 * WIDTH * 2
    found = ranks("llama-3.2-1b", dp=2, batch=3)
    made = frequencies + tables + 32 * 4 * WIDTH + LAYERS * 2 * tables
    assert copies(found, "prefill", "unfused_bytes") == {DATA_COPIES: 2 * PARAMETERS + made}
    assert copies(found, "prefill", "floor_bytes") == {DATA_COPIES: 2 * PARAMETERS + frequencies}


def test_experts_of_an_uneven_batch() -> None:
    """Mixtral, 9 tokens of 2 experts: one device reads all 8, a rank with 6 tokens 8, one with 3 tokens 6."""
    expert, layers, hidden = 3 * 4096 * 14_336, 32, 4096
    others = 2 * hidden * hidden + 2 * hidden * 1024 + 8 * hidden + 2 * hidden
    whole = layers * others + hidden + 32_000 * hidden  # and the rows that are looked up, each once on both sides
    found = ranks("mixtral", dp=2, batch=3, text_tokens=3)
    assert copies(found, "prefill", "floor_bytes") == {DATA_COPIES: 2 * (whole + layers * 6 * expert) + 4 * 64}


def test_a_shared_sequence() -> None:
    """Two ranks with 2 positions each: rank 1 attends to the keys of rank 0, which skips those of rank 1."""
    pairs, keys, queries = 2 * 2 * HEADS, 2 * KV * 2 * WIDTH * 2, 2 * HEADS * WIDTH * 2
    rows = 2 * HEADS
    found = ranks("llama-3.2-1b", cp=2, cp_plan="ring", new_tokens=1)
    merged = "partial results of attention that ranks merge"
    assert copies(found, "prefill", "vector_flops") == {
        "pairs with keys after a rank's own positions, which it skips": -LAYERS * 6 * pairs,  # softmax 5, scale 1
        merged: LAYERS * rows * (3 * WIDTH + 8),
    }
    assert copies(found, "prefill", "input_bytes") == {SEQUENCE_COPIES: 4 * WIDTH // 2}
    assert copies(found, "prefill", "output_bytes") == copies(found, "prefill", "kv_read_bytes") == {}
    assert copies(found, "prefill", "unfused_bytes") == {
        SEQUENCE_COPIES: 2 * PARAMETERS + 4 * WIDTH // 2,
        # Both join, send and receive them, and rank 1 reads what it received.
        "keys and values that ranks pass around a ring": LAYERS * 7 * keys,
        "queries, keys and values read again for each part": LAYERS * (queries + keys),
        # 28 + 2 x 2 bytes an element and 60 a row, of which 3 accesses to each are in 2 bytes instead of 4.
        merged: LAYERS * rows * (32 * WIDTH + 60 - 3 * 2 * WIDTH),
    }
    # A step sees 5 keys, 2 of them on rank 0 and 3, with the new one, on rank 1; all else both ranks do, but rank 0
    # reads no new value. Both merge, of 2 parts.
    one = found.one_device["decode"]
    assert copies(found, "decode", "vector_flops") == {
        SEQUENCE_COPIES: one["vector_flops"] - LAYERS * 6 * HEADS * 5,
        merged: 2 * LAYERS * HEADS * (4 * 2 + 4 + WIDTH),
    }
    assert copies(found, "decode", "kv_read_bytes") == {}
    value = KV * WIDTH * 2
    assert copies(found, "decode", "input_bytes") == {SEQUENCE_COPIES: one["input_bytes"] - LAYERS * value}
    assert copies(found, "decode", "output_bytes") == {SEQUENCE_COPIES: one["output_bytes"] - LAYERS * value}


def test_heads_for_positions() -> None:
    """Two ranks with half of the heads at all positions: a prompt exchanges heads, a step gathers results."""
    found = ranks("llama-3.2-1b", cp=2, cp_plan="ulysses", new_tokens=1, attention="eager")
    elements = 4 * (2 * HEADS + 2 * KV) * WIDTH  # queries, keys, values and results of all positions
    masks, exchanged = 4 * 4 * 2, copies(found, "prefill", "unfused_bytes")
    assert exchanged["heads that ranks exchange for positions"] == LAYERS * 6 * elements * 2
    assert copies(found, "prefill", "input_bytes") == {SEQUENCE_COPIES: 4 * WIDTH // 2 + LAYERS * masks}
    assert copies(found, "prefill", "floor_bytes") == {
        SEQUENCE_COPIES: 2 * PARAMETERS + 4 * WIDTH // 2, "masks that every rank reads": masks,
    }  # fmt: skip
    assert copies(found, "prefill", "vector_flops") == {}
    steps, turned = copies(found, "decode", "vector_flops"), (HEADS + KV) * WIDTH // 2  # of the other rank, on each
    assert steps["queries and keys of heads that other ranks attend"] == LAYERS * 2 * turned * 7 // 2
    written = copies(found, "decode", "output_bytes")
    assert written["results of heads that ranks gather"] == LAYERS * 2 * HEADS // 2 * WIDTH * 2


def test_exchanged_pairs() -> None:
    """Mixtral on four ranks in two groups, a token with two pairs each: 3, 1, 2 and 2 pairs arrive, 8 in all."""
    layers, hidden, inner, pairs = 32, 4096, 14_336, 8
    found = ranks("mixtral", dp=4, ep=2, batch=4, text_tokens=1, dispatch="all-to-all", pairs="1,1;2,0;1,1;1,1")
    weighed = "results that a rank weighs and adds behind the exchange"
    assert copies(found, "prefill", "vector_flops")[weighed] == layers * 2 * pairs * hidden
    moved = copies(found, "prefill", "unfused_bytes")
    exchange = "pairs of tokens and experts, copied, exchanged and put in order"
    assert moved[exchange] == layers * 12 * pairs * hidden * 2
    # The weight of a row, its hidden states, its first and its second product are read and written.
    zeros = 2 + (hidden + 2 * inner + hidden) * 2
    assert moved["rows of experts of other ranks, overwritten with zeros"] == layers * pairs * 2 * zeros
    # Products with weights in float32 are written and read behind the exchange; before it, sums, sorted weights and
    # rows were 2 bytes an element wider: 2 x 4,096 of the sum, and 2 (1 + 4,096) of what is sorted.
    assert moved[weighed] == layers * pairs * (2 * hidden * 4 - 2 * (2 * hidden + 2 * (1 + hidden)))
    # 3 + 1 + 2 + 2 pairs reach at most as many experts as on one device; all else is read by 4 ranks.
    others = 2 * hidden * hidden + 2 * hidden * 1024 + 8 * hidden + 2 * hidden
    whole = 2 * (layers * others + hidden + 32_000 * hidden) + 4 * 64
    assert copies(found, "prefill", "floor_bytes") == {DATA_COPIES: 3 * whole}
    for metric in ("flops", "kept_flops", "output_bytes"):
        one = found.one_device["prefill"][metric]
        assert one + sum(copies(found, "prefill", metric).values()) == sum(
            len(row.ranks) * row.stages["prefill"][metric] for row in found.ranks
        )


def test_exchanged_pairs_of_slices() -> None:
    """Mixtral on two ranks along tp with the same 4 tokens, of which each sends 2: of 8 pairs 5 and 3 arrive.

    Rank 0 reads all of its 4 experts, rank 1 at most 3, one device 8. The 4 pairs of a slice name any of the 4 tokens,
    so both ranks read all; both write all, after they gathered the weighted results of slices, in float32.
    """
    layers, hidden, inner, state = 32, 4096, 14_336, 4 * 4096 * 2
    found = ranks("mixtral", tp=2, ep=2, dispatch="all-to-all", pairs="3,1;2,2")
    reads = copies(found, "prefill", "weight_read_bytes")
    assert reads["experts that tokens of a rank choose at most"] == -layers * 3 * hidden * inner * 2
    # q, k, v, the experts and the head; then the embedding, o and the experts.
    inputs = copies(found, "prefill", "input_bytes")["inputs of split modules, which every rank reads"]
    assert inputs == (4 * layers + 1) * state
    results = copies(found, "prefill", "output_bytes")["results of split modules, which every rank writes"]
    assert results == (2 * layers + 1) * state
    moved = copies(found, "prefill", "unfused_bytes")
    assert moved["pairs of tokens and experts, copied, exchanged and put in order"] == layers * 12 * 8 * hidden * 2
    assert moved["weighted results of slices that ranks gather"] == layers * 2 * 4 * hidden * 4
    weighed = copies(found, "prefill", "vector_flops")["results that a rank weighs and adds behind the exchange"]
    assert weighed == layers * 2 * 8 * hidden


def test_padding_of_uneven_slices() -> None:
    """Of 3 tokens two ranks send 2 and 1: rank 1 pads its row of results to 2, and both write 4 rows instead of 3."""
    layers, hidden = 32, 4096
    found = ranks("mixtral", tp=2, ep=2, text_tokens=3, dispatch="all-to-all", pairs="3,1;1,1")
    padding, gathered = "padding of uneven slices of tokens", "weighted results of slices that ranks gather"
    assert copies(found, "prefill", "output_bytes")[padding] == layers * 2 * hidden * 2
    moved = copies(found, "prefill", "unfused_bytes")
    assert moved[gathered] == layers * 2 * 3 * hidden * 4
    # The row in float32 is read, two are written, and the collective reads two instead of one.
    assert moved[padding] == layers * (2 * hidden * 2 + (1 + 2 + 1) * hidden * 4)


def test_pairs_of_stages() -> None:
    """Two stages of 16 layers send as many pairs as one device of 32, and 8 tokens x 4,096 x 2 bytes between them."""
    layers, hidden = 32, 4096
    mesh: dict[str, Any] = {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": "6,2;3,5"}
    one, two = ranks("mixtral", **mesh), ranks("mixtral", pp=2, **mesh)
    weighed = "results that a rank weighs and adds behind the exchange"
    exchanged = "pairs of tokens and experts, copied, exchanged and put in order"
    sent = []
    for found in (one, two):
        assert copies(found, "prefill", "vector_flops")[weighed] == layers * 2 * 16 * hidden
        assert copies(found, "prefill", "unfused_bytes")[exchanged] == layers * 12 * 16 * hidden * 2
        sent.append(sum(row.stages["prefill"]["comm_bytes"] * len(row.ranks) for row in found.ranks))
    assert copies(two, "prefill", "input_bytes")["hidden states that stages send"] == 8 * hidden * 2
    assert sent[1] - sent[0] == 8 * hidden * 2


def test_unequal_steps(tmp_path: Path) -> None:
    """Of two steps with 4 pairs each the experts of rank 0 run on 3 and on 1, those of rank 1 on 1 and on 3.

    Each pair may choose another expert, so both ranks read 4 in both steps together, and one device 4 in each.
    """
    layers, hidden, inner = 32, 4096, 14_336
    steps = [[[[0, 1], [2, 4]]] * layers, [[[4, 5], [0, 6]]] * layers]
    file = tmp_path / "routing.json"
    file.write_text(json.dumps({"prefill": [[[[0, 4]] * 8] * layers], "decode": steps}), encoding="utf-8")
    found = ranks("mixtral", dp=2, ep=2, batch=2, new_tokens=2, dispatch="all-to-all", pairs=file)
    weighed = "results that a rank weighs and adds behind the exchange"
    assert copies(found, "decode", "vector_flops")[weighed] == layers * 2 * 8 * hidden
    others = layers * (2 * hidden * hidden + 2 * hidden * 1024 + 8 * hidden + 2 * hidden) + hidden
    every_step = others + 32_000 * hidden + hidden  # and the row of the token that is looked up
    for row in found.ranks:
        experts = layers * 4 * 3 * hidden * inner
        assert row.stages["decode"]["weight_read_bytes"] == 2 * (2 * every_step + experts)
    assert copies(found, "decode", "weight_read_bytes") == {DATA_COPIES: 2 * 2 * (every_step - hidden)}


def test_pairs_do_not_change_the_experts_that_a_token_passes() -> None:
    """A rank of two holds 4 of 8 experts: a token passes 2 of them at most, whichever way its rows come there."""
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 4096
    active = 32 * (per_layer + 2 * 3 * 4096 * 14_336) + 4096 + 2 * 32_000 * 4096
    for way in ({}, {"dispatch": "all-to-all", "pairs": "1,1;1,1"}):
        (row,) = ranks("mixtral", dp=2, ep=2, batch=2, text_tokens=1, **way).ranks
        assert row.stages[""]["params_active"] == active


def test_padded_logits_of_a_step_on_ranks_that_share_a_sequence() -> None:
    """vLLM pads 32,001 entries to 32,064: each of two groups computes the logits of a step, padding included."""
    target: Any = load_target("llama-3.1-8b")
    target = target.with_keys({"vocab": 32_001})
    work = target.workload(tp=2, cp=2, plan="vllm", new_tokens=1, text_tokens=8, batch=1)
    found = count_ranks(target, work, evaluate_formulas(target, work))
    more, padding = copies(found, "decode", "flops"), 63 * 2 * 4096
    scores = 32 * 32 * 9 * 2 * 2 * 128  # 32 layers and heads, 9 keys, of which each group has its part
    assert more["padding of the vocabulary"] == padding
    one = found.one_device["decode"]["flops"]
    assert more[SEQUENCE_COPIES] == one - scores + padding
    assert found.problems() == []
