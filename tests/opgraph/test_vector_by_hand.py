"""The hand values of vector work, and that there is one for every operator whose rule can give some."""

from __future__ import annotations

import importlib
import inspect
from typing import Final

import pytest

from costproof.opgraph.rules import registry
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import cost_of, rule_table, subject_of
from tests.oracles.vector_by_hand import Case, cases
from tests.support.opcalls import call, value

CASES: Final = list(cases())
FREE: Final = ("movement", "conv", "experts", "collectives")
"""Files of rules without a word of vector work."""
NONE: Final = {
    "matmul": "addmm addmv baddbmm _addmm_activation matmul mm bmm mv dot vdot inner _int_mm _scaled_mm linear rmatmul "
    "_weight_int4pack_mm _weight_int8pack_mm _sparse_addmm _sparse_mm _sparse_sparse_matmul hspmm sparse.mm sspaddmm "
    "addbmm bilinear linalg_multi_dot chain_matmul matrix_power linalg_matrix_power _pack_padded_sequence "
    "_pad_packed_sequence",
    "elementwise": "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift isin "
    "logical_and logical_or logical_xor logical_not poisson binomial _standard_gamma _sample_dirichlet",
    "lookup": "embedding index gather index_select take take_along_dim getitem masked_select nonzero nonzero_static "
    "argwhere as_strided_scatter diagonal_scatter index_copy index_fill masked_fill masked_scatter select_scatter "
    "slice_scatter setitem",
    "linalg": "fft_fftshift fft_ifftshift fft_fftfreq fft_rfftfreq hann_window hamming_window blackman_window "
    "bartlett_window",
    "resample": "affine_grid_generator upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    "attention": "flash_attn._flash_attn_backward flash_attn._flash_attn_varlen_backward flash_attn.bwd "
    "flash_attn.varlen_bwd flash_attn2.bwd flash_attn2.varlen_bwd flash_attn3.bwd flash_attn_3.bwd "
    "vllm_flash_attn3.bwd _vllm_fa3_C.bwd _cudnn_attention_backward _efficient_attention_backward "
    "_flash_attention_backward _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_fused_attention_overrideable_backward",
}
"""Operators of the other files that do none: products, picking and writing, draws, and what is not counted."""


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_vector_work_is_that_by_hand(case: Case) -> None:
    cost = cost_of(case.op)
    assert isinstance(cost, OpCost), cost
    assert cost.vector == case.flops, case.why


def test_every_operator_that_can_do_vector_work_is_in_the_table() -> None:
    ours = {i.operator for i in rule_table() if i.owner.startswith("costproof.")}
    free = {name for name in ours if subject_of(name) in FREE}
    none = {name for names in NONE.values() for name in names.split()}
    by_hand = {case.name for case in CASES}
    assert not by_hand & (none | free)
    assert ours - free - none == by_hand


@pytest.mark.parametrize("subject", FREE)
def test_a_file_of_rules_without_vector_work_has_no_word_of_it(subject: str) -> None:
    source = inspect.getsource(importlib.import_module(f"{registry.__package__}.{subject}"))
    assert "vector=" not in source
    assert "vector_rule" not in source


@pytest.mark.parametrize("name", [n for names in NONE.values() for n in names.split()])
def test_the_others_do_none(name: str) -> None:
    x, i = value(3, 3), value(3, dtype="int64")
    for tensors in ([x], [x, x], [x, i], [x, x, x]):
        try:
            cost = cost_of(call(name, tensors, [x], {"accumulate": False}))
        except (LookupError, ValueError):
            continue  # this is no call of it
        assert not isinstance(cost, OpCost) or cost.vector == 0
