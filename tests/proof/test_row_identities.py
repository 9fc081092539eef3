"""Identities of batches of rows in a certificate: they hold, each planted mistake is found, and the file says both."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import sympy

from costproof.algebra.series import CACHED
from costproof.analytic import compose
from costproof.analytic.attention import Attention
from costproof.analytic.costs import LayerCosts, costs_of
from costproof.compare.proof.certificate import Certificate, differences, read_certificate
from costproof.compare.proof.judge import Answer
from costproof.models.decoding.domain import _examples, _pairs_below
from costproof.models.families.llama import Llama
from costproof.models.families.mistral import Mistral
from costproof.models.proof import Piece, Provable, WithProof
from costproof.reports.certificate import totals
from costproof.reports.outputs import variants
from costproof.run.operands import target_with_settings
from costproof.run.proof_pieces import assemble_certificate, carry_out_piece
from tests.models.test_llama import PLAIN
from tests.models.test_rows import FAMILIES


@pytest.fixture
def unmemoized() -> Iterator[None]:
    """Let a test replace the costs of a layer."""
    for memoized in (costs_of, compose._module_costs):
        memoized.cache_clear()
    yield
    for memoized in (costs_of, compose._module_costs):
        memoized.cache_clear()


def pieces(target: Any, samples: int = 0) -> list[Piece[Provable]]:
    """The row pieces of a proof, identities first; only of the first variant of a run."""
    assert isinstance(target, WithProof)
    made = [piece for piece in target.proof(samples, 5).pieces if piece.phase == "rows"]
    return [p for p in made if p.sizes is not None or p.id.endswith(", text")]


def answers(target: Any, samples: int = 0) -> dict[str, Answer]:
    return {piece.id: carry_out_piece(piece) for piece in pieces(target, samples)}


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_identities_hold_in_every_family(target: Any) -> None:
    found = answers(target, samples=4)
    assert [(name, a.counterexamples[:1]) for name, a in found.items() if a.counterexamples] == []
    assert all(answer.rows for answer in found.values())
    claims = [claim for answer in found.values() for claim in answer.claims]
    assert {claim.method for claim in claims} == {"identity of rows"}
    assert {"C", "S"} <= {symbol for claim in claims for symbol in claim.free}
    assert len([name for name in found if name.startswith("rows: of draw")]) == 4


def test_each_side_of_a_window_has_an_example() -> None:
    """Lengths are compared with w and with w - 1: by all pairs up to 3 w, 4 chunks of two tokens or more."""
    for w in (5, 7, 16, 128):
        lengths = range(2, 3 * w)
        sides = {
            tuple(n >= limit for n in (a, b) for limit in (w, w - 1))
            for a, b in itertools.product(lengths, lengths)
            if b - a > 1
        }
        assert {tuple(n >= limit for n in pair for limit in (w, w - 1)) for pair in _examples([w])} == sides


def test_pairs_below_are_those_counted() -> None:
    """On both sides of a window of 6: a query at place q sees q + 1 keys, or 6."""
    for length in range(1, 20):
        for window in (0, 6):
            counted = sum(min(q + 1, window or q + 1) for q in range(length))
            assert _pairs_below(length, window).subs("C", length).xreplace({CACHED: length}) == counted


def wrong(change: Callable[[Attention, LayerCosts], dict[str, Any]]) -> Callable[[Attention], LayerCosts]:
    """Costs of attention with a mistake."""
    right = Attention.costs

    def costs(self: Attention) -> LayerCosts:
        found = right(self)
        return replace(found, **change(self, found))

    return costs


def of_row(one: Attention) -> bool:
    """Whether attention is that of a row, whose sizes are B_0, S_0 and C_0."""
    return "B_0" in str(one.batch)


MISTAKES: Final[dict[str, Callable[[Attention, LayerCosts], dict[str, Any]]]] = {
    "pairs of the prefix forgotten": lambda one, costs: (
        {"kept_scores": {"attention": one.batch * one.heads * one.queries * (one.queries + 1) / 2}}
        if of_row(one)
        else {}
    ),
    "a key too few": lambda one, costs: (
        {"kept_scores": {"attention": costs.kept_scores["attention"] - one.batch * one.heads * one.queries}}
        if of_row(one)
        else {}
    ),
    "the cache of the prefix written again": lambda one, costs: (
        {"kv_cache_bytes": costs.kv_cache_bytes + costs.kv_read_bytes} if of_row(one) else {}
    ),
    "a step that sees the past without itself": lambda one, costs: (
        {"flops": {"attention": 4 * one.batch * one.queries * one.heads * one.head_dim * one.past}}
        if of_row(one) and one.past != 0
        else {}
    ),
    "half of the hidden scores": lambda one, costs: (
        {"hidden_flops": {k: sympy.sympify(x) / 2 for k, x in costs.hidden_flops.items()}} if of_row(one) else {}
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("unmemoized")
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "costs", wrong(MISTAKES[mistake]))
    target = Llama(PLAIN)
    found = [c for answer in answers(target, samples=2).values() for c in answer.counterexamples]
    assert found
    assert all(c.difference not in ("0", "unknown") for c in found)
    assert any(c.smallest for c in found)


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.usefixtures("unmemoized")
def test_a_mistake_at_the_edge_of_a_window_is_found(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Attention._kept_pairs

    def kept(self: Attention, computed: Any) -> Any:
        return right(replace(self, window=self.window + side) if self.window != 0 and of_row(self) else self, computed)

    monkeypatch.setattr(Attention, "_kept_pairs", kept)
    target = Mistral(replace(Mistral.default().config, layers=1, window=9 + side))
    names = [name for name, answer in answers(target).items() if answer.counterexamples]
    assert any("chunks" in name for name in names)
    assert any("less the pairs" in name for name in names)


@pytest.mark.usefixtures("unmemoized")
def test_a_mistake_that_rows_and_prompts_share_is_found_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks with twice the pairs are still a prompt with twice the pairs; counted pairs are not."""
    twice = wrong(lambda one, costs: {"kept_scores": {k: 2 * x for k, x in costs.kept_scores.items()}})
    monkeypatch.setattr(Attention, "costs", twice)
    found = answers(Llama(PLAIN), samples=2)
    by_kind = {name: len(answer.counterexamples) for name, answer in found.items()}
    assert [n for name, n in by_kind.items() if "chunks" in name] == [0, 0]
    assert all(n for name, n in by_kind.items() if "of draw" in name or "less the pairs" in name)


def proved(samples: int) -> Certificate:
    """The certificate of the row pieces alone."""
    target = Llama(PLAIN)
    made = target.proof(samples, 5)
    made = replace(made, pieces=tuple(p for p in made.pieces if p.phase == "rows"))
    found = [(piece.phase, piece.id, carry_out_piece(piece)) for piece in made.pieces]
    return assemble_certificate(found, target, made)


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return proved(2)


def test_a_certificate_has_the_identities(certificate: Certificate, tmp_path: Path) -> None:
    assert certificate.verdict == "proved"
    assert certificate.coverage.rows.keys() == {"rows"}
    assert {claim.invocation for claim in certificate.claims} == {"rows"}
    assert totals(certificate) == {}  # FLOPs of a stage are those of its graph
    texts = {name: output.text(certificate) for name, output in variants("certificate").items()}
    assert "identity of rows" in texts["md"]
    assert "chunks 2 and 35+2 are a prompt of 37, text" in texts["md"]
    path = tmp_path / "certificate.json"
    path.write_text(texts["json"], encoding="utf-8")
    assert read_certificate(path).claims == certificate.claims


def test_a_changed_identity_is_a_difference(certificate: Certificate) -> None:
    """A repeated proof differs from a file in which a claim was changed, added or left out."""
    first, *others = certificate.claims
    for claims in (
        (replace(first, at_config="S*(S + 1)"), *others),
        (replace(first, runs=("chunks 2 and 3+2 are a prompt of 5, text",)), *others),
        tuple(others),
    ):
        assert differences(replace(certificate, claims=claims), certificate)


@pytest.mark.usefixtures("unmemoized")
def test_a_counterexample_names_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "costs", wrong(MISTAKES["a key too few"]))
    found = proved(1)
    assert found.verdict == "refuted"
    said = variants("certificate")["md"].text(found)
    assert "rows: " in said
    assert "equal to: " in said
    assert json.loads(variants("certificate")["json"].text(found))["verdict"] == "refuted"


def test_settings_decide_the_identities() -> None:
    """A window of the configuration adds an example for each of its sides."""
    plain, _ = target_with_settings("mistral@chat,window=16,layers=1")
    assert len(pieces(plain)) == 2 * 5 + 3 * 4
    assert len(pieces(Llama(PLAIN))) == 2 + 3
