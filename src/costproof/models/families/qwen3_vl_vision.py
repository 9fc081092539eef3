"""Qwen3-VL's vision tower: encoder of image patches with a merger after some layers (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.costs import Size
from costproof.analytic.decoder_memory import last_two
from costproof.analytic.embedding import INT64, Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.memory_tape import MemoryTape
from costproof.analytic.patches import FLOAT32, AxialTable, InterpolatedPositions, PatchMerger, VolumePatches
from costproof.analytic.symbols import VISION_SYMBOLS
from costproof.analytic.transformer import TransformerLayer
from costproof.configs.reader import Section
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.encoding import STAGE
from costproof.models.encoding.formulas import branches_of, encoder_ledger
from costproof.models.encoding.images import SIZE, side_of
from costproof.models.encoding.patches import PackedLengths, PatchConfig, axial_table, patch_attention, patch_names
from costproof.models.encoding.target import EncoderTarget, Tensors
from costproof.models.specs import SymbolicSize
from costproof.models.target import NamedWorkload, Setting

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes
    from costproof.models.encoding.domain import Domain

_LAYER: Final = "blocks.{i}"
_MLP: Final = "vision.layer.mlp"
_MERGERS: Final = {"vision.merger": "merger", "vision.deep_merger": "deepstack_merger_list.{i}"}
_NAMES: Final = {
    **patch_names(),
    "vision.positions": "pos_embed",
    _MLP: f"{_LAYER}.mlp",
    f"{_MLP}.up": f"{_LAYER}.mlp.linear_fc1",
    f"{_MLP}.activation": f"{_LAYER}.mlp.act_fn",
    f"{_MLP}.down": f"{_LAYER}.mlp.linear_fc2",
    **_MERGERS,
    **{
        f"{role}.{part}": f"{path}.{name}"
        for role, path in _MERGERS.items()
        for part, name in (("norm", "norm"), ("up", "linear_fc1"), ("activation", "act_fn"), ("down", "linear_fc2"))
    },
}


@dataclass(frozen=True, slots=True)
class Qwen3VlVisionConfig(PatchConfig):
    """Sizes, and the layers that are followed by a merger; by default the tower of Qwen3-VL-8B."""

    hidden: int = 1152
    intermediate: int = 4304
    layers: int = 27
    heads: int = 16
    activation: str = "gelu_pytorch_tanh"
    architecture: str = "Qwen3VLVisionModel"
    out: int = 4096
    table: int = 2304
    """Number of rows of the position table."""
    deep: tuple[int, ...] = (8, 16, 24)
    """Indices of the layers whose output patches are merged as well (DeepStack)."""

    model_type: ClassVar[str] = "qwen3_vl_vision"
    not_null: ClassVar = ("initializer_range",)
    architectures: ClassVar = {"Qwen3VLVisionModel": False}
    keys: ClassVar = {**PatchConfig.keys, "table": "num_position_embeddings"}
    class_defaults: ClassVar = {"out_hidden_size": 3584}
    unused_keys: ClassVar = {"rope_parameters": "decides no cost", "rope_theta": "decides no cost"}
    chosen_layers: ClassVar[tuple[str, str]] = ("deep", "deepstack_visual_indexes")

    def sizes(self) -> dict[str, int]:
        return PatchConfig.sizes(self) | {"merged": self.merge**2, "positions": self.table}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read which layers are followed by a merger."""
        key = "deepstack_visual_indexes"
        return {"deep": top.integers(key, (8, 16, 24), least=0, most=max(0, read["layers"] - 1))}


_USUAL, _LARGEST, _TAPS = 512, 16384, 4
_OWN: Final = {
    "n": SymbolDoc("n", "patches of the image"),
    "vision_out": SymbolDoc("o", "width of the decoder that reads the tokens"),
    "vision_volume": SymbolDoc("v", "elements of a patch"),
    "vision_merged": SymbolDoc("k", "patches that make one token"),
}


@dataclass(frozen=True, slots=True)
class Qwen3VlVision(EncoderTarget[Qwen3VlVisionConfig]):
    """Target: ``Qwen3VLVisionModel`` with one configuration, on one image that is already cut into patches.

    Source: Bai et al. 2025, Qwen3-VL; ``Qwen3VLVisionModel`` (transformers).
    """

    config: Qwen3VlVisionConfig = field(default_factory=Qwen3VlVisionConfig)
    name: str = "qwen3-vl-vision"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl_vision",)
    batched: ClassVar[bool] = False
    input_settings: ClassVar[tuple[Setting, ...]] = (common.IMAGE_SIZE,)
    named: ClassVar[tuple[NamedWorkload, ...]] = (
        NamedWorkload("image", f"one image of {_USUAL} x {_USUAL}", {}, default=True),
    )
    notation: ClassVar[dict[str, SymbolDoc]] = VISION_SYMBOLS | _OWN

    @staticmethod
    def mistakes() -> Mistakes:
        """Return the mistakes common in published numbers of this tower."""
        from costproof.models.mistakes import QWEN3_VL_VISION

        return QWEN3_VL_VISION

    def formulas(self, workload: Workload) -> Ledger:
        config, eager = self.config, workload.attention == "eager"
        n, b, width, head_dim = (sym(x) for x in ("n", "b", "vision_hidden", "vision_head_dim"))
        call, merged, out = StackCall(1, n, b), sym("vision_merged"), sym("vision_out")
        layer = _layer(config, n, eager=eager).parts("vision.layer", call)
        deep = PatchMerger(width, merged, out, norm_last=True).parts("vision.deep_merger", n, b)
        parts = (
            ModulePart("vision", (InterpolatedPositions(n, width, b),)),
            ModulePart("vision.patches"),
            ModulePart("vision.patches.projection", (VolumePatches(n, sym("vision_volume"), width, b),)),
            ModulePart("vision.positions", (Embedding(4 * n, sym("vision_positions"), width, b),)),
            ModulePart("vision.rotary", (AxialTable(n, head_dim),)),
            *(part for i in range(config.layers) for part in in_layer(i, layer)),
            *PatchMerger(width, merged, out).parts("vision.merger", n, b),
            *(part for i in range(len(config.deep)) for part in in_layer(i, deep)),
        )
        # Inputs include four interpolation weights per patch; outputs include the last layer and all merged tokens.
        returned = n * width + (1 + len(config.deep)) * n / merged * out
        return encoder_ledger(parts, _NAMES, (n * sym("vision_volume") + returned) * b + 4 * n * FLOAT32)

    def memory(self, workload: Workload) -> Mapping[tuple[str, str, str], MemoryTape]:
        """Return the memory tape of the forward by (stage, invocation, part).

        A layer that two later layers of its kind follow holds less than these: they differ by mergers between them. Of
        the last layer alone nothing is behind that reads cosines and sines.

        Source: ``Qwen3VLVisionModel.forward`` (transformers).
        """
        config, patches, eager = self.config, self._patches(workload), workload.attention == "eager"
        n, b, width, merged, out = (sym(x) for x in ("n", "b", "vision_hidden", "vision_merged", "vision_out"))
        made = LayerTape(StackCall(1, n, b), branches_of(config, workload, tokens=patches, sequences=1))
        tape, elements = made.tape, n * width
        volumes, rows = tape.give(n * sym("vision_volume") * b), tape.give(_TAPS * n * INT64)
        weights, places = tape.give(_TAPS * n * FLOAT32), tape.give(2 * n * INT64)
        x = tape.make(elements * b, volumes)
        taps = tape.make(_TAPS * elements * b, rows)
        position = tape.make(elements * FLOAT32, tape.make(_TAPS * elements * FLOAT32, taps, weights))
        if workload.dtype != "float32":
            position = tape.make(elements * b, position)
        x = tape.make(elements * b, x, position)
        table = axial_table(made, places, sym("vision_head_dim"))
        layer, block = _layer(config, n, eager=eager), patch_attention(n, eager=eager)
        attend = partial(made.joined_attention, block, table, 0, (n,))
        kinds = [i in config.deep for i in range(config.layers)]
        last = last_two(kinds)
        deep = PatchMerger(width, merged, out, norm_last=True).parts("vision.deep_merger", n, b)
        for i, merges in enumerate(kinds):
            if i in last:
                x = made.layer(layer, x, attend)
                tape.keep(*[made.sequence(deep, x)] if merges else ())
            elif merges:
                tape.keep(tape.make(n / merged * out * b, x))
        tape.keep(x, made.sequence(PatchMerger(width, merged, out).parts("vision.merger", n, b), x))
        return {(STAGE, STAGE, STAGE): tape}

    def default_workload(self, name: str) -> Workload:
        """Return the workload of a preset: one image."""
        return self._sized(Workload(name, 0, 0), -(-_USUAL // self.config.step) * self.config.step)

    def _sized(self, workload: Workload, side: int) -> Workload:
        return replace(workload, inputs={SIZE: side}, what=f"an image of {side} x {side}")

    def with_input(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Move the image size from ``given`` to the workload; append errors to ``found``."""
        side = given.pop(SIZE, None)
        return workload if side is None else self._sized(workload, side)

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error if the image cannot be divided into whole tokens."""
        side = side_of(workload)
        if side % self.config.step == 0 and 0 < side <= _LARGEST:
            return []
        expected = f"a multiple of {self.config.step}, at most {_LARGEST}"
        return [
            BadInput(
                "the side of the image is not a whole number of image tokens",
                where="--image-size",
                expected=expected,
                got=side,
            )
        ]

    def values(self, workload: Workload) -> dict[str, int]:
        """Return the values of n (patches) and b (bytes per element)."""
        return {"n": self._patches(workload), "b": FLOAT_BYTES[workload.dtype]}

    def _patches(self, workload: Workload) -> int:
        return (side_of(workload) // self.config.patch) ** 2

    def arguments(self, workload: Workload) -> dict[str, Any]:
        """Return the sequence length as a number, which the class needs in addition to its input tensors."""
        return {"grid_thw": None, "cu_seqlens": PackedLengths((self._patches(workload),))}

    def takes(self, workload: Workload) -> Mapping[str, TensorSpec]:
        """Return the shapes of patches [n, volume], table rows and their weights [n, 4], and coordinates [n, 2]."""
        n = self._patches(workload)
        return {
            "hidden_states": TensorSpec((n, self.config.volume), workload.dtype),
            "interp_indices": TensorSpec((n, _TAPS), "int64"),
            "interp_weights": TensorSpec((n, _TAPS), "float32"),
            "position_ids": TensorSpec((n, 2), "int64"),
        }

    def example(self, workload: Workload) -> tuple[Tensors, tuple[SymbolicSize, ...]]:
        """Return the workload's inputs, none symbolic, since the class splits attention by concrete lengths."""
        return self.inputs(workload), ()

    def id_limit(self) -> int:
        """Return the number of rows of the position table, an exclusive upper bound of integer inputs."""
        return self.config.table

    def domain(self) -> Domain:
        """Return the domain of a proof: images of two sizes, and random configurations."""
        from costproof.models.encoding.domain import PATCHES, Domain

        usual = self.default_workload("image")
        eager = replace(usual, name="image, eager", dtype="float32", attention="eager")
        small = self._sized(replace(usual, name="one token"), self.config.step)
        return Domain((usual, eager, small), PATCHES, (self.config.step, side_of(usual)))

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Qwen3VlVision, dict[str, bool]]:
        sizes = Qwen3VlVisionConfig.drawn_sizes(p, rng)
        config = Qwen3VlVisionConfig(
            **sizes,
            out=p["vision_out"],
            merge=p["merge"],
            table=p["vision_positions"],
            deep=tuple(i for i in range(sizes["layers"]) if rng.random() < 0.5),
        )
        return cls(config), {"mergers after some layers": bool(config.deep)}

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with one image of randomly drawn size."""
        return replace(self._sized(workload, p["side"] * self.config.step), batch=1)


TARGET: Final = Qwen3VlVision


def _layer(config: Qwen3VlVisionConfig, patches: Size, *, eager: bool) -> TransformerLayer:
    width = sym("vision_hidden")
    mlp = Mlp(width, sym("vision_intermediate"), config.activation)
    return TransformerLayer(width, patch_attention(patches, eager=eager), mlp, norm="layer")
