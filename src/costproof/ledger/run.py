"""How the sources run the model: on which device, with which weights, how much of it, and what is counted beside."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, Literal, get_args

from costproof.ledger.errors import BadInput, CostproofError, Problems

Device = Literal["meta", "cpu", "cuda"]

Convention = Literal["fvcore-macs"]
"""Conventions of other tools that can be counted beside our own."""

RANDOM: Final = "random"
"""Weights drawn from a seeded generator, in place of a checkpoint."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a person chooses about a run beside the workload. The default is shapes without numbers."""

    device: Device = "meta"
    """``meta`` computes shapes alone; on ``cpu`` and ``cuda`` the model really runs."""
    weights: str = RANDOM
    """``random``, or the folder of a checkpoint. A capture holds the folder's name, not its path."""
    seed: int = 0
    """Of random weights, pixels and tokens."""
    layers: int | None = None
    """Decoder layers that are kept; ``None``: the whole model."""
    profile: int = 0
    """Timed runs; 0: nothing is timed."""
    convention: Convention | None = None
    """Another tool's convention that the graph sources count beside ours."""

    @property
    def real(self) -> bool:
        """Whether tensors hold numbers."""
        return self.device != "meta"

    def public(self) -> RunOptions:
        """The options as a capture states them: without the path of this machine."""
        return self if self.weights == RANDOM else replace(self, weights=PurePath(self.weights).name)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """One traced forward, counted apart."""

    id: str
    """``page``, ``prompt`` or ``step@P``."""
    context: int | None
    """Tokens in the cache before it; ``None`` for the prefill."""
    operators: int
    module_calls: int
    flops: int | None
    """Headline FLOPs of this forward alone."""
    vector_flops: int | None
    kv_cache_bytes: int | None
    expert_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Module of routed experts -> rows that each expert received; 0 is an expert that did not run. Real runs only."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the dynamic source ran, and what each of its forwards cost."""

    options: RunOptions
    notes: tuple[str, ...] = ()
    """What was loaded, converted, left out."""
    runs: tuple[TracedRun, ...] = ()


def run_options(given: dict[str, Any]) -> RunOptions:
    """How the dynamic source shall run, from settings of which ``None`` leaves the default.

    Raises:
        Problems: everything that is wrong with them.
    """
    values = {("device" if k == "run" else k): v for k, v in given.items() if v is not None}
    problems: list[CostproofError] = []
    devices = get_args(Device)
    if values.get("device", "meta") not in devices:
        problems.append(
            BadInput("no such device", where="--run", expected=" or ".join(devices), got=str(values["device"])[:80])
        )
    if values.get("convention") not in (None, *get_args(Convention)):
        known = " or ".join(get_args(Convention))
        problems.append(
            BadInput("no such convention", where="--convention", expected=known, got=str(values["convention"])[:80])
        )
    for key, least in (("layers", 1), ("seed", 0), ("profile", 0)):
        value = values.get(key, least)
        if not isinstance(value, int) or value < least:
            problems.append(
                BadInput("this is out of range", where=f"--{key}", expected=f"at least {least}", got=str(value)[:80])
            )
    if problems:
        raise Problems("the model cannot be run so", problems)
    if "weights" in values:
        values["weights"] = os.fspath(values["weights"])
    return RunOptions(**values)
