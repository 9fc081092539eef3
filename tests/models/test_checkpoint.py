"""The published checkpoint, tensor by tensor, against its own list and against the native model."""

from __future__ import annotations

import hashlib
from math import prod

from costproof.models.families.deepseek_ocr import checkpoint
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.run.operands import read_operand

CLIP_PATCH_EMBEDDING = 1024 * 3 * 14 * 14
"""602,112: the vendor's CLIP has a patch embedding, but is fed with SAM's features."""


def test_the_table_is_the_published_list() -> None:
    """SHA-256 of the lines ``name shape`` of the checkpoint's own index of parameters, sorted."""
    lines = "\n".join(f"{name} {list(shape)}" for name, shape in sorted(checkpoint.tensors().items()))
    assert (
        hashlib.sha256(lines.encode()).hexdigest() == "57fb4c022dd3ec49c78ee160aee5bbbdb29ece85b6abb27ccc5067d81869a727"
    )
    assert len(checkpoint.tensors()) == 2710
    assert sum(prod(s) for s in checkpoint.tensors().values()) == 3_336_106_240
    assert 2 * 3_336_106_240 == 6_672_212_480  # the size of its bfloat16 file


def test_our_own_weight_bytes_are_those_of_the_file() -> None:
    """All parameters in bfloat16, but for CLIP's patch embedding, which the native model has not."""
    counted = read_operand("deepseek-ocr").baseline.sources["analytic"].total("weight_bytes")
    assert (counted or 0) + 2 * CLIP_PATCH_EMBEDDING == 6_672_212_480


def native_shapes() -> dict[str, tuple[int, ...]]:
    """Shape of every native parameter as the checkpoint fills it, without what is never run."""
    shapes: dict[str, tuple[int, ...]] = {}
    slices: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for vendor, shape in checkpoint.tensors().items():
        found = checkpoint.placed(vendor)
        assert found is not None, vendor
        names, transform = found
        if transform == "same":
            shapes[names[0]] = shape
        elif transform == "split":
            assert shape[0] % len(names) == 0, vendor
            shapes.update({name: (shape[0] // len(names), *shape[1:]) for name in names})
        elif transform != "unused":
            slices.setdefault(names[0], []).append((transform, shape))
    for name, parts in slices.items():
        kinds = sorted({kind for kind, _ in parts})
        per_kind = [[shape for kind, shape in parts if kind == k] for k in kinds]
        assert len({shape for _, shape in parts}) == len({len(group) for group in per_kind}) == 1, name
        rows, columns = parts[0][1]
        shapes[name] = (len(per_kind[0]), rows * len(kinds), columns)
    return shapes


def test_every_native_parameter_is_filled_with_its_shape() -> None:
    import torch
    from transformers import UnlimitedOcrConfig, UnlimitedOcrForConditionalGeneration

    with torch.device("meta"):
        model = UnlimitedOcrForConditionalGeneration(UnlimitedOcrConfig(**OcrConfig().native()))
    assert native_shapes() == {name: tuple(p.shape) for name, p in model.named_parameters()}
    native = sum(p.numel() for p in model.parameters())
    assert native == 3_335_504_128
    assert sum(prod(s) for s in checkpoint.tensors().values()) - native == CLIP_PATCH_EMBEDDING


def test_totals_per_stage() -> None:
    ledger = checkpoint.checkpoint_ledger()
    assert ledger.stage_total("sam", "params") == 95_569_152
    assert ledger.stage_total("clip", "params") == 302_575_616 + CLIP_PATCH_EMBEDDING
    assert ledger.stage_total("projector", "params") == 2048 * 1280 + 1280
    # The decoder stands under both of its stages and counts once in the total.
    decoder = 2_769_255_680 + 129_280 * 1280 + 2 * 1280  # decoder with table, lm_head, newline and separator
    assert ledger.stage_total("prefill", "params") == decoder
    assert ledger.stage_total("decode", "params") == decoder
    assert ledger.total("params") == 3_336_106_240


def test_what_is_never_run_is_a_node_of_its_own() -> None:
    ledger = checkpoint.checkpoint_ledger()
    (node,) = [n for n in ledger.nodes if n.owner == checkpoint.NEVER_RUN]
    assert node.module == "model.vision_tower.vision_encoder.embeddings.patch_embedding"
    assert node.costs == {"params": CLIP_PATCH_EMBEDDING}
    assert node.evidence == ("model.vision_model.embeddings.patch_embedding.weight",)
    assert any("602112" in note for note in ledger.notes)


def test_transforms_by_name() -> None:
    qkv = checkpoint.placed("model.vision_model.transformer.layers.7.self_attn.qkv_proj.bias")
    base = "model.vision_tower.vision_encoder.encoder.layers.7.self_attn."
    assert qkv == ((base + "q_proj.bias", base + "k_proj.bias", base + "v_proj.bias"), "split")
    expert = checkpoint.placed("model.layers.3.mlp.experts.63.up_proj.weight")
    assert expert == (("model.language_model.layers.3.mlp.experts.gate_up_proj",), "stack-up")
    assert checkpoint.placed("model.view_seperator") == (("model.view_separator",), "same")


def test_of_another_tensor_nothing_is_known() -> None:
    assert checkpoint.placed("model.sam_model.blocks.0.norm3.weight") is None
    assert checkpoint.placed("weight") is None


def test_patterns_expand() -> None:
    assert list(checkpoint.expand("a.[0-1,3].b.[7].c")) == ["a.0.b.7.c", "a.1.b.7.c", "a.3.b.7.c"]
    assert list(checkpoint.expand("plain.name")) == ["plain.name"]
