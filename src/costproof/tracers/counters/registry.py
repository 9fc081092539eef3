"""Counters by name: ours, and those that other distributions offer in the group ``costproof.counters``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from costproof.ledger.errors import BadInput
from costproof.tracers.counters.protocol import Counter

GROUP: Final = "costproof.counters"

_BUILT_IN: Final = {
    "fvcore": "fvcore_flops",
    "FlopCounterMode": "flop_counter_mode",
    "torchlens": "torchlens_flops",
    "torch.profiler": "profiler_flops",
    "calflops": "calflops_flops",
    "deepspeed": "deepspeed_flops",
    "ptflops": "ptflops_macs",
    "thop": "thop_macs",
    "torchinfo": "torchinfo_adds",
}

Thunk = Callable[[], Counter]


def counters(offered: Iterable[EntryPoint] | None = None) -> dict[str, Thunk]:
    """Name -> what makes the adapter; nothing is imported before it is called.

    Args:
        offered: entry points to look at; by default those of the installed distributions.

    Raises:
        BadInput: two owners offer one name; both are named.
    """
    found: dict[str, Thunk] = {name: _ours(module) for name, module in _BUILT_IN.items()}
    owners = dict.fromkeys(found, "costproof")
    for point in entry_points(group=GROUP) if offered is None else offered:
        owner = point.dist.name if point.dist is not None else point.value
        if point.name in found:
            raise BadInput(
                "two distributions offer the same counter",
                where=point.name,
                got=f"{owners[point.name]} and {owner}",
                fix="uninstall one of them",
            )
        found[point.name], owners[point.name] = _theirs(point, owner), owner
    return found


def counter(name: str) -> Counter:
    """The adapter of that name.

    Raises:
        BadInput: nobody offers it, or it cannot be loaded.
    """
    known = counters()
    if name not in known:
        raise BadInput("there is no such counter", where=name[:80], expected=", ".join(known))
    return known[name]()


def _ours(module: str) -> Thunk:
    def load() -> Counter:
        made: Counter = importlib.import_module(f"costproof.tracers.counters.{module}").COUNTER
        return made

    return load


def _theirs(point: EntryPoint, owner: str) -> Thunk:
    def load() -> Counter:
        try:
            made: Counter = point.load()
        except (ImportError, AttributeError) as error:
            raise BadInput(
                "a counter cannot be loaded", where=point.name, got=f"{point.value} of {owner}: {error}"
            ) from error
        return made

    return load
