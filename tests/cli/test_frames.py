"""A DataFrame for every result that has a table: every public function is looked at, every kind of result is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pytest

import costproof
from costproof import api
from costproof.compare.proof.closed_form import ClosedForm, Line
from costproof.estimate.measured import Measurement
from costproof.ledger.errors import BadInput
from costproof.ledger.run import RunOptions
from costproof.reports.report import Report
from costproof.run.proof import Derivation, Verification
from costproof.storage.checkpoint import StoredCheckpoint, parts_of
from costproof.storage.tensors import StoredTensor, totals
from costproof.views.frames import frame
from tests.estimate.test_measured import BUSY, WAITING, one
from tests.reports.pages import certificate
from tests.reports.test_counters import OWN
from tests.reports.test_counters import report as counters
from tests.reports.test_gate_texts import over
from tests.reports.test_listing import line
from tests.reports.test_peaks_text import CALLS, peaks
from tests.support.toy import toy

WITHOUT: Final = {
    "graph": "a picture", "operator_graph": "a picture", "plot": "pictures", "render": "a text",
    "schema": "a JSON Schema", "operator_rule": "a decorator", "frame": "a table already",
    "request": "a request", "read_request": "a request", "request_text": "a text", "workload": "a workload",
}  # fmt: skip
"""Public functions whose results have no table, and what they are."""


def claims() -> Any:
    return api.check(Path("docs/examples/published-table.yaml"), "deepseek-ocr")


def sweep() -> Any:
    return api.sweep("deepseek-ocr", {"batch": [1, 8]}, metrics=["flops"], stages=["sam"])


def measurement() -> Measurement:
    of, device = toy(), api.machine("l4")
    rows = (one(BUSY, WAITING, measured=(30, 31, 32), replay=25),)
    header = (of.conventions, of.target, of.workload, of.environment)
    return Measurement(*header, RunOptions(), device, "float32", 8, 2, "cpu", 1, rows, ())


def derivation() -> Derivation:
    lines = (Line("forward", "call", "0", "linear", 1, "6*B", None, ()),)
    return Derivation(ClosedForm("m", lines, "6*B", ("B",), {}), ())


def listing() -> tuple[Any, ...]:
    from costproof.ledger.callgraph import OperatorListing

    return (OperatorListing("s", "c", "p", (line("a", "x", 5), line("b", "y", None))),)


def checkpoint() -> StoredCheckpoint:
    tensors = [StoredTensor(f"layers.{i}.up.weight", "BF16", (4, 8)) for i in range(2)]
    return StoredCheckpoint("mine", "", (), 64, 0, totals(tensors), parts_of(tensors))


MADE: Final[dict[str, Callable[[], Any]]] = {
    "Capture": toy,
    "Drawable": lambda: toy().callgraph,
    "Report": lambda: Report(toy()),
    "ClaimsReport": claims,
    "CounterReport": lambda: counters(*OWN),
    "Derivation": derivation,
    "Diff": lambda: api.diff("deepseek-ocr@gundam:2x2", "deepseek-ocr@gundam:3x3"),
    "Machine": api.doctor,
    "Explanation": lambda: api.explain("deepseek-ocr", "projector"),
    "Fits": lambda: api.fits("deepseek-ocr", on="l4"),
    "Gate": over,
    "Device": lambda: api.machine("l4"),
    "Measurement": measurement,
    "tuple[OperatorListing, ...]": listing,
    "Peaks": lambda: peaks(*CALLS),
    "StoredCheckpoint": checkpoint,
    "Certificate": certificate,
    "Verification": lambda: Verification(certificate(), (), ()),
    "Roofline": lambda: api.roofline("deepseek-ocr", on="l4"),
    "Sweep": sweep,
    "tuple[str, ...]": api.machines,
    "tuple[RuleInfo, ...]": lambda: api.ops("*attention*"),
    "tuple[Setting, ...]": lambda: api.settings("deepseek-ocr"),
    "tuple[NamedWorkload, ...]": lambda: api.workloads("deepseek-ocr"),
    "dict[str, str]": api.formats,
    "dict[str, Plugin[TargetFactory]]": api.targets,
}
"""Return annotation of public functions -> makes such a result."""

ROWS: Final[dict[str, Callable[[Any], tuple[str, list[Any]]]]] = {
    "Capture": lambda v: ("flops", [n.costs.get("flops") for x in v.ledgers for n in x.nodes]),
    "Drawable": lambda v: ("calls", [v.call_counts[m] for m in sorted(v.call_counts)]),
    "Report": lambda v: ("flops", [s.costs["flops"] for s in v.static.stages]),
    "ClaimsReport": lambda v: ("truth", [j.truth for j in v.judgements]),
    "CounterReport": lambda v: (
        "truth", [f.truth for f in v.compared.findings] + [o.judgement.truth for o in v.own],
    ),
    "Derivation": lambda v: ("each", [x.each for x in v.form.lines]),
    "Machine": lambda v: ("name", [name for name, *_ in v.packages] + [*v.sources, *v.others] + [
        p for e in v.extras for p in e.packages] + [p.name for p in v.plugins] + [
        name for reasons in v.patches.values() for name in reasons]),
    "Explanation": lambda v: ("total", [p.total for c in v.calls for p in c.parts]),
    "Fits": lambda v: ("cache_bytes", [s.cache_bytes for s in v.stages] + [v.cache_bytes]),
    "Gate": lambda v: ("head", [c.head for c in v.checks]),
    "Device": lambda v: ("value", [p.flops for p in v.peaks] + [f.value for f in v.figures().values()]),
    "Measurement": lambda v: ("measured_ns", [r.measured.median for r in v.rows]),
    "tuple[OperatorListing, ...]": lambda v: ("flops", [x.flops for some in v for x in some.lines]),
    "Peaks": lambda v: ("graph_peak_bytes", [None if c.graph is None else c.graph.bytes for c in v.calls]),
    "StoredCheckpoint": lambda v: ("bytes", [p.bytes for p in v.parts]),
    "Certificate": lambda v: ("formula", [c.formula for c in v.claims]),
    "Verification": lambda v: ("formula", [c.formula for c in v.certificate.claims]),
    "Roofline": lambda v: (
        "seconds",
        [s.modules.seconds for s in (*v.stages, v.run)] + [p.at_roof.seconds for p in v.parts],
    ),
    "Sweep": lambda v: ("batch", [1, 8]),
    "tuple[str, ...]": lambda v: ("name", list(v)),
    "tuple[RuleInfo, ...]": lambda v: ("operator", [r.operator for r in v]),
    "tuple[Setting, ...]": lambda v: ("name", [s.name for s in v]),
    "tuple[NamedWorkload, ...]": lambda v: ("name", [w.name for w in v]),
    "dict[str, str]": lambda v: ("name", list(v)),
    "dict[str, Plugin[TargetFactory]]": lambda v: ("owner", [p.owner for p in v.values()]),
}  # fmt: skip
"""A column and its values, taken from the result itself."""


def public() -> dict[str, str]:
    """Name of each public function -> its return annotation."""
    found = {name: getattr(costproof, name) for name in costproof.__all__}
    functions = {name: f for name, f in found.items() if inspect.isfunction(f)}
    return {name: str(inspect.signature(f).return_annotation) for name, f in functions.items()}


def test_every_public_function_returns_a_table_or_is_said_to_have_none() -> None:
    unknown = {n: a for n, a in public().items() if n not in WITHOUT and a not in MADE}
    assert unknown == {}
    assert set(WITHOUT) <= set(public())
    assert set(MADE) <= set(public().values())
    assert set(ROWS) | {"Diff"} == set(MADE)


@pytest.mark.parametrize("kind", MADE)
def test_the_table_has_the_numbers_of_the_result(kind: str) -> None:
    value = MADE[kind]()
    table = frame(value)
    assert isinstance(table, pd.DataFrame)
    assert not any(table.map(callable).any())
    assert not any(str(t).startswith("float") for t in table.dtypes)
    if kind == "Diff":
        # A global view of 256 tokens and 2 x n crops of 100: the projector makes 2 x 2048 x 1280 FLOP of each.
        sums = table[(table["stage"] == "projector") & (table["metric"] == "flops")].iloc[0]
        assert (sums["base"], sums["head"]) == tuple((256 + n * n * 100) * 2 * 2048 * 1280 for n in (2, 3))
        return
    column, values = ROWS[kind](value)
    assert [None if pd.isna(v) else v for v in table[column]] == values
    assert values


@pytest.mark.parametrize("value", [toy().workload, {"a": 1}, "text", 3, None, replace(RunOptions(), seed=1)])
def test_what_has_no_table_says_so(value: object) -> None:
    with pytest.raises(BadInput, match="no table"):
        frame(value)


def test_nothing_found_is_an_empty_table() -> None:
    assert len(frame(api.ops("no such operator"))) == 0
