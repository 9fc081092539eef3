"""The table in fvcore's convention, on the hand-counted toy model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import compare
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import CostNode
from costproof.reports.macs import Macs, macs
from tests.cli.running import costproof
from tests.conftest import Golden
from tests.reports.toy import asked, toy, with_ledger
from tests.written import write_capture

# Two layers, 256 MACs on the page and 192 on the crops, 64 and 48 output elements.
SAM = {"macs": 2 * (256 + 192), "activations": 2 * (64 + 48)}


def made(capture: Capture) -> Macs:
    return macs(capture, compare(capture).discrepancy)


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
    found = made(asked())
    sam, clip, decode = found.stages
    for name, value in SAM.items():
        assert getattr(sam, name) == {"dynamic": value, "isolated": value} == found.totals[name]
    assert (sam.params, clip.params, decode.params, found.params) == (40, 7, 36, 83)
    assert (sam.status, sam.left_out) == ("exact", {})
    assert [(i.id, i.macs["isolated"], i.activations["dynamic"]) for i in sam.invocations] == [
        ("global", 512, 128), ("crops", 384, 96),
    ]  # fmt: skip
    assert [(o.kind, o.macs["isolated"]) for o in sam.operators] == [("linear", SAM["macs"])]
    # Attention is outside the convention: 864 FLOPs by the docstring of the toy.
    assert (decode.macs["isolated"], decode.left_out, decode.operators) == (0, {"attention": 864}, ())


def test_isolated_and_extracted_that_differ_are_a_finding() -> None:
    capture = off_by_one()
    found = compare(capture).discrepancy
    assert found.verdict == "unexplained"
    assert compare(capture).exit_code == 1
    wrong = {f.module: f.delta for f in found.findings if f.level == "module" and f.status == "unexplained"}
    assert wrong == {"sam.layers.0.lin": -1, "sam.layers.1.lin": 1}
    assert made(capture).stages[0].status == "unexplained"
    # The sums agree, the status says that the rows do not.
    assert made(capture).stages[0].macs == {"dynamic": SAM["macs"], "isolated": SAM["macs"]}


def test_operators_are_compared_one_by_one() -> None:
    """The same MACs of the same module by another operator are not the same."""
    capture = asked()
    isolated = capture.ledger("isolated")
    assert isolated is not None
    nodes = tuple(
        replace(n, kind="einsum") if "fvcore_macs" in n.costs and n.invocation == "crops" else n for n in isolated.nodes
    )
    changed = with_ledger(capture, replace(isolated, nodes=nodes))
    assert made(changed).stages[0].status == "unexplained"


@pytest.mark.parametrize(("name", "file"), [("macs-json", "json"), ("macs-md", "md"), ("summary", "txt")])
def test_format(name: str, file: str, golden: Golden) -> None:
    golden(f"reports/asked.{name}.{file}", compare(asked()).render(name))


def test_the_console_names_the_convention_and_what_it_leaves_out() -> None:
    text = compare(asked()).render("summary")
    assert "Convention fvcore-macs: These are MACs" in text
    assert "They are not FLOPs" in text
    assert "decode leaves out attention 864 FLOP." in text
    assert "fvcore" not in compare(toy()).render("summary")


def test_a_capture_without_the_convention_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(Incomplete, match="without the convention"):
        compare(toy()).render("macs-json")
    write_capture(tmp_path / "asked.json", asked())
    told = costproof("render", "asked.json", "-f", "macs-json", cwd=tmp_path)
    assert (told.code, json.loads(told.stdout)["schema"]) == (0, "costproof/macs")
