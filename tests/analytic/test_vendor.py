"""The vendor's composition of the formulas against the published checkpoint and the native one."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from math import prod
from typing import Any

import pytest

from costproof.compare.patterns import expand
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr
from costproof.models.families.deepseek_ocr.vendor_code import Snapshot
from costproof.parametric.targets import evaluate_formulas

VENDOR = RemoteCodeOcr(snapshot=Snapshot("/nowhere", OcrConfig(), "m.Config", "m.Model", "4.46.3"))


def ledgers(**settings: Any) -> tuple[Ledger, Ledger]:
    """Vendor and native formulas at the same workload."""
    native = DeepseekOcr()
    return (
        evaluate_formulas(VENDOR, VENDOR.workload(**settings)),
        evaluate_formulas(native, native.workload(**settings)),
    )


def test_parameters_are_those_of_the_checkpoint() -> None:
    vendor, native = ledgers()
    # 2,710 tensors of the published checkpoint; CLIP's patch embedding is 3 x 14 x 14 x 1024 of them.
    assert vendor.total("params") == 3_336_106_240
    assert native.total("params") == 3_336_106_240 - 3 * 14 * 14 * 1024
    assert vendor.total("weight_bytes") == 2 * 3_336_106_240
    assert vendor.total("params_active") == (native.total("params_active") or 0) + 602_112


@pytest.mark.parametrize(
    "settings",
    [{}, {"preset": "tiny"}, {"preset": "gundam:3x2", "new_tokens": 5}, {"preset": "text-only", "new_tokens": 2}],
)
def test_headline_flops_are_the_native_ones_and_the_rotary_products(settings: dict[str, Any]) -> None:
    vendor, native = ledgers(**settings)
    work = VENDOR.workload(**settings)
    prompt = next(i.symbols["S"] for i in VENDOR.invocations(work) if i.id == "prompt")
    for stage, angles in (("sam", 0), ("clip", 0), ("projector", 0), ("prefill", prompt), ("decode", work.new_tokens)):
        # In each of 12 layers 64 angles per position, 2 FLOPs each.
        extra = 12 * 2 * 64 * angles
        assert vendor.stage_total(stage, "flops") == (native.stage_total(stage, "flops") or 0) + extra
        # They are multiplied in float32 in a run in bfloat16.
        here, there = (
            sum(n.costs.get("float32_flops") or 0 for n in ledger.nodes if n.stage == stage)
            for ledger in (vendor, native)
        )
        assert here == there + extra
    assert vendor.total("kv_cache_bytes") == native.total("kv_cache_bytes")


def test_a_written_out_norm_counts_its_primitives() -> None:
    vendor, native = ledgers(preset="base")
    here, there = (
        next(n for n in ledger.nodes if n.module.endswith(path) and n.kind == "norm")
        for ledger, path in ((vendor, "neck.1"), (native, "neck.layer_norm1"))
    )
    # One subtraction per element more than the fused one, on 64 x 64 positions of 256 channels.
    assert (here.costs["vector_flops"] or 0) - (there.costs["vector_flops"] or 0) == 64 * 64 * 256


def test_every_module_holds_what_its_tensors_hold() -> None:
    data = json.loads((files("costproof.models.families.deepseek_ocr") / "checkpoint_tensors.json").read_text())
    wanted: Counter[str] = Counter()
    for name, shape in data["tensors"]:
        for tensor in expand(name):
            module = tensor.rpartition(".")[0]
            # The experts of a layer stand together.
            wanted[module.partition(".experts.")[0] + ".experts" if ".experts." in module else module] += prod(shape)
    vendor, _ = ledgers()
    assert {n.module: n.costs["params"] for n in vendor.nodes if "params" in n.costs} == dict(wanted)
