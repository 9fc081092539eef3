"""An encoder of images: a batch of square ones, as large as the configuration has them or another size."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from costproof.analytic.symbols import VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import FLOAT_BYTES, SIZE_FROM, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding.base import EncoderTarget, Tensors
from costproof.models.encoding.config import VisionConfig
from costproof.models.jobs import SymbolicSize
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from costproof.models.encoding.domain import Domain

SIZE: Final = "image_size"
_LARGEST: Final = 16384
C = TypeVar("C", bound=VisionConfig)


@dataclass(frozen=True, slots=True)
class VisionTarget(EncoderTarget[C]):
    """An encoder of images with one configuration."""

    own_settings: ClassVar[tuple[Setting, ...]] = (common.IMAGE_SIZE,)
    named: ClassVar[tuple[NamedWorkload, ...]] = (
        NamedWorkload("image", "one image, as large as the configuration has it", {}, default=True),
    )
    resamples: ClassVar[bool] = True
    """Whether the class must be told to fit its positions to an image of another size."""

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return VISION_SYMBOLS

    def usual(self, name: str) -> Workload:
        """One image, as large as the processor makes it, or as the configuration has it."""
        images = self.stored.images
        if images is None:
            return self._sized(Workload(name, 0, 0), self.config.image)
        return self._sized(Workload(name, 0, 0), images.side, {SIZE_FROM: images.where})

    def _sized(self, workload: Workload, side: int, more: Mapping[str, str] | None = None) -> Workload:
        return replace(workload, inputs={SIZE: side, **(more or {})}, what=f"images of {side} x {side}")

    def with_own(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """The workload with images of another size."""
        side = given.pop(SIZE, None)
        return workload if side is None else self._sized(workload, side)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """A batch out of range, or an image that has no patch."""
        found, side = common.batch_problems(workload), side_of(workload)
        if not self.config.patch <= side <= _LARGEST:
            expected = f"{self.config.patch} (a patch) to {_LARGEST}"
            found.append(BadInput("the image is out of range", where="--image-size", expected=expected, got=side))
        return found

    def values(self, workload: Workload) -> dict[str, int]:
        """Images, bytes of an element, pixels and patches along a side."""
        side = side_of(workload)
        return {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype], "H": side, "G": side // self.config.patch}

    def resampled(self, workload: Workload) -> bool:
        """Whether the table of positions has another grid than the images."""
        return side_of(workload) // self.config.patch != self.config.grid

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """That positions shall be fitted, where the class must be told."""
        other = side_of(workload) != self.config.image
        return {"interpolate_pos_encoding": True} if self.resamples and other else {}

    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """The images, [B, channels, H, H]."""
        side = side_of(workload)
        return {"pixel_values": TensorSpec((workload.batch, self.config.channels, side, side), workload.dtype)}

    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Some images of the same size; their number is a symbol."""
        return self.inputs(replace(workload, batch=3)), (SymbolicSize(("pixel_values",), 0, "B"),)

    def domain(self) -> Domain:
        """Images of the usual size and of another one; random sizes."""
        from costproof.models.encoding.domain import IMAGES, Domain

        usual, side = self.usual("image"), self.config.image
        eager = replace(usual, name="image, eager", dtype="float32", attention="eager")
        larger = self._sized(replace(usual, name="larger image"), side + self.config.patch)
        return Domain((usual, eager, larger), IMAGES, (side, side + self.config.patch))

    @classmethod
    def drawn_sizes(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """The fields that every encoder of images has."""
        from costproof.models.encoding.domain import some_layers

        return {
            **some_layers(p, rng),
            "hidden": p["vision_heads"] * p["vision_head_dim"],
            "intermediate": p["vision_intermediate"],
            "heads": p["vision_heads"],
            "image": p["vision_grid"] * p["vision_patch"],
            "patch": p["vision_patch"],
            "channels": p["vision_channels"],
        }

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """The images of a draw, some with pixels that no patch has."""
        return self._sized(workload, p["G"] * p["vision_patch"] + p["rest"])

    def has(self) -> dict[str, bool]:
        """Of the things that are not numbers in a formula, whether the configuration has them."""
        return {"another activation than GELU": self.config.activation != "gelu"}


def side_of(workload: Workload) -> int:
    """Side of the images of a run, in pixels."""
    side = workload.inputs[SIZE]
    assert not isinstance(side, str | tuple)
    return side
