"""Three rows of a published table, printed digit by digit, from real runs of fvcore on towers of the published sizes.

The towers are those of ``tests.vendor_like``, which like the published code write the norms of the neck out.
By hand, in MACs as fvcore counts; a norm is 5 an element.

SAM on four crops of 640: 1,600 positions of 768 each, padded to 42 x 42 = 1,764 (9 windows of 14 x 14) in the eight
layers with windows.
    patches     4 * 1600 * 768 * 3 * 16 * 16                            =   3,774,873,600
    windows     8 * 4 * 1764 * (3 + 1) * 768 * 768                      = 133,177,540,608
    global      4 * 4 * 1600 * (3 + 1) * 768 * 768                      =  60,397,977,600
    MLPs        12 * 4 * 1600 * 2 * 768 * 3072                          = 362,387,865,600
    neck        4 * 1600 * (768 * 256 + 9 * 256 * 256)                  =   5,033,164,800
    down        4 * (400 * 9 * 256 * 512 + 100 * 9 * 512 * 1024)        =   3,774,873,600
    norms       12 * 2 * 5 * 4 * 1600 * 768                             =     589,824,000
    positions   two einsums a layer, each as a text of four digits:
                windows 4 * 9 * 12 * 14**3 * 64 = 75,866,112 MACs, 1.517e+08 FLOP, taken for 75,850,000 MACs
                global  4 * 12 * 40**3 * 64 = 196,608,000 MACs, 3.932e+08 FLOP, taken for 196,600,000 MACs

CLIP on 257 tokens: 24 layers of 4 * 1024 * 1024 + 2 * 1024 * 4096 = 12,582,912 MACs a token, and 2 * 24 + 1 norms.
The projector on 4,096 tokens: 2048 * 1280 MACs a token.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from costproof.tracers.counters.tools import fvcore, positional
from tests.vendor_like.deepencoder import ImageEncoderViT, MlpProjector, VitModel

VISION: Final[dict[str, Any]] = {
    "image_size": 1024,
    "width": {
        "sam_vit_b": {
            "width": 768, "layers": 12, "heads": 12, "global_attn_indexes": [2, 5, 8, 11],
            "downsample_channels": [512, 1024],
        },
        "clip-l-14-224": {"width": 1024, "layers": 24, "heads": 16, "image_size": 224, "patch_size": 14},
    },
}  # fmt: skip


def counted(make: Any, **shapes: tuple[int, ...]) -> dict[str, int]:
    """fvcore's MACs by operator."""
    with torch.device("meta"):
        module: nn.Module = make().eval()
        model, args = positional(module, {name: torch.empty(shape) for name, shape in shapes.items()})
    found = fvcore(model, args)
    sums: dict[str, int] = {}
    for row in found.rows:
        sums[row.kind] = sums.get(row.kind, 0) + row.value
    assert found.total == sum(sums.values())
    return sums


def printed(macs: int) -> str:
    """As the table prints: G, two decimals."""
    return f"{macs / 10**9:.2f}"


def test_sam_on_the_crops_alone() -> None:
    found = counted(lambda: ImageEncoderViT(VISION), x=(4, 3, 640, 640))
    assert found == {
        "conv": 3_774_873_600 + 5_033_164_800 + 3_774_873_600,
        "linear": 133_177_540_608 + 60_397_977_600 + 362_387_865_600,
        "layer_norm": 589_824_000,
        "einsum": 8 * 2 * 75_850_000 + 4 * 2 * 196_600_000,
    }
    assert sum(found.values()) == 571_922_519_808
    assert printed(571_922_519_808) == "571.92"
    # With the norms of the neck as layer_norm: two more of 4 * 1600 positions of 256 channels.
    assert printed(571_922_519_808 + 2 * 5 * 4 * 1600 * 256) == "571.94"


def test_clip_on_the_global_view_alone() -> None:
    found = counted(lambda: VitModel(VISION), x=(1, 3, 1024, 1024), patch_embeds=(1, 1024, 16, 16))
    assert found == {
        "linear": 257 * 24 * (4 * 1024 * 1024 + 2 * 1024 * 4096), "layer_norm": (2 * 24 + 1) * 5 * 257 * 1024,
    }  # fmt: skip
    assert sum(found.values()) == 77_675_877_376
    assert printed(77_675_877_376) == "77.68"


def test_the_projector_on_tokens_that_no_run_has() -> None:
    found = counted(lambda: MlpProjector({"input_dim": 2048, "n_embed": 1280}), x=(1, 4096, 2048))
    assert found == {"linear": 4096 * 2048 * 1280}
    assert printed(4096 * 2048 * 1280) == "10.74"
