"""Reading the vendor's ``config.json`` (Hugging Face remote code, ``model_type`` deepseek_vl_v2).

The file nests the towers under ``vision_config.width`` and repeats the decoder's keys at top level
beside ``language_config``; ``DeepseekOCRConfig`` reads the top level, so both must agree. Numbers
that the vendor's code does not read from the file are constants here.
"""

from __future__ import annotations

from typing import Any, Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.deepseek_ocr.config import TEXT_KEYS, ClipConfig, OcrConfig, SamConfig, TextConfig, downsample
from costproof.models.deepseek_ocr.consistency import contradictions
from costproof.models.section import Section, shown

SAM_PATCH: Final = 16
"""``deepencoder.build_sam_vit_b``: ``vit_patch_size = 16``."""
SAM_WINDOW: Final = 14
"""``deepencoder.build_sam_vit_b``: ``window_size = 14``."""
SAM_MLP_RATIO: Final = 4
"""``deepencoder.build_sam_vit_b``: ``mlp_ratio = 4``."""
SAM_NECK: Final = 256
"""``deepencoder.build_sam_vit_b``: ``prompt_embed_dim = 256``."""
CLIP_MLP: Final = 4096
"""``deepencoder.vit_model_cfg``: ``ffn_hidden_size = 4096``."""
IMAGE_TOKEN: Final = 128_815
"""``modeling_deepseekocr``: ``image_token_id = 128815``."""

_BOILERPLATE: Final = {
    "_name_or_path": "names the checkpoint",
    "architectures": "names a class",
    "auto_map": "names the files of the remote code",
    "torch_dtype": "the workload decides the dtype",
    "transformers_version": "says what wrote the file",
}
_TRAINING: Final = {
    "attention_dropout": "dropout does nothing in inference",
    "aux_loss_alpha": "a training loss",
    "initializer_range": "initial values cost nothing",
    "seq_aux": "a training loss",
    "pretraining_tp": "how the checkpoint was trained",
    "use_cache": "a run of a prefill and decode steps keeps the cache",
}
_TOKENS: Final = {
    "bos_token_id": "which token begins a text costs nothing",
    "eos_token_id": "which token ends a text costs nothing",
    "pad_token_id": "the prompts of a batch are equally long",
}
_NO_MLA: Final = "multi-head latent attention is not described by the formulas of this target"
_MLA_WIDTHS: Final = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_CLIP_KEYS: Final = {
    "hidden": "width",
    "layers": "layers",
    "heads": "heads",
    "image": "image_size",
    "patch": "patch_size",
}
_PATHS: Final = {
    "sam.hidden": "$.vision_config.width.sam_vit_b.width",
    "sam.heads": "$.vision_config.width.sam_vit_b.heads",
    "sam.layers": "$.vision_config.width.sam_vit_b.layers",
    "sam.global_layers": "$.vision_config.width.sam_vit_b.global_attn_indexes",
    "sam.downsample": "$.vision_config.width.sam_vit_b.downsample_channels",
    "sam.image": "$.vision_config.image_size",
    "sam.patch": "the vendor's code, patch 16",
    **{f"clip.{field}": f"$.vision_config.width.clip-l-14-224.{key}" for field, key in _CLIP_KEYS.items()},
    "text.dense_layers": "$.language_config.first_k_dense_replace",
    **{f"text.{field}": f"$.language_config.{key}" for field, key in TEXT_KEYS.items()},
    "image_token": "$.language_config.vocab_size",
}


def read_vendor(data: dict[str, Any], problems: list[CostproofError]) -> OcrConfig:
    """The configuration in the vendor's file; what is wrong with it is appended to ``problems``."""
    top = Section(data, "$", problems)
    top.waive_all(_BOILERPLATE)
    top.waive("candidate_resolutions", "the workload decides the sizes of the views")
    top.fixed("model_type", "deepseek_vl_v2", "DeepseekOCR", why="this model type is not DeepSeek-OCR's")
    top.fixed("tile_tag", "2D", why="the formulas describe one newline token per row of features")
    top.fixed("global_view_pos", "head", why="the vendor's code knows only this position")
    sections = [top]
    sam, clip = _vision(top, sections)
    text = _language(top, sections)
    config = OcrConfig(sam=sam, clip=clip, text=text, image_token=IMAGE_TOKEN)
    _projector(top, config, sections)
    waived: dict[str, str] = {}
    for section in sections:
        waived.update(section.finish())
    if not problems:
        problems.extend(contradictions(config, _PATHS))
    return OcrConfig(sam, clip, text, IMAGE_TOKEN, tuple(sorted(waived.items())))


def _vision(top: Section, sections: list[Section]) -> tuple[SamConfig, ClipConfig]:
    vision = top.child("vision_config")
    vision.waive("mlp_ratio", "the vendor's code never reads it: CLIP-L has ffn_hidden_size 4096 in vit_model_cfg")
    vision.waive("model_type", "names a class")
    vision.fixed("model_name", "deeplip_b_l", why="this vision tower is not DeepSeek-OCR's")
    widths = vision.child("width")
    tower = widths.child("sam_vit_b")
    hidden = tower.integer("width")
    sam = SamConfig(
        hidden=hidden,
        layers=tower.integer("layers", most=10_000),
        heads=tower.integer("heads"),
        mlp=SAM_MLP_RATIO * hidden,
        image=vision.integer("image_size"),
        patch=SAM_PATCH,
        window=SAM_WINDOW,
        global_layers=tower.integers("global_attn_indexes", least=0),
        neck=SAM_NECK,
        downsample=downsample(tower),
    )
    encoder = widths.child("clip-l-14-224")
    clip = ClipConfig(**encoder.sizes(_CLIP_KEYS), mlp=CLIP_MLP)
    sections += [vision, widths, tower, encoder]
    return sam, clip


def _projector(top: Section, config: OcrConfig, sections: list[Section]) -> None:
    section = top.child("projector_config")
    section.waive("model_type", "names a class")
    for key in ("depth", "mlp_ratio", "downsample_ratio"):
        section.waive(key, "a linear projector has none")
    section.fixed("projector_type", "linear", why="only a linear projector is described by the formulas")
    section.fixed("token_pooling", False, why="pooling of vision tokens is not described by the formulas")
    width = section.integer("input_dim")
    output = section.integer("n_embed")
    sections.append(section)
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
            expected=f"{config.text.hidden} ({_PATHS['text.hidden']})",
            got=output,
        )


def _language(top: Section, sections: list[Section]) -> TextConfig:
    section = top.child("language_config")
    section.waive_all(_BOILERPLATE)
    section.waive("model_type", "names a class")
    section.waive_all(_TRAINING)
    section.waive_all(_TOKENS)
    section.waive("ep_size", "one device holds all experts")
    section.waive("n_group", "greedy routing has no groups")
    section.waive("topk_group", "greedy routing has no groups")
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
    for key in _MLA_WIDTHS:
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
    sections.append(section)
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
            top.problems.append(
                BadInput(
                    "this must repeat what language_config says",
                    where=f"$.{key}",
                    expected=f"{shown(language.data[key])} ($.language_config.{key})",
                    got=shown(top.data[key]),
                )
            )
