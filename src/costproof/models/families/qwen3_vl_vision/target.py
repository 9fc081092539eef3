"""Qwen3-VL's vision tower as a target: transformers' own class on one square image."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.analytic.symbols import VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding.base import EncoderTarget, Tensors
from costproof.models.encoding.images import SIZE, side_of
from costproof.models.encoding.lengths import Lengths
from costproof.models.families.qwen3_vl_vision.config import Qwen3VlVisionConfig
from costproof.models.jobs import SymbolicSize
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes
    from costproof.models.encoding.domain import Domain

_USUAL, _LARGEST, _TAPS = 512, 16384, 4
_OWN: Final = {
    "n": SymbolDoc("n", "patches of the image"),
    "vision_out": SymbolDoc("o", "width of the decoder that reads the tokens"),
    "vision_volume": SymbolDoc("v", "elements of a patch"),
    "vision_merged": SymbolDoc("k", "patches that make one token"),
}


@dataclass(frozen=True, slots=True)
class Qwen3VlVision(EncoderTarget[Qwen3VlVisionConfig]):
    """``Qwen3VLVisionModel`` with one configuration, on one image that is cut and placed already."""

    config: Qwen3VlVisionConfig = field(default_factory=Qwen3VlVisionConfig)
    name: str = "qwen3-vl-vision"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl_vision",)
    batched: ClassVar[bool] = False
    own_settings: ClassVar[tuple[Setting, ...]] = (common.IMAGE_SIZE,)
    named: ClassVar[tuple[NamedWorkload, ...]] = (
        NamedWorkload("image", f"one image of {_USUAL} x {_USUAL}", {}, default=True),
    )

    @staticmethod
    def mistakes() -> Mistakes:
        """What wrong models of it do."""
        from costproof.models.mistakes.qwen3_vl_vision import MISTAKES

        return MISTAKES

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.qwen3_vl_vision.formulas import formulas

        return formulas(self.config, eager=workload.attention == "eager")

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return VISION_SYMBOLS | _OWN

    @property
    def step(self) -> int:
        """Pixels along a side of a token."""
        return self.config.patch * self.config.merge

    def usual(self, name: str) -> Workload:
        """One image."""
        return self._sized(Workload(name, 0, 0), -(-_USUAL // self.step) * self.step)

    def _sized(self, workload: Workload, side: int) -> Workload:
        return replace(workload, inputs={SIZE: side}, what=f"an image of {side} x {side}")

    def with_own(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """The workload with an image of another size."""
        side = given.pop(SIZE, None)
        return workload if side is None else self._sized(workload, side)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """An image that is not cut into whole tokens."""
        side = side_of(workload)
        if side % self.step == 0 and 0 < side <= _LARGEST:
            return []
        expected = f"a multiple of {self.step}, at most {_LARGEST}"
        return [BadInput("the image is not cut into whole tokens", where="--image-size", expected=expected, got=side)]

    def values(self, workload: Workload) -> dict[str, int]:
        """Patches, bytes of an element."""
        return {"n": self._patches(workload), "b": FLOAT_BYTES[workload.dtype]}

    def _patches(self, workload: Workload) -> int:
        return (side_of(workload) // self.config.patch) ** 2

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """One sequence of patches; what else the grid decides is prepared."""
        return {"grid_thw": None, "cu_seqlens": Lengths((self._patches(workload),))}

    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Patches [n, volume], and for each the rows of the table, their weights, and its row and column."""
        n = self._patches(workload)
        return {
            "hidden_states": TensorSpec((n, self.config.volume), workload.dtype),
            "interp_indices": TensorSpec((n, _TAPS), "int64"),
            "interp_weights": TensorSpec((n, _TAPS), "float32"),
            "position_ids": TensorSpec((n, 2), "int64"),
        }

    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """The image of the workload: the class splits attention by numbers, so that no size is a symbol."""
        return self.inputs(workload), ()

    def highest(self) -> int:
        """Indices are below the size of the table."""
        return self.config.table

    def domain(self) -> Domain:
        """Images of two sizes; random sizes."""
        from costproof.models.encoding.domain import PATCHES, Domain

        usual = self.usual("image")
        eager = replace(usual, name="image, eager", dtype="float32", attention="eager")
        small = self._sized(replace(usual, name="one token"), self.step)
        return Domain((usual, eager, small), PATCHES, (self.step, side_of(usual)))

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Qwen3VlVision, dict[str, bool]]:
        """A random small configuration for a proof."""
        from costproof.models.encoding.domain import some_layers

        more = some_layers(p, rng)
        config = Qwen3VlVisionConfig(
            **more,
            hidden=p["vision_heads"] * 4 * p["vision_head_quarters"],
            intermediate=p["vision_intermediate"],
            heads=p["vision_heads"],
            out=p["vision_out"],
            patch=p["patch"],
            frames=p["frames"],
            merge=p["merge"],
            channels=p["channels"],
            table=p["vision_positions"],
            deep=tuple(i for i in range(more["layers"]) if rng.random() < 0.5),
        )
        return cls(config), {"mergers behind some layers": bool(config.deep)}

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """An image of some tokens."""
        return replace(self._sized(workload, p["side"] * self.step), batch=1)


TARGET: Final = Qwen3VlVision
"""What the name ``qwen3-vl-vision`` stands for."""
