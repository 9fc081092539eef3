"""On real tensors the three sources say what they say on meta, to the integer, and tracing changes no bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from costproof.compare.compare import compare
from costproof.ledger.capture import Capture
from costproof.ledger.workload import Workload
from costproof.models.pages.page import with_page
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers.dynamic import dynamic_ledger, output_differences, record_output, repeats
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.torchlens_trace import trace_graph
from tests.tracers.realistic import quiet, small_ocr
from tests.tracers.small import PAGE

SOURCES = ("analytic", "static", "dynamic")
SHORT = replace(PAGE, new_tokens=2)


def counted(workload: Workload, sources: tuple[str, ...] = SOURCES, **options: Any) -> Capture:
    return count_sources(Prepared(small_ocr(**options), workload, sources)).capture


@pytest.mark.thorough
@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(SHORT, id="bfloat16"),
        pytest.param(
            replace(SHORT, dtype="float32", attention="eager", experts="batched_mm", batch=2, logits="last"),
            id="float32",
        ),
    ],
)
def test_cpu_says_what_meta_says(workload: Workload) -> None:
    # What is exported is on meta wherever the model runs.
    real = counted(workload, ("analytic", "dynamic"), device="cpu")
    result = compare(real)
    assert result.verdict == "exact"
    on_meta = dynamic_ledger(small_ocr(), workload).ledger
    dynamic = real.ledger("dynamic")
    assert dynamic is not None
    for metric in dynamic.metrics:
        assert dynamic.total(metric) == on_meta.total(metric), metric
    assert real.run is not None
    assert (real.run.options.device, real.run.options.weights) == ("cpu", "random")


@pytest.mark.thorough
def test_looped_experts() -> None:
    """The loop turns as often as the data wants; FLOPs, bytes and parameters are those of the formulas."""
    looped = counted(replace(SHORT, experts="eager", batch=2), ("analytic", "dynamic"), device="cpu")
    result = compare(looped)
    assert result.verdict == "explained"
    differing = {(f.metric, c.kind) for f in result.findings for c in f.causes if f.delta}
    assert differing == {("calls", "expert_kernel")}
    assert all(f.residual == 0 for f in result.findings if f.status == "explained")
    assert looped.run is not None
    assert looped.callgraph is not None
    # The activation runs once for every expert that received a row, and the record says which.
    path = "model.language_model.layers.1.mlp.experts"
    turns = sum(sum(n > 0 for n in run.expert_tokens[path]) for run in looped.run.runs)
    assert looped.callgraph.call_counts[f"{path}.act_fn"] == turns
    assert looped.callgraph.op_call_counts[path]["linear"] == 2 * turns


def test_each_step_is_counted_apart() -> None:
    record = dynamic_ledger(small_ocr(device="cpu"), with_page(PAGE, None, new_tokens=3)).run
    assert [(r.id, r.context) for r in record.runs] == [("prompt", None), *((f"step@{p}", p) for p in (7, 8, 9))]
    flops = [r.flops or 0 for r in record.runs[1:]]
    # One more key for 2 layers, 5 heads, 16 + 16 dimensions.
    assert {b - a for a, b in pairwise(flops)} == {2 * 2 * 5 * (16 + 16)}
    # Keys and values of one token: 2 layers, 5 heads of 16, bfloat16.
    assert {r.kv_cache_bytes for r in record.runs[1:]} == {2 * 2 * 5 * 16 * 2}


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
def test_a_cut_model_reconciles_too() -> None:
    cut = counted(SHORT, device="cpu", deep=True, layers=2)
    assert compare(cut).verdict == "exact"
    assert cut.target.cut == {"decoder layers": "2 of 3", "SAM layers": "2 of 3", "CLIP layers": "2 of 2"}


def test_traced_runs_return_the_same_bits_and_leave_nothing_behind() -> None:
    target = small_ocr(device="cpu")
    workload = replace(SHORT, experts="eager")
    model = target.build_run(workload, quiet).model
    for run in target.runs(model, workload):
        before = model(**_copied(run.kwargs)).logits
        with record_output(run) as results:
            trace_graph(run)
            trace_hooks(run)
        after = model(**_copied(run.kwargs)).logits
        assert len(results) == 2
        for result in (before, *results, after):
            assert torch.equal(result, run.expected)  # type: ignore[arg-type]
        assert output_differences(run, results) == []
        assert output_differences(run, [before + 1]) == [
            f"run {run.id}: traced forward 1 returned other logits than the untraced one"
        ]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_logits_are_no_evidence_where_untraced_runs_differ() -> None:
    """As with atomic additions on a GPU, here by noise on the last norm: a note, not a difference."""
    target = small_ocr(device="cpu")
    built = target.build_run(SHORT, quiet)
    runs = target.runs(built.model, SHORT)
    assert repeats(runs[0])
    norm = built.model.get_submodule("model.language_model.norm")
    handle = norm.register_forward_hook(lambda module, args, output: output * (1 + torch.rand(())))
    try:
        assert not repeats(runs[0])
        found = dynamic_ledger(target, SHORT, ready=(built, runs[:1]))
    finally:
        handle.remove()
    assert not [d for d in found.trace_check.differences if "logits" in d]
    assert [n for n in found.ledger.notes if "two untraced runs differ" in n]
    assert runs[0].expected is not None
    steady = replace(runs[0], expected=runs[0].expected + 1)
    found = dynamic_ledger(target, SHORT, ready=(built, (steady,)))
    assert [d for d in found.trace_check.differences if "returned other logits" in d]


def test_an_interrupted_run_leaves_no_hook() -> None:
    target = small_ocr(device="cpu")
    model = target.build_run(SHORT, quiet).model
    run = target.runs(model, SHORT)[0]

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.get_submodule("model.language_model.norm").register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt), record_output(run):
        trace_hooks(run)
    handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model(**_copied(run.kwargs)).logits, run.expected)  # type: ignore[arg-type]


def _copied(kwargs: Any) -> dict[str, Any]:
    import copy

    return copy.deepcopy(dict(kwargs))
