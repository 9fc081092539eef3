"""Counters by name: a file each, and those that other distributions offer in the group ``costproof.counters``."""

from __future__ import annotations

from typing import Final

from costproof.ledger.environment import installed
from costproof.plugins import Plugin, Registry, at
from costproof.tracers.counters.protocol import Counter


def _ours(name: str, package: str, adapter: str) -> Plugin[Counter]:
    return Plugin(name, package, at(f"costproof.tracers.counters.{adapter}"))


COUNTERS: Final[Registry[Counter]] = Registry(
    "counters",
    "counter",
    (
        _ours("fvcore", "fvcore", "fvcore_flops:COUNTER"),
        _ours("FlopCounterMode", "torch", "flop_counter_mode:COUNTER"),
        _ours("torchlens", "torchlens", "torchlens_flops:COUNTER"),
        _ours("torch.profiler", "torch", "profiler_flops:COUNTER"),
        _ours("calflops", "calflops", "patched:CALFLOPS"),
        _ours("deepspeed", "deepspeed", "patched:DEEPSPEED"),
        _ours("ptflops", "ptflops", "ptflops_macs:COUNTER"),
        _ours("thop", "ultralytics-thop", "thop_macs:COUNTER"),
        _ours("torchinfo", "torchinfo", "torchinfo_adds:COUNTER"),
    ),
    command="costproof doctor",
)
"""``what`` of one of ours is the distribution that holds the tool."""


def not_installed() -> dict[str, str]:
    """Counters of ours whose tool is not installed here -> the distribution to install; nothing is imported."""
    return {p.name: p.what for p in COUNTERS.ours if installed(p.what) is None}
