"""Define settings that most targets share; convert them, apply them to a workload, and check the result."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Final, get_args

from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean, invalid_choice
from costproof.ledger.run import RunOptions, parse_integer
from costproof.ledger.workload import PAST as PAST_INPUT
from costproof.ledger.workload import AttentionKind, Dtype, ExpertKernel, Logits, Workload
from costproof.models.target import Setting
from costproof.patches import flash_attention

TEXT_TOKENS: Final = Setting("text_tokens", "Tokens of the prompt.")
SEQ_LEN: Final = Setting("seq_len", "Tokens of the prompt, or positions of a sequence.")
PAST: Final = Setting(PAST_INPUT, "Tokens of each sequence that are in the cache before the prefill.")
NEW_TOKENS: Final = Setting("new_tokens", "Decode steps; 0 counts only the prefill.")
BATCH: Final = Setting("batch", "Sequences at once.")
IMAGE_SIZE: Final = Setting("image_size", "Pixels per side of an image.")
DTYPE: Final = Setting("dtype", "Element type of weights and activations.", "choice", get_args(Dtype))
ATTENTION: Final = Setting("attention", "Attention implementation.", "choice", get_args(AttentionKind))
LOGITS: Final = Setting("logits", "Positions that lm_head maps in the prefill.", "choice", get_args(Logits))
EXPERTS: Final = Setting("experts", "Kernel of the routed experts.", "choice", get_args(ExpertKernel))

MAX_BATCH: Final = 1024
"""Largest batch size; a larger one is probably a mistake."""


def known_preset(name: str, known: Collection[str], where: str = "--preset") -> str:
    """Check that a preset exists, and return its name.

    Raises:
        BadInput: there is no such preset.
    """
    if name not in known:
        raise BadInput(
            "there is no such workload",
            where=where,
            expected=", ".join(known),
            got=name[:80],
            fix=did_you_mean(name, known) or "see: costproof workloads",
        )
    return name


def changed(
    workload: Workload, given: Mapping[str, Any], settings: Iterable[Setting], problems: list[CostproofError]
) -> Workload:
    """Return the workload with other values for some of its fields; ``None`` leaves a field unchanged.

    Settings that are not fields of the workload are stored in its ``inputs``. Unknown settings and invalid choices are
    added to ``problems``, and the workload is returned unchanged.
    """
    by_name = {s.name: s for s in settings}
    values = {k: v for k, v in given.items() if v is not None}
    wrong: list[CostproofError] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if name not in by_name:
            wrong.append(BadInput("no such setting", where=option, expected=", ".join(by_name)))
        elif by_name[name].choices and value not in by_name[name].choices:
            expected = " or ".join(by_name[name].choices)
            wrong.append(BadInput("invalid choice", where=option, expected=expected, got=str(value)[:80]))
    problems += wrong
    if wrong:
        return workload
    common = {f.name for f in fields(Workload)}
    own = {name: values.pop(name) for name in values.keys() - common}
    inputs = {**workload.inputs, **own}
    if PAST_INPUT in inputs and inputs[PAST_INPUT] == 0:  # a run without it is the same run
        del inputs[PAST_INPUT]
    return replace(workload, **values, inputs=inputs)


def problems(workload: Workload, head_dim: int, *, least_text: int = 1) -> list[CostproofError]:
    """Return an error for each reason why no decoder with heads of this width can run a workload."""
    found: list[CostproofError] = []
    for what, option, value, least in (
        ("too few text tokens", "--text-tokens", workload.text_tokens, least_text),
        ("too few new tokens", "--new-tokens", workload.new_tokens, 0),
        ("too few tokens in the cache", "--past", workload.past, 0),
    ):
        if value < least:
            found.append(BadInput(what, where=option, expected=f"at least {least}", got=value))
    found += batch_problems(workload)
    if workload.attention == flash_attention.FLASH:
        found += flash_attention.problems(workload.dtype, head_dim)
    return found


def batch_problems(workload: Workload) -> list[CostproofError]:
    """Return an error if the batch size is out of range."""
    if 1 <= workload.batch <= MAX_BATCH:
        return []
    return [BadInput("the batch is out of range", where="--batch", expected=f"1 to {MAX_BATCH}", got=workload.batch)]


def too_long(workload: Workload, length: int, most: int) -> list[CostproofError]:
    """Return an error if past, a prompt of ``length`` tokens and its new tokens exceed ``most`` tokens."""
    total = workload.past + length + workload.new_tokens
    cached = f"{workload.past} in the cache + " if workload.past else ""
    problem = BadInput(
        "the run is longer than the model's context",
        where="--text-tokens, --seq-len, --new-tokens" + (", --past" if cached else ""),
        expected=f"at most {most} tokens",
        got=f"{cached}{length} in the prompt + {workload.new_tokens} new = {total}",
    )
    return [problem] if total > most else []


def device_problems(workload: Workload, options: RunOptions) -> list[CostproofError]:
    """Return an error for each kernel of a workload that the device of the run does not have."""
    found: list[CostproofError] = []
    if workload.experts == "eager" and not options.real:
        found.append(
            BadInput(
                "a loop over the experts that received tokens needs real routing, which meta does not have",
                where="--experts eager",
                expected="grouped_mm or batched_mm on meta",
                fix="leave --experts out, or count a real run: costproof report … --run cpu",
            )
        )
    if workload.attention == flash_attention.FLASH and options.device == "cpu":
        found.append(
            BadInput(
                "FlashAttention has no kernels for a CPU",
                where=f"--attention {flash_attention.FLASH}",
                expected="--run meta (shapes only) or --run cuda",
                got="--run cpu",
            )
        )
    return found


TypedValue = int | str | tuple[int, ...]
ChoicePlace = Callable[[str], str]
"""Returns where a choice was made, for messages: ``--batch``, ``$.workload.batch``."""


def option(name: str) -> str:
    """Return the command-line option of a setting: ``--new-tokens`` for ``new_tokens``."""
    return "--" + name.rpartition(".")[2].replace("_", "-")


def typed_settings(
    known: Iterable[Setting], given: Mapping[str, Any], place: ChoicePlace, problems: list[CostproofError]
) -> dict[str, TypedValue]:
    """Return settings converted to the types that a target declares; errors are appended to ``problems``."""
    by_name = {s.name: s for s in known}
    found: dict[str, TypedValue] = {}
    for name, value in given.items():
        if name in by_name:
            with collect_problems(problems):
                found[name] = _convert(by_name[name], value, place(name))
        else:
            where, expected = place(name[:60]), "one of " + ", ".join(by_name)
            problems.append(
                BadInput("no such setting", where=where, expected=expected, fix=did_you_mean(name, by_name))
            )
    return found


def _convert(setting: Setting, value: Any, where: str) -> TypedValue:
    if setting.kind == "integer":
        return parse_integer(value, where)
    if setting.kind == "file":
        return str(os.fspath(value))
    if setting.kind == "list":
        return value if isinstance(value, str) else ",".join(map(str, value))
    if isinstance(value, tuple | list):
        return tuple(parse_integer(v, where) for v in value)
    text = str(value)
    if setting.kind == "choice" and text not in setting.choices:
        raise invalid_choice(where, text, setting.choices)
    return text


@contextmanager
def collect_problems(problems: list[CostproofError]) -> Iterator[None]:
    """Append the error that the block raises, if any, to a list, so that all can be reported at once."""
    try:
        yield
    except Problems as error:
        problems += error.problems
    except BadInput as error:
        problems.append(error)
