"""Reading the vendor's ``config.json`` (Hugging Face remote code, ``model_type`` deepseek_vl_v2).

The file nests the towers under ``vision_config.width`` and repeats the decoder's keys at top level
beside ``language_config``; ``DeepseekOCRConfig`` reads the top level, so both must agree. What the
vendor's code does not read from the file has the defaults of :mod:`.config`, which are those of the
code: ``deepencoder.build_sam_vit_b`` and ``vit_model_cfg``, ``image_token_id`` of ``modeling_deepseekocr``.
"""

from __future__ import annotations

from typing import Final

from costproof.models.config_reader import Section, shown
from costproof.models.families.deepseek_ocr.config import TEXT_KEYS, ClipConfig, OcrConfig, SamConfig, TextConfig
from costproof.models.families.deepseek_ocr.consistency import ANYWHERE, DECODER, downsample

SAM_MLP_RATIO: Final = 4
"""``deepencoder.build_sam_vit_b``: ``mlp_ratio = 4``."""

_CODE: Final = {"model_type": "names a class"}
_LANGUAGE: Final = {
    **ANYWHERE,
    **_CODE,
    **DECODER,
    "aux_loss_alpha": "a training loss",
    "ep_size": "one device holds all experts",
    "seq_aux": "a training loss",
}
_NO_MLA: Final = "multi-head latent attention is not described by the formulas of this target"
_SAM_KEYS: Final = {"hidden": "width", "layers": "layers", "heads": "heads"}
_CLIP_KEYS: Final = {**_SAM_KEYS, "image": "image_size", "patch": "patch_size"}
PATHS: Final = {
    **{f"sam.{field}": f"$.vision_config.width.sam_vit_b.{key}" for field, key in _SAM_KEYS.items()},
    "sam.global_layers": "$.vision_config.width.sam_vit_b.global_attn_indexes",
    "sam.downsample": "$.vision_config.width.sam_vit_b.downsample_channels",
    "sam.image": "$.vision_config.image_size",
    "sam.patch": "the vendor's code, patch 16",
    **{f"clip.{field}": f"$.vision_config.width.clip-l-14-224.{key}" for field, key in _CLIP_KEYS.items()},
    "text.dense_layers": "$.language_config.first_k_dense_replace",
    **{f"text.{field}": f"$.language_config.{key}" for field, key in TEXT_KEYS.items()},
    "image_token": "$.language_config.vocab_size",
}
"""Where each number stands in the file, or in the code."""


def read_vendor(top: Section) -> OcrConfig:
    """The configuration in the vendor's file; what is wrong with it becomes a problem of the section."""
    top.waive({**ANYWHERE, "candidate_resolutions": "the workload decides the sizes of the views"})
    top.fixed("model_type", "deepseek_vl_v2", "DeepseekOCR", why="this model type is not DeepSeek-OCR's")
    top.fixed("tile_tag", "2D", why="the formulas describe one newline token per row of features")
    top.fixed("global_view_pos", "head", why="the vendor's code knows only this position")
    sam, clip = _vision(top.child("vision_config"))
    config = OcrConfig(sam, clip, _language(top))
    _projector(top.child("projector_config"), config)
    return config


def _vision(vision: Section) -> tuple[SamConfig, ClipConfig]:
    unread = "the vendor's code never reads it: CLIP-L has ffn_hidden_size 4096 in vit_model_cfg"
    vision.waive({**_CODE, "mlp_ratio": unread})
    vision.fixed("model_name", "deeplip_b_l", why="this vision tower is not DeepSeek-OCR's")
    widths = vision.child("width")
    tower = widths.child("sam_vit_b")
    sizes = tower.sizes(_SAM_KEYS)
    sam = SamConfig(
        **sizes,
        mlp=SAM_MLP_RATIO * sizes["hidden"],
        image=vision.integer("image_size"),
        global_layers=tower.integers("global_attn_indexes", least=0),
        downsample=downsample(tower),
    )
    return sam, ClipConfig(**widths.child("clip-l-14-224").sizes(_CLIP_KEYS))


def _projector(section: Section, config: OcrConfig) -> None:
    none = "a linear projector has none"
    section.waive({**_CODE, "depth": none, "mlp_ratio": none, "downsample_ratio": none})
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
            expected=f"{config.text.hidden} ({PATHS['text.hidden']})",
            got=output,
        )


def _language(top: Section) -> TextConfig:
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
    text = TextConfig(
        **sizes,
        kv_heads=section.integer("num_key_value_heads", sizes["heads"]),
        dense_layers=section.integer("first_k_dense_replace", least=0),
        rms_norm_eps=section.number("rms_norm_eps", 1e-6),
        rope_theta=section.number("rope_theta", 10_000.0),
        routed_scaling_factor=section.number("routed_scaling_factor", 1.0),
    )
    _repeated(top, section)
    return text


def _repeated(top: Section, language: Section) -> None:
    """Consume the decoder's keys at top level, which must say the same as ``language_config``."""
    for key in sorted(language.known & set(top.data) - top.known):
        top.known.add(key)
        if key not in language.data:
            if not any(p.where == f"{language.path}.{key}" for p in language.problems):
                language.problem(
                    "a key stands at top level and not here", key, expected=shown(top.data[key]), got="nothing"
                )
        elif type(top.data[key]) is not type(language.data[key]) or top.data[key] != language.data[key]:
            top.problem(
                "this must repeat what language_config says",
                key,
                expected=f"{shown(language.data[key])} ($.language_config.{key})",
                got=shown(top.data[key]),
            )
