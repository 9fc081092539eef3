"""The published checkpoint: its tensors, and where each of them goes in the native model.

``checkpoint_tensors.json`` lists names and shapes of all 2,710 tensors of
deepseek-ai/DeepSeek-OCR in 67 patterns. The mapping follows the order in which the native class
lays out the same numbers: renamed, split (CLIP's fused query/key/value), or stacked (the experts).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import product
from math import prod
from typing import Final

from costproof.ledger.errors import Bug
from costproof.ledger.node import CostNode, Ledger
from costproof.models.deepseek_ocr.build import stage_of
from costproof.models.loading import Transform


@dataclass(frozen=True, slots=True)
class Rule:
    """Vendor names that match ``pattern`` become ``native``, several joined by ``|`` for ``split``."""

    pattern: str
    native: str
    transform: Transform = "same"


_SAM: Final = r"model\.sam_model\."
_CLIP: Final = r"model\.vision_model\."
_SAM_TO: Final = "model.vision_tower.sam_encoder."
_CLIP_TO: Final = "model.vision_tower.vision_encoder."
_TEXT_TO: Final = "model.language_model."
_EXPERT: Final = r"model\.layers\.(\d+)\.mlp\.experts\.\d+\."
_EXPERTS_TO: Final = _TEXT_TO + r"layers.\1.mlp.experts."

RULES: Final = (
    Rule(_SAM + "pos_embed", _SAM_TO + "pos_embed"),
    Rule(_SAM + r"patch_embed\.proj\.(weight|bias)", _SAM_TO + r"patch_embed.projection.\1"),
    Rule(_SAM + r"blocks\.(\d+)\.norm([12])\.(weight|bias)", _SAM_TO + r"layers.\1.layer_norm\2.\3"),
    Rule(_SAM + r"blocks\.(\d+)\.(attn|mlp)\.(.+)", _SAM_TO + r"layers.\1.\2.\3"),
    Rule(_SAM + r"neck\.0\.weight", _SAM_TO + "neck.conv1.weight"),
    Rule(_SAM + r"neck\.1\.(weight|bias)", _SAM_TO + r"neck.layer_norm1.\1"),
    Rule(_SAM + r"neck\.2\.weight", _SAM_TO + "neck.conv2.weight"),
    Rule(_SAM + r"neck\.3\.(weight|bias)", _SAM_TO + r"neck.layer_norm2.\1"),
    Rule(_SAM + r"net_2\.weight", _SAM_TO + "proj.conv1.weight"),
    Rule(_SAM + r"net_3\.weight", _SAM_TO + "proj.conv2.weight"),
    Rule(_CLIP + r"embeddings\.patch_embedding\.weight", _CLIP_TO + "embeddings.patch_embedding.weight", "unused"),
    Rule(_CLIP + r"embeddings\.(class_embedding|position_embedding\.weight)", _CLIP_TO + r"embeddings.\1"),
    Rule(_CLIP + r"pre_layrnorm\.(weight|bias)", _CLIP_TO + r"pre_layrnorm.\1"),
    Rule(
        _CLIP + r"transformer\.layers\.(\d+)\.self_attn\.qkv_proj\.(weight|bias)",
        "|".join(_CLIP_TO + rf"encoder.layers.\1.self_attn.{part}_proj.\2" for part in "qkv"),
        "split",
    ),
    Rule(
        _CLIP + r"transformer\.layers\.(\d+)\.(self_attn\.out_proj|mlp\.fc[12]|layer_norm[12])\.(weight|bias)",
        _CLIP_TO + r"encoder.layers.\1.\2.\3",
    ),
    Rule(r"model\.projector\.layers\.(weight|bias)", r"model.multi_modal_projector.\1"),
    Rule(r"model\.image_newline", "model.image_newline"),
    # The vendor spells it so.
    Rule(r"model\.view_seperator", "model.view_separator"),
    Rule(_EXPERT + r"gate_proj\.weight", _EXPERTS_TO + "gate_up_proj", "stack-gate"),
    Rule(_EXPERT + r"up_proj\.weight", _EXPERTS_TO + "gate_up_proj", "stack-up"),
    Rule(_EXPERT + r"down_proj\.weight", _EXPERTS_TO + "down_proj", "stack"),
    Rule(
        r"model\.(embed_tokens|norm|layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.gate"
        r"|mlp\.(?:shared_experts\.)?(?:gate|up|down)_proj|(?:input|post_attention)_layernorm))\.weight",
        _TEXT_TO + r"\1.weight",
    ),
    Rule(r"lm_head\.weight", "lm_head.weight"),
)

NEVER_RUN: Final = "loaded, never run"
"""Owner of checkpoint nodes whose parameters no code reads."""


@lru_cache(maxsize=1)
def tensors() -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of the checkpoint."""
    raw = files("costproof.models.deepseek_ocr").joinpath("checkpoint_tensors.json").read_text(encoding="utf-8")
    return {name: tuple(shape) for pattern, shape in json.loads(raw)["tensors"] for name in expand(pattern)}


def expand(pattern: str) -> Iterator[str]:
    """All names of a pattern: ``a.[0-1,3].b`` stands for ``a.0.b``, ``a.1.b`` and ``a.3.b``."""
    pieces = re.split(r"\[([\d,-]+)\]", pattern)
    choices = [_runs(piece) if i % 2 else (piece,) for i, piece in enumerate(pieces)]
    return ("".join(parts) for parts in product(*choices))


def _runs(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found += [str(i) for i in range(int(first), int(last or first) + 1)]
    return tuple(found)


def native_names(vendor: str) -> tuple[tuple[str, ...], Transform]:
    """The native parameters that a vendor tensor fills, and how.

    Raises:
        Bug: no rule, or more than one, matches the name.
    """
    hits = [(match, rule) for rule in RULES if (match := re.fullmatch(rule.pattern, vendor))]
    if len(hits) != 1:
        raise Bug("a checkpoint tensor must match one rule", where=vendor, got=f"{len(hits)} rules")
    match, rule = hits[0]
    return tuple(match.expand(part) for part in rule.native.split("|")), rule.transform


def placed(name: str) -> tuple[tuple[str, ...], Transform] | None:
    """:func:`native_names` of a tensor in a file; ``None`` for a name without a rule."""
    try:
        # Native names with one tensor per expert are the vendor's names behind a longer prefix.
        return native_names(name.replace("model.language_model.", "model.", 1))
    except Bug:
        return None


def checkpoint_ledger() -> Ledger:
    """Parameters of the checkpoint on the paths of the native modules, stage-wide.

    What no code runs is a node of its own with the owner :data:`NEVER_RUN`. The decoder's modules
    stand under ``prefill`` and under ``decode``, as in every ledger.
    """
    params: Counter[str] = Counter()
    evidence: dict[str, dict[str, None]] = {}
    unused: set[str] = set()
    for vendor, shape in tensors().items():
        names, transform = native_names(vendor)
        for name in names:
            module = name.rpartition(".")[0]
            params[module] += prod(shape) // len(names)
            evidence.setdefault(module, {})[re.sub(r"experts\.\d+\.", "experts.*.", vendor)] = None
            if transform == "unused":
                unused.add(module)
    nodes = tuple(
        CostNode(
            stage=stage,
            invocation="",
            module=module,
            kind="",
            costs={"params": count},
            owner=NEVER_RUN if module in unused else "checkpoint",
            evidence=tuple(evidence[module]),
        )
        for module, count in params.items()
        for stage in dict.fromkeys((stage_of(module), stage_of(module, "decode")))
    )
    return Ledger(
        source="checkpoint",
        nodes=nodes,
        metrics=("params",),
        stages=("sam", "clip", "projector", "prefill", "decode"),
        notes=tuple(f"{NEVER_RUN}: {module}, {params[module]} parameters" for module in sorted(unused)),
    )
