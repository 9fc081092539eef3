"""Bound the memory of a run from below by known bytes, and from above by a bound on all other bytes.

Weights, registered buffers, and the cache (keys, values and states) at the end of the run, including a cache given as
input, are certain. For activations the formulas give an upper bound (:func:`activations`): every tensor that crosses a
module boundary is held, from the first stage to the last, for one call of each stage, and everything that the operators
of one layer read and write. Memory of the runtime itself is not included.

A capture with peaks (``--peaks``) contains the eager peak of each stage, with temporaries and its cache. A run of the
modules as written holds at least weights, buffers and the largest of these peaks, without arguments of the stage, which
belong to somebody else in the run. It holds at most weights, buffers and the sum of all peaks: while one call runs,
each earlier call has left its results, which its own peak includes; for decode, the last step has the largest peak and
replaces the cache of the previous one.

*The live peak.* Targets whose peak is a formula (:class:`~costproof.models.target.WithMemory`) need no bound: a run
holds weights, buffers and the peak of the stage that holds most, with its cache. Each tensor is released after its last
reader, as an exported graph does; a stage is given the results of those before it and keeps nothing of them. The cache
of a layer is released once the extended one exists.

*Activations.* Without such a formula, a model runs one layer at a time. The tensors that are alive are then at most

* the results of modules that have returned: at most everything that crosses a module boundary, ``output_bytes``;
* the operands and results of the operators in the running layer and in modules outside of layers. Each such tensor is
  read or written by an operator, so that they are at most the ``unfused_bytes`` minus the weights. Materialized
  attention scores of one layer are included;
* copies, which move no bytes in these counts: casts and contiguous tensors, each as large as an argument or a result of
  a module (``input_bytes`` and ``output_bytes`` once more), and cached keys and values repeated for every query head,
  which have as many elements as the attention of a step has multiply-accumulates;
* masks over every query and key of a prompt. Boolean masks are not activations in the counts, so the bound includes
  two masks as numbers, one copy of a mask, and the four boolean masks that they are made of.

Latent attention under sdpa is added by :func:`unfused_attention`. ``tests/estimate/test_activations.py`` compares the
bound with the peaks of eager modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final, Literal

from costproof.estimate.arithmetic import CallTerm, FormulaSum, MetricTerm, depends_on_context
from costproof.estimate.hardware import Device
from costproof.estimate.roofline import ThresholdOutcome
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, BadInput
from costproof.ledger.mesh import Duplicate, RankCosts
from costproof.ledger.metrics import UNFUSED, Conventions, Metric
from costproof.ledger.node import CostNode, exact_sum
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import KV_DTYPE, TargetInfo, Workload, cache_counted

FitVerdict = Literal["fits", "does not fit", "not known"]
HeldKind = Literal["weights and cache", "weights and live peak", "weights and graph peak", "weights, cache and bound"]
NEEDED: Final[tuple[Metric, ...]] = ("weight_bytes", "kv_cache_bytes")
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(?:[eE]\+?([0-9]{1,2}))?\s*(B|[kMGTP]B|[KMGTP]iB)?")
_PREFIXES: Final = "kMGTP"
_EXIT: Final[dict[FitVerdict, int]] = {
    "fits": EXIT_OK, "does not fit": EXIT_FINDINGS, "not known": EXIT_INCOMPLETE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory that a stage adds to a run; ``None`` means unknown."""

    id: str
    cache_bytes: int | None
    """Bytes that the stage's calls add to the key/value cache."""
    activations_bytes: int | None
    """Upper bound of one call's activations without the cache; for decode, of the last step.

    ``None`` if no formulas bound it.
    """
    peak_bytes: int | None = None
    """Largest known eager peak of the stage's calls, without their arguments; ``None`` if none is known."""
    peaks_bytes: int | None = None
    """Sum of the eager peaks of all calls and parts, with arguments; ``None`` if any is unknown."""
    live_bytes: int | None = None
    """Live peak of the stage's largest call, with cache, arguments and results.

    ``None`` if it is unknown, or that of another stage, inside whose graph this one runs.
    """


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Bytes of a run's memory at one value of a setting."""

    at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The first value of a setting at which a run does not fit, with all other settings unchanged."""

    setting: str
    held: HeldKind
    """Kinds of memory that together exceed the limit.

    The graph peak is the largest of those that a capture has as expressions, without arguments.
    """
    outcome: ThresholdOutcome
    """``never``: every value fits; ``refused``: the model rejects :attr:`at`; ``from``: :attr:`at` does not fit."""
    at: int | None
    points: tuple[MemoryPoint, ...]
    """The last accepted value that fits and the first that does not.

    If that one is refused, it is not shown; without a limit or an accepted value, the workload's own is.
    """
    why: str = ""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of a set of ranks with equal memory; ``None`` means unknown."""

    ranks: tuple[int, ...]
    weights_bytes: int | None
    cache_bytes: int | None
    live_bytes: int | None
    most_bytes: int | None
    """Upper bound of the memory, as :attr:`Fits.most_bytes`."""
    verdict: FitVerdict


@dataclass(frozen=True, slots=True)
class MeshTried:
    """A mesh that was tried in the search for the smallest one that fits."""

    tp: int
    ep: int
    verdict: FitVerdict | None
    """Verdict on this mesh; ``None`` if the model cannot be split this way."""
    weights_bytes: int | None
    why: str = ""
    """Reason why the model cannot be split."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Memory of a run, compared with the memory of a device."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    device: Device | None
    memory_bytes: int
    source: str
    weights_bytes: int | None
    """Bytes of the parameters that the run needs, in its dtype; ``None`` if unknown, as for an unknown format."""
    cache_bytes: int | None
    """Bytes of the key/value cache at the end of the run."""
    activations_bytes: int | None
    """Upper bound of activations; see the module docstring."""
    peak_bytes: int | None
    """Largest known :attr:`StageMemory.peak_bytes` of any stage; ``None`` if none is known."""
    stages: tuple[StageMemory, ...]
    limits: tuple[MemoryLimit, ...]
    stored_bytes: int | None = None
    """Bytes of weights as stored in a quantised checkpoint; ``None`` for other checkpoints or unknown layouts."""
    stored_format: str = ""
    """Formats of the weights in :attr:`stored_bytes`."""
    next_token_modules: int = 0
    """Number of multi-token prediction modules in memory: their weights, without their cache and activations."""
    next_token_bytes: int = 0
    """Bytes of these modules in :attr:`stored_bytes`."""
    next_token_ranks: tuple[RankCosts, ...] = ()
    """What each rank of a mesh holds of these modules, in all metrics of memory; empty on one device."""
    next_token_copies: tuple[Duplicate, ...] = ()
    """Copies by which these ranks together exceed one device."""
    unpacked_bytes: int | None = None
    """Bytes of the largest quantised matrix in the run's dtype, which a kernel may unpack before it multiplies.

    Of ranks that store parts of parameters: the most gathered parameters at once.
    """
    buffers_bytes: int | None = None
    """Bytes of all registered buffers of the model, persistent or not; ``None`` if unknown."""
    attributes_bytes: int = 0
    """Bytes of tensors that are plain attributes of modules, not parameters or buffers, if at least 1 MB."""
    live_bytes: int | None = None
    """Largest :attr:`StageMemory.live_bytes` of any stage; ``None`` if the live peak of the run is unknown."""
    live_source: Literal["formula", "graph"] = "formula"
    """Origin of the live peak: a formula, or an exported graph if there is no formula."""
    last_logits_bytes: int | None = None
    """Live peak with logits of the last position only; ``None`` if unknown, or if the run computes only these."""
    token_bytes: int | None = None
    """Cache bytes that one more text token adds to one sequence; ``None`` if unknown."""
    held_cache_bytes: int | None = None
    """Most bytes of cache blocks in any call, with unused ones; ``None`` for a cache without blocks."""
    cache_waste_bytes: int | None = None
    """Bytes of :attr:`held_cache_bytes` that no token uses."""
    blocked_live_bytes: int | None = None
    """Upper bound of the largest live peak including cache blocks; ``None`` if unknown or without blocks.

    A layer takes its blocks when it writes.
    """
    reserve_bytes: int = 0
    """Bytes of the device that the caller reserves for the runtime; :attr:`memory_bytes` excludes them."""
    notes: tuple[str, ...] = ()
    """Notes of the sources on their counting and on work that they omitted."""
    rank: int | None = None
    """Rank to which all bytes and limits belong; ``None`` if the run is on one device."""
    binding_ranks: tuple[int, ...] = ()
    """Ranks with the most bytes of weights and cache by the formulas; empty on one device or without formulas."""
    ranks: tuple[RankMemory, ...] = ()
    """Memory of all ranks, largest first; empty on one device, for a named rank, and without formulas."""
    count: int | None = None
    """Number of devices for which a mesh was searched; ``None`` if the run names its mesh."""
    tried: tuple[MeshTried, ...] = ()
    """Meshes that were tried in order; only the last one may fit."""

    @property
    def name(self) -> str:
        """Return ``TARGET at WORKLOAD`` with the device, or ``8 x DEVICE``."""
        ranks = self.count or self.workload.mesh.world
        many = f"{ranks} x " if ranks > 1 else ""
        return f"{self.target.title} at {self.workload.name}" + (f" on {many}{self.device.name}" if self.device else "")

    @property
    def held_weights(self) -> int | None:
        """Return the bytes of weights in memory, in the stored layout if known, else in the run's dtype."""
        return self.weights_bytes if self.stored_bytes is None else self.stored_bytes

    @property
    def is_known(self) -> bool:
        """Return whether the bytes of weights and cache are for the checkpoint's own formats."""
        return not {*cache_counted(self.target, self.workload).quantised} - (
            set() if self.stored_bytes is None else {"weights"}
        )

    @property
    def is_live_exact(self) -> bool:
        """Return whether the live peak is exact, and not an upper bound due to a cache with fewer bits than the run."""
        return KV_DTYPE not in self.workload.inputs

    @property
    def is_most_exact(self) -> bool:
        """Return whether :attr:`most_bytes` is exact, and not an upper bound.

        At the live peak, a kernel may or may not have a matrix unpacked, and the blocks of a cache are partly in it.
        """
        exact = self.live_bytes is not None and self.is_live_exact
        return exact and not self.unpacked_bytes and self.blocked_live_bytes is None

    @property
    def planned_cache_bytes(self) -> int | None:
        """Return the cache bytes to plan for: those of its blocks, or without blocks those at the end of the run."""
        return self.cache_bytes if self.held_cache_bytes is None else self.held_cache_bytes

    @property
    def certain_bytes(self) -> int | None:
        """Return the bytes of weights and cache, and of buffers if known."""
        return exact_sum((self.lasting_bytes, self.planned_cache_bytes))

    @property
    def lasting_bytes(self) -> int | None:
        """Return the bytes held throughout the run: weights and tensor attributes, plus buffers if known."""
        if self.held_weights is None:
            return None
        return self.held_weights + (self.buffers_bytes or 0) + self.attributes_bytes

    @property
    def bound_bytes(self) -> int | None:
        """Return the sum of weights, buffers, cache, upper bound of activations, and an unpacked matrix."""
        parts = (self.held_weights, self.buffers_bytes, self.planned_cache_bytes, self.activations_bytes)
        return exact_sum((*parts, self.unpacked_bytes or 0, self.attributes_bytes))

    @property
    def least_bytes(self) -> int | None:
        """Return a lower bound of the memory that the run holds at its peak: weights, buffers, and what is known above.

        That is the live peak if it is known exactly, else the cache; without any live peak, the largest eager peak. A
        live peak is of a run of the graph, which may release tensors earlier than modules that Python runs.
        """
        if self.live_bytes is None:
            return self.eager_least_bytes
        if self.certain_bytes is None or self.lasting_bytes is None:
            return None
        return max(self.certain_bytes, self.lasting_bytes + (self.live_bytes if self.is_live_exact else 0))

    @property
    def eager_least_bytes(self) -> int | None:
        """Return a lower bound of the peak if Python runs the modules: weights, buffers, and cache or eager peak."""
        if self.certain_bytes is None or self.lasting_bytes is None:
            return None
        return max(self.certain_bytes, self.lasting_bytes + (self.peak_bytes or 0))

    @property
    def eager_most_bytes(self) -> int | None:
        """Return an upper bound of the peak if Python runs the modules: weights, buffers and all eager peaks.

        With the largest quantised matrix, unpacked.
        """
        parts = (self.held_weights, self.buffers_bytes, self.peaks_bytes)
        return exact_sum((*parts, self.unpacked_bytes or 0, self.attributes_bytes))

    @property
    def peaks_bytes(self) -> int | None:
        """Return the sum of the peaks of all stages; ``None`` if any is unknown."""
        return exact_sum(s.peaks_bytes for s in self.stages)

    @property
    def most_bytes(self) -> int | None:
        """Return an upper bound: weights, buffers, unpacked matrix, and the live peak or the sum of all peaks.

        If neither is known, :attr:`bound_bytes`.
        """
        peak = self.live_bytes if self.live_bytes is not None else self.peaks_bytes
        if self.held_cache_bytes is not None:
            peak = self.blocked_live_bytes
        if peak is None or self.weights_bytes is None:
            return self.bound_bytes
        return exact_sum((self.held_weights, self.buffers_bytes, peak, self.unpacked_bytes or 0, self.attributes_bytes))

    @property
    def verdict(self) -> FitVerdict:
        """Return ``fits`` if the upper bound fits, ``does not fit`` if the lower bound does not, else ``not known``.

        Memory of the runtime itself is not included. The bytes of a quantised checkpoint may not be known.
        """
        if not self.is_known:
            return "not known"
        if self.least_bytes is not None and self.least_bytes > self.memory_bytes:
            return "does not fit"
        return "fits" if self.most_bytes is not None and self.most_bytes <= self.memory_bytes else "not known"

    @property
    def exit_code(self) -> int:
        """Return 0 for fits, 1 for does not fit, 3 for not known."""
        return _EXIT[self.verdict]


FITS: Final = FileKind(name="costproof/fits", version=(3, 8), type=Fits)


def parse_size(text: str, where: str, least: int = 1) -> int:
    """Return the bytes of a size: ``80GB`` is 80 x 10^9, ``80GiB`` is 80 x 2^30, ``85899345920`` is itself.

    Args:
        text: the size.
        where: name of the option.
        least: smallest size that is accepted.

    Raises:
        BadInput: it is not a size, not a whole number of bytes, or smaller.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        expected = "bytes, or a number with kB, MB, GB, TB or KiB, MiB, GiB, TiB"
        raise BadInput("invalid memory size", where=where, expected=expected, got=text[:60])
    whole, decimals, exponent, unit = found[1], found[2] or "", int(found[3] or 0), found[4] or "B"
    rank = 0 if unit == "B" else _PREFIXES.index(unit[0].replace("K", "k")) + 1
    number = (
        Fraction(int(whole + decimals), 10 ** len(decimals)) * 10**exponent * (1024 if "i" in unit else 1000) ** rank
    )
    if number.denominator != 1 or number < least:
        raise BadInput(
            "a memory size is not a whole number of bytes", where=where, expected="such as 80GB, 80GiB", got=text[:60]
        )
    return int(number)


_MASK_BYTES: Final = "(3*b + 4)*"
_MASKS: Final = "B*S**2"
"""Formula of the mask elements in a call with B sequences of S tokens; each takes at most 3 b + 4 bytes."""
_ATTENTION: Final = "attention"
_PAST_MASKS: Final = "B*S*C"
"""Formula of additional mask elements if C tokens are in the cache before the call."""
_SCORE_BYTES: Final = 13
"""Bytes per head, query and key that the scores of unfused attention take."""
_KEY_BYTES: Final = 12
"""Bytes per element of a query or a key in unfused attention."""
_VALUE_BYTES: Final = 8
"""Bytes per element of a value or a result in unfused attention."""
_PROMPT: Final = ("S", "S")
_CHUNK: Final = ("S", "(C + S)")
_LAST_STEP: Final = ("1", "(P + N)")
"""Numbers of queries and keys of the last decode step, as formulas."""


def activations(element: int, stage: str | None = None, rows: int = 0) -> FormulaSum:
    """Return the upper bound of activation bytes of one call in a stage (or any); for decode, of the last step.

    Args:
        element: bytes per element.
        stage: ``None``: all stages.
        rows: number of kinds of rows of a batch, each with its own masks; 0 for equal sequences.
    """
    masks = [f"({' + '.join(f'SS_{i} + SC_{i}' for i in range(1, rows + 1))})"] if rows else []

    def here(node: CostNode) -> bool:
        return stage in (None, node.stage)

    def past(node: CostNode) -> bool:
        return here(node) and node.kind == _ATTENTION and depends_on_context(node.exprs["flops"])

    inside = partial(MetricTerm, nodes=here, take="last step", layers="one of each kind")
    return (
        MetricTerm("output_bytes", here, take="last step"),
        inside(UNFUSED),
        inside("weight_read_bytes", factor=-1),
        inside("input_bytes"),
        inside("output_bytes"),
        MetricTerm("flops", past, factor=-(-element // 2), take="last step", layers="one of each kind"),
        *(CallTerm(_MASK_BYTES + source, stage) for source in masks or (_MASKS, _PAST_MASKS)),
    )


def unfused_attention(
    side: Baseline, sizes: Mapping[tuple[str, str], Mapping[str, int]], stage: str | None = None
) -> FormulaSum:
    """Return the bytes that latent attention takes under sdpa beyond a fused kernel; for decode, in the last step.

    torch's fused CPU kernel requires queries, keys and values of one width. If the values have another width,
    as in latent attention, ``scaled_dot_product_attention`` falls back to separate operators, in float32 for 16-bit
    inputs. At once there are at most

    * for every head, query and key 13 bytes: float32 scores, their float32 softmax, one byte of mask, and the float32
      softmax with fully masked rows zeroed; the returned result is smaller than what is freed before it;
    * three float32 tensors of the size of queries plus keys: cast, scaled, and laid out for the product;
    * two of the size of the values (cast, laid out) and two of the size of the result.

    Keys and values are expanded to every query head even if all heads share them. GPU kernels may hold less. For eager
    attention ``unfused_bytes`` already includes the scores.

    Args:
        side: the run.
        sizes: (stage, invocation) -> the values of its symbols.
        stage: ``None``: all stages.
    """
    if side.workload.attention != "sdpa":
        return ()
    latent = ("text_nope + text_rope", "text_value")
    expanded = [latent] if any(_widths_differ(values) for values in sizes.values()) else []
    absorbed = [("text_kv_rank + text_rope", "text_kv_rank")] if side.conventions.mla == "absorbed" else expanded
    # Only a prefill with a past has the symbol C.
    prompts = [_layer_bytes(*tokens, *widths) for widths in expanded for tokens in (_PROMPT, _CHUNK)]
    # Without formulas, each row is a call with symbols of its own.
    if kinds := max(map(row_kinds_in, sizes.values()), default=0):
        both = dict.fromkeys((*expanded, *absorbed))
        prompts = [_row_bytes(i, *widths) for widths in both for i in range(1, kinds + 1)]
    steps = (_layer_bytes(*_LAST_STEP, *widths) for widths in absorbed)
    return tuple(CallTerm(source, stage) for source in (*prompts, *steps))


def row_kinds_in(values: Mapping[str, int]) -> int:
    """Return the number of kinds of batch rows, from the names of a call's symbols."""
    return sum(name.startswith("SS_") for name in values)


def _row_bytes(kind: int, width: str, value: str) -> str:
    """Return the formula of the activation bytes that one layer takes for all batch rows of a kind."""
    scores = f"{_SCORE_BYTES}*(SS_{kind} + SC_{kind})"
    return f"text_heads*({scores} + (2*S_{kind} + C_{kind})*({_KEY_BYTES}*({width}) + {_VALUE_BYTES}*{value}))"


def _widths_differ(values: Mapping[str, int]) -> bool:
    """Return whether the values of latent attention differ in width from queries and keys."""
    return "text_value" in values and values["text_nope"] + values["text_rope"] != values["text_value"]


def _layer_bytes(queries: str, keys: str, width: str, value: str) -> str:
    """Return the formula of the activation bytes that one layer takes in a call."""
    scores = f"{_SCORE_BYTES}*{queries}*{keys}"
    rows = f"({queries} + {keys})*({_KEY_BYTES}*({width}) + {_VALUE_BYTES}*{value})"
    return f"B*text_heads*({scores} + {rows})"
