"""What this machine has, without importing what has it: for ``costproof doctor``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from costproof.ledger.environment import installed


def counters_line() -> str:
    """Which third-party counters can run."""
    from costproof.tracers.counters.registry import COUNTERS, lacking

    if installed("torch") is None:
        return "none: missing torch"
    absent = lacking()
    there = ", ".join(p.name for p in COUNTERS.ours if p.name not in absent)
    return there + (f"; missing {', '.join(absent)}" if absent else "")


def flash_line() -> str:
    """Whether ``--attention flash_attention_2`` can be counted, and whether its kernels are there."""
    from costproof.models.flash_attention import COMPILED, FLASH, WITHOUT_CUDA, missing

    why = missing()
    if why:
        return f"no {FLASH}: {why}; {WITHOUT_CUDA}"
    kernels = "kernels compiled" if find_spec(COMPILED) else f"shapes alone, for {COMPILED} is not there"
    return f"flash-attn {installed('flash-attn')}, {kernels}"


def cuda_line(devices: Path = Path("/dev")) -> str:
    """Whether ``--run cuda`` can work, as far as files tell: torch is not asked before it runs."""
    torch = find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return "no: missing torch"
    libraries = [Path(p) / "lib" for p in torch.submodule_search_locations]
    if not any(f for folder in libraries for f in folder.glob("*torch_cuda*")):
        return "no: this torch is built without it"
    if sys.platform != "linux":
        return "unknown until --run cuda"
    count = sum(1 for d in devices.glob("nvidia[0-9]*") if d.name.removeprefix("nvidia").isdecimal())
    return f"{count} device{'s' if count != 1 else ''}; torch is asked at --run cuda" if count else "no: no device here"
