"""Describe targets, workloads, conventions and versions in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costproof.compare.diff.types import Side
from costproof.ledger.metrics import Conventions
from costproof.ledger.plural import plural
from costproof.ledger.run import RANDOM, RunRecord
from costproof.ledger.workload import STATED_REASONS, TargetInfo, Workload

_MOST_ROWS: Final = 6
_MOST_CHANGES: Final = 4
_MOST_KEYS: Final = 8
_MOST_NOTES: Final = 4
MEANING: Final[dict[tuple[str, str], str]] = {
    ("unit", "flop"): "one multiply-accumulate is 2 FLOP",
    ("unit", "mac"): "one multiply-accumulate is 1",
    ("causal", "full"): "causal attention counts the full S_q x S_k scores",
    ("causal", "triangle"): "causal attention counts the lower triangle only",
    ("logits", "all"): "lm_head maps every position of the prompt",
    ("logits", "last"): "lm_head maps the last position of the prompt",
    ("expert_kernel", "grouped_mm"): "routed experts run as grouped GEMMs: tokens x top-k rows",
    ("expert_kernel", "batched_mm"): "routed experts run as batched GEMMs: tokens x top-k rows",
    ("expert_kernel", "eager"): "routed experts run in a loop over those that received tokens",
    ("attention", "sdpa"): "attention runs as scaled_dot_product_attention",
    ("attention", "eager"): "attention runs as two matrix products with a softmax between them",
    ("attention", "flash_attention_2"): "attention runs as FlashAttention where the class supports it and adds no bias "
    "to the scores, elsewhere as scaled_dot_product_attention",
    ("mla", "none"): "keys and values are cached per head (no latent attention)",
    ("mla", "expanded"): "latents are cached; every call expands those of its whole context to keys and values",
    ("mla", "absorbed"): "latents are cached; a prompt expands its own, in steps queries and output absorb that",
    ("window_padding", "counted"): "padded positions of window attention are computed, so they count",
    ("vector", "primitive"): "vector work is one FLOP per element and primitive; it is never in the headline",
    ("activations", "module-boundary"): "activation bytes cross the border of a module's own operators, each once",
}


def workload_line(workload: Workload) -> str:
    """Return the workload in one line: the target's settings, text and new tokens, batch, dtype."""
    text = f"{workload.text_tokens} text tokens" if workload.text_tokens or workload.new_tokens else ""
    text += f" after {plural(workload.past, 'token')} in the cache" if workload.past else ""
    if workload.rows:
        return ", ".join(filter(None, (workload.what, _rows(workload), workload.dtype)))
    new = plural(workload.new_tokens, "new token") if workload.new_tokens else ""
    # The shapes of a module's own arguments contain all that is known about a batch.
    batch = "" if workload.arguments and not text else f"batch {workload.batch}"
    parts = [workload.what, text, new, batch, workload.dtype]
    return ", ".join(filter(None, parts))


def _rows(workload: Workload) -> str:
    """Describe a batch of unequal rows in words: its first rows, and numbers of sequences, tokens and logits."""
    rows = workload.rows
    shown = [row.short for row in rows[:_MOST_ROWS]] + ([f"{len(rows) - _MOST_ROWS} more"] if rows[_MOST_ROWS:] else [])
    count, logits = sum(row.count for row in rows), sum(row.count * row.logits for row in rows)
    sizes = f"{plural(count, 'sequence')}, {plural(workload.text_tokens, 'token')}, {logits} with logits"
    return f"rows {', '.join(shown)} ({sizes})"


def model_line(target: TargetInfo) -> str:
    """Return the configuration in one line: ``native, changed configuration 0123456789ab (text.topk 8)``."""
    kind = "" if target.changed is None else "changed " if target.changed else "published "
    changed = sorted((target.changed or {}).items())  # a file has them in this order too
    shown = [f"{key} {value}" for key, value in changed[:_MOST_CHANGES]]
    shown += [f"{more} more"] if (more := len(changed) - _MOST_CHANGES) > 0 else []
    changes = f" ({'; '.join(shown)})" if shown else ""
    cut = ", cut to " + ", ".join(f"{k} {v}" for k, v in sorted(target.cut.items())) if target.cut else ""
    return f"{target.implementation}, {kind}configuration {target.config_hash}{changes}{cut}{_unused(target)}"


def _unused(target: TargetInfo) -> str:
    """Return a clause on the configuration keys that were not used, with the reason."""
    found = {
        words: sorted(k for k, why in target.waived.items() if why == reason)
        for reason, words in STATED_REASONS.items()
    }
    return "".join(f"; {words}: {_few(keys)}" for words, keys in found.items() if keys)


def _few(keys: Sequence[str]) -> str:
    names = [key.removeprefix("$.") for key in keys]
    more = f" and {len(names) - _MOST_KEYS} more" if len(names) > _MOST_KEYS else ""
    return ", ".join(names[:_MOST_KEYS]) + more


def counted_lines(base: Side, head: Side) -> list[str]:
    """Return the conditions of two sides' counts with notes of their sources; lines on which both agree appear once."""
    sides = (("base", base), ("head", head))
    if base.counted == head.counted:
        lines = [base.counted]
    else:
        lines = [side.counted.replace("Counted:", f"Counted in the {name}:", 1) for name, side in sides]
    lines += note_lines([note for note in base.notes if note in head.notes])
    for name, side, other in (("base", base, head), ("head", head, base)):
        lines += note_lines([note for note in side.notes if note not in other.notes], f"Note on the {name}")
    return lines


def note_lines(notes: Sequence[str], title: str = "Note") -> list[str]:
    """Return the first notes of the sources as lines, and the number of omitted ones."""
    more = [f"{title}: and {plural(len(notes) - _MOST_NOTES, 'more note')} in JSON"] if len(notes) > _MOST_NOTES else []
    return [*(f"{title}: {note}" for note in notes[:_MOST_NOTES]), *more]


def run_line(run: RunRecord | None) -> str:
    """Describe the run of the dynamic source in one sentence; empty if it ran on the meta device."""
    if run is None or not run.options.real:
        return ""
    weights = f"random weights (seed {run.options.seed})" if run.options.weights == RANDOM else run.options.weights
    return f"The dynamic source ran on {run.options.device} with {weights}. " + " ".join(f"{n}." for n in run.notes)


def mixed_attention(conventions: Conventions) -> str:
    """Return the attention kernel of each part of the model as text; empty if all parts run the same one."""
    return MEANING[("attention", conventions.attention)] if conventions.attention == "flash_attention_2" else ""


def versions_line(environment: dict[str, str]) -> str:
    """Return package versions: ``costproof 0.1.0, python 3.12.3, torch 2.13.0``."""
    return ", ".join(f"{name} {version}" for name, version in sorted(environment.items())) or "not recorded"
