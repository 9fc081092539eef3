"""Sizes that are equal in a published model, or whose products are: the draws of a proof tell each pair apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import Final, cast

import pytest
import sympy

from costproof.algebra.symbols import parse, sym
from costproof.models.proof import Piece, Proof, Provable, WithProof
from costproof.models.registry import TARGETS, load_target
from costproof.models.target import Target

DRAWS: Final = 64
"""As many as ``prove`` makes unless it is told otherwise."""
LEAST: Final = 3
"""A pair that one draw tells apart may be out of play in just that one: no layer of it has the part."""
NUMBERS: Final = {str(n): n for n in (1, 2, 3, 4, 6, 8)}
"""That formulas multiply by."""
FAMILIES: Final = [p.name for p in TARGETS.ours]
ONE_OF_TWO: Final = {name: ("text_kv_heads",) for name in FAMILIES if name.startswith("gpt2")}
"""Sizes that no configuration of a family has apart from another one: GPT-2's heads do not share keys and values."""

Values = Mapping[str, int]


def of_run(piece: Piece[Provable]) -> Values:
    """Sizes of the configuration and of the run."""
    found = dict(piece.target.info().symbols)
    for call in piece.target.invocations(piece.workload):
        found |= {name: value for name, value in call.symbols.items() if name not in found}
    return found | dict(piece.sizes or {}) | NUMBERS


def value(names: tuple[str, ...], sizes: Values) -> int | None:
    """The product; ``None`` where a run lacks a part of it."""
    return prod(sizes[n] for n in names) if all(n in sizes for n in names) else None


def coinciding(target: Target, proof: Proof) -> dict[tuple[tuple[str, ...], tuple[str, ...]], int]:
    """Pairs of sizes and of products of two that are equal at the default -> how many draws tell them apart."""
    usual = of_run(Piece("usual", "draws", cast(Provable, target), target.workload()))
    drawn = [of_run(p) for p in proof.pieces if p.phase == "draws"]
    # How many layers there are is no factor of a formula.
    names = sorted(n for n in usual if "layers" not in n and n not in ONE_OF_TWO.get(target.info().name, ()))
    groups: dict[int, list[tuple[str, ...]]] = defaultdict(list)
    for size in (1, 2):
        for product in combinations_with_replacement(names, size):
            if not set(product) <= NUMBERS.keys():
                groups[prod(usual[n] for n in product)].append(product)
    found = {}
    for products in groups.values():
        values = {p: [value(p, one) for one in drawn] for p in products}
        for first, second in combinations(products, 2):
            if not set(first) & set(second):  # a common factor says nothing more
                pairs = zip(values[first], values[second], strict=True)
                found[first, second] = sum(a is not None and b is not None and a != b for a, b in pairs)
    return found


def same_by_nature(first: tuple[str, ...], second: tuple[str, ...], independent: Mapping[str, str]) -> bool:
    """Whether two products are one expression in drawn parameters."""
    replaced = {sym(k): parse(v) for k, v in independent.items()}
    sides = [
        prod((sympy.Integer(n) if n in NUMBERS else sym(n) for n in names), start=sympy.Integer(1)).subs(replaced)
        for names in (first, second)
    ]
    return bool(sympy.expand(sides[0] - sides[1]) == 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_pair_of_equal_sizes_is_told_apart(name: str) -> None:
    target = load_target(name)
    assert isinstance(target, WithProof)
    proof = target.proof(DRAWS, 1)
    found = coinciding(target, proof)
    alike = {pair for pair, apart in found.items() if apart < LEAST}
    assert [p for p in sorted(alike) if not same_by_nature(*p, proof.independent)] == []
    assert len(found) > 20  # there is something to tell apart


def test_what_coincides_in_the_published_model() -> None:
    # 10 heads of 128 are the width of 1280; 16 heads of CLIP are SAM's patch of 16; 1024 is CLIP's width, twice
    # SAM's 512, and the side of the image that SAM was trained for.
    target = load_target("deepseek-ocr")
    assert isinstance(target, WithProof)
    found = coinciding(target, target.proof(DRAWS, 1))
    for pair in (
        (("text_hidden",), ("text_head_dim", "text_heads")),
        (("clip_heads",), ("sam_patch",)),
        (("clip_hidden",), ("sam_image",)),
        (("clip_hidden",), ("2", "sam_down1")),
        (("text_heads",), ("text_kv_heads",)),
    ):
        assert next(n for p, n in found.items() if set(p) == set(pair)) > DRAWS / 2
