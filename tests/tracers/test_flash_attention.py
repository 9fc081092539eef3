"""FlashAttention through every source: seen whole, and what a counter without a rule misses is exactly it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from costproof.compare.compare import compare
from costproof.compare.counters import explain_counter
from costproof.ledger.counter import CounterCall
from costproof.ledger.run import ALL_SOURCES
from costproof.models.pages.page import with_page
from costproof.models.specs import Run
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.patches import flash_attention
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.tracers.counters.protocol import COUNTERS
from costproof.tracers.counters.running import TRUTH, CounterAnswer, CounterTask
from costproof.tracers.torchlens_trace import trace_graph
from tests.support.opcalls import counted, taken, torch_count
from tests.tracers.realistic import small_ocr
from tests.tracers.small import CONFIG, PAGE

OPERATOR = "flash_attn._flash_attn_forward"
FLASH = replace(PAGE, attention="flash_attention_2", new_tokens=1)
TEXT: dict[str, int] = CONFIG["text_config"]

needs_flash = pytest.mark.skipif(bool(flash_attention.missing()), reason=flash_attention.missing())


@needs_flash
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_four_sources_agree_on_heads_that_are_padded_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 heads of 20 dimensions, which the package pads to 24, share 2 of keys and values."""
    monkeypatch.setitem(CONFIG, "text_config", {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2})
    run = with_page(FLASH, None, text_tokens=17)
    capture = count_sources(Prepared(small_ocr(), run, ALL_SOURCES)).capture
    assert compare(capture).verdict == "exact"
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert set(flash_attention.notes("SAM and CLIP run scaled_dot_product_attention")) <= set(ledger.notes)
        kinds = {n.kind for n in ledger.nodes if n.module.endswith("self_attn") and n.stage in ("prefill", "decode")}
        assert OPERATOR in kinds


@needs_flash
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["FlopCounterMode", pytest.param("fvcore", marks=pytest.mark.thorough)])
def test_a_counter_that_cannot_see_it_misses_exactly_that(tool: str) -> None:
    calls: dict[str, dict[str, CounterCall]] = {}
    for name in (TRUTH, tool):
        found: list[CounterAnswer] = []
        CounterTask(small_ocr(), FLASH, name, ("prefill", "decode"))(found.append)
        calls[name] = {c.stage: c for c, _ in found if c.cut in ("prefill", "step")}
    # 2 layers, 5 heads of 16 in two products; 17 queries and keys, then one query and 17 + 1 keys.
    for stage, missed in (("prefill", 2 * 2 * 5 * 17 * 17 * 32), ("decode", 2 * 2 * 5 * 1 * 18 * 32)):
        finding = explain_counter(COUNTERS.load(tool).info, calls[tool][stage], calls[TRUTH][stage].nodes)
        assert finding.residual == 0
        assert {c.note: c.amount for c in finding.causes}[f"does not count {OPERATOR}"] == -missed


@torch.library.custom_op("costproof_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Two products in a custom operator."""
    return x @ x @ x


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("costproof_test::linear", mutates_args=())
def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Called like an operator that has a rule."""
    return x @ weight


@linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    """Calls custom operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, n] -> [n, n]."""
        result: torch.Tensor = linear(doubled(x), weight=x)
        return result


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_custom_operator_is_seen_whole_and_under_its_full_name(device: str) -> None:
    """Not what its Python code does; and one that is called like an operator of torch is not taken for it."""
    run = Run("once", Custom(), {"x": torch.ones(4, 4, device=device)}, lambda path, call: ("stage", "once"))
    calls = (torch._ops.OpOverloadPacket.__call__, torch._ops.OpOverload.__call__)
    traced = trace_graph(run)
    assert (torch._ops.OpOverloadPacket.__call__, torch._ops.OpOverload.__call__) == calls
    assert traced.problems == ()
    assert [op.name for op in traced.graph.ops] == ["costproof_test.doubled", "costproof_test.linear"]
    assert [sorted(op.names) for op in traced.graph.ops] == [["x"], ["weight", "x"]]
    assert all(isinstance(cost_of(op), UnknownCost) for op in traced.graph.ops)


def test_flash_sdpa_on_a_cpu() -> None:
    """What runs there under sdpa has a rule; torch's counter has none, and misses exactly its two products."""
    q, kv = torch.ones(2, 6, 5, 8), torch.ones(2, 6, 7, 8)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    op, _ = taken(kernel, q, kv, kv)
    assert counted(op).flops == 2 * (2 * 6 * 5 * 7) * (8 + 8)
    assert torch_count(kernel, q, kv, kv) == 0
    # That kernel is what the fused function runs; the two products written out are all that it does.
    assert torch_count(torch.ops.aten.scaled_dot_product_attention.default, q, kv, kv) == 0
    assert torch_count(torch.ops.aten.matmul.default, q, kv.mT) == 2 * (2 * 6 * 5 * 7) * 8
