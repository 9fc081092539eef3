"""Describe the sources of counts, and the options with which they run a model: device, weights, layers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, Literal, get_args

from costproof.ledger.errors import BadInput, CostproofError, Problems


@dataclass(frozen=True, slots=True)
class CountingSource:
    """A source of counts of a whole run: its name and what it does."""

    name: str
    doing: str
    """Words for progress lines that describe the source's work."""
    graph: bool = True
    """Whether the source counts operators of a graph, unlike formulas."""
    default: bool = True
    """Whether the source counts unless other sources are requested."""


SOURCES: Final = (
    CountingSource("analytic", "evaluating the formulas", graph=False),
    CountingSource("static", "exporting the graphs"),
    CountingSource("dynamic", "tracing the run"),
    CountingSource("isolated", "tracing every stage alone", default=False),
)
"""All sources of counts, in the order of reports and comparisons."""

ALL_SOURCES: Final = tuple(s.name for s in SOURCES)
GRAPH_SOURCES: Final = tuple(s.name for s in SOURCES if s.graph)
DEFAULT_SOURCES: Final = tuple(s.name for s in SOURCES if s.default)


RunDevice = Literal["meta", "cpu", "cuda"]

Convention = Literal["fvcore-macs"]
"""Conventions of other tools that can be counted in addition to costproof's."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

RANDOM: Final = "random"
"""Value of ``weights`` for randomly initialised weights instead of a checkpoint."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run besides the workload; by default tensors have shapes but no values."""

    device: RunDevice = "meta"
    """``meta`` computes only shapes; on ``cpu`` and ``cuda`` the model runs."""
    weights: str = RANDOM
    """``random``, or the folder of a checkpoint, of which a capture stores only the name."""
    seed: int = 0
    """Seed of random weights, pixels and tokens."""
    layers: int | None = None
    """Number of decoder layers to keep (default: all)."""
    profile: int = 0
    """Number of timed runs."""
    convention: Convention | None = None
    """Another tool's convention that graph sources count in addition to costproof's."""

    @property
    def real(self) -> bool:
        """Return whether tensors have values, not only shapes."""
        return self.device != "meta"

    def check(self) -> None:
        """Reject options that need tensor values on the meta device.

        Raises:
            BadInput: weights or timing on meta.
        """
        for wanted, what, where in (
            (self.weights != RANDOM, "weights need a device that holds numbers", "--weights"),
            (self.profile > 0, "time is measured on a device that computes", "--profile"),
        ):
            if wanted and not self.real:
                raise BadInput(what, where=where, expected="--run cpu or --run cuda", got="--run meta")

    def public(self) -> RunOptions:
        """Return the options as captures store them, without paths of this machine."""
        return self if self.weights == RANDOM else replace(self, weights=PurePath(self.weights).name)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A traced forward, which is counted separately from other forwards."""

    id: str
    """Name of the forward: ``page``, ``prompt`` or ``step@P``."""
    context: int | None
    """Tokens in the cache before the forward; ``None`` for the prefill."""
    operators: int
    module_calls: int
    flops: int | None
    """Headline FLOPs of the forward."""
    vector_flops: int | None
    kv_cache_bytes: int | None
    expert_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tokens that each expert received in a real run, by module of routed experts; 0 for an idle expert."""
    expert_flops: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Headline FLOPs of each expert by FlopCounterMode, by module of routed experts, if experts are modules."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Options of the dynamic source and the costs of its forwards."""

    options: RunOptions
    notes: tuple[str, ...] = ()
    """Notes on weights that were loaded, converted or left out."""
    runs: tuple[TracedRun, ...] = ()


def run_options(given: Mapping[str, Any], place: Callable[[str], str] = lambda name: f"--{name}") -> RunOptions:
    """Return the run options from settings; a setting that is ``None`` has its default.

    Args:
        place: returns the origin of a setting, for messages.

    Raises:
        Problems: all invalid settings.
    """
    values = {("device" if k == "run" else k): v for k, v in given.items() if v is not None}
    problems: list[CostproofError] = []
    for key, option, known in (
        ("device", "run", get_args(RunDevice)),
        ("convention", "convention", get_args(Convention)),
    ):
        if key in values and values[key] not in known:
            got = str(values[key])[:80]
            problems.append(BadInput(f"no such {key}", where=place(option), expected=" or ".join(known), got=got))
    for key, least in (("layers", 1), ("seed", 0), ("profile", 0)):
        value = values.get(key, least)
        if isinstance(value, str) and value.isdecimal() and len(value) <= 18:
            value = values[key] = int(value)
        if not isinstance(value, int) or value < least:
            problems.append(
                BadInput("this is out of range", where=place(key), expected=f"at least {least}", got=str(value)[:80])
            )
    if problems:
        raise Problems("the model cannot be run with these options", problems)
    if "weights" in values:
        values["weights"] = os.fspath(values["weights"])
    return RunOptions(**values)


def parse_integer(value: object, where: str | None) -> int:
    """Return an integer, or parse its decimal digits.

    Raises:
        BadInput: the value is something else, or has more than 18 digits.
    """
    text = str(value).strip()
    if isinstance(value, bool) or not _WHOLE.fullmatch(text):
        large = not isinstance(value, bool) and text.lstrip("+-").isdecimal()
        raise BadInput(
            "this integer is too large" if large else "this option takes an integer",
            where=where,
            expected="at most 18 digits" if large else "decimal digits",
            got=repr(str(value)[:40]),
        )
    return int(text)
