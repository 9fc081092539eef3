"""Mistakes that hide at the published sizes: which are planted, and that draws of a proof show each in a number."""

from __future__ import annotations

from functools import cache

import pytest

from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.proof import draw
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.patches import flash_attention
from tests.oracles.hidden_mistakes import Mistake, by_hand, generated, places
from tests.oracles.proof_mutations import DEFAULT, TINY


@cache
def right(number: int) -> Ledger:
    drawn = draw(1, number)
    return drawn.target.formulas(drawn.workload)


def shows(mistake: Mistake, number: int) -> bool:
    """Whether a number, or the name of a kind, is another one at a draw."""
    piece = draw(1, number)
    wrong, touched = mistake.planted(right(number), piece.workload)
    values = {(i.stage, i.id): {**i.symbols, **(piece.sizes or {})} for i in piece.target.invocations(piece.workload)}

    def numbers(ledger: Ledger) -> list[tuple[str, str, dict[str, int | None]]]:
        nodes = tuple(n for n in ledger.nodes if n.module in touched and n.stage == next(iter(mistake.places))[0])
        whole = evaluate_ledger(Ledger("analytic", nodes, ledger.metrics, ledger.stages), values,
                                piece.target.info().symbols)  # fmt: skip
        return [(n.module, n.kind, dict(n.costs)) for n in whole.nodes]

    return bool(touched) and numbers(wrong) != numbers(right(number))


@pytest.mark.parametrize("mistake", list(by_hand()), ids=lambda m: m.what)
@pytest.mark.skipif(bool(flash_attention.missing()), reason="draws take FlashAttention where its package is")
def test_a_draw_shows_every_mistake_by_hand(mistake: Mistake) -> None:
    if mistake.what != "growing context with query heads":  # of bytes, which the generator leaves alone
        assert mistake.places <= places(DeepseekOcr(TINY).formulas(DEFAULT)).keys()
    likely = (51, 9, 2, 18, *range(12))  # many layers, FlashAttention, a text with the last logits
    assert any(shows(mistake, number) for number in likely)


def test_every_kind_is_planted() -> None:
    values = {k: v for k, v in TINY.symbols().items() if "layers" not in k}
    found = list(generated(DeepseekOcr(TINY).formulas(DEFAULT), values))
    assert {m.kind for m in found} == {
        "swapped equal sizes", "right value, wrong symbol", "wrong beyond a threshold", "ceiling one off",
        "another kind of vector work", "right sum, wrong place", "cancelling pair",
    }  # fmt: skip
    assert len(found) > 400
