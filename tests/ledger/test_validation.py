"""A capture that contradicts itself is refused when it is read, whatever all of its sources agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from costproof.ledger.capture import Capture, WholeModel, read_capture
from costproof.ledger.errors import Problems
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Moment, Peak
from costproof.ledger.run import RunOptions, RunRecord, TracedRun
from tests.support.toy import toy
from tests.support.written import write_capture

Edit = Callable[[Capture], Capture]


def nodes(change: Callable[[CostNode], CostNode]) -> Edit:
    """The same change of the nodes of all ledgers, so that the sources go on agreeing."""
    return ledgers(lambda x: replace(x, nodes=tuple(map(change, x.nodes))))


def ledgers(change: Callable[[Ledger], Ledger]) -> Edit:
    """The same change of all ledgers."""
    return lambda made: replace(made, ledgers=tuple(map(change, made.ledgers)))


def flops(change: Callable[[int], int]) -> Edit:
    """Of all nodes that have them, in all ledgers."""
    return nodes(
        lambda n: replace(n, costs={**n.costs, "flops": change(n.costs["flops"] or 0)}) if "flops" in n.costs else n
    )


def formula(text: str) -> Edit:
    """In place of every formula of FLOPs, in all ledgers."""
    return nodes(lambda n: replace(n, exprs={**n.exprs, "flops": text}) if "flops" in n.exprs else n)


def traced(page: int | None, steps: tuple[int, ...] = (264, 288, 312)) -> Edit:
    """With the runs of the dynamic source: by hand 1024 + 768 on the page, 24 * 11, 24 * 12, 24 * 13 in the steps."""
    runs = [TracedRun("page", None, 1, 1, page, None, None)]
    runs += [TracedRun(f"step@{10 + i}", 10 + i, 1, 1, n, None, None) for i, n in enumerate(steps)]
    return lambda made: replace(made, run=RunRecord(RunOptions(), (), tuple(runs)))


def symbols(**values: int) -> Edit:
    return lambda made: replace(made, target=replace(made.target, symbols={**made.target.symbols, **values}))


def invocations(keep: int, **changes: object) -> Edit:
    def change(made: Capture) -> Capture:
        calls = tuple(replace(i, **changes) for i in made.invocations[:keep])  # type: ignore[arg-type]
        return replace(made, invocations=calls)

    return change


CONTRADICTIONS: dict[str, tuple[Edit, str, str]] = {
    "numbers doubled in all ledgers": (flops(lambda n: 2 * n), "differs from the value", ".exprs.flops"),
    "expressions halved in all ledgers": (formula("H**2*n*sam_hidden**2/256"), "differs from", ".exprs.flops"),
    "an unknown symbol": (formula("zzz"), "symbols without a value", ".exprs.flops"),
    "no expression": (formula("2 +* n"), "cannot read an expression", ".exprs.flops"),
    "another width in the configuration": (symbols(sam_hidden=5), "differs from the value", ".exprs.params"),
    "a cost below zero": (
        nodes(lambda n: replace(n, costs=dict.fromkeys(n.costs, -1), exprs={})), "at least 0", ".costs.",
    ),
    "no invocations": (invocations(0), "names no such invocation", ".invocation"),
    "an invocation that is not called": (invocations(3, calls=0), "not an invocation", "$.invocations[0]"),
    "an invocation of a stage that is not there": (invocations(3, stage="x"), "not an invocation", "$.invocations[0]"),
    "no stages in the target": (
        lambda made: replace(made, target=replace(made.target, stages=())), "not a stage of this target", ".stages",
    ),
    "nodes of a stage that the ledger does not cover": (
        ledgers(lambda x: replace(x, stages=("sam", "clip"))), "does not cover the stage", ".stage",
    ),
    "two ledgers of one source": (
        lambda made: replace(made, ledgers=(*made.ledgers, made.ledgers[0])), "a source counts once", "$.ledgers",
    ),
    "a node twice": (ledgers(lambda x: replace(x, nodes=(*x.nodes, x.nodes[0]))), "occurs twice", ".nodes["),
    "a metric that no ledger gives": (
        ledgers(lambda x: replace(x, metrics=("params",))), "not give the metric", ".costs.",
    ),
    "a metric of ours that does not exist": (
        ledgers(lambda x: replace(x, metrics=(*x.metrics, "miles"))), "no such metric", ".metrics",
    ),
    "FLOPs of a whole stage": (nodes(lambda n: replace(n, invocation="")), "belongs to an invocation", ".costs."),
    "a page that its runs do not have": (traced(1793), "not the sum over its runs", "$.run.runs"),
    "steps that its runs do not have": (traced(1792, (264, 288, 313)), "not the sum over its runs", "$.run.runs"),
    # Two of three steps: 3 * (264 + 314) / 2 = 867, the ledger has 864.
    "steps between the traced ones": (traced(1792, (264, 314)), "not the sum over its runs", "$.run.runs"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_refused(tmp_path: Path, name: str) -> None:
    edit, said, where = CONTRADICTIONS[name]
    write_capture(tmp_path / "c.json", edit(toy()))
    with pytest.raises(Problems, match="contradicts itself") as caught:
        read_capture(tmp_path / "c.json")
    assert any(said in p.what and where in (p.where or "") for p in caught.value.problems), str(caught.value)
    assert len(caught.value.problems) <= 20


@pytest.mark.parametrize(
    "edit",
    [traced(1792), traced(1792, (264, 312)), traced(None), traced(2656, ()), lambda made: made],
    ids=["every step", "first and last step", "an unknown run", "all in one run", "no runs"],
)
def test_what_holds_is_read(tmp_path: Path, edit: Edit) -> None:
    write_capture(tmp_path / "c.json", edit(toy()))
    assert read_capture(tmp_path / "c.json") == edit(toy())


def peaks(bytes_: int, stage: str = "sam", gap: int = 0, curve: tuple[tuple[int, int], ...] = ((0, 3), (1, 8))) -> Edit:
    """A call with one tensor of 8 bytes alive, and a peak of so many; ``(event, bytes)`` of two events."""
    alive = (LiveTensor("mm", (8,), "uint8", 8, "aten.mm.default", "m"),)
    peak = Peak(bytes_, "aten.mm.default", "m", alive, 2, tuple(Moment(*m, "m") for m in curve))
    call = CallPeaks(stage, "global", "p", peak, peak, (GapPart("elsewhere", gap, None),) if gap else ())
    return lambda made: replace(made, peaks=(call,))


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (peaks(9), "$.peaks[0].graph"),
        (peaks(8, stage="tower"), "$.peaks[0].stage"),
        (peaks(8, gap=1), "$.peaks[0].gap"),
        (peaks(8, curve=((0, 9), (1, 8))), "$.peaks[0].graph.curve"),
        (peaks(8, curve=((0, 7), (1, 7))), "$.peaks[0].eager.curve"),
        (peaks(8, curve=((0, -1), (1, 8))), "$.peaks[0].graph.curve"),
        (peaks(8, curve=((1, 3), (0, 8))), "$.peaks[0].graph.curve"),
        (peaks(8, curve=((0, 3), (2, 8))), "$.peaks[0].graph.curve"),
        (peaks(8, curve=((0, 8), (0, 8))), "$.peaks[0].graph.curve"),
    ],
)
def test_peaks_are_what_is_alive(tmp_path: Path, edit: Edit, where: str) -> None:
    """8 bytes alive are a peak of 8, and two equal peaks have no gap."""
    write_capture(tmp_path / "good.json", peaks(8)(toy()))
    assert read_capture(tmp_path / "good.json").peaks[0].residual == 0
    write_capture(tmp_path / "bad.json", edit(toy()))
    with pytest.raises(Problems) as raised:
        read_capture(tmp_path / "bad.json")
    assert where in [p.where for p in raised.value.problems]


def whole(
    total: int = 7,
    decode: int = 4,
    times: tuple[int, ...] = (1, 5),
    checked: int = 3,
    stage: str = "decode",
    metric: str = "flops",
) -> Edit:
    """Two layers of six stand for one and five; 3 FLOP in one stage, 4 in another."""
    stages = {"sam": {metric: 3}, stage: {metric: decode}}
    found = WholeModel({"layers": times}, {"layers": checked}, stages, {metric: total}, {})
    return lambda made: replace(made, whole=found)


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (whole(total=8), "$.whole.totals.flops"),
        (whole(decode=5), "$.whole.totals.flops"),
        (whole(times=(1, 0)), "$.whole.times.layers"),
        (whole(times=()), "$.whole.times.layers"),
        (whole(checked=1), "$.whole.checked.layers"),
        (whole(checked=7), "$.whole.checked.layers"),
        (whole(stage="tower"), "$.whole.stages"),
        (whole(metric="miles"), "$.whole"),
    ],
)
def test_the_whole_model_is_the_sum_of_its_stages(tmp_path: Path, edit: Edit, where: str) -> None:
    write_capture(tmp_path / "good.json", whole()(toy()))
    assert read_capture(tmp_path / "good.json") == whole()(toy())
    write_capture(tmp_path / "bad.json", edit(toy()))
    with pytest.raises(Problems) as raised:
        read_capture(tmp_path / "bad.json")
    assert where in [p.where for p in raised.value.problems]
