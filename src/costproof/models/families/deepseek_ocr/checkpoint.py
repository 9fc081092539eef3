"""Map the tensors of the published checkpoint to the native parameters that they fill.

``checkpoint_tensors.json`` lists names and shapes of all 2,710 tensors of deepseek-ai/DeepSeek-OCR in 67 patterns.
Tensors have the same names in both implementations if both have a module of the same role. The others are renamed,
split (CLIP's fused query/key/value projection), or stacked (the experts).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import product
from math import prod
from typing import Final

from costproof.ledger.node import CostNode, Ledger
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES, VENDOR_NAMES
from costproof.models.families.deepseek_ocr.native import NATIVE_STAGES
from costproof.weights.loading import Transform

_MODULES: Final = {VENDOR_NAMES[r]: path for r, path in NATIVE_NAMES.items() if r in VENDOR_NAMES}
"""Path of the native module with the same role, by path of the vendor's; ``{i}`` is the index of the layer."""
_LAYER: Final = re.compile(r"\.(?:layers|blocks)\.(\d+)(?=\.)")
_EXPERT: Final = r"model\.layers\.(\d+)\.mlp\.experts\.\d+\."
_EXPERTS_TO: Final = r"model.language_model.layers.\1.mlp.experts."
_CLIP_TO: Final = NATIVE_NAMES["clip"]

RULES: Final[Mapping[str, tuple[Transform, tuple[str, ...]]]] = {
    r"model\.vision_model\.embeddings\.patch_embedding\.weight": (
        "unused",
        (f"{_CLIP_TO}.embeddings.patch_embedding.weight",),
    ),
    r"model\.vision_model\.transformer\.layers\.(\d+)\.self_attn\.qkv_proj\.(weight|bias)": (
        "split",
        tuple(rf"{_CLIP_TO}.encoder.layers.\1.self_attn.{part}_proj.\2" for part in "qkv"),
    ),
    r"model\.projector\.layers\.(weight|bias)": ("same", (r"model.multi_modal_projector.\1",)),
    r"model\.image_newline": ("same", ("model.image_newline",)),
    # Misspelt by the vendor.
    r"model\.view_seperator": ("same", ("model.view_separator",)),
    _EXPERT + r"gate_proj\.weight": ("stack-gate", (_EXPERTS_TO + "gate_up_proj",)),
    _EXPERT + r"up_proj\.weight": ("stack-up", (_EXPERTS_TO + "gate_up_proj",)),
    _EXPERT + r"down_proj\.weight": ("stack", (_EXPERTS_TO + "down_proj",)),
}
"""Transform, and the native tensors that it fills, of vendor tensors whose names differ, by pattern of their names."""

NEVER_RUN: Final = "loaded, never run"
"""Owner of checkpoint nodes whose parameters no code reads."""


@lru_cache(maxsize=1)
def tensors() -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the checkpoint by name."""
    raw = (
        files("costproof.models.families.deepseek_ocr").joinpath("checkpoint_tensors.json").read_text(encoding="utf-8")
    )
    return {name: tuple(shape) for pattern, shape in json.loads(raw)["tensors"] for name in expand(pattern)}


def expand(pattern: str) -> Iterator[str]:
    """Yield all names of a pattern: ``a.[0-1,3].b`` stands for ``a.0.b``, ``a.1.b`` and ``a.3.b``."""
    pieces = re.split(r"\[([\d,-]+)\]", pattern)
    choices = [_runs(piece) if i % 2 else (piece,) for i, piece in enumerate(pieces)]
    return ("".join(parts) for parts in product(*choices))


def _runs(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found += [str(i) for i in range(int(first), int(last or first) + 1)]
    return tuple(found)


def placed(name: str) -> tuple[tuple[str, ...], Transform] | None:
    """Return the native parameters that one vendor tensor fills, and the transform; ``None`` if unknown."""
    # Native names with one tensor per expert are the vendor's names behind a longer prefix.
    name = name.replace("model.language_model.", "model.", 1)
    for pattern, (transform, targets) in RULES.items():
        if match := re.fullmatch(pattern, name):
            return tuple(match.expand(target) for target in targets), transform
    layer = _LAYER.search(name)
    number = layer[1] if layer else ""
    module, _, leaf = (name.replace(f".{number}.", ".{i}.", 1) if layer else name).rpartition(".")
    native = _MODULES.get(module)
    return ((f"{native.replace('{i}', number)}.{leaf}",), "same") if native else None


def checkpoint_ledger() -> Ledger:
    """Return a ledger of the parameters of the published checkpoint, by stage and path of the native module.

    Parameters that no code runs have separate nodes with the owner :data:`NEVER_RUN`. Modules of the decoder are in
    both ``prefill`` and ``decode``, as in every ledger.
    """
    params: Counter[str] = Counter()
    evidence: dict[str, dict[str, None]] = {}
    unused: set[str] = set()
    for vendor, shape in tensors().items():
        found = placed(vendor)
        assert found is not None, vendor
        names, transform = found
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
        for stage in NATIVE_STAGES.stages(module)
    )
    return Ledger(
        source="checkpoint",
        nodes=nodes,
        metrics=("params",),
        stages=("sam", "clip", "projector", "prefill", "decode"),
        notes=tuple(f"{NEVER_RUN}: {module}, {params[module]} parameters" for module in sorted(unused)),
    )
