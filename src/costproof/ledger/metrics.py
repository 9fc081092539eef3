"""The quantities that a cost node may carry, with unit and meaning.

A metric is *stage-wide* when it belongs to a module whatever is run through it (its parameters), and
*per invocation* when it grows with what is run (its FLOPs). Stage-wide metrics sit on nodes whose
``invocation`` is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Metric = Literal[
    "params",
    "params_active",
    "weight_bytes",
    "calls",
    "flops",
    "vector_flops",
    "weight_read_bytes",
    "input_bytes",
    "output_bytes",
    "kv_cache_bytes",
    "fvcore_macs",
    "fvcore_activations",
]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Unit, scope and definition of one metric."""

    unit: str
    stage_wide: bool
    meaning: str


METRICS: Final[dict[Metric, MetricInfo]] = {
    "params": MetricInfo("elements", True, "elements of the parameters that the module itself owns"),
    "params_active": MetricInfo(
        "elements", True, "of those, the elements that one token passes: routed experts count top-k of E"
    ),
    "weight_bytes": MetricInfo("bytes", True, "bytes of the module's own parameters in the run's dtype"),
    "calls": MetricInfo("calls", False, "how often the module's forward runs"),
    "flops": MetricInfo(
        "FLOP",
        False,
        "matmul-like work, 2 per multiply-accumulate: linear, convolution, attention over the full "
        "S_q x S_k, einsum, grouped expert GEMMs, router",
    ),
    "vector_flops": MetricInfo(
        "FLOP", False, "elementwise and reduction work; never added to the headline (see conventions)"
    ),
    "weight_read_bytes": MetricInfo(
        "bytes",
        False,
        "bytes of parameters that the invocation reads: tables by looked-up rows, experts at most "
        "min(E, tokens x top-k)",
    ),
    "input_bytes": MetricInfo(
        "bytes",
        False,
        "floating-point activations that enter the operators of the module from outside them, each once",
    ),
    "output_bytes": MetricInfo(
        "bytes",
        False,
        "floating-point activations that the operators of the module produce for others, each once",
    ),
    "kv_cache_bytes": MetricInfo("bytes", False, "bytes that the invocation appends to the key/value cache"),
}

FVCORE: Final[dict[Metric, MetricInfo]] = {
    "fvcore_macs": MetricInfo(
        "MAC",
        False,
        "what fvcore calls flops: multiply-accumulates of linear, convolution, matmul and einsum (to four digits), "
        "5 per element of a norm; no fused attention, no grouped experts",
    ),
    "fvcore_activations": MetricInfo(
        "elements", False, "what fvcore calls activations: output elements of linear, convolution, matmul and einsum"
    ),
}
"""Another tool's convention, counted beside ours on request (``--convention fvcore-macs``)."""

EVERY_METRIC: Final[dict[Metric, MetricInfo]] = {**METRICS, **FVCORE}

assert set(EVERY_METRIC) == set(get_args(Metric))

STAGE_WIDE: Final[frozenset[Metric]] = frozenset(m for m, i in METRICS.items() if i.stage_wide)
