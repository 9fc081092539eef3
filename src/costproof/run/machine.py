"""What this machine has, without importing what has it."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from costproof.ledger.environment import VERSION, installed
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.extras import advice
from costproof.models import flash_attention
from costproof.models.flash_attention import COMPILED, FLASH, WITHOUT_CUDA
from costproof.plugins import OURS, Registry, offered
from costproof.tracers.counters.registry import COUNTERS, not_installed

NEEDED_FOR = {
    "sympy": "formulas",
    "pydantic": "reading and writing files",
    "rich": "tables and progress",
    "pandas": "DataFrames",
    "torch": "static and dynamic sources",
    "transformers": "static and dynamic sources",
    "torchlens": "dynamic source",
    "pillow": "--image",
}
EXTRA = {"torch": "trace", "transformers": "trace", "torchlens": "trace", "pillow": "image"}
"""What the core runs without, and the extra that brings it."""
NATIVE: Final = (5,)
"""The first transformers whose own classes are counted; snapshots with remote code run under older ones too."""
_VENDOR_ALONE: Final = "for vendor snapshots alone: native classes need transformers 5"
OLDEST = {"torch": (2, 6), "transformers": (4, 46, 3), "torchlens": (2, 36)}


@dataclass(frozen=True, slots=True)
class Machine:
    """What can be used here."""

    packages: tuple[tuple[str, str, str], ...]
    """Name, version or ``missing``, what it is for."""
    sources: dict[str, str]
    """Source -> ``ready``, or what it lacks."""
    others: dict[str, str]
    """FlashAttention, CUDA and third-party counters."""
    advice: dict[str, str]
    """Extra that is not complete -> the command that adds it."""
    exit_code: int
    """3 if a package that the core needs is missing, or one is too old."""


def doctor() -> Machine:
    """Versions, and what can be used here; nothing heavy is imported."""
    broken = False
    packages = [("costproof", VERSION, ""), ("python", platform.python_version(), "")]
    wanted = {"counters"} if set(not_installed().values()) - set(NEEDED_FOR) else set()
    for package, use in NEEDED_FOR.items():
        version = installed(package)
        oldest = OLDEST.get(package)
        old = version is not None and oldest is not None and _numbers(version) < oldest
        note = f", needs {'.'.join(map(str, oldest))} or newer" if old and oldest else ""
        broken |= old or (version is None and package not in EXTRA)
        wanted |= {EXTRA[package]} if version is None and package in EXTRA else set()
        packages.append((package, version or "missing", use + note))
    lacking = [p for p in ("torch", "transformers", "torchlens") if installed(p) is None]
    there = installed("transformers")
    ready = "ready" if there is None or _numbers(there) >= NATIVE else _VENDOR_ALONE
    graphs = [p for p in lacking if p != "torchlens"]
    return Machine(
        tuple(packages),
        {
            "analytic": "ready" if installed("sympy") else "missing sympy",
            "static": "missing " + ", ".join(graphs) if graphs else ready,
            "dynamic": "missing " + ", ".join(lacking) if lacking else ready,
        },
        {"flash": flash_line(), "cuda": cuda_line(), "counters": counters_line(), "plug-ins": plugins_line()},
        {extra: advice(extra) for extra in sorted(wanted, key=("trace", "counters", "image").index)},
        EXIT_INCOMPLETE if broken else EXIT_OK,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def counters_line() -> str:
    """Which third-party counters can run."""
    if installed("torch") is None:
        return "none: missing torch"
    absent = not_installed()
    there = ", ".join(p.name for p in COUNTERS.ours if p.name not in absent)
    return there + (f"; missing {', '.join(absent)}" if absent else "")


def plugins_line() -> str:
    """What other distributions offer; those that cannot be loaded are noted as skipped."""
    if not offered():
        return "none"
    from costproof.estimate.hardware import registry
    from costproof.graph.rules.registry import RULES
    from costproof.models.registry import TARGETS
    from costproof.reports.outputs import REGISTRY

    registries: tuple[Registry[Any], ...] = (TARGETS, RULES, COUNTERS, REGISTRY, registry())
    found = [f"{p.name} ({r.one} of {p.owner})" for r in registries for p in r.listed().values() if p.owner != OURS]
    return ", ".join(found) or "none"


def flash_line() -> str:
    """Whether ``--attention flash_attention_2`` can be counted, and whether its kernels are there."""
    why = flash_attention.missing()
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
    return f"{count} device{'s' if count != 1 else ''}; checked at --run cuda" if count else "no: no device here"
