"""Define the configuration of DeepSeek-OCR, by default the published one, its two file formats, and its workloads.

The vendor's ``config.json`` (``model_type`` deepseek_vl_v2) nests the towers under ``vision_config.width`` and repeats
the keys of the decoder at top level next to ``language_config``; ``DeepseekOCRConfig`` reads the top level, so both
must agree. Sizes that its code does not read from the file have the defaults of that code:
``deepencoder.build_sam_vit_b``, ``vit_model_cfg``, and ``image_token_id`` of ``modeling_deepseekocr``.

The file of transformers' native classes (``model_type`` unlimited_ocr) is complete, as from ``to_dict``, or has only
what differs from the defaults, as from ``save_pretrained``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self, cast

from costproof.configs.config import check_padding
from costproof.configs.reader import Section, shown
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import Workload
from costproof.models.pages.config import (
    CHANNELS,
    DECODER_KEYS,
    GENERAL_KEYS,
    TEXT_KEYS,
    UNKNOWN_ACTIVATION,
    WAIVED,
    EqualHeads,
    PageConfig,
    PageDecoderConfig,
    SamConfig,
    contradictions,
    read_downsample,
    read_sam,
    read_text,
)
from costproof.models.pages.page import Page
from costproof.models.pages.workload import PAGE_SETTINGS, PageModes, PagePreset, preset_workload
from costproof.models.target import Setting

CLIP_KEYS: Final = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
    "image": "image_size",
    "patch": "patch_size",
}
"""Keys in the native file of CLIP's fields, by field."""
NATIVE_POSITIONS: Final = 32_768
"""Default of ``UnlimitedOcrTextConfig.max_position_embeddings``."""
NATIVE_WINDOW: Final = 128
"""Default of ``UnlimitedOcrTextConfig.sliding_window``."""
SAM_MLP_RATIO: Final = 4
"""Ratio of SAM's MLP width to its width. Source: ``deepencoder.build_sam_vit_b``, ``mlp_ratio = 4``."""

_VENDOR_CODE: Final = {"model_type": "names a class"}
_LANGUAGE: Final = {
    **GENERAL_KEYS,
    **_VENDOR_CODE,
    **DECODER_KEYS,
    "aux_loss_alpha": "a training loss",
    "ep_size": "one device holds all experts",
    "seq_aux": "a training loss",
}
_VENDOR_ONLY: Final = frozenset({
    "model_type", "architectures", "auto_map", "lm_head", "rm_head", "use_mla", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim",
})  # fmt: skip
"""Keys of the vendor's decoder that select its classes; the reader accepts only one value of each."""
_NO_MLA: Final = "multi-head latent attention is not described by the formulas of this target"
_VENDOR_SAM_KEYS: Final = {"hidden": "width", "layers": "layers", "heads": "heads"}
_VENDOR_CLIP_KEYS: Final = {**_VENDOR_SAM_KEYS, "image": "image_size", "patch": "patch_size"}
_VENDOR_PATHS: Final = {
    **{f"sam.{field}": f"$.vision_config.width.sam_vit_b.{key}" for field, key in _VENDOR_SAM_KEYS.items()},
    "sam.global_layers": "$.vision_config.width.sam_vit_b.global_attn_indexes",
    "sam.downsample": "$.vision_config.width.sam_vit_b.downsample_channels",
    "sam.image": "$.vision_config.image_size",
    "sam.patch": "the vendor's code, patch 16",
    **{f"clip.{field}": f"$.vision_config.width.clip-l-14-224.{key}" for field, key in _VENDOR_CLIP_KEYS.items()},
    "text.dense_layers": "$.language_config.first_k_dense_replace",
    **{f"text.{field}": f"$.language_config.{key}" for field, key in TEXT_KEYS.items()},
    "image_token": "$.language_config.vocab_size",
}
"""JSON path of each field in the vendor's file, or a note that the code fixes its value."""


@dataclass(frozen=True, slots=True)
class ClipConfig(EqualHeads):
    """Configuration of CLIP-L on SAM's feature map instead of image patches (vendor: ``deepencoder.vit_model_cfg``)."""

    hidden: int = 1024
    layers: int = 24
    heads: int = 16
    mlp: int = 4096
    image: int = 224
    patch: int = 14

    @property
    def positions(self) -> int:
        """Return the number of rows of the position table: one for the class token and one for each patch."""
        return (self.image // self.patch) ** 2 + 1


@dataclass(frozen=True, slots=True)
class OcrConfig(PageConfig):
    """Configuration of the whole model, with a linear projector from the features of SAM and CLIP to the decoder."""

    sam: SamConfig = field(default_factory=SamConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    text: PageDecoderConfig = field(default_factory=PageDecoderConfig)
    image_token: int = 128_815
    waived: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Keys of the file that affect no cost, with the reason."""

    model_type: ClassVar[str] = "unlimited_ocr"
    architecture: ClassVar[str] = "UnlimitedOcrForConditionalGeneration"
    second: ClassVar[str] = "clip"
    second_keys: ClassVar[Mapping[str, str]] = CLIP_KEYS
    second_sizes: ClassVar[tuple[str, ...]] = ("hidden", "heads", "head_dim", "mlp", "layers", "positions")
    not_as_in_file: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("text_config.sliding_window", "text_config.layer_types"), "a window as long as the context is full attention"
    )

    @property
    def projector_in(self) -> int:
        return self.clip.hidden + self.sam.downsample[1]

    def shapes(self) -> dict[str, Any]:
        """Return the fields that decide parameter shapes.

        Configurations that agree in them can load the same checkpoint.
        """
        data = self.normalised()
        del data["image_token"]
        for key in ("topk", "max_positions", "sliding_window", "rms_norm_eps", "rope_theta", "routed_scaling_factor"):
            del data["text"][key]
        return data

    def config_hash(self) -> str:
        text = json.dumps(self.normalised(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def native(self) -> dict[str, Any]:
        """Return the keyword arguments of transformers' ``UnlimitedOcrConfig``.

        The reference window is as long as the context, which makes it full attention: no run that
        :func:`~costproof.models.pages.workload.page_run_problems` lets pass can exceed it.
        """
        found, text = PageConfig.native(self), self.text
        found["vision_config"]["encoder_config"]["num_channels"] = CHANNELS
        found["text_config"] |= {"head_dim": text.head_dim, "sliding_window": text.max_positions}
        return found

    @classmethod
    def for_class(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a vendor's file to the keys of the native class; return a native file unchanged."""
        if not _is_vendor(data):
            return dict(data)
        vision, text = data["vision_config"], data["language_config"]
        sam, clip = vision["width"]["sam_vit_b"], vision["width"]["clip-l-14-224"]
        return {
            "vision_config": {
                "sam_config": {
                    "hidden_size": sam["width"],
                    "num_hidden_layers": sam["layers"],
                    "num_attention_heads": sam["heads"],
                    "mlp_dim": 4 * sam["width"],
                    "image_size": vision["image_size"],
                    "global_attn_indexes": sam["global_attn_indexes"],
                    "downsample_channels": sam["downsample_channels"],
                },
                "encoder_config": {
                    "hidden_size": clip["width"],
                    "num_hidden_layers": clip["layers"],
                    "num_attention_heads": clip["heads"],
                    "image_size": clip["image_size"],
                    "patch_size": clip["patch_size"],
                },
            },
            "text_config": {key: value for key, value in text.items() if key not in _VENDOR_ONLY},
        }

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """Return the configuration in the parsed content of a vendor or native file."""
        top, vendor = Section(data, "$", problems), _is_vendor(data)
        config = _read_vendor(top) if vendor else _read_native(top)
        config = replace(config, waived=top.finish(strict=True))
        paths = _VENDOR_PATHS if vendor else cls.paths()
        problems += [] if problems else contradictions(config, paths)
        return cast("Self", config)


def _is_vendor(data: object) -> bool:
    """Return whether a file is the vendor's rather than a native one."""
    return isinstance(data, dict) and any(k in data for k in ("language_config", "projector_config"))


def parse_config(data: object, *, where: str) -> OcrConfig:
    """Parse the vendor's or the native configuration from JSON data; ``where`` names it in messages.

    Raises:
        Problems: every key that is missing, unknown, out of range, or contradicts another.
        BadInput: the data is not a JSON object, or neither kind of configuration.
    """
    if not isinstance(data, dict):
        raise BadInput("a configuration must be a JSON object", where=f"$ in {where}", expected="a JSON object")
    native = "text_config" in data or data.get("model_type") == "unlimited_ocr"
    if _is_vendor(data) == native:
        raise BadInput(
            "this is not a configuration of DeepSeek-OCR",
            where=f"$ in {where}",
            expected="vision_config with language_config and projector_config (the vendor's config.json), or "
            "model_type 'unlimited_ocr' with vision_config and text_config (transformers' native one)",
            got="keys " + (", ".join(sorted(str(k)[:40] for k in data)[:8]) or "none"),
        )
    return OcrConfig.of(data, Path(where))


def _read_native(top: Section) -> OcrConfig:
    """Read the configuration from a file of the native class; record errors in ``top`` instead of raising."""
    top.waive(WAIVED)
    top.fixed("model_type", "unlimited_ocr", why="this model type is not the native DeepSeek-OCR's")
    sam, clip, text = OcrConfig.read_parts(top, "unlimited_ocr")
    return OcrConfig(
        sam=read_sam(sam, "unlimited_ocr_sam_vision_model", SamConfig()),
        clip=_native_clip(clip),
        text=_native_text(text),
        image_token=top.integer("image_token_id", OcrConfig().image_token, least=0),
    )


def _native_clip(section: Section) -> ClipConfig:
    section.waive({**WAIVED, "num_channels": "this tower reads SAM's features, not pixels"})
    section.fixed("model_type", "unlimited_ocr_vision_encoder", why="this tower is not the native CLIP")
    section.fixed("hidden_act", "quick_gelu", why=UNKNOWN_ACTIVATION)
    return ClipConfig(**section.sizes(CLIP_KEYS, ClipConfig()))


def _native_text(section: Section) -> PageDecoderConfig:
    made = read_text(section, "unlimited_ocr_text", replace(PageDecoderConfig(), max_positions=NATIVE_POSITIONS))
    _layer_types(section, made.layers)
    return replace(made, sliding_window=section.integer("sliding_window", NATIVE_WINDOW))


def _layer_types(section: Section, layers: int) -> None:
    kinds = section.take("layer_types", None)
    if kinds is None:
        return
    known = ("reference_sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in known for k in kinds):
        section.problem(
            "this must list a kind per layer",
            "layer_types",
            expected=f"{layers} of {known[0]!r} or {known[1]!r}",
            got=f"a list of {len(kinds)}" if isinstance(kinds, list) else shown(kinds),
        )


def _read_vendor(top: Section) -> OcrConfig:
    """Read the configuration from the vendor's file; record errors in the section."""
    top.waive({**GENERAL_KEYS, "candidate_resolutions": "the workload decides the sizes of the views"})
    top.fixed("model_type", "deepseek_vl_v2", "DeepseekOCR", why="this model type is not DeepSeek-OCR's")
    top.fixed("tile_tag", "2D", why="the formulas describe one newline token per row of features")
    top.fixed("global_view_pos", "head", why="the vendor's code knows only this position")
    vision = top.child("vision_config")
    unread = "the vendor's code never reads it: CLIP-L has ffn_hidden_size 4096 in vit_model_cfg"
    vision.waive({**_VENDOR_CODE, "mlp_ratio": unread})
    vision.fixed("model_name", "deeplip_b_l", why="this vision tower is not DeepSeek-OCR's")
    widths = vision.child("width")
    tower = widths.child("sam_vit_b")
    sizes = tower.sizes(_VENDOR_SAM_KEYS)
    sam = SamConfig(
        **sizes,
        mlp=SAM_MLP_RATIO * sizes["hidden"],
        image=vision.integer("image_size"),
        global_layers=tower.integers("global_attn_indexes", least=0),
        downsample=read_downsample(tower),
    )
    clip = ClipConfig(**widths.child("clip-l-14-224").sizes(_VENDOR_CLIP_KEYS))
    config = OcrConfig(sam, clip, _vendor_language(top))
    _vendor_projector(top.child("projector_config"), config)
    return config


def _vendor_projector(section: Section, config: OcrConfig) -> None:
    none = "a linear projector has none"
    section.waive({**_VENDOR_CODE, "depth": none, "mlp_ratio": none, "downsample_ratio": none})
    section.fixed("projector_type", "linear", why="only a linear projector is described by the formulas")
    section.fixed("token_pooling", False, why="pooling of vision tokens is not described by the formulas")
    width, output = section.integer("input_dim"), section.integer("n_embed")
    if section.problems:
        return
    if width != config.projector_in:
        section.problem(
            "the projector reads the features of SAM and CLIP side by side",
            "input_dim",
            expected=f"{config.projector_in} = {config.sam.downsample[1]} + {config.clip.hidden}",
            got=width,
        )
    if output != config.text.hidden:
        section.problem(
            "the projector writes embeddings of the decoder",
            "n_embed",
            expected=f"{config.text.hidden} ({_VENDOR_PATHS['text.hidden']})",
            got=output,
        )


def _vendor_language(top: Section) -> PageDecoderConfig:
    section = top.child("language_config")
    section.waive(_LANGUAGE)
    section.fixed("topk_method", "greedy", why="only greedy routing is described by the formulas")
    section.fixed("scoring_func", "softmax", why="only softmax scores are described by the formulas")
    section.fixed("norm_topk_prob", False, why="normalising the chosen scores is not described by the formulas")
    section.fixed("moe_layer_freq", 1, why="expert layers that alternate are not described by the formulas")
    section.fixed("hidden_act", "silu", why="only SiLU is described by the formulas")
    section.fixed("attention_bias", False, why="attention with biases is not described by the formulas")
    section.fixed("rope_scaling", None, why="scaled rotary embedding is not described by the formulas")
    section.fixed("tie_word_embeddings", False, why="the vendor's lm_head has a table of its own")
    section.fixed("lm_head", True, why="the formulas describe a model with an lm_head")
    section.fixed("rm_head", False, why="the formulas describe a model with an lm_head")
    section.fixed("use_mla", False, why=_NO_MLA, default=True)
    for key in ("kv_lora_rank", "q_lora_rank"):
        section.fixed(key, None, why=_NO_MLA)
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        section.fixed(key, 0, None, why=_NO_MLA)
    sizes = section.sizes({field: key for field, key in TEXT_KEYS.items() if field != "kv_heads"})
    check_padding(section, sizes["vocab"])
    text = PageDecoderConfig(
        **sizes,
        kv_heads=section.integer("num_key_value_heads", sizes["heads"]),
        dense_layers=section.integer("first_k_dense_replace", least=0),
        rms_norm_eps=section.number("rms_norm_eps", 1e-6),
        rope_theta=section.number("rope_theta", 10_000.0),
        routed_scaling_factor=section.number("routed_scaling_factor", 1.0),
    )
    _check_repeated(top, section)
    return text


def _check_repeated(top: Section, language: Section) -> None:
    """Consume the decoder keys at the top level, which must equal those in ``language_config``."""
    for key in sorted(language.known & set(top.data) - top.known):
        top.known.add(key)
        if key not in language.data:
            if not any(p.where == f"{language.path}.{key}" for p in language.problems):
                language.problem(
                    "this key belongs to the top level, not here", key, expected=shown(top.data[key]), got="nothing"
                )
        elif type(top.data[key]) is not type(language.data[key]) or top.data[key] != language.data[key]:
            top.problem(
                "this must equal the value in language_config",
                key,
                expected=f"{shown(language.data[key])} ($.language_config.{key})",
                got=shown(top.data[key]),
            )


STAGES: Final = ("sam", "clip", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:3]
DEFAULT_PRESET: Final = "dsocr-standard-v1"
_GRID: Final = (2, 2)
_CUT: Final = "a view of {0} and 2 to 9 crops of {1} pixels; 2x2 unless {2}:3x2, --grid or --image says otherwise"

PRESETS: Final = {
    "tiny": PagePreset("one view of 512 pixels", Page(512, 640)),
    "small": PagePreset("one view of 640 pixels", Page(640, 640)),
    "base": PagePreset("one view of 1024 pixels", Page(1024, 640)),
    "large": PagePreset("one view of 1280 pixels", Page(1280, 640)),
    "gundam": PagePreset(_CUT.format(1024, 640, "gundam"), Page(1024, 640, _GRID)),
    "gundam-m": PagePreset(_CUT.format(1280, 1024, "gundam-m"), Page(1280, 1024, _GRID)),
    DEFAULT_PRESET: PagePreset(
        "a view of 1024 and 2x2 crops of 640 pixels, 512 text tokens", Page(1024, 640, _GRID), 512
    ),
    "text-only": PagePreset("512 text tokens, no page", None, 512),
}
DEFAULT_SIDES: Final = "64-2048"
SIDES: Final = Setting(
    "sides", f"Sides of a view in pixels to enumerate; {DEFAULT_SIDES} unless given.", "text", metavar="A-B"
)
"""Setting of a proof: the range of view sides to enumerate."""


def vision_tokens(page: Page | None, stride: int = 64) -> int:
    """Return the number of vision tokens per sequence.

    The global view of side s gives q = s/stride features per side, a newline token after each row,
    and one separator: q(q+1) + 1. A grid of w x h crops of q' features per side is laid out as one
    map, a newline after each of its rows: (h q')(w q' + 1). Source: ``UnlimitedOcrModel.get_image_features``
    and ``DeepseekOCRModel.forward`` of the vendor, which agree.

    Args:
        stride: pixels per feature along a side (:attr:`SamConfig.stride`).
    """
    if page is None:
        return 0
    side = page.base_size // stride
    tokens = side * (side + 1) + 1
    if page.grid is not None:
        columns, rows = page.grid
        crop = page.image_size // stride
        tokens += rows * crop * (columns * crop + 1)
    return tokens


MODES: Final = PageModes(
    PRESETS, DEFAULT_PRESET, PAGE_SETTINGS, vision_tokens, "base", lambda side, stride: (side // stride) ** 2
)


def make_workload(preset: str = DEFAULT_PRESET, *, config: PageConfig | None = None, **settings: Any) -> Workload:
    """Return a preset with changed settings; see :func:`~costproof.models.pages.workload.preset_workload`.

    Args:
        config: the model that will run it (default: the published DeepSeek-OCR).
    """
    return preset_workload(preset, config=config or OcrConfig(), modes=MODES, **settings)
