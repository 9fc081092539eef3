"""What attention of two widths holds on a CPU under sdpa, as a sum of formulas.

The fused kernel of torch on a CPU takes queries, keys and values of one width. Where those of values are others, as in
latent attention, ``scaled_dot_product_attention`` makes its result of operators, in float32 where the run's numbers
have 16 bits. At once there are at most

* for every head, query and key 13 bytes: scores and softmax in float32, of a byte which scores are masked out, and the
  softmax without rows that see nothing in float32; what is given back behind it is less;
* three tensors in float32 of queries and of keys: cast, scaled, and laid out for the product;
* two of values, cast and laid out, and two of the result.

Every head of queries has keys and values here, also where they are the same in all heads. Kernels of GPUs may hold
less; of eager attention ``unfused_bytes`` has the scores.
"""

from __future__ import annotations

from typing import Final

from costproof.ledger.baseline import Baseline
from costproof.run.along import Along, OfCalls, Sum

_OF_A_SCORE: Final = 13
_OF_A_KEY: Final = 12
"""An element of a query or a key."""
_OF_A_VALUE: Final = 8
"""An element of a value or a result."""
_PROMPT: Final = ("S", "S")
_LAST_STEP: Final = ("1", "(P + N)")
"""Queries and keys of a call."""


def written_scores(side: Baseline, along: Along, stage: str | None = None) -> Sum:
    """What a call of a stage holds beside what it holds with a fused kernel, at most; of steps the last.

    Args:
        along: the run along one of its settings.
        stage: ``None``: of all stages together.
    """
    if side.workload.attention != "sdpa":
        return ()
    latent = ("text_nope + text_rope", "text_value")
    expanded = [latent] if any(_differ(values) for values in along.sizes(along.own).values()) else []
    absorbed = [("text_kv_rank + text_rope", "text_kv_rank")] if side.conventions.mla == "absorbed" else expanded
    prompts = (_held(*_PROMPT, *widths) for widths in expanded)
    steps = (_held(*_LAST_STEP, *widths) for widths in absorbed)
    return tuple(OfCalls(source, stage) for source in (*prompts, *steps))


def _differ(values: dict[str, int]) -> bool:
    """Whether values of latent attention are of another width than queries and keys."""
    return "text_value" in values and values["text_nope"] + values["text_rope"] != values["text_value"]


def _held(queries: str, keys: str, width: str, value: str) -> str:
    """Bytes in a call, of one layer."""
    scores = f"{_OF_A_SCORE}*{queries}*{keys}"
    rows = f"({queries} + {keys})*({_OF_A_KEY}*({width}) + {_OF_A_VALUE}*{value})"
    return f"B*text_heads*({scores} + {rows})"
