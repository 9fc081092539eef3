"""What must hold between the numbers of a configuration, whichever file they came from."""

from __future__ import annotations

from collections.abc import Mapping

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.deepseek_ocr.config import OcrConfig


def contradictions(config: OcrConfig, paths: Mapping[str, str]) -> list[CostproofError]:
    """Every pair of numbers that cannot stand together in a model that runs.

    Args:
        paths: where each number stands in the file: ``sam.hidden`` -> ``$.vision_config.…``.
    """
    found: list[CostproofError] = []

    def report(key: str, what: str, expected: object, got: object) -> None:
        found.append(BadInput(what, where=paths[key], expected=expected, got=got))

    def divides(part: str, part_value: int, whole: str, whole_value: int, name: str) -> None:
        if whole_value % part_value:
            report(part, f"{name} do not divide the width", f"a divisor of {whole_value} ({paths[whole]})", part_value)

    sam, clip, text = config.sam, config.clip, config.text
    divides("sam.heads", sam.heads, "sam.hidden", sam.hidden, "the attention heads")
    divides("clip.heads", clip.heads, "clip.hidden", clip.hidden, "the attention heads")
    divides("text.heads", text.heads, "text.hidden", text.hidden, "the attention heads")
    if text.hidden % text.heads == 0 and text.head_dim % 2:
        report("text.heads", "rotary embedding needs an even head width", "an even width / heads", text.head_dim)
    if text.heads % text.kv_heads:
        report(
            "text.kv_heads",
            "the key/value heads do not divide the attention heads",
            f"a divisor of {text.heads} ({paths['text.heads']})",
            text.kv_heads,
        )
    for tower, image, patch in (("sam", sam.image, sam.patch), ("clip", clip.image, clip.patch)):
        if image % patch:
            report(
                f"{tower}.image",
                "the patches do not tile the image",
                f"a multiple of {patch} ({paths[tower + '.patch']})",
                image,
            )
    outside = [i for i in sam.global_layers if i >= sam.layers]
    if outside:
        report("sam.global_layers", "a global attention layer does not exist", f"0 to {sam.layers - 1}", outside)
    if len(set(sam.global_layers)) != len(sam.global_layers):
        report(
            "sam.global_layers", "a global attention layer is named twice", "distinct layers", list(sam.global_layers)
        )
    if sam.downsample[1] != clip.hidden:
        report(
            "sam.downsample",
            "SAM's features are CLIP's patch embeddings, so their widths must agree",
            f"{clip.hidden} ({paths['clip.hidden']}) as the last entry",
            sam.downsample[1],
        )
    if text.topk > text.experts:
        report(
            "text.topk",
            "a token cannot pass more experts than there are",
            f"at most {text.experts} ({paths['text.experts']})",
            text.topk,
        )
    if text.dense_layers > text.layers:
        report(
            "text.dense_layers",
            "more dense layers than layers",
            f"at most {text.layers} ({paths['text.layers']})",
            text.dense_layers,
        )
    if config.image_token >= text.vocab:
        report(
            "image_token",
            "the image token is outside the vocabulary",
            f"less than {text.vocab} ({paths['text.vocab']})",
            config.image_token,
        )
    return found
