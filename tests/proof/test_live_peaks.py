"""The live peak by formula, proved equal to that of graphs in symbols and in numbers, and found wrong where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from costproof.analytic.decoder_memory import DecoderTape
from costproof.analytic.memory_tape import MemoryTape
from costproof.compare.compare import peak_findings
from costproof.compare.proof.judge import Answer
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.models.decoding.memory import _recorded_tape
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.run.peaks import measure_peaks
from costproof.run.proof import with_runs
from costproof.run.proof_pieces import carry_out_piece
from tests.support.toy import toy

SMALL = Llama(LlamaConfig(32, 48, 2, 4, 2, 12, 64, 4096))


@pytest.fixture(autouse=True)
def own_tapes() -> Iterator[None]:
    """Tapes are kept between runs, also those of a planted mistake."""
    _recorded_tape.cache_clear()
    yield
    _recorded_tape.cache_clear()


def pieces(samples: int) -> dict[str, Answer]:
    proof = with_runs(SMALL.proof(samples, 1))
    wanted = [p for p in proof.pieces if p.phase == "peaks" and "eager" not in p.id]
    return {p.id: carry_out_piece(p) for p in wanted}


def test_a_peak_is_an_identity() -> None:
    """A token in the last layer: its number 8, keys and values of the layer before 2 x 48, the residual 64, q, k, v.

    The rotation holds q * cos, the negated half, and both halves joined beside q: 96 + 48 + 96. Cosines and sines of a
    position are 2 x 24, for all sequences.
    """
    (found,) = (answer for name, answer in pieces(0).items() if name == "peaks: text")
    assert found.counterexamples == ()
    assert [(c.stage, c.metric, c.method) for c in found.claims] == [
        ("prefill", "graph_peak_bytes", "identity"), ("decode", "graph_peak_bytes", "identity"),
    ]  # fmt: skip
    prompt = 8 + 2 * 48 + 64 + (96 + 48 + 48) + (96 + 48 + 96)
    assert found.claims[0].at_config == f"{prompt}*B*S + 48*S"


def test_a_wrong_peak_has_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation that copies nothing holds less; a step has its peak in the MLP."""
    monkeypatch.setattr(DecoderTape, "_rotate", lambda self, x, elements, table, pairs: x)
    found = pieces(1)
    assert found.keys() == {"peaks: text", "peaks: draw 0"}
    for answer in found.values():
        assert [(c.stage, c.metric) for c in answer.counterexamples] == [("prefill", "graph_peak_bytes")]
        assert "prefill" not in {c.stage for c in answer.claims}


def test_a_wrong_peak_of_a_run_that_releases_its_inputs_has_a_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fits`` answers with it: inputs that a formula never releases are counted beside the extended cache."""
    events = MemoryTape._events
    monkeypatch.setattr(MemoryTape, "_events", lambda self, inputs_held: events(self, True))
    (draw,) = (p for p in with_runs(SMALL.proof(1, 1)).pieces if p.id == "peaks: draw 0")
    assert {c.metric for c in carry_out_piece(draw).counterexamples} == {"graph_peak_bytes"}


def test_peaks_of_a_run_carry_the_formula() -> None:
    work = SMALL.workload(batch=2, text_tokens=24, new_tokens=2)
    calls = measure_peaks(SMALL, work, eager=False, forms=False)
    assert [(c.stage, c.formula) for c in calls] == [("prefill", 29952), ("decode", 20304)]
    assert all(c.graph is not None and c.graph.bytes == c.formula for c in calls)


def test_a_report_compares_the_formula_with_the_graph() -> None:
    call = CallPeaks("sam", "global", "", Peak(500, "add", "", ()), None, formula=500)
    (same,) = peak_findings(replace(toy(), peaks=(call,)))
    assert (same.status, same.delta, same.values) == ("exact", 0, {"analytic": 500, "static": 500})
    (other,) = peak_findings(replace(toy(), peaks=(replace(call, formula=497),)))
    assert (other.status, other.delta, other.residual) == ("unexplained", -3, -3)
    assert peak_findings(replace(toy(), peaks=(replace(call, formula=None),))) == []
