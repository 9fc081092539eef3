"""Define the domain of a proof about DeepSeek-OCR: workloads, image sizes, pages, and random configurations.

The random configurations are small in depth and wide in sizes. No two sizes that are equal in the published model, nor
products of two, are equal in all draws, so a formula that confuses them is found. Draws include what no file can ask
for: heads that do not add up to the width, and other numbers of channels.

The vision stages are exported with a symbolic side of a view. The native SAM calls ``int()`` on a size
(``get_rel_pos``), which makes torch.export specialise; during such an export the ``int`` of that module leaves symbolic
sizes alone. A graph is valid for the sides that pass its guards: the position table is resampled, there are several
windows, and they need padding. Sides that whole windows tile make another graph, exported with such a side.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from costproof.compare.proof.certificate import Settings
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import FLOAT_BYTES, AttentionKind, Dtype, ExpertKernel, Logits, Workload
from costproof.models.decoding.domain import GROUPED_ROW
from costproof.models.families.deepseek_ocr.config import DEFAULT_SIDES, IMAGE_STAGES, ClipConfig, OcrConfig
from costproof.models.families.deepseek_ocr.native import vision_jobs
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.config import DrawnSam, PageDecoderConfig, SamConfig, drawn_decoder
from costproof.models.pages.page import Page, grids, page_workload, views
from costproof.models.proof import Piece, Proof, Provable, reasons
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.patches import flash_attention

if TYPE_CHECKING:
    from torch import nn


GREATEST_SIDE: Final = 8192


def variants() -> tuple[Workload, ...]:
    """Return the workloads whose ledgers are compared in symbols: pages and text, two dtypes, both expert kernels."""
    page = Page(1024, 640, (2, 2))
    return (
        page_workload("page", page, 512, 4),
        page_workload("text", None, 512, 4),
        page_workload("page, eager, last logits", page, 512, 4, 1, "float32", "eager", "last", "batched_mm"),
    )


def sides(config: OcrConfig, least: int, most: int) -> tuple[int, ...]:
    """Return all sides of a view from ``least`` to ``most`` pixels, in steps of the model's stride."""
    step = config.sam.stride
    return tuple(range(-(-least // step) * step, most + 1, step))


def symbolic_sides(config: OcrConfig) -> tuple[int, ...]:
    """Return the sides of a view, in pixels, at which the guards of an export with symbolic side are checked."""
    return sides(config, config.sam.stride, 128 * config.sam.stride)


def pages(config: OcrConfig) -> tuple[Workload, ...]:
    """Return workloads with every grid of 2 to 9 crops that the preprocessing can choose."""
    step = config.sam.stride
    found = [page_workload(f"page {8 * step}", Page(8 * step, 8 * step), 8, 1)]
    for i, grid in enumerate(grids()):
        base, crop = ((16 * step, 10 * step), (5 * step, 3 * step))[i % 2]
        found.append(page_workload(f"grid {grid[0]}x{grid[1]}", Page(base, crop, grid), 8 + i, 1, 1 + i % 3))
    return tuple(found)


_VIEWS: Final = (2, 3, 5)
"""Numbers of views for which the guards of an export are evaluated."""


def proof(target: DeepseekOcr, samples: int, seed: int, asked: str) -> Proof:
    """Return all pieces of a proof about one configuration.

    Args:
        asked: range of sides of a view in pixels to enumerate, for example ``64-2048``, or a single side.

    Raises:
        BadInput: this is not a range, or it contains no side to enumerate.
    """
    config = target.config
    range_ = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", asked.strip())
    if range_ is None:
        raise BadInput(
            "not a range of sides",
            where="--sides",
            expected=f"A-B in pixels, such as {DEFAULT_SIDES}",
            got=repr(asked[:40]),
        )
    least, most = int(range_[1]), int(range_[2] or range_[1])
    enumerated = sides(config, least, most)
    if least < 1 or not enumerated or most > GREATEST_SIDE:
        wanted = f"a range within 1 to {GREATEST_SIDE} that holds a multiple of {config.sam.stride}"
        raise BadInput("no side to enumerate", where="--sides", expected=wanted, got=f"{least}-{most}")
    drawn = [draw(seed, number) for number in range(samples)]
    # Layers of one kind treat the side of a view alike; identities cover all layers.
    one_of_each = replace(target, config=target.first_layers(min(config.text.dense_layers + 1, config.text.layers))[0])
    shared = config.text.heads != config.text.kv_heads  # the native eager attention cannot share heads
    return Proof(
        pieces=(
            *_any_side(config),
            *(
                Piece(f"identity: {w.name}", "identities", target, w)
                for w in variants()
                if not (shared and w.attention == "eager")
            ),
            *(
                Piece(
                    f"side: {s}",
                    "sizes",
                    one_of_each,
                    page_workload(f"side {s}", Page(s, s), 8, 1),
                    stages=IMAGE_STAGES,
                )
                for s in enumerated
            ),
            *(Piece(f"page: {w.name}", "workloads", target, w) for w in pages(config)),
            *drawn,
        ),
        settings=Settings(samples, seed, target.normalised(), {"sides": f"{least}-{most}"}),
        usual=variants()[0],
        ranges={name: len(values) for name, values in RANGES.items()},
        independent=INDEPENDENT,
        choices=Counter(c for d in drawn for c in choices(d)),
        not_varied=(*NOT_VARIED, *reasons(target.config)),
        sizes=enumerated,
        tried_sizes=symbolic_sides(config),
        workloads=tuple(w.name for w in pages(config)),
        sized=IMAGE_STAGES,
        not_claimed=NOT_CLAIMED,
    )


def _any_side(config: OcrConfig) -> tuple[Piece[Provable], ...]:
    """Return the proof pieces with a symbolic view side, with a separate one for sides that whole windows tile."""
    asked = {side: tuple({"n": n, "H": side} for n in _VIEWS) for side in symbolic_sides(config)}
    targets = [AnySideOcr(config)]
    if targets[0].whole_step != config.sam.stride:
        targets.append(AnySideOcr(config, tiled=True))
    runs = [(t, t.run()) for t in targets]
    return tuple(
        Piece(f"identity: {w.name}", "identities", t, w, stages=IMAGE_STAGES, steps={"H": t.step}, asked=asked)
        for t, w in runs
    )


NOT_CLAIMED: Final = (
    "all layers at every side that is exported by itself: these have one layer of each kind, identities have all",
    "sides that are not a multiple of the model's step: the model cuts pixels there, which no formula describes",
    "window attention over all window sizes: a ceiling is not a polynomial, so windows are drawn, not settled",
)
"""Statements that the proof does not cover."""


_LEAST_FEATURES: Final = 10


@dataclass(frozen=True, slots=True)
class AnySideOcr(DeepseekOcr):
    """DeepSeek-OCR whose vision stages are exported with symbolic view side and number of views."""

    tiled: bool = False
    """Whether to export only SAM, at sides that whole windows tile; its graph has no padding there."""

    @property
    def whole_step(self) -> int:
        """Return the smallest side in pixels that consists of whole windows, so that no window is padded."""
        sam = self.config.sam
        return math.lcm(sam.stride, sam.patch * sam.window)

    @property
    def step(self) -> int:
        """Return the distance in pixels between consecutive sides of a view for which the export holds."""
        return self.whole_step if self.tiled else self.config.sam.stride

    def run(self) -> Workload:
        """Return the workload to export: one view, with a side that takes the same branches as the others.

        If windows need padding at any side, they need it at this one, unless ``tiled``.
        """
        sam, clip, whole = self.config.sam, self.config.clip, self.whole_step

        def special(side: int) -> bool:
            tiled = side % whole == 0 and not self.tiled and whole != sam.stride
            return tiled or side == sam.image or side // sam.stride == clip.image // clip.patch

        side = max(2, -(-max(_LEAST_FEATURES, sam.window // 2 + 1) * sam.stride // self.step)) * self.step
        while special(side):
            side += self.step
        name = "any side of whole windows" if self.tiled else "any side"
        return page_workload(name, Page(side, side), 8, 1)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """Return the export jobs of towers and projector with symbolic H and n; only SAM if ``tiled``."""
        from costproof.models.image_text.modules import SymbolicSideSam

        ((_, _, side),) = views(workload)
        features = f"H/{self.config.sam.stride}"
        more = {
            "sam": [SymbolicSize(("x",), d, "H", self.step) for d in (2, 3)],
            "clip": [SymbolicSize(("x",), d, features) for d in (2, 3)],
            "projector": [
                *(SymbolicSize(("features",), d, features) for d in (2, 3)),
                SymbolicSize(("hidden",), 1, f"({features})**2 + 1"),
            ],
        }
        sam, *others = (
            replace(job, id=f"{job.stage}@H", sizes=[*job.sizes, *more[job.stage]])
            for job in vision_jobs(model, workload, side, ("global",))
        )
        sam = replace(sam, module=SymbolicSideSam(sam.module.get_submodule("part")))
        return (sam,) if self.tiled else (sam, *others)


# Parameter -> its values, drawn uniformly and independently of all others.
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
"""Expressions of symbols in drawn parameters, by symbol.

The factor 8 is 1 in draws without grouped GEMMs, except for ``text_hidden``, where it is 2. S is ``text_tokens`` plus
the vision tokens, which depend on other parameters: given these, S is uniform as well.
"""

_GRIDS: Final = (None, *(grid for grid in grids() if max(grid) <= 4))
_STEPS: Final = (1, 1, 1, 1, 1, 1, 2, 3)
_EXPERTS: Final[dict[Dtype, tuple[ExpertKernel, ...]]] = {
    "bfloat16": ("grouped_mm", "batched_mm"),
    "float32": ("batched_mm",),
}  # grouped GEMMs on the meta device need bfloat16
_FEW: Final = {"sam": (1, 1, 1, 1, 2), "clip": (1, 1, 1, 1, 2), "text": (1, 1, 1, 2, 3)}
DEEP: Final = {9: "sam", 30: "clip", 51: "text"}
"""Part of the model with one layer more than the published model, by index of the draw modulo 64."""


@dataclass(frozen=True, slots=True)
class DrawnText(PageDecoderConfig):
    """Decoder configuration that no file can state: its heads together are not as wide as the model."""

    head_width: int = 0

    @property
    def head_dim(self) -> int:
        return self.head_width


def draw(seed: int, number: int) -> Piece[DeepseekOcr]:
    """Return the proof piece of random configuration ``number``, which depends only on the seed and the number.

    Only FlashAttention depends on the machine: without its package the run has another attention kernel.
    """
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in RANGES.items()}
    config = _config(p, rng, DEEP.get(number % 64, ""))
    stride = config.sam.stride
    page = Page(p["side"] * stride, p["crop"] * stride, rng.choice(_GRIDS)) if rng.random() < 7 / 8 else None
    logits: Logits = rng.choice(("all", "last"))
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    # Eager attention in transformers cannot share key/value heads.
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
    """Return a configuration with the drawn sizes, and with random numbers and kinds of layers."""
    usual = {"sam": SamConfig().layers, "clip": ClipConfig().layers, "text": PageDecoderConfig().layers}
    layers = {part: rng.choice(_FEW[part]) if part != deep else published + 1 for part, published in usual.items()}
    clip_patch = rng.choice((1, 2, 3))
    width = p["clip_heads"] * p["clip_head_dim"]
    return OcrConfig(
        sam=DrawnSam.of(p, rng, layers["sam"], width),
        clip=ClipConfig(
            hidden=width,
            layers=layers["clip"],
            heads=p["clip_heads"],
            mlp=p["clip_mlp"],
            image=p["clip_image_patches"] * clip_patch,
            patch=clip_patch,
        ),
        text=DrawnText(
            # Times 2: the class requires that hidden / heads is even.
            hidden=2 * p["text_kv_heads"] * p["text_groups"] * p["text_share"],
            head_width=2 * p["text_head_halves"],
            moe_intermediate=p["text_moe_rows"],
            **drawn_decoder(p, rng, layers["text"]),
            max_positions=2**16 + p["text_tokens"],
        ),
        image_token=1,
    )


def _in_rows(config: OcrConfig) -> OcrConfig:
    """Return the configuration with widths multiplied to the row alignment that grouped GEMMs require."""
    text = config.text
    widths = {"hidden": GROUPED_ROW // 2 * text.hidden, "moe_intermediate": GROUPED_ROW * text.moe_intermediate}
    return replace(config, text=replace(text, **widths))


def choices(drawn: Piece[DeepseekOcr]) -> tuple[str, ...]:
    """Return whether a draw has each feature that is not a size, such as dense layers or windows, by feature."""
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
"""Properties that no draw varies, with the reason."""
