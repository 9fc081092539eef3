"""Qwen2.5-VL as a target: transformers' own class with one configuration, on square images."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, SIZE_FROM, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding.decoder import ids_on_meta, on_meta
from costproof.models.decoding.names import STAGES
from costproof.models.encoding.images import SIZE, PackedLengths, side_of
from costproof.models.families.qwen2_5_vl.config import Qwen25VlConfig, Qwen25VlTextConfig, Qwen25VlVisionConfig
from costproof.models.image_text.base import ImageTextTarget
from costproof.models.image_text.exports import tower_job
from costproof.models.image_text.inputs import CALL, images_of, with_images
from costproof.models.image_text.places import Anatomy, Parts
from costproof.models.image_text.runs import drawn
from costproof.models.jobs import ExportJob
from costproof.models.target import Setting

if TYPE_CHECKING:
    from torch import nn

    from costproof.claims.effects import Mistakes
    from costproof.models.encoding.domain import Domain

TOWER: Final = "model.visual"
_USUAL, _LARGEST = 644, 16384
_OWN: Final = {
    "U": SymbolDoc("U", "tokens along a side of an image"),
    "vision_out": SymbolDoc("o_{v}", "width of the tower's tokens"),
    "vision_volume": SymbolDoc("v_{v}", "elements of a patch"),
    "vision_merge": SymbolDoc("k_{v}", "patches along a side of a token"),
    "vision_window": SymbolDoc("w_{v}", "tokens along a side of a window"),
}


@dataclass(frozen=True, slots=True)
class Qwen25Vl(ImageTextTarget[Qwen25VlConfig]):
    """``Qwen2_5_VLForConditionalGeneration`` with one configuration; images are cut into patches already."""

    config: Qwen25VlConfig = field(default_factory=Qwen25VlConfig)
    name: str = "qwen2-5-vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    stages: ClassVar[tuple[str, ...]] = ("vision", *STAGES)

    @staticmethod
    def mistakes() -> Mistakes:
        """What wrong models of its tower do."""
        from costproof.models.mistakes.qwen2_5_vl import MISTAKES

        return MISTAKES

    @property
    def anatomy(self) -> Anatomy:
        """Where the parts of the model sit."""
        return Anatomy(Parts({TOWER: "vision"}), masks=("full_attention",))

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.qwen2_5_vl.formulas import formulas

        return formulas(self.config, workload)

    def symbol_docs(self) -> dict[str, SymbolDoc]:
        """How the symbols of its formulas are typeset and what they mean."""
        return ImageTextTarget.symbol_docs(self) | _OWN

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What can be chosen about a run beside the preset."""
        first, *others = ImageTextTarget.settings.__func__(cls)  # type: ignore[attr-defined]
        return (first, common.IMAGE_SIZE, *others)

    def least_layers(self) -> int:
        """One of each kind, with windows and without, as far as it has both."""
        whole = [i in self.config.vision.whole for i in range(self.config.vision.layers)]
        return max(whole.index(kind) for kind in {*whole}) + 1

    def with_own(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """The workload with other images."""
        side = given.pop(SIZE, None)
        counted = ImageTextTarget.with_own(self, workload, given, found)
        count = images_of(counted)
        if side is not None and not count:
            found.append(BadInput("a run without images has no size of them", where="--image-size", got=side))
            return counted
        step = self.config.vision.step
        limits, where = self.stored.pixels if side is None and count else None, {}
        if limits is not None:
            fitted = replace(limits, step=step).fit(-(-_USUAL // step) * step)
            side, where = fitted.side, {SIZE_FROM: fitted.where}
        side = -(-_USUAL // step) * step if side is None else side
        if side % step or not 0 < side <= _LARGEST:
            expected = f"a multiple of {step}, at most {_LARGEST}"
            what = "the image is not cut into whole tokens"
            found.append(BadInput(what, where="--image-size", expected=expected, got=side))
            return counted
        sized = with_images(counted, count, side)
        return replace(sized, inputs={**sized.inputs, **where})

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Everything that keeps the model from running a workload; images are told apart by the text between them."""
        found, least = ImageTextTarget.problems(self, workload), images_of(workload)
        if not found and workload.text_tokens < least:
            what = "each image needs a token of text behind it"
            expected = f"at least {least}"
            found.append(BadInput(what, where="--text-tokens", expected=expected, got=workload.text_tokens))
        return found

    def _units(self, workload: Workload) -> int:
        """Tokens along a side of an image."""
        return side_of(workload) // self.config.vision.step

    def image_tokens(self, workload: Workload) -> int:
        """Places in a prompt that an image takes."""
        return self._units(workload) ** 2 if images_of(workload) else 0

    def _patches(self, workload: Workload) -> int:
        return self.image_tokens(workload) * self.config.vision.merge**2

    def seen(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """The tower on so many images."""
        values = {"n": count, "b": FLOAT_BYTES[workload.dtype], "U": self._units(workload)}
        taken = TensorSpec((count * self._patches(workload), self.config.vision.volume), workload.dtype)
        return (Invocation("vision", CALL, 1, values, (taken,)),)

    def _lengths(self, workload: Workload, count: int) -> tuple[PackedLengths, PackedLengths]:
        """Patches of each image, and of each window."""
        side, window, merge = self._units(workload), self.config.vision.units, self.config.vision.merge
        pieces = [min(window, side - at) for at in range(0, side, window)]
        windows = [merge**2 * rows * columns for rows in pieces for columns in pieces]
        return PackedLengths((self._patches(workload),) * count), PackedLengths((*windows,) * count)

    def pictures(self, workload: Workload, count: int) -> dict[str, Any]:
        """Patches [n U² merge², volume], and what the grid of the images decides, on meta or as numbers."""
        import torch

        images, windows = self._lengths(workload, count)
        n, tokens = count * self._patches(workload), count * self.image_tokens(workload)
        return {
            "pixel_values": on_meta(workload, n, self.config.vision.volume),
            "image_grid_thw": images,
            "image_cu_seqlens": images,
            "image_cu_window_seqlens": windows,
            "image_position_ids": ids_on_meta(n, 2),
            "image_window_index": torch.zeros(tokens, dtype=torch.long, device="meta"),
            "position_ids": torch.zeros(3, workload.batch, self.length(workload), dtype=torch.long, device="meta"),
        }

    def drawn_pictures(self, model: nn.Module, workload: Workload, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same with numbers: pixels are seeded, all else follows from the grid, as transformers works it out."""
        import torch
        from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

        vision, count, ids = self.config.vision, workload.batch * images_of(workload), kwargs["input_ids"]
        shapes = self.pictures(workload, count)
        side = self._units(workload) * vision.merge
        grid = torch.tensor([[1, side, side]] * count)
        order, _ = get_vision_window_index(grid, vision.merge, vision.window, vision.patch)
        inner: Any = model.get_submodule(self.anatomy.around)
        kinds = (ids == self.config.image_token).int()
        positions, _ = inner.get_rope_index(ids, kinds, image_grid_thw=grid)
        return shapes | {
            "pixel_values": drawn("pixel_values", shapes["pixel_values"], self.options.seed, ids.device),
            "image_position_ids": get_vision_position_ids(grid, vision.merge).to(ids.device),
            "image_window_index": order.to(ids.device),
            "position_ids": positions.to(ids.device),
        }

    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """The tower alone, at the sizes of the run: the class splits attention by numbers."""
        from costproof.models.families.qwen2_5_vl.modules import Patches

        images = workload.batch * images_of(workload) if count is None else count
        given = self.pictures(workload, images)
        module = Patches(model.get_submodule(TOWER), *self._lengths(workload, images))
        places, order = given["image_position_ids"], given["image_window_index"]
        return (tower_job("vision", TOWER, module, sized=False, x=given["pixel_values"], places=places, order=order),)

    def domain(self) -> Domain:
        """One image in a prompt, several, none; random sizes."""
        from costproof.models.image_text.domain import in_patches

        return in_patches(self.workload(), self.config.vision.step)

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """The prompt of a draw, with its images."""
        return with_images(self.drawn_text(p, workload), p["images"], p["U"] * self.config.vision.step)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Qwen25Vl, dict[str, bool]]:
        """A random small configuration for a proof."""
        from costproof.models.decoding.domain import features, random_config
        from costproof.models.encoding.domain import some_layers

        half = p["text_head_halves"]
        cuts = sorted(rng.sample(range(1, half), 2))
        made = random_config(Qwen25VlTextConfig, {**p, "text_share": 2 * half}, rng)
        text = replace(
            made, max_positions=rng.randint(1024, 2048), sections=(cuts[0], cuts[1] - cuts[0], half - cuts[1])
        )
        more = some_layers(p, rng)
        vision = Qwen25VlVisionConfig(
            **more,
            hidden=4 * p["vision_heads"] * p["vision_head_quarters"],
            intermediate=p["vision_intermediate"],
            heads=p["vision_heads"],
            out=text.hidden,
            patch=p["patch"],
            frames=p["frames"],
            merge=p["vision_merge"],
            channels=p["channels"],
            window=p["patch"] * p["vision_merge"] * p["vision_window"],
            whole=tuple(i for i in range(more["layers"]) if rng.random() < 0.5),
        )
        config = Qwen25VlConfig(vision, text, rng.randrange(text.vocab))
        kinds = {i in vision.whole for i in range(vision.layers)}
        return cls(config), {**features(text), "layers with windows": False in kinds, "layers without": True in kinds}


TARGET: Final = Qwen25Vl
"""What the name ``qwen2-5-vl`` stands for."""
