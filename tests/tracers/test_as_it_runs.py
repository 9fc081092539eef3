"""What transformers does when it is watched is what it does when it runs, and nothing is left behind."""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    masking_utils,
    pytorch_utils,
)
from transformers.pytorch_utils import compile_compatible_method_lru_cache
from transformers.utils.import_utils import is_torchdynamo_exporting, is_tracing

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.opgraph.account import account, locator
from costproof.opgraph.costed import cost_graph
from costproof.patches.inference import NO_PADDING, _lacking, inference_context
from costproof.tracers.exported import export_graph
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.torchlens_trace import trace_graph
from tests.tracers.small import Wrapper

SIZES = {"B": 3, "S": 7}


class Around(nn.Module):
    """Calls a model by the names of the arguments that an export maps its sizes to."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The first result, without a cache."""
        result: torch.Tensor = self.part(input_ids=input_ids, attention_mask=attention_mask)[0]
        return result


def ids(device: str = "meta") -> torch.Tensor:
    return torch.ones(SIZES["B"], SIZES["S"], dtype=torch.int64, device=device)


Costs = dict[tuple[str, str], int]


def exported(model: nn.Module, args: dict[str, Any]) -> tuple[Costs, tuple[str, ...]]:
    """(module, metric) -> cost of an export with batch and length as symbols, at the sizes above; and its notes."""
    sizes = [SymbolicSize((name,), dim, symbol) for name in args for dim, symbol in enumerate("BS")]
    found = export_graph(ExportJob("e", "s", ("i",), Around(model), {"part": ""}, args, sizes))
    costs: Costs = {}
    for node in account(cost_graph(found.graph), lambda module, call: ("s", "i")).nodes:
        for metric, expr in node.exprs.items():
            costs[node.module, metric] = costs.get((node.module, metric), 0) + evaluate(parse(expr), SIZES)
    return costs, found.notes


def traced(model: nn.Module, args: dict[str, Any]) -> tuple[Costs, tuple[str, ...]]:
    """The same of a trace."""
    found = trace_graph(Run("r", model, args, lambda module, call: ("s", "i")))
    costs: Costs = {}
    place = locator(lambda module, call: ("s", "i"), found.graph.calls)
    for node in account(cost_graph(found.graph), place).nodes:
        for metric, value in node.costs.items():
            costs[node.module, metric] = costs.get((node.module, metric), 0) + (value or 0)
    return costs, found.notes


def llama() -> nn.Module:
    """Two layers of width 8, two heads that share one of keys and values, an MLP of 16, a vocabulary of 32."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model: nn.Module = LlamaForCausalLM(config)
    return model.eval()


def test_a_decoder_costs_the_same_exported_and_traced() -> None:
    static, assumed = exported(llama(), {"input_ids": ids()})
    dynamic, _ = traced(llama(), {"input_ids": ids(), "use_cache": True})
    assert static == dynamic
    assert assumed == ()  # nobody gave a mask
    # 21 tokens of 8: q and o 2 * 8 * 8, k and v 2 * 8 * 4 each, three of the MLP 2 * 8 * 16 each; two layers. The
    # head 2 * 8 * 32. Scores and values: 2 products x 2 FLOPs x 3 rows x 2 heads x 7 x 7 x 4, two layers.
    linear = 21 * (2 * (2 * 128 + 2 * 64 + 3 * 256) + 512)
    attention = 2 * (2 * 2 * 3 * 2 * 7 * 7 * 4)
    assert sum(v for (_, metric), v in static.items() if metric == "flops") == linear + attention == 68_544
    # Softmax without a mask, 6 FLOPs a score (scale, maximum, subtraction, exponential, sum, division): what is not
    # run is not counted. A mask that is added would be one more. Rotation: 7/2 per element of q (168) and k (84).
    assert static["model.layers.0.self_attn", "vector_flops"] == 6 * 3 * 2 * 7 * 7 + (168 + 84) * 7 // 2


def test_a_mask_without_numbers_hides_nothing_and_that_is_said() -> None:
    config = BertConfig(vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    with torch.device("meta"):
        model = BertModel(config, add_pooling_layer=False).eval()
    args = {"input_ids": ids(), "attention_mask": ids()}
    static, assumed = exported(model, args)
    dynamic, assumed_too = traced(model, args)
    assert static == dynamic
    assert assumed == assumed_too == (NO_PADDING,)
    real = BertModel(config, add_pooling_layer=False).eval()
    with FlopCounterMode(display=False) as counter:
        real(input_ids=ids("cpu"), attention_mask=ids("cpu"))
    # FlopCounterMode has no rule for the CPU's fused attention: 2 products x 2 FLOPs x 3 rows x 2 heads x 7 x 7 x 4.
    attention = 2 * 2 * 3 * 2 * 7 * 7 * 4
    assert sum(v for (_, m), v in static.items() if m == "flops") - counter.get_total_flops() in (0, attention)
    # With numbers the model decides itself: one hidden token makes it build the mask, on the way that it then takes.
    hidden = ids("cpu").index_fill(1, torch.tensor([6]), 0)
    padded, said = traced(real, {"input_ids": ids("cpu"), "attention_mask": hidden})
    whole, _ = traced(real, {"input_ids": ids("cpu"), "attention_mask": ids("cpu")})
    attn = ("encoder.layer.0.attention.self", "vector_flops")
    assert said == ()
    assert whole == dynamic
    assert padded[attn] > whole[attn]


class Asking(nn.Module):
    """Takes another way where it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        x = self.one(x)
        return x if is_torchdynamo_exporting() or is_tracing(x) else self.two(x)


def toy_job(part: nn.Module) -> ExportJob:
    x = torch.empty(3, 4, device="meta")
    return ExportJob("e", "s", ("i",), Wrapper(part), {"part": ""}, {"x": x}, [SymbolicSize(("x",), 0, "n")])


def test_who_asks_is_not_told() -> None:
    before = is_torchdynamo_exporting
    with torch.device("meta"):
        graph = export_graph(toy_job(Asking())).graph
    assert [op.module for op in graph.ops] == ["one", "two"]
    assert is_torchdynamo_exporting is before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_everything_is_put_back(error: type[BaseException]) -> None:
    names = ("is_tracing", "find_packed_sequence_indices", "_ignore_causal_mask_sdpa")
    before = {name: vars(masking_utils)[name] for name in names}
    warn = PreTrainedModel.warn_if_padding_and_no_attention_mask
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))
    model[0].eval()

    def broken() -> None:
        with inference_context(model), inference_context(model):
            assert not any(m.training for m in model.modules())
            assert all(vars(masking_utils)[name] is not old for name, old in before.items())
            raise error

    with pytest.raises(error):
        broken()
    assert {name: vars(masking_utils)[name] for name in names} == before
    assert PreTrainedModel.warn_if_padding_and_no_attention_mask is warn
    assert [m.training for m in model.modules()] == [True, False, True, True]


class Keeping(nn.Module):
    """Keeps a table that it made once, as rotary embeddings of images do."""

    @compile_compatible_method_lru_cache(maxsize=2)  # type: ignore[untyped-decorator]
    def table(self, rows: int) -> torch.Tensor:
        """[rows, 4]."""
        return torch.ones(rows, 4, device="meta") * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, 4]."""
        result: torch.Tensor = x * self.table(3)
        return result


@pytest.mark.parametrize("file", ["/home/me/mine.py", "/usr/lib/site-packages/mine.py"])
def test_functions_are_replaced_in_modules_that_come_or_change_later(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of a package stays as it is once it is imported; it may be replaced by another, and others reloaded."""

    def made() -> ModuleType:
        module = ModuleType("mine")
        module.__file__, module.__spec__ = file, ModuleSpec("mine", None)
        sys.modules["mine"] = module
        return module

    monkeypatch.setitem(sys.modules, "mine", sys)  # taken away at the end

    original, model = masking_utils.find_packed_sequence_indices, nn.Linear(2, 2)
    module: Any = made()
    with inference_context(model):
        pass
    key = id(module)
    assert (key in _lacking) == ("site-packages" in file)
    if "site-packages" in file:
        del module, sys.modules["mine"]
        assert key not in _lacking, "another module may get its id"
        module = made()
    module.find_packed_sequence_indices = original
    with inference_context(model):
        assert module.find_packed_sequence_indices is masking_utils.find_packed_sequence_indices is not original
        later: Any = made()
        later.find_packed_sequence_indices = masking_utils.find_packed_sequence_indices
    assert module.find_packed_sequence_indices is original or module is not sys.modules["mine"]
    assert later.find_packed_sequence_indices is original


def test_a_transformers_that_keeps_no_results_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 4.46, which the published remote code wants."""
    monkeypatch.delattr("transformers.pytorch_utils.is_torchdynamo_compiling")
    with inference_context(nn.Linear(2, 2)):
        assert not hasattr(pytorch_utils, "is_torchdynamo_compiling")
    assert not hasattr(pytorch_utils, "is_torchdynamo_compiling")


@functools.lru_cache(maxsize=2)
def remembered(rows: int) -> torch.Tensor:
    """[rows, 4], for whoever asks."""
    return torch.ones(rows, 4, device="meta") * 2


class Remembering(nn.Module):
    """Asks twice for a table that a function keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, 4]."""
        return x * remembered(3) + remembered(3)


def test_a_function_that_keeps_a_table_begins_anew_in_every_trace() -> None:
    run = Run("r", Remembering(), {"x": torch.empty(3, 4, device="meta")}, lambda module, call: ("s", "i"))
    remembered(3)  # of another run
    counts = [[op.name for op in trace_graph(run).graph.ops] for _ in range(2)]
    assert counts[0] == counts[1] == ["ones", "__mul__", "__mul__", "__add__"]
    job = ExportJob("e", "s", ("i",), Wrapper(run.model), {"part": ""}, run.kwargs, [])
    names = [op.name for op in export_graph(job).graph.ops]
    assert names == ["aten.ones.default", "aten.mul.Tensor", "aten.mul.Tensor", "aten.add.Tensor"]
    assert type(remembered(3)) is torch.Tensor
    assert remembered.cache_info().hits == 1  # what it kept before, it has kept


def test_a_table_that_is_kept_is_made_in_every_trace() -> None:
    run = Run("r", Keeping(), {"x": torch.empty(3, 4, device="meta")}, lambda module, call: ("s", "i"))
    counts = [[op.name for op in trace_graph(run).graph.ops] for _ in range(2)]
    assert counts[0] == counts[1] == ["ones", "__mul__", "__mul__"]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_mode_around_changes_nothing(mode: Any) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)).train()
    with mode():
        graph = export_graph(toy_job(model)).graph
        run = Run("r", model, {"input": torch.empty(3, 4, device="meta")}, lambda module, call: ("s", "i"))
        calls = trace_hooks(run).call_counts
    assert [op.module for op in graph.ops] == ["0", "1", "2"]
    assert [op.name for op in graph.ops if op.module == "2"] == ["aten.batch_norm.default"]
    assert calls == {"(root)": 1, "0": 1, "1": 1, "2": 1}
    assert all(m.training for m in model.modules())
