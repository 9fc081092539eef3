"""Whether a run fits into a memory: what it holds for certain, and a stated upper bound of the rest, in integers.

Held for certain are the weights, the registered buffers, and the cache of keys, values and states as it is when the run
ends, what a run was given of it included. Of activations
formulas give a bound: every tensor that crosses the border of a module is kept, from the first stage to the last, for
one call of each stage, and all that the operators of one layer take and make beside it
(:mod:`costproof.estimate.activation_bound`). What a runtime takes for itself is in neither.

A capture with peaks (``--peaks``) says more: what each stage as written really holds at once, temporaries and its cache
among it. A run holds weights, buffers and the largest of these peaks at least, but for what was a stage's argument and
has another owner, or none, in the run. At most it holds weights, buffers and all peaks at once: while one call runs,
each call before it has left its results, which were alive when it ended, so its own peak holds them; of steps the last
has the largest, and takes over the cache of the one before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.hardware import Device
from costproof.estimate.roofline import Outcome
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, BadInput
from costproof.ledger.metrics import Conventions, Metric
from costproof.ledger.node import exact_sum
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload

Verdict = Literal["fits", "does not fit", "not known"]
Held = Literal["weights and cache", "weights and graph peak", "weights, cache and bound"]
NEEDED: Final[tuple[Metric, ...]] = ("weight_bytes", "kv_cache_bytes")
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(?:[eE]\+?([0-9]{1,2}))?\s*(B|[kMGTP]B|[KMGTP]iB)?")
_PREFIXES: Final = "kMGTP"
_EXIT: Final[dict[Verdict, int]] = {
    "fits": EXIT_OK, "does not fit": EXIT_FINDINGS, "not known": EXIT_INCOMPLETE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a stage adds; ``None`` is unknown."""

    id: str
    cache_bytes: int | None
    """By how much its calls make the cache larger."""
    activations_bytes: int | None
    """What one call holds at most, the cache apart; of steps the last. ``None`` where no formulas bound it."""
    peak_bytes: int | None = None
    """The largest eager peak that is known of its calls, their arguments apart; ``None``: none is known."""
    peaks_bytes: int | None = None
    """Of all its calls and parts together, arguments included; ``None``: one is not known."""


@dataclass(frozen=True, slots=True)
class LimitPoint:
    """What is held at a value of a setting, evaluated by the formulas themselves."""

    at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Limit:
    """The first value of a setting at which something no longer fits, all else as in the workload."""

    setting: str
    held: Held
    """What no longer fits. The graph peak is the largest of those that a capture has in symbols, arguments apart."""
    outcome: Outcome
    """``never``: it fits at every value. ``refused``: the model does not take a run of that size."""
    at: int | None
    points: tuple[LimitPoint, ...]
    """The last value that fits and the first that does not; where there is none, the workload's own."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fits:
    """A run and a memory."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    device: Device | None
    memory_bytes: int
    source: str
    weights_bytes: int | None
    """Parameters of the stages that the run has, in its dtype."""
    cache_bytes: int | None
    """When the run ends."""
    activations_bytes: int | None
    """The upper bound that the top of this module states."""
    peak_bytes: int | None
    """The largest known of the stages' :attr:`StageMemory.peak_bytes`; ``None``: none is known."""
    stages: tuple[StageMemory, ...]
    limits: tuple[Limit, ...]
    buffers_bytes: int | None = None
    """All registered buffers of the model, persistent or not; ``None``: not known."""

    @property
    def name(self) -> str:
        """``TARGET at WORKLOAD``, and the device."""
        return f"{self.target.title} at {self.workload.name}" + (f" on {self.device.name}" if self.device else "")

    @property
    def certain_bytes(self) -> int | None:
        """Weights, cache, and buffers as far as they are known."""
        return None if self.lasting_bytes is None or self.cache_bytes is None else self.lasting_bytes + self.cache_bytes

    @property
    def lasting_bytes(self) -> int | None:
        """Weights, and buffers as far as they are known: what is there before a run and after it."""
        return None if self.weights_bytes is None else self.weights_bytes + (self.buffers_bytes or 0)

    @property
    def bound_bytes(self) -> int | None:
        """Weights, buffers, cache and the bound of activations."""
        return exact_sum((self.weights_bytes, self.buffers_bytes, self.cache_bytes, self.activations_bytes))

    @property
    def least_bytes(self) -> int | None:
        """What the run holds at some moment: weights, buffers, and the cache or the largest known peak."""
        if self.certain_bytes is None or self.lasting_bytes is None:
            return None
        return max(self.certain_bytes, self.lasting_bytes + (self.peak_bytes or 0))

    @property
    def peaks_bytes(self) -> int | None:
        """The peaks of all stages together; ``None``: one is not known."""
        return exact_sum(s.peaks_bytes for s in self.stages)

    @property
    def most_bytes(self) -> int | None:
        """Weights, buffers and the peaks of all stages at once; where one is not known, :attr:`bound_bytes`."""
        if self.peaks_bytes is None or self.weights_bytes is None:
            return self.bound_bytes
        return exact_sum((self.weights_bytes, self.buffers_bytes, self.peaks_bytes))

    @property
    def verdict(self) -> Verdict:
        """``does not fit``: the least is more; ``fits``: the most is not; what a runtime takes for itself apart.

        Of a quantised checkpoint the bytes are not known.
        """
        if self.target.quantised:
            return "not known"
        if self.least_bytes is not None and self.least_bytes > self.memory_bytes:
            return "does not fit"
        return "fits" if self.most_bytes is not None and self.most_bytes <= self.memory_bytes else "not known"

    @property
    def exit_code(self) -> int:
        """0 fits, 1 does not fit, 3 not known."""
        return _EXIT[self.verdict]


FITS: Final = FileKind(name="costproof/fits", version=(3, 2), type=Fits)


def size(text: str, where: str) -> int:
    """Bytes: ``80GB`` is 80 x 10^9, ``80GiB`` 80 x 2^30, ``85899345920`` itself.

    Raises:
        BadInput: it is not a size, or not a whole number of bytes.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        expected = "bytes, or a number with kB, MB, GB, TB or KiB, MiB, GiB, TiB"
        raise BadInput("this is not a size of a memory", where=where, expected=expected, got=text[:60])
    whole, decimals, exponent, unit = found[1], found[2] or "", int(found[3] or 0), found[4] or "B"
    rank = 0 if unit == "B" else _PREFIXES.index(unit[0].replace("K", "k")) + 1
    number = (
        Fraction(int(whole + decimals), 10 ** len(decimals)) * 10**exponent * (1024 if "i" in unit else 1000) ** rank
    )
    if number.denominator != 1 or number <= 0:
        raise BadInput("this is not a whole number of bytes", where=where, expected="1 or more", got=text[:60])
    return int(number)
