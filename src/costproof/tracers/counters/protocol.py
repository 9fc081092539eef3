"""Define the protocol of adapters to third-party counters and of their results, and register counters by name."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from costproof.ledger.counter import UNATTRIBUTED, CounterInfo
from costproof.ledger.environment import installed
from costproof.plugins import Plugin, Registry, lazy

if TYPE_CHECKING:
    from torch import Tensor

    from costproof.tracers.counters.tools import Positional


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a counter for a module and an operator, with the counter's unit and names."""

    module: str
    """Path inside the model that the tool received; :data:`UNATTRIBUTED` if the tool reports no module."""
    kind: str
    """Operator as the tool names it; empty for a whole module.

    ``a>b`` is ``b`` as part of ``a``, if the tool counted both; ``>b`` is ``b`` that the tool counted before, under
    another parent.
    """
    value: int


@dataclass(frozen=True, slots=True)
class Counted:
    """All numbers of a counter for one forward."""

    total: int
    """The tool's own total."""
    rows: tuple[Row, ...]
    """Rows that sum to ``total``."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Counter:
    """A third-party counter, with the function that runs it."""

    info: CounterInfo
    count: Callable[[Positional, tuple[Tensor, ...]], Counted]
    """Function that runs the tool on one forward, ``model(*args)``; its exceptions are reported as results."""


def counted(total: int, rows: Iterable[Row], notes: tuple[str, ...] = ()) -> Counted:
    """Sum rows by module and operator; the part of ``total`` that the rows lack becomes an unattributed row."""
    sums: Tally[tuple[str, str]] = Tally()
    for row in rows:
        sums[row.module, row.kind] += row.value
    sums[UNATTRIBUTED, ""] += total - sums.total()
    return Counted(total, tuple(Row(m, k, v) for (m, k), v in sums.items() if v), notes)


ON_REQUEST: Final = frozenset({"onnx"})
"""Names of counters that run only on request, since they count another form of the graph than the tools."""


def _ours(function: str, info: CounterInfo) -> Plugin[Counter]:
    load = lazy(f"costproof.tracers.counters.{function}")
    return Plugin(info.name, info.package, lambda: Counter(info, load()))


COUNTERS: Final[Registry[Counter]] = Registry(
    "counters",
    "counter",
    (
        _ours(
            "tools:fvcore",
            CounterInfo("fvcore", "fvcore", ("0.1.5.post20221221",), "mac", "operator", einsum="four digits"),
        ),
        _ours("tools:flop_counter_mode", CounterInfo("FlopCounterMode", "torch", ("2.13.0",), "flop", "operator")),
        _ours("tools:torchlens", CounterInfo("torchlens", "torchlens", ("2.36.0", "2.36.1"), "flop", "operator")),
        _ours("tools:torch_profiler", CounterInfo("torch.profiler", "torch", ("2.13.0",), "flop", "operator")),
        _ours(
            "tools:calflops",
            CounterInfo("calflops", "calflops", ("0.3.1", "0.3.2"), "flop", "operator", einsum="four digits"),
        ),
        _ours(
            "tools:deepspeed",
            CounterInfo("deepspeed", "deepspeed", ("0.19.7", "0.19.8"), "flop", "operator", einsum="four digits"),
        ),
        _ours("tools:ptflops", CounterInfo("ptflops", "ptflops", ("0.7.4", "0.7.5"), "mac", "operator")),
        _ours(
            "tools:thop",
            CounterInfo("thop", "ultralytics-thop", ("2.2.0", "2.2.1", "2.2.2", "2.2.3"), "mac", "module"),
        ),
        _ours("onnx_graph:onnx", CounterInfo("onnx", "onnx", ("1.23.2",), "flop", "operator")),
        _ours(
            "tools:torchinfo", CounterInfo("torchinfo", "torchinfo", ("1.7.2", "1.8.0"), "mac", "module", rows="first")
        ),
    ),
    instance=Counter,
    command="costproof doctor",
)
"""Registry of counters; ``what`` of a built-in counter is the name of the tool's distribution."""


def not_installed() -> dict[str, str]:
    """Return the distribution to install for each built-in counter whose package is missing; imports nothing."""
    return {p.name: p.what for p in COUNTERS.ours if installed(p.what) is None}
