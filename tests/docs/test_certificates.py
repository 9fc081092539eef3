"""The certificates that are committed: proofs of today's formulas, not of those of some other day."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from costproof.algebra.symbols import parse, version
from costproof.compare.proof.certificate import LATER, Certificate, read_certificate
from costproof.ledger.metrics import METRICS
from costproof.models.registry import TARGETS
from costproof.parametric.targets import evaluate_formulas
from costproof.reports.outputs import variants
from costproof.run.proof import carry_out_proof, prepare_repeat, verify

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "certificates"
NAMES = re.findall(r"^(?:CERTIFIED|SPREAD) := (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
MODELS = " ".join(NAMES).split()
"""Names of the files: of a model, and of a proof over a mesh with its options behind it."""


def stale(certificate: Certificate) -> list[str]:
    """Formulas of today that no claim has. Vector work is claimed for all kinds of a module together.

    What bounds of time know besides is named as not claimed, and so is unpacking before version 2.8.
    """
    target = TARGETS.load(certificate.target.name).from_normalised(certificate.settings.config)  # type: ignore[attr-defined]
    proof = target.proof(0, 1, **certificate.settings.chosen)
    left = {"vector_flops", *(["unpacking_flops"] if {*LATER} & {*certificate.every_not_claimed} else [])}
    claimed = {(c.stage, c.metric, c.version) for c in certificate.claims}
    return [
        f"{n.stage}/{n.module}#{metric}: {expr}"
        for n in evaluate_formulas(target, proof.usual).nodes
        for metric, expr in n.exprs.items()
        if metric in METRICS and metric not in left and (n.stage, metric, version(parse(expr))) not in claimed
    ]


def test_every_certificate_that_is_there_is_made_by_the_makefile() -> None:
    assert {p.name for p in FOLDER.iterdir()} == {f"{name}.{end}" for name in MODELS for end in ("json", "md")}


@pytest.mark.parametrize("name", MODELS)
def test_a_certificate_is_of_the_formulas_of_today(name: str) -> None:
    found = read_certificate(FOLDER / f"{name}.json")
    model, *mesh = name.split("--")
    assert (found.target.name, found.verdict) == (model, "proved")
    assert {f"{axis}={n}" for axis, n in found.settings.chosen.items() if mesh} == {*mesh}
    assert stale(found) == []
    prepare_repeat(found)  # by --verify
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == variants("certificate")["md"].text(found)


def test_the_identities_of_the_cheapest_certificate_hold_again() -> None:
    """Of ViT, whose graphs in symbols are exported again; draws, and peaks of memory, are left to the next test."""
    old = read_certificate(FOLDER / "vit-l-16.json")
    model, proof = prepare_repeat(old)
    pieces = tuple(piece for piece in proof.pieces if piece.phase == "identities")
    again = carry_out_proof(model, replace(proof, pieces=pieces), jobs=1)
    assert (again.counterexamples, again.missing) == ((), ())
    assert {*again.claims} == {claim for claim in old.claims if claim.metric != "graph_peak_bytes"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_a_certificate_is_proved_again(name: str) -> None:
    found = verify(FOLDER / f"{name}.json")
    assert (found.certificate.verdict, found.differences) == ("proved", ())
