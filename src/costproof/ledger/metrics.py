"""Define the metrics that a cost node can have, and the conventions of counting.

A metric is *stage-wide* if it belongs to a module whatever is run through it (its parameters), and *per call* if it
grows with the workload (its FLOPs). Stage-wide metrics are on nodes whose ``invocation`` is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Metric = str
"""Name of a metric in :data:`EVERY_METRIC`.

Adding a metric takes only an entry there: sums, files, tables and frames follow.
"""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Properties of a metric, by which reports and comparisons treat metrics without naming them."""

    unit: str
    """``elements``, ``bytes``, ``calls``, ``scores``, ``messages``, ``FLOP`` or ``MAC``."""
    stage_wide: bool
    title: str
    """Title in the tables of reports."""
    meaning: str
    proven: bool = False
    """Whether a verdict requires the metric from two sources; others are compared if two sources have them."""
    by_kind: bool = False
    """Whether the metric is compared for each operator kind of a module."""
    column: str = ""
    """Heading in the first table of a report; empty if it appears only in later tables."""
    formula: bool = False
    """Whether reports print the metric's formula; ``explain`` has formulas of all metrics."""
    convention: str = ""
    """Another tool's convention to which the metric belongs, counted on request; empty for costproof's."""
    optional: bool = False
    """Whether a source may lack the metric without leaving a comparison incomplete, as older files do."""
    largest: bool = False
    """Whether the metric is a maximum over time, which is not a sum over stages or nodes."""
    parallel: bool = False
    """Whether only runs on several devices have the metric."""


EVERY_METRIC: Final[dict[Metric, MetricInfo]] = {
    "params": MetricInfo(
        "elements", True, "parameters", "elements of the parameters that the module itself owns",
        proven=True, column="Params", formula=True,
    ),
    "params_active": MetricInfo(
        "elements", True, "parameters that one token passes",
        "of those, the elements that one token passes: routed experts count top-k of E",
    ),
    "weight_bytes": MetricInfo(
        "bytes", True, "weight bytes", "bytes of the module's own parameters in the run's dtype", column="Weights",
    ),
    "buffer_bytes": MetricInfo(
        "bytes", True, "buffer bytes",
        "bytes of the buffers that the module itself registers, persistent or not, each in its own dtype; what several "
        "names or views share counts once",
    ),
    "stored_bytes": MetricInfo(
        "bytes", True, "stored bytes",
        "bytes that the checkpoint stores of the module's own parameters and persistent buffers: in its quantised "
        "format, else in the dtype that its configuration names; tied tensors once",
        column="Stored", optional=True,
    ),
    "stored_elements": MetricInfo(
        "elements", True, "stored elements",
        "elements of these tensors, as the headers of its files add up to: with scales, and a word of packed integers "
        "as one",
        optional=True,
    ),
    "resident_bytes": MetricInfo(
        "bytes", True, "resident bytes",
        "bytes that a loaded module occupies: quantised parameters as they are stored, others in the run's dtype, and "
        "all buffers",
        optional=True,
    ),
    "calls": MetricInfo("calls", False, "calls", "how often the module's forward runs", proven=True),
    "flops": MetricInfo(
        "FLOP", False, "FLOPs",
        "matmul-like work, 2 per multiply-accumulate: linear, convolution, attention over the full "
        "S_q x S_k, einsum, grouped expert GEMMs, router",
        proven=True, by_kind=True, column="FLOPs", formula=True,
    ),
    "kept_flops": MetricInfo(
        "FLOP", False, "kept FLOPs",
        "the FLOPs without those of scores that a mask hides: causal, window, chunk, document and padding masks",
        by_kind=True,
    ),
    "kept_scores": MetricInfo(
        "scores", False, "kept scores",
        "pairs of a query and a key that the masks leave, each counted for every query head",
    ),
    "vector_flops": MetricInfo(
        "FLOP", False, "vector FLOPs",
        "elementwise and reduction work; never added to the headline (see conventions)",
        column="Vector FLOPs", formula=True,
    ),
    "unpacking_flops": MetricInfo(
        "FLOP", False, "vector FLOPs of quantised weights",
        "floating-point work that the format of a quantised checkpoint adds to the products: each matrix that a call "
        "reads is unpacked once, or, where products are in the format, inputs are quantised and results scaled; in no "
        "other metric",
        optional=True,
    ),
    "weight_read_bytes": MetricInfo(
        "bytes", False, "weight bytes read",
        "bytes of parameters that the call reads: tables by looked-up rows, experts at most min(E, tokens x top-k)",
    ),
    "unpacked_bytes": MetricInfo(
        "bytes", False, "weight bytes that quantisation saves",
        "weight_read_bytes beyond those of the weights as a quantised checkpoint stores them; all bytes of looked-up "
        "rows of quantised tables, of experts in several formats, and of quantised weights of other modules",
        optional=True,
    ),
    "input_bytes": MetricInfo(
        "bytes", False, "activation bytes read",
        "floating-point activations that enter the operators of the module from outside them, each once; "
        "what comes from the key/value cache is counted apart",
    ),
    "output_bytes": MetricInfo(
        "bytes", False, "activation bytes written",
        "floating-point activations that the operators of the module produce for others, each once",
        column="Activations written, sum", formula=True,
    ),
    "kv_read_bytes": MetricInfo(
        "bytes", False, "key/value cache bytes read",
        "bytes of the key/value cache that the operators of the module read as it was before the call, each once",
    ),
    "kv_cache_bytes": MetricInfo(
        "bytes", False, "key/value cache bytes", "bytes that the call appends to the key/value cache",
        column="KV cache", formula=True,
    ),
    "unfused_bytes": MetricInfo(
        "bytes", False, "bytes, unfused",
        "what the operators of the module read and write, weights and cache included, where each of them runs on its "
        "own: another model of reuse, never added to the other bytes",
    ),
    "floor_bytes": MetricInfo(
        "bytes", False, "bytes, floor",
        "what the call moves at least, on the root: its inputs, weights and cache read once, its results and what it "
        "appends to the cache written once, all in between kept on chip: another model of reuse, never added to the "
        "other bytes",
    ),
    "fvcore_macs": MetricInfo(
        "MAC", False, "fvcore's flops",
        "what fvcore calls flops: multiply-accumulates of linear, convolution, matmul and einsum (to four digits), "
        "5 per element of a norm; no fused attention, no grouped experts",
        by_kind=True, convention="fvcore-macs",
    ),
    "fvcore_activations": MetricInfo(
        "elements", False, "fvcore's activations",
        "what fvcore calls activations: output elements of linear, convolution, matmul and einsum",
        by_kind=True, convention="fvcore-macs",
    ),
    "graph_peak_bytes": MetricInfo(
        "bytes", False, "peak of live activations, graph",
        "the largest sum of activations that are alive at once, by the exported graph of a stage",
        column="Graph peak", largest=True,
    ),
    "eager_peak_bytes": MetricInfo(
        "bytes", False, "peak of live activations, eager",
        "the largest sum of activations that are alive at once, as the module of a stage holds them",
        column="Eager peak", largest=True,
    ),
    "comm_bytes": MetricInfo(
        "bytes", False, "bytes sent", "bytes that a rank sends in collectives by the ring algorithm, in the dtype on "
        "the wire: 2 (n - 1) chunks for an all-reduce, n - 1 for the others, each of ceil(elements / n), and the whole "
        "tensor for a send",
        by_kind=True, parallel=True, optional=True,
    ),
    "comm_payload_bytes": MetricInfo(
        "bytes", False, "payload of collectives",
        "bytes of the full tensors that collectives reduce, gather or exchange, whatever the algorithm",
        by_kind=True, parallel=True, optional=True,
    ),
    "messages": MetricInfo(
        "messages", False, "collectives", "how many collectives a rank takes part in",
        by_kind=True, parallel=True, optional=True,
    ),
}  # fmt: skip
"""All metrics, in the order of reports."""

KEPT_FLOPS: Final[Metric] = "kept_flops"
KEPT_SCORES: Final[Metric] = "kept_scores"
KEPT: Final[tuple[Metric, ...]] = (KEPT_FLOPS, KEPT_SCORES)
SKIPPABLE: Final[Metric] = "skippable_flops"
SPARED: Final[Metric] = "skippable_bytes"
SPARED_AT_FLOOR: Final[Metric] = "skippable_floor_bytes"
IN_FLOAT32: Final[Metric] = "float32_flops"
ARITHMETIC: Final[tuple[str, ...]] = ("float64", "float32", "bfloat16", "float16", "float8", "float4", "int8", "other")
"""Dtypes of multiplications, slowest first; ``other``: integers except int8, and dtypes that no device file lists."""
OF_FORMATS: Final[tuple[Metric, ...]] = ("float8_flops", "float4_flops", "int8_flops", "other_flops")
"""FLOP metrics of dtypes that only formats of quantised weights may bring."""
OF_BOUNDS: Final[dict[Metric, str]] = {
    SKIPPABLE: "kept FLOPs that another algorithm for the same result leaves out: overlapping taps of a convolution, "
    "latents whose expansion queries absorb; without kept_flops also scores that a mask hides or may hide",
    SPARED: "bytes at the module boundary that a run need not move: keys and values that a mask may hide, and what "
    "autocast makes narrower than an export on meta has it",
    SPARED_AT_FLOOR: "such bytes among the floor_bytes",
    **{f"{dtype}_flops": f"headline FLOPs of operators that multiply in {dtype}" for dtype in ARITHMETIC},
}
"""Meanings of further metrics for time bounds, which are in no table but are findings if sources differ.

FLOPs without a dtype are in the dtype of the run.
"""
METRICS: Final[dict[Metric, MetricInfo]] = {
    m: i for m, i in EVERY_METRIC.items() if not (i.convention or i.largest or i.parallel)
}
"""Costproof's metrics that are sums over nodes and exist in every run."""
COMM: Final[dict[Metric, MetricInfo]] = {m: i for m, i in EVERY_METRIC.items() if i.parallel}
"""Communication metrics, which a rank has in a run on several devices."""
SUMMED: Final[dict[Metric, MetricInfo]] = {**METRICS, **COMM}
"""All of costproof's metrics that are sums over nodes."""
PEAK_METRICS: Final[dict[Metric, MetricInfo]] = {m: i for m, i in EVERY_METRIC.items() if i.largest}
FVCORE: Final[dict[Metric, MetricInfo]] = {m: i for m, i in EVERY_METRIC.items() if i.convention == "fvcore-macs"}
STAGE_WIDE: Final[frozenset[Metric]] = frozenset(m for m, i in EVERY_METRIC.items() if i.stage_wide)
STORAGE: Final[tuple[Metric, ...]] = ("stored_bytes", "stored_elements", "resident_bytes")
UNPACKING: Final[Metric] = "unpacking_flops"
UNPACKED: Final[Metric] = "unpacked_bytes"
OF_QUANTISED: Final[tuple[Metric, ...]] = (UNPACKING, UNPACKED)
"""Metrics that exist only for a quantised checkpoint."""
OF_CHECKPOINT: Final[tuple[Metric, ...]] = (*STORAGE, *OF_QUANTISED)
"""Metrics that depend on the checkpoint's format."""
TRAFFIC: Final[tuple[Metric, ...]] = (
    "weight_read_bytes", "input_bytes", "output_bytes", "kv_read_bytes", "kv_cache_bytes",
)  # fmt: skip
"""The five metrics of moved bytes, which are disjoint."""
UNFUSED: Final[Metric] = "unfused_bytes"
"""Metric of the bytes moved if every operator is a separate kernel."""
FLOOR: Final[Metric] = "floor_bytes"
"""Metric of compulsory traffic: bytes that enter or leave a stage that runs as one kernel."""
PROVEN: Final[frozenset[Metric]] = frozenset(m for m, i in EVERY_METRIC.items() if i.proven)
BYTES: Final[frozenset[Metric]] = frozenset(m for m, i in EVERY_METRIC.items() if i.unit == "bytes")


@dataclass(frozen=True, slots=True)
class Conventions:
    """Choices on which cost models differ, one field each."""

    unit: str = "flop"
    """``flop`` (a multiply-accumulate is 2) or ``mac`` (it is 1)."""
    causal: str = "full"
    """Scores counted in causal attention: ``full`` S_q x S_k, or ``triangle``."""
    logits: str = "all"
    expert_kernel: str = "grouped_mm"
    attention: str = "sdpa"
    mla: str = "none"
    dtype: str = "bfloat16"
    window_padding: str = "counted"
    """Whether padded positions of window attention count; they do by default, as they are computed."""
    vector: str = "primitive"
    """Count of element-wise work: one FLOP per element and primitive, see docs/conventions.md."""
    activations: str = "module-boundary"
    """Activations that count: floating-point tensors that enter or leave a module's own operators."""


NOT_COUNTED: tuple[tuple[str, str], ...] = (
    (
        "element-wise work and activation bytes of integer and boolean tensors",
        "indices, masks and routing tables are not activations; products of integer matrices do count",
    ),
    ("data movement", "views, copies, padding, concatenation, casts and look-ups are 0 FLOP; look-ups count bytes"),
    ("framework overhead", "Python, dispatch, allocation, kernel launch"),
    ("host work", "image decoding, resizing and tokenising before the model, sampling and detokenising after it"),
    ("backward pass", "inference only"),
)
"""(subject, reason) of everything that no number includes."""
