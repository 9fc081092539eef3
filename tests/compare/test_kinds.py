"""Names of operators across sources."""

from __future__ import annotations

import pytest

from costproof.compare.kinds import kind_of, same_operator


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("linear", "linear"),
        ("aten.linear.default", "linear"),
        ("aten.addmm", "linear"),
        ("router", "linear"),
        ("__matmul__", "matmul"),
        ("__rmatmul__", "matmul"),
        ("aten.bmm.default", "matmul"),
        ("aten._grouped_mm", "expert_gemm"),
        ("_grouped_mm", "expert_gemm"),
        ("transformers.grouped_mm_fallback", "expert_gemm"),
        ("transformers::grouped_mm_fallback", "expert_gemm"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "attention"),
        ("scaled_dot_product_attention", "attention"),
        ("conv2d", "conv"),
        ("aten.convolution", "conv"),
        # Outside the table an export and a run still mean the same.
        ("aten.lstm.input", "lstm"),
        ("lstm", "lstm"),
        ("aten._transformer_encoder_layer_fwd", "transformer_encoder_layer_fwd"),
        ("_transformer_encoder_layer_fwd", "transformer_encoder_layer_fwd"),
        ("aten::bilinear", "bilinear"),
        ("mylib.fused", "mylib.fused"),
        ("foo::bar", "foo::bar"),
        ("", ""),
    ],
)
def test_canonical(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_same_operator() -> None:
    assert same_operator("attention", "aten.bmm")
    assert same_operator("aten.mm", "linear")
    assert not same_operator("attention", "einsum")
    assert not same_operator("conv2d", "matmul")
