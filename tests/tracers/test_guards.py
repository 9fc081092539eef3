"""A graph in symbols is used where torch's own guards hold: at every decode step, not at the first alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import CostNode
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.tracers.exported import export_graph
from costproof.tracers.guards import conditions, first_broken_guard, holds_at, margins
from costproof.tracers.static import JobCosts, cost_job


class Table(nn.Module):
    """A step that passes its projection once while its cache fits a table of 8 rows, and twice afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, keys: list[torch.Tensor]) -> torch.Tensor:
        """[B, 1, 4] and one [B, P, 4] -> [B, 1, 4]."""
        y: torch.Tensor = self.proj(x)
        return y if keys[0].shape[1] < 8 else self.proj(y)


class Wrapper(nn.Module):
    """Around :class:`Table`, as an export wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Table().to("meta")

    def forward(self, x: torch.Tensor, keys: list[torch.Tensor]) -> torch.Tensor:
        """[B, 1, 4] and one [B, P, 4] -> [B, 1, 4]."""
        result: torch.Tensor = self.part(x, keys)
        return result


def job(repeated: bool = True) -> ExportJob:
    """One step whose batch and context are symbols; the example has 5 tokens in its cache."""
    args = {"x": torch.empty(2, 1, 4, device="meta"), "keys": [torch.empty(2, 5, 4, device="meta")]}
    sizes = [SymbolicSize(("x",), 0, "B"), SymbolicSize(("keys", 0), 0, "B"), SymbolicSize(("keys", 0), 1, "P")]
    return ExportJob("step", "decode", ("step",), Wrapper(), {"part": ""}, args, sizes, repeated=repeated)


def counted(batch: int, context: int, steps: int) -> JobCosts:
    """The step, N times from a context."""
    values = {("decode", "step"): {"B": batch, "P": context, "N": steps}}
    return cost_job(job(), values, export_graph, with_convention=False, fixed=True, dtype="float32")


def product(found: JobCosts) -> CostNode:
    """The node of the projection's product."""
    (node,) = (n for n in found.tally.nodes if n.kind == "aten.linear")
    return node


def flops(found: JobCosts) -> int | None:
    """What the projection cost."""
    return product(found).cost("flops")


# The projection of one row is 2 * 4 * 4 = 32 FLOPs.
@pytest.mark.parametrize(
    ("batch", "context", "steps", "expected"),
    [
        (2, 7, 2, 2 * 32 + 2 * 2 * 32),  # rows 7 | 8
        (1, 7, 2, 32 + 2 * 32),
        (1, 8, 5, 5 * 2 * 32),  # the end of the table is passed before the first step
        (1, 6, 3, 32 + 32 + 2 * 32),
    ],
)
def test_steps_past_a_guard_are_counted_as_they_run(batch: int, context: int, steps: int, expected: int) -> None:
    found = counted(batch, context, steps)
    assert flops(found) == expected
    (note,) = found.notes
    assert "at the sizes of this workload alone" in note
    assert f"P < 8, at B = {batch}, P = 8" in note


def test_steps_that_bend_have_no_sum() -> None:
    found = counted(1, 6, 4)  # 6, 7 | 8, 9: first, middle and last are no straight line
    assert flops(found) is None
    assert any("not a straight line: [32, 32, 64]" in note for note in found.notes)


def test_a_guard_that_breaks_between_the_watched_steps_is_seen() -> None:
    exported = export_graph(job())
    assert first_broken_guard(exported, [{"B": 1, "P": p} for p in (2, 3, 7)]) is None
    broken = first_broken_guard(exported, [{"B": 3, "P": p} for p in (6, 7, 8, 9)])
    assert broken == "P < 8, at B = 3, P = 8"


def test_a_claim_about_all_sizes_asks_sizes_past_the_table() -> None:
    exported = export_graph(job())
    assert conditions(exported) == ("P < 8",)
    # Of the two caches: their batches are one symbol, and 2 + P is never 1.
    always = ("L['x'].size()[0] == L['keys'][0].size()[0]", "2 + L['keys'][0].size()[1] != 1")
    assert conditions(replace(exported, guards=always)) == ()


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("{P} < 8", "7 - P"),
        ("{P} <= 8", "8 - P"),
        ("{P} > 8", "P - 9"),
        ("{P} + 2 >= 2", None),  # always
        ("{P} == 8", "-P**2 + 16*P - 64"),
        ("{P} != 8", "P**2 - 16*P + 63"),
        ("not {P} < 8", "P - 8"),
        ("2 < {P} < 8", "Min(7 - P, P - 3)"),
        ("{P} < 8 or {P} == {B}", "Max(7 - P, -P**2 + 2*B*P - B**2)"),
        ("{P} % 4 == 0", "-16*floor(P/4)**2 + 8*P*floor(P/4) - P**2"),
        ("True", None),
        ("{P} < 8 and False", "Min(-1, 7 - P)"),
        ("min({P}, 4) * -1 + {P} // 2 >= 1", "floor(P/2) - Min(4, P) - 1"),
    ],
)
def test_a_guard_is_an_expression_that_is_not_negative_where_it_holds(guard: str, expected: str | None) -> None:
    at = {"P": "L['keys'][0].size()[1]", "B": "L['x'].size()[0]"}
    exported = replace(export_graph(job()), guards=(guard.format(**at),))
    found = margins(exported.job, exported.guards)
    assert found == (() if expected is None else (parse(expected),))
    for p in range(2, 20):
        holds = bool(eval(guard.format(P=p, B=3)))
        assert all(evaluate(margin, {"P": p, "B": 3}) >= 0 for margin in found) == holds
        assert (first_broken_guard(exported, [{"P": p, "B": 3}]) is None) == holds


def test_a_size_that_is_a_multiple_is_a_guard() -> None:
    sizes = tuple(replace(size, step=4) if size.symbol == "P" else size for size in job().sizes)
    (margin,) = margins(replace(job(), sizes=sizes), ())
    assert [p for p in range(1, 20) if evaluate(margin, {"P": p}) >= 0] == [4, 8, 12, 16]


def test_a_guard_about_fractions_has_no_margin() -> None:
    with pytest.raises(Incomplete, match="something other than the sizes"):
        margins(job(), ("L['x'].size()[0] * 0.5 < 8",))


def test_steps_before_a_guard_stay_in_symbols() -> None:
    found = counted(1, 2, 6)  # rows 2 to 7
    assert product(found).exprs["flops"] == "32*B*N"
    assert found.notes == ()


def test_caches_in_lists_are_read() -> None:
    exported = export_graph(job())
    points = [{"B": b, "P": p} for b, p in ((2, 7), (2, 8), (1, 7))]
    # 8 rows are past the table; the exporter takes a batch to be 2 or more.
    assert holds_at(exported, points) == (True, False, False)
