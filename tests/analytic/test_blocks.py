"""Blocks by hand: which modules they have, and what their widths, biases and options come to."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.costs import costs_of
from costproof.analytic.experts import Experts, LoopedExperts
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.transformer import DecoderStack, TransformerLayer

CALL = StackCall(batch=2, tokens=3, item_bytes=2)


def params(parts: Iterable[ModulePart]) -> dict[str, int]:
    """Parameters by role, zeros left out."""
    owned = {p.role: sum(int(costs_of(x).params) for x in p.layers) for p in parts}
    return {role: count for role, count in owned.items() if count}


def flops(parts: Iterable[ModulePart]) -> dict[str, int]:
    """Headline FLOPs of the parts that are called, by role, zeros left out."""
    done = {p.role: sum(int(v) for x in p.layers for v in costs_of(x).flops.values()) for p in parts if p.called}
    return {role: count for role, count in done.items() if count}


def test_grouped_queries_with_values_of_another_width_and_biases_apart() -> None:
    block = AttentionBlock(8, heads=4, kv_heads=2, head_dim=5, value_dim=3, bias=("q", "v"))
    # q 8 -> 20 and 20 biases, k 8 -> 10, v 8 -> 6 and 6 biases, out 4*3 -> 8
    assert params(block.parts("a", CALL)) == {"a.q": 180, "a.k": 80, "a.v": 54, "a.out": 96}
    # 6 rows; scores 2*4*9 = 72, of 5 and 3 MACs
    assert flops(block.parts("a", CALL)) == {
        "a": 2 * 72 * 8, "a.q": 2 * 6 * 160, "a.k": 2 * 6 * 80, "a.v": 2 * 6 * 48, "a.out": 2 * 6 * 96,
    }  # fmt: skip


def test_one_projection_for_queries_keys_and_values() -> None:
    block = AttentionBlock(8, heads=2, kv_heads=2, head_dim=4, inner=8, fused=True, bias=("q", "k", "v"))
    assert params(block.parts("a", CALL)) == {"a.qkv": 8 * 24 + 24, "a.out": 64}


def test_norms_of_queries_and_keys() -> None:
    each = AttentionBlock(8, heads=4, kv_heads=2, head_dim=5, qk_norm="head").parts("a", CALL)
    whole = AttentionBlock(8, heads=4, kv_heads=2, head_dim=5, qk_norm="whole", qk_norm_kind="layer").parts("a", CALL)
    assert {r: n for r, n in params(each).items() if "norm" in r} == {"a.q_norm": 5, "a.k_norm": 5}
    assert {r: n for r, n in params(whole).items() if "norm" in r} == {"a.q_norm": 40, "a.k_norm": 20}
    work = {p.role: costs_of(p.layers[0]).vector_flops["norm"] for p in (*each[-2:], *whole[-2:])}
    # each head a row: 24 and 12 rows of 5; whole: 6 rows of 20 and of 10, 7 per element
    assert work == {"a.q_norm": 7 * 120 + 12, "a.k_norm": 7 * 60 + 12}
    assert costs_of(each[-2].layers[0]).vector_flops["norm"] == 4 * 120 + 2 * 24
    assert costs_of(each[-1].layers[0]).vector_flops["norm"] == 4 * 60 + 2 * 12


def test_a_part_of_every_head_is_rotated() -> None:
    (core, *_) = AttentionBlock(8, heads=4, kv_heads=2, head_dim=6, rotary=4).parts("a", CALL)
    # 6 positions of 6 heads, 4 of 6 elements each: 144, 7/2 operations; two tables of 3 * 4
    rotary = costs_of(core.layers[1])
    assert rotary.vector_flops == {"elementwise": 504}
    assert rotary.input_bytes == 2 * 12 * 2


def test_cross_attention_makes_keys_once() -> None:
    block = AttentionBlock(8, heads=2, kv_heads=2, head_dim=4, inner=8)
    first = flops(block.cross_parts("a", StackCall(2, 3, 2, memory=5)))
    # 6 rows of queries, 10 of keys; scores 2*2*3*5 = 60, of 4 MACs twice
    assert first == {"a": 2 * 2 * 60 * 4, "a.q": 768, "a.k": 1280, "a.v": 1280, "a.out": 768}
    later = block.cross_parts("a", StackCall(2, 1, 2, past=3, memory_past=5))
    assert flops(later) == {"a": 2 * 2 * 20 * 4, "a.q": 256, "a.out": 256}
    assert params(later) == {"a.q": 64, "a.k": 64, "a.v": 64, "a.out": 64}


def test_a_plain_and_a_gated_mlp() -> None:
    plain, gated = Mlp(4, 6, "gelu"), Mlp(4, 6, "silu", gated=True, bias=False, activation_module=False)
    assert params(plain.parts("m", 3, 2)) == {"m.up": 30, "m.down": 28}
    assert params(gated.parts("m", 3, 2)) == {"m.gate": 24, "m.up": 24, "m.down": 24}
    assert [p.role for p in plain.parts("m", 3, 2)] == ["m", "m.up", "m.activation", "m.down"]
    # the activation runs in the MLP itself: 18 elements, silu 2, product 1
    assert [costs_of(x).vector_flops for x in gated.parts("m", 3, 2)[0].layers] == [
        {"activation": 36},
        {"elementwise": 18},
    ]


def test_mixtures() -> None:
    grouped = ExpertMixture(4, inner=6, experts=5, top_k=2, function="silu", shared=12)
    # router 4*5; an expert 3*4*6 = 72; shared 3*4*12
    assert params(grouped.parts("l.mlp", 3, 2)) == {
        "l.router": 20, "l.experts": 360, "l.shared.gate": 48, "l.shared.up": 48, "l.shared.down": 48,
    }  # fmt: skip
    looped = ExpertMixture(4, inner=6, experts=5, top_k=2, function="silu", looped=True)
    assert params(looped.parts("l.mlp", 3, 2)) == {"l.router": 20, "l.experts": 360}
    # 6 pairs of 72 MACs either way
    assert flops(grouped.parts("l.mlp", 3, 2))["l.experts"] == flops(looped.parts("l.mlp", 3, 2))["l.experts"] == 864


def test_a_tied_decoder_counts_its_table_once() -> None:
    layer = TransformerLayer(8, AttentionBlock(8, 2, 1, 4, rotary=4), Mlp(8, 6, "silu", gated=True, bias=False))
    free = DecoderStack(8, 10, (layer, layer), table=4).parts("t", CALL, 1)
    tied = DecoderStack(8, 10, (layer, layer), table=4, tied=True).parts("t", CALL, 1)
    # q and out 64, k and v 32, MLP 3*48, two norms of 8: 352 a layer; the table 80, the last norm 8
    assert sum(int(costs_of(x).params) for p in tied for x in p.layers) == 2 * 352 + 80 + 8
    assert sum(int(costs_of(x).params) for p in free for x in p.layers) == 2 * 352 + 2 * 80 + 8
    assert flops(free)["lm_head"] == flops(tied)["lm_head"] == 2 * 2 * 80
    assert sorted({p.i for p in free if p.role == "t.layer"}) == [0, 1]


def test_a_minimum_of_sizes_is_said_and_derived() -> None:
    """A formula is one expression for all sizes; where it is not, its docstring says so."""
    rooms = [import_module(name) for name in ("costproof.analytic", "costproof.models.pages")]
    found = []
    for room in rooms:
        for module in iter_modules(room.__path__):
            source = inspect.getsource(import_module(f"{room.__name__}.{module.name}"))
            for part in ast.walk(ast.parse(source)):
                if isinstance(part, ast.ClassDef) and (
                    "sympy.Min" in ast.unparse(part) or "sympy.Max" in ast.unparse(part)
                ):
                    found.append(part.name)
                    assert {"min", "max"} & {*re.findall(r"[a-z]+", (ast.get_docstring(part) or "").lower())}, part.name
    assert found == [
        "AllGather", "ExchangedPairs", "Embedding", "_ExpertWeights", "LatentBlock", "RingAttention",
        "RelativePosition",
    ]  # fmt: skip
    assert all("min(experts, rows)" in (inspect.getdoc(layer) or "") for layer in (Experts, LoopedExperts))
