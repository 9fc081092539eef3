"""Every named copy of a mesh is counted twice: no cause is left out, and bytes under another name are found."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import pytest

from costproof.ledger.errors import Bug, Problems, Recount
from costproof.ledger.mesh import DISPATCH, Parallel
from costproof.ledger.workload import Workload
from costproof.models.decoding import copies
from costproof.models.decoding.copies import RankCopies
from costproof.models.target import DATA_COPIES, SEQUENCE_COPIES
from costproof.parametric import targets
from tests.oracles.random_meshes import FAMILIES, configurations, meshes

RING: Final[dict[str, Any]] = {"cp": 2, "tp": 2, "cp_plan": "ring"}
HEADS: Final[dict[str, Any]] = {"cp": 2, "dp": 2, "cp_plan": "ulysses"}


def counted(model: Any, work: Workload) -> tuple[Parallel, list[Recount]]:
    """Return the ranks of a run, and all second counts of them."""
    found, again = targets._count_ranks(model, work, targets.evaluate_formulas(model, work))
    return found, list(again)


def run(family: str, **settings: Any) -> tuple[Any, Workload]:
    """Return a random small model that a mesh fits, and a run of three sequences on it."""
    for model in islice(configurations(family), 40):
        try:
            return model, model.workload(**{"text_tokens": 12, "new_tokens": 2, "batch": 3, **settings})
        except Problems:  # sizes that the mesh does not divide
            continue
    raise AssertionError(f"no {family} fits {settings}")


@pytest.mark.parametrize("family", FAMILIES)
def test_at_most_one_cause_of_a_metric_has_no_second_count(family: str) -> None:
    """What a single cause has is what is left of the sum over ranks, which is known.

    Of sent pairs, which other checks count, more than one has none.
    """
    rng, model = random.Random(f"copies of {family}"), next(configurations(family))
    for work in islice((work for work in meshes(model, rng) if DISPATCH not in work.inputs), 6):
        found, again = counted(model, work)
        assert [r for r in again if r.found != r.again] == []
        known, named = {(r.stage, r.where, r.metric) for r in again}, defaultdict(set)
        for d in found.duplicates:
            named[d.stage, d.metric].add(d.what)
        for (stage, metric), whats in named.items():
            left = {what for what in whats if (stage, what, metric) not in known}
            assert len(left) <= 1, (work.inputs, stage, metric, left)


def test_what_a_ring_of_two_moves_by_hand() -> None:
    """Two ranks with 6 of 12 positions: the second attends to the keys of the first once, and merges the results."""
    model, work = run("llama", cp=2, cp_plan="ring")
    of, (found, _) = model.info().symbols, counted(model, work)
    amounts = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == ("prefill", "unfused_bytes")}
    layers, rows = of["text_layers"], 3 * 6
    queries, keys = (rows * of[name] * of["text_head_dim"] for name in ("text_heads", "text_kv_heads"))
    # In bfloat16. The second rank reads all its queries, and the keys and values of the first.
    assert amounts["queries, keys and values read again for each part"] == layers * 2 * (queries + 2 * keys)
    # Both join keys and values, which are read to be sent, and write what arrives; the second one reads it, too.
    assert amounts["keys and values that ranks pass around a ring"] == layers * 2 * (3 + 4) * 2 * keys
    # A part's result is written in bfloat16, its logarithms in float32. A merge in float32 moves 28 + 2 bytes for an
    # element and 56 for a row, of which the result is read twice and written once in bfloat16: 3 x 2 bytes less.
    merged = queries * (2 + 28 + 2 - 3 * 2) + rows * of["text_heads"] * (4 + 56)
    assert amounts["partial results of attention that ranks merge"] == layers * merged


def test_what_ranks_with_some_heads_move_by_hand() -> None:
    """Two ranks with half of the heads turn the other half in each of two steps, and gather its results."""
    model, work = run("llama", cp=2, cp_plan="ulysses")
    of, (found, _) = model.info().symbols, counted(model, work)
    amounts = {(d.what, d.metric): d.amount for d in found.duplicates if d.stage == "decode"}
    of_heads, of_keys = (
        of["text_layers"] * 2 * 3 * of[name] * of["text_head_dim"] for name in ("text_heads", "text_kv_heads")
    )
    turned = of_heads + of_keys  # half of them on each of two ranks
    assert amounts[copies.TURNED, "input_bytes"] == 2 * turned
    # Two products and a sum for an element, and a sign for half of them.
    assert amounts[copies.TURNED, "vector_flops"] == turned * 7 // 2
    assert amounts[copies.GATHERED_HEADS, "output_bytes"] == 2 * of_heads
    # On each rank: results of half of the heads are written and read, of all written by the gather and read, and of the
    # other half written into the tensor that leaves the module; in bfloat16.
    assert 2 * amounts[copies.GATHERED_HEADS, "unfused_bytes"] == 2 * 2 * (1 + 1 + 2 * 2 + 1) * of_heads


def test_features_that_ranks_read_and_put_into_the_prompt_by_hand() -> None:
    model, work = run("llava", tp=2)
    of, (found, _) = model.info().symbols, counted(model, work)
    (amount,) = (d.amount for d in found.duplicates if (d.what, d.metric) == (copies.FEATURES, "floor_bytes"))
    placed = model.whole_prompt(work).text_tokens - work.text_tokens
    assert placed > 0
    assert amount == 2 * 3 * placed * of["text_hidden"] * 2  # read and written, in bfloat16, by one rank more


def test_active_parameters_have_no_formats() -> None:
    """Each token passes some experts, whose biases all ranks have; nothing is quantised."""
    model, work = run("gpt-oss", tp=2, plan="vllm")
    found, _ = counted(model, work)
    named = {d.what for d in found.duplicates if d.metric == "params_active"}
    assert copies.BIASES in named
    assert [what for what in named if copies.OF_FORMAT in what] == []


@pytest.mark.parametrize(
    ("method", "cause", "other", "family", "settings"),
    [
        ("moved", copies.FOR_POSITIONS, SEQUENCE_COPIES, "llama", HEADS),
        ("moved", copies.TURNED, SEQUENCE_COPIES, "llama", HEADS),
        ("moved", copies.GATHERED_HEADS, copies.TURNED, "llama", HEADS),
        ("moved", copies.READ_AGAIN, copies.PASSED, "llama", RING),
        ("moved", copies.PASSED, copies.MERGED, "qwen3", RING),
        ("moved", copies.MERGED, SEQUENCE_COPIES, "qwen2", RING),
        ("moved", copies.FROM_CACHE, SEQUENCE_COPIES, "deepseek-v3", {"cp": 2}),
        ("moved", copies.GATHERED_LOGITS, copies.SUMMED, "llama", {"tp": 2, "pp": 2}),
        ("moved", copies.ZEROS, copies.SUMMED, "llama", {"tp": 2, "pp": 2}),
        ("moved", copies.BIASES, copies.SUMMED, "gpt-oss", {"tp": 2, "plan": "vllm", "dp": 2}),
        ("moved", copies.OVERWRITTEN, copies.ROWS_ELSEWHERE, "mixtral", {"tp": 2, "ep": 2, "pp": 2}),
        ("at_floor", copies.FEATURES, copies.LOOKED_UP, "llava", {"tp": 2}),
        ("at_floor", copies.GATHERED_LOGITS, SEQUENCE_COPIES, "llama", {"tp": 2, "pp": 2}),
        ("at_floor", copies.SENT, copies.MASKS, "llama", {"tp": 2, "pp": 2}),
        ("at_floor", copies.EXPERTS, copies.LOOKED_UP, "gpt-oss", {"dp": 2}),
        ("excess", copies.KV_COPIES, "norms", "qwen3", {"tp": 8}),
        ("excess", DATA_COPIES, SEQUENCE_COPIES, "llama", {"dp": 2, "cp": 2}),
        ("excess", copies.SKIPPED, SEQUENCE_COPIES, "llama", {"cp": 2}),
        ("excess", "norms", "routers", "mixtral", {"tp": 2}),
        ("excess", "tables of rotary embedding", copies.UNREAD, "gemma3", {"pp": 2}),
        ("added_by_collectives", copies.TIED, DATA_COPIES, "gemma", {"pp": 2}),
    ],
)
def test_amounts_under_another_name_are_found(
    method: str, cause: str, other: str, family: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over ranks is as before, so that only a second count by name can tell."""
    model, work = run(family, **settings)
    ledger, right = targets.evaluate_formulas(model, work), getattr(RankCopies, method)

    def wrong(self: RankCopies, *args: Any) -> Iterator[tuple[str, int]]:
        for why, amount in right(self, *args):
            yield other if why == cause else why, amount

    named = {d.what for d in targets.count_ranks(model, work, ledger).duplicates}
    assert cause in named
    monkeypatch.setattr(RankCopies, method, wrong)
    found, _ = targets._count_ranks(model, work, ledger)
    assert found.problems() == []
    with pytest.raises(Bug, match="counted in another way"):
        targets.count_ranks(model, work, ledger)
