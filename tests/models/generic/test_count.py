"""Counting modules at hand: exact by hand arithmetic, and the module is left as it was."""

from __future__ import annotations

import functools
import gc
import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import costproof
from costproof.ledger.errors import BadInput, Incomplete


class MLP(nn.Module):
    """[B, 16] -> [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two products with a relu between them."""
        result: torch.Tensor = self.down(torch.relu(self.up(x)))
        return result


MLP_FLOPS = 2 * 3 * 16 * 32 + 2 * 3 * 32 * 8
MLP_PARAMS = 16 * 32 + 32 + 32 * 8 + 8


class Attention(nn.Module):
    """[B, S, 8] -> the same, two heads of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention in two einsums."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 4).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        result: torch.Tensor = self.out(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(2))
        return result


class Branch(nn.Module):
    """Takes one of two ways by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(4, 6), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The large way for positive sums."""
        result: torch.Tensor = self.large(x) if x.sum() > 0 else self.small(x)
        return result


def totals(report: Any, source: str) -> tuple[int | None, int | None]:
    """FLOPs and parameters of the whole forward."""
    ledger = report.capture.ledger(source)
    return ledger.stage_total("forward", "flops"), ledger.stage_total("forward", "params")


def test_an_mlp() -> None:
    found = costproof.count(MLP(), torch.ones(3, 16))
    assert (found.verdict, found.exit_code) == ("exact", 0)
    assert totals(found, "static") == totals(found, "dynamic") == (MLP_FLOPS, MLP_PARAMS)
    assert found.capture.ledger("dynamic").stage_total("forward", "vector_flops") == 3 * 32  # the relu
    assert "MLP" in repr(found)
    assert list(found.stages()["flops"]) == [MLP_FLOPS]


def test_einsum_attention() -> None:
    found = costproof.count(Attention(), torch.ones(2, 5, 8))
    products = 2 * 10 * 8 * 24 + 2 * 10 * 8 * 8 + 2 * (2 * 2 * 2 * 5 * 5 * 4)
    assert found.verdict == "exact"
    assert totals(found, "static")[0] == totals(found, "dynamic")[0] == products


@pytest.mark.parametrize(("number", "width", "unused"), [(1.0, 6, "small"), (-1.0, 2, "large")])
def test_a_branch_on_data_is_counted_by_the_run_alone(number: float, width: int, unused: str) -> None:
    found = costproof.count(Branch(), torch.full((3, 4), number))
    assert (found.verdict, found.exit_code) == ("incomplete", 3)
    assert totals(found, "dynamic")[0] == 2 * 3 * 4 * width
    assert found.capture.ledger("dynamic").notes == (f"no operator reads a parameter of {unused}",)
    assert "failed: torch.export cannot export" in found.capture.lacking["static"]


def test_on_meta() -> None:
    with torch.device("meta"):
        module, x = MLP(), torch.ones(3, 16)
    found = costproof.count(module, x)
    assert found.verdict == "exact"
    assert totals(found, "dynamic") == (MLP_FLOPS, MLP_PARAMS)


class Many(nn.Module):
    """Takes any number of rows by position."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, *rows: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """[B, 4] each -> [B, 6]."""
        result: torch.Tensor = self.layer(torch.stack(rows).sum(0)) * scale
        return result


def test_operators_of_a_run_without_formulas_are_not_those_of_an_export() -> None:
    class Slices(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """A view to an export, a call of its own to a run."""
            return x.unfold(1, 2, 1).sum()

    found = costproof.count(Slices(), torch.empty(2, 6, 8, device="meta"))
    assert found.verdict == "exact"
    assert {x.source: "unfused_bytes" in x.metrics for x in found.capture.ledgers} == {"static": True, "dynamic": False}


def test_arguments_without_names() -> None:
    found = costproof.count(Many(), torch.ones(3, 4), torch.ones(3, 4), scale=2.0)
    assert found.verdict == "exact"
    assert totals(found, "static")[0] == 2 * 3 * 4 * 6


class Mixed(nn.Module):
    """What a count might leave a mark on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        self.head = nn.Linear(16, 8)
        self.seen = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """[B, 16] -> [B, 8]."""
        self.seen += 1
        result: torch.Tensor = self.head(self.body(x)) * scale
        return result


def test_the_module_stays_as_it_is() -> None:
    module = Mixed()
    module.head.eval()
    hook = module.head.register_forward_hook(lambda m, a, o: None)
    torch.sum(module(torch.randn(3, 16))).backward()  # type: ignore[no-untyped-call]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    attributes = [set(vars(m)) for m in module.modules()]
    seen, modes = module.seen, [m.training for m in module.modules()]
    x = torch.randn(3, 16, requires_grad=True)
    numbers = torch.get_rng_state()
    costproof.count(module, x, scale=2.0)
    assert torch.equal(numbers, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(a is b or torch.equal(a, b) for a, b in zip(grads, [p.grad for p in module.parameters()], strict=True))  # type: ignore[arg-type]
    assert (module.seen, [m.training for m in module.modules()]) == (seen, modes)
    assert [set(vars(m)) for m in module.modules()] == attributes
    assert list(module.head._forward_hooks) == [hook.id]
    assert x.grad is None
    assert torch.is_grad_enabled()


def test_the_same_count_however_it_is_called() -> None:
    module, x = MLP(), torch.ones(3, 16)
    usual = costproof.count(module, x)
    ways: list[Callable[[], Any]] = [
        lambda: costproof.count(module, x=x),
        lambda: costproof.count(functools.partial(module, x)),
        lambda: costproof.count(module.train(), x),
        lambda: costproof.count(nn.DataParallel(module), x),
        lambda: costproof.count(torch.compile(module), x),
    ]
    for way in ways:
        found = way()
        assert totals(found, "dynamic") == totals(found, "static") == totals(usual, "dynamic")
    with torch.inference_mode():
        assert totals(costproof.count(module, torch.ones(3, 16)), "dynamic") == totals(usual, "dynamic")
        made_there, given = MLP(), torch.ones(3, 16)
    found = costproof.count(made_there, given)
    assert (found.verdict, totals(found, "static")) == ("exact", totals(usual, "static"))
    assert made_there.up.weight.is_inference()


class Constant(nn.Module):
    """Takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 8))

    def forward(self) -> torch.Tensor:
        """A product of its parameter with itself."""
        return self.weight @ self.weight.T


def test_a_module_without_inputs() -> None:
    found = costproof.count(Constant())
    assert (found.verdict, totals(found, "static")) == ("exact", (2 * 3 * 8 * 3, 24))


def test_what_is_no_module_or_no_argument() -> None:
    with pytest.raises(BadInput, match="this is not a module"):
        costproof.count(len, 3)
    with pytest.raises(BadInput, match="forward does not take these arguments"):
        costproof.count(MLP(), torch.ones(3, 16), 4)
    with pytest.raises(BadInput, match="forward does not declare its arguments"):
        costproof.count(torch.jit.script(nn.Linear(4, 6)), torch.ones(3, 4))
    lazy = nn.LazyLinear(6)
    with pytest.raises(BadInput, match="a lazy parameter has no shape yet"):
        costproof.count(lazy, torch.ones(3, 4))
    assert lazy.has_uninitialized_params()


@dataclass
class Pair:
    """A result that is no dict."""

    first: torch.Tensor
    second: torch.Tensor


class Returns(nn.Module):
    """[B, 16] -> a dataclass, one part complex."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MLP()

    def forward(self, x: torch.Tensor) -> Pair:
        """What the MLP returns, and a complex number of it."""
        y = self.inner(x)
        return Pair(y, torch.complex(y, y))


def test_results_in_a_dataclass_and_complex_ones() -> None:
    found = costproof.count(Returns(), torch.ones(3, 16))
    assert (found.verdict, totals(found, "static")[0]) == ("exact", MLP_FLOPS)


def test_a_forward_and_a_hook_that_hold_the_module_run_on_the_copy() -> None:
    norm = nn.BatchNorm1d(16)
    module = nn.Sequential(nn.Linear(16, 16), norm).train()
    own: Callable[[torch.Tensor], torch.Tensor] = module.forward
    module.forward = lambda x: own(own(x))  # type: ignore[method-assign]
    module.register_forward_hook(lambda m, args, result: norm(result))
    found = costproof.count(module, torch.ones(3, 16))
    assert (found.verdict, totals(found, "static")[0]) == ("exact", 2 * (2 * 3 * 16 * 16))
    assert int(norm.num_batches_tracked or 0) == 0
    assert module.training


def test_hooks_see_what_was_given_by_position() -> None:
    # Before it one is added to 3 x 8 numbers; behind it the result is multiplied by what came in.
    hooked = [nn.Linear(8, 8) for _ in range(4)]
    hooked[0].register_forward_pre_hook(lambda part, given: (given[0] + 1,))
    hooked[1].register_forward_pre_hook(lambda part, given: given[0] + 1)
    hooked[2].register_forward_hook(lambda part, given, result: result * given[0])
    hooked[3].register_forward_pre_hook(lambda part, given: None)
    for module, work in zip(hooked, (24, 24, 24, 0), strict=True):
        hooks = dict(module._forward_pre_hooks), dict(module._forward_hooks)
        found = costproof.count(module, torch.ones(3, 8))
        assert found.verdict == "exact"
        assert {x.total("vector_flops") for x in found.capture.ledgers} == {work}
        assert (dict(module._forward_pre_hooks), dict(module._forward_hooks)) == hooks
        assert not module._forward_pre_hooks_with_kwargs


_TABLES: dict[int, torch.Tensor] = {}


class Keeping(nn.Module):
    """Keeps a table beside its class, one in its class, and draws a number with Python's ``random``."""

    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        random.random()
        if len(x) not in _TABLES:
            _TABLES[len(x)] = torch.arange(8.0).sin()
        if Keeping.table is None:
            Keeping.table = torch.arange(8.0).cos()
        return x * _TABLES[len(x)] + Keeping.table


def test_what_a_module_keeps_outside_of_itself_stays_as_it_is() -> None:
    state, x = random.getstate(), torch.ones(3, 8)
    for _ in range(2):
        found = costproof.count(Keeping(), x)
        assert found.verdict == "exact"
        # Sine and cosine of 8 numbers; a product and a sum of 3 x 8.
        assert {s.total("vector_flops") for s in found.capture.ledgers} == {8 + 8 + 24 + 24}
        assert (_TABLES, Keeping.table) == ({}, None)
    assert random.getstate() == state
    Keeping()(x)
    held = _TABLES[3], Keeping.table
    costproof.count(Keeping(), x)
    assert _TABLES[3] is held[0]
    assert Keeping.table is held[1]


def test_a_cache_that_is_given_stays_as_it_is() -> None:
    config = LlamaConfig(
        vocab_size=10, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
    )  # fmt: skip
    model, cache = LlamaForCausalLM(config).eval(), DynamicCache(config=config)
    with torch.no_grad():
        model(torch.ones(1, 8, dtype=torch.long), past_key_values=cache)
    held = [(layer.keys, layer.keys.clone()) for layer in cache.layers]
    found = costproof.count(model, torch.ones(1, 2, dtype=torch.long), past_key_values=cache)
    assert cache.get_seq_length() == 8
    for layer, (keys, before) in zip(cache.layers, held, strict=True):
        assert layer.keys is keys
        assert torch.equal(keys, before)
    # Two tokens: four projections of 16, an MLP of 24, logits; scores of two heads of 8 with 8 + 2 keys, twice.
    layer_flops = 2 * 2 * (4 * 16 * 16 + 3 * 16 * 24) + 2 * 2 * 2 * 2 * 10 * 8
    assert totals(found, "static")[0] == totals(found, "dynamic")[0] == 2 * layer_flops + 2 * 2 * 16 * 10


def test_shapes_alone_where_a_tensor_has_no_numbers() -> None:
    with torch.device("meta"):
        module, x = MLP(), torch.ones(3, 16)
    for found in (costproof.count(module, torch.ones(3, 16)), costproof.count(MLP(), x)):
        assert (found.verdict, totals(found, "dynamic")) == ("exact", (MLP_FLOPS, MLP_PARAMS))


def test_a_module_is_not_kept_from_its_end() -> None:
    module = MLP()
    alive = weakref.ref(module.up.weight)
    report = costproof.count(module, torch.ones(3, 16))
    del module
    gc.collect()
    assert (report.verdict, alive()) == ("exact", None)


def test_one_call_is_exported_at_its_sizes() -> None:
    found = costproof.count(MLP(), torch.ones(3, 16)).capture
    (ledger,) = (x for x in found.ledgers if x.source == "static")
    assert {text for node in ledger.nodes for text in node.exprs.values() if not text.isdecimal()} == set()


class Fixed(OrderedDict[str, int]):
    """Settings that must not change, such as the configuration of a model of diffusers."""

    def update(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("must not change")


def test_a_module_with_settings_that_must_not_change() -> None:
    module = nn.Linear(4, 2)
    module.settings = Fixed(width=4)  # type: ignore[assignment]
    report = costproof.count(module, torch.zeros(3, 4))
    assert (report.verdict, report.capture.ledger("dynamic").total("flops")) == ("exact", 2 * 3 * 4 * 2)


class Unfinished(nn.Module):
    """Runs nowhere, and says so as torch does of what has no kernel for shapes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("later")


class Without:
    """An object whose attributes cannot be listed."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError("no attributes")


def test_a_module_that_holds_what_python_does_not_copy() -> None:
    """A view of a dict, a module of Python, locks, and an object that does not tell what it holds."""
    module = MLP()
    module.held = (MappingProxyType({"a": 1}), random, threading.Lock(), threading.RLock())  # type: ignore[assignment]
    module.settings = MappingProxyType({"layers": [1, 2]})  # type: ignore[assignment]
    report = costproof.count(module, torch.randn(3, 16))
    assert report.capture.ledger("static").total("flops") == MLP_FLOPS
    module.odd = Without()  # type: ignore[assignment]
    with_odd = costproof.count(module, torch.randn(3, 16))
    assert with_odd.capture.ledger("static").total("flops") == MLP_FLOPS


def test_a_module_that_is_a_part_of_itself_is_refused() -> None:
    part = MLP()
    part.up.back = part
    module = nn.Sequential(part)
    with pytest.raises(BadInput, match="a module is a part of itself") as caught:
        costproof.count(module, torch.randn(3, 16))
    assert caught.value.where == "0.up.back of Sequential"


def test_where_no_source_can_count_the_reasons_of_all_are_told() -> None:
    with pytest.raises(Incomplete, match="no source can count") as refused:
        costproof.count(Unfinished(), torch.ones(3))
    assert "static: torch.export cannot export" in str(refused.value)
    assert "dynamic: TorchLens cannot trace" in str(refused.value)


@pytest.mark.usefixtures("one_process")
def test_without_formulas_of_ours_a_report_has_those_of_the_graph_and_calls_them_derived(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    rows = "{'input': torch.ones(3, 5, 16, device='meta')}"
    file.write_text(f"import torch\n\ndef made():\n    return torch.nn.Linear(16, 32), {rows}\n")
    found = costproof.report(f"{file}:made").static
    (stage,) = found.stages
    assert (found.formulas_of, stage.costs["flops"]) == ("derived", 2 * 3 * 5 * 16 * 32)
    # The batch is a symbol; five rows of each are a number.
    assert stage.formulas["flops"].expression == str(2 * 5 * 16 * 32) + "*B"


class Writes(nn.Module):
    """[3, 4] -> [3, 4]; writes to its own parameter on the way."""

    def __init__(self, write: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A product with what was written."""
        with torch.no_grad():
            self.write(self.inner.weight)
        result: torch.Tensor = self.inner(x)
        return result


def to_numpy(weight: torch.Tensor) -> None:
    weight.detach().numpy()[:] = 0


WRITES: list[Callable[[torch.Tensor], object]] = [
    lambda w: w.clamp_(-0.01, 0.01),
    lambda w: w.copy_(w * 0.5),
    lambda w: w.data.clamp_(-0.01, 0.01),
    lambda w: w.data[0].zero_(),
    lambda w: w.data.set_(torch.zeros(4, 4)),  # type: ignore[call-overload]
    lambda w: setattr(w, "data", w.data * 2),
    lambda w: setattr(w, "grad", torch.ones(4, 4)),
    lambda w: w.grad is not None and w.grad.zero_(),
    lambda w: w.requires_grad_(False),
    lambda w: setattr(w, "extra", 1),
    nn.init.zeros_,
    to_numpy,
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("gradient", [False, True])
def test_what_a_forward_writes_to_a_parameter_is_put_back(
    write: Callable[[torch.Tensor], object], gradient: bool
) -> None:
    module = Writes(write)
    weight = module.inner.weight
    if gradient:
        torch.sum(module.inner(torch.ones(3, 4))).backward()  # type: ignore[no-untyped-call]
    grad, memory, attributes = weight.grad, weight.data_ptr(), dict(vars(weight))
    bits, slope = weight.detach().clone(), None if grad is None else grad.clone()
    version = weight._version
    costproof.count(module, torch.ones(3, 4))
    assert module.inner.weight is weight
    assert torch.equal(weight, bits)
    assert weight.requires_grad
    assert weight.grad is grad
    assert grad is None or (slope is not None and torch.equal(grad, slope))
    assert (weight.data_ptr(), weight._version, dict(vars(weight))) == (memory, version, attributes)


def test_rows_that_an_embedding_shrinks_are_put_back() -> None:
    module = nn.Embedding(10, 4, max_norm=0.1)
    before = module.weight.detach().clone()
    costproof.count(module, torch.tensor([1, 2, 3]))
    assert torch.equal(module.weight, before)


class Merges(nn.Linear):
    """Adds to its weight as it leaves training, as an adapter that is merged does."""

    def train(self, mode: bool = True) -> Merges:
        """The mode; the weight is one more in evaluation."""
        if self.training and not mode:
            self.weight.data += 1
        return super().train(mode)


def test_weights_that_are_merged_for_evaluation_are_put_back() -> None:
    module = Merges(4, 6)
    before = module.weight.detach().clone()
    found = costproof.count(module, torch.ones(3, 4))
    assert (found.verdict, totals(found, "static")[0]) == ("exact", 2 * 3 * 4 * 6)
    assert module.training
    assert torch.equal(module.weight, before)


def test_a_compiled_module_that_writes_is_as_it_was() -> None:
    module = Writes(lambda w: w.clamp_(-0.01, 0.01))
    before = module.inner.weight.detach().clone()
    costproof.count(torch.compile(module), torch.ones(3, 4))
    assert torch.equal(module.inner.weight, before)


def test_a_forward_that_names_the_module_beside_it_runs_on_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).train()
    monkeypatch.setitem(globals(), "original", module.forward)
    module.forward = lambda x: original(x) * 2  # type: ignore[method-assign, name-defined]  # noqa: F821
    before = {k: v.clone() for k, v in module.state_dict().items()}
    found = costproof.count(module, torch.ones(3, 16) + 5)
    assert (found.verdict, totals(found, "static")[0]) == ("exact", 2 * 3 * 16 * 16)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def through(x: torch.Tensor) -> torch.Tensor:
    """Runs the module that a variable names, out of sight of the copy."""
    result: torch.Tensor = original(x)  # type: ignore[name-defined]  # noqa: F821
    return result


def test_a_module_that_code_elsewhere_runs_is_evaluated_and_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).train()
    monkeypatch.setitem(globals(), "original", module.forward)
    module.forward = lambda x: through(x) * 2  # type: ignore[method-assign]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    costproof.count(module, torch.ones(3, 16) + 5)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(part.training for part in module.modules())


class Takes(nn.Module):
    """Takes what is no tensor, under any name."""

    def forward(self, x: torch.Tensor, numbers: Any = None, module: Any = None) -> torch.Tensor:
        """[3, 4] -> [3, 4]."""
        return x * float(2 if numbers is None else numbers.sum()) * (module or 1)


def test_an_array_and_an_argument_of_any_name() -> None:
    for more in ({"numbers": np.ones(3)}, {"module": 3}):
        found = costproof.count(Takes(), torch.ones(3, 4), **more)
        assert (found.verdict, found.capture.ledger("dynamic").total("vector_flops")) == ("exact", 24)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_strided_layout_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(BadInput, match="strided layout"):
        costproof.count(nn.Linear(4, 6), nested)


def test_torch_prints_nothing_of_an_export_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    found = costproof.count(Branch(), torch.ones(3, 4))
    assert "torch.export cannot export" in found.capture.lacking["static"]
    assert capfd.readouterr().err == ""
