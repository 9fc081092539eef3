"""Random configurations of DeepSeek-OCR and their runs, small in depth and wide in sizes.

No two sizes that are equal in the published model are equal in all draws, nor products of two: a formula with one in
place of the other is found. Where files have no say, the draws go beyond them: heads apart from the width, channels.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, Dtype, ExpertKernel, Logits
from costproof.models.decoding.domain import GROUPED_ROW
from costproof.models.families.deepseek_ocr.config import CHANNELS, ClipConfig, OcrConfig, SamConfig, TextConfig
from costproof.models.families.deepseek_ocr.page import Page, page_workload
from costproof.models.families.deepseek_ocr.preprocess import grids
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.proof import Piece
from costproof.patches import flash_attention

# Parameter -> the values it is drawn from, uniformly and independently of all others.
RANGES: Final[dict[str, range]] = {
    "sam_heads": range(1, 97),
    "sam_head_dim": range(1, 129),
    "sam_mlp": range(1, 2001),
    "sam_window": range(1, 61),
    "sam_out": range(1, 1001),
    "sam_down1": range(1, 1001),
    "sam_patch": range(1, 33),
    "in_channels": range(1, 17),
    "sam_image_patches": range(1, 129),
    "clip_heads": range(1, 97),
    "clip_head_dim": range(1, 129),
    "clip_mlp": range(1, 2001),
    "clip_image_patches": range(1, 65),
    "text_kv_heads": range(1, 65),
    "text_groups": range(1, 9),
    "text_head_halves": range(1, 129),
    "text_share": range(1, 65),
    "text_intermediate": range(1, 2001),
    "text_experts": range(64, 1025),
    "text_topk": range(1, 65),
    "text_moe_rows": range(1, 257),
    "text_shared": range(1, 65),
    "text_vocab": range(16, 4016),
    "text_tokens": range(1001),
    "B": range(1, 65),
    "b": range(2, 6, 2),
    "n": range(1, 65),
    "P": range(1, 4097),
    "side": range(1, 65),
    "crop": range(1, 49),
}

INDEPENDENT: Final[dict[str, str]] = {
    "sam_hidden": "sam_heads*sam_head_dim",
    "sam_image": "sam_image_patches*sam_patch",
    "sam_down2": "clip_heads*clip_head_dim",
    "clip_hidden": "clip_heads*clip_head_dim",
    "clip_positions": "clip_image_patches**2 + 1",
    "text_heads": "text_kv_heads*text_groups",
    "text_head_dim": "2*text_head_halves",
    "text_hidden": "8*text_kv_heads*text_groups*text_share",
    "text_moe": "8*text_moe_rows",
    "H": "4*sam_patch*side",
    "H_g": "4*sam_patch*side",
    "H_c": "4*sam_patch*crop",
    "S": "text_tokens",
}
"""Symbols that follow from the drawn parameters; the 8 is there in draws with grouped GEMMs alone,
of ``text_hidden`` 2 in the others.

S is text_tokens and the vision tokens, which the other parameters settle: given these it is as uniform.
"""

_GRIDS: Final = (None, *(grid for grid in grids() if max(grid) <= 4))
_STEPS: Final = (1, 1, 1, 1, 1, 1, 2, 3)
_EXPERTS: Final[dict[Dtype, tuple[ExpertKernel, ...]]] = {
    "bfloat16": ("grouped_mm", "batched_mm"),
    "float32": ("batched_mm",),
}  # grouped GEMMs on meta are bfloat16
_FEW: Final = {"sam": (1, 1, 1, 1, 2), "clip": (1, 1, 1, 1, 2), "text": (1, 1, 1, 2, 3)}
DEEP: Final = {9: "sam", 30: "clip", 51: "text"}
"""Draw of every 64 -> the part of the model that has more layers than the published one, wherever in it they differ."""


@dataclass(frozen=True, slots=True)
class DrawnSam(SamConfig):
    """SAM on pages of other than three channels, which no file can ask for."""

    colours: int = CHANNELS

    @property
    def channels(self) -> int:
        """Channels of a page."""
        return self.colours


@dataclass(frozen=True, slots=True)
class DrawnText(TextConfig):
    """A decoder whose heads are not as wide together as the model, which the native class makes of no file."""

    head_width: int = 0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_width


def draw(seed: int, number: int) -> Piece[DeepseekOcr]:
    """A run of the configuration with that number in the sequence of a seed: the same everywhere, in any order.

    Only FlashAttention depends on the machine: without its package the run has another attention.
    """
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in RANGES.items()}
    config = _config(p, rng, DEEP.get(number % 64, ""))
    stride = config.sam.stride
    page = Page(p["side"] * stride, p["crop"] * stride, rng.choice(_GRIDS)) if rng.random() < 7 / 8 else None
    logits: Logits = rng.choice(("all", "last"))
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    # What transformers runs: eager attention shares no key/value heads.
    attention: AttentionKind = rng.choice(("sdpa", "eager", "eager", "eager")) if p["text_groups"] == 1 else "sdpa"
    if rng.random() < 1 / 4 and not flash_attention.problems(dtype, config.text.head_dim):
        attention = attention if flash_attention.missing() else flash_attention.FLASH
    experts = rng.choice(_EXPERTS[dtype])
    steps = rng.choice(_STEPS)
    tokens = p["text_tokens"] if page else max(1, p["text_tokens"])  # a prompt needs one
    workload = page_workload(f"draw {number}", page, tokens, steps, p["B"], dtype, attention, logits, experts)
    sizes = {"n": p["n"], "P": p["P"], "N": steps}
    config = _in_rows(config) if experts == "grouped_mm" else config
    return Piece(f"draws: {number}", "draws", DeepseekOcr(config), workload, sizes=sizes)


def _config(p: Mapping[str, int], rng: random.Random, deep: str) -> OcrConfig:
    """A configuration of these sizes; layers and what kinds they are of are drawn here."""
    usual = {"sam": SamConfig().layers, "clip": ClipConfig().layers, "text": TextConfig().layers}
    layers = {part: rng.choice(_FEW[part]) if part != deep else published + 1 for part, published in usual.items()}
    clip_patch = rng.choice((1, 2, 3))
    width = p["clip_heads"] * p["clip_head_dim"]
    return OcrConfig(
        sam=DrawnSam(
            hidden=p["sam_heads"] * p["sam_head_dim"],
            layers=layers["sam"],
            heads=p["sam_heads"],
            mlp=p["sam_mlp"],
            image=p["sam_image_patches"] * p["sam_patch"],
            patch=p["sam_patch"],
            window=p["sam_window"],
            global_layers=tuple(i for i in range(layers["sam"]) if rng.random() < 0.5),
            neck=p["sam_out"],
            downsample=(p["sam_down1"], width),
            colours=p["in_channels"],
        ),
        clip=ClipConfig(
            hidden=width,
            layers=layers["clip"],
            heads=p["clip_heads"],
            mlp=p["clip_mlp"],
            image=p["clip_image_patches"] * clip_patch,
            patch=clip_patch,
        ),
        text=DrawnText(
            # Twice: the class checks that the width of a head as its file gives it, hidden / heads, is even.
            hidden=2 * p["text_kv_heads"] * p["text_groups"] * p["text_share"],
            head_width=2 * p["text_head_halves"],
            layers=layers["text"],
            dense_layers=rng.randint(0, layers["text"]),
            heads=p["text_kv_heads"] * p["text_groups"],
            kv_heads=p["text_kv_heads"],
            intermediate=p["text_intermediate"],
            experts=p["text_experts"],
            topk=p["text_topk"],
            moe_intermediate=p["text_moe_rows"],
            shared_experts=p["text_shared"],
            vocab=p["text_vocab"],
            max_positions=2**16 + p["text_tokens"],
        ),
        image_token=1,
    )


def _in_rows(config: OcrConfig) -> OcrConfig:
    """Return the configuration with the widths that grouped GEMMs need."""
    text = config.text
    widths = {"hidden": GROUPED_ROW // 2 * text.hidden, "moe_intermediate": GROUPED_ROW * text.moe_intermediate}
    return replace(config, text=replace(text, **widths))


def choices(drawn: Piece[DeepseekOcr]) -> tuple[str, ...]:
    """What a draw has of the things that are not numbers in a formula, in words."""
    config, run = drawn.target.config, drawn.workload
    sam, text, usual = config.sam, config.text, OcrConfig()
    has = {
        "layers with windows": len(sam.global_layers) < sam.layers,
        "global layers": bool(sam.global_layers),
        "dense layers": text.dense_layers > 0,
        "several dense layers": text.dense_layers > 1,
        "layers with experts": text.dense_layers < text.layers,
        "more layers than published": any(
            getattr(config, part).layers > getattr(usual, part).layers for part in DEEP.values()
        ),
        "shared key/value heads": text.kv_heads < text.heads,
        "no page": not run.inputs,
        "crops": "grid" in run.inputs,
        "eager attention": run.attention == "eager",
        "FlashAttention": run.attention == flash_attention.FLASH,
        "grouped GEMMs": run.experts == "grouped_mm",
        "the last logits alone": run.logits == "last",
        "several decode steps": run.new_tokens > 1,
    }
    return tuple(name for name, present in has.items() if present)


NOT_VARIED: Final = (
    "kernels of the convolutions other than the patch embedding: 1x1 and 3x3 in the native code, not its configuration",
    "a loop over experts: which of them run is data, and what is exported in its place are the grouped products",
    "dense layers after sparse ones, biases, other activations: the formulas refuse such configurations",
    "CLIP's width is SAM's last width, as in every configuration that runs",
    "heads of SAM and CLIP are as wide together as the tower: the native classes make no others",
    "1 to 3 decode steps at a drawn past, each exported by itself; in runs of their own there are 2 to 12",
)
"""What the drawn configurations cannot or do not vary, and why."""
