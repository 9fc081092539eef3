"""``costproof measure`` on a small model: one real run, read back, written in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.estimate.hardware import DEVICE, Device, DeviceFigure, DevicePeak, FigureQuote, FigureSource
from costproof.estimate.measured import MEASUREMENT, Measurement
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.schema import from_data, to_data
from costproof.reports.outputs import variants
from tests.models.test_config import shallow_config
from tests.models.test_past import LLAMA
from tests.support.running import costproof

pytestmark = pytest.mark.slow

RUN = ("--config", "m.json", "--preset", "text-only", "--text-tokens", "9", "--new-tokens", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small model, and a device that is faster than any. No cache of the processor is emptied: it takes seconds."""
    made = tmp_path_factory.mktemp("measured")
    (made / "m.json").write_text(json.dumps(shallow_config().native()))
    said = (FigureQuote("here", "by hand"),)
    peak, width = DevicePeak("float32", 10**15, "dense", "matrix", said), DeviceFigure(10**16, said)
    fast = Device("fast", "fast", "measured", {"here": FigureSource("a test", "2026-11-22")}, (peak,), width)
    (made / "fast.json").write_text(json.dumps(to_data(DEVICE, fast)))
    with pytest.MonkeyPatch.context() as small:
        small.setattr("costproof.tracers.replay._FLUSHED", 2**20)
        yield made


@pytest.fixture(scope="module")
def found(folder: Path) -> Measurement:
    line = (*RUN, "--profile", "2", "--dtype", "float32", "--on", "fast.json", "-f", "json", "-o", "m.out")
    done = costproof("measure", "deepseek-ocr", *line, cwd=folder)
    assert done.code == 0, done.stderr
    return from_data(json.loads((folder / "m.out").read_text()), MEASUREMENT, where="m.out", make_again="")


def test_parts_add_up(found: Measurement) -> None:
    assert {row.stage for row in found.rows} == {"prefill", "decode"}
    for row in found.rows:
        assert row.measured is not None
        assert len(row.measured.runs) == 2
        assert row.split is not None
        assert sum(Fraction(part or 0) for part in astuple(row.split)) == row.measured.median
        alone = [o for o in found.operators if (o.run, o.stage) == (row.run, row.stage)]
        assert row.replay == sum(o.spent or 0 for o in alone)
        assert row.replay > 0
        # One clock: nothing is launched, and the time between operators is known.
        assert row.clocks is not None
        assert (row.clocks.device, row.clocks.launches, row.clocks.both) == (0, 0, row.clocks.host)
        assert row.predicted == row.replay + row.clocks.python
        assert row.clocks.python > 0


def test_a_file_of_another_major_version_is_refused(found: Measurement) -> None:
    data = {**to_data(MEASUREMENT, found), "schema_version": "3.3"}
    with pytest.raises(BadInput, match="another major version") as caught:
        from_data(data, MEASUREMENT, where="m.json", make_again="costproof measure")
    assert (caught.value.expected, caught.value.got, caught.value.fix) == ("4.x", "3.3", "costproof measure")
    newer = {**to_data(MEASUREMENT, found), "schema_version": "4.9", "more": 1}
    assert from_data(newer, MEASUREMENT, where="m.json", make_again="") == found


def test_parts_of_the_model_add_up(found: Measurement) -> None:
    for row in found.rows:
        parts = [p for p in found.parts if (p.run, p.stage) == (row.run, row.stage)]
        assert sum(p.replay or 0 for p in parts) == row.replay
        assert sum(p.roof.flops or 0 for p in parts) == row.roof.flops
    assert any("layers.[" in p.part for p in found.parts)
    assert "of the model" in variants("measure")["md"].text(found)


def test_counts_are_those_of_the_formulas(found: Measurement, folder: Path) -> None:
    work = api.workload("deepseek-ocr", "text-only", text_tokens=9, new_tokens=2, dtype="float32")
    (ledger,) = api.capture("deepseek-ocr", config=folder / "m.json", sources="analytic", workload=work).ledgers
    for stage in ("prefill", "decode"):
        counts = [row.roof.flops for row in found.rows if row.stage == stage]
        assert sum(c or 0 for c in counts) == ledger.stage_total(stage, "flops")


def test_every_format_says_what_is_wrong(found: Measurement) -> None:
    row = replace(found.rows[0], wrong="ran at 111 % of the peak in the device file: the clock", split=None)
    bad = replace(found, rows=(row, *found.rows[1:]))
    assert (found.exit_code, bad.exit_code, replace(bad, rows=(replace(row, wrong=""),)).exit_code) == (0, 1, 3)
    for name, output in variants("measure").items():
        assert "the clock" in output.text(bad), name
        assert "the clock" not in output.text(found), name
        assert "?" in output.text(bad) or name == "json"


def test_a_part_that_cannot_be_so_fast_is_a_finding(found: Measurement) -> None:
    part = replace(
        found.parts[0], wrong="ran at 178 % of the peak in the device file: the file, the FLOPs, or the clock"
    )
    bad = replace(found, parts=(part, *found.parts[1:]))
    assert bad.exit_code == 1
    for output in variants("measure").values():
        assert "178 % of the peak" in output.text(bad)
    assert "measure it again while nothing else runs" in variants("measure")["text"].text(bad)


def test_a_dtype_without_a_peak_is_told_before_anything_runs(folder: Path) -> None:
    done = costproof("measure", "deepseek-ocr", *RUN, "--on", "fast.json", cwd=folder)
    assert done.code == 2
    assert "the dense peak of this dtype is not known" in done.stderr


def test_a_rank_is_refused_before_the_machine_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "llama.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr("costproof.run.measure._device", lambda *_: pytest.fail("the machine is measured"))
    with pytest.raises(Incomplete, match="one of several ranks runs only on the meta device"):
        api.measure("llama", config=folder / "llama.json", tp=2)


def test_a_machine_that_is_measured_counts_by_its_highest_rate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, widths = (FigureQuote("here", "by hand"),), iter((10**16, 10**14, 10**17, 10**15, 10**15))
    asked: list[tuple[str, ...]] = []

    def measured(run: str, name: str, dtypes: tuple[str, ...], progress: Any) -> Device:
        asked.append(dtypes)
        peak = DevicePeak("float32", 10**15, "dense", "matrix", said)
        return Device(
            name,
            "here",
            "measured",
            {"here": FigureSource("a test", "2026-11-22")},
            (peak,),
            DeviceFigure(next(widths), said),
        )

    monkeypatch.setattr("costproof.tracers.device_benchmark.measure_device", measured)
    choices: dict[str, Any] = {
        "preset": "text-only",
        "text_tokens": 9,
        "new_tokens": 1,
        "dtype": "float32",
        "profile": 1,
    }
    found = api.measure("deepseek-ocr", config=folder / "m.json", **choices)
    assert found.bandwidth == 10**17
    # Before the runs, after them, after those with hooks, after the operators of the prompt, and of the step.
    assert next(widths, None) is None
    assert asked == [("float32", "bfloat16", "float16", "float64"), *[("float32",)] * 4]


@pytest.fixture(scope="module")
def unrun(folder: Path) -> Measurement:
    line = (*RUN, "--predict", "--profile", "2", "--dtype", "float32", "--on", "fast.json", "-o", "p.json")
    done = costproof("measure", "deepseek-ocr", *line, cwd=folder)
    assert done.code == 0, done.stderr
    return from_data(json.loads((folder / "p.json").read_text()), MEASUREMENT, where="p.json", make_again="")


def test_a_prediction_has_what_a_measurement_has_but_times(found: Measurement, unrun: Measurement) -> None:
    assert (unrun.predicted, found.predicted) == (True, False)
    assert unrun.options == found.options
    of_unrun, of_found = ([(r.run, r.stage, r.floor, r.roof) for r in m.rows] for m in (unrun, found))
    assert of_unrun == of_found
    calls = [{(o.run, o.stage, o.operator, o.shapes): o.calls for o in m.operators} for m in (found, unrun)]
    first = {key: count for key, count in calls[0].items() if key[0] == "prompt"}
    assert first == {key: count for key, count in calls[1].items() if key[0] == "prompt"}
    for row in unrun.rows:
        assert (row.measured, row.of_peak, row.of_bandwidth) == (None, None, None)
        assert row.split is not None
        assert (row.split.residual, row.split.jitter) == (None, None)
        assert sum(Fraction(part or 0) for part in astuple(row.split)) == row.replay


def test_a_prediction_says_that_it_is_one(found: Measurement, unrun: Measurement) -> None:
    for name in ("text", "md"):
        text = variants("measure")[name].text(unrun)
        assert "A prediction: the model did not run." in text
        assert any("step@9" in line and "did not run" in line for line in text.splitlines())
        assert "Residual" not in text.replace("Residual:", "")
        assert "As a prediction" not in text
        assert "A prediction" not in variants("measure")[name].text(found)
    assert variants("measure")["md"].text(unrun).startswith("# Predicted: ")


def test_an_operator_that_could_not_be_made_is_told(unrun: Measurement) -> None:
    lost = replace(unrun.operators[0], alone=None, why="no kernel")
    row = replace(unrun.rows[0], replay=None, split=None)
    bad = replace(unrun, rows=(row, *unrun.rows[1:]), operators=(lost, *unrun.operators[1:]))
    assert (unrun.exit_code, bad.exit_code) == (0, 3)
    for name, output in variants("measure").items():
        assert "no kernel" in output.text(bad), name
        assert name == "json" or "?" in output.text(bad), name


def test_weights_of_what_never_runs(folder: Path) -> None:
    done = costproof("measure", "deepseek-ocr", *RUN, "--predict", "--weights", ".", "--run", "cpu", cwd=folder)
    assert done.code == 2
    assert "weights have no effect on a prediction" in done.stderr
