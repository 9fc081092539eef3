"""Report as text: the operators of a stage, the coverage of operator rules, and devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from math import inf
from typing import Final

from costproof.estimate.hardware import FIGURES, HOST_FIGURES, Device, DeviceFigure, DevicePeak
from costproof.ledger.callgraph import OperatorLine, OperatorListing
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode, Ledger, at_most, exact_sum, total
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.screen import align_table, fill_lines
from costproof.views.module_tree import pattern
from costproof.views.numbers import exact, human, share

_LAYER: Final = re.compile(r"(.*?\.\d+)(?:\.|$)")
_READS: Final = 60
"""Maximum number of characters of an operator's arguments in a listing."""


def listing_text(found: Sequence[OperatorListing], width: int | None = None) -> str:
    """Return the operators of a stage as lines ``%node = operator(arguments) -> shapes``, with FLOPs, share, bytes."""
    return "\n".join(fill_lines(_listing(one), width) for one in found)


def _listing(found: OperatorListing) -> Iterator[str]:
    whole = exact_sum(line.flops for line in found.lines)
    many = plural(len(found.lines), "operator")
    yield visible(f"{found.stage}[{found.invocation}], export {found.part}: {many}, {exact(whole)} FLOP")
    if found.reuse is not None:
        of = found.reuse
        yield (
            f"  moved: {exact(of.floor)} B at least, {exact(of.fused)} B module by module, "
            f"{exact(of.unfused)} B operator by operator"
        )
    for layers in _alike(found.lines):
        first = layers[0][1]
        if len(layers) > 1:
            yield visible(f"  for {len(layers)}: {pattern([path for path, _ in layers])}")
        for line in (x for x in first if x.returns):  # checks return nothing
            yield visible(_line(line, whole, "    " if len(layers) > 1 else "  "))


def _alike(lines: Sequence[OperatorLine]) -> list[list[tuple[str, list[OperatorLine]]]]:
    """Return groups of consecutive equal layers; each layer is (path, operator lines)."""
    runs: list[list[tuple[str, list[OperatorLine]]]] = []
    for path, some in layers(lines):
        before = runs[-1][-1] if runs else None
        if before is not None and path and before[0] and form(*before) == form(path, some):
            runs[-1].append((path, some))
        else:
            runs.append([(path, some)])
    return runs


def layers(lines: Sequence[OperatorLine]) -> list[tuple[str, list[OperatorLine]]]:
    """Split operator lines by layer into (layer path, consecutive lines); the path is empty outside of layers."""
    return [(path, list(some)) for path, some in groupby(lines, key=lambda x: _layer(x.module))]


def _layer(module: str) -> str:
    found = _LAYER.match(module)
    return found[1] if found else ""


def form(path: str, lines: Sequence[OperatorLine]) -> tuple[object, ...]:
    """Return a key that equal layers share: module names, operators, shapes and costs, without node names."""
    own = ((x.operator, x.module[len(path) :], x.returns, x.flops, x.vector_flops, x.why, x.bytes) for x in lines)
    return (path.rpartition(".")[0], *own)


def _line(line: OperatorLine, whole: int | None, indent: str) -> str:
    reads = ", ".join(line.reads)
    reads = reads if len(reads) <= _READS else reads[: _READS - 1] + "…"
    work = [f"{exact(line.flops)} FLOP {share(line.flops, whole)}".rstrip()] if line.flops != 0 else []
    work += [f"{exact(line.vector_flops)} vector FLOP"] if line.vector_flops not in (0, None) else []
    work += [f"{exact(line.bytes)} B"] if line.bytes else []
    said = "; ".join([*work, *filter(None, [line.why])])
    made = f"{indent}%{line.label} = {line.operator}({reads}) -> {', '.join(line.returns)}"
    return f"{made}  # {said + '; ' if said else ''}{line.module or '(root)'}"


def coverage_text(capture: Capture, glob: str = "*", width: int | None = None) -> str:
    """Return a table per source of operator kinds with their FLOPs, and the operators without a rule."""
    lines: list[str] = []
    for ledger in capture.ledgers:
        if "flops" in ledger.metrics:
            lines += [*_coverage_table(ledger, glob, width), ""]
    unknown = [(x.source, op) for x in capture.ledgers for op in x.unknown_ops if fnmatchcase(op.op, glob)]
    for source, op in unknown:
        lines.append(
            f"no rule: {source} {visible(op.op)} in {op.stage} {visible(op.module)}, {plural(op.count, 'call')}, "
            f"{at_most(op.bound_flops)} ({visible(op.why)})"
        )
    lines += [] if unknown else ["Every operator that computes has a rule."]
    return fill_lines(lines, width)


def _coverage_table(ledger: Ledger, glob: str, width: int | None) -> list[str]:
    kinds: dict[str, list[CostNode]] = {}
    for n in ledger.nodes:
        if n.kind and fnmatchcase(n.kind, glob):
            kinds.setdefault(n.kind, []).append(n)
    sums = {kind: (total(nodes, "flops"), total(nodes, "vector_flops")) for kind, nodes in kinds.items()}
    # Unknown operators come first, since they may be the largest.
    ordered = sorted(sums.items(), key=lambda item: (*(-x if x is not None else -inf for x in item[1]), item[0]))
    whole = exact_sum(flops for flops, _ in sums.values())
    rows = [
        (visible(k), exact(len({n.module for n in kinds[k]})), exact(flops), share(flops, whole), exact(vector))
        for k, (flops, vector) in ordered
    ]
    return align_table((ledger.source, "modules", "FLOPs", "share", "vector FLOPs"), rows, width=width)


_HEAD: Final = ("name", "device", "dense bfloat16", "bandwidth", "memory", "sources")
UNKNOWN: Final = "not known"


def devices_text(devices: Iterable[Device], width: int | None = None) -> str:
    """Return a table with a row for each device."""
    return fill_lines(align_table(_HEAD, [_device_row(d) for d in devices], 2, width, keys=1), width)


def _device_row(device: Device) -> tuple[str, ...]:
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
    """Return a device's rates and sizes, each with the quoted passage it comes from, and the list of sources."""
    return fill_lines(_device_lines(device), width)


def _device_lines(device: Device) -> Iterator[str]:
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
