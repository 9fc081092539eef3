"""Tracing is read-only: the model and torch are the same before and after, however the trace ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torchlens import postprocess
from torchlens.backends.torch import belt
from torchlens.ir.live_index import LiveIndex
from torchlens.postprocess import control_flow

from costproof.ledger.errors import Incomplete
from costproof.models.specs import Mark, Run
from costproof.patches.patch import patched
from costproof.patches.torchlens import SKIP_UNUSED_WORK, torchlens_wrappers, wrapped_once
from costproof.tracers import torchlens_trace
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.torchlens_trace import trace_graph


class Breaking(nn.Module):
    """Raises half way, if it has something to raise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4] -> [n, 4]."""
        x = self.first(x)
        if self.error is not None:
            raise self.error("half way")
        result: torch.Tensor = self.last(x)
        return result


def run_of(module: nn.Module) -> Run:
    return Run("once", module, {"x": torch.linspace(0, 1, 12).reshape(3, 4)}, lambda path, call: ("stage", "once"))


def surroundings(module: nn.Module) -> list[Any]:
    """Everything that a tracer might change and leave behind."""
    functional: Any = nn.functional
    state: list[Any] = [functional.linear, torch.relu, torch.Tensor.__add__, nn.Module.__call__, nn.Linear.forward]
    state += [control_flow._can_fast_skip_step5, postprocess._compact_op_metadata]
    for child in module.modules():
        values = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(child).items()}
        state += [type(child), child.training, values]
    return state


def trace_twice(run: Run) -> None:
    """As a prompt and a step are traced: torch's functions are wrapped once for both."""
    functional: Any = nn.functional
    plain = functional.linear
    with wrapped_once():
        assert functional.linear is not plain
        trace_graph(run)
        wrapped = functional.linear
        assert wrapped is not plain
        trace_graph(run)
        assert functional.linear is wrapped


TRACERS: list[Callable[[Run], object]] = [trace_hooks, trace_graph, trace_twice]


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_before_and_after(tracer: Callable[[Run], object], error: type[BaseException] | None) -> None:
    module = Breaking().eval()
    run = run_of(module)
    with torch.no_grad():
        plain = module(**run.kwargs)
    module.error = error
    before = surroundings(module)
    if error is None:
        tracer(run)
    else:
        with pytest.raises((error, Incomplete)):
            tracer(run)
    assert surroundings(module) == before
    module.error = None
    with torch.no_grad():
        assert torch.equal(module(**run.kwargs), plain)


class Forked(nn.Module):
    """Takes the way that its numbers decide, twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4] -> [n, 4]."""
        for layer in (self.first, self.last):
            if bool(x.sum() > 0):
                x = layer(x)
        return x


def test_what_torchlens_leaves_out_is_in_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch.object(control_flow, "_build_file_indexes", wraps=control_flow._build_file_indexes) as indexed:
        short = trace_graph(run_of(Forked())).graph
        indexed.assert_not_called()
        monkeypatch.setattr(torchlens_trace, "SKIP_UNUSED_WORK", ())
        assert trace_graph(run_of(Forked())).graph == short
        indexed.assert_called_once()
    assert "linear" in [op.name for op in short.ops]


def test_modules_are_searched_again_only_if_they_may_have_changed() -> None:
    """TorchLens replaces some functions under each name by which a module has imported them."""
    mine, run = ModuleType("mine"), run_of(Breaking().eval())
    sys.modules["mine"] = mine
    try:
        trace_graph(run)
        assert len(belt._swept_module_ids) > 100
        assert not {id(mine), id(sys.modules[__name__])} & belt._swept_module_ids.keys()
        mine.from_numpy = plain = torch.from_numpy  # type: ignore[attr-defined]
        with wrapped_once():
            assert mine.from_numpy is torch.from_numpy is not plain
        assert mine.from_numpy is torch.from_numpy is plain
    finally:
        del sys.modules["mine"]


def test_edges_are_found_anew_where_a_record_has_others() -> None:
    def event(label: str, *parents: str) -> SimpleNamespace:
        return SimpleNamespace(label_raw=label, parents=tuple(SimpleNamespace(parent_label_raw=p) for p in parents))

    def children(replacing: SimpleNamespace) -> dict[str, list[str]]:
        index = LiveIndex()
        for known in (event("a"), event("b"), event("c", "a")):
            index.append(known)
        index.replace(replacing)
        assert index.by_raw_label["c"] is replacing
        return {parent: found for parent, found in index.children_by_parent.items() if found}

    with patched(*SKIP_UNUSED_WORK):
        assert children(event("c", "a")) == {"a": ["c"]}
        assert children(event("c", "b")) == {"b": ["c"]}


def test_during_a_trace_the_model_gives_the_same() -> None:
    module = Breaking().eval()
    run = run_of(module)
    seen: list[list[float]] = []  # tensors would be taken back
    handle = module.register_forward_hook(lambda m, args, output: seen.append(output.tolist()))
    with torch.no_grad():
        module(**run.kwargs)
        trace_hooks(run)
        module(**run.kwargs)
    handle.remove()
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]


def test_hooks_of_others_stay_and_arguments_are_not_changed() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    module = InPlace()
    handle = module.register_forward_hook(lambda m, args, output: None)
    run = run_of(module)
    given = run.kwargs["x"].clone()
    trace_hooks(run)
    assert torch.equal(run.kwargs["x"], given)
    assert list(module._forward_hooks) == [handle.id]


def test_wrappers_that_were_there_before_stay() -> None:
    from torchlens.backends.torch.wrappers import unwrap_torch, wrap_torch

    functional: Any = nn.functional
    plain = functional.linear
    wrap_torch()
    try:
        wrapped = functional.linear
        with torchlens_wrappers():
            pass
        assert functional.linear is wrapped is not plain
    finally:
        unwrap_torch()
    assert functional.linear is plain


def test_the_tables_of_the_compiler_name_no_wrapper_and_are_made_once() -> None:
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    plain = torch.cos
    with wrapped_once():
        assert torch.cos is not plain
        table = get_torch_obj_rule_map()
        wrapper = torch.cos
    with wrapped_once():
        pass
    assert get_torch_obj_rule_map() is table
    assert plain in table
    assert wrapper not in table


def test_a_mark_is_told_once_and_only_if_there_is_something_to_tell() -> None:
    module = Breaking().eval()
    marks = (
        Mark("rows", "", lambda m, args, kwargs: {"rows": int(kwargs["x"].shape[0])}),
        Mark("nothing", "first", lambda m, args, kwargs: {}),
        Mark("widths", "last", lambda m, args, kwargs: {"widths": (m.in_features, m.out_features)}),
    )
    plain = run_of(module)
    found = trace_hooks(Run("once", module, plain.kwargs, plain.locate, marks=marks))
    assert [(e.event, e.name, e.data) for e in found.events] == [
        ("mark", "once", {"run": "once"}),
        ("enter", "(root)", {"call": 1}),
        ("mark", "rows", {"rows": 3}),
        ("enter", "first", {"call": 1}),
        ("exit", "first", {"call": 1}),
        ("enter", "last", {"call": 1}),
        ("mark", "widths", {"widths": (4, 4)}),
        ("exit", "last", {"call": 1}),
        ("exit", "(root)", {"call": 1}),
    ]
