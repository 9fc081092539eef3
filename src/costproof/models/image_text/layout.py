"""Read images from a workload, and map the modules of an image-text model to stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS, VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.plural import plural
from costproof.ledger.workload import SettingValue, Workload
from costproof.models.decoding.decoder import Decoder, Locate
from costproof.models.decoding.domain import CONFIG, INDEPENDENT
from costproof.models.encoding.domain import IMAGES as IMAGE_RANGES
from costproof.models.encoding.domain import PATCHES, Domain, Parameters
from costproof.models.encoding.images import SIZE, side_of

IMAGES: Final = "images"
CALL: Final = "images"
"""Name of the towers' invocation in a run: a single call on all images."""


def images_of(workload: Workload) -> int:
    """Return the number of images in each prompt."""
    found = workload.inputs.get(IMAGES, 0)
    assert isinstance(found, int)
    return found


def with_images(workload: Workload, count: int, side: int = 0, where: str = "each prompt") -> Workload:
    """Return the workload with ``count`` images in ``where``, of ``side`` pixels each if the size is a setting."""
    if not count:
        return replace(workload, inputs={}, what="text only")
    size = f" of {side} x {side}" if side else ""
    inputs: dict[str, SettingValue] = {IMAGES: count, **({SIZE: side} if side else {})}
    return replace(workload, inputs=inputs, what=f"{plural(count, 'image')}{size} in {where}")


_TOWER: Final = {
    name: replace(doc, latex=f"{doc.latex}_{{v}}") for name, doc in VISION_SYMBOLS.items() if name.startswith("vision_")
}
SYMBOLS: Final[dict[str, SymbolDoc]] = {
    **RUN_SYMBOLS,
    **DECODER_SYMBOLS,
    **_TOWER,
    "S": SymbolDoc("S", "tokens of the prompt, image tokens included"),
    "n": SymbolDoc("n", "images in the batch"),
    "H": VISION_SYMBOLS["H"],
    "G": VISION_SYMBOLS["G"],
}
"""Notation and meaning of all symbols of a run and of a configuration."""


@dataclass(frozen=True, slots=True)
class StagePaths:
    """Module paths of the vision stages; all other modules belong to prefill and decode."""

    stage_at: Mapping[str, str]
    """Stage of each tower and projector, by module path; inner modules precede the modules that contain them."""

    def stage(self, path: str, decoder: str = "prefill") -> str:
        """Return the stage of a module: its tower's or projector's, else ``decoder``."""
        around = (stage for part, stage in self.stage_at.items() if path == part or path.startswith(part + "."))
        return next(around, decoder)

    def stages(self, path: str, steps: int = 1) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order, given the number of decode steps."""
        found = (self.stage(path), self.stage(path, "decode"))
        return tuple(dict.fromkeys(found if steps else found[:1]))

    def locators(self, *calls: str) -> tuple[Locate, Locate]:
        """Return functions from a module call to (stage, invocation), one for the prefill and one for a decode step.

        Args:
            calls: invocations of a tower, in the order of its calls.
        """

        def in_page(path: str, call: int) -> tuple[str, str]:
            stage = self.stage(path)
            return stage, "prompt" if stage == "prefill" else calls[min(call, len(calls)) - 1]

        return in_page, lambda path, call: (self.stage(path, "decode"), "steps")


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """Module paths of the towers and of the decoder in a class of transformers."""

    towers: StagePaths
    decoder: str = "model.language_model"
    """Path of the module that holds the layers of the decoder."""
    around: str = "model"
    """Path of the module that holds towers and decoder."""
    inner: tuple[str, ...] = ()
    """Modules of transformers that define the class of the decoder, if it comes from another family."""
    masks: tuple[str, ...] = ()
    """Keys of the masks that the decoder takes as a dict; empty if it takes a single mask."""
    axes: int = 1
    """Number of position ids per token."""

    def decoder_for(self, call: str) -> Decoder:
        """Return the decoder's calling convention; ``call`` is the invocation of the towers."""
        return Decoder(stack=self.decoder, masks=self.masks, places=self.towers.locators(call), axes=self.axes)


_NOT_DRAWN: Final = ("vision_labels", "vision_pooled", "G", "rest", "B", "b")
"""Parameters of an image encoder that are not drawn for a tower."""
_OF_PATCHES: Final = ("vision_heads", "vision_head_quarters", "vision_intermediate", "patch", "frames", "channels")

_NOT_VARIED: Final = ("kernels other than sdpa and eager", "padded prompts")
_PROMPT: Final[Mapping[str, range]] = {
    "text_tokens": range(3, 41),
    "last": range(2),
    "images": range(1, 4),
    "B": range(1, 9),
    "P": range(1, 65),
    "b": range(2, 6, 2),
}
IMAGES_AND_TEXT: Final = Parameters(
    {
        **{name: values for name, values in IMAGE_RANGES.ranges.items() if name not in _NOT_DRAWN},
        **CONFIG,
        **_PROMPT,
        "whole": range(2),
    },
    {
        "vision_hidden": IMAGE_RANGES.independent["vision_hidden"],
        "vision_positions": IMAGE_RANGES.independent["vision_positions"],
        **INDEPENDENT,
        "G": "vision_grid",
        "H": "vision_patch*vision_grid",
        "n": "B*images",
        "S": "text_tokens + images*(vision_grid**2 + whole)",
    },
    (*_NOT_VARIED, "images of another size than the tower's"),
)
"""Parameters of a model whose image features are the patches of a tower, with or without the class token."""

PATCHES_AND_TEXT: Final = Parameters(
    {
        **{name: values for name, values in PATCHES.ranges.items() if name in _OF_PATCHES},
        **{name: values for name, values in CONFIG.items() if name != "text_share"},
        **_PROMPT,
        "text_head_halves": range(3, 21),
        "vision_merge": range(1, 4),
        "vision_window": range(1, 5),
        "U": range(1, 9),
    },
    {
        "vision_head_dim": PATCHES.independent["vision_head_dim"],
        "vision_hidden": PATCHES.independent["vision_hidden"],
        "vision_volume": "channels*frames*patch**2",
        **INDEPENDENT,
        "text_hidden": "2*text_kv_heads*text_groups*text_head_halves",
        "vision_out": "2*text_kv_heads*text_groups*text_head_halves",
        "n": "B*images",
        "S": "text_tokens + images*U**2",
    },
    (*_NOT_VARIED, "images that are not square"),
)
"""Parameters of a model that merges neighbouring patches of images of any size; heads divide the width."""


def domain(default: Workload) -> Domain:
    """Return the domain of the proof: the default workload, eager attention with several images, and text only."""
    several = replace(with_images(default, 2), name="images, eager, last logits", new_tokens=4)
    several = replace(several, dtype="float32", attention="eager", logits="last")
    return Domain((default, several, replace(with_images(default, 0), name="text")), IMAGES_AND_TEXT)


def domain_in_patches(default: Workload, step: int) -> Domain:
    """Return the domain of a proof about a model with a tower on patches: images of two sizes, and text only.

    Args:
        step: side of a token in pixels.
    """
    small = replace(with_images(default, 2, step), name="images of a token, eager", new_tokens=4)
    small = replace(small, dtype="float32", attention="eager", logits="last")
    runs = (default, small, replace(with_images(default, 0), name="text"))
    return Domain(runs, PATCHES_AND_TEXT, (step, side_of(default)))
