"""Measure this machine's peak FLOP/s for each dtype, and its memory bandwidth by a large copy and a large read.

The fastest of several times is used for a roofline, because other work on the machine can only slow it down. On a GPU
with TF32, products of float32 are measured twice: as float32, and as TF32, in which torch runs convolutions by default.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import torch
from torch.nn.functional import conv2d

from costproof.estimate.hardware import Device, DeviceFigure, DevicePeak, FigureQuote, FigureSource
from costproof.ledger.errors import Incomplete
from costproof.ledger.progress import Progress, silent

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
_TIMES: Final = 5
_SPREAD: Final = 250_000_000
"""Least duration in nanoseconds over which a rate is measured, since a shared CPU may be slow for a while."""
_LONG: Final = 50_000_000
"""Nanoseconds of a matrix product above which a larger product reaches no higher rate."""
_SMALLEST: Final = 512
_LARGEST: Final = 16_384
_COPIED: Final = {"cpu": 2**28, "cuda": 2**30}
"""Bytes that are copied and read to measure the bandwidth, by device; more than any cache has."""
_IMAGES: Final = {"cpu": 16, "cuda": 1024}
"""Batch size of the measured convolution."""
_HIGH: Final = 16
"""Height and width of the images of the measured convolution; a twelfth of its kernel positions are padding."""
_ROWS: Final = 8_192
_HERE: Final = "here"
_TF32: Final = "tf32"
_PHASE: Final = "machine"


def measure_device(run: str, name: str, dtypes: Iterable[str] = DTYPES, progress: Progress = silent) -> Device:
    """Measure the peak rates and the memory bandwidth of this machine's CPU or GPU.

    Args:
        run: ``cpu``, or ``cuda`` for the current GPU.
        name: name of the device in the file.
        dtypes: dtypes to measure; with float32 also TF32, where the device has it.
        progress: called with the steps.

    Raises:
        Incomplete: there is no such device.
    """
    if run == "cuda" and not torch.cuda.is_available():
        raise Incomplete("there is no CUDA device here", where="--run cuda", fix="--run cpu measures the processor")
    wanted = list(dtypes)
    if run == "cuda" and "float32" in wanted and torch.cuda.is_tf32_supported():
        wanted.insert(wanted.index("float32") + 1, _TF32)
    peaks = list[DevicePeak]()
    for i, dtype in enumerate(wanted):
        progress(_PHASE, i, len(wanted) + 1)
        peaks += [made] if (made := _peak(run, dtype)) is not None else []
    progress(_PHASE, len(wanted), len(wanted) + 1)
    source = FigureSource(
        f"measured on {device_title(run)} with torch {torch.__version__}, {torch.get_num_threads()} threads",
        f"{datetime.now(UTC):%Y-%m-%d}",
    )
    bandwidth = _bandwidth(run)
    progress(_PHASE, len(wanted) + 1, len(wanted) + 1)
    return Device(name, device_title(run), "measured", {_HERE: source}, tuple(peaks), bandwidth, _memory(run))


def device_title(run: str) -> str:
    """Return the manufacturer's name of a GPU, or the kind of CPU."""
    return torch.cuda.get_device_name() if run == "cuda" else f"{platform.machine()} processor, {os.cpu_count()} cores"


def _peak(run: str, dtype: str) -> DevicePeak | None:
    """Return the best FLOP/s over several matrix products and a convolution; ``None`` if torch lacks the dtype."""
    found: list[tuple[int, str]] = []
    arithmetic = f", of float32 {'in TF32' if dtype == _TF32 else 'without TF32'}"
    said = arithmetic if run == "cuda" and dtype in ("float32", _TF32) else ""

    def took(flops: int, what: str, work: Callable[[], Any]) -> int:
        spent, times = _fastest(run, work)
        found.append((flops * 10**9 // spent, f"{flops:,} FLOP in {spent:,} ns, the fastest of {times} {what}{said}"))
        return spent

    factors = torch.float32 if dtype == _TF32 else getattr(torch, dtype)
    with _float32_in(dtype):
        with suppress(RuntimeError, MemoryError):
            any(took(*square) >= _LONG for square in _squares(run, factors))
        with suppress(RuntimeError, MemoryError):
            took(*_convolution(run, factors))
    if not found:
        return None
    flops, quote = max(found)
    return DevicePeak(dtype, flops, "dense", "matrix", (FigureQuote(_HERE, quote),))


@contextmanager
def _float32_in(dtype: str) -> Iterator[None]:
    """Allow or forbid TF32 for float32 products while the block runs, in matrix products and convolutions."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if dtype == _TF32 else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == _TF32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _squares(run: str, dtype: torch.dtype) -> Iterator[tuple[int, str, Callable[[], Any]]]:
    """Yield (FLOPs, description, function that runs it) for square matrix products of growing size."""
    side = _SMALLEST
    while side <= _LARGEST:
        a, b = (torch.ones(side, side, dtype=dtype, device=run) for _ in range(2))
        yield 2 * side**3, f"products of two {side} x {side} matrices", partial(torch.mm, a, b)
        side *= 2


def _convolution(run: str, dtype: torch.dtype) -> tuple[int, str, Callable[[], Any]]:
    """Return (FLOPs, description, function that runs it) for a convolution.

    Padding counts, though kernels may skip it.
    """
    images, channels = _IMAGES[run], 256
    data = torch.ones(images, channels, _HIGH, _HIGH, dtype=dtype, device=run)
    kernel = torch.ones(channels, channels, 3, 3, dtype=dtype, device=run)
    name = f"3 x 3 convolutions of {channels} channels over {images} x {_HIGH} x {_HIGH}"
    return 2 * images * _HIGH**2 * channels**2 * 9, name, partial(conv2d, data, kernel, padding=1)


def _bandwidth(run: str) -> DeviceFigure:
    """Return the higher bandwidth of copying and reading; a copy also reads the memory that it writes."""
    size = _COPIED[run]
    a, b = (torch.ones(_ROWS, size // _ROWS // 4, device=run) for _ in range(2))
    copied, copies = _fastest(run, partial(b.copy_, a))
    read, products = _fastest(run, partial(torch.mv, a, a[0].clone()))
    said = (
        f"{size:,} bytes read and written in {copied:,} ns, the fastest of {copies} copies",
        f"{size:,} bytes read in {read:,} ns, the fastest of {products} products of a matrix and a vector",
    )
    best = max(2 * size * 10**9 // copied, size * 10**9 // read)
    return DeviceFigure(best, tuple(FigureQuote(_HERE, one) for one in said))


def _memory(run: str) -> DeviceFigure | None:
    if run == "cuda":
        size = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        return DeviceFigure(size, (FigureQuote(_HERE, f"total_memory: {size:,} bytes"),))
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None  # this system does not report it
    return DeviceFigure(size, (FigureQuote(_HERE, f"pages times their size: {size:,} bytes"),))


def _fastest(run: str, work: Callable[[], Any], spread: int = _SPREAD) -> tuple[int, int]:
    """Return the nanoseconds of the fastest of several runs after a warm-up, and the number of runs.

    Args:
        spread: least nanoseconds of all runs together.
    """
    wait: Callable[[], Any] = torch.cuda.synchronize if run == "cuda" else int
    spent = list[int]()
    with torch.inference_mode():
        work()
        while len(spent) < _TIMES or sum(spent) < spread:
            wait()
            start = time.perf_counter_ns()
            work()
            wait()
            spent.append(time.perf_counter_ns() - start)
    return max(1, min(spent)), len(spent)
