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
from costproof.models.encoding.images import SIZE

IMAGES: Final = "images"
CALL: Final = "images"
"""The invocation of a tower in a run: one call on all images."""


def images_of(workload: Workload) -> int:
    """Return the number of images in each prompt."""
    found = workload.inputs.get(IMAGES, 0)
    assert isinstance(found, int)
    return found


def with_images(workload: Workload, count: int, side: int = 0) -> Workload:
    """Return the workload with ``count`` images in each prompt, of ``side`` pixels if the size is a setting."""
    if not count:
        return replace(workload, inputs={}, what="text only")
    size = f" of {side} x {side}" if side else ""
    inputs: dict[str, SettingValue] = {IMAGES: count, **({SIZE: side} if side else {})}
    return replace(workload, inputs=inputs, what=f"{plural(count, 'image')}{size} in each prompt")


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
"""Typesetting and meaning of all symbols of a run and of a configuration."""


@dataclass(frozen=True, slots=True)
class StagePaths:
    """Module paths of the vision stages; all other modules belong to prefill and decode."""

    stage_at: Mapping[str, str]
    """Module path -> stage; a path precedes those of the modules that contain it."""

    def stage(self, path: str, decoder: str = "prefill") -> str:
        """Return the stage of a module: a vision stage by its path, else ``decoder``."""
        around = (stage for part, stage in self.stage_at.items() if path == part or path.startswith(part + "."))
        return next(around, decoder)

    def stages(self, path: str, steps: int = 1) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order, given the number of decode steps."""
        found = (self.stage(path), self.stage(path, "decode"))
        return tuple(dict.fromkeys(found if steps else found[:1]))

    def locators(self, *calls: str) -> tuple[Locate, Locate]:
        """Return two functions, for the prefill and for a decode step, from a module call to (stage, invocation).

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

    def decoder_for(self, call: str) -> Decoder:
        """Return the calling convention of the class; ``call`` is the invocation of the towers."""
        return Decoder(stack=self.decoder, masks=self.masks, places=self.towers.locators(call))
