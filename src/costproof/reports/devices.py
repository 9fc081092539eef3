"""Report devices as text: a table of all, or one with its quoted sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from costproof.estimate.hardware import FIGURES, HOST_FIGURES, Device, DeviceFigure, DevicePeak
from costproof.reports.escape import visible
from costproof.reports.screen import align_table, fill_lines
from costproof.views.numbers import exact, human

_HEAD: Final = ("name", "device", "dense bfloat16", "bandwidth", "memory", "sources")
UNKNOWN: Final = "not known"


def devices_text(devices: Iterable[Device], width: int | None = None) -> str:
    """Return a table with a row for each device."""
    return fill_lines(align_table(_HEAD, [_line(d) for d in devices], 2, width, keys=1), width)


def _line(device: Device) -> tuple[str, ...]:
    peak = device.peak("bfloat16")
    rates = (
        UNKNOWN if peak is None else human(peak.flops, "FLOP/s"),
        _short(device.bandwidth, "B/s"),
        _short(device.memory, "B"),
    )
    return (device.name, visible(device.title), *rates, str(len(device.sources)))


def _short(figure: DeviceFigure | None, unit: str) -> str:
    return UNKNOWN if figure is None else human(figure.value, unit, places=3)


def device_text(device: Device, width: int | None = None) -> str:
    """Return the figures of a device, each with its quotations, and its sources."""
    return fill_lines(_lines(device), width)


def _lines(device: Device) -> Iterator[str]:
    said = {"published": "published", "measured": "measured: what was reached, not what is possible"}
    yield f"{device.name}: {device.title} ({said[device.origin]})"
    for peak in device.peaks:
        yield ""
        yield f"{exact(peak.flops)} FLOP/s: {_peak(peak)}"
        yield from (f"  [{q.source}] {q.text}" for q in peak.quotes)
    if not device.peaks:
        yield from ("", "no peak is known")
    known = device.figures()
    for name, (title, unit, _) in {**FIGURES, **HOST_FIGURES}.items():
        figure = known.get(name)
        if figure is None and name in HOST_FIGURES:
            continue
        yield ""
        if figure is None:
            yield f"{UNKNOWN}: {title}"
            continue
        yield f"{exact(figure.value)} {unit}: {title}"
        yield from (f"  [{q.source}] {q.text}" for q in figure.quotes)
    yield ""
    for name, source in device.sources.items():
        yield f"[{name}] {source.title}, {'read' if source.url else 'measured'} {source.read}"
        if source.url:
            yield f"  {source.url}"


def _peak(peak: DevicePeak) -> str:
    sums = "" if peak.accumulate is None else f", sums in {peak.accumulate}"
    return f"peak of {peak.dtype}, {peak.sparsity}, {peak.unit} units{sums}"
