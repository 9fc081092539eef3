"""The first layers of a configuration without formulas, and what they say about the whole model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

from costproof import api
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import METRICS, Metric
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models.generic.module import GenericTarget
from costproof.models.generic.truncation import Stack, stacks
from costproof.models.registry import load_target
from costproof.models.specs import Truncation
from costproof.reports.static import stack_sentences

pytestmark = pytest.mark.usefixtures("one_process")

OLMO: dict[str, Any] = {
    "model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 9, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "sliding_window": 8,
    "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Three layers with a window, then one without, and so on."""
TURNS: dict[str, Any] = {
    **OLMO, "num_hidden_layers": 5, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
}  # fmt: skip
"""With a window and without in turn."""
VISION: dict[str, Any] = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "model_type": "qwen3_vl", "hidden_size": 16, "intermediate_size": 24, "depth": 6, "num_heads": 2,
        "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 2, "deepstack_visual_indexes": [1, 3],
        "num_position_embeddings": 64,
    },
}  # fmt: skip
"""Two layers of its tower feed one more projector each."""


class Attention(nn.Module):
    def __init__(self, number: int, window: int | None) -> None:
        super().__init__()
        self.layer_idx, self.window, self.drop = number, window, 0.1 * number
        self.map = nn.Linear(4, 4)


class Tower(nn.Module):
    """Layers 0, 1, 3 and 4 with a window, 2 and 5 without."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(i, None if i % 3 == 2 else 7) for i in range(6))


def test_layers_are_alike_but_for_their_number() -> None:
    (stack,) = stacks(Tower())
    assert stack.path == "layers"
    # The first layer drops nothing, which may be another way through its code: a kind of its own.
    assert [stack.kinds.index(kind) for kind in stack.kinds] == [0, 1, 2, 1, 1, 2]
    assert (stack.least, stack.parameters) == (3, 6 * (4 * 4 + 4))
    assert stack.times(3) == (1, 3, 2)
    assert stack.times(4) == (1, 1, 2, 2)
    assert stack.times(6) == (1, 1, 1, 1, 1, 1)
    assert (stack.more(3), stack.more(4), stack.more(6)) == (6, 6, 6)


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        ({"drop_prob": [0.0, 0.1, 0.2]}, [0, 1, 1]),
        ({"capacity": [0.25, 0.5, 0.25]}, [0, 1, 0]),
        ({"shares": [(1, 0.25), (1, 0.5), (1, 0.25)]}, [0, 1, 0]),
        ({"choice": [{"keep": 2}, {"keep": 2}, {"keep": 3}]}, [0, 0, 2]),
        ({"layer_idx": [1, 2, 3], "window": [4, None, 4]}, [0, 1, 0]),
        ({"left": [2, 1, 0]}, [0, 1, 2]),
        # Two caches in a layer; what follows from the depth, in every layer another.
        ({"first_cache": [0, 2, 4], "second_cache": [1, 3, 5]}, [0, 0, 0]),
        ({"scale": [0.5, 0.25, 0.125]}, [0, 0, 0]),
    ],
)
def test_what_a_layer_keeps_makes_its_kind(values: dict[str, list[Any]], alike: list[int]) -> None:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    for name, each in values.items():
        for layer, value in zip(layers, each, strict=True):
            setattr(layer, name, value)
    (stack,) = stacks(nn.ModuleDict({"a": nn.ModuleList(layers)}))
    assert [stack.kinds.index(kind) for kind in stack.kinds] == alike


def test_layers_that_hang_on_how_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.olmo3.modeling_olmo3 import Olmo3DecoderLayer

    build = Olmo3DecoderLayer.__init__

    def __init__(self: Any, config: Any, layer_idx: int) -> None:
        build(self, config, layer_idx)
        self.late = layer_idx >= config.num_hidden_layers // 2

    monkeypatch.setattr(Olmo3DecoderLayer, "__init__", __init__)
    # Of nine layers the last five are late, with a window or without: the first of each of these at 4 and at 7.
    raised = _target(tmp_path, OLMO).with_options(RunOptions(layers=7))
    assert raised.info().cut == {"model.layers": "8 of 9 layers (7 asked: one of each kind of layer)"}
    # Eight are late from 4 on, as nine are: 8 // 2 == 9 // 2. Eleven are from 5 on, the first nine alone from 4 on.
    assert _target(tmp_path, OLMO).with_options(RunOptions(layers=8)).info().cut
    with pytest.raises(BadInput, match=r"with fewer layers, the layers that remain in model\.layers change"):
        _target(tmp_path, {**OLMO, "num_hidden_layers": 11}).with_options(RunOptions(layers=9))


def test_layers_that_say_how_many_there_are() -> None:
    def made(count: int, **changed: Any) -> Stack:
        layers = [nn.Linear(2, 2) for _ in range(count)]
        for i, layer in enumerate(layers):
            kept = {"layer_idx": i, "count": count, "each": ["a", "b", "a", "a"][:count], "heads": 4, **changed}
            for name, value in kept.items():
                setattr(layer, name, value)
        return stacks(nn.ModuleDict({"a": nn.ModuleList(layers)}), {"a": whole} if count < 4 else None)[0]

    whole = made(4)
    assert [made(count).begins(whole) for count in (1, 2, 3)] == [True, True, True]
    # As many heads as layers are not a number of layers; nor is the second list the beginning of the first.
    assert [made(2, heads=3).begins(whole), made(2, each=["a", "a"]).begins(whole)] == [False, False]
    assert not made(2, more=1).begins(whole)


def test_a_list_inside_a_layer_belongs_to_it() -> None:
    inner = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(3)) for _ in range(2))
    assert [(s.path, len(s.kinds)) for s in stacks(nn.ModuleDict({"a": inner}))] == [("a", 2)]


def test_a_module_stands_for_the_product_of_its_stacks() -> None:
    stretch = Truncation(0, (("a.layers", (1, 5)), ("a.layers.1.b", (2,)), ("a.layer", (9,))))
    assert [stretch.of(p) for p in ("", "a", "a.layers", "a.layers.0.x", "a.layers.1", "a.layers.1.b.0.y")] == [
        1, 1, 1, 1, 5, 10,
    ]  # fmt: skip


def test_cutting_keeps_the_first_layers_and_one_of_each_kind(tmp_path: Path) -> None:
    target = _target(tmp_path, OLMO)
    for beyond in (0, 10):
        with pytest.raises(BadInput):
            target.with_options(RunOptions(layers=beyond))
    less = target.with_options(RunOptions(layers=3)).info().cut
    assert less == {"model.layers": "4 of 9 layers (3 asked: one of each kind of layer)"}
    cut = target.with_options(RunOptions(layers=5))
    assert cut.info().cut == {"model.layers": "5 of 9 layers"}
    config: Any = cut.maker.make(None, None).module.config
    assert config.num_hidden_layers == 5
    assert config.layer_types == ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"]
    assert cut.with_options(RunOptions(layers=5)).maker == cut.maker
    with pytest.raises(BadInput, match="is already cut by --layers"):
        cut.with_options(RunOptions(layers=6))
    assert target.with_options(RunOptions(layers=9)).info().cut == {}


@pytest.mark.thorough
@pytest.mark.parametrize("layers", [4, 5, 8])
def test_the_whole_is_what_counting_the_whole_says(tmp_path: Path, layers: int) -> None:
    found = _capture(tmp_path, OLMO, layers=layers, seq_len=16)
    _same(found, _capture(tmp_path, OLMO, seq_len=16))
    assert found.whole is not None
    # Windows at 0, 1, 2, 4, 5, 6, 8; the kept ones stand for seven, and two are without.
    assert sum(found.whole.times["model.layers"]) == 9
    assert found.whole.times["model.layers"] == {4: (1, 1, 5, 2), 5: (1, 1, 1, 2, 4), 8: (1,) * 6 + (2, 1)}[layers]
    assert found.whole.checked == {"model.layers": {4: 8, 5: 8, 8: 9}[layers]}
    assert list(found.whole.left_out) == ["floor_bytes"]


@pytest.mark.thorough
def test_a_run_with_numbers_says_the_whole_too(tmp_path: Path) -> None:
    found = _capture(tmp_path, OLMO, layers=4, seq_len=16, run="cpu")
    _same(found, _capture(tmp_path, OLMO, seq_len=16))


@pytest.mark.thorough
def test_towers_are_cut_beside_the_decoder_as_far_as_their_kinds_allow(tmp_path: Path) -> None:
    # An image of 8 x 8 patches, which the projector merges to 16 tokens.
    found = _capture(tmp_path, VISION, layers=1, seq_len=24, image_size=32)
    blocks = "2 of 6 layers (1 asked: one of each kind of layer)"
    assert found.target.cut == {"model.language_model.layers": "1 of 5 layers", "model.visual.blocks": blocks}
    assert found.whole is not None
    # Of the tower 1 and 3 feed a projector; the second count has two of these, so that one more is seen to add up.
    assert found.whole.times == {
        "model.language_model.layers": (5,), "model.visual.blocks": (4, 2), "model.visual.deepstack_merger_list": (2,),
    }  # fmt: skip
    assert found.whole.checked["model.visual.deepstack_merger_list"] == 2
    # The first layers of the decoder add what the tower's projectors give: element-wise work differs by layer.
    _same(found, _capture(tmp_path, VISION, seq_len=24, image_size=32), ("flops", "params", "weight_bytes"))


def test_parameters_are_those_of_the_whole_model_by_its_own_list(tmp_path: Path) -> None:
    found = _capture(tmp_path, TURNS, layers=2, seq_len=4, new_tokens=0, sources=("static",)).whole
    assert found is not None
    with torch.device("meta"):
        whole = _target(tmp_path, TURNS).maker.make(None, None).module
    assert found.totals["params"] == sum(p.numel() for p in whole.parameters())
    # By hand: embedding and head, a norm, and five layers of q, k, v, o, two norms of q and k, an MLP and two norms.
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 32 + 16 + 3 * 32 * 48 + 2 * 32
    assert found.totals["params"] == 2 * 64 * 32 + 32 + 5 * layer


@pytest.mark.thorough
def test_what_does_not_grow_layer_by_layer_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.olmo3.modeling_olmo3 import Olmo3Model

    run = Olmo3Model.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = run(self, *args, **kwargs)
        for _ in range(len(self.layers) ** 2):
            found.last_hidden_state = found.last_hidden_state * 2
        return found

    monkeypatch.setattr(Olmo3Model, "forward", forward)
    found = _capture(tmp_path, OLMO, layers=4, seq_len=16, sources=("dynamic",)).whole
    assert found is not None
    assert "vector_flops" in found.left_out
    assert "vector_flops" not in found.totals
    assert "does not grow layer by layer" in found.left_out["vector_flops"]
    assert found.totals["flops"] > 0


@pytest.mark.thorough
def test_parameters_that_the_layers_do_not_say_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = GenericTarget.stretched

    def stretched(self: GenericTarget) -> Any:
        first, *others = kept(self) or pytest.fail("it is cut")
        return (replace(first, parameters=first.parameters + 1), *others)

    monkeypatch.setattr(GenericTarget, "stretched", stretched)
    found = _capture(tmp_path, OLMO, layers=4, seq_len=4, sources=("dynamic",)).whole
    assert found is not None
    assert {"params", "params_active", "weight_bytes"} <= found.left_out.keys()
    assert not {"params", "params_active", "weight_bytes"} & found.totals.keys()
    assert found.totals["flops"] > 0


def test_layers_that_the_second_count_cannot_reach_leave_everything_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from costproof.run import capture, report

    counted = capture.count_sources

    def count(run: Any, progress: Any = silent) -> Any:
        if run.target.info().cut.get("model.layers") == "4 of 5 layers":
            raise Incomplete("no memory")
        return counted(run, progress)

    monkeypatch.setattr(report, "count_sources", count)
    found = _capture(tmp_path, TURNS, layers=2, seq_len=4, new_tokens=0, sources=("static",)).whole
    assert found is not None
    assert found.totals == {}
    assert found.left_out == dict.fromkeys(METRICS, "no memory")


@pytest.mark.parametrize(
    ("name", "layers", "why"),
    [
        ("swin", 1, "4 to 4: one of each kind of layer"),
        ("sam2_vision_model", 1, "no key of its configuration counts the layers of backbone.blocks alone"),
        ("gemma4", 6, "with fewer layers, model.language_model.embed_tokens_per_layer.weight changes its shape"),
        ("zamba2", 7, "with fewer layers, the layers that remain in model.layers change"),
    ],
)
def test_a_model_that_cannot_be_cut_says_why(name: str, layers: int, why: str) -> None:
    target = load_target(f"hf:{name}")
    assert isinstance(target, GenericTarget)
    with pytest.raises(BadInput, match="cannot be cut") as refused:
        target.with_options(RunOptions(layers=layers))
    assert why in str(refused.value)


def test_a_function_makes_what_it_makes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\n\ndef made():\n    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n")
    with pytest.raises(BadInput, match="--layers needs a model from a configuration"):
        api.capture(f"{file}:made", layers=1)


def _target(folder: Path, config: dict[str, Any]) -> GenericTarget:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    found = load_target(f"hf:{file}")
    assert isinstance(found, GenericTarget)
    return found


def _capture(folder: Path, config: dict[str, Any], **choices: Any) -> Capture:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return api.capture(f"hf:{file}", **choices)


GROWING: Final = ("flops", "params", "vector_flops", "unfused_bytes", "kv_cache_bytes")


def _same(cut: Capture, whole: Capture, given: Sequence[Metric] = GROWING) -> None:
    """All that the first layers say about the whole is what a count of it says."""
    assert whole.whole is None
    assert cut.whole is not None
    for metric in METRICS:
        for ledger in whole.ledgers:
            if metric in ledger.metrics and metric not in cut.whole.left_out:
                assert (metric, cut.whole.totals.get(metric)) == (metric, ledger.total(metric))
                for stage, costs in cut.whole.stages.items():
                    assert (metric, stage, costs[metric]) == (metric, stage, ledger.stage_total(stage, metric))
    assert {*given} <= cut.whole.totals.keys()


@pytest.mark.thorough
def test_a_layer_that_does_more_because_of_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing in the layers shows it, and the second count has eight of the nine: only a run of all of them tells.
    from transformers.models.olmo3.modeling_olmo3 import Olmo3DecoderLayer

    run = Olmo3DecoderLayer.forward
    more = {"mlp": lambda self, x: self.mlp(x), "sum": lambda self, x: x + 1, "none": lambda self, x: x}

    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        found = run(self, hidden_states, *args, **kwargs)
        return more[kind](self, found) if self.self_attn.layer_idx == 8 else found

    monkeypatch.setattr(Olmo3DecoderLayer, "forward", forward)
    known = {}
    for kind in more:
        found = _capture(tmp_path, OLMO, layers=4, seq_len=16, new_tokens=1, sources=("dynamic",)).whole
        assert found is not None
        assert found.not_run == ""
        known[kind] = found
        assert found.totals["params"] == 74_256
    assert {"flops", "calls", "vector_flops", "output_bytes"} <= known["none"].totals.keys()
    assert known["mlp"].totals.keys() == {"params", "weight_bytes"}
    # 16 tokens through an MLP of 32 x 48 once more.
    flops = known["none"].stages["prefill"]["flops"]
    said = f"a run of all layers has {flops + 16 * 3 * 2 * 32 * 48:,} FLOPs in the prompt, its layers say {flops:,}"
    assert known["mlp"].left_out["flops"] == said
    assert known["sum"].totals.keys() == {"params", "weight_bytes", "flops", "calls"}
    assert "elements of results" in known["sum"].left_out["vector_flops"]


@pytest.mark.thorough
def test_where_all_layers_do_not_run_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def uncut(self: GenericTarget) -> GenericTarget:
        raise Incomplete("no room for it")

    monkeypatch.setattr(GenericTarget, "uncut", uncut)
    found = _capture(tmp_path, OLMO, layers=4, seq_len=16, new_tokens=1, sources=("dynamic",)).whole
    assert found is not None
    assert found.not_run == "no room for it"
    assert stack_sentences(found)[-1] == "not checked with a run of all layers: no room for it"
    assert found.totals["flops"] > 0


@pytest.mark.parametrize(
    ("lists", "least"),
    [
        ({"fullatt_block_indexes": [7, 3]}, 4),
        ({"fullatt_block_indexes": [3, 7, 15, 23]}, 4),
        ({"fullatt_block_indexes": [31]}, 1),
    ],
)
def test_layers_that_a_list_names_in_any_order(lists: dict[str, Any], least: int, tmp_path: Path) -> None:
    file = {
        "model_type": "exaone4_5_vision", "depth": 8, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4,
        "num_key_value_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2,
        "window_size": 16, "out_hidden_size": 32, "in_channels": 3, **lists,
    }  # fmt: skip
    target = _target(tmp_path, file)
    assert target.with_options(RunOptions(layers=least)).info().cut == {"blocks": f"{least} of 8 layers"}
    if least > 1:
        less = target.with_options(RunOptions(layers=least - 1)).info().cut
        assert less == {"blocks": f"{least} of 8 layers ({least - 1} asked: one of each kind of layer)"}


def test_lists_of_other_things_have_no_layers(tmp_path: Path) -> None:
    # Two ids of tokens; seven convolutions, of which six would stay; windows of an encoder as deep as its decoder.
    assert _target(tmp_path, {**OLMO, "eos_token_id": [3, 5]}).with_options(RunOptions(layers=4)).info().cut
    sound = {"model_type": "wav2vec2", "hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4,
             "intermediate_size": 48, "conv_dim": [16] * 7}  # fmt: skip
    cut = _target(tmp_path, sound).with_options(RunOptions(layers=3)).info().cut
    assert cut == {"wav2vec2.encoder.layers": "3 of 8 layers"}
    two = {"model_type": "led", "d_model": 32, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 4,
           "decoder_attention_heads": 4, "vocab_size": 64, "attention_window": [4, 4, 4, 4, 8, 8]}  # fmt: skip
    assert "led.decoder.layers" in _target(tmp_path, two).with_options(RunOptions(layers=5)).info().cut


def test_every_stack_that_has_more_layers_than_asked_says_so(tmp_path: Path) -> None:
    """Of nine blocks the features of the second are read; the first two and one behind them are all kinds."""
    text = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "depth": 9, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
        "deepstack_visual_indexes": [1], "num_position_embeddings": 64,
    }  # fmt: skip
    tokens = {"image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, **tokens}))
    target = load_target(f"hf:{file}")
    assert isinstance(target, GenericTarget)
    cut = target.with_options(RunOptions(layers=1)).info().cut
    assert cut["model.language_model.layers"] == "1 of 4 layers"
    assert re.fullmatch(r"[23] of 9 layers \(1 asked: one of each kind of layer\)", cut["model.visual.blocks"])
