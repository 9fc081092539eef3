"""Name the stages, module paths, invocations and batches of rows of decoder-only models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import sympy

from costproof.algebra.series import CACHED, ROW_SUMS
from costproof.algebra.symbols import text
from costproof.ledger.workload import (
    FLOAT_BYTES,
    PAST,
    ROWS,
    ROWS_INVOCATION,
    BatchRow,
    Invocation,
    Logits,
    TensorSpec,
    Workload,
)
from costproof.models.proof import SymbolicRun

STAGES: Final = ("prefill", "decode")


def prefill_name(workload: Workload) -> str:
    """Return the invocation of the prefill: ``prompt``, or ``rows`` for a batch of unequal sequences."""
    return ROWS_INVOCATION if workload.rows else "prompt"


def mlp_names(role: str, path: str) -> dict[str, str]:
    """Return the module paths of a gated MLP by role."""
    parts = {"activation": "act_fn", **{x: f"{x}_proj" for x in ("gate", "up", "down")}}
    return {role: path, **{f"{role}.{part}": f"{path}.{module}" for part, module in parts.items()}}


def decoder_names(path: str) -> dict[str, str]:
    """Return the module paths of a decoder with dense layers by role, as most models of transformers name them.

    Args:
        path: of the module that holds the layers. ``{i}`` in a result is the index of a layer.
    """
    role, layer = "text.layer", f"{path}.layers.{{i}}"
    return {
        "root": "",
        "text": path,
        "text.embedding": f"{path}.embed_tokens",
        "text.rotary": f"{path}.rotary_emb",
        role: layer,
        f"{role}.norm1": f"{layer}.input_layernorm",
        f"{role}.attention": f"{layer}.self_attn",
        **{f"{role}.attention.{x}": f"{layer}.self_attn.{x}_proj" for x in ("q", "k", "v")},
        **{f"{role}.attention.{x}_norm": f"{layer}.self_attn.{x}_norm" for x in ("q", "k")},
        f"{role}.attention.out": f"{layer}.self_attn.o_proj",
        f"{role}.norm2": f"{layer}.post_attention_layernorm",
        **mlp_names(f"{role}.mlp", f"{layer}.mlp"),
        "text.norm": f"{path}.norm",
        "lm_head": "lm_head",
    }


def mixture_names(path: str, router: str = "gate") -> dict[str, str]:
    """Return the module paths of a mixture of experts by role, as most models of transformers name them.

    Args:
        path: of the module that holds the layers.
        router: attribute that holds the router.
    """
    role, mixture = "text.layer", f"{path}.layers.{{i}}.mlp"
    return {
        f"{role}.router": f"{mixture}.{router}",
        f"{role}.experts": f"{mixture}.experts",
        f"{role}.experts.activation": f"{mixture}.experts.act_fn",
        **mlp_names(f"{role}.shared", f"{mixture}.shared_experts"),
    }


def latent_names(path: str) -> dict[str, str]:
    """Return the module paths of DeepSeek's latent attention by role; ``path`` as for :func:`decoder_names`."""
    role, attention = "text.layer.attention", f"{path}.layers.{{i}}.self_attn"
    return {
        f"{role}.q_down": f"{attention}.q_a_proj",
        f"{role}.q_norm": f"{attention}.q_a_layernorm",
        f"{role}.q_up": f"{attention}.q_b_proj",
        f"{role}.kv_down": f"{attention}.kv_a_proj_with_mqa",
        f"{role}.kv_norm": f"{attention}.kv_a_layernorm",
        f"{role}.kv_up": f"{attention}.kv_b_proj",
    }


def sandwich_names(path: str) -> dict[str, str]:
    """Return module paths by role as :func:`decoder_names`, for layers with norms before and after each block."""
    role, layer = "text.layer", f"{path}.layers.{{i}}"
    return decoder_names(path) | {
        f"{role}.norm1_after": f"{layer}.post_attention_layernorm",
        f"{role}.norm2": f"{layer}.pre_feedforward_layernorm",
        f"{role}.norm2_after": f"{layer}.post_feedforward_layernorm",
    }


def invocations(workload: Workload, config: WithRows | None = None) -> tuple[Invocation, ...]:
    """Return the invocations of the prompt and of the decode steps, with the values of their symbols.

    B is the number of sequences, b the bytes per element, S the prompt length, L the number of positions that
    ``lm_head`` maps to logits, P the tokens in the cache before the first step, N the number of steps. C, the tokens in
    the cache before the prompt, is there if it is not 0.

    The rows of a batch are packed into one sequence of S tokens. Of each kind of rows the sums of
    :data:`~costproof.algebra.series.ROW_SUMS` are symbols.
    """
    if workload.rows and config is not None:
        return (_packed(workload, config),)
    batch, length, steps = workload.batch, workload.text_tokens, workload.new_tokens
    common = {"B": batch, "b": FLOAT_BYTES[workload.dtype]}
    prompt = {**common, "S": length, "L": length if workload.logits == "all" else 1}
    past, context = workload.past, workload.past + length
    if past:
        prompt[CACHED.name] = past
    calls = (
        Invocation("prefill", "prompt", 1, prompt, (TensorSpec((batch, length), "int64"),)),
        Invocation("decode", "steps", steps, {**common, "P": context, "N": steps}, (TensorSpec((batch, 1), "int64"),)),
    )
    return calls if steps else calls[:1]


class WithRows(Protocol):
    """Protocol of configurations that decide which rows of a batch are of one kind."""

    def windows(self) -> Sequence[int]:
        """Return the sliding-window length of each layer; 0 for a layer without one."""

    def saves_by_absorbing(self, row: BatchRow) -> bool:
        """Return whether attention to the latents of a row's past is less work than expanding them."""


def row_kinds(workload: Workload, config: WithRows) -> tuple[tuple[BatchRow, ...], ...]:
    """Group the rows of a batch by kind: rows of one kind take the same branches of all formulas.

    Branches: a past, one new token, the sides of a window, and whether absorbing latents saves work.
    """
    found: dict[object, list[BatchRow]] = {}
    windows = sorted({*config.windows()} - {0})
    for row in workload.rows:
        ends = (row.past + 1, row.past + row.new + 1, row.past + row.new)
        sides = tuple(end >= window for end in ends for window in windows)
        key = (row.past > 0, row.new == 1, sides, config.saves_by_absorbing(row))
        found.setdefault(key, []).append(row)
    return tuple(map(tuple, found.values()))


def _packed(workload: Workload, config: WithRows) -> Invocation:
    """Return the invocation that processes the rows of a batch as one packed sequence."""
    length = workload.text_tokens
    symbols = {"B": 1, "b": FLOAT_BYTES[workload.dtype], "S": length}
    symbols["L"] = sum(row.count * row.logits for row in workload.rows)
    for i, rows in enumerate(row_kinds(workload, config), 1):
        for (b, s, c), name in ROW_SUMS.items():
            symbols[f"{name}_{i}"] = sum(row.count**b * row.new**s * row.past**c for row in rows)
    return Invocation("prefill", ROWS_INVOCATION, 1, symbols, (TensorSpec((1, length), "int64"),))


def batch_of(workload: Workload, rows: Sequence[BatchRow]) -> Workload:
    """Return a workload with a batch of rows in place of its sequences; other settings are unchanged."""
    inputs = {name: value for name, value in workload.inputs.items() if name != PAST}
    inputs[ROWS] = ",".join(row.text for row in rows)
    total = sum(row.count * row.new for row in rows)
    logits: Logits = "all" if all(row.logits == row.new for row in rows) else "last"
    return replace(workload, text_tokens=total, new_tokens=0, batch=1, logits=logits, inputs=inputs)


def rows_in_symbols(
    config: WithRows, workload: Workload, rows: Sequence[tuple[BatchRow, tuple[Any, Any, Any]]]
) -> SymbolicRun:
    """Return the run of a batch of rows, each given by an example and (sequences, new tokens, past) in symbols."""
    batch, in_symbols = batch_of(workload, [row for row, _ in rows]), dict(rows)
    sizes = {
        "B": sympy.Integer(1),
        "S": sympy.Add(*(count * new for _, (count, new, _) in rows)),
        "L": sympy.Add(*(count * row.logits for row, (count, _, _) in rows)),
    }
    for i, alike in enumerate(row_kinds(batch, config), 1):
        each = [tuple(map(sympy.sympify, in_symbols[row])) for row in alike]
        for (k, n, m), name in ROW_SUMS.items():
            sizes[f"{name}_{i}"] = sympy.Add(*(count**k * new**n * past**m for count, new, past in each))
    return SymbolicRun(batch, "prefill", {name: text(sympy.expand(size)) for name, size in sizes.items()})
