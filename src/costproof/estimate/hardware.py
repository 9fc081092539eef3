"""Describe devices as data: one file for each exact device, with the source of every figure.

A figure that no source gives is absent; nothing is estimated. GB of data sheets are 10^9 bytes, TB/s 10^12 bytes per
second. Names are exact: ``h100-sxm`` and ``h100-pcie`` are two devices, and ``h100`` is none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.schema import FileKind, load
from costproof.plugins import Plugin, Registry

Sparsity = Literal["dense", "sparse"]
Unit = Literal["matrix", "vector"]
DeviceOrigin = Literal["published", "measured"]


@dataclass(frozen=True, slots=True)
class FigureSource:
    """A source of device figures, such as a data sheet."""

    title: str
    read: str
    """Day on which the source was read or the figure measured: ``2026-11-22``."""
    url: str = ""
    """Address of the source; empty if the figures were measured."""


@dataclass(frozen=True, slots=True)
class FigureQuote:
    """A verbatim quote from a source; ``…`` marks omissions."""

    source: str
    """Name of the source in :attr:`Device.sources`."""
    text: str


@dataclass(frozen=True, slots=True)
class DeviceFigure:
    """One figure of a device, such as its bandwidth, with its quotes."""

    value: int
    quotes: tuple[FigureQuote, ...]


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The peak rate of one kind of execution unit."""

    dtype: str
    """Dtype of the factors: ``bfloat16``, ``float16``, ``float8``, ``float4``, ``int8``, ``tf32``, ``float32``,
    ``float64``."""
    flops: int
    """FLOP per second, 2 per multiply-accumulate."""
    sparsity: Sparsity
    """``dense`` or ``sparse``; the latter counts products that structured sparsity skips, and bounds nothing."""
    unit: Unit
    quotes: tuple[FigureQuote, ...]
    accumulate: str | None = None
    """Dtype of the accumulation, if the source states it."""


@dataclass(frozen=True, slots=True)
class Device:
    """Figures of one exact device."""

    name: str
    title: str
    origin: DeviceOrigin
    """``measured``: rates that a machine reached and may exceed; ``published``: rates that the maker states."""
    sources: dict[str, FigureSource]
    peaks: tuple[DevicePeak, ...]
    bandwidth: DeviceFigure | None = None
    """Bytes per second between the device and its memory."""
    memory: DeviceFigure | None = None
    """Bytes of the device's memory."""
    interconnect: DeviceFigure | None = None
    """Bytes per second to the other devices of a node, in one direction, over all links.

    Data sheets often state both directions together.
    """
    links: DeviceFigure | None = None
    """Number of links to the other devices of a node, each with an equal share of :attr:`interconnect`."""
    node: DeviceFigure | None = None
    """Number of devices in the reference system that are connected at :attr:`interconnect`."""
    network: DeviceFigure | None = None
    """Bytes per second of one device to other nodes, in one direction, in the reference system."""
    clock: DeviceFigure | None = None
    """Clock rate in Hz at which the peaks are reached."""
    module_call: DeviceFigure | None = None
    """Host nanoseconds of one module call without its operators: ``Module.__call__``, hooks and ``forward``."""
    operator_in_run: DeviceFigure | None = None
    """Host nanoseconds of one operator in a forward, including its launches; absent on a processor."""
    operator_alone: DeviceFigure | None = None
    """Host nanoseconds of the same operators repeated in isolation; absent on a processor."""
    launch_latency: DeviceFigure | None = None
    """Nanoseconds from enqueueing a kernel to its start on an idle device; absent on a processor."""
    graph_gap: DeviceFigure | None = None
    """Nanoseconds that each kernel of a CUDA graph takes longer than in an eager run; absent on a processor."""
    graph_replay: DeviceFigure | None = None
    """Nanoseconds of replaying a CUDA graph on a busy device, besides kernels and gaps; absent on a processor."""

    def peak(self, dtype: str) -> DevicePeak | None:
        """Return the largest dense peak of a dtype over all units, or ``None`` if no source gives one."""
        found = [p for p in self.peaks if p.dtype == dtype and p.sparsity == "dense"]
        return max(found, key=lambda p: p.flops, default=None)

    @property
    def vector_peak(self) -> DevicePeak | None:
        """Return the largest dense peak of the vector units, or ``None`` if no source gives one."""
        found = [p for p in self.peaks if p.unit == "vector" and p.sparsity == "dense"]
        return max(found, key=lambda p: p.flops, default=None)

    def bounding_peak(self, dtype: str) -> DevicePeak | None:
        """Return the dense peak of a dtype, or else that of the nearest narrower dtype.

        That peak is an upper bound: units that multiply narrower factors are at least as fast. Measured peaks need not
        obey this, since a processor may emulate a narrow dtype; for them ``None`` is returned.
        """
        narrower = NARROWER.get(dtype, ()) if self.origin == "published" else ()
        return next((peak for peak in map(self.peak, (dtype, *narrower)) if peak is not None), None)

    def or_faster(self, other: Device) -> Device:
        """Return the device with the faster of two measurements of each figure, as other work slowed the other one."""
        rates = {p.dtype: p.flops for p in self.peaks}
        higher = {p.dtype: p for p in other.peaks if p.flops > rates.get(p.dtype, 0)}
        peaks = {p.dtype: p for p in self.peaks} | higher
        widths = [width for width in (self.bandwidth, other.bandwidth) if width is not None]
        best = max(widths, key=lambda width: width.value, default=None)
        host: dict[str, Any] = {}
        for name in HOST_FIGURES:
            known = [figure for figure in (getattr(self, name), getattr(other, name)) if figure is not None]
            host[name] = min(known, key=lambda figure: figure.value, default=None)
        return replace(self, peaks=tuple(peaks.values()), bandwidth=best, **host)

    def figures(self) -> dict[str, DeviceFigure]:
        """Return the known figures other than peaks, by name."""
        named = {name: getattr(self, name) for name in (*FIGURES, *HOST_FIGURES)}
        return {name: figure for name, figure in named.items() if figure is not None}


NARROWER: Final[dict[str, tuple[str, ...]]] = {
    "float64": ("tf32", "bfloat16", "float16", "float8", "float4"),
    "float32": ("tf32", "bfloat16", "float16", "float8", "float4"),
    "tf32": ("bfloat16", "float16", "float8", "float4"),
    "bfloat16": ("float16", "float8", "float4"),
    "float16": ("bfloat16", "float8", "float4"),
    "float8": ("float4",),
}
"""Dtypes whose peak is at least as high as a dtype's, nearest first, by dtype.

Not float32 for float64: the float32 peak may be that of vector units, and the float64 peak that of faster matrix units.
"""

LARGEST_FIGURE: Final = 10**30
"""Largest accepted value in a device file, far above the figures of any device."""
FIGURES: Final[dict[str, tuple[str, str, int]]] = {
    "bandwidth": ("bandwidth of the memory", "B/s", 10**8),
    "memory": ("memory", "B", 10**7),
    "interconnect": ("to the other devices of a node, one direction", "B/s", 10**7),
    "links": ("links to the other devices of a node", "links", 1),
    "node": ("devices of a node", "devices", 2),
    "network": ("to other nodes, one direction, in the reference system", "B/s", 10**7),
    "clock": ("clock", "Hz", 10**7),
}
"""(title, unit, lower limit) of each figure, by name; a value below the limit must be in a wrong unit."""
HOST_FIGURES: Final[dict[str, tuple[str, str, int]]] = {
    "module_call": ("host time of one module call", "ns", 100),
    "operator_in_run": ("host time of one operator in a forward", "ns", 100),
    "operator_alone": ("host time of one operator in isolation", "ns", 100),
    "launch_latency": ("from the enqueueing of a kernel to its start", "ns", 100),
    "graph_gap": ("from a kernel of a CUDA graph to the next", "ns", 0),
    "graph_replay": ("one replay of a CUDA graph, besides its kernels and gaps", "ns", 0),
}
"""(title, unit, lower limit) of times on a host, which only ``machine --measure`` gives, by name."""
_LEAST_PEAK: Final = 10**7
"""Lower limit of a peak, below which values must be in GFLOP/s; slow dtypes on a busy processor reach 10^9."""

DEVICE: Final = FileKind(name="costproof/device", version=(1, 3), type=Device)
_FOLDER: Final = Path(__file__).parent / "devices"
_AGAIN: Final = "costproof machine --measure -o FILE writes one; costproof machine h100-sxm -f json prints one"


def registry() -> Registry[Device]:
    """Return the registry of devices, of costproof and other installed packages, without reading device files."""
    files = sorted(_FOLDER.glob("*.json"))
    ours = (Plugin(f.stem, "", partial(read_device, f)) for f in files)
    return Registry("hardware", "device", tuple(ours), instance=Device, command="costproof machines")


def machines() -> tuple[str, ...]:
    """Return the names of all known devices, without reading device files."""
    return tuple(registry().listed())


def machine(name: str | os.PathLike[str]) -> Device:
    """Return a device, with the source of every figure.

    Args:
        name: one of :func:`machines`, or the path of a file that describes a device, which ends with ``.json``.

    Raises:
        BadInput: there is no such device or file, or the file does not describe a device.
    """
    text = os.fspath(name)
    return read_device(Path(text)) if text.endswith(".json") else registry().load(text)


def read_device(path: Path) -> Device:
    """Read the file of a device.

    Raises:
        BadInput: it cannot be read, or does not describe a device.
        Problems: everything that is wrong with its figures.
    """
    found = load(path, DEVICE, make_again=_AGAIN)
    problems = list(_problems(found))
    if problems:
        raise Problems(f"the device {path} has an invalid description", problems, fix=_AGAIN)
    return found


def _problems(found: Device) -> Iterator[BadInput]:
    for name, source in found.sources.items():
        if found.origin == "published" and not source.url.startswith(("https://", "http://")):
            yield BadInput("a source has no address", where=f"$.sources.{name}.url", expected="https://…")
    for number, peak in enumerate(found.peaks):
        where = f"$.peaks[{number}]"
        yield from _quote_problems(found, peak.quotes, where)
        if not _LEAST_PEAK <= peak.flops <= LARGEST_FIGURE:
            expected = f"FLOP a second, from {_LEAST_PEAK:,} to {LARGEST_FIGURE:,}"
            yield BadInput("a peak is out of range", where=f"{where}.flops", expected=expected, got=peak.flops)
    for (dtype, sparsity, unit), times in Counter((p.dtype, p.sparsity, p.unit) for p in found.peaks).items():
        if times > 1:
            yield BadInput("a peak occurs twice", where="$.peaks", got=f"{dtype}, {sparsity}, {unit}")
    for name, figure in found.figures().items():
        _, of, least = {**FIGURES, **HOST_FIGURES}[name]
        yield from _quote_problems(found, figure.quotes, f"$.{name}")
        if not least <= figure.value <= LARGEST_FIGURE:
            expected = f"{of}, from {least:,} to {LARGEST_FIGURE:,}"
            yield BadInput("a figure is out of range", where=f"$.{name}.value", expected=expected, got=figure.value)


def _quote_problems(found: Device, quotes: tuple[FigureQuote, ...], where: str) -> Iterator[BadInput]:
    if not quotes:
        yield BadInput("a figure without a source", where=f"{where}.quotes", expected="a quote of a source", got="[]")
    for number, quote in enumerate(quotes):
        at = f"{where}.quotes[{number}]"
        if quote.source not in found.sources:
            expected = "one of " + (", ".join(found.sources) or "$.sources, which is empty")
            yield BadInput("no such source", where=f"{at}.source", expected=expected, got=quote.source)
        if not quote.text.strip():
            yield BadInput("an empty quote", where=f"{at}.text", expected="the words of the source")
