"""Qwen2.5-VL: Qwen2.5 with images of any size, encoded with windowed attention (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.costs import Size
from costproof.analytic.embedding import INT64
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.memory_tape import MemoryTape
from costproof.analytic.patches import AxialTable, PatchMerger, VolumePatches, WindowOrder, window_pairs
from costproof.analytic.rotary import RotaryAxes
from costproof.analytic.transformer import TransformerLayer
from costproof.configs.config import yes_or_no
from costproof.configs.reader import Section, shown
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, ROWS, SIZE_FROM, Invocation, TensorSpec, Workload
from costproof.models import settings as common
from costproof.models.decoding.config import DecoderConfig
from costproof.models.decoding.decoder import ids_on_meta, on_meta
from costproof.models.decoding.formulas import DecoderStyle, decoder_parts
from costproof.models.decoding.names import STAGES, decoder_names, mlp_names
from costproof.models.encoding.images import SIZE, side_of
from costproof.models.encoding.patches import PackedLengths, PatchConfig, axial_table, patch_attention, patch_names
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, read_part
from costproof.models.image_text.formulas import IMAGES, image_text_ledger
from costproof.models.image_text.layout import CALL, ModelLayout, StagePaths, images_of, with_images
from costproof.models.image_text.target import ImageTextTarget, random_input, tower_job
from costproof.models.specs import ExportJob
from costproof.models.target import Setting
from costproof.storage.scheme import CheckpointLayout

if TYPE_CHECKING:
    from torch import nn

    from costproof.claims.effects import Mistakes
    from costproof.models.encoding.domain import Domain

_TOWER: Final = "model.visual"
_USUAL, _LARGEST = 644, 16384
_OWN: Final = {
    "U": SymbolDoc("U", "tokens along a side of an image"),
    "vision_out": SymbolDoc("o_{v}", "width of the tower's tokens"),
    "vision_volume": SymbolDoc("v_{v}", "elements of a patch"),
    "vision_merge": SymbolDoc("k_{v}", "patches along a side of a token"),
    "vision_window": SymbolDoc("w_{v}", "tokens along a side of a window"),
}
_MERGER: Final = f"{_TOWER}.merger"
_NAMES: Final[Mapping[str, str]] = {
    **patch_names(_TOWER),
    **mlp_names("vision.layer.mlp", f"{_TOWER}.blocks.{{i}}.mlp"),
    "vision.merger": _MERGER,
    "vision.merger.mlp": f"{_MERGER}.mlp",
    "vision.merger.norm": f"{_MERGER}.ln_q",
    "vision.merger.up": f"{_MERGER}.mlp.0",
    "vision.merger.activation": f"{_MERGER}.mlp.1",
    "vision.merger.down": f"{_MERGER}.mlp.2",
    "model": "model",
    **decoder_names("model.language_model"),
}
_STYLE: Final = DecoderStyle(bias=("q", "k", "v"), table=RotaryAxes, positions_per_sequence=True)
_IDS: Final = ("video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id")
_TOP_KEYS: Final = (
    *_IDS, VISION, TEXT, "architectures", "model_type", "image_token_id", "tie_word_embeddings", "transformers_version",
    "torch_dtype", "dtype", "_name_or_path",
)  # fmt: skip
"""Keys of the whole model, in files that have the decoder's keys at the top level too."""
_SECTIONS: Final = "mrope_section"


@dataclass(frozen=True, slots=True)
class Qwen25VlVisionConfig(PatchConfig):
    """Sizes, the attention window, and the layers with full attention; by default the tower of Qwen2.5-VL-7B."""

    hidden: int = 1280
    intermediate: int = 3420
    layers: int = 32
    heads: int = 16
    activation: str = "silu"
    architecture: str = "Qwen2_5_VisionTransformerPretrainedModel"
    out: int = 3584
    patch: int = 14
    window: int = 112
    """Side of an attention window in pixels."""
    whole: tuple[int, ...] = (7, 15, 23, 31)
    """Indices of the layers with full attention, in which each patch attends to its whole image."""

    model_type: ClassVar[str] = "qwen2_5_vl_vision"
    not_null: ClassVar = ("initializer_range", "tokens_per_second")
    architectures: ClassVar = {"Qwen2_5_VisionTransformerPretrainedModel": False}
    keys: ClassVar = {**PatchConfig.keys, "window": "window_size"}
    class_defaults: ClassVar = {"hidden_size": 3584}
    unused_keys: ClassVar = {
        **dict.fromkeys(("rope_parameters", "rope_theta", "tokens_per_second"), "decides no cost"),
        **dict.fromkeys(("in_chans", "spatial_patch_size"), "the class does not read it"),
    }
    chosen_layers: ClassVar[tuple[str, str]] = ("whole", "fullatt_block_indexes")

    @property
    def units(self) -> int:
        """Return the side of an attention window in tokens."""
        return self.window // self.merge // self.patch

    def sizes(self) -> dict[str, int]:
        return PatchConfig.sizes(self) | {"merge": self.merge, "window": self.units}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read which layers attend to the whole image."""
        return {"whole": top.integers("fullatt_block_indexes", (7, 15, 23, 31), least=0)}

    def contradictions(self) -> list[CostproofError]:
        found = PatchConfig.contradictions(self)
        if self.units < 1:
            expected = f"at least {self.step}"
            found.append(
                BadInput(
                    "the attention window is smaller than one image token",
                    where="$.window_size",
                    expected=expected,
                    got=self.window,
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class Qwen25VlTextConfig(DecoderConfig):
    """Sizes, and the division of rotary frequencies among time, height and width; by default of Qwen2.5-VL-7B."""

    hidden: int = 3584
    intermediate: int = 18944
    layers: int = 28
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    max_positions: int = 128000
    sections: tuple[int, ...] = (16, 24, 24)
    """Numbers of rotary frequencies for positions in time, in height and in width."""

    model_type: ClassVar[str] = "qwen2_5_vl_text"
    architecture: ClassVar[str] = "Qwen2_5_VLTextModel"
    class_defaults: ClassVar[Mapping[str, Any]] = {"num_key_value_heads": 8, "max_position_embeddings": 32768}
    unused_keys: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("sliding_window", "max_window_layers"), "no layer has a window"),
        "image_token_id": "the whole has it",
    }

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Return true: the configuration class drops an unused attention window, so caches keep all tokens."""
        return True

    def native(self) -> dict[str, Any]:
        rope = {"rope_type": "default", "rope_theta": 1e6, _SECTIONS: list(self.sections)}
        return DecoderConfig.native(self) | {"rope_parameters": rope}

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read the sections of the rotary frequencies; check that no layer has a window."""
        why = "the class of transformers has windows in none of its kernels but FlashAttention"
        top.fixed("use_sliding_window", False, None, why=why, default=False)
        types = top.take("layer_types", None)
        if types is not None and set(map(str, types)) != {"full_attention"}:
            top.problem(why, "layer_types", expected="full_attention for every layer", got=shown(types))
        return {"sections": top.integers(_SECTIONS, (16, 24, 24))}

    def contradictions(self) -> list[CostproofError]:
        found = DecoderConfig.contradictions(self)
        if self.heads * self.head_dim != self.hidden:
            what, share = "the class sets the head width to width / heads", self.hidden // self.heads
            found.append(BadInput(what, where="$.head_dim", expected=share, got=self.head_dim))
        if 2 * sum(self.sections) != self.head_dim:
            what, expected = "rotary sections do not cover all frequencies", f"numbers that sum to {self.head_dim // 2}"
            found.append(BadInput(what, where=f"$.{_SECTIONS}", expected=expected, got=list(self.sections)))
        return found

    def __post_init__(self) -> None:
        """Convert ``sections`` to a tuple, since a certificate (JSON) gives a list."""
        object.__setattr__(self, "sections", tuple(self.sections))


@dataclass(frozen=True, slots=True)
class Qwen25VlConfig(ImageTextConfig):
    """Configuration of a vision tower, including the patch merger, and a decoder; by default Qwen2.5-VL-7B."""

    vision: Qwen25VlVisionConfig = field(default_factory=Qwen25VlVisionConfig)
    text: Qwen25VlTextConfig = field(default_factory=Qwen25VlTextConfig)
    image_token: int = 151655

    model_type: ClassVar[str] = "qwen2_5_vl"
    not_null: ClassVar = ("video_token_id", "vision_end_token_id", "vision_start_token_id")
    architecture: ClassVar[str] = "Qwen2_5_VLForConditionalGeneration"
    unused_keys: ClassVar = dict.fromkeys(_IDS, "token ids decide no cost")

    @classmethod
    def read_parts(cls, top: Section) -> Self:
        """Read the configurations of tower and decoder; published files have the decoder's keys at the top level."""
        nested = top.data.get(TEXT) is not None
        given = top.take(TEXT, {}) if nested else {k: v for k, v in top.data.items() if k not in _TOP_KEYS}
        top.known.update(() if nested else given)
        vision, of_vision = read_part(top, VISION, Qwen25VlVisionConfig, top.given(VISION, {}))
        text, of_text = read_part(top, TEXT if nested else "", Qwen25VlTextConfig, _rotated(given))
        tied = yes_or_no(top, "tie_word_embeddings", default=text.tied)
        token = top.integer("image_token_id", 151655, least=0)
        return cls(vision, replace(text, tied=tied or text.tied), token, waived=(*of_vision, *of_text))

    def contradictions(self) -> list[CostproofError]:
        found = ImageTextConfig.contradictions(self)
        if self.vision.out != self.text.hidden:
            where, what = "$.vision_config.out_hidden_size", "the tower's tokens are not as wide as the decoder's"
            found.append(BadInput(what, where=where, expected=self.text.hidden, got=self.vision.out))
        return found


def _rotated(given: Any) -> Any:
    """Convert the rotary type ``mrope`` of older files to the default type with sections."""
    if not isinstance(given, dict):
        return given
    found = dict(given)
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        if isinstance(rope, dict):
            rope = dict(rope)
            sections = rope.pop(_SECTIONS, None)
            kinds = {k: "default" if v == "mrope" else v for k, v in rope.items() if k in ("type", "rope_type")}
            found |= {key: {**rope, **kinds}, **({} if sections is None else {_SECTIONS: sections})}
    return found


def _layer(config: Qwen25VlConfig, patches: Size, *, eager: bool, seen: Size | None = None) -> TransformerLayer:
    attention = patch_attention(patches, eager=eager, seen=seen)
    mlp = Mlp(sym("vision_hidden"), sym("vision_intermediate"), config.vision.activation, gated=True)
    return TransformerLayer(sym("vision_hidden"), attention, mlp, norm="rms")


def _tower(config: Qwen25VlConfig, patches: Size, tokens: Size, *, eager: bool) -> tuple[ModulePart, ...]:
    """Return all module parts of the vision tower, from patches to merged tokens.

    Branches: the configuration states which layers have windows.
    """
    vision = config.vision
    width, head_dim, out, b = sym("vision_hidden"), sym("vision_head_dim"), sym("vision_out"), sym("b")
    unit, side = sym("vision_merge") ** 2, sym("U")
    seen = {True: side**4, False: window_pairs(side, sym("vision_window"))}

    def layer(i: int) -> tuple[ModulePart, ...]:
        found = _layer(config, patches, eager=eager, seen=IMAGES * unit**2 * seen[i in vision.whole])
        return in_layer(i, found.parts("vision.layer", call))

    call = StackCall(1, patches, b)
    return (
        ModulePart("vision", (WindowOrder(patches, width, head_dim, tokens, out, b),)),
        ModulePart("vision.patches"),
        ModulePart("vision.patches.projection", (VolumePatches(patches, sym("vision_volume"), width, b, bias=False),)),
        ModulePart("vision.rotary", (AxialTable(patches, head_dim),)),
        *(p for i in range(vision.layers) for p in layer(i)),
        *PatchMerger(width, unit, out, norm="rms").parts("vision.merger", patches, b),
        ModulePart("vision.merger.mlp"),
    )


@dataclass(frozen=True, slots=True)
class Qwen25Vl(ImageTextTarget[Qwen25VlConfig]):
    """Target: ``Qwen2_5_VLForConditionalGeneration`` with one configuration, on square images cut into patches.

    Source: Bai et al. 2025, Qwen2.5-VL Technical Report; ``Qwen2_5_VLForConditionalGeneration`` (transformers).
    """

    config: Qwen25VlConfig = field(default_factory=Qwen25VlConfig)
    name: str = "qwen2-5-vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(
        renamed=(("model.language_model", "model"), ("model.visual", "visual"))
    )
    stages: ClassVar[tuple[str, ...]] = ("vision", *STAGES)
    notation: ClassVar[dict[str, SymbolDoc]] = ImageTextTarget.notation | _OWN

    @staticmethod
    def mistakes() -> Mistakes:
        """Return the mistakes common in published numbers of its tower."""
        from costproof.models.mistakes import QWEN2_5_VL

        return QWEN2_5_VL

    @property
    def layout(self) -> ModelLayout:
        """Return the module paths of tower and decoder."""
        return ModelLayout(StagePaths({_TOWER: "vision"}), masks=("full_attention",), axes=3)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, for n images of U x U tokens of merge² patches."""
        tokens = IMAGES * sym("U") ** 2
        patches = tokens * sym("vision_merge") ** 2
        out, b = sym("vision_out"), sym("b")
        border = (patches * sym("vision_volume") + tokens * out) * b
        return image_text_ledger(
            {"vision": (_tower(self.config, patches, tokens, eager=workload.attention == "eager"), border)},
            decoder_parts(self.config.text, self.whole_prompt(workload), self.text_style(), self.plan),
            tokens,
            workload,
            _NAMES,
            returned=False,
            vocabulary=self.shares(workload).padded_vocabulary(),
            config=self.config.text,
        )

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        first, *others = ImageTextTarget.settings.__func__(cls)  # type: ignore[attr-defined]
        return (first, common.IMAGE_SIZE, *others)

    def least_layers(self) -> int:
        """Return the minimum number of tower layers that includes one with windows and one with full attention."""
        whole = [i in self.config.vision.whole for i in range(self.config.vision.layers)]
        return max(whole.index(kind) for kind in {*whole}) + 1

    def with_images_given(self, workload: Workload, given: dict[str, Any], found: list[CostproofError]) -> Workload:
        """Move the image settings from ``given`` to the workload; append errors to ``found``."""
        side = given.pop(SIZE, None)
        counted = ImageTextTarget.with_images_given(self, workload, given, found)
        count = images_of(counted)
        if side is not None and not count:
            found.append(
                BadInput("an image size needs at least one image", where="--image-size", got=side, fix="--images 1")
            )
            return counted
        step = self.config.vision.step
        limits, where = self.stored.pixels if side is None and count else None, {}
        if limits is not None:
            fitted = replace(limits, step=step).fit(-(-_USUAL // step) * step)
            side, where = fitted.side, {SIZE_FROM: fitted.where}
        side = -(-_USUAL // step) * step if side is None else side
        if side % step or not 0 < side <= _LARGEST:
            expected = f"a multiple of {step}, at most {_LARGEST}"
            what = "the side of the image is not a whole number of image tokens"
            found.append(BadInput(what, where="--image-size", expected=expected, got=side))
            return counted
        sized = with_images(counted, count, side, "the rows" if given.get(ROWS) is not None else "each prompt")
        return replace(sized, inputs={**sized.inputs, **where})

    def problems(self, workload: Workload) -> list[CostproofError]:
        """Return an error for each reason why the model cannot run a workload; images need text between them."""
        found, least = ImageTextTarget.problems(self, workload), images_of(workload)
        if not found and not workload.rows and workload.text_tokens < least:
            what = "there are fewer text tokens than images, and each image needs one after it"
            expected = f"at least {least}"
            found.append(BadInput(what, where="--text-tokens", expected=expected, got=workload.text_tokens))
        return found

    def _units(self, workload: Workload) -> int:
        """Return the side of an image in tokens (pixels / (patch x merge))."""
        return side_of(workload) // self.config.vision.step

    def image_tokens(self, workload: Workload) -> int:
        return self._units(workload) ** 2 if images_of(workload) else 0

    def _patches(self, workload: Workload) -> int:
        return self.image_tokens(workload) * self.config.vision.merge**2

    def tower_invocations(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """Return the invocation of the tower on ``count`` images."""
        values = {"n": count, "b": FLOAT_BYTES[workload.dtype], "U": self._units(workload)}
        taken = TensorSpec((count * self._patches(workload), self.config.vision.volume), workload.dtype)
        return (Invocation("vision", CALL, 1, values, (taken,)),)

    def _lengths(self, workload: Workload, count: int) -> tuple[PackedLengths, PackedLengths]:
        """Return the sequence lengths of attention, in patches: of each image, and of each window of each image."""
        side, window, merge = self._units(workload), self.config.vision.units, self.config.vision.merge
        pieces = [min(window, side - at) for at in range(0, side, window)]
        windows = [merge**2 * rows * columns for rows in pieces for columns in pieces]
        return PackedLengths((self._patches(workload),) * count), PackedLengths((*windows,) * count)

    def image_inputs(self, workload: Workload, count: int) -> dict[str, Any]:
        """Return patches [n U² merge², volume] on meta, and the indices and lengths that follow from image sizes."""
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
            "position_ids": ids_on_meta(3, workload.batch, self.length(workload)),
        }

    def random_image_inputs(self, model: nn.Module, workload: Workload, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return :meth:`image_inputs` with seeded random pixels, and with the indices that transformers computes."""
        import torch
        from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

        vision, count, ids = self.config.vision, workload.batch * images_of(workload), kwargs["input_ids"]
        shapes = self.image_inputs(workload, count)
        side = self._units(workload) * vision.merge
        grid = torch.tensor([[1, side, side]] * count)
        order, _ = get_vision_window_index(grid, vision.merge, vision.window, vision.patch)
        inner: Any = model.get_submodule(self.layout.around)
        kinds = (ids == self.config.image_token).int()
        positions, _ = inner.get_rope_index(ids, kinds, image_grid_thw=grid)
        return shapes | {
            "pixel_values": random_input("pixel_values", shapes["pixel_values"], self.options.seed, ids.device),
            "image_position_ids": get_vision_position_ids(grid, vision.merge).to(ids.device),
            "image_window_index": order.to(ids.device),
            "position_ids": positions.to(ids.device),
        }

    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """Return the export job of the tower at concrete sizes: the class splits attention by concrete lengths."""
        from costproof.models.image_text.modules import PatchTower

        images = workload.batch * images_of(workload) if count is None else count
        given = self.image_inputs(workload, images)
        module = PatchTower(model.get_submodule(_TOWER), *self._lengths(workload, images))
        places, order = given["image_position_ids"], given["image_window_index"]
        return (tower_job("vision", _TOWER, module, sized=False, x=given["pixel_values"], places=places, order=order),)

    returns_features: ClassVar[bool] = False
    text_behind: ClassVar[int] = 1

    def text_style(self) -> DecoderStyle:
        return _STYLE

    def tower_tapes(self, workload: Workload, count: int) -> dict[str, MemoryTape]:
        """Return the memory tape of the tower on ``count`` images.

        Layers of one kind hold the same memory; after the last one no operator reads cosines and sines.

        Source: ``Qwen2_5_VisionTransformerPretrainedModel.forward`` (transformers).
        """
        vision, eager = self.config.vision, workload.attention == "eager"
        width, head_dim, out, b = sym("vision_hidden"), sym("vision_head_dim"), sym("vision_out"), sym("b")
        unit, tokens = sym("vision_merge") ** 2, IMAGES * sym("U") ** 2
        patches = tokens * unit
        branches = CopyBranches(False, False, vision.heads == 1, shared=False, wide=workload.dtype == "float32")
        made = LayerTape(StackCall(1, patches, b), branches)
        tape = made.tape
        volumes, places = tape.give(patches * sym("vision_volume") * b), tape.give(2 * INT64 * patches)
        order = tape.give(INT64 * tokens)
        x = tape.make(patches * width * b, volumes)
        x = tape.make(patches * width * b, x, order)
        cosines, sines = axial_table(made, places, head_dim)
        table = tuple(tape.make(4 * patches * head_dim, piece, order) for piece in (cosines, sines))
        layer = _layer(self.config, patches, eager=eager)
        assert isinstance(layer.attention, AttentionBlock)
        # Queries and keys are released in the last sequence, so that two images are recorded, and others lumped.
        few = min(count, 2)
        lengths = [one.lengths[: few * len(one.lengths) // count] for one in self._lengths(workload, count)]
        before = (IMAGES - few) * sym("U") ** 2 * unit if count > few else 0
        kinds = [i in vision.whole for i in range(vision.layers)]
        for i, whole in enumerate(kinds):
            if whole not in kinds[i + 1 :] or whole not in kinds[:i]:
                seen = lengths[0 if whole else 1]
                x = made.layer(layer, x, partial(made.joined_attention, layer.attention, table, before, seen))
        back = tape.make(INT64 * tokens, order)
        tape.read(back, tape.make(INT64 * tokens, order))
        x = made.normed("rms", x, width)
        for elements in (patches * width, patches * width, tokens * out):
            x = tape.make(elements * b, x)
        tape.keep(tape.make(tokens * out * b, x, back))
        return {"vision": tape}

    def domain(self) -> Domain:
        from costproof.models.image_text.layout import domain_in_patches

        return domain_in_patches(self.workload(), self.config.vision.step)

    def drawn_run(self, p: Mapping[str, int], workload: Workload) -> Workload:
        """Return the workload with a randomly drawn prompt and images."""
        return with_images(self.drawn_text(p, workload), p["images"], p["U"] * self.config.vision.step)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Qwen25Vl, dict[str, bool]]:
        from costproof.models.decoding.domain import features, random_config

        half = p["text_head_halves"]
        cuts = sorted(rng.sample(range(1, half), 2))
        made = random_config(Qwen25VlTextConfig, {**p, "text_share": 2 * half}, rng)
        text = replace(
            made, max_positions=rng.randint(1024, 2048), sections=(cuts[0], cuts[1] - cuts[0], half - cuts[1])
        )
        sizes = Qwen25VlVisionConfig.drawn_sizes(p, rng)
        vision = Qwen25VlVisionConfig(
            **sizes,
            out=text.hidden,
            merge=p["vision_merge"],
            window=p["patch"] * p["vision_merge"] * p["vision_window"],
            whole=tuple(i for i in range(sizes["layers"]) if rng.random() < 0.5),
        )
        config = Qwen25VlConfig(vision, text, rng.randrange(text.vocab))
        kinds = {i in vision.whole for i in range(vision.layers)}
        return cls(config), {**features(text), "layers with windows": False in kinds, "layers without": True in kinds}


TARGET: Final = Qwen25Vl
