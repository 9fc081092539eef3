"""Define configurations that page models share: SAM, the decoder, and how native files are read and checked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from random import Random
from typing import Any, ClassVar, Final, Self, cast

from costproof.configs.config import NativeConfig, check_padding
from costproof.configs.reader import Section, renamed, shown
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import BatchRow

CHANNELS: Final = 3
"""Number of channels of an RGB page, which the vendor's processor and both patch embeddings require."""


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
"""Keys in the native file of the decoder's fields, by field."""


GENERAL_KEYS: Final = {
    "_name_or_path": "names the checkpoint",
    "architectures": "names a class",
    "auto_map": "names the files of the remote code",
    "torch_dtype": "the workload decides the dtype",
    "transformers_version": "says what wrote the file",
}
"""Keys of any section that no formula needs, with the reason."""
DECODER_KEYS: Final = {
    "attention_dropout": "dropout does nothing in inference",
    "bos_token_id": "which token begins a text costs nothing",
    "eos_token_id": "which token ends a text costs nothing",
    "initializer_range": "initial values cost nothing",
    "n_group": "greedy routing has no groups",
    "pad_token_id": "the prompts of a batch are equally long",
    "pretraining_tp": "how the checkpoint was trained",
    "topk_group": "greedy routing has no groups",
    "use_cache": "a run of a prefill and decode steps keeps the cache",
}
"""Keys of a decoder that no formula needs, with the reason."""
WAIVED: Final = {
    **GENERAL_KEYS,
    **{key: why for key, why in DECODER_KEYS.items() if key.endswith("_token_id")},
    "chunk_size_feed_forward": "the model's code never reads it",
    "dtype": "the workload decides the dtype",
    "id2label": "names of classes; the model has no classifier",
    "is_encoder_decoder": "the model is none, whatever this says",
    "label2id": "names of classes; the model has no classifier",
    "output_attentions": "what else a run returns; the run decides",
    "output_hidden_states": "what else a run returns; the run decides",
    "problem_type": "the model has no classifier",
    "return_dict": "how a run returns its result",
    "attention_dropout": "dropout does nothing in inference",
    "initializer_factor": "initial values cost nothing",
    "initializer_range": "initial values cost nothing",
    "layer_norm_eps": "the value of a constant costs nothing",
}
_TEXT_WAIVED: Final = {**WAIVED, **DECODER_KEYS, "output_router_logits": "what else a run returns; the run decides"}
UNKNOWN_ACTIVATION: Final = "only this activation is described by the formulas"


class EqualHeads:
    """Base class of configurations whose attention heads divide the width."""

    __slots__ = ()
    hidden: int
    heads: int

    @property
    def head_dim(self) -> int:
        """Return the width of an attention head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class SamConfig(EqualHeads):
    """Configuration of SAM ViT-B, a neck and two stride-2 convolutions (vendor: ``deepencoder.build_sam_vit_b``)."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    mlp: int = 3072
    image: int = 1024
    """Side in pixels of the view for which the position table was trained."""
    patch: int = 16
    window: int = 14
    global_layers: tuple[int, ...] = (2, 5, 8, 11)
    """Indices of the layers with attention over the whole view; other layers attend within windows."""
    neck: int = 256
    downsample: tuple[int, int] = (512, 1024)

    @property
    def channels(self) -> int:
        """Return the number of colour channels of a page image."""
        return CHANNELS

    @property
    def stride(self) -> int:
        """Return the pixels per feature along a side: the patch size times 2 for each of the two convolutions."""
        return self.patch * 4


@dataclass(frozen=True, slots=True)
class DrawnSam(SamConfig):
    """SAM configuration that no file can state, since it has any number of input channels."""

    colours: int = CHANNELS

    @property
    def channels(self) -> int:
        """Return the drawn number of channels."""
        return self.colours

    @classmethod
    def of(cls, p: Mapping[str, int], rng: Random, layers: int, width: int) -> Self:
        """Return a SAM configuration with the drawn sizes ``p`` and a random choice of layers with global attention.

        Args:
            p: values of the drawn parameters.
            width: features of the last convolution.
        """
        return cls(
            hidden=p["sam_heads"] * p["sam_head_dim"],
            layers=layers,
            heads=p["sam_heads"],
            mlp=p["sam_mlp"],
            image=p["sam_image_patches"] * p["sam_patch"],
            patch=p["sam_patch"],
            window=p["sam_window"],
            global_layers=tuple(i for i in range(layers) if rng.random() < 0.5),
            neck=p["sam_out"],
            downsample=(p["sam_down1"], width),
            colours=p["in_channels"],
        )


@dataclass(frozen=True, slots=True)
class PageDecoderConfig(EqualHeads):
    """Configuration of a decoder with multi-head attention, dense first layers, and experts in the other layers."""

    hidden: int = 1280
    layers: int = 12
    dense_layers: int = 1
    heads: int = 10
    kv_heads: int = 10
    intermediate: int = 6848
    """Inner width of the gated MLP in the dense layers."""
    experts: int = 64
    topk: int = 6
    moe_intermediate: int = 896
    shared_experts: int = 2
    vocab: int = 129_280
    max_positions: int = 8192
    sliding_window: int | None = None
    """Number of decode steps that stay in the cache; ``None`` if all stay, as in the vendor's code."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    routed_scaling_factor: float = 1.0

    one_mask: ClassVar[bool] = False
    tied: ClassVar[bool] = False

    @property
    def top_k(self) -> int:
        """Return the number of routed experts that process each token."""
        return self.topk

    @property
    def shared(self) -> int:
        """Return the number of experts that process every token (shared experts)."""
        return self.shared_experts

    @property
    def expert_width(self) -> int:
        """Return the inner width of a routed expert."""
        return self.moe_intermediate

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has a mixture of experts, layer by layer."""
        return tuple(i >= self.dense_layers for i in range(self.layers))

    def windows(self) -> tuple[int, ...]:
        """Return no windows, since runs that exceed the configured window are refused."""
        return ()

    def saves_by_absorbing(self, row: BatchRow) -> bool:
        """Return ``False``: attention is not latent."""
        return False


def drawn_decoder(p: Mapping[str, int], rng: Random, layers: int) -> dict[str, Any]:
    """Return the drawn fields of a decoder, except sizes that depend on the kernel of its experts."""
    return {
        "layers": layers,
        "dense_layers": rng.randint(0, layers),
        "heads": p["text_kv_heads"] * p["text_groups"],
        "kv_heads": p["text_kv_heads"],
        "intermediate": p["text_intermediate"],
        "experts": p["text_experts"],
        "topk": p["text_topk"],
        "shared_experts": p["text_shared"],
        "vocab": p["text_vocab"],
    }


_SAM_SIZES: Final = ("hidden", "heads", "head_dim", "mlp", "layers", "window", "patch", "image")
_TEXT_SIZES: Final = ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "layers", "experts", "topk", "vocab")
"""Sizes whose symbols have the same name as the field: ``text_hidden``."""


class PageConfig(NativeConfig):
    """Configuration of SAM, a second tower that reads its features, and a decoder."""

    __slots__ = ()
    sam: SamConfig
    text: PageDecoderConfig
    image_token: int
    not_drawn: ClassVar[Mapping[str, str]] = {
        "image_token": "an id costs nothing",
        "text.sliding_window": "runs that would leave it are refused",
        **dict.fromkeys((f"text.{x}" for x in ("rms_norm_eps", "rope_theta", "routed_scaling_factor")), "a constant"),
    }
    second: ClassVar[str]
    """Name of the field with the second tower's configuration."""
    second_keys: ClassVar[Mapping[str, str]]
    """Keys in a native file of the second tower's fields, by field."""
    second_sizes: ClassVar[tuple[str, ...]]
    """Sizes of the second tower whose symbols have the same name as the field."""

    @property
    @abstractmethod
    def projector_in(self) -> int:
        """Return the input width of the projector."""

    @classmethod
    def paths(cls) -> dict[str, str]:
        """Return the JSON path of each field in a native file."""
        sam, second = "$.vision_config.sam_config", "$.vision_config.encoder_config"
        return {
            **{f"sam.{field}": f"{sam}.{key}" for field, key in SAM_KEYS.items()},
            "sam.global_layers": f"{sam}.global_attn_indexes",
            "sam.downsample": f"{sam}.downsample_channels",
            **{f"{cls.second}.{field}": f"{second}.{key}" for field, key in cls.second_keys.items()},
            **{f"text.{field}": f"$.text_config.{key}" for field, key in TEXT_KEYS.items()},
            "text.dense_layers": "$.text_config.mlp_layer_types",
            "image_token": "$.image_token_id",
        }

    def symbols(self) -> dict[str, int]:
        """Return the values of this configuration by symbol, such as 4096 for ``text_hidden``."""
        sam, text = self.sam, self.text
        named = {"sam": _SAM_SIZES, self.second: self.second_sizes, "text": _TEXT_SIZES}
        return {
            "in_channels": sam.channels,
            **{f"{part}_{name}": getattr(getattr(self, part), name) for part, names in named.items() for name in names},
            "sam_out": sam.neck,
            "sam_down1": sam.downsample[0],
            "sam_down2": sam.downsample[1],
            "text_dense": text.dense_layers,
            "text_moe": text.moe_intermediate,
            "text_shared": text.shared_experts,
        }

    def native(self) -> dict[str, Any]:
        sam, text = self.sam, self.text
        return {
            "vision_config": {
                "sam_config": {
                    **renamed(sam, SAM_KEYS),
                    "global_attn_indexes": list(sam.global_layers),
                    "downsample_channels": list(sam.downsample),
                    "num_channels": sam.channels,
                },
                "encoder_config": renamed(getattr(self, self.second), self.second_keys),
            },
            "text_config": {
                **renamed(text, TEXT_KEYS),
                "mlp_layer_types": ["dense"] * text.dense_layers + ["sparse"] * (text.layers - text.dense_layers),
                "rms_norm_eps": text.rms_norm_eps,
                "rope_parameters": {"rope_type": "default", "rope_theta": text.rope_theta},
                "routed_scaling_factor": text.routed_scaling_factor,
            },
            "image_token_id": self.image_token,
        }

    def in_file(self) -> Self:
        """Return the configuration with three-channel pages, since no file states another number."""
        whole: Any = self
        sam = SamConfig(**{f.name: getattr(self.sam, f.name) for f in fields(SamConfig)})
        found: Self = replace(whole, sam=sam)
        return found

    @classmethod
    def from_normalised(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration from the data that :meth:`normalised` returned, without checking it."""
        made: Any = cls
        kinds: dict[str, Any] = {
            "sam": SamConfig,
            cls.second: type(getattr(made(), cls.second)),
            "text": PageDecoderConfig,
        }
        parts = {
            name: kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data[name].items()})
            for name, kind in kinds.items()
        }
        found: Self = made(**{**data, **parts})
        return found

    def contradictions(self) -> list[CostproofError]:
        """Return an error for each pair of numbers that no model can have, with paths in a native file."""
        widths = cast("tuple[int, ...]", self.sam.downsample)  # a value that was set for the key has any length
        if len(widths) != 2:
            what, where = "there must be two stride-2 convolutions", self.paths()["sam.downsample"]
            return [BadInput(what, where=where, expected="two widths", got=list(widths))]
        return contradictions(self, self.paths(), self.second)

    @classmethod
    def read_parts(cls, top: Section, kind: str) -> tuple[Section, Section, Section]:
        """Check the top level of a native file, and return the sections of SAM, the second tower and the decoder.

        Args:
            kind: start of the model types of the parts, such as ``unlimited_ocr``.
        """
        top.fixed("tie_word_embeddings", False, why="an lm_head that shares the embedding table is not described")
        vision = top.child("vision_config", optional=True)
        vision.waive(WAIVED)
        vision.fixed("model_type", f"{kind}_vision", why="this vision tower is not the native one")
        towers = (vision.child(name, optional=True) for name in ("sam_config", "encoder_config"))
        return (*towers, top.child("text_config", optional=True))  # type: ignore[return-value]


def read_sam(section: Section, model_type: str, defaults: SamConfig) -> SamConfig:
    """Read the configuration of SAM from its section.

    Args:
        defaults: values of the class for omitted keys.
    """
    section.waive(WAIVED)
    section.fixed("model_type", model_type, why="this tower is not the native SAM")
    section.fixed("num_channels", CHANNELS, why="pages have three channels")
    section.fixed("hidden_act", "gelu", why=UNKNOWN_ACTIVATION)
    section.fixed("qkv_bias", True, why="attention without biases is not described by the formulas")
    section.fixed("use_abs_pos", True, why="SAM without its position table is not described by the formulas")
    section.fixed("use_rel_pos", True, why="SAM without relative positions is not described by the formulas")
    return SamConfig(
        **section.sizes(SAM_KEYS, defaults),
        global_layers=section.integers("global_attn_indexes", defaults.global_layers, least=0),
        downsample=read_downsample(section, defaults.downsample),
    )


def read_text(section: Section, model_type: str, defaults: PageDecoderConfig) -> PageDecoderConfig:
    """Read the configuration of a decoder with multi-head attention and mixtures of experts from its section.

    Args:
        defaults: values of the class for omitted keys.
    """
    section.waive(_TEXT_WAIVED)
    section.fixed("model_type", model_type, why="this decoder is not the native one")
    section.fixed("hidden_act", "silu", why=UNKNOWN_ACTIVATION)
    section.fixed("attention_bias", False, why="attention with biases is not described by the formulas")
    section.fixed("mlp_bias", False, why="an MLP with biases is not described by the formulas")
    section.fixed("tie_word_embeddings", False, why="an lm_head that shares the embedding table is not described")
    section.fixed("topk_method", "greedy", why="only greedy routing is described by the formulas")
    keys = dict(TEXT_KEYS)
    if "num_experts" in section.data:
        keys["experts"] = "num_experts"
    if section.take("num_key_value_heads", defaults.kv_heads) is None:
        del keys["kv_heads"]
    sizes = section.sizes(keys, defaults)
    check_padding(section, sizes["vocab"])
    hidden, heads, layers = sizes["hidden"], sizes["heads"], sizes["layers"]
    head_dim = section.take("head_dim", None)
    if head_dim is not None and hidden % heads == 0 and head_dim != hidden // heads:
        section.problem(
            "the native class sets the head width to width / heads, whatever the file says",
            "head_dim",
            expected=hidden // heads,
            got=shown(head_dim),
        )
    return PageDecoderConfig(
        **{"kv_heads": heads, **sizes},
        dense_layers=_dense_layers(section, layers),
        rms_norm_eps=section.number("rms_norm_eps", defaults.rms_norm_eps),
        rope_theta=_rope(section),
        routed_scaling_factor=section.number("routed_scaling_factor", defaults.routed_scaling_factor),
    )


def _dense_layers(section: Section, layers: int) -> int:
    """Read the number of dense layers from ``mlp_layer_types`` or the older ``first_k_dense_replace``."""
    first = section.integer("first_k_dense_replace", 1, least=0)
    kinds = section.take("mlp_layer_types", None)
    if kinds is None:
        return first
    if not isinstance(kinds, list) or any(k not in ("dense", "sparse") for k in kinds):
        section.problem("this must list a kind per layer", "mlp_layer_types", expected="'dense' or 'sparse' per layer")
        return 0
    dense = kinds.count("dense")
    if len(kinds) != layers:
        section.problem("this must list a kind per layer", "mlp_layer_types", expected=layers, got=len(kinds))
    elif kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
        section.problem(
            "dense layers after sparse ones are not described by the formulas",
            "mlp_layer_types",
            expected="all dense layers first",
        )
    elif "first_k_dense_replace" in section.data and first != dense:
        section.problem("this contradicts mlp_layer_types", "first_k_dense_replace", expected=dense, got=first)
    return dense


def _rope(section: Section) -> float:
    """Read the base of the rotary embedding; scaling is not supported."""
    defaults = PageDecoderConfig().rope_theta
    theta = section.number("rope_theta", defaults)
    section.fixed("rope_scaling", None, why="scaled rotary embedding is not described by the formulas")
    if section.take("rope_parameters", None) is None:
        return theta
    rope = section.child("rope_parameters")
    rope.fixed("rope_type", "default", why="scaled rotary embedding is not described by the formulas")
    return rope.number("rope_theta", theta)


def read_downsample(section: Section, *default: tuple[int, int]) -> tuple[int, int]:
    """Read the output widths of the two convolutions after SAM; without ``default`` the key is required."""
    widths = section.integers("downsample_channels", *default)
    if len(widths) == 2:
        return widths[0], widths[1]
    if isinstance(section.data.get("downsample_channels"), list):
        section.problem(
            "there must be two stride-2 convolutions", "downsample_channels", expected="two widths", got=list(widths)
        )
    return 1, 1


def contradictions(config: Any, paths: Mapping[str, str], second: str = "clip") -> list[CostproofError]:
    """Return an error for each pair of numbers that no model can have.

    Args:
        config: configuration of SAM, of a second tower that reads its features, and of the decoder.
        paths: field -> its JSON path in the file: ``sam.hidden`` -> ``$.vision_config.…``.
        second: field of the second tower.
    """
    found: list[CostproofError] = []

    def value(key: str) -> int:
        number: int = attrgetter(key)(config)
        return number

    def report(key: str, what: str, expected: object, got: object) -> None:
        found.append(BadInput(what, where=paths[key], expected=expected, got=got))

    def divides(part: str, whole: str, what: str) -> None:
        if value(whole) % value(part):
            report(part, what, f"a divisor of {value(whole)} ({paths[whole]})", value(part))

    def at_most(part: str, whole: str, what: str) -> None:
        if value(part) > value(whole):
            report(part, what, f"at most {value(whole)} ({paths[whole]})", value(part))

    sam, text, parts = config.sam, config.text, {"sam", second, "text"}
    for part in sorted(parts):
        divides(f"{part}.heads", f"{part}.hidden", "the attention heads do not divide the width")
    for part in sorted(p for p in parts if f"{p}.kv_heads" in paths):
        size = getattr(config, part)
        if size.hidden % size.heads == 0 and size.head_dim % 2:
            what = "rotary embedding needs an even head width"
            report(f"{part}.heads", what, "an even width / heads", size.head_dim)
        divides(f"{part}.kv_heads", f"{part}.heads", "the key/value heads do not divide the attention heads")
    for part in sorted(p for p in parts if f"{p}.image" in paths):
        image, patch = value(f"{part}.image"), value(f"{part}.patch")
        if image % patch:
            expected = f"a multiple of {patch} ({paths[f'{part}.patch']})"
            report(f"{part}.image", "the patches do not tile the image", expected, image)
    layers = list(sam.global_layers)
    outside = [i for i in layers if i >= sam.layers]
    if outside:
        report("sam.global_layers", "a global attention layer does not exist", f"0 to {sam.layers - 1}", outside)
    if len(set(layers)) != len(layers):
        report("sam.global_layers", "a global attention layer is named twice", "distinct layers", layers)
    width = value(f"{second}.hidden")
    if sam.downsample[1] != width:
        what = "SAM's features go into the next tower as they are, so their widths must agree"
        report("sam.downsample", what, f"{width} ({paths[f'{second}.hidden']}) as the last entry", sam.downsample[1])
    at_most("text.topk", "text.experts", "a token cannot pass more experts than there are")
    at_most("text.dense_layers", "text.layers", "more dense layers than layers")
    if config.image_token >= text.vocab:
        expected = f"less than {text.vocab} ({paths['text.vocab']})"
        report("image_token", "the image token is outside the vocabulary", expected, config.image_token)
    return found
