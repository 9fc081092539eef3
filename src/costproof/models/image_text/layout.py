"""Where the towers, the projector and the decoder are in a model, and in which stage a module runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costproof.models.decoding.decoder import Decoder, Locate


@dataclass(frozen=True, slots=True)
class StagePaths:
    """Module paths of the vision stages; all other modules belong to the decoder."""

    stage_at: Mapping[str, str]
    """Module path -> stage; a path precedes those of the modules that contain it."""

    def stage(self, path: str, decoder: str = "prefill") -> str:
        """Return the stage of a module; modules of the decoder and the root belong to the stage ``decoder``."""
        around = (stage for part, stage in self.stage_at.items() if path == part or path.startswith(part + "."))
        return next(around, decoder)

    def stages(self, path: str, steps: int = 1) -> tuple[str, ...]:
        """Return the stages in which a module runs, in order, for a run with ``steps`` decode steps."""
        found = (self.stage(path), self.stage(path, "decode"))
        return tuple(dict.fromkeys(found if steps else found[:1]))

    def locators(self, *calls: str) -> tuple[Locate, Locate]:
        """Return functions that locate modules in the prefill and in a decode step.

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
    """As in :class:`~costproof.models.decoding.decoder.Decoder`."""

    def decoder_for(self, call: str) -> Decoder:
        """Return how the class is called; ``call`` is the invocation of the towers."""
        return Decoder(stack=self.decoder, masks=self.masks, places=self.towers.locators(call))
