"""Settings that most targets have, in the words of their options, and workloads that have no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from costproof.ledger.errors import BadInput, CostproofError, did_you_mean
from costproof.ledger.workload import Attention, Dtype, Experts, Logits, Workload
from costproof.models.target import NamedWorkload, Setting

TEXT_TOKENS: Final = Setting("text_tokens", "Tokens of the prompt.")
NEW_TOKENS: Final = Setting("new_tokens", "Decode steps.")
BATCH: Final = Setting("batch", "Sequences at once.")
DTYPE: Final = Setting("dtype", "Element type of weights and activations.", "choice", get_args(Dtype))
ATTENTION: Final = Setting("attention", "Attention implementation.", "choice", get_args(Attention))
LOGITS: Final = Setting("logits", "Positions that lm_head maps in the prefill.", "choice", get_args(Logits))
EXPERTS: Final = Setting("experts", "Kernel of the routed experts.", "choice", get_args(Experts))


def text_workload(preset: str | None, presets: Sequence[NamedWorkload], **given: Any) -> Workload:
    """A run on text alone: a preset with what the caller changes.

    Args:
        given: values of fields of the workload; ``None`` leaves the preset's.

    Raises:
        BadInput: there is no such preset.
    """
    named = next((p for p in presets if p.name == preset or (preset is None and p.default)), None)
    if named is None:
        names = [p.name for p in presets]
        raise BadInput(
            "there is no such workload",
            where="--preset",
            expected=", ".join(names),
            got=str(preset)[:80],
            fix=did_you_mean(str(preset), names) or "see: costproof workloads",
        )
    usual = Workload(named.name, named.tokens["text"])
    made = replace(usual, **{name: value for name, value in given.items() if value is not None})
    return made if made == usual else replace(made, name="custom")


def text_problems(workload: Workload, context: int) -> list[CostproofError]:
    """What keeps a model from a run on text alone.

    Args:
        context: the longest sequence that the model is made for.
    """
    found: list[CostproofError] = []
    for setting in (TEXT_TOKENS, NEW_TOKENS, BATCH):
        value = getattr(workload, setting.name)
        if value < 1:
            where = "--" + setting.name.replace("_", "-")
            found.append(BadInput("out of range", where=where, expected="at least 1", got=value))
    length = workload.text_tokens + workload.new_tokens
    if not found and length > context:
        found.append(
            BadInput(
                "the run is longer than the model's context",
                where="--text-tokens, --new-tokens",
                expected=f"at most {context} tokens",
                got=length,
            )
        )
    return found
