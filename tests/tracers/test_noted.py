"""Operators noted of forwards that never run, against those of the same forwards with numbers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

from costproof.ledger.errors import Incomplete
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models.registry import load_target
from costproof.models.specs import Run
from costproof.models.target import Runnable
from costproof.tracers.operator_log import OperatorLog, log_operators, log_operators_without_values
from tests.models.test_config import shallow_config
from tests.models.test_mixtures import MIXTRAL, QWEN3

LLAMA: Final = {k: v for k, v in MIXTRAL.items() if "expert" not in k} | {"model_type": "llama"}
VIT: Final = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
TEXT: Final = {"text_tokens": 9, "new_tokens": 1}
# Target, its file, and the run. Steps behind the first differ: the cache on meta is filled at once.
CASES: Final[dict[str, tuple[str, Any, dict[str, Any]]]] = {
    "decoder": ("llama", LLAMA, TEXT),
    "decoder, eager, several sequences": ("llama", LLAMA, {**TEXT, "attention": "eager", "batch": 2}),
    "mixture": ("qwen3-moe", QWEN3, TEXT),
    "mixture in float32, whose grouped product has no shapes": ("mixtral", MIXTRAL, {**TEXT, "dtype": "float32"}),
    "mixture, batched": ("mixtral", MIXTRAL, {**TEXT, "experts": "batched_mm"}),
    "page and text": ("deepseek-ocr", shallow_config().native(), {"preset": "tiny", "new_tokens": 1}),
    "encoder": ("vit", VIT, {}),
}  # fmt: skip


def seen(notes: OperatorLog) -> Counter[Any]:
    """Calls of each operator with tensors of these shapes, by stage and module."""
    calls: Counter[Any] = Counter()
    for (stage, module, key), order in notes.calls.items():
        shapes = tuple(tuple(t.shape) for t in notes.distinct[key].tensors)
        calls[stage, module, str(key[0]), shapes] += len(order)
    return calls


def both(name: str, file: Any, choices: dict[str, Any], folder: Path) -> list[tuple[Run, Run]]:
    """The forwards of a run on the CPU, and the same on meta."""
    config = folder / "config.json"
    config.write_text(json.dumps(file))
    found = []
    for options in (RunOptions("cpu"), RunOptions()):
        target = load_target(name, config)
        assert isinstance(target, Runnable)
        target = target.with_options(options)
        workload = target.workload(**choices)
        found.append(target.runs(target.build_run(workload, silent).model, workload))
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_what_never_ran_has_the_operators_of_a_run(case: str, tmp_path: Path) -> None:
    for real, unrun in both(*CASES[case], tmp_path):
        ran, would = seen(log_operators(real)), seen(log_operators_without_values(unrun, "cpu"))
        # A run looks at a number to know how many there are; without numbers nobody looks.
        looks = {
            key for key in ran if "_local_scalar_dense" in key[2] or (key[2], key[3]) == ("aten.detach.default", ((),))
        }
        assert would == Counter({key: calls for key, calls in ran.items() if key not in looks})
        assert len(would) > 20
        assert len(looks) <= 2


def test_meta_itself_has_other_operators(tmp_path: Path) -> None:
    _, unrun = both("llama", LLAMA, TEXT, tmp_path)[0]
    fused = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    assert fused in {key[2] for key in seen(log_operators_without_values(unrun, "cpu"))}
    assert fused not in {key[2] for key in seen(log_operators(unrun))}


class Looks(nn.Module):
    """Its way depends on a number."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.one(x) if x.sum() > 0 else x
        return result


def test_a_forward_that_looks_at_numbers() -> None:
    run = Run("once", Looks().to("meta"), {"x": torch.zeros(2, 3, device="meta")}, lambda path, call: ("all", ""))
    with pytest.raises(Incomplete, match="does not run on tensors without values"):
        log_operators_without_values(run, "cpu")
    # One that may run elsewhere gets ones: their sum is above 0.
    names = {key[0].name() for _, _, key in log_operators_without_values(replace(run, elsewhere=True), "cpu").calls}
    assert {"aten::sum", "aten::addmm"} <= names


def test_nothing_of_the_model_changes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to("meta")
    before = list(model.parameters())
    log_operators_without_values(
        Run("once", model, {"input": torch.zeros(2, 3, device="meta")}, lambda path, call: ("all", "")), "cpu"
    )
    assert all(a is b and a.is_meta for a, b in zip(before, model.parameters(), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
