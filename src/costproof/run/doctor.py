"""Implement ``costproof.doctor``: report versions, extras, plug-ins and capabilities, without heavy imports."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from costproof.estimate.hardware import registry
from costproof.foreign import skipped
from costproof.ledger.environment import VERSION, advice, extras, installed, packages_of
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, CostproofError, first_line
from costproof.ledger.offline import OFFLINE
from costproof.ledger.plural import plural
from costproof.models.registry import TARGETS
from costproof.opgraph.rules.registry import RULES
from costproof.patches import export, flash_attention, flex_attention, inference, nested, sharding, tensor, torchlens
from costproof.patches.flash_attention import COMPILED, FLASH, WITHOUT_CUDA
from costproof.patches.patch import Patch
from costproof.plugins import Registry
from costproof.reports.outputs import REGISTRY
from costproof.tracers.cache import folder
from costproof.tracers.counters.protocol import COUNTERS, not_installed
from costproof.views.numbers import human

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
"""The extra that installs each optional package, by package."""
NATIVE: Final = (5,)
"""First version of transformers whose own classes can be counted; older ones can only run remote code of snapshots."""
_VENDOR_ALONE: Final = "for vendor snapshots alone: native classes need transformers 5"
PATCHES: Final[tuple[Patch, ...]] = (
    *tensor.SPLIT_INDEXING, *tensor.STACK_INDEX_ROWS, *tensor.AUTOCAST, *tensor.REFUSE_GRADIENTS, *tensor.JIT_ON_META,
    tensor.READ_VALUES, *tensor.TO_NUMPY, tensor.EINSUM, *tensor.COMPLEX_CONVOLUTIONS, *tensor.KNOWN_INTEGERS,
    tensor.SELECT_ALL_ROWS, *tensor.ROW_COUNTS, *sharding.ON_META,
    export.NO_STACK_TRACES, export.NO_TENSOR_METADATA, export.NO_FAKE_TENSOR_CACHE, export.NO_UNBACKED_BINDINGS,
    export.LAZY_PROGRAM, export.NO_GRAD_SETTINGS, *export.SHAPES_OF_RESULTS,
    *export.QUIET_EXPORT, *export.CONCRETE_VALUES,
    torchlens.SET_DIRECTLY, torchlens.KEEP_COMPILER_TABLES, torchlens.KEEP_SEARCHED_MODULES,
    torchlens.FIND_NAMESPACES_ONCE,
    *torchlens.SKIP_UNUSED_WORK, *torchlens.ASK_EVERY_STORAGE,
    torchlens.LEAVE_NO_METHODS, torchlens.KEEP_VIEW_LABELS, *torchlens.WHOLE_OPERATORS, *torchlens.KEEP_DEAD_CODE,
    inference.CAST_INSIDE_FORWARD, *inference.METHODS, *inference.HINTS, *inference.FUNCTIONS,
    inference.NO_RESULT_CACHE,
    *flash_attention.PATCHES, *flex_attention.PATCHES,
    *nested.PATCHES, *nested.EXPORTED, nested.REFUSED,
)  # fmt: skip
"""Every patch of torch, transformers and TorchLens that costproof can install."""
OLDEST = {"torch": (2, 6), "transformers": (4, 46, 3), "torchlens": (2, 36)}


REGISTRIES: Final[Mapping[str, Callable[[], Registry[Any]]]] = {
    "targets": lambda: TARGETS,
    "rules": lambda: RULES,
    "counters": lambda: COUNTERS,
    "outputs": lambda: REGISTRY,
    "hardware": registry,
}
"""Functions that return a registry open to other distributions, by the last part of its entry point group."""
_NOT_TOLD: Final = ("all", "dev", "vendor")
"""Extras that are not listed, since they repeat others or need a separate environment."""
_PATIENCE: Final = 60
"""Time limit for loading a plug-in, in seconds."""
_LOADS: Final = "costproof: it loads"


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional extra of costproof, with its installed and its missing packages."""

    name: str
    packages: dict[str, str | None]
    """Version of each package of the extra; ``None`` if it is missing."""
    add: str
    """Command that installs the missing packages; empty if the extra is complete."""


@dataclass(frozen=True, slots=True)
class PluginState:
    """A plug-in of another distribution, and whether it loads."""

    group: str
    """Entry point group: ``costproof.targets``."""
    name: str
    place: str
    owner: str
    """Distribution that provides the plug-in, with its version."""
    problem: str
    """Reason why the plug-in cannot be loaded; empty if it loads."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Versions and capabilities of this installation."""

    packages: tuple[tuple[str, str, str], ...]
    """(name, version or ``missing``, purpose) of each package."""
    sources: dict[str, str]
    """``ready``, or the missing packages, by source."""
    others: dict[str, str]
    """State of FlashAttention, CUDA, third-party counters, the export cache and the network."""
    extras: tuple[Extra, ...]
    plugins: tuple[PluginState, ...]
    patches: dict[str, dict[str, str]]
    """Reasons for replacing attributes while a model is traced, by package and attribute."""
    exit_code: int
    """3 if a package that the core needs is missing, or one is too old."""

    def table_rows(self) -> Sequence[object]:
        """Return all results as rows of a table."""
        return [
            *({"what": "package", "name": n, "state": v, "note": use} for n, v, use in self.packages),
            *({"what": "source", "name": n, "state": state, "note": ""} for n, state in self.sources.items()),
            *({"what": "other", "name": n, "state": state, "note": ""} for n, state in self.others.items()),
            *(
                {"what": f"extra {e.name}", "name": n, "state": v or "missing", "note": "" if v else e.add}
                for e in self.extras
                for n, v in e.packages.items()
            ),
            *({"what": p.group, "name": p.name, "state": p.problem or "loads", "note": p.owner} for p in self.plugins),
            *(
                {"what": f"patch {package}", "name": name, "state": "while a model is traced", "note": why}
                for package, reasons in self.patches.items()
                for name, why in reasons.items()
            ),
        ]


def doctor() -> Machine:
    """Report versions, extras, plug-ins and available sources; nothing heavy is imported.

    Each plug-in of another distribution is loaded in a process of its own.
    """
    broken = False
    packages = [("costproof", VERSION, ""), ("python", platform.python_version(), "")]
    for package, use in NEEDED_FOR.items():
        version = installed(package)
        oldest = OLDEST.get(package)
        old = version is not None and oldest is not None and _numbers(version) < oldest
        note = f", needs {'.'.join(map(str, oldest))} or newer" if old and oldest else ""
        broken |= old or (version is None and package not in EXTRA)
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
        {
            "flash": flash_line(), "cuda": cuda_line(), "counters": counters_line(), "cache": cache_line(),
            "offline": offline_line(),
        },
        tuple(_extra(name) for name in extras() if name not in _NOT_TOLD),
        tuple(plugins()),
        _patches(),
        EXIT_INCOMPLETE if broken else EXIT_OK,
    )  # fmt: skip


def _patches() -> dict[str, dict[str, str]]:
    """Return the reasons for replacing attributes while a model is traced, by package and attribute."""
    found: dict[str, dict[str, str]] = {"torch": {}, "transformers": {}, "torchlens": {}}
    for patch in PATCHES:
        found[patch.package].setdefault(patch.target.partition(":")[2], patch.reason)
    return found


def _extra(name: str) -> Extra:
    versions = {package: installed(package) for package in sorted(packages_of(name))}
    return Extra(name, versions, advice(name) if None in versions.values() else "")


def plugins() -> Iterator[PluginState]:
    """Load every plug-in of another distribution, each in a process of its own."""
    for kind, load_registry in REGISTRIES.items():
        group = load_registry().group
        for point in sorted(entry_points(group=group), key=lambda p: (p.name, p.value)):
            owner = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "?"
            yield PluginState(group, point.name, point.value, owner, _problem(kind, point.name))


def _problem(kind: str, name: str) -> str:
    code = f"from costproof.run.doctor import load_alone; load_alone({kind!r}, {name!r})"
    line = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PATIENCE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"does not load within {_PATIENCE} s"
    if done.stdout.endswith(f"{_LOADS}\n"):
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"its process ended with {done.returncode}"


def load_alone(kind: str, name: str) -> None:
    """Load a plug-in in a process of its own, report the result on stdout or stderr, and exit."""
    try:
        REGISTRIES[kind]().load(name)
        for error in skipped():
            if error.where == name:  # ours of this name is the one that was loaded
                raise error
    except BaseException as error:
        why = f"{error.what}: {error.got}" if isinstance(error, CostproofError) else first_line(error)
        os.write(2, f"\n{why}\n".encode())
        os._exit(EXIT_INCOMPLETE)
    sys.stdout.flush()
    os.write(1, f"{_LOADS}\n".encode())
    os._exit(EXIT_OK)


def cache_line() -> str:
    """Return a line with the folder of the export cache, and the number and size of its files."""
    where = folder()
    if where is None:
        return "nothing is kept"
    sizes = []
    with suppress(OSError):
        sizes = [p.stat().st_size for p in where.rglob("*") if p.is_file()]
    return f"{where}: {plural(len(sizes), 'file')}, {human(sum(sizes), 'B')}"


def offline_line() -> str:
    """Return a line with the state of the environment variable that keeps libraries off the network."""
    switches = ", ".join(f"{name}={value}" for name, value in OFFLINE.items())
    return f"always: costproof sets {switches} for itself and the processes that it starts"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def counters_line() -> str:
    """Return a line that lists the third-party counters that can run."""
    if installed("torch") is None:
        return "none: missing torch"
    absent = not_installed()
    there = ", ".join(p.name for p in COUNTERS.ours if p.name not in absent)
    return there + (f"; missing {', '.join(absent)}" if absent else "")


def flash_line() -> str:
    """Return a line that says whether ``--attention flash_attention_2`` can be counted and run."""
    why = flash_attention.missing()
    if why:
        return f"no {FLASH}: {why}; {WITHOUT_CUDA}"
    kernels = "kernels compiled" if find_spec(COMPILED) else f"shapes alone, for {COMPILED} is not there"
    return f"flash-attn {installed('flash-attn')}, {kernels}"


def cuda_line(devices: Path = Path("/dev")) -> str:
    """Return a line that says whether ``--run cuda`` may work, judged by device files, without importing torch."""
    torch = find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return "no: missing torch"
    libraries = [Path(p) / "lib" for p in torch.submodule_search_locations]
    if not any(f for folder in libraries for f in folder.glob("*torch_cuda*")):
        return "no: this torch is built without it"
    if sys.platform != "linux":
        return "unknown until --run cuda"
    count = sum(1 for d in devices.glob("nvidia[0-9]*") if d.name.removeprefix("nvidia").isdecimal())
    return f"{plural(count, 'device')}; checked at --run cuda" if count else "no: no device here"
