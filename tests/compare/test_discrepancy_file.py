"""The discrepancy file: what scripts rely on, and reading it back."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from costproof.compare.compare import compare
from costproof.compare.findings import DISCREPANCY
from costproof.ledger.files import json_text
from costproof.ledger.schema import load, to_data
from tests.support import builders as b
from tests.support.written import dump


def test_minimum_contract() -> None:
    wrong = b.edited(b.analytic(), b.at("lm_head", metric="flops"), costs={"flops": 900}, exprs={})
    data = to_data(DISCREPANCY, compare(b.capture((wrong, b.static(), b.dynamic()))))
    header = {"schema", "schema_version", "conventions", "target", "workload", "environment"}
    assert header | {"verdict", "findings", "coverage"} <= set(data)
    finding = next(f for f in data["findings"] if f["id"] == "prefill[prompt]/lm_head:linear#flops")
    assert {"id", "stage", "metric", "status", "values", "delta", "causes", "residual"} <= set(finding)
    assert (finding["values"], finding["delta"]) == ({"analytic": 900, "static": 960, "dynamic": 960}, -60)
    assert {"kind", "amount", "evidence"} <= set(finding["causes"][0])
    assert {"known_flops", "unknown_ops"} <= set(data["coverage"]["static"])


def test_round_trip_and_same_bytes(tmp_path: Path) -> None:
    d = compare(b.capture())
    path = tmp_path / "discrepancy.json"
    dump(path, DISCREPANCY, d)
    assert load(path, DISCREPANCY, make_again="") == d
    assert path.read_text() == json_text(to_data(DISCREPANCY, compare(b.capture())))


amounts = st.integers(0, 2000)


@given(st.tuples(amounts, amounts, amounts), st.sampled_from([{}, {"unit": "mac"}]))
def test_statuses_mean_what_they_say(values: tuple[int, int, int], conventions: dict[str, str]) -> None:
    from dataclasses import replace

    ledgers = [
        b.edited(x, b.at("lm_head", metric="flops"), costs={"flops": v}, exprs={})
        for x, v in zip((b.analytic(), b.static(), b.dynamic()), values, strict=True)
    ]
    ledgers[0] = replace(ledgers[0], conventions=conventions)
    for f in compare(b.capture(ledgers)).findings:
        known = set(f.values.values())
        assert (f.delta == 0) == (len(known) == 1) or f.level != "module"
        accepted = sum(c.amount for c in f.causes if c.accepted)
        assert f.delta is not None
        assert f.residual == f.delta - accepted
        if f.status == "exact":
            assert len(known) == 1
        if f.status == "explained":
            assert f.residual == 0
        if f.level == "module" and f.residual:
            assert f.status == "unexplained"
            assert f.delta == sum(c.amount for c in f.causes)
