"""Random configurations, tasks and certificates; a planted mistake is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from costproof.analytic.linear import Linear
from costproof.compare.proof.certificate import (
    CERTIFICATE,
    Certificate,
    Seen,
    bound,
    degrees,
    differences,
    read_certificate,
)
from costproof.compare.proof.judge import Answer
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr import proof as ocr_proof
from costproof.models.families.deepseek_ocr.config import MODES
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.config import contradictions
from costproof.models.pages.page import page_of
from costproof.models.pages.workload import page_run_problems
from costproof.models.proof import Piece
from costproof.patches import flash_attention
from costproof.reports.outputs import variants
from costproof.run import proof
from costproof.run.proof import prove
from costproof.run.proof_pieces import assemble_certificate, carry_out_piece
from tests.support.planted import planted
from tests.support.written import dump
from tests.tracers.small import SmallTarget

certificate_md = variants("certificate")["md"].text


class Anywhere(dict[str, str]):
    """Every path of a configuration."""

    def __missing__(self, key: str) -> str:
        return key


@example(seed=444, number=252)  # neither a page nor a text
@given(seed=st.integers(0, 2**64), number=st.integers(0, 2**32))
def test_any_draw_can_be_built_and_run(seed: int, number: int) -> None:
    drawn = ocr_proof.draw(seed, number)
    assert contradictions(drawn.target.config, Anywhere()) == []
    assert page_run_problems(drawn.target.config, drawn.workload, MODES) == []
    sam, text = drawn.target.config.sam, drawn.target.config.text
    page = page_of(drawn.workload)
    assert page is None or page.base_size % (4 * sam.patch) == page.image_size % (4 * sam.patch) == 0
    assert drawn.workload.attention != "eager" or text.heads == text.kv_heads


@given(seed=st.integers(0, 2**64))
def test_a_drawn_parameter_takes_any_of_its_values(seed: int) -> None:
    # 40 draws of B from 64 values: all of them the same, if B were no longer drawn.
    assert len({ocr_proof.draw(seed, number).workload.batch for number in range(40)}) > 1


@pytest.mark.skipif(bool(flash_attention.missing()), reason="draws take FlashAttention where its package is")
def test_every_choice_is_drawn() -> None:
    counts = Counter(c for number in range(500) for c in ocr_proof.choices(ocr_proof.draw(1, number)))
    assert len(counts) == 14
    assert min(counts.values()) >= 20
    assert max(counts.values()) < 500


def test_steps_are_drawn_together_with_every_choice() -> None:
    drawn = [ocr_proof.draw(1, number) for number in range(64)]
    several = [d for d in drawn if d.workload.new_tokens > 1]
    alone = {"several decode steps", "more layers than published"}
    assert {c for d in several for c in ocr_proof.choices(d)} - alone == {
        c for d in drawn for c in ocr_proof.choices(d)
    } - alone
    assert max(d.target.config.text.dense_layers for d in several) > 1
    assert max(d.workload.new_tokens for d in drawn) == 3


def test_all_symbols_of_formulas_are_drawn_or_named() -> None:
    # The three that are no numbers to draw: steps and grids are choices.
    drawn = next(d for d in (ocr_proof.draw(1, number) for number in range(64)) if "grid" in d.workload.inputs)
    ledger = drawn.target.formulas(drawn.workload)
    found = degrees({e for n in ledger.nodes for e in n.exprs.values()}, ocr_proof.INDEPENDENT)
    assert found.keys() - ocr_proof.RANGES.keys() == {"N", "grid_w", "grid_h"}


def test_draws_are_the_same_in_any_order() -> None:
    assert ocr_proof.draw(3, 11) == ocr_proof.draw(3, 11)
    assert ocr_proof.draw(3, 11).target.config != ocr_proof.draw(3, 12).target.config


def test_sides_and_pages() -> None:
    config = ocr_proof.draw(1, 1).target.config
    step = config.sam.stride
    assert all(s % step == 0 for s in ocr_proof.sides(config, 64, 2048))
    grids = {w.inputs.get("grid") for w in ocr_proof.pages(config)} - {None}
    # Pairs of whole numbers with a product from 2 to 9: the numbers of divisors 2+2+3+2+4+2+4+3.
    assert len(grids) == 22


def test_sides_one_by_one_have_a_layer_of_each_kind() -> None:
    # Published: 12 layers of SAM, of which 2, 5, 8 and 11 are global; one dense layer and one of experts need two.
    proof = ocr_proof.proof(DeepseekOcr(), 0, 1, "64-2048")
    sides = [p.target.config for p in proof.pieces if p.phase == "sizes"]  # type: ignore[attr-defined]
    assert len(sides) == 2048 // 64
    assert {(c.sam.layers, c.sam.global_layers, c.clip.layers, c.text.layers) for c in sides} == {(3, (2,), 2, 2)}
    whole = [p.target.config for p in proof.pieces if p.phase == "identities"]  # type: ignore[attr-defined]
    assert {(c.sam.layers, c.clip.layers, c.text.layers) for c in whole} == {(12, 24, 12)}


def certificate(answers: list[tuple[str, str, Answer | str]], samples: int = 1) -> Certificate:
    target = ocr_proof.draw(1, 0).target
    return assemble_certificate(answers, target, ocr_proof.proof(target, samples, 1, "64-128"))


def test_a_random_configuration_agrees_and_a_planted_mistake_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = ocr_proof.draw(1, 0)
    answer = carry_out_piece(one)
    assert (answer.claims, answer.counterexamples) == ((), ())
    assert min(answer.rows.values()) > 10
    proved = certificate([("draws", one.id, answer)])
    assert proved.verdict == "proved"
    path = tmp_path / "certificate.json"
    dump(path, CERTIFICATE, proved)
    assert differences(read_certificate(path), proved) == ()
    with monkeypatch.context() as few:
        few.setattr(proof, "MOST_SAMPLES", 0)
        with pytest.raises(BadInput, match="too many configurations to repeat"):
            proof.verify(path)
    assert "Schwartz" in certificate_md(proved)

    with planted(Linear, lambda layer: replace(layer, features_out=layer.features_out * 2)):
        wrong = certificate([("draws", one.id, carry_out_piece(one))])
    assert wrong.verdict == "refuted"
    assert any(c.metric == "flops" and c.kind == "linear" and c.config for c in wrong.counterexamples)
    assert "extra in the formula" in certificate_md(wrong)
    assert "verdict: proved in the certificate, refuted now" in differences(proved, wrong)


def test_a_certificate_says_what_was_varied_how_far() -> None:
    target = ocr_proof.draw(1, 0).target
    drawn = ocr_proof.proof(target, 40, 1, "64-128")
    found = assemble_certificate([], target, drawn)
    batches = [p.workload.batch for p in drawn.pieces if p.phase == "draws"]
    assert found.coverage.seen["batch"] == Seen(len(set(batches)), min(batches), max(batches))
    assert found.coverage.seen["attention"].values > 1
    assert found.coverage.seen["image_token"] == Seen(1, 1, 1)
    text = certificate_md(replace(found, bounds=(bound("sam", {}, {}, 40),)))
    assert f"`batch` {min(batches)} to {max(batches)}" in text
    assert "`image_token`" in text.partition("Never varied")[2]


def test_a_proof_that_leaves_out_other_sizes_is_another_one() -> None:
    before = certificate([])
    assert differences(before, certificate([])) == ()
    after = certificate([("identities", "identity: page", Answer({}, (), (), conditions=("sizes where not S <= 8",)))])
    assert "the domain or its coverage is another one" in differences(replace(before, coverage=after.coverage), after)


CHANGES = {
    "conventions": lambda c: replace(c, conventions=replace(c.conventions, causal="half")),
    "target.config.layers": lambda c: replace(c, target=replace(c.target, config={**c.target.config, "layers": 25})),
    "target.symbols.b": lambda c: replace(c, target=replace(c.target, symbols={**c.target.symbols, "b": 25})),
    "target.implementation": lambda c: replace(c, target=replace(c.target, implementation="vendor")),
    "target.stages": lambda c: replace(c, target=replace(c.target, stages=("forward", "decode"))),
    "missing": lambda c: replace(c, missing=("a piece",)),
    "another symbols.B": lambda c: replace(c, symbols={k: d for k, d in c.symbols.items() if k != "B"}),
    "settings.seed": lambda c: replace(c, settings=replace(c.settings, seed=c.settings.seed + 1)),
    "modules": lambda c: replace(c, claims=(replace(c.claims[0], modules=c.claims[0].modules + 1), *c.claims[1:])),
    "formula": lambda c: replace(c, claims=(replace(c.claims[0], formula="7"), *c.claims[1:])),
    "twice": lambda c: replace(c, claims=(c.claims[0], *c.claims)),
}  # fmt: skip


@pytest.mark.parametrize("where", CHANGES)
def test_whatever_a_certificate_says_is_compared(where: str) -> None:
    whole = read_certificate(Path("docs/certificates/vit-l-16.json"))
    assert differences(whole, replace(whole, environment={})) == ()
    (said,) = differences(CHANGES[where](whole), whole)
    assert where in said


def test_a_piece_that_failed_makes_it_incomplete() -> None:
    found = certificate([("draws", "draws: 0-0", "no memory\nleft")])
    assert (found.verdict, found.exit_code, found.missing) == ("incomplete", 3, ("draws: 0-0: no memory left",))


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"samples": -1}, "--samples"),
        ({"samples": 0, "sides": "65-66"}, "--sides"),
        ({"sides": "64x128"}, "--sides"),
        ({"sides": "-64"}, "--sides"),
        ({"side": "64"}, "--side"),
        ({"samples": "many"}, "--samples"),
    ],
)
def test_bad_settings(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(BadInput) as caught:
        prove("deepseek-ocr", **settings)
    assert caught.value.where == where


def test_a_target_that_does_not_say_what_a_proof_ranges_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "load_run_target", lambda asked: SmallTarget())
    with pytest.raises(BadInput, match="domain of a proof"):
        prove("deepseek-ocr")


def test_a_piece_that_fails_says_why() -> None:
    broken: Any = Piece("page: none", "workloads", SmallTarget(), Workload("none", 1))
    ((phase, name, answer),) = proof._carry_out([broken], None, 1, lambda *_: None)
    assert (phase, name, str(answer).partition(":")[0]) == ("workloads", "page: none", "AttributeError")


def test_pieces_have_names_of_their_own() -> None:
    target = ocr_proof.draw(1, 0).target
    names = [p.id for p in target.proof(23, 1, "64-512").pieces]
    assert len(set(names)) == len(names)
    assert names[-1] == "draws: 22"
