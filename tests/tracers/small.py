"""A model of the real architecture that is small enough to trace in a second, and toys smaller still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from costproof.ledger.metrics import Conventions
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TargetInfo, Workload
from costproof.models.families.deepseek_ocr import native
from costproof.models.pages.page import Page, page_of, page_workload
from costproof.models.specs import Built, ExportJob, Run
from costproof.models.target import NamedWorkload, Setting

# SAM: a layer with windows of 3 and a global one; features of 64 channels are CLIP's embeddings.
CONFIG: dict[str, Any] = {
    "vision_config": {
        "sam_config": {
            "hidden_size": 48,
            "num_attention_heads": 4,
            "mlp_dim": 96,
            "output_channels": 32,
            "downsample_channels": [40, 64],
            "num_hidden_layers": 2,
            "global_attn_indexes": [1],
            "image_size": 128,
            "window_size": 3,
        },
        "encoder_config": {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 28,
        },
    },
    "text_config": {
        "hidden_size": 80,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "vocab_size": 96,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
    },
    "image_token_id": 5,
}

T = TypeVar("T")

STAGES = ("sam", "clip", "projector", "prefill", "decode")


@cache
def model(dtype: str = "bfloat16", attention: str = "sdpa", experts: str = "grouped_mm") -> nn.Module:
    """The small model; shared between tests, so no test may change it."""
    return native.build_model(CONFIG, dtype=dtype, attention=attention, experts=experts)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SmallTarget:
    """The small model as a target without formulas. Instances can be pickled."""

    name: str = "small"

    def load(self) -> SmallTarget:
        """A specification of itself."""
        return self

    def info(self) -> TargetInfo:
        """No configuration symbols: graphs have numbers there."""
        return TargetInfo(self.name, "native", "0" * 12, {}, STAGES)

    def conventions(self, workload: Workload) -> Conventions:
        """Defaults."""
        return Conventions()

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """One page."""
        return PAGE

    def settings(self) -> tuple[Setting, ...]:
        """Nothing can be chosen."""
        return ()

    def presets(self) -> tuple[NamedWorkload, ...]:
        """None."""
        return ()

    def check(self, workload: Workload) -> None:
        """Everything can be run."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Symbols worked out here, not by the target under test."""
        page, found = page_of(workload), []
        common = {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype]}
        vision = 0
        if page is not None:
            side = page.base_size // 64
            vision = side * side + side + 1
            views = [("global", workload.batch)]
            if page.grid is not None:
                columns, rows = page.grid
                crop = page.image_size // 64
                vision += rows * crop * columns * crop + rows * crop
                views.append(("crops", workload.batch * columns * rows))
            for name, n in views:
                found += [Invocation(s, name, 1, {**common, "n": n}, ()) for s in STAGES[:3]]
        length = vision + workload.text_tokens
        found.append(Invocation("prefill", "prompt", 1, {**common, "S": length}, ()))
        steps = {**common, "P": length, "N": workload.new_tokens}
        found.append(Invocation("decode", "steps", workload.new_tokens, steps, ()))
        return tuple(found)

    def build(self, workload: Workload) -> nn.Module:
        """The small model."""
        return model(workload.dtype, workload.attention, workload.experts)

    @property
    def options(self) -> RunOptions:
        """On meta."""
        return RunOptions()

    def with_options(self, options: RunOptions) -> SmallTarget:
        """Always on meta."""
        return self

    def build_run(self, workload: Workload, progress: Any) -> Built:
        """The small model."""
        return Built(self.build(workload))

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """Where the native model's modules work."""
        return native.NATIVE_STAGES.stages(path, workload.new_tokens)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The native model's exports."""
        return native.READER.export_jobs(model, workload)

    def runs(self, model: nn.Module, workload: Workload) -> tuple[Run, ...]:
        """The native model's runs."""
        return native.READER.shape_runs(model, workload)

    def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The native model's stages alone."""
        return native.READER.stage_runs(model, workload)


PAGE = page_workload("page", Page(128, 64, (2, 1)), text_tokens=7, new_tokens=4)
"""One page: 2x2 features of the global view, two crops of 1x1. 4 + 2 + 1 + 2 + 1 = 10 vision tokens, S = 17."""


_COUNTED: dict[tuple[object, str], Any] = {}


def counted(source: Callable[[SmallTarget, Workload], T], workload: Workload) -> T:
    """What a source says of the small model; shared between tests."""
    key = (source, repr(workload))  # a workload holds mappings
    if key not in _COUNTED:
        _COUNTED[key] = source(SmallTarget(), workload)
    found: T = _COUNTED[key]
    return found


class Toy(nn.Module):
    """One linear layer called twice, a concatenation, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 5, 6] -> [n, 5, 12]."""
        first = self.proj(x)
        result: torch.Tensor = torch.cat([first, self.proj(first)], dim=-1) * self.scale
        return result


class Wrapper(nn.Module):
    """Calls a part and does nothing else."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the part returns."""
        result: torch.Tensor = self.part(x)
        return result


def toy() -> Toy:
    """A toy on meta."""
    with torch.device("meta"):
        return Toy().eval()


def toy_run(module: nn.Module, n: int = 2) -> Run:
    """One forward of a toy on [n, 5, 6]."""
    return Run("toy", module, {"x": torch.empty(n, 5, 6, device="meta")}, lambda path, call: ("stage", "once"))
