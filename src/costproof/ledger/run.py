"""Describe how sources run a model: device, weights, number of layers, and further conventions."""

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
    """One way to count a whole run."""

    name: str
    doing: str
    """What it does, for a line of progress."""
    graph: bool = True
    """Whether it counts operators of a graph; formulas do not."""
    default: bool = True
    """Whether it counts unless somebody says otherwise."""


SOURCES: Final = (
    CountingSource("analytic", "evaluating the formulas", graph=False),
    CountingSource("static", "exporting the graphs"),
    CountingSource("dynamic", "tracing the run"),
    CountingSource("isolated", "tracing every stage alone", default=False),
)
"""In the order in which they are shown and compared."""

ALL_SOURCES: Final = tuple(s.name for s in SOURCES)
GRAPH_SOURCES: Final = tuple(s.name for s in SOURCES if s.graph)
DEFAULT_SOURCES: Final = tuple(s.name for s in SOURCES if s.default)


RunDevice = Literal["meta", "cpu", "cuda"]

Convention = Literal["fvcore-macs"]
"""Conventions of other tools that can be counted beside our own."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")

RANDOM: Final = "random"
"""Weights drawn from a seeded generator, in place of a checkpoint."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a person chooses about a run beside the workload. The default is shapes without numbers."""

    device: RunDevice = "meta"
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

    def check(self) -> None:
        """Refuse what needs numbers where there are none.

        Raises:
            BadInput: weights or times on meta.
        """
        for wanted, what, where in (
            (self.weights != RANDOM, "weights need a device that holds numbers", "--weights"),
            (self.profile > 0, "time is measured on a device that computes", "--profile"),
        ):
            if wanted and not self.real:
                raise BadInput(what, where=where, expected="--run cpu or --run cuda", got="--run meta")

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
    expert_flops: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The same -> headline FLOPs of each expert, by the second judge, where experts are modules."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the dynamic source ran, and what each of its forwards cost."""

    options: RunOptions
    notes: tuple[str, ...] = ()
    """What was loaded, converted, left out."""
    runs: tuple[TracedRun, ...] = ()


def run_options(given: Mapping[str, Any], place: Callable[[str], str] = lambda name: f"--{name}") -> RunOptions:
    """How the dynamic source shall run, from settings of which ``None`` leaves the default.

    Args:
        place: where a setting was made, for messages.

    Raises:
        Problems: everything that is wrong with them.
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
        raise Problems("the model cannot be run so", problems)
    if "weights" in values:
        values["weights"] = os.fspath(values["weights"])
    return RunOptions(**values)


def parse_integer(value: object, where: str | None) -> int:
    """An integer, or its decimal digits.

    Raises:
        BadInput: it is something else, or of more than 18 digits.
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
