"""Define the base class of image encoders, which run on a batch of square images of one size."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

from costproof.analytic.symbols import VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import FLOAT_BYTES, SIZE_FROM, AttentionKind, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding import STAGE
from costproof.models.encoding.config import VisionConfig
from costproof.models.encoding.target import EncoderTarget, Tensors
from costproof.models.specs import SymbolicSize
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from costproof.analytic.layer_memory import LayerTape
    from costproof.analytic.memory_tape import MemoryTape, Piece
    from costproof.models.encoding.domain import Domain
    from costproof.models.encoding.formulas import VisionStyle

SIZE: Final = "image_size"
_LARGEST: Final = 16384
C = TypeVar("C", bound=VisionConfig)


@dataclass(frozen=True, slots=True)
class VisionTarget(EncoderTarget[C]):
    """Base class of targets: an image encoder of transformers in a given configuration."""

    input_settings: ClassVar[tuple[Setting, ...]] = (common.IMAGE_SIZE,)
    named: ClassVar[tuple[NamedWorkload, ...]] = (
        NamedWorkload("image", "one image, as large as the configuration has it", {}, default=True),
    )
    notation: ClassVar[dict[str, SymbolDoc]] = VISION_SYMBOLS
    attentions: ClassVar[tuple[AttentionKind, ...]] = get_args(AttentionKind)
    resamples: ClassVar[bool] = True
    """Whether the class interpolates positions only if ``interpolate_pos_encoding`` is passed."""

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset: one image of the processor's size if known, else of the configuration's."""
        images = self.stored.images
        if images is None:
            return self._sized(Workload(name, 0, 0), self.config.image)
        return self._sized(Workload(name, 0, 0), images.side, {SIZE_FROM: images.where})

    @abstractmethod
    def style(self) -> VisionStyle:
        """Return the differences of this encoder from others, up to the output of the last layer."""

    @abstractmethod
    def record_results(self, tape: LayerTape, hidden: Piece) -> tuple[Piece, ...]:
        """Record the operators after the last layer; return the tensors that the model returns, as tape entries.

        Args:
            hidden: the result of the last layer.
        """

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tape of the forward by (stage, invocation, part)."""
        from costproof.models.encoding.formulas import vision_tape

        made, hidden = vision_tape(self.config, self.style(), workload, grid=self.values(workload)["G"])
        made.tape.keep(*self.record_results(made, hidden))
        return {(STAGE, STAGE, STAGE): made.tape}

    def _sized(self, workload: Workload, side: int, more: Mapping[str, str] | None = None) -> Workload:
        return replace(workload, inputs={SIZE: side, **(more or {})}, what=f"images of {side} x {side}")

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Return the workload with images of the size in ``given``."""
        side = given.pop(SIZE, None)
        return workload if side is None else self._sized(workload, side)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for an invalid batch, for images smaller than a patch, and for missing attention kernels."""
        found, side = EncoderTarget.problems(self, workload), side_of(workload)
        if not self.config.patch <= side <= _LARGEST:
            expected = f"{self.config.patch} (a patch) to {_LARGEST}"
            found.append(BadInput("the image is out of range", where="--image-size", expected=expected, got=side))
        return found

    def values(self, workload: Workload) -> dict[str, int]:
        """Return the values of B (images), b (bytes per element), H and G (pixels and patches along a side)."""
        side = side_of(workload)
        return {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype], "H": side, "G": side // self.config.patch}

    def resampled(self, workload: Workload) -> bool:
        """Return whether the position table is resampled, because it was made for another patch grid."""
        return side_of(workload) // self.config.patch != self.config.grid

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """Return ``interpolate_pos_encoding=True`` if the class needs it for the image size of the run."""
        other = side_of(workload) != self.config.image
        return {"interpolate_pos_encoding": True} if self.resamples and other else {}

    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Return the shape [B, channels, H, H] and the dtype of the images, by argument name."""
        side = side_of(workload)
        return {"pixel_values": TensorSpec((workload.batch, self.config.channels, side, side), workload.dtype)}

    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Return images of the workload's size for an export, with a symbolic batch."""
        return self.inputs(replace(workload, batch=3)), (SymbolicSize(("pixel_values",), 0, "B"),)

    def domain(self) -> Domain:
        """Return the domain of a proof: images of the default size and of a larger one, and random sizes."""
        from costproof.models.encoding.domain import IMAGES, Domain

        default, side = self.default_workload("image"), self.config.image
        eager = replace(default, name="image, eager", dtype="float32", attention="eager")
        larger = self._sized(replace(default, name="larger image"), side + self.config.patch)
        return Domain((default, eager, larger), IMAGES, (side, side + self.config.patch))

    @classmethod
    def drawn_sizes(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Draw random values of the sizes that every encoder of images has, for a proof."""
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
        """Return the workload with images of randomly drawn size, which need not be a whole number of patches."""
        return self._sized(workload, p["G"] * p["vision_patch"] + p["rest"])

    def features(self) -> dict[str, bool]:
        """Return whether the configuration has each feature, for features that are not sizes in a formula."""
        return {"another activation than GELU": self.config.activation != "gelu"}


def side_of(workload: Workload) -> int:
    """Return the side of the images of a run, in pixels."""
    side = workload.inputs[SIZE]
    assert not isinstance(side, str | tuple)
    return side
