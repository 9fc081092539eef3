"""The configuration of DeepSeek-OCR: everything that decides a cost, and nothing else.

The defaults are the published checkpoint. Two kinds of file are read into it: the vendor's own
``config.json`` (:mod:`.vendor_config`) and that of transformers' native classes
(:mod:`.native_config`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.config import Config
from costproof.models.config_reader import renamed

CHANNELS: Final = 3
"""RGB pages: the vendor's processor and both patch embeddings take three channels."""


SAM_KEYS: Final = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "mlp_dim",
    "image": "image_size",
    "patch": "patch_size",
    "window": "window_size",
    "neck": "output_channels",
}
CLIP_KEYS: Final = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
    "image": "image_size",
    "patch": "patch_size",
}
TEXT_KEYS: Final = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "experts": "n_routed_experts",
    "topk": "num_experts_per_tok",
    "moe_intermediate": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
}
"""Sizes -> their keys in the native file."""


_SYMBOLS: Final = {
    "sam": ("hidden", "heads", "head_dim", "mlp", "layers", "window", "patch", "image"),
    "clip": ("hidden", "heads", "head_dim", "mlp", "layers", "positions"),
    "text": ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "layers", "experts", "topk", "vocab"),
}
"""Sizes that the formulas name as the configuration does: ``sam_hidden``."""


class _Heads:
    """Attention heads of equal width."""

    __slots__ = ()
    hidden: int
    heads: int

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class SamConfig(_Heads):
    """SAM ViT-B with a neck and two stride-2 convolutions (vendor: ``deepencoder.build_sam_vit_b``)."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    mlp: int = 3072
    image: int = 1024
    """Side in pixels for which the position table was trained."""
    patch: int = 16
    window: int = 14
    global_layers: tuple[int, ...] = (2, 5, 8, 11)
    """Layers with attention over the whole view; the others attend within windows."""
    neck: int = 256
    downsample: tuple[int, int] = (512, 1024)

    @property
    def channels(self) -> int:
        """Channels of a page."""
        return CHANNELS

    @property
    def stride(self) -> int:
        """Pixels per feature along a side: the patch, halved twice by the two convolutions."""
        return self.patch * 4


@dataclass(frozen=True, slots=True)
class ClipConfig(_Heads):
    """CLIP-L, fed with the features of SAM in place of patches (vendor: ``deepencoder.vit_model_cfg``)."""

    hidden: int = 1024
    layers: int = 24
    heads: int = 16
    mlp: int = 4096
    image: int = 224
    patch: int = 14

    @property
    def positions(self) -> int:
        """Rows of the position table: one for the class token, one for each patch."""
        return (self.image // self.patch) ** 2 + 1


@dataclass(frozen=True, slots=True)
class TextConfig(_Heads):
    """The decoder: multi-head attention, the first layers dense, the others mixtures of experts."""

    hidden: int = 1280
    layers: int = 12
    dense_layers: int = 1
    heads: int = 10
    kv_heads: int = 10
    intermediate: int = 6848
    """Width of the gated MLP in the dense layers."""
    experts: int = 64
    topk: int = 6
    moe_intermediate: int = 896
    shared_experts: int = 2
    vocab: int = 129_280
    max_positions: int = 8192
    sliding_window: int | None = None
    """Decode steps after which the oldest ones leave the cache; ``None``: all stay (the vendor's code)."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    routed_scaling_factor: float = 1.0


NOT_DRAWN: Final = {
    "image_token": "an id costs nothing",
    "text.sliding_window": "runs that would leave it are refused",
    **dict.fromkeys((f"text.{x}" for x in ("rms_norm_eps", "rope_theta", "routed_scaling_factor")), "a constant"),
}
"""Fields that no draw of a proof varies, with the reason."""


@dataclass(frozen=True, slots=True)
class OcrConfig(Config):
    """The whole model. The projector is a linear from SAM's and CLIP's features to the decoder's width."""

    sam: SamConfig = field(default_factory=SamConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    text: TextConfig = field(default_factory=TextConfig)
    image_token: int = 128_815
    waived: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Keys of the file that were read and not used, with the reason."""

    not_drawn: ClassVar = NOT_DRAWN

    @property
    def projector_in(self) -> int:
        """Features per vision token that the projector reads."""
        return self.clip.hidden + self.sam.downsample[1]

    def shapes(self) -> dict[str, Any]:
        """What decides the shapes of the parameters: two configurations with equal ones share a checkpoint."""
        data = self.normalised()
        del data["image_token"]
        for key in ("topk", "max_positions", "sliding_window", "rms_norm_eps", "rope_theta", "routed_scaling_factor"):
            del data["text"][key]
        return data

    def contradictions(self) -> list[CostproofError]:
        """Every pair of numbers that cannot stand together, at their places in a native file."""
        from costproof.models.families.deepseek_ocr.consistency import contradictions
        from costproof.models.families.deepseek_ocr.native_config import PATHS

        widths = cast("tuple[int, ...]", self.sam.downsample)  # what a key was set to has any length
        if len(widths) != 2:
            what, where = "there are two stride-2 convolutions", PATHS["sam.downsample"]
            return [BadInput(what, where=where, expected="two widths", got=list(widths))]
        return contradictions(self, PATHS)

    def config_hash(self) -> str:
        """First twelve hex digits of the SHA-256 of the normalised configuration."""
        text = json.dumps(self.normalised(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        sizes = {tower: getattr(self, tower) for tower in _SYMBOLS}
        return {
            "in_channels": self.sam.channels,
            **{f"{tower}_{name}": getattr(sizes[tower], name) for tower, names in _SYMBOLS.items() for name in names},
            "sam_out": self.sam.neck,
            "sam_down1": self.sam.downsample[0],
            "sam_down2": self.sam.downsample[1],
            "text_dense": self.text.dense_layers,
            "text_moe": self.text.moe_intermediate,
            "text_shared": self.text.shared_experts,
        }

    def native_kwargs(self) -> dict[str, Any]:
        """Keyword arguments for transformers' ``UnlimitedOcrConfig``.

        The reference window is as long as the context, which makes it full attention: no run that
        :func:`~costproof.models.families.deepseek_ocr.workloads.problems_of` lets pass can exceed it.
        """
        text = self.text
        return {
            "vision_config": {
                "sam_config": {
                    **renamed(self.sam, SAM_KEYS),
                    "global_attn_indexes": list(self.sam.global_layers),
                    "downsample_channels": list(self.sam.downsample),
                    "num_channels": self.sam.channels,
                },
                "encoder_config": {**renamed(self.clip, CLIP_KEYS), "num_channels": CHANNELS},
            },
            "text_config": {
                **renamed(text, TEXT_KEYS),
                "mlp_layer_types": ["dense"] * text.dense_layers + ["sparse"] * (text.layers - text.dense_layers),
                "head_dim": text.head_dim,
                "sliding_window": text.max_positions,
                "rms_norm_eps": text.rms_norm_eps,
                "rope_parameters": {"rope_type": "default", "rope_theta": text.rope_theta},
                "routed_scaling_factor": text.routed_scaling_factor,
            },
            "image_token_id": self.image_token,
        }


def from_normalised(data: dict[str, Any]) -> OcrConfig:
    """The configuration that :meth:`OcrConfig.normalised` wrote; it is trusted, not checked."""
    sam: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data["sam"].items()
    }
    return OcrConfig(
        sam=SamConfig(**sam),
        clip=ClipConfig(**data["clip"]),
        text=TextConfig(**data["text"]),
        image_token=data["image_token"],
    )
