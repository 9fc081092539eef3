"""The files of devices: every figure stands in a quote, names are exact, and a wrong file says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pytest

from costproof import api
from costproof.cli.params import DEVICE
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.hardware import DEVICE as DEVICE_FILE
from costproof.estimate.hardware import (
    HOST_FIGURES,
    Device,
    DeviceFigure,
    DevicePeak,
    FigureQuote,
    FigureSource,
    machine,
    read_device,
    registry,
)
from costproof.estimate.roofline import roof
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.schema import to_data
from costproof.reports.listing import device_text
from tests.conftest import Golden
from tests.support.running import costproof

NAMES = api.machines()
FOLDER = Path(__file__).parents[2] / "src/costproof/estimate/devices"
SCALES = [Fraction(10) ** n for n in (0, 6, 9, 12)] + [Fraction(2**30)]
"""What a number in a quote may be multiplied by: as it stands, MHz, GB, TFLOPS, GiB."""


def numbers(quotes: tuple[FigureQuote, ...]) -> set[Fraction]:
    """Every number that stands in the quotes."""
    texts = (quote.text.replace(",", "") for quote in quotes)
    return {Fraction(found) for text in texts for found in re.findall(r"\d+(?:\.\d+)?", text)}


def figures(found: Device) -> Iterator[tuple[str, int, tuple[FigureQuote, ...], bool]]:
    """Every number of a device: what it is, its value, its quotes, whether it is a dense peak."""
    for peak in found.peaks:
        yield f"{peak.dtype} {peak.sparsity} {peak.unit}", peak.flops, peak.quotes, peak.sparsity == "dense"
    for name, figure in found.figures().items():
        yield name, figure.value, figure.quotes, False


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_stands_in_a_quote_of_it(name: str) -> None:
    found = api.machine(name)
    assert found.name == name
    for what, value, quotes, dense in figures(found):
        known = numbers(quotes)
        # "312/624", where the 3 of footnote 3 follows without a space; and a figure that is said with sparsity alone:
        # without it everything is half as much.
        with_sparsity = ("Specifications 1/2 lower without sparsity", "| Sparsity")
        halved = dense and any(words in quote.text for quote in quotes for words in with_sparsity)
        # Rates of links are of one direction; a source that says "bidirectional" gives both together.
        halved |= what == "interconnect" and any("Bidirectional" in quote.text for quote in quotes)
        known |= {n / 2 for n in known} if halved else set()
        known |= {Fraction(n // 10) for n in known if any(quote.source == "ampere" for quote in quotes)}
        assert any(value == n * scale for n in known for scale in SCALES), f"{what}: {value:,} is in none of {quotes}"


def test_dense_is_never_more_than_half_of_sparse() -> None:
    for name in NAMES:
        peaks = {(p.dtype, p.unit, p.sparsity): p.flops for p in api.machine(name).peaks}
        for (dtype, unit, sparsity), flops in peaks.items():
            if sparsity == "sparse":
                # Data sheets round: 362.05 and 733 (L40S), 494.5 and 989 (H100).
                assert abs(2 * peaks[dtype, unit, "dense"] - flops) <= flops // 80, (name, dtype)


def test_exact_devices_have_figures_of_their_own() -> None:
    dense = {name: getattr(api.machine(name).peak("bfloat16"), "flops", None) for name in NAMES}
    assert dense["h100-sxm"] == 989 * 10**12
    assert dense["h100-pcie"] == 756 * 10**12
    assert dense["mi300x"] == dense["mi325x"] == 13074 * 10**11
    assert dense["mi355x"] == 25166 * 10**11  # AMD rounds it to 2.5 PFLOPS, below what the device can do
    assert dense["gb200"] == dense["gb300"] == 2500 * 10**12  # the HGX variant, b200-sxm, has 2250
    assert dense["l40"] == 181050 * 10**9  # 362.1 with sparsity
    assert dense["v100-sxm2-16gb"] is None  # it multiplies float16 only
    assert dense["h20"] is None  # the sources say 147 and 148
    bandwidth = {name: getattr(api.machine(name).bandwidth, "value", None) for name in NAMES}
    assert bandwidth["a100-sxm-40gb"] == 1555 * 10**9
    assert bandwidth["a100-sxm-80gb"] == 2039 * 10**9
    assert bandwidth["a100-pcie-80gb"] == 1935 * 10**9
    assert bandwidth["tpu-v5e"] == 819 * 10**9  # another copy of the page says 800 GiBps, JAX 820 GB/s
    assert bandwidth["l4"] == 300 * 10**9  # torch 2.13's own table has that of an H100 here


def test_links_and_nodes() -> None:
    """A link has an equal part of the rate of all: NVLink 2 to 4 have 25 GB/s in one direction, NVLink 5 has 50."""
    each = {}
    for name in NAMES:
        found = api.machine(name)
        if found.links is not None:
            assert found.interconnect is not None
            more = (getattr(figure, "value", None) for figure in (found.node, found.network))
            each[name] = (found.interconnect.value / found.links.value, *more)
    fast = 50 * 10**9
    assert each["h100-sxm"] == each["h200-sxm"] == each["h20"] == (25e9, 8, fast)
    assert each["a100-sxm-40gb"] == each["a100-sxm-80gb"] == (25e9, 8, 25 * 10**9)
    assert each["b200-sxm"] == (50e9, 8, fast)
    assert each["gb200"] == each["gb300"] == (50e9, 72, None)
    assert each["mi300x"] == each["mi325x"] == (64e9, 8, None)
    assert (each["tpu-v5e"], each["tpu-v6e"]) == ((50e9, 256, None), (100e9, 256, None))
    assert each["v100-sxm2-16gb"] == (25e9, None, None)


@pytest.mark.parametrize("name", ["h100", "H100-SXM", "b200", "gb200-sxm", "h100-sxm ", "NVIDIA H100 SXM, 80 GB", ""])
def test_only_exact_names(name: str) -> None:
    with pytest.raises(BadInput, match="there is no such device"):
        api.machine(name)


def test_no_file_is_read_to_name_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.estimate.hardware.read_device", lambda path: pytest.fail(f"{path} was read"))
    assert "h100-sxm" in registry().all()


def written(folder: Path, change: dict[str, Any]) -> Path:
    """The file of a device, with some keys put in."""
    data = json.loads((FOLDER / "l4.json").read_text())
    path = folder / "mine.json"
    path.write_text(json.dumps({**data, **change}))
    return path


ONE = {"dtype": "bfloat16", "flops": 10**12, "sparsity": "dense", "unit": "matrix"}
QUOTE = {"source": "sourcecode", "text": "1 TFLOPS"}


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        ({"peaks": [ONE]}, "$.peaks[0].quotes", "required"),
        ({"peaks": [{**ONE, "quotes": []}]}, "$.peaks[0].quotes", "without a source"),
        ({"peaks": [{**ONE, "quotes": [{**QUOTE, "source": "nobody"}]}]}, "quotes[0].source", "no such source"),
        ({"peaks": [{**ONE, "quotes": [{**QUOTE, "text": " "}]}]}, "quotes[0].text", "empty quote"),
        ({"peaks": [{**ONE, "flops": 989, "quotes": [QUOTE]}]}, "$.peaks[0].flops", "out of range"),
        ({"peaks": [{**ONE, "flops": 98.9, "quotes": [QUOTE]}]}, "$.peaks[0].flops", "valid integer"),
        ({"peaks": [{**ONE, "quotes": [QUOTE]}] * 2}, "$.peaks", "twice"),
        ({"peaks": [{**ONE, "sparsity": "half", "quotes": [QUOTE]}]}, "$.peaks[0].sparsity", "'dense' or 'sparse'"),
        ({"bandwidth": {"value": 300, "quotes": [QUOTE]}}, "$.bandwidth.value", "out of range"),
        ({"memory": {"value": 24, "quotes": [QUOTE]}}, "$.memory.value", "out of range"),
        ({"bandwidth": {"value": 10**31, "quotes": [QUOTE]}}, "$.bandwidth.value", "out of range"),
        ({"peaks": [{**ONE, "flops": 10**299, "quotes": [QUOTE]}]}, "$.peaks[0].flops", "out of range"),
        ({"sources": {"sourcecode": {"title": "t", "read": "2026-01-01"}}}, "$.sources.sourcecode.url", "no address"),
        ({"bandwith": {"value": 1, "quotes": []}}, "$.bandwith", "Unexpected keyword"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_where(change: Any, where: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        read_device(written(tmp_path, change))
    assert where in str(caught.value)
    assert said in str(caught.value)
    assert "costproof machine --measure" in str(caught.value)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = written(tmp_path, {"name": "mine", "peaks": [{**ONE, "quotes": [QUOTE]}]})
    assert api.machine(path).peak("bfloat16") == api.machine(str(path)).peaks[0]
    assert costproof("machine", str(path), cwd=tmp_path).stdout.startswith("mine: NVIDIA L4, 24 GB (published)\n")


def test_a_sparse_peak_makes_no_roof(tmp_path: Path) -> None:
    path = written(tmp_path, {"peaks": [{**ONE, "sparsity": "sparse", "quotes": [QUOTE]}]})
    assert api.machine(path).peak("bfloat16") is None


def test_what_is_measured_is_marked_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.tracers.device_benchmark._fastest", lambda *_: (50_000_000, 5))
    monkeypatch.setattr("costproof.tracers.device_benchmark._COPIED", {"cpu": 2**24})
    done = costproof("machine", "mine", "--measure", "-f", "json", "-o", "mine.json", cwd=tmp_path)
    steps = "machine: measuring the machine (0 of 5)\nhost times: host times (0 of 3)\n"
    assert (done.code, done.stderr) == (0, f"{steps}Wrote mine.json\n")
    found = api.machine(tmp_path / "mine.json")
    assert (found.name, found.origin) == ("mine", "measured")
    # A convolution, 2 x 256 x 256 x 9 FLOP for each of 16 x 16 x 16 places, is more than 2 x 512^3, in 1/20 s both.
    assert {p.dtype: p.flops for p in found.peaks}["float32"] == 2 * 256 * 256 * 9 * 16**3 * 20 > 2 * 512**3 * 20
    # 2^24 bytes are read and 2^24 written in 1/20 s.
    assert found.bandwidth is not None
    assert found.bandwidth.value == 2 * 2**24 * 20
    assert [source.url for source in found.sources.values()] == [""]


def test_a_machine_is_named_or_measured(tmp_path: Path) -> None:
    done = costproof("machine", cwd=tmp_path)
    assert done.code == 2
    assert "costproof machines lists them; or --measure" in done.stderr


def test_the_shell_completes_devices() -> None:
    def offered(typed: str) -> list[str]:
        context = click.Context(click.Command("roofline"))
        return [item.value for item in DEVICE.shell_complete(context, click.Argument(["device"]), typed)]

    assert offered("h100-") == ["h100-nvl", "h100-pcie", "h100-sxm"]
    assert offered("gb") == ["gb200", "gb300"]
    assert offered("gx") == []


def test_the_list(golden: Golden, tmp_path: Path) -> None:
    golden("cli/machines.txt", costproof("machines", cwd=tmp_path).stdout)
    golden("cli/machine.txt", costproof("machine", "l4", cwd=tmp_path).stdout)


def test_the_bandwidth_is_the_faster_of_copying_and_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    from costproof.tracers import device_benchmark

    monkeypatch.setattr(device_benchmark, "_COPIED", {"cpu": 1_000})
    monkeypatch.setattr(device_benchmark, "_ROWS", 10)
    # 1,000 bytes: copied in 100 ns they are 2,000 in 100 ns; read in 40 ns they are 1,000 in 40 ns.
    for copied, read, best in ((100, 40, 25 * 10**9), (100, 80, 20 * 10**9)):
        spent = iter((copied, read))
        monkeypatch.setattr(device_benchmark, "_fastest", lambda *_, spent=spent: (next(spent), 5))
        found = device_benchmark._bandwidth("cpu")
        assert found.value == best
        assert f"in {copied} ns" in found.quotes[0].text
        assert f"in {read} ns" in found.quotes[1].text


def test_a_device_without_a_peak_says_why() -> None:
    # Two sources give 147 and 148 TFLOP/s.
    with pytest.raises(BadInput, match="the dense peak of this dtype is not known") as caught:
        roof(machine("h20"), "bfloat16")
    assert caught.value.expected == "a dense peak; no source gives one, or those that do disagree"


def test_of_two_measurements_the_higher_rates_count() -> None:
    def seen(width: int, **flops: int) -> Device:
        peaks = tuple(DevicePeak(dtype, rate, "dense", "matrix", ()) for dtype, rate in flops.items())
        return Device("here", "here", "measured", {}, peaks, DeviceFigure(width, ()))

    both = seen(50, float32=100, bfloat16=300).or_faster(seen(40, float32=120, bfloat16=290, float64=7))
    assert {p.dtype: p.flops for p in both.peaks} == {"float32": 120, "bfloat16": 300, "float64": 7}
    assert both.bandwidth is not None
    assert both.bandwidth.value == 50


def test_of_two_measurements_the_lower_host_costs_count() -> None:
    def seen(**costs: int) -> Device:
        host: dict[str, Any] = {name: DeviceFigure(value, ()) for name, value in costs.items()}
        return Device("here", "here", "measured", {}, (), **host)

    both = seen(module_call=500, graph_gap=200).or_faster(seen(module_call=400, graph_gap=300, graph_replay=9))
    assert {name: f.value for name, f in both.figures().items()} == {
        "module_call": 400, "graph_gap": 200, "graph_replay": 9,
    }  # fmt: skip


def test_host_costs_are_kept_with_the_device_file(tmp_path: Path) -> None:
    said = (FigureQuote("here", "by hand"),)
    host: dict[str, Any] = {name: DeviceFigure(1_000 + i, said) for i, name in enumerate(HOST_FIGURES)}
    made = Device("mine", "Mine", "measured", {"here": FigureSource("a test", "2026-11-26")}, (), **host)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(to_data(DEVICE_FILE, made)))
    assert read_device(path) == made
    text = device_text(made)
    assert "1,000 ns: host time of one module call" in text
    assert "1,005 ns: one replay of a CUDA graph, besides its kernels and gaps" in text
    # No data sheet has them: they are not missing there.
    assert "module call" not in device_text(machine("h100-sxm"))
    # A file of the version before has none of them.
    old = {name: value for name, value in to_data(DEVICE_FILE, made).items() if name not in HOST_FIGURES}
    path.write_text(json.dumps({**old, "schema_version": "1.0"}))
    assert read_device(path) == Device("mine", "Mine", "measured", made.sources, ())
    # Microseconds would be below any host cost.
    path.write_text(json.dumps(to_data(DEVICE_FILE, replace(made, launch_latency=DeviceFigure(5, said)))))
    with pytest.raises(Problems) as caught:
        read_device(path)
    (problem,) = caught.value.problems
    assert (problem.where, problem.got) == ("$.launch_latency.value", "5")


def test_squares_alone_end_the_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    from costproof.tracers import device_benchmark

    # Of squares of 512, 1024 and 2048 the last takes 50 ms; the convolution, whose rate is lower, takes longer.
    spent = iter((100_000, 1_000_000, 50_000_000, 10**9))
    monkeypatch.setattr(device_benchmark, "_fastest", lambda *_: (next(spent), 5))
    found = device_benchmark._peak("cpu", "float32")
    assert next(spent, None) is None
    assert found is not None
    assert found.flops == 2 * 512**3 * 10**4
    assert "products of two 512 x 512 matrices" in found.quotes[0].text


def test_a_piece_of_work_is_timed_often_enough_and_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from costproof.tracers import device_benchmark

    # Starts and ends, in turns: each time takes 30 ns, but the seventh, which takes 10.
    clock = iter([0, 30] * 6 + [0, 10] + [0, 30] * 3)
    monkeypatch.setattr("costproof.tracers.device_benchmark.time.perf_counter_ns", lambda: next(clock))
    # Five times are 150 ns: 200 are passed with the eighth, 6 x 30 + 10 + 30.
    assert device_benchmark._fastest("cpu", int, 200) == (10, 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "tf32", "bfloat16", "float16", "float8", "float4"])
def test_every_device_bounds_every_dtype_or_says_how_to(name: str, dtype: str) -> None:
    found = api.machine(name)
    known = {p.dtype: p.flops for p in found.peaks if p.sparsity == "dense" and p.unit == "matrix"}
    vector = {p.dtype: p.flops for p in found.peaks if p.sparsity == "dense" and p.unit == "vector"}
    if not (known | vector):
        with pytest.raises(BadInput, match="--math"):
            roof(found, dtype)
        return
    if dtype not in known and (dtype == "float4" or (dtype == "float8" and "float4" not in known)):
        with pytest.raises(BadInput, match=f"one of {next(iter(known))}"):
            roof(found, dtype)
        return
    of = roof(found, dtype)
    if dtype in known | vector:
        assert (of.dtype, of.flops) == (dtype, max(d[dtype] for d in (known, vector) if dtype in d))
    else:
        widest_first = ["float64", "float32", "tf32", "bfloat16", "float16", "float8", "float4"]
        assert of.flops == known[of.dtype]
        assert widest_first.index(of.dtype) > widest_first.index(dtype) or {of.dtype, dtype} == {"bfloat16", "float16"}


def test_the_nearest_narrower_dtype_bounds_an_unknown_peak() -> None:
    # 60 is half of the 120 TFLOPS with sparsity; the sources of the B200 give nothing between 16 bits and float64.
    assert [roof(api.machine(n), "float32").flops // 10**12 for n in ("l4", "a100-pcie-80gb", "b200-sxm")] == [
        60,
        156,
        2250,
    ]
    with pytest.raises(BadInput, match="no source gives one"):
        roof(api.machine("h20"), "float32")


def test_no_measured_peak_bounds_another_dtype() -> None:
    published = api.machine("l4")
    measured = replace(published, origin="measured", peaks=tuple(p for p in published.peaks if p.dtype == "bfloat16"))
    with pytest.raises(BadInput, match="dense peak of this dtype"):
        roof(measured, "float32")
    assert roof(measured, "bfloat16").flops == 120 * 10**12


def test_convolutions_of_float32_run_in_tf32() -> None:
    h100, mi300x = roof(api.machine("h100-sxm"), "float32"), roof(api.machine("mi300x"), "float32")
    assert (h100.flops // 10**11, h100.peaks["tf32"] // 10**11) == (670, 4945)
    assert mi300x.peaks["tf32"] == mi300x.flops  # no TF32 peak is known

    def taken(dtype: str, kind: str) -> dict[str, int]:
        return Arithmetic(dtype).of_kinds({kind: {"flops": 6}}).least

    assert taken("float32", "aten.conv2d") == {"tf32": 6}
    assert taken("float32", "aten.linear") == {"float32": 6}
    assert taken("bfloat16", "conv2d") == {"bfloat16": 6}
