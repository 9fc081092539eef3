"""Counters and own numbers in the reports: made-up tools on the toy model, so no version of any tool shows.

By hand, on ``tests.support.toy``: sam[global] 1024, sam[crops] 768, the first decode step 4 * 6 * 11 = 264, together
2056 FLOP. ``half`` counts MACs, no attention, and 5 for a norm on the page: (512 + 384) + 5 = 901, in FLOP 1802.
``twice`` counts the linear layers again: 2 * (1024 + 768) + 264 = 3848. ``broken`` has no answer for decode.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from costproof import compare
from costproof.claims.reading import own_claims
from costproof.compare.counters import compare_counters
from costproof.ledger.capture import CAPTURE, Capture
from costproof.ledger.counter import CounterCall, CounterInfo, CounterRecord, CounterRun, CounterUsage
from costproof.ledger.errors import Absent, BadInput
from costproof.ledger.files import json_text
from costproof.ledger.node import CostNode
from costproof.ledger.schema import from_data, to_data
from costproof.reports.counters import section
from costproof.reports.markdown import MarkdownPrinter
from costproof.reports.outputs import variants
from costproof.reports.report import Report, write_report
from costproof.run.counters import judge_own_numbers
from costproof.views.counters import COUNTERS, CounterReport
from tests.conftest import Golden
from tests.support.toy import HOSTILE, toy

counters_md = variants("counters")["md"].text
counters_text = variants("counters")["text"].text

SCHEMAS = Path(__file__).parents[2] / "src" / "costproof" / "schemas"
LAYERS = ("sam.layers.0.lin", "sam.layers.1.lin")
LINEAR = {"global": 512, "crops": 384}
STEP = CounterCall("decode", "steps", (CostNode("decode", "steps", "text.attn", "attention", {"flops": 264}),))


def sam(call: str, *rows: tuple[str, str, int]) -> CounterCall:
    """A call of the encoder."""
    return CounterCall("sam", call, tuple(CostNode("sam", call, m, k, {"flops": v}) for m, k, v in rows))


def linear(call: str, kind: str = "linear", value: int | None = None) -> list[tuple[str, str, int]]:
    """A row for each layer."""
    return [(layer, kind, LINEAR[call] if value is None else value) for layer in LAYERS]


def info(name: str, unit: str) -> CounterInfo:
    """A tool of which two versions were tested."""
    return CounterInfo(name, f"the-{name}", ("1.0", "1.2"), unit, "operator")


def record() -> CounterRecord:
    """Three tools, one of which fails half way."""
    norm = ("sam.norm", "layer_norm", 5)
    half = (
        sam("global", *linear("global", value=256), norm), sam("crops", *linear("crops", value=192)),
        CounterCall("decode", "steps"),
    )  # fmt: skip
    twice = (
        sam("global", *linear("global"), *linear("global", "linear>mm")),
        sam("crops", *linear("crops"), *linear("crops", "linear>mm")),
        STEP,
    )
    broken = (*(sam(c, *linear(c)) for c in LINEAR), CounterCall("decode", "steps", error="ValueError: no |rule|"))
    return CounterRecord(
        (*(sam(c, *linear(c)) for c in LINEAR), STEP),
        (
            CounterRun(info("half", "mac"), "1.2", half),
            CounterRun(info("twice", "flop"), "2.0", twice),
            CounterRun(info("broken", "flop"), None, broken),
        ),
        ("The truth equals the closed formulas in 3 of 3 invocations.",),
    )


def counted() -> Capture:
    """The toy capture with counters."""
    return replace(toy(), counters=record())


def report(*own: str, capture: Capture | None = None) -> CounterReport:
    """All of it with own numbers."""
    found = capture or counted()
    assert found.counters is not None
    compared = compare_counters(found.counters)
    places = {s: [i.id for i in found.invocations if i.stage == s] for s in found.target.stages}
    return CounterReport(
        found.conventions, found.target, found.workload, found.environment, compared,
        {"half": CounterUsage(1234, 5 * 10**8), "twice": CounterUsage(1, 10**6), "broken": CounterUsage(0, 0)},
        tuple(number for file in own_claims(own, places) for number in judge_own_numbers(file, found, compared)),
    )  # fmt: skip


# 896 MACs are the encoder's; 901 is what `half` prints in all; nothing leads to 7.
OWN = ("mine@sam=896 MAC", "paper=901", "guess@decode=7", "exact@sam:crops=768 flop")


def test_by_hand() -> None:
    found = report(*OWN)
    totals = {f.counter: (f.value, f.normalised, f.truth, f.residual, f.verdict) for f in found.compared.totals}
    assert totals == {
        "half": (901, 1802, 2056, 0, "explained"),
        "twice": (3848, 3848, 2056, 0, "explained"),
        "broken": (None, None, 2056, None, "failed"),
    }
    own = {o.name: (o.judgement.status, o.judgement.truth, o.judgement.residual, o.printed_by) for o in found.own}
    assert own["mine"] == ("explained", 1792, 0, ())
    assert own["exact"] == ("right", 768, 0, ("broken on sam[crops]",))
    assert own["guess"] == ("refuted", 864, 7 - 864, ())
    assert own["paper"][3] == ("half in all",)
    assert [s.cause for s in found.own[0].judgement.explanations[0].steps] == ["mac"]


def test_a_counter_as_a_source() -> None:
    half, broken = (counted().ledger(f"counter:{name}") for name in ("half", "broken"))
    assert half is not None
    assert broken is not None
    assert (half.total("flops"), half.conventions) == (901, {"unit": "mac"})
    assert {n.module for n in half.nodes} >= {"sam.norm"}
    # Its decode failed: absent, not 0. The stage that it did count is the truth, 1792 FLOP.
    assert broken.stages == ("sam",)
    with pytest.raises(BadInput, match="does not cover this stage"):
        broken.stage_total("decode", "flops")
    assert broken.stage_total("sam", "flops") == 1792
    assert broken.notes == ("decode[steps]: ValueError: no |rule|",)
    assert "counter:none" not in counted().by_source
    assert "counter:half" not in toy().by_source


@pytest.mark.parametrize(("own", "code"), [((), 3), (OWN, 1)])
def test_exit_code_of_a_failed_counter(own: tuple[str, ...], code: int) -> None:
    assert report(*own).exit_code == code


def test_exit_codes() -> None:
    made = record()
    whole = replace(counted(), counters=replace(made, runs=made.runs[:2]))
    assert report(capture=whole).exit_code == 0
    assert report("mine@sam=896 MAC", capture=whole).exit_code == 0
    assert report("guess@decode=7", capture=whole).exit_code == 1
    wrong = CounterRun(info("wrong", "flop"), "1.0", (sam("global", *linear("global", value=511)),))
    assert report(capture=replace(whole, counters=replace(made, runs=(wrong,)))).exit_code == 1


def test_text(golden: Golden) -> None:
    golden("reports/counters.txt", counters_text(report(*OWN)))


def test_md(golden: Golden) -> None:
    golden("reports/counters.md", counters_md(report(*OWN)))


def test_json() -> None:
    data = json.loads(json_text(to_data(COUNTERS, report(*OWN))))
    assert list(data)[:6] == ["schema", "schema_version", "conventions", "target", "workload", "environment"]
    schema = json.loads((SCHEMAS / "counters.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(data)
    del data["compared"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(data)


def test_the_section_of_the_comparison(golden: Golden) -> None:
    golden("reports/toy-counters.discrepancy-md.md", compare(counted()).render("discrepancy-md"))
    data = json.loads(compare(counted()).render("discrepancy-json"))
    assert [t["residual"] for t in data["counters"]["totals"]] == [0, 0, None]


def test_counters_change_no_verdict() -> None:
    with_, without = compare(counted()), compare(toy())
    assert with_.verdict == without.verdict == "exact"
    # One of the tools failed, which is no verdict on the sources, and no success either.
    assert (with_.exit_code, without.exit_code) == (3, 0)
    assert without.discrepancy.counters is None
    with pytest.raises(Absent, match="no third-party counters"):
        without.render("counters-md")


def test_the_section_is_short() -> None:
    made = record()
    many = tuple(replace(made.runs[1], info=info(f"t{i}", "flop")) for i in range(20))
    lines = MarkdownPrinter().block(section(compare_counters(replace(made, runs=many))))
    assert sum(line.startswith("| `t") for line in lines) == 15
    assert "… and 5 more counters in counters.json." in lines


def test_no_counter_could_be_compared() -> None:
    nothing = CounterRecord((), (), ("No counter could be compared: why.",))
    lines = MarkdownPrinter().block(section(compare_counters(nothing)))
    assert lines[1] == "<summary>Third-party counters: none</summary>"
    assert "- No counter could be compared: why." in lines


def test_files_beside_the_report(tmp_path: Path) -> None:
    write_report(Report(counted(), spent={"half": CounterUsage(1, 2)}), tmp_path)
    assert {"counters.json", "counters.md", "capture.json"} <= {p.name for p in tmp_path.iterdir()}
    spent = json.loads((tmp_path / "counters.json").read_text())["spent"]
    assert spent == {"half": {"milliseconds": 1, "peak_bytes": 2}}


def test_a_capture_with_counters_is_read_back() -> None:
    data = json.loads(json_text(to_data(CAPTURE, counted())))
    assert from_data(data, CAPTURE, where="c.json", make_again="") == counted()
    assert "milliseconds" not in json.dumps(data)  # what is measured would make captures of one input differ


def test_hostile_names_stay_in_their_cells() -> None:
    made = record()
    evil = replace(made.runs[2], info=info(HOSTILE, "flop"))
    found = counters_md(report(f"{HOSTILE.replace('=', '')[:30]}@sam=7", capture=replace(
        counted(), counters=replace(made, runs=(evil,)))))  # fmt: skip
    assert "<script" not in found
    for block in (b for b in found.split("\n\n") if b.startswith("| ")):
        assert len({line.count("|") for line in block.splitlines()}) == 1
