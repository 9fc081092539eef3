"""Pictures: what they show, by numbers written by hand, and that they can be drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.estimate.roofline import ROOFLINE
from costproof.ledger.capture import Capture
from costproof.ledger.environment import installed
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import PEAKS
from costproof.ledger.schema import to_data
from costproof.reports.plots import bars, figure, strips
from costproof.reports.plots.strips import WHOLE
from costproof.reports.roofline import roofline_svg
from costproof.run.plot import read
from tests.reports.test_counters import counted, report
from tests.reports.test_peaks_text import CALLS, peaks
from tests.support.running import costproof as command
from tests.support.toy import hostile, toy
from tests.support.written import dump, write_capture

needs_matplotlib = pytest.mark.skipif(
    installed("matplotlib") is None, reason="matplotlib is not installed: the extra [plot]"
)


def by_metric(capture: Capture) -> dict[str, dict[tuple[str, ...], int | None]]:
    return {one.metric: one.parts for one in bars.shares(capture)}


def test_shares_are_those_of_the_stages() -> None:
    found = by_metric(toy())
    # By hand, on tests.support.toy.
    assert found["flops"] == {("sam",): 1024 + 768, ("decode",): 864}
    assert found["params"] == {("sam",): 40, ("clip",): 7, ("decode",): 36}
    assert found["weight_read_bytes"] == {("sam",): 4 * 40, ("decode",): 216}
    assert "calls" not in found
    assert [one.whole for one in bars.shares(toy()) if one.metric == "flops"] == [2656]


def test_parameters_of_modules_in_two_stages_are_shown_once() -> None:
    nodes = (
        CostNode("sam", "", "a", "", {"params": 5}),
        CostNode("sam", "", "both", "", {"params": 3}),
        CostNode("decode", "", "both", "", {"params": 3}),
    )
    made = Ledger("analytic", nodes, ("params",), ("sam", "clip", "decode"))
    (one,) = bars.shares(replace(toy(), ledgers=(made,)))
    assert (one.parts, one.whole) == ({("sam",): 5, ("sam", "decode"): 3}, 8)


def test_a_share_that_is_not_known_stays_so() -> None:
    nodes = (CostNode("sam", "x", "a", "k", {"flops": 5}), CostNode("decode", "x", "b", "k", {"flops": None}))
    made = Ledger("static", nodes, ("flops",), ("sam", "clip", "decode"))
    (one,) = bars.shares(replace(toy(), ledgers=(made,)))
    assert (one.parts, one.whole) == ({("sam",): 5, ("decode",): None}, None)


ROWS = (
    "batch,heads,kv,flops,a.flops,b.flops\n"
    "2,8,4,20,15,5\n"
    "1,8,4,10,5,5\n"
    "2,16,8,40,35,5\n"
    "1,16,8,30,25,5\n"
)  # fmt: skip


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_lines_go_through_the_first_row_in_the_order_of_numbers(tmp_path: Path) -> None:
    (strip,), heading = strips.strips(strips.of_csv(written(tmp_path / "made.csv", ROWS)))
    assert heading == "made, around batch 2, heads/kv 8/4"
    batch, heads = strip.lines
    assert (batch.name, batch.at) == ("batch", [1, 2])
    assert batch.stages == {WHOLE: [10, 20], "a": [5, 15], "b": [5, 5]}
    assert (heads.name, heads.at, heads.stages[WHOLE]) == ("heads/kv", ["8/4", "16/8"], [20, 40])
    assert strip.heat is not None
    assert (strip.heat.at, strip.heat.values) == (([1, 2], ["8/4", "16/8"]), [[10, 30], [20, 40]])


def test_a_hole_of_the_plane_stays_one(tmp_path: Path) -> None:
    rows = ROWS.replace("1,16,8,30,25,5\n", "") + "3,16,8,60,55,5\n"
    (strip,), _ = strips.strips(strips.of_csv(written(tmp_path / "made.csv", rows)))
    assert strip.heat is not None
    assert strip.heat.values == [[10, None], [20, 40], [None, 60]]


def test_long_lines_are_thinned_with_both_ends() -> None:
    rows = [(n, 2 * n) for n in range(10_000, 0, -1)]
    (strip,), _ = strips.strips(strips.SweepTable("x", ("n",), ("flops",), rows))
    at = strip.lines[0].at
    assert (len(at), at[0], at[-1], strip.lines[0].stages[WHOLE][-1]) == (200, 1, 10_000, 20_000)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "flops\n1\n", "batch,flops\n1,2,3\n", "batch,flops\n1,-2\n"])
def test_a_table_that_is_not_a_sweep(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="sweep"):
        strips.of_csv(written(tmp_path / "x.csv", text))


def test_a_sweep_is_the_same_as_json_and_csv(tmp_path: Path) -> None:
    made = costproof.sweep("deepseek-ocr", {"grid": "1x2,3x3", "batch": "1,2"}, metrics=["flops", "params"])
    found = []
    for name in ("a.json", "a.csv"):
        made.write(tmp_path / name)
        rows = read(tmp_path / name)
        assert isinstance(rows, strips.SweepTable)
        found.append(strips.strips(rows)[0])
    assert found[0] == found[1]
    assert found[0][0].lines[1].at == ["1x2", "3x3"] or found[0][0].lines[0].at == ["1x2", "3x3"]


@needs_matplotlib
def test_the_same_data_have_the_same_bytes(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", replace(counted(), peaks=()))
    dump(tmp_path / "p.json", PEAKS, peaks(*CALLS))
    (tmp_path / "s.csv").write_text(ROWS)
    for name, pictures in (("c.json", ["shares", "counters"]), ("p.json", ["p"]), ("s.csv", ["s"])):
        first, second = (costproof.plot(tmp_path / name, ("svg", "png")) for _ in range(2))
        assert first == second
        assert list(first) == [f"{p}.{kind}" for kind in ("svg", "png") for p in pictures]
        for file, picture in first.items():
            assert picture.startswith(b"\x89PNG" if file.endswith("png") else b"<?xml")
            assert b"<dc:date>" not in picture


@needs_matplotlib
def test_pictures_say_what_is_not_known() -> None:
    drawn = costproof.plot(peaks(*CALLS))["peaks.svg"].decode()
    assert drawn.count("not known") == 2
    assert "no sum: " in costproof.plot(report())["counters.svg"].decode()


@needs_matplotlib
def test_names_are_text() -> None:
    drawn = costproof.plot(hostile())["shares.svg"].decode()
    assert "<script" not in drawn
    assert "c&lt;script&gt;" in drawn


def pixel(picture: bytes, x: int, y: int) -> tuple[int, ...]:
    """Of a PNG of ``raster``, at a place of its SVG."""
    from PIL import Image

    with Image.open(BytesIO(picture)) as image:
        return tuple(image.convert("RGB").getpixel((2 * x, 2 * y)))


@needs_matplotlib
def test_a_png_has_the_shapes_of_its_svg() -> None:
    pytest.importorskip("PIL")
    made = figure.png(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 80"><style>.a .b { fill: #00ff00; }</style>'
        '<rect width="100" height="80" fill="#ffffff"/>'
        '<g transform="translate(4,5)"><g class="a" transform="translate(6,15)">'
        '<rect class="b" x="0" y="0" width="20" height="20"/><circle cx="50" cy="10" r="8" fill="#0000ff"/></g></g>'
        '<path d="M80,70 H96" stroke="#ff0000" stroke-width="4" fill="none"/></svg>'
    )
    assert (pixel(made, 28, 30), pixel(made, 60, 30)) == ((0, 255, 0), (0, 0, 255))
    assert pixel(made, 88, 70) == (255, 0, 0)
    assert (pixel(made, 5, 30), pixel(made, 20, 45), pixel(made, 72, 30)) == ((255,) * 3,) * 3


@needs_matplotlib
def test_a_png_has_the_text_of_its_svg_in_the_same_bytes() -> None:
    pytest.importorskip("PIL")
    box = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 60 30"><rect width="60" height="30" fill="#fff"/>{}</svg>'
    )
    said = box.format('<text x="5" y="20" font-family="no such font, sans-serif" font-size="20">HHH</text>')
    made = figure.png(said)
    assert (0, 0, 0) in {pixel(made, x, 12) for x in range(60)}
    assert made == figure.png(said) != figure.png(box.format(""))
    with pytest.raises(ValueError, match="root"):
        figure.png("<svg")


@needs_matplotlib
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["parts"][0]["at_roof"].update(seconds="x"), "$.parts[0].at_roof.seconds"),
        (lambda d: d["parts"][0]["at_roof"].update(compute_s="1/0"), "$.parts[0].at_roof.compute_s"),
        (lambda d: d["parts"][0]["at_roof"].update(flops=1), "$.parts[0].at_roof.kept"),
        (lambda d: d["parts"][0]["at_roof"].update(bytes=10**299), "$.parts[0].at_roof"),
        (lambda d: d["parts"][0].update(stage="zzz"), "$.parts[0].stage"),
        (lambda d: d["stages"][0].update(compute_bound_s="-1"), "$.stages[0].compute_bound_s"),
        (lambda d: d["stages"][0]["modules"].update(seconds="1e9999999"), "$.stages[0].modules.seconds"),
        (lambda d: d["run"]["floor"].update(intensity="0/0"), "$.run.floor.intensity"),
        (lambda d: d.update(bandwidth=0), "$.bandwidth"),
        (lambda d: d.update(peak_flops=10**299), "$.peak_flops"),
        (lambda d: d["stages"].append(d["stages"][0]), "$.stages"),
    ],
)
def test_a_roofline_that_contradicts_itself_is_not_drawn(
    change: Callable[[Any], object], place: str, rooflined: dict[str, Any], tmp_path: Path
) -> None:
    data = json.loads(json.dumps(rooflined))
    change(data)
    file = tmp_path / "r.json"
    file.write_text(json.dumps(data))
    with pytest.raises(Problems, match="contradicts itself") as caught:
        costproof.plot(file)
    assert str(caught.value.problems[0].where) == place


@pytest.fixture(scope="module")
def rooflined() -> dict[str, Any]:
    return to_data(ROOFLINE, costproof.roofline("gpt2", on="h100-sxm"))


@pytest.mark.parametrize("row", [[1], [1, 2, 3], [1, "1/3"], [1, None], [1, -2], [1, 1.5], []])
def test_a_row_that_is_none_of_its_sweep(row: list[Any], tmp_path: Path) -> None:
    made = {
        "schema": "costproof/sweep", "schema_version": "1.0", "target": {"name": "t", "config": {}}, "workload": {},
        "environment": {}, "columns": ["batch", "flops"], "points": 2, "rows": 2, "refused": {},
    }  # fmt: skip
    file = tmp_path / "s.json"
    file.write_text(json.dumps({**made, "data": [[1, 2], [2, 4]]}))
    assert list(costproof.plot(file)) == ["s.svg"]
    file.write_text(json.dumps({**made, "data": [[1, 2], row]}))
    with pytest.raises(BadInput, match="not a row of a sweep"):
        costproof.plot(file)
    file.write_text(json.dumps({**made, "columns": ["batch", "flops", "x"], "data": [[1, 2, 3]]}))
    with pytest.raises(BadInput, match="not a sweep"):
        costproof.plot(file)


def test_a_roofline_is_one_drawing() -> None:
    found = costproof.roofline("llama-3.1-8b", on="h100-sxm")
    assert costproof.plot(found) == {"roofline.svg": roofline_svg(found).encode()}
    assert costproof.plot(found, "png")["roofline.png"].startswith(b"\x89PNG")


@needs_matplotlib
def test_the_command_writes_beside_the_file(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", toy())
    done = command("plot", "c.json", "-f", "svg,png", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "Wrote shares.svg\nWrote shares.png\n")
    wrong = command("plot", "c.json", "--only", "peaks", "-o", "new", cwd=tmp_path)
    assert wrong.code == 2
    assert "costproof report TARGET --peaks" in wrong.stderr
    assert "did you mean shares" in command("plot", "c.json", "--only", "share", cwd=tmp_path).stderr
    assert command("plot", "c.json", "-f", "gif", cwd=tmp_path).code == 2
    assert not (tmp_path / "new").exists()
