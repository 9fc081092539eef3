"""Define settings that most targets share; convert them, apply them to a workload, and check the result."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, get_args

from costproof.estimate.routing import is_table, stored_routing
from costproof.ledger.errors import (
    BadInput,
    CostproofError,
    Problems,
    Recount,
    check_recounts,
    did_you_mean,
    invalid_choice,
    setting_fix,
)
from costproof.ledger.files import MAX_BYTES, first_bytes
from costproof.ledger.mesh import ALL_GATHER, AXES, DISPATCH, PAIRS, PLAN, RANK, ambiguous_axes, no_such_setting
from costproof.ledger.mesh import CP_PLAN as SHARED_INPUT
from costproof.ledger.plural import plural
from costproof.ledger.run import RunOptions, parse_integer
from costproof.ledger.workload import KV_BLOCK as BLOCK_INPUT
from costproof.ledger.workload import PAD_TO as PAD_INPUT
from costproof.ledger.workload import PAST as PAST_INPUT
from costproof.ledger.workload import ROWS as ROWS_INPUT
from costproof.ledger.workload import AttentionKind, BatchRow, Dtype, ExpertKernel, Logits, Workload, sequences_in
from costproof.models.target import Setting
from costproof.patches import flash_attention

TEXT_TOKENS: Final = Setting("text_tokens", "Tokens of the prompt.")
SEQ_LEN: Final = Setting("seq_len", "Tokens of the prompt, or positions of a sequence.")
PAST: Final = Setting(PAST_INPUT, "Tokens of each sequence that are in the cache before the prefill.")
ROWS: Final = Setting(
    ROWS_INPUT,
    "Rows of a batch of unequal sequences: 4096, 16x1+8000, 8x5+2000/all is a prompt, 16 steps after 8000 tokens, and "
    "5 tokens, all with logits, of 8 sequences; or a file with the new and past tokens of each row.",
    "text",
    metavar="ROWS",
)
KV_BLOCK: Final = Setting(
    BLOCK_INPUT, "Tokens of a block of the cache, for caches in blocks; reports name the unused memory as waste."
)
PAD_TO: Final = Setting(
    PAD_INPUT,
    "Sizes, such as 1,2,4,8, to which the tokens of a call are padded; reports name the work of padding as waste.",
    "text",
    metavar="SIZES",
)
NEW_TOKENS: Final = Setting("new_tokens", "Decode steps; 0 counts only the prefill.")
BATCH: Final = Setting("batch", "Sequences at once.")
IMAGE_SIZE: Final = Setting("image_size", "Pixels per side of an image.")
DTYPE: Final = Setting("dtype", "Element type of weights and activations.", "choice", get_args(Dtype))
ATTENTION: Final = Setting("attention", "Attention implementation.", "choice", get_args(AttentionKind))
LOGITS: Final = Setting("logits", "Positions that lm_head maps in the prefill.", "choice", get_args(Logits))
EXPERTS: Final = Setting("experts", "Kernel of the routed experts.", "choice", get_args(ExpertKernel))
MESH: Final = (
    Setting("tp", "Devices that share the weights of each layer (tensor parallelism)."),
    Setting("ep", "Devices that share the experts of each layer."),
    Setting("pp", "Devices that share the layers (pipeline parallelism)."),
    Setting("dp", "Devices that share the batch (data parallelism)."),
    Setting("cp", "Devices that share a sequence (context parallelism)."),
    Setting("fsdp", "Devices that share the batch, and gather each layer's weights to run it (fully_shard)."),
    Setting(RANK, "Rank of these devices to count."),
    Setting(DISPATCH, "How tokens reach experts of other ranks.", "choice", (ALL_GATHER, "all-to-all")),
    Setting(
        PAIRS,
        "Pairs of a token and an expert that each rank sends to each, 6,2;3,5; or a file with the experts of each "
        "token, as of roofline --routing.",
        "text",
        metavar="N,..;N,..|FILE",
    ),
    Setting(
        PLAN,
        "Plan by which devices share weights: transformers, vllm, megatron, or a YAML file of patterns and layouts.",
        "text",
        metavar="PLAN|FILE",
    ),
)
CP_PLAN: Final = Setting(
    SHARED_INPUT,
    "How devices share a sequence: a ring of contiguous or zigzag parts, or heads exchanged for positions (Ulysses).",
    "choice",
    ("ring", "zigzag", "ulysses"),
)

MAX_BATCH: Final = 1024
"""Maximum batch size; a larger one is probably a mistake."""


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
    """Return the workload with changed fields; ``None`` leaves a field unchanged.

    Settings that are not fields of the workload are stored in its ``inputs``. Unknown settings and invalid choices are
    added to ``problems``, and the workload is returned unchanged.
    """
    by_name = {s.name: s for s in settings}
    values = {k: v for k, v in given.items() if v is not None}
    wrong: list[CostproofError] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if name not in by_name:
            wrong.append(no_such_setting(name, option, by_name, setting_fix(name, "", ())))
        elif by_name[name].choices and value not in by_name[name].choices:
            expected = " or ".join(by_name[name].choices)
            got, fix = str(value)[:80], setting_fix(name, str(value), ())
            wrong.append(BadInput("invalid choice", where=option, expected=expected, got=got, fix=fix))
    problems += wrong
    if wrong:
        return workload
    common = {f.name for f in fields(Workload)}
    own = {name: values.pop(name) for name in values.keys() - common}
    inputs = {**workload.inputs, **own}
    problems += ambiguous_axes(inputs)
    # A run without these is the same run.
    plain = {**dict.fromkeys(AXES, 1), PAST_INPUT: 0, RANK: 0, DISPATCH: ALL_GATHER}
    inputs = {k: v for k, v in inputs.items() if v != plain.get(k)}
    if (pairs := str(inputs.get(PAIRS, ""))) and not is_table(pairs):
        with collect_problems(problems):
            inputs[PAIRS] = stored_routing(pairs)
    return replace(workload, **values, inputs=inputs)


def problems(workload: Workload, head_dim: int, *, least_text: int = 1) -> list[CostproofError]:
    """Return an error for each reason why a decoder with heads of this width cannot run a workload."""
    found: list[CostproofError] = []
    for what, option, value, least in (
        ("too few text tokens", "--text-tokens", workload.text_tokens, least_text),
        ("too few new tokens", "--new-tokens", workload.new_tokens, 0),
        ("too few tokens in the cache", "--past", workload.past, 0),
    ):
        if value < least:
            found.append(BadInput(what, where=option, expected=f"at least {least}", got=value))
    return found + batch_problems(workload, head_dim)


def batch_problems(workload: Workload, head_dim: int = 0) -> list[CostproofError]:
    """Return an error for a batch out of range, and for each reason why FlashAttention has no kernel for a run.

    Args:
        head_dim: width of a head; 0 for a class that does not support FlashAttention.
    """
    if workload.attention == flash_attention.FLASH and head_dim:
        return batch_problems(workload) + flash_attention.problems(workload.dtype, head_dim)
    if 1 <= workload.batch <= MAX_BATCH:
        return []
    return [BadInput("the batch is out of range", where="--batch", expected=f"1 to {MAX_BATCH}", got=workload.batch)]


def too_long(workload: Workload, length: int, most: int) -> list[CostproofError]:
    """Return an error if past, prompt (``length`` tokens) and new tokens together exceed ``most`` tokens."""
    total = workload.past + length + workload.new_tokens
    cached = f"{workload.past} in the cache + " if workload.past else ""
    problem = BadInput(
        "the run is longer than the model's context",
        where="--text-tokens, --seq-len, --new-tokens" + (", --past" if cached else ""),
        expected=f"at most {most} tokens",
        got=f"{cached}{length} in the prompt + {workload.new_tokens} new = {total}",
    )
    return [problem] if total > most else []


def block_problems(workload: Workload) -> list[CostproofError]:
    """Return an error for each reason why cache or tokens cannot be padded to blocks as requested."""
    size, sizes = workload.inputs.get(BLOCK_INPUT), str(workload.inputs.get(PAD_INPUT, "1"))
    found: list[CostproofError] = []
    if not _SIZES.fullmatch(sizes):
        expected = "numbers of tokens from 1 on, separated by commas"
        found.append(BadInput("not a list of sizes", where=option(PAD_INPUT), expected=expected, got=sizes[:60]))
    if PAD_INPUT in workload.inputs and not workload.mesh.one:
        what = "padded tokens are counted on one device only"
        found.append(BadInput(what, where=option(PAD_INPUT), expected="one device", got=workload.mesh.text))
    if size is None:
        return found
    if not isinstance(size, int) or size < 1:
        found.append(BadInput("not a number of tokens", where=option(BLOCK_INPUT), expected="1 or more", got=size))
    if not workload.mesh.one:
        what = "blocks of the cache are counted on one device only"
        found.append(BadInput(what, where=option(BLOCK_INPUT), expected="one device", got=workload.mesh.text))
    return found


def row_problems(workload: Workload, most: int) -> list[CostproofError]:
    """Return an error for each row of a batch that exceeds the model's context of ``most`` tokens."""
    found: list[CostproofError] = [
        BadInput(
            "a row is longer than the model's context",
            where=f"--{ROWS_INPUT}, {row.short}",
            expected=f"at most {most} tokens",
            got=f"{row.past} in the cache + {row.new} new = {row.past + row.new}",
        )
        for row in workload.rows
        if row.past + row.new > most
    ]
    total = sum(row.count * row.new for row in workload.rows)
    for name, value, said in (
        ("text_tokens", workload.text_tokens, total), ("batch", workload.batch, 1),
        ("new_tokens", workload.new_tokens, 0), (PAST_INPUT, workload.past, 0),
    ):  # fmt: skip
        if value != said:
            where = f"--{ROWS_INPUT}, {option(name)}"
            found.append(BadInput("the rows of a batch say this", where=where, expected=said, got=value))
    return found


def room_problems(workload: Workload, count: int, tokens: int, behind: int = 0) -> list[CostproofError]:
    """Return an error if the rows' new tokens do not suffice for all images, each within one sequence.

    Args:
        count: images in all rows.
        tokens: of an image.
        behind: text tokens that each image needs after it.
    """
    room = sum(row.count * (row.new // (tokens + behind)) for row in workload.rows) if count else 0
    if count <= room:
        return []
    text = f" and {plural(behind, 'text token')} after them" if behind else ""
    what = f"the rows have no room for the images, of {tokens} new tokens each{text}"
    expected = f"at most {room}, each whole in one sequence"
    return [BadInput(what, where=f"--images, --{ROWS_INPUT}", expected=expected, got=count)]


def device_problems(workload: Workload, options: RunOptions) -> list[CostproofError]:
    """Return an error for each requested kernel that the run's device does not have."""
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
"""Function from a setting's name to the place where it was set, for messages: ``--batch``, ``$.workload.batch``."""


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
            problems.append(no_such_setting(name, place(name[:60]), by_name, setting_fix(name, "", by_name)))
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
        raise invalid_choice(where, text, setting.choices, setting=setting.name)
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


_ROW: Final = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*(?:\+\s*(\d+))?\s*(?:/\s*(\d+|all))?")
_SIZES: Final = re.compile(r"[1-9][0-9]{0,8}(?:,[1-9][0-9]{0,8})*")
_FORM: Final = "[COUNTx]NEW[+PAST][/LOGITS], as in 4096, 16x1+8000, 8x5+2000/all"
_COUNTS: Final = ("count",)
_NEW: Final = (
    "new", "new_tokens", "num_scheduled_tokens", "extend_input_len", "extend_seq_len", "extend_seq_lens", "extend_lens",
)  # fmt: skip
_BEFORE: Final = (
    "past", "past_tokens", "num_computed_tokens", "num_cached_tokens", "extend_prefix_len", "extend_prefix_lens",
    "prefix_len", "prefix_lens", "cached_tokens",
)  # fmt: skip
_KEPT: Final = ("logits",)
"""Names of a row's numbers in a file; ``_NEW`` and ``_BEFORE`` end with those of vLLM's and SGLang's schedulers."""
_PERHAPS_BEFORE: Final = re.compile(r"past|prefix|cache|comput|context", re.IGNORECASE)
_NOT_BEFORE: Final = ("scheduled_cached_reqs", "num_common_prefix_blocks")
"""Fields of vLLM's steps that state no number of tokens before the new ones."""


def rows_of(text: str, chosen: Any) -> tuple[BatchRow, ...]:
    """Read the rows of a batch from a text such as ``4096, 16x1+8000, 8x5+2000/all``, or from a file.

    Equal rows are one row with their number.

    Args:
        text: the rows, or the path of a file: CSV with a header, JSON, or a JSON object a line, each a row, or one
            step as vLLM's ``SchedulerOutput`` or SGLang's ``ForwardBatch`` has it.
        chosen: logits of rows that do not say theirs, ``all``; else of the last position.

    Raises:
        Problems: all rows that are not valid, by number.
        BadInput: the file cannot be read.
    """
    parts = text.split(",") if _is_written(text) else _filed(Path(text))
    given = [*map(_written, parts)] if _is_written(text) else _of_file(parts)
    usual: Logits = chosen if chosen in ("all", "last") else "last"
    problems: list[CostproofError] = []
    if not given:
        raise BadInput("the file has no rows", where=text[:200], expected=_FORM)
    found: dict[tuple[int, int, int], int] = {}
    for number, row in enumerate(given, 1):
        with collect_problems(problems):
            new, past, logits, count = _checked(row, f"--{ROWS_INPUT}, row {number}", usual)
            found[new, past, logits] = found.get((new, past, logits), 0) + count
    rows = tuple(BatchRow(new, past, count, logits) for (new, past, logits), count in found.items())
    if (number := sum(row.count for row in rows)) > MAX_BATCH:
        expected = f"at most {MAX_BATCH}"
        problems.append(BadInput("too many sequences", where=f"--{ROWS_INPUT}", expected=expected, got=number))
    if rows and not problems and not any(row.logits for row in rows):
        problems.append(BadInput("no row has logits", where=f"--{ROWS_INPUT}", expected="/1 or more in one of them"))
    if problems:
        raise Problems("the rows of the batch are not valid", problems)
    again = Counter[tuple[int, ...]]()
    for many, *one in sequences_in(parts, (_COUNTS, _NEW, _BEFORE, _KEPT), every=chosen == "all"):
        again[tuple(one)] += many
    own: dict[tuple[int, ...], int] = {(of.new, of.past, of.logits): of.count for of in rows}
    for key in {**own, **again}:
        check_recounts([Recount("rows of the batch", str(key), "sequences", own.get(key, 0), again[key])])
    return rows


def take_rows(given: dict[str, Any], found: list[CostproofError]) -> None:
    """Replace the batch rows in ``given``, if there are any, by their stored form, and set all lengths from them."""
    if given.get(ROWS_INPUT) is None:
        return
    chosen = given.get("logits")
    rows: tuple[BatchRow, ...] = ()
    with collect_problems(found):
        rows = rows_of(str(given.pop(ROWS_INPUT)), chosen)
    if not rows:
        return
    for name, value in (("text_tokens", sum(row.count * row.new for row in rows)), ("new_tokens", 0), ("batch", 1)):
        if given.get(name) is None:
            given[name] = value
    given[ROWS_INPUT] = ",".join(row.text for row in rows)
    every = all(row.logits == row.new for row in rows)
    given["logits"] = chosen if chosen not in (None, "all", "last") else "all" if every else "last"
    if chosen in (None, "all", "last"):
        without = sum(row.count * (row.new - row.logits) for row in rows)
        where = "logits at each of the positions"
        check_recounts([Recount("rows of the batch", where, "are", given["logits"] == "all", without == 0)])


_Numbers = tuple[Any, Any, Any, Any]
"""Unchecked numbers of a row: new tokens, past, logits (``None``: the default; ``all``) and number of sequences."""


def _is_written(text: str) -> bool:
    """Return whether a text states rows, rather than the path of a file with rows."""
    return any(_ROW.fullmatch(part.strip()) for part in text.split(",")) or not Path(text).suffix


def _written(text: str) -> _Numbers | str:
    matched = _ROW.fullmatch(text.strip())
    if matched is None:
        return text
    count, new, past, logits = matched.groups()
    return int(new), int(past or 0), int(logits) if logits not in (None, "all") else logits, int(count or 1)


def _checked(row: _Numbers | str, where: str, usual: Logits) -> tuple[int, int, int, int]:
    """Return a row's numbers of new tokens, past tokens, positions with logits, and sequences, after checking them.

    Raises:
        BadInput: one of them is out of range.
    """
    if isinstance(row, str):
        raise BadInput("not a row of a batch", where=where, expected=_FORM, got=row.strip()[:60] or "nothing")
    new, past, logits, count = row
    logits = usual if logits is None else logits
    logits = new if logits == "all" else 1 if logits == "last" else logits
    for what, value, least in (
        ("new tokens", new, 1), ("past tokens", past, 0), ("logits", logits, 0), ("sequences", count, 1),
    ):  # fmt: skip
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadInput(f"not a number of {what}", where=where, expected=f"{least} or more", got=str(value)[:60])
    if logits > new:
        raise BadInput("more logits than new tokens", where=where, expected=f"at most {new}", got=logits)
    return new, past, logits, count


def _filed(path: Path) -> list[Any]:
    """Return the records of a file, one per row, or the record of one step."""
    text = first_bytes(path, MAX_BYTES, regular=True).decode("utf-8-sig", "replace") if path.is_file() else None
    if text is None:
        raise BadInput(
            "there is no such file of rows", where=f"--{ROWS_INPUT}", expected=f"a file, or {_FORM}", got=path
        )
    try:
        if path.suffix == ".csv":
            return list(_csv_lines(csv.DictReader(text.splitlines()), path))
        try:
            data = json.loads(text)
        except ValueError:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError, csv.Error) as error:
        raise BadInput(
            "not a file of rows", where=str(path), expected="CSV, JSON, or a JSON object a line", got=str(error)
        ) from None
    return data if isinstance(data, list) else [data]


def _csv_lines(reader: csv.DictReader[str], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a CSV table as dicts by column name, with digits as integers."""
    for line in reader:
        if None in line:
            raise BadInput(
                "more columns than the header names", where=f"{path}, line {reader.line_num}",
                expected=", ".join(reader.fieldnames or ()), got=f"also {', '.join(line[None])}"[:60],
            )  # fmt: skip
        yield {k: int(v) if v and v.strip().isdecimal() else v for k, v in line.items()}


def _of_file(steps: Sequence[Any]) -> list[_Numbers | str]:
    """Return the rows of a batch in a file."""
    if len(steps) == 1 and isinstance(steps[0], dict) and (found := _step(steps[0])) is not None:
        return found
    return [_named(step) if isinstance(step, dict) else str(step) for step in steps]


def _first(values: Mapping[str, Any], names: Iterable[str], usual: Any = None) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), usual)


def _named(values: Mapping[str, Any]) -> _Numbers | str:
    """Return the numbers of a row that is a JSON object or a CSV line."""
    new = _first(values, _NEW)
    if not isinstance(new, int):
        several = ", a file has one step" if isinstance(new, dict | list) else ""
        return f"{', '.join(map(str, values))}{several}" or "nothing"
    if unread := _unread_before(values):
        return f"{unread}, which is not a known name of the tokens before the new ones"
    return new, _first(values, _BEFORE, 0), _first(values, _KEPT), _first(values, _COUNTS, 1)


def _unread_before(values: Mapping[str, Any]) -> str:
    """Return a field that seems to state the past of a row whose past no known field states; empty if there is none."""
    if any(values.get(name) not in (None, "") for name in _BEFORE):
        return ""
    unread = (
        str(key)
        for key, value in values.items()
        if value and key not in _NOT_BEFORE and key not in _NEW and _PERHAPS_BEFORE.search(str(key))
    )
    return next(unread, "")


def _decoded(values: Mapping[str, Any]) -> list[_Numbers | str] | None:
    """Return the rows of a decode step of SGLang, whose lengths include the new token; ``None`` for other records."""
    lengths = values.get("seq_lens")
    if "decode" not in str(values.get("forward_mode", "")).lower() or not isinstance(lengths, list):
        return None
    return [(1, n - 1, None, 1) if isinstance(n, int) else str(n) for n in lengths]


def _step(values: Mapping[str, Any]) -> list[_Numbers | str] | None:
    """Return the rows of a scheduler's step; ``None`` if the record is a single row.

    vLLM (``SchedulerOutput``) maps requests to numbers, and lists new and known requests apart; drafted tokens get
    logits. SGLang (``ForwardBatch``, ``ScheduleBatch``) has parallel lists.
    """
    new, past = _first(values, _NEW), _first(values, _BEFORE, [])
    if isinstance(new, list | dict) and (unread := _unread_before(values)):
        return [f"{unread}, which is not a known name of the tokens before the new ones"]
    if new is None:
        return _decoded(values)
    if isinstance(new, list):
        before = past if isinstance(past, list) and past else [0] * len(new)
        if len(before) != len(new):
            return [f"{len(new)} new and {len(before)} past tokens"]
        return [(n, p, None, 1) for n, p in zip(new, before, strict=True)]
    if not isinstance(new, dict):
        return None
    fresh, known = values.get("scheduled_new_reqs") or [], values.get("scheduled_cached_reqs") or {}
    drafts = values.get("scheduled_spec_decode_tokens") or {}
    held = dict(past) if isinstance(past, dict) else {}
    held |= {one.get("req_id"): one.get("num_computed_tokens") for one in fresh}
    held |= dict(zip(known.get("req_ids", ()), known.get("num_computed_tokens", ()), strict=False))
    return [
        (n, held[name], len(drafts[name]) + 1 if name in drafts else None, 1)
        if name in held
        else f"request {name} without num_computed_tokens"
        for name, n in new.items()
    ]
