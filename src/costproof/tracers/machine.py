"""What this machine reaches: the best of some products for each dtype, a large copy, and a large matrix read once.

The fastest of some times is what a roof is made of: whatever else the machine does meanwhile only takes from it.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import torch
from torch.nn.functional import conv2d

from costproof.estimate.hardware import Device, DeviceFigure, DevicePeak, FigureQuote, FigureSource
from costproof.ledger.errors import Incomplete

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
_TIMES: Final = 5
_SPREAD: Final = 250_000_000
"""Nanoseconds over which times are taken at least: a processor that others share is slow for a while."""
_LONG: Final = 50_000_000
"""Nanoseconds of a product that is long enough: none that is larger is faster."""
_SMALLEST: Final = 512
_LARGEST: Final = 16_384
_COPIED: Final = {"cpu": 2**28, "cuda": 2**30}
"""Bytes of what is copied and read: more than any cache holds."""
_IMAGES: Final = {"cpu": 16, "cuda": 1024}
"""Of a convolution."""
_HIGH: Final = 16
"""And wide: of so small an image a twelfth of the places under the kernel are padding."""
_ROWS: Final = 8_192
_HERE: Final = "here"


def measure_device(run: str, name: str, dtypes: Iterable[str] = DTYPES) -> Device:
    """The device on which things run here.

    Args:
        run: ``cpu`` or ``cuda``, the current one.
        name: what the device is called in the file.
        dtypes: whose peak is sought.

    Raises:
        Incomplete: there is none.
    """
    if run == "cuda" and not torch.cuda.is_available():
        raise Incomplete("there is no CUDA device here", where="--run cuda", fix="--run cpu measures the processor")
    peaks = tuple(made for made in (_peak(run, dtype) for dtype in dtypes) if made is not None)
    source = FigureSource(
        f"measured on {device_title(run)} with torch {torch.__version__}, {torch.get_num_threads()} threads",
        f"{datetime.now(UTC):%Y-%m-%d}",
    )
    return Device(name, device_title(run), "measured", {_HERE: source}, peaks, _bandwidth(run), _memory(run))


def device_title(run: str) -> str:
    """What a device is called by its maker, or a processor by its kind."""
    return torch.cuda.get_device_name() if run == "cuda" else f"{platform.machine()} processor, {os.cpu_count()} cores"


def _peak(run: str, dtype: str) -> DevicePeak | None:
    """The best rate of some products: no shape has it everywhere. ``None`` where torch cannot multiply such numbers."""
    found: list[tuple[int, str]] = []

    def took(flops: int, what: str, work: Callable[[], Any]) -> int:
        spent, times = _fastest(run, work)
        found.append((flops * 10**9 // spent, f"{flops:,} FLOP in {spent:,} ns, the fastest of {times} {what}"))
        return spent

    with suppress(RuntimeError, MemoryError):
        any(took(*square) >= _LONG for square in _squares(run, getattr(torch, dtype)))
    with suppress(RuntimeError, MemoryError):
        took(*_convolution(run, getattr(torch, dtype)))
    if not found:
        return None
    flops, said = max(found)
    return DevicePeak(dtype, flops, "dense", "matrix", (FigureQuote(_HERE, said),))


def _squares(run: str, dtype: torch.dtype) -> Iterator[tuple[int, str, Callable[[], Any]]]:
    """FLOPs, a name and the work of products of matrices that grow."""
    side = _SMALLEST
    while side <= _LARGEST:
        a, b = (torch.ones(side, side, dtype=dtype, device=run) for _ in range(2))
        yield 2 * side**3, f"products of two {side} x {side} matrices", partial(torch.mm, a, b)
        side *= 2


def _convolution(run: str, dtype: torch.dtype) -> tuple[int, str, Callable[[], Any]]:
    """The same of a convolution. Padded places count, as everywhere here, and a kernel may leave them out."""
    images, channels = _IMAGES[run], 256
    data = torch.ones(images, channels, _HIGH, _HIGH, dtype=dtype, device=run)
    kernel = torch.ones(channels, channels, 3, 3, dtype=dtype, device=run)
    name = f"3 x 3 convolutions of {channels} channels over {images} x {_HIGH} x {_HIGH}"
    return 2 * images * _HIGH**2 * channels**2 * 9, name, partial(conv2d, data, kernel, padding=1)


def _bandwidth(run: str) -> DeviceFigure:
    """The faster of copying and reading: what is written is often read before, and no copy says so."""
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
        return None  # this system does not say
    return DeviceFigure(size, (FigureQuote(_HERE, f"pages times their size: {size:,} bytes"),))


def _fastest(run: str, work: Callable[[], Any], spread: int = _SPREAD) -> tuple[int, int]:
    """Nanoseconds of a piece of work, warm, the fastest of some times; and how many these were.

    Args:
        spread: nanoseconds that they take together at least.
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
