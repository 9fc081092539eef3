"""The table in fvcore's convention, on the hand-counted toy model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof import compare
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode
from costproof.reports.static import convention_rows
from costproof.views.results import stage_words
from tests.conftest import Golden
from tests.support.toy import asked, toy, with_ledger

# Two layers, 256 MACs on the page and 192 on the crops, 64 and 48 output elements.
SAM = {"fvcore_macs": 2 * (256 + 192), "fvcore_activations": 2 * (64 + 48)}
CELLS = ("896", "896", "224", "224")


def off_by_one() -> Capture:
    """The stage alone says one MAC more in one layer, and one less in the other: the stage's sum agrees."""

    def other(n: CostNode) -> CostNode:
        step = {"sam.layers.0.lin": 1, "sam.layers.1.lin": -1}.get(n.module)
        if n.invocation != "global" or not n.kind or step is None:
            return n
        return replace(n, costs={**n.costs, "fvcore_macs": (n.costs["fvcore_macs"] or 0) + step})

    capture = asked()
    isolated = capture.ledger("isolated")
    assert isolated is not None
    return with_ledger(capture, replace(isolated, nodes=tuple(map(other, isolated.nodes))))


def test_the_stages_by_hand() -> None:
    static = compare(asked()).static
    sam, _, decode = static.stages
    for source in ("isolated", "dynamic"):
        for sources in (sam.sources, static.sources):
            assert {m: sources[source][m] for m in SAM} == SAM
        # Attention is outside the convention: 864 FLOPs by the docstring of the toy.
        assert (decode.sources[source]["fvcore_macs"], decode.flops_by_kind) == (0, {"attention": 864})
    none = ("0",) * 4
    rows = [("sam", *CELLS), ("clip", *none), ("decode", *none), ("total", *CELLS)]
    assert convention_rows(static) == rows
    assert convention_rows(compare(toy()).static) == []


def test_isolated_and_extracted_that_differ_are_a_finding() -> None:
    capture = off_by_one()
    found = compare(capture).discrepancy
    assert found.verdict == "unexplained"
    assert compare(capture).exit_code == 1
    wrong = {f.module: f.delta for f in found.findings if f.level == "module" and f.status == "unexplained"}
    assert wrong == {"sam.layers.0.lin": -1, "sam.layers.1.lin": 1}
    # The sums agree, the status says that the rows do not.
    assert stage_words(found, "sam") == "unexplained (fvcore_macs)"
    assert convention_rows(compare(capture).static)[0] == ("sam", *CELLS)


def test_operators_are_compared_one_by_one() -> None:
    """The same MACs of the same module by another operator are not the same."""
    capture = asked()
    isolated = capture.ledger("isolated")
    assert isolated is not None
    nodes = tuple(
        replace(n, kind="einsum") if "fvcore_macs" in n.costs and n.invocation == "crops" else n for n in isolated.nodes
    )
    changed = with_ledger(capture, replace(isolated, nodes=nodes))
    assert stage_words(compare(changed).discrepancy, "sam").startswith("unexplained")


@pytest.mark.parametrize(("name", "file"), [("static-md", "md"), ("summary", "txt")])
def test_format(name: str, file: str, golden: Golden) -> None:
    golden(f"reports/asked.{name}.{file}", compare(asked()).render(name))


def test_the_console_names_the_convention_and_what_it_leaves_out() -> None:
    text = compare(asked()).render("summary")
    assert "Convention fvcore-macs: These are MACs" in text
    assert "They are not FLOPs" in text
    assert "fvcore" not in compare(toy()).render("summary")
