"""The domain of a proof about DeepSeek-OCR 2: pages with and without crops, text, random configurations."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from costproof.ledger.workload import FLOAT_BYTES, Workload
from costproof.models.decoding.domain import GROUPED_ROW
from costproof.models.encoding.domain import Domain, Parameters
from costproof.models.families.deepseek_ocr2.config import Ocr2Config, QueryEncoderConfig
from costproof.models.pages.config import DrawnSam, PageDecoderConfig, drawn_decoder
from costproof.models.pages.page import Page, page_workload, with_page

_GRIDS: Final = (None, (1, 2), (2, 1), (2, 2), (3, 2), (1, 5))
PARAMETERS: Final = Parameters(
    {
        "sam_heads": range(1, 9),
        "sam_head_dim": range(1, 41),
        "sam_mlp": range(1, 201),
        "sam_window": range(1, 21),
        "sam_out": range(1, 101),
        "sam_down1": range(1, 101),
        "sam_patch": range(1, 9),
        "in_channels": range(1, 9),
        "sam_image_patches": range(1, 65),
        "encoder_kv_heads": range(1, 9),
        "encoder_groups": range(1, 5),
        "encoder_head_halves": range(1, 21),
        "encoder_intermediate": range(1, 201),
        "text_kv_heads": range(1, 9),
        "text_groups": range(1, 5),
        "text_head_eighths": range(1, 9),
        "text_intermediate": range(1, 201),
        "text_experts": range(16, 65),
        "text_topk": range(1, 17),
        "text_moe_rows": range(1, 33),
        "text_shared": range(1, 9),
        "text_vocab": range(16, 516),
        "text_tokens": range(3, 101),
        "side": range(1, 21),
        "crop": range(1, 17),
        "grid": range(len(_GRIDS)),
        "page": range(8),
        "last": range(2),
        "batched": range(2),
        "B": range(1, 9),
        "P": range(1, 65),
        "b": range(2, 6, 2),
    },
    {
        "sam_hidden": "sam_heads*sam_head_dim",
        "sam_image": "sam_image_patches*sam_patch",
        "sam_down2": "2*encoder_kv_heads*encoder_groups*encoder_head_halves",
        "encoder_heads": "encoder_kv_heads*encoder_groups",
        "encoder_head_dim": "2*encoder_head_halves",
        "encoder_hidden": "2*encoder_kv_heads*encoder_groups*encoder_head_halves",
        "text_heads": "text_kv_heads*text_groups",
        "text_head_dim": "8*text_head_eighths",
        "text_hidden": "8*text_kv_heads*text_groups*text_head_eighths",
        "text_moe": "8*text_moe_rows",
        "H": "4*sam_patch*side",
        "S": "text_tokens",
        "n": "B",
        "Q_g": "Q",
    },
    ("kernels other than sdpa and eager", "padded prompts", "views that are not square"),
)
"""Parameters of random configurations; heads share the width, and the factor 8 is 2 without grouped GEMMs."""


def domain() -> Domain:
    """Return the domain of the proof: a page with crops, a single view with eager attention, and text only."""
    return Domain(
        (
            page_workload("page", Page(1024, 768, (2, 3)), 16, 4),
            page_workload(
                "view, eager, last logits", Page(768, 768), 16, 4, 1, "float32", "eager", "last", "batched_mm"
            ),
            page_workload("text", None, 512, 4),
        ),
        PARAMETERS,
        (768, 1024),
    )


def drawn(p: Mapping[str, int], rng: random.Random) -> tuple[Ocr2Config, dict[str, bool]]:
    """Draw a random small configuration; return it, and feature -> whether it has the feature."""
    layers = {part: rng.choice((1, 1, 1, 2)) for part in ("sam", "encoder")}
    # Heads are a share of the width, and rotation needs pairs.
    row = GROUPED_ROW if _grouped(p) else 2
    width = 2 * p["encoder_kv_heads"] * p["encoder_groups"] * p["encoder_head_halves"]
    config = Ocr2Config(
        DrawnSam.of(p, rng, layers["sam"], width),
        QueryEncoderConfig(
            width,
            layers["encoder"],
            p["encoder_kv_heads"] * p["encoder_groups"],
            p["encoder_kv_heads"],
            p["encoder_intermediate"],
        ),
        PageDecoderConfig(
            hidden=row * p["text_kv_heads"] * p["text_groups"] * p["text_head_eighths"],
            moe_intermediate=row * p["text_moe_rows"],
            **drawn_decoder(p, rng, p["layers"]),
            max_positions=2**16 + rng.randrange(2**10),
        ),
        image_token=1,
    )
    sam, text = config.sam, config.text
    return config, {
        "layers with windows": len(sam.global_layers) < sam.layers,
        "global layers": bool(sam.global_layers),
        "dense layers": text.dense_layers > 0,
        "mixtures": text.dense_layers < text.layers,
    }


def drawn_run(p: Mapping[str, int], workload: Workload) -> Workload:
    """Return the workload with a randomly drawn page and text length."""
    stride = 4 * p["sam_patch"]
    page = Page(p["side"] * stride, p["crop"] * stride, _GRIDS[p["grid"]]) if p["page"] else None
    more: dict[str, Any] = {"text_tokens": p["text_tokens"], "logits": "last" if p["last"] else "all"}
    more["experts"] = "grouped_mm" if _grouped(p) else "batched_mm"
    return with_page(replace(workload, **more), page)


def _grouped(p: Mapping[str, int]) -> bool:
    """Return whether experts of a random configuration run as ``grouped_mm``, which meta supports only in bfloat16."""
    return not p["batched"] and p["b"] == FLOAT_BYTES["bfloat16"]
