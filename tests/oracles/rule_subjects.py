"""What errors in rules are planted into: a tiny DeepSeek-OCR twice, and a module with the products that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from costproof.ledger.capture import Capture
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.config import parse_config
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.generic.live_module import at_hand
from costproof.models.specs import ExportJob, Run
from costproof.models.target import WithFormulas
from costproof.parametric.targets import evaluate_formulas
from costproof.tracers import dynamic, static
from costproof.tracers.cpu_fallback import FallbackTrace, trace_run
from costproof.tracers.exported import Exported, export_graph

CONFIG: dict[str, Any] = {
    "model_type": "unlimited_ocr",
    "vision_config": {
        "sam_config": {
            "hidden_size": 48, "num_attention_heads": 4, "mlp_dim": 80, "output_channels": 32,
            "downsample_channels": [40, 64], "num_hidden_layers": 2, "global_attn_indexes": [1], "image_size": 128,
            "window_size": 3,
        },
        "encoder_config": {
            "hidden_size": 64, "intermediate_size": 72, "num_hidden_layers": 1, "num_attention_heads": 4,
            "image_size": 28,
        },
    },
    "text_config": {
        "hidden_size": 80, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 96, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
    },
    "image_token_id": 5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A target at a workload, of which exports and traces are made once."""

    name: str
    target: Any
    workload: Workload
    exports: dict[str, Exported]
    traces: dict[str, FallbackTrace]

    def capture(self) -> Capture:
        """All sources, costed now."""

        def export(job: ExportJob) -> Exported:
            if job.id not in self.exports:
                self.exports[job.id] = export_graph(job)
            return self.exports[job.id]

        def trace(run: Run, *, all_calls: bool = False) -> FallbackTrace:
            if run.id not in self.traces:
                self.traces[run.id] = trace_run(run)
            return self.traces[run.id]

        ledgers: list[Ledger] = []
        if isinstance(self.target, WithFormulas):
            ledgers.append(evaluate_formulas(self.target, self.workload))
        with mock.patch.object(static, "cached_export", export), mock.patch.object(dynamic, "trace_run", trace):
            ledgers.append(static.static_ledger(self.target, self.workload))
            ran = dynamic.dynamic_ledger(self.target, self.workload)
        return Capture(
            self.target.conventions(self.workload), self.target.info(), self.workload, {},
            self.target.invocations(self.workload), (*ledgers, ran.ledger),
            trace_check=ran.trace_check, run=ran.run, judge=ran.judge,
        )  # fmt: skip


class Products(nn.Module):
    """The products that DeepSeek-OCR lacks, each in a module of its own name."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv1d(6, 4, 3, padding=2, dilation=2, groups=2)
        self.strided = nn.Conv2d(1, 5, (3, 2), stride=2)
        self.transposed = nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.parts = nn.ModuleDict({name: _Runs(name) for name in _PARTS})

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """[2, 6, 9] -> what each part makes of it."""
        spread = self.transposed(self.grouped(x))
        fixed = (spread, self.strided(x[:, None]), self.lstm(x.transpose(1, 2))[0])
        return [*fixed, *(part(x) for part in self.parts.values())]


class _Runs(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the part of that name makes."""
        return _PARTS[self.name](x)


def _attention(x: torch.Tensor) -> torch.Tensor:
    """Four heads of queries, two of keys, values wider than keys."""
    queries, keys, values = x.new_ones(2, 4, 6, 8), x.new_ones(2, 2, 9, 8), x.new_ones(2, 2, 9, 16)
    return nn.functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)


_PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "product": lambda x: x @ x.transpose(1, 2) @ x,
    "vector": lambda x: x @ x[0, 0],
    "added": lambda x: torch.addmm(x[0, :, :6], x[0], x[1].T),
    "batches_added": lambda x: torch.addbmm(x[0, :, :4], x, x[:, :4].transpose(1, 2)),
    "contracted": lambda x: torch.tensordot(x, x[:, :, :4], dims=2 * [[0, 1]]),
    "last_two": lambda x: torch.tensordot(x, x[0].T[:, :, None].transpose(0, 1), dims=2),
    "einsum": lambda x: torch.einsum("bij,kj->bik", x, x[0, :4]),
    "reduced": lambda x: torch.einsum("bij,kl->bik", x, x[0, :4]),
    "general": lambda x: torch.convolution(x, x.new_ones(6, 4, 3), None, [2], [0], [1], True, [0], 1),
    "complex": lambda x: (torch.complex(x, x) @ torch.complex(x, x).transpose(1, 2)).real,
    "attention": _attention,
}


def subjects() -> list[Subject]:
    """What the errors are planted into."""

    def made(name: str, target: Any, workload: Workload) -> Subject:
        return Subject(name, target, workload, {}, {})

    tiny = DeepseekOcr(parse_config(CONFIG, where="benchmarks"))
    shared = {**CONFIG["text_config"], "num_key_value_heads": 2}
    odd = DeepseekOcr(parse_config({**CONFIG, "text_config": shared}, where="benchmarks"))
    chosen: dict[str, Any] = {
        "base_size": 192,
        "image_size": 128,
        "grid": "3x2",
        "text_tokens": 13,
        "new_tokens": 11,
        "batch": 3,
    }
    with at_hand(Products().to("meta"), (torch.empty(2, 6, 9, device="meta"),), {}) as module:
        return [
            made("default", tiny, tiny.workload()),
            made("odd", odd, odd.workload(**chosen)),
            made("own module", module, module.workload()),
        ]
