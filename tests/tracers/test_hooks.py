from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from costproof.ledger.callgraph import TensorAt
from costproof.models.families.deepseek_ocr import native
from costproof.models.specs import Run
from costproof.tracers.callgraph import call_graph
from costproof.tracers.hooks import trace_hooks
from tests.tracers.small import PAGE, model, toy, toy_run


def hooks_on(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


def test_calls_edges_and_shapes() -> None:
    found = trace_hooks(toy_run(toy()))
    assert found.call_counts == {"(root)": 1, "proj": 2}
    assert found.edges == {("(root)", "proj"): 2}
    assert found.inputs["proj"] == (TensorAt((2, 5, 6), "float32", "args[0]"),)
    assert found.outputs["(root)"] == (TensorAt((2, 5, 12), "float32", "output"),)
    assert [(e.event, e.name) for e in found.events] == [
        ("mark", "toy"),
        ("enter", "(root)"),
        ("enter", "proj"),
        ("exit", "proj"),
        ("enter", "proj"),
        ("exit", "proj"),
        ("exit", "(root)"),
    ]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_hook_stays_when_the_run_breaks(error: type[BaseException]) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            raise error("half way")

    module = Broken()
    with pytest.raises(error):
        trace_hooks(toy_run(module))
    assert hooks_on(module) == 0


def test_the_cache_grows_by_the_prompt_and_by_one_token() -> None:
    # Keys and values of 5 heads x 16 in 2 bytes, 17 tokens: 2 * 5 * 16 * 17 * 2 = 5,440 per layer; one step: 320.
    small = model()
    page, *steps = native.READER.shape_runs(small, PAGE)
    layers = [f"model.language_model.layers.{i}.self_attn" for i in range(2)]
    assert trace_hooks(page).cache_growth == dict.fromkeys(layers, 5440)
    assert [s.context for s in steps] == [17, 18, 20]
    assert [trace_hooks(s).cache_growth for s in steps] == [dict.fromkeys(layers, 320)] * 3
    # Without a word on which module owns which layer, who writes is seen.
    assert trace_hooks(replace(page, attention_paths=())).cache_growth == dict.fromkeys(layers, 5440)
    assert trace_hooks(replace(steps[0], attention_paths=())).cache_growth == dict.fromkeys(layers, 320)
    assert hooks_on(small) == 0


def test_a_run_can_be_repeated() -> None:
    step = native.READER.shape_runs(model(), PAGE)[1]
    assert trace_hooks(step).call_counts == trace_hooks(step).call_counts
    assert set(trace_hooks(step).cache_growth.values()) == {320}
    assert step.kwargs["past_key_values"].get_seq_length() == 17


def test_both_views_run_through_the_tower() -> None:
    counts = trace_hooks(native.READER.shape_runs(model(), PAGE)[0]).call_counts
    assert counts["model.vision_tower.sam_encoder.layers.0.attn.qkv"] == 2
    assert counts["model.language_model.layers.1.mlp.experts"] == 1
    assert counts["(root)"] == counts["model"] == counts["lm_head"] == 1


def test_the_callgraph_of_several_runs() -> None:
    run = toy_run(toy())
    hooked = trace_hooks(run)
    graph = call_graph((hooked, hooked), {"proj": {"linear": 4}}, {("proj", "proj"): 2})
    assert graph.call_counts == {"(root)": 2, "proj": 4}
    assert graph.edges == {"(root)->proj": 4}
    assert graph.module_types == {"(root)": "Toy", "proj": "Linear"}
    assert graph.module_children == {"(root)": ("proj",)}
    assert graph.op_call_counts == {"proj": {"linear": 4}}
    assert graph.constructor_params["proj"] == {"bias": True, "in_features": 6, "out_features": 6}
    assert graph.data_edges == {"proj->proj": 2}
    assert [e.index for e in graph.events] == list(range(14))


def test_calls_are_counted_through_all_runs() -> None:
    run = toy_run(toy())
    hooked = trace_hooks(run, all_calls=True)
    first = call_graph((hooked, hooked), {}, {})
    every = call_graph((hooked, hooked), {}, {}, all_calls=True)
    assert [v.call for v in first.output_metadata["proj"]] == [1, 2]
    assert [v.call for v in every.output_metadata["proj"]] == [1, 2, 3, 4]
    assert [v.call for v in trace_hooks(run).outputs["proj"]] == [1]
    assert [e.data["call"] for e in first.events if (e.event, e.name) == ("enter", "proj")] == [1, 2, 3, 4]


def test_the_page_and_the_steps_tell_what_they_are() -> None:
    # One page of two crops, 17 tokens, two decoder layers; then steps at contexts 17, 18 and 20.
    marks = [
        [(e.name, e.data) for e in trace_hooks(run).events if e.event == "mark"]
        for run in native.READER.shape_runs(model(), PAGE)
    ]
    assert marks[0] == [
        ("page", {"run": "page"}),
        ("vision_inputs", {"images": 1, "crops": (2,), "columns": (2,), "rows": (1,)}),
        ("llm_stack", {"layers": 2, "positions": 17}),
    ]
    assert [m[0] for m in marks[1:]] == [("decode_step", {"run": f"step@{at}", "context": at}) for at in (17, 18, 20)]
    assert [m[1] for m in marks[1:]] == [("llm_stack", {"layers": 2, "positions": 1})] * 3


def test_too_many_events_are_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.tracers.hooks.MAX_EVENTS", 4)
    events = trace_hooks(toy_run(toy())).events
    # A mark, then enter and exit of three calls: seven, of which three are too many.
    assert [e.event for e in events] == ["mark", "enter", "enter", "exit", "mark"]
    assert (events[-1].name, events[-1].data) == ("left_out", {"events": 3})


class StateCache:
    """Recurrent states by layer and one number, as of a state space model."""

    def __init__(self) -> None:
        self.states: dict[int, torch.Tensor] = {}
        self.seen = torch.zeros((), dtype=torch.int64)


class BothCache:
    """Two caches in one, as of an encoder-decoder."""

    def __init__(self) -> None:
        self.self_attention_cache, self.cross_attention_cache = StateCache(), StateCache()


class Writing(nn.Module):
    """Writes what it got into one half of a cache."""

    def __init__(self, half: str) -> None:
        super().__init__()
        self.where = half

    def forward(self, x: torch.Tensor, cache: BothCache) -> torch.Tensor:
        """[2, 3]."""
        states = getattr(cache, self.where).states
        states[0] = torch.cat([states[0], x]) if 0 in states else x * 1
        return x


class Caching(nn.Module):
    """An own and a crossed part; a cache comes back in a form that the test chooses."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.own, self.crossed, self.form = Writing("self_attention_cache"), Writing("cross_attention_cache"), form

    def forward(self, x: torch.Tensor, past_key_values: BothCache | None = None) -> Any:
        """A result with its cache."""
        cache = BothCache() if past_key_values is None else past_key_values
        x = self.crossed(self.own(x, cache), cache)
        return SimpleNamespace(logits=x, past_key_values=self.form(cache))


X = torch.ones(2, 3)
"""24 bytes."""


def caching(form: Any, **kwargs: Any) -> dict[str, int]:
    run = Run("r", Caching(form), {"x": X, **kwargs}, lambda module, call: ("s", "i"))
    return trace_hooks(run).cache_growth


def test_the_growth_of_a_cache_of_any_form() -> None:
    assert caching(lambda cache: cache) == {"own": 24, "crossed": 24}
    assert caching(lambda cache: None) == {}
    held = BothCache()
    held.self_attention_cache.states[0] = X
    # 24 bytes before, 48 after; the other half is new.
    assert caching(lambda cache: cache, past_key_values=held) == {"own": 24, "crossed": 24}
    assert held.self_attention_cache.states[0].shape == (2, 3)  # the run got a copy


def test_a_cache_that_is_a_tuple_is_seen_at_the_end_alone() -> None:
    class Tuples(nn.Module):
        def forward(self, x: torch.Tensor, past_key_values: Any = None) -> Any:
            old = past_key_values[0][0] if past_key_values else x[:0]
            return {"logits": x, "past_key_values": ((torch.cat([old, x]), x * 2), (x + 1,))}

    run = Run("r", Tuples(), {"x": X}, lambda module, call: ("s", "i"))
    assert trace_hooks(run).cache_growth == {"(root)": 72}
    # 24 of 72 bytes were there before.
    assert trace_hooks(replace(run, kwargs={"x": X, "past_key_values": ((X,),)})).cache_growth == {"(root)": 72}
