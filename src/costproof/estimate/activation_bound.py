"""An upper bound of the activations that a run holds at once, as sums of formulas.

A model runs one layer at a time. The tensors that are alive are then at most

* the results of modules that have returned: at most everything that crosses a module boundary, ``output_bytes``;
* the operands and results of the operators in the running layer and in modules outside of layers. Every such tensor is
  read or written by an operator, so they are at most the ``unfused_bytes`` minus the weights. If attention scores are
  materialized, those of one layer are included;
* copies, which move no bytes in these counts: casts and contiguous tensors, each as large as an argument or a result
  of a module (``input_bytes`` and ``output_bytes`` once more), and cached keys and values repeated for every query
  head, which have as many elements as the attention of a step has multiply-accumulates;
* masks over every query and key of a prompt. Boolean masks are no activations in the counts, so the bound includes two
  masks as numbers, one copy of a mask, and the four boolean masks that they are made of.

Multi-head latent attention under sdpa is added by :func:`unfused_attention`. The KV cache is not included.
``tests/estimate/test_activations.py`` compares the bound with measured peaks of eager modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from costproof.estimate.sums import CallTerm, FormulaSum, MetricTerm, depends_on_context
from costproof.ledger.baseline import Baseline
from costproof.ledger.metrics import UNFUSED
from costproof.ledger.node import CostNode

_MASKS: Final = "(3*b + 4)*B*S**2"
"""Bytes of masks in a call with B sequences of S tokens and b bytes per element."""
_ATTENTION: Final = "attention"
_SCORE_BYTES: Final = 13
"""Per head, query and key of unfused attention."""
_KEY_BYTES: Final = 12
"""Per element of a query or a key."""
_VALUE_BYTES: Final = 8
"""Per element of a value or a result."""
_PROMPT: Final = ("S", "S")
_LAST_STEP: Final = ("1", "(P + N)")
"""Numbers of queries and keys in a call."""


def activations(element: int, stage: str | None = None) -> FormulaSum:
    """Return the bound for one call of a stage, or for all stages together; for decode, the last step.

    Args:
        element: bytes per element.
        stage: ``None``: all stages.
    """

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
        CallTerm(_MASKS, stage),
    )


def unfused_attention(
    side: Baseline, sizes: Mapping[tuple[str, str], Mapping[str, int]], stage: str | None = None
) -> FormulaSum:
    """Return the bytes that latent attention holds under sdpa in addition to a fused kernel; for decode, the last step.

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
    prompts = (_layer_bytes(*_PROMPT, *widths) for widths in expanded)
    steps = (_layer_bytes(*_LAST_STEP, *widths) for widths in absorbed)
    return tuple(CallTerm(source, stage) for source in (*prompts, *steps))


def _widths_differ(values: Mapping[str, int]) -> bool:
    """Return whether the values of latent attention have another width than queries and keys."""
    return "text_value" in values and values["text_nope"] + values["text_rope"] != values["text_value"]


def _layer_bytes(queries: str, keys: str, width: str, value: str) -> str:
    """Return the expression of the bytes that one layer holds in a call."""
    scores = f"{_SCORE_BYTES}*{queries}*{keys}"
    rows = f"({queries} + {keys})*({_KEY_BYTES}*({width}) + {_VALUE_BYTES}*{value})"
    return f"B*text_heads*({scores} + {rows})"
