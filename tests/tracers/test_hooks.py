from __future__ import annotations

import pytest
import torch
from torch import nn

from costproof.ledger.workload import TensorSpec
from costproof.models.deepseek_ocr import cuts
from costproof.tracers.hooks import call_graph, constructor_params, specs, trace_hooks
from tests.tracers.small import PAGE, model, toy, toy_run


def hooks_on(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


def test_calls_edges_and_shapes() -> None:
    found = trace_hooks(toy_run(toy()))
    assert found.call_counts == {"(root)": 1, "proj": 2}
    assert found.edges == {("(root)", "proj"): 2}
    assert found.inputs["proj"] == (TensorSpec((2, 5, 6), "float32"),)
    assert found.outputs["(root)"] == (TensorSpec((2, 5, 12), "float32"),)
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
    page, *steps = cuts.runs(small, PAGE)
    assert trace_hooks(page).cache_growth == (5440, 5440, 5440)
    assert [s.context for s in steps] == [17, 18, 20]
    assert [trace_hooks(s).cache_growth for s in steps] == [(320, 320, 320)] * 3
    assert hooks_on(small) == 0


def test_a_run_can_be_repeated() -> None:
    step = cuts.runs(model(), PAGE)[1]
    assert trace_hooks(step).call_counts == trace_hooks(step).call_counts
    assert trace_hooks(step).cache_growth == (320, 320, 320)
    assert step.kwargs["past_key_values"].get_seq_length() == 17


def test_both_views_run_through_the_tower() -> None:
    counts = trace_hooks(cuts.runs(model(), PAGE)[0]).call_counts
    assert counts["model.vision_tower.sam_encoder.layers.0.attn.qkv"] == 2
    assert counts["model.language_model.layers.2.mlp.experts"] == 1
    assert counts["(root)"] == counts["model"] == counts["lm_head"] == 1


def test_the_callgraph_of_several_runs() -> None:
    run = toy_run(toy())
    hooked = trace_hooks(run)
    graph = call_graph((hooked, hooked), {"proj": {"linear": 4}})
    assert graph.call_counts == {"(root)": 2, "proj": 4}
    assert graph.edges == {"(root)->proj": 4}
    assert graph.module_types == {"(root)": "Toy", "proj": "Linear"}
    assert graph.module_children == {"(root)": ("proj",)}
    assert graph.op_call_counts == {"proj": {"linear": 4}}
    assert graph.constructor_params["proj"] == {"in_features": 6, "out_features": 6}
    assert [e.index for e in graph.events] == list(range(14))


def test_constructor_parameters_are_plain() -> None:
    assert constructor_params(nn.Conv2d(3, 8, 5, stride=2)) | {} == {
        "dilation": "1x1",
        "groups": 1,
        "in_channels": 3,
        "kernel_size": "5x5",
        "out_channels": 8,
        "padding": "0x0",
        "padding_mode": "zeros",
        "stride": "2x2",
    }


def test_specs_of_nested_values() -> None:
    x = torch.empty(2, 3, dtype=torch.float16, device="meta")
    expected = TensorSpec((2, 3), "float16")
    assert specs(({"a": x, "b": [x, None]}, 3, "text")) == (expected, expected)
