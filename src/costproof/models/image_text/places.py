"""Where towers and projectors sit in a model of images and text, and which stage a module works in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costproof.models.decoding.decoder import Decoder, Locate


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the vision stages sit in an implementation; all other modules are the decoder's."""

    stage_at: Mapping[str, str]
    """Path of a part -> its stage; a part inside another one stands before it."""

    def stage(self, path: str, decoder: str = "prefill") -> str:
        """The stage that a module belongs to; decoder modules and the root belong to ``decoder``."""
        around = (stage for part, stage in self.stage_at.items() if path == part or path.startswith(part + "."))
        return next(around, decoder)

    def stages(self, path: str, steps: int = 1) -> tuple[str, ...]:
        """The stages that a module works in, in the order of a run with so many decode steps."""
        found = (self.stage(path), self.stage(path, "decode"))
        return tuple(dict.fromkeys(found if steps else found[:1]))

    def places(self, *calls: str) -> tuple[Locate, Locate]:
        """Where modules work in the prefill and in a decode step; ``calls`` are those of a tower, in order."""

        def in_page(path: str, call: int) -> tuple[str, str]:
            stage = self.stage(path)
            return stage, "prompt" if stage == "prefill" else calls[min(call, len(calls)) - 1]

        return in_page, lambda path, call: (self.stage(path, "decode"), "steps")


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Where a class of transformers has its towers and its decoder."""

    towers: Parts
    decoder: str = "model.language_model"
    """Path of the module that holds the decoder's layers."""
    around: str = "model"
    """Path of the module that holds all of them."""
    inner: tuple[str, ...] = ()
    """Modules of transformers that the decoder's class is from, if it is from others than the whole."""
    masks: tuple[str, ...] = ()
    """As of :class:`~costproof.models.decoding.decoder.Decoder`."""

    def called(self, call: str) -> Decoder:
        """How the class is called; ``call`` is that of the towers."""
        return Decoder(stack=self.decoder, masks=self.masks, places=self.towers.places(call))
