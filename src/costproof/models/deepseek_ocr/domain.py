"""What a proof about DeepSeek-OCR ranges over: runs, sides, pages, and random small configurations."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Final

from costproof.compare.proof.certificate import Settings
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import FLOAT_BYTES, Attention, Dtype, Experts, Logits, Workload
from costproof.models.deepseek_ocr.any_side import AnySide
from costproof.models.deepseek_ocr.config import ClipConfig, OcrConfig, SamConfig, TextConfig
from costproof.models.deepseek_ocr.page import IMAGE_STAGES, Page, page_workload
from costproof.models.deepseek_ocr.preprocess import grids
from costproof.models.deepseek_ocr.presets import USUAL_SIDES
from costproof.models.deepseek_ocr.target import DeepseekOcr
from costproof.models.proof import Piece, Proof, Provable

GREATEST_SIDE: Final = 8192


def variants() -> tuple[Workload, ...]:
    """The runs whose graphs are compared as expressions: pages and text, two dtypes, both kernels."""
    page = Page(1024, 640, (2, 2))
    return (
        page_workload("page", page, 512, 4),
        page_workload("text", None, 512, 4),
        page_workload("page, eager, last logits", page, 512, 4, 1, "float32", "eager", "last", "batched_mm"),
    )


def sides(config: OcrConfig, least: int, most: int) -> tuple[int, ...]:
    """Every side from ``least`` to ``most`` pixels in steps of the model's stride."""
    step = config.sam.stride
    return tuple(range(-(-least // step) * step, most + 1, step))


def symbolic_sides(config: OcrConfig) -> tuple[int, ...]:
    """The sides at which a graph with a symbolic side is asked whether it holds: 128 steps of the stride."""
    return sides(config, config.sam.stride, 128 * config.sam.stride)


def pages(config: OcrConfig) -> tuple[Workload, ...]:
    """Every grid that the preprocessing makes, 2 to 9 crops, on two pairs of sides and two batches."""
    step = config.sam.stride
    found = [page_workload(f"page {8 * step}", Page(8 * step, 8 * step), 8, 1)]
    for i, grid in enumerate(grids()):
        base, crop = ((16 * step, 10 * step), (5 * step, 3 * step))[i % 2]
        found.append(page_workload(f"grid {grid[0]}x{grid[1]}", Page(base, crop, grid), 8 + i, 1, 1 + i % 3))
    return tuple(found)


_VIEWS: Final = (2, 3, 5)
"""Numbers of views at which the conditions of an export are looked at."""


def proof(target: DeepseekOcr, samples: int, seed: int, asked: str) -> Proof:
    """All pieces of a proof about one configuration.

    Args:
        asked: least and most side of a view in pixels to enumerate, ``64-2048``, or one side.

    Raises:
        BadInput: this is not a range, or holds no side to enumerate.
    """
    config = target.config
    range_ = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", asked.strip())
    if range_ is None:
        raise BadInput(
            "not a range of sides",
            where="--sides",
            expected=f"A-B in pixels, such as {USUAL_SIDES}",
            got=repr(asked[:40]),
        )
    least, most = int(range_[1]), int(range_[2] or range_[1])
    enumerated = sides(config, least, most)
    if least < 1 or not enumerated or most > GREATEST_SIDE:
        wanted = f"a range within 1 to {GREATEST_SIDE} that holds a multiple of {config.sam.stride}"
        raise BadInput("no side to enumerate", where="--sides", expected=wanted, got=f"{least}-{most}")
    drawn = [draw(seed, number) for number in range(samples)]
    # A view's side means the same to every layer of a kind, and the identities have all layers.
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
        not_varied=NOT_VARIED,
        sizes=enumerated,
        tried_sizes=symbolic_sides(config),
        workloads=tuple(w.name for w in pages(config)),
        sized=IMAGE_STAGES,
        not_claimed=NOT_CLAIMED,
    )


def _any_side(config: OcrConfig) -> tuple[Piece[Provable], ...]:
    """The vision stages with the side of a view as a symbol; sides that whole windows tile make graphs of their own."""
    asked = {side: tuple({"n": n, "H": side} for n in _VIEWS) for side in symbolic_sides(config)}
    targets = [AnySide(config)]
    if targets[0].whole_step != config.sam.stride:
        targets.append(AnySide(config, tiled=True))
    runs = [(t, t.run()) for t in targets]
    return tuple(
        Piece(f"identity: {w.name}", "identities", t, w, stages=IMAGE_STAGES, steps={"H": t.step}, asked=asked)
        for t, w in runs
    )


# Parameter -> the values it is drawn from, uniformly and independently of all others.
RANGES: Final[dict[str, range]] = {
    "sam_heads": range(1, 97),
    "sam_head_dim": range(1, 129),
    "sam_mlp": range(1, 2001),
    "sam_window": range(1, 61),
    "sam_out": range(1, 1001),
    "sam_down1": range(1, 1001),
    "sam_patch": range(1, 33),
    "sam_image_patches": range(1, 129),
    "clip_heads": range(1, 97),
    "clip_head_dim": range(1, 129),
    "clip_mlp": range(1, 2001),
    "clip_image_patches": range(1, 65),
    "text_kv_heads": range(1, 65),
    "text_groups": range(1, 9),
    "text_head_eighths": range(1, 65),
    "text_intermediate": range(1, 2001),
    "text_experts": range(64, 1025),
    "text_topk": range(1, 65),
    "text_moe_eighths": range(1, 257),
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
    "text_head_dim": "8*text_head_eighths",
    "text_hidden": "8*text_kv_heads*text_groups*text_head_eighths",
    "text_moe": "8*text_moe_eighths",
    "H": "4*sam_patch*side",
    "H_g": "4*sam_patch*side",
    "H_c": "4*sam_patch*crop",
    "S": "text_tokens",
}
"""Symbols that follow from the drawn parameters; grouped GEMMs need rows of 16 bytes, hence the eighths.

S is text_tokens and the vision tokens, which the other parameters settle: given these it is as uniform.
"""

_GRIDS: Final = (None, *(grid for grid in grids() if max(grid) <= 4))


def draw(seed: int, number: int) -> Piece[DeepseekOcr]:
    """A run of the configuration with that number in the sequence of a seed: the same everywhere, in any order."""
    rng = random.Random(f"costproof:{seed}:{number}")
    p = {name: rng.choice(values) for name, values in RANGES.items()}
    sam_layers, clip_layers, text_layers = (rng.choice((1, 1, 2, 3)) for _ in range(3))
    clip_patch = rng.choice((1, 2, 3))
    width = p["clip_heads"] * p["clip_head_dim"]
    config = OcrConfig(
        sam=SamConfig(
            hidden=p["sam_heads"] * p["sam_head_dim"],
            layers=sam_layers,
            heads=p["sam_heads"],
            mlp=p["sam_mlp"],
            image=p["sam_image_patches"] * p["sam_patch"],
            patch=p["sam_patch"],
            window=p["sam_window"],
            global_layers=tuple(i for i in range(sam_layers) if rng.random() < 0.5),
            neck=p["sam_out"],
            downsample=(p["sam_down1"], width),
        ),
        clip=ClipConfig(
            hidden=width,
            layers=clip_layers,
            heads=p["clip_heads"],
            mlp=p["clip_mlp"],
            image=p["clip_image_patches"] * clip_patch,
            patch=clip_patch,
        ),
        text=TextConfig(
            hidden=8 * p["text_kv_heads"] * p["text_groups"] * p["text_head_eighths"],
            layers=text_layers,
            dense_layers=rng.randint(0, text_layers),
            heads=p["text_kv_heads"] * p["text_groups"],
            kv_heads=p["text_kv_heads"],
            intermediate=p["text_intermediate"],
            experts=p["text_experts"],
            topk=p["text_topk"],
            moe_intermediate=8 * p["text_moe_eighths"],
            shared_experts=p["text_shared"],
            vocab=p["text_vocab"],
            max_positions=2**16,
        ),
        image_token=1,
    )
    stride = config.sam.stride
    page = Page(p["side"] * stride, p["crop"] * stride, rng.choice(_GRIDS))
    logits: Logits = rng.choice(("all", "last"))
    # What transformers runs: eager attention shares no key/value heads, grouped GEMMs on meta are bfloat16.
    attention: Attention = rng.choice(("sdpa", "eager")) if p["text_groups"] == 1 else "sdpa"
    dtype: Dtype = "bfloat16" if p["b"] == FLOAT_BYTES["bfloat16"] else "float32"
    experts: Experts = rng.choice(("grouped_mm", "batched_mm")) if dtype == "bfloat16" else "batched_mm"
    workload = page_workload(
        f"draw {number}", page, p["text_tokens"], 1, p["B"], dtype, attention, logits, experts
    )  # fmt: skip
    sizes = {"n": p["n"], "P": p["P"], "N": 1}
    return Piece(f"draws: {number}", "draws", DeepseekOcr(config), workload, sizes=sizes)


def choices(drawn: Piece[DeepseekOcr]) -> tuple[str, ...]:
    """What a draw has of the things that are not numbers in a formula, in words."""
    config, run = drawn.target.config, drawn.workload
    sam, text = config.sam, config.text
    has = {
        "layers with windows": len(sam.global_layers) < sam.layers,
        "global layers": bool(sam.global_layers),
        "dense layers": text.dense_layers > 0,
        "layers with experts": text.dense_layers < text.layers,
        "shared key/value heads": text.kv_heads < text.heads,
        "crops": "grid" in run.inputs,
        "eager attention": run.attention == "eager",
        "grouped GEMMs": run.experts == "grouped_mm",
        "the last logits alone": run.logits == "last",
    }
    return tuple(name for name, present in has.items() if present)


NOT_VARIED: Final = (
    "three channels: both patch embeddings of the native classes are fed with RGB",
    "kernels of the convolutions other than the patch embedding: 1x1 and 3x3 in the native code, not its configuration",
    "dense layers after sparse ones, biases, other activations: the formulas refuse such configurations",
    "CLIP's width is SAM's last width, as in every configuration that runs",
    "one decode step at a drawn past; sums over N steps are identities, and counted in runs of 2 to 12 steps",
)
"""What the drawn configurations cannot or do not vary, and why."""

NOT_CLAIMED: Final = (
    "all layers at every side that is exported by itself: these have one layer of each kind, identities have all",
    "sides that are not a multiple of the model's step: the model cuts pixels there, which no formula describes",
    "window attention over all window sizes: a ceiling is not a polynomial, so windows are drawn, not settled",
)
"""What the proof leaves open about this model."""
