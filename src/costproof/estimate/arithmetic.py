"""Sum metrics over nodes and calls, and split FLOPs by the dtype in which operators multiply.

FLOPs that another implementation can skip are excluded from lower bounds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import parse
from costproof.ledger.baseline import Folded
from costproof.ledger.metrics import ARITHMETIC, KEPT_FLOPS, SKIPPABLE, UNFUSED, Metric
from costproof.ledger.node import CostNode, exact_sum

ByDtype = dict[str, int]
"""FLOPs by dtype of the multiplication."""
INT8: Final = "int8"
OTHER: Final = ARITHMETIC[-1]
FLOAT4: Final = "float4"
UNPACKED_DTYPES: Final = ("float8", FLOAT4)
"""Dtypes of formats that engines unpack to the dtype of the run on a device that does not multiply in them."""
CONVOLUTION: Final = "tf32"
"""Name of the arithmetic that torch uses by default for float32 convolutions and recurrent layers."""
FUSED: Final = "three of tf32"
"""Name of the arithmetic of torch's fused attention in float32 (``OpMultiplyAddFastF32`` of CUTLASS)."""
_RECURRENT: Final = re.compile(r".*\b(lstm|gru|rnn_tanh|rnn_relu)(\.\w+)?")


def _cost(costs: Mapping[Metric, int | None], metric: Metric) -> int | None:
    return costs.get(metric, 0)


@dataclass(frozen=True, slots=True)
class DtypeWork:
    """FLOPs of some operators, by the dtype in which they multiply."""

    flops: int | None
    """Headline FLOPs; ``None`` if unknown."""
    full: ByDtype
    """All known headline FLOPs, by dtype."""
    least: ByDtype
    """FLOPs that every implementation of the same result needs, by dtype."""
    kept: int | None = None
    """Headline FLOPs without those of masked scores; ``None`` if unknown."""


def sum_work(works: Iterable[DtypeWork]) -> DtypeWork:
    """Return the sum of several :class:`DtypeWork`."""
    every = list(works)
    full, least = Counter[str](), Counter[str]()
    for one in every:
        full.update(one.full)
        least.update(one.least)
    flops, kept = exact_sum(one.flops for one in every), exact_sum(one.kept for one in every)
    return DtypeWork(flops, dict(full), dict(least), kept)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The dtypes in which the operators of a run multiply."""

    run: str
    """Dtype of the run, in which all operators without a dtype of their own multiply."""
    bounds: bool = True
    """Whether the counts have the metrics for time bounds: FLOPs that can be skipped, and FLOPs by dtype."""
    instead: Mapping[str, str] | None = None
    """Dtype whose peak is used instead of a dtype's, for all operators, by dtype; ``None``: torch's defaults."""
    kept: bool = False
    """Whether the counts have the FLOPs without masked scores."""
    unpacked: frozenset[str] = frozenset()
    """Dtypes of formats in which the device does not multiply: factors are unpacked to the dtype of the run."""

    def named(self, dtype: str, kind: str) -> str:
        """Return the dtype whose peak rate bounds an operator of this kind."""
        dtype = self.run if dtype in self.unpacked else dtype
        if self.instead is not None:
            return self.instead.get(dtype, dtype)
        if dtype != "float32":
            return dtype
        if "conv" in kind or _RECURRENT.fullmatch(kind):
            return CONVOLUTION
        return FUSED if "attention" in kind else dtype

    def of(self, cost: Callable[[Metric], int | None], kind: str) -> DtypeWork:
        """Return the FLOPs by dtype of operators of one kind, from their costs."""
        flops = cost("flops")
        if flops is None:
            return DtypeWork(None, {}, {})
        by_dtype = {dtype: cost(f"{dtype}_flops") for dtype in ARITHMETIC} if self.bounds else {}
        full: ByDtype = {dtype: n for dtype, n in by_dtype.items() if n}
        rest = flops - sum(full.values())
        if None in by_dtype.values() or rest < 0:
            full, rest = {OTHER: flops}, 0
        if rest:
            full[self.run] = full.get(self.run, 0) + rest
        spare, kept = cost(SKIPPABLE) if self.bounds else 0, cost(KEPT_FLOPS) if self.kept else flops
        skipped = flops if spare is None or kept is None else flops - kept + spare
        least: ByDtype = {}
        # With several dtypes, subtract from the slowest first, so that the rest is a lower bound of the time.
        for dtype in sorted(full, key=ARITHMETIC.index):
            gone = min(skipped, full[dtype])
            skipped -= gone
            if full[dtype] > gone:
                least[dtype] = full[dtype] - gone
        counted = kept if self.kept else None
        return DtypeWork(flops, self._renamed(full, kind), self._renamed(least, kind), counted)

    def _renamed(self, found: ByDtype, kind: str) -> ByDtype:
        renamed = Counter[str]()
        for dtype, n in found.items():
            renamed[self.named(dtype, kind)] += n
        return dict(renamed)

    def of_nodes(self, nodes: Iterable[CostNode]) -> DtypeWork:
        """Return the FLOPs by dtype of some cost nodes."""
        return sum_work(self.of(node.cost, node.kind) for node in nodes)

    def of_kinds(self, kinds: Mapping[str, Mapping[Metric, int | None]]) -> DtypeWork:
        """Return the FLOPs by dtype of a model part, from its costs by operator kind."""
        return sum_work(self.of(partial(_cost, costs), kind) for kind, costs in kinds.items())

    def of_stage(self, folded: Folded, stage: str) -> DtypeWork:
        """Return the FLOPs by dtype of a stage."""
        return sum_work(self.of_kinds(kinds) for kinds in folded.rows.get(stage, {}).values())


def arithmetic_of(
    folded: Folded, run: str, math: str | None = None, unknown: Collection[str] = ()
) -> tuple[Arithmetic, str]:
    """Return the arithmetic of a run, and the dtype in which most of its floating-point FLOPs multiply.

    If most FLOPs multiply integers, that is the dtype of the run.

    Args:
        folded: the counts.
        run: the dtype of the run.
        math: replaces the dtype of most FLOPs.
        unknown: dtypes of which the device has no peak; without ``math``, those of formats are unpacked.
    """
    kept = KEPT_FLOPS in folded.metrics
    plain = Arithmetic(run, folded.bounds, {}, kept)
    most = Counter(sum_work(plain.of_stage(folded, stage) for stage in folded.stages).full)
    unpacked = frozenset(one for one in UNPACKED_DTYPES if math is None and most[one] and one in unknown)
    for one in unpacked:
        most[run] += most.pop(one)
    main = max(most, key=lambda dtype: (most[dtype], dtype == run), default=run)
    main = run if main in (INT8, OTHER) else main  # which few devices have a peak of
    return (
        (Arithmetic(run, folded.bounds, None, kept, unpacked), main)
        if math is None
        else (Arithmetic(run, folded.bounds, {main: math}, kept), math)
    )


def dtypes(bounds: Iterable[ByDtype | None]) -> Iterator[str]:
    """Yield the dtypes that occur in some bounds, each once."""
    yield from dict.fromkeys(dtype for one in bounds for dtype in one or ())


Take = Literal["whole", "last step"]
_LAYER: Final = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class MetricTerm:
    """Summand of a formula sum: a metric summed over some nodes, times a constant factor."""

    metric: Metric
    nodes: Callable[[CostNode], bool]
    """Predicate that selects the nodes over which the metric is summed."""
    factor: int = 1
    take: Take = "whole"
    """``last step`` restricts a series of decode steps to its last step."""
    layers: Literal["all", "one of each kind"] = "all"
    """``one of each kind`` bounds the metric of a single layer, see :func:`distinct_layers`."""


@dataclass(frozen=True, slots=True)
class CallTerm:
    """Summand of a formula sum: a formula in a call's symbols, summed over all calls that have these symbols."""

    source: str
    """The expression, as text."""
    stage: str | None = None
    """Stage of the calls; ``None`` for every stage."""
    invocation: str | None = None
    """Invocation of the calls; ``None`` for every invocation."""


FormulaSum = tuple[MetricTerm | CallTerm, ...]


def depends_on_context(source: str) -> bool:
    """Return whether the formula of a decode step depends on the number of tokens in the cache."""
    return CONTEXT in parse(source).free_symbols


def layer_of(module: str) -> str:
    """Return the outermost numbered module that contains a module (``model.layers.3``), or an empty string."""
    found = _LAYER.match(module)
    return found[0] if found else ""


def distinct_layers(nodes: Iterable[CostNode]) -> Iterator[CostNode]:
    """Yield, for each call, the nodes outside of layers and the nodes of one layer of each kind.

    Two layers of a call are of the same kind if their formulas of :data:`~costproof.ledger.metrics.UNFUSED` are equal.
    The sum over one layer of each kind is at least the sum over any single layer. Unlike a maximum it is a polynomial
    if its terms are.
    """
    layers: dict[tuple[str, str, str], list[CostNode]] = {}
    for node in nodes:
        if layer := layer_of(node.module):
            layers.setdefault((node.stage, node.invocation, layer), []).append(node)
        else:
            yield node
    seen = set()
    for (stage, invocation, layer), own in layers.items():
        moved = sorted((n.module.removeprefix(layer), n.exprs[UNFUSED]) for n in own if UNFUSED in n.exprs)
        if (kind := (stage, invocation, *moved)) not in seen:
            seen.add(kind)
            yield from own
