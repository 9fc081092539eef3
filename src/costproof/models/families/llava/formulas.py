"""The closed formulas of LLaVA: those of CLIP and of Llama, two linear layers and the prompt between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.formulas import decoder_parts
from costproof.models.decoding.names import decoder_names
from costproof.models.encoding.formulas import image_tokens, pixels
from costproof.models.families.clip_vision import clip_names, clip_tower
from costproof.models.families.llama import Llama
from costproof.models.families.llava.config import LlavaConfig
from costproof.models.image_text.ledger import IMAGES, ledger

_PROJECTOR: Final = "model.multi_modal_projector"
NAMES: Final[Mapping[str, str]] = {
    **clip_names("model.vision_tower."),
    "projector": _PROJECTOR,
    "projector.up": f"{_PROJECTOR}.linear_1",
    "projector.activation": f"{_PROJECTOR}.act",
    "projector.down": f"{_PROJECTOR}.linear_2",
    "model": "model",
    **decoder_names("model.language_model"),
}


def formulas(config: LlavaConfig, workload: Workload) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty.

    The tower runs all of its layers, whichever of them the features are taken of, and norms the class token.

    Source: Liu et al. 2023, Visual Instruction Tuning; Liu et al. 2023, Improved Baselines with Visual Instruction
    Tuning; ``LlavaForConditionalGeneration`` (transformers).
    """
    width, hidden, b = sym("vision_hidden"), sym("text_hidden"), sym("b")
    features = IMAGES * (sym("G") ** 2 + int(config.class_token))
    eager = workload.attention == "eager"
    tower = clip_tower(config.vision, resampled=False, eager=eager, images=IMAGES, read=False)
    seen = IMAGES * image_tokens(config.vision) * width
    projector = (
        Part("projector"),
        Part("projector.up", (Linear(features, width, hidden, b, config.projector_bias),)),
        Part("projector.activation", (Activation(features * hidden, config.projector_activation, b),)),
        Part("projector.down", (Linear(features, hidden, hidden, b, config.projector_bias),)),
    )
    return ledger(
        {
            "vision": (tower, (pixels(IMAGES) + seen) * b),
            "projector": (projector, features * (width + hidden) * b),
        },
        decoder_parts(config.text, workload, Llama(config.text).style()),
        features,
        workload,
        NAMES,
    )
