"""Experts that are modules: which ran, which no token reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from costproof.compare.totals import expert_findings, uneven_experts
from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.run import RunOptions, RunRecord, TracedRun
from costproof.ledger.workload import Invocation
from tests.support import builders as b


def graph(modules: dict[str, str]) -> CallGraph:
    """A callgraph of which only the modules matter."""
    return CallGraph({}, {}, {}, {}, modules)


def real(modules: dict[str, str]) -> Capture:
    """A prompt and two steps through a layer of four experts."""
    runs = [
        TracedRun(name, context, 0, 0, 0, 0, 0, {"l.experts": received})
        for name, context, received in (
            ("prompt", None, (3, 0, 1, 0)), ("step@3", 3, (1, 0, 0, 0)), ("step@4", 4, (1, 1, 0, 0)),
        )
    ]  # fmt: skip
    steps = Invocation("later", "one by one", 2, {"B": 1, "P": 3, "N": 2}, ())
    at = b.capture()
    return replace(
        at, invocations=(*at.invocations, steps), callgraph=graph(modules), run=RunRecord(RunOptions(), (), tuple(runs))
    )


def test_experts_by_how_often_they_ran() -> None:
    found = expert_findings(real({f"l.experts.{i}": "Mlp" for i in range(4)}))
    assert [(f.id, f.status, f.values["dynamic"], f.evidence) for f in found] == [
        ("prefill[prompt]/l.experts.[1,3]#calls", "not-executed", 0, ("dynamic: no token reached them",)),
        ("prefill[prompt]/l.experts.[0,2]#calls", "dynamic-only", 2, ("dynamic: 4 rows",)),
        ("later[one by one]/l.experts.[2-3]#calls", "not-executed", 0, ("dynamic: no token reached them",)),
        ("later[one by one]/l.experts.1#calls", "dynamic-only", 1, ("dynamic: 1 rows",)),
        ("later[one by one]/l.experts.0#calls", "dynamic-only", 2, ("dynamic: 2 rows",)),
    ]


def test_a_stack_of_matrices_has_no_experts_of_its_own() -> None:
    assert expert_findings(real({"l.experts": "Experts"})) == []


@pytest.mark.parametrize("find", [expert_findings, uneven_experts])
def test_rows_that_fit_no_call_are_a_damaged_file(find: Callable[[Capture], object]) -> None:
    good = real({f"l.experts.{i}": "Mlp" for i in range(4)})
    assert good.run is not None
    runs = tuple(
        replace(r, expert_flops={"l.experts": tuple(8 * n for n in r.expert_tokens["l.experts"])})
        for r in good.run.runs
    )
    good = replace(good, run=replace(good.run, runs=runs))
    find(good)
    alone = replace(good, invocations=tuple(i for i in good.invocations if "P" in i.symbols))
    with pytest.raises(BadInput, match=r"(?s)prompt.*expected: a call with S among its sizes"):
        find(alone)


def test_flops_of_other_experts_than_the_rows_are_a_damaged_file() -> None:
    good = real({"l.experts.0": "Mlp"})
    run = TracedRun("prompt", None, 0, 0, 0, 0, 0, {"l.experts": (3, 1)}, {"l.experts": (24,)})
    assert good.run is not None
    with pytest.raises(BadInput, match=r"(?s)prompt.*experts of l\.experts.*got: +2, 1"):
        uneven_experts(replace(good, run=replace(good.run, runs=(run,))))
