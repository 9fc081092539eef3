"""What a proof about DeepSeek-OCR ranges over: runs, sides, pages, and random configurations (:mod:`.draws`)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Final

from costproof.compare.proof.certificate import Settings
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.any_side import AnySide
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.draws import INDEPENDENT, NOT_VARIED, RANGES, choices, draw
from costproof.models.families.deepseek_ocr.page import IMAGE_STAGES, Page, page_workload
from costproof.models.families.deepseek_ocr.preprocess import grids
from costproof.models.families.deepseek_ocr.presets import USUAL_SIDES
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.proof import Piece, Proof, Provable, reasons

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
        not_varied=(*NOT_VARIED, *reasons(target.config)),
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


NOT_CLAIMED: Final = (
    "all layers at every side that is exported by itself: these have one layer of each kind, identities have all",
    "sides that are not a multiple of the model's step: the model cuts pixels there, which no formula describes",
    "window attention over all window sizes: a ceiling is not a polynomial, so windows are drawn, not settled",
)
"""What the proof leaves open about this model."""
