"""Implement ``costproof.plot``: draw the content of a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from costproof.estimate.hardware import Device
from costproof.estimate.roofline import ROOFLINE, Roofline, roofline_in
from costproof.ledger.capture import Capture, parse_capture
from costproof.ledger.errors import BadInput, no_such
from costproof.ledger.files import read_json
from costproof.ledger.peaks import PEAKS, Peaks
from costproof.ledger.schema import from_data
from costproof.reports.plots import bars, figure, strips
from costproof.reports.plots.figure import KINDS, style
from costproof.reports.report import Report
from costproof.reports.roofline import roofline_svg
from costproof.run.roofline import roofline
from costproof.views.counters import COUNTERS, CounterReport, counter_report
from costproof.views.files import SWEEP
from costproof.views.manifest import capture_file

PICTURES: Final = ("shares", "roofline", "peaks", "counters", "sweep")
"""Names of all pictures."""
PlotData = Capture | Report | Roofline | Peaks | CounterReport | strips.SweepTable
_Picture = Callable[[str], bytes]


def plot(
    what: PlotData | str | os.PathLike[str],
    kinds: str | Iterable[str] = "svg",
    *,
    only: Iterable[str] = (),
    on: str | os.PathLike[str] | Device | None = None,
    named_first: Callable[[Iterable[str]], object] = list,
) -> dict[str, bytes]:
    """Draw the data of a file or an object; return the deterministic bytes of each picture, by file name.

    Args:
        what: a capture or a folder of reports (``shares.svg``; ``peaks.svg`` and ``counters.svg`` if they were
            requested), a sweep as JSON or CSV, or ``roofline.json``, ``peaks.json``, ``counters.json`` (one picture
            with the name of the file); or the object that such a file contains.
        kinds: ``"svg"``, ``"png"``, or both.
        only: pictures to draw (default: all that there are data for).
        on: a device: draw the ``roofline`` of a capture on it too.
        named_first: called with the names of the files before anything is drawn.

    Raises:
        BadInput: no such kind or picture, the file is none of these, or it has no data for a requested picture.
        Incomplete: matplotlib is not installed.
    """
    wanted = (kinds,) if isinstance(kinds, str) else tuple(dict.fromkeys(kinds))
    for kind in wanted:
        if kind not in KINDS:
            raise no_such("kind of picture", kind, KINDS)
    named = tuple(dict.fromkeys(only))
    for name in named:
        if name not in PICTURES:
            raise no_such("picture", name, PICTURES, where="--only")
    found = read(what) if isinstance(what, str | os.PathLike) else what
    known = _pictures(found, on)
    for name in named:
        if name not in known:
            raise BadInput(
                "there are no data for this picture",
                where=f"--only {name}",
                expected="one of " + ", ".join(known),
                fix=_FIX.get(name),
            )
    alone = Path(what).stem if isinstance(what, str | os.PathLike) and not isinstance(found, Capture) else None
    chosen = {name: draw for name, draw in known.items() if not named or name in named}
    files = {f"{alone or name}.{kind}": partial(draw, kind) for kind in wanted for name, draw in chosen.items()}
    named_first(files)
    with style():
        return {name: draw() for name, draw in files.items()}


_FIX: Final = {
    "roofline": "--on DEVICE",
    "peaks": "costproof report TARGET --peaks, or costproof peaks TARGET -o peaks.json",
    "counters": "costproof report TARGET --counters all, or costproof counters TARGET -o counters.json",
    "sweep": "costproof sweep TARGET --over NAME=VALUES -o FILE.json",
}


def _pictures(what: PlotData, on: str | os.PathLike[str] | Device | None) -> dict[str, _Picture]:
    if isinstance(what, strips.SweepTable):
        return {"sweep": lambda kind: strips.draw(*strips.strips(what), kind)}
    if isinstance(what, Roofline):
        return {"roofline": partial(_roofline, what)}
    if isinstance(what, Peaks):
        return {"peaks": partial(_peaks, what)}
    if isinstance(what, CounterReport):
        return {"counters": partial(bars.draw_counters, what)}
    report = what if isinstance(what, Report) else Report(what)
    capture = report.capture
    found: dict[str, _Picture] = {"shares": partial(bars.draw_shares, report)}
    if on is not None:
        found["roofline"] = partial(_roofline, roofline(capture, on=on))
    if capture.peaks:
        found["peaks"] = partial(_peaks, capture)
    if capture.counters is not None:
        found["counters"] = partial(bars.draw_counters, counter_report(capture, report.discrepancy, report.spent))
    return found


def _roofline(found: Roofline, kind: str) -> bytes:
    drawn = roofline_svg(found)
    return drawn.encode() if kind == "svg" else figure.png(drawn)


def _peaks(found: Peaks | Capture, kind: str) -> bytes:
    title = f"{found.target.title} at {found.workload.name}: live activations at the peak"
    return bars.draw_peaks(title, found.calls if isinstance(found, Peaks) else found.peaks, kind)


_KINDS: Final[Mapping[str, Callable[[Any, str], PlotData]]] = {
    SWEEP.name: strips.of_json,
    ROOFLINE.name: roofline_in,
    PEAKS.name: lambda data, where: from_data(
        data, PEAKS, where=where, make_again="costproof peaks TARGET -o peaks.json"
    ),
    COUNTERS.name: lambda data, where: from_data(
        data, COUNTERS, where=where, make_again="costproof counters TARGET -o counters.json"
    ),
}


def read(path: str | os.PathLike[str]) -> PlotData:
    """Read a file whose content can be drawn.

    Raises:
        BadInput, Problems: the file is none of these, or damaged.
    """
    file = capture_file(Path(path))
    if file.suffix == ".csv":
        return strips.of_csv(file)
    data = read_json(file, what="file")
    name = str(data.get("schema")) if isinstance(data, dict) else ""
    return _KINDS[name](data, str(file)) if name in _KINDS else parse_capture(data, where=str(file))
