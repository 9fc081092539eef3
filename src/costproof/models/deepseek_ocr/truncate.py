"""A smaller DeepSeek-OCR of the same layers, for runs on machines that cannot hold the whole.

All sources count the cut model: formulas, exports and traces share the configuration.
"""

from __future__ import annotations

from dataclasses import replace

from costproof.models.configured import decoder_cut
from costproof.models.deepseek_ocr.config import OcrConfig


def cut_layers(config: OcrConfig, layers: int) -> tuple[OcrConfig, dict[str, str]]:
    """The model with its first ``layers`` decoder layers, and towers cut as far as their structure allows.

    The decoder keeps its dense layers and at least one mixture of experts. SAM keeps its layers up to
    the first one with global attention (and one with windows, where it has any); CLIP keeps as many layers as the
    decoder. Widths, experts and tables stay as they are.

    Returns:
        The configuration, and what was cut: ``decoder layers`` -> ``2 of 12``.

    Raises:
        BadInput: fewer layers than the structure needs, or more than there are.
    """
    text, sam, clip = config.text, config.sam, config.clip
    least = min(text.dense_layers + 1, text.layers)
    why = f": the {text.dense_layers} dense and at least one with experts"
    cut = decoder_cut(layers, least, text.layers, why)
    if not cut:
        return config, {}
    kept = _sam_layers(config)
    clipped = min(layers, clip.layers)
    small = replace(
        config,
        text=replace(text, layers=layers),
        sam=replace(sam, layers=kept, global_layers=tuple(i for i in sam.global_layers if i < kept)),
        clip=replace(clip, layers=clipped),
    )
    cut |= {"SAM layers": f"{kept} of {sam.layers}", "CLIP layers": f"{clipped} of {clip.layers}"}
    return small, cut


def _sam_layers(config: OcrConfig) -> int:
    """The shortest beginning with every kind of attention that the whole has."""
    sam = config.sam
    windowed = [i for i in range(sam.layers) if i not in sam.global_layers]
    return max([min(kind) + 1 for kind in (sam.global_layers, windowed) if kind], default=sam.layers)
