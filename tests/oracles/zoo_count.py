"""One model type of transformers, counted at a tiny configuration and checked; see :mod:`benchmarks.zoo`.

It is counted as ``hf:`` would count it, by an export and by a trace on shapes. What both say is compared module
by module, and their total with torch's own counter on plain runs, which gets the rules that it lacks from here.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import CostproofError, first_line
from costproof.models.generic.huggingface import HuggingFace, default_config
from costproof.models.generic.inputs import KINDS
from costproof.models.generic.memo import choice_of, made_of, places_of
from costproof.models.generic.module import GenericTarget
from costproof.processes import Say
from costproof.reports.report import Report
from costproof.tracers.dynamic import UNUSED
from tests.oracles.completed import LACKING, completed
from tests.oracles.tiny import candidates

WORKLOAD: Final = {"batch": 2, "seq_len": 24, "new_tokens": 1}
PUBLISHED: Final = Path(__file__).resolve().parents[2] / "tests/models/configs"
"""Files of published models; where each was read is in SOURCES.md beside them."""
_LONGEST: Final = 240


OUTCOMES: Final = {
    "exact": "an export, a run and torch's counter agree; export and run in every quantity of every module",
    "explained": "the same, but for quantities whose difference has a named cause",
    "equal": "the same FLOPs from all three; another quantity of a module differs, or is unknown",
    "displaced": "the same FLOPs from all three in sum; of which modules they are is not settled",
    "in part": "the same FLOPs from all three, without a tower: an image or sound that the model takes is not there",
    "one source": "the run and torch's counter agree; the export failed, or lacks a stage",
    "differs": "FLOPs differ: a wrong number",
    "incomplete": "an operator has no rule",
    "not counted": "it does not run with the inputs that it gets, or neither source could count it",
    "not built": "transformers does not build its default configuration here",
    "not run": "not tried when this page was made",
}
"""Outcome -> what it means."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one model type came out."""

    name: str
    outcome: str
    """Of :data:`OUTCOMES`."""
    what: str = ""
    """The class, and how it was made small."""
    stages: str = ""
    flops: int | None = None
    why: str = ""
    """What is behind an outcome other than exact."""
    unused: str = ""
    """Modules that the inputs leave unused."""
    seconds: float = 0
    peak_mib: int = 0
    commit: str = ""
    """Of the version that counted it."""


class InThisProcess(GenericTarget):
    """A target that both sources count in this process: another one would import torch again for every type."""

    __slots__ = ()

    @property
    def here(self) -> bool:
        """Yes."""
        return True


def counted(name: str, say: Say) -> Row:
    """Count a model type: the smallest configuration that builds; where it cannot be counted, the default one."""
    import warnings

    import transformers

    began, usual = time.perf_counter(), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _forget_peak()
            row = _row(name)
    finally:
        transformers.logging.set_verbosity(usual)  # other tests of this process look at warnings
    return replace(row, seconds=round(time.perf_counter() - began, 1), peak_mib=_peak_mib())


def _row(name: str) -> Row:
    try:
        data = json.loads(json.dumps(_shape(name), default=str))
        data = data if name in published() else completed(name, data)
        made = sorted(candidates(data, _builds), key=lambda one: len(_left_out(_maker(one[1]))))
    except Exception as error:  # configurations and models are code of transformers, which raises what it likes
        return Row(name, "not built", why=_line(error))
    if not made:
        return Row(name, "not built", why=_why_not(data))
    refused: Row | None = None
    # Divided widths may not fit one another: then less divided ones, few layers of full width, or the default do.
    for small, smaller in made:
        for dtype in (None, "float32"):
            row = _tried(name, small, smaller, dtype)
            if row.outcome != "not counted":
                return row
            refused = refused or row
            if "inputs of this model" in row.why:
                return refused
            if "float" not in row.why.lower() and "dtype" not in row.why:
                break
    assert refused is not None
    return refused


def _shape(name: str) -> dict[str, Any]:
    """A published configuration of a type where one is known, in the keys of its class; else the default one.

    Defaults hide what published models have: two widths of heads in Gemma 4, features of several layers in Qwen3-VL.
    """
    own = default_config(name)
    if (file := published().get(name)) is None:
        return own
    built = HuggingFace(file.read_text(encoding="utf-8"), file.name).config().to_dict()
    return {key: built.get(key, value) for key, value in own.items()} | {"model_type": name}


@cache
def published() -> dict[str, Path]:
    """Model type -> the first published configuration of it that the tests have."""
    found: dict[str, Path] = {}
    for file in sorted(PUBLISHED.glob("*.json")):
        found.setdefault(json.loads(file.read_text(encoding="utf-8"))["model_type"], file)
    return found


def _left_out(maker: HuggingFace) -> list[str]:
    """Images and sounds that the model takes and does not run with: widths may not fit one another."""
    names = choice_of(maker, None, None).names or ()
    takes = inspect.signature(made_of(maker, None, None).module.forward).parameters
    return [name for name in sorted(KINDS) if name in takes and name not in names]


def _builds(data: Mapping[str, Any]) -> bool:
    return not _why_not(data)


def _why_not(data: Mapping[str, Any]) -> str:
    try:
        _maker(data).make("bfloat16", None)
    except Exception as error:
        return _line(error)
    return ""


def _maker(data: Mapping[str, Any]) -> HuggingFace:
    return HuggingFace(json.dumps(data), "here")


def _tried(name: str, small: str, data: Mapping[str, Any], dtype: str | None) -> Row:
    """Run it plainly, then count it."""
    row = Row(name, "not counted", small)
    try:
        from costproof.run.capture import count_sources
        from costproof.run.prepare import Prepared

        maker = _maker(data)
        target = InThisProcess(name, maker)
        added = "published shape" if name in published() else "completed" if name in LACKING else None
        what = ", ".join(filter(None, (maker.what.removesuffix(" of transformers"), small, dtype, added)))
        row = replace(row, what=what)
        settings = _settings(target)
        run = target.workload(**settings, dtype=dtype)
        expected = reference(target, run)
        if isinstance(expected, str) and "batch" in settings:  # some models' own code takes one element alone
            run = target.workload(**(settings | {"batch": 1}), dtype=dtype)
            alone = reference(target, run)
            if isinstance(alone, int):
                expected, row = alone, replace(row, what=f"{what}, batch 1")
        if isinstance(expected, str):
            return replace(row, why=expected)
        found = count_sources(Prepared(target, run, sources=("static", "dynamic"), no_cache=True))
        row = _judged(replace(row, stages=", ".join(found.capture.target.stages)), found, expected)
        # A sound comes one way or the other, not both.
        lacking = [f"not given: {name}" for name in _left_out(maker)] or [
            f"not reached: {name}" for name in row.unused.split(", ") if _is_tower(name)
        ]
        if row.outcome in ("exact", "explained", "equal") and row.unused and lacking:
            return replace(row, outcome="in part", why="; ".join(filter(None, (lacking[0], row.why))))
        return row
    except Exception as error:
        return replace(row, why=_line(error))


def _is_tower(path: str) -> bool:
    """Whether a module is a whole tower of a multimodal model, by its name."""
    name = path.rpartition(".")[2]
    return name == "visual" or name.endswith(("vision_tower", "audio_tower", "vision_model", "audio_model"))


def _settings(target: GenericTarget) -> dict[str, Any]:
    """Of the usual sizes those that the model takes, and a text no longer than it may be."""
    usual = target.workload()
    takes = target._takes(usual)
    given = {name: value for name, value in WORKLOAD.items() if name in takes}
    if "seq_len" in given:  # beside what images and sounds fill of it
        filled = places_of(target.maker, None, None, None)
        given["seq_len"] = min(filled + given["seq_len"], usual.text_tokens)
    return given


def _judged(row: Row, found: Report, expected: int) -> Row:
    """What two sources and the reference say together."""
    stages = found.capture.target.stages
    whole = {x.source: x for x in found.capture.ledgers if x.stages == stages}
    totals = {source: x.total("flops") for source, x in whole.items()}
    notes = [n for x in found.capture.ledgers for n in x.notes]
    unused = next((n.removeprefix(UNUSED) for n in notes if n.startswith(UNUSED)), "")
    row = replace(row, flops=next(iter(totals.values()), None), unused=unused)
    lacking = "; ".join((*found.capture.lacking.values(), *(n for n in notes if "is not covered" in n)))
    if any(t is not None and t != expected for t in totals.values()):
        said = ", ".join(f"{source} {t:,}" for source, t in totals.items() if t is not None)
        return replace(row, outcome="differs", why=f"{said}, reference {expected:,}; {found.sentence}"[:_LONGEST])
    if found.verdict in ("exact", "explained"):
        return replace(row, outcome=found.verdict, why="" if found.verdict == "exact" else found.sentence)
    if len(whole) < 2:
        return replace(row, outcome="one source", why=lacking[:_LONGEST])
    outcome = "equal"
    if None in totals.values():
        outcome = "incomplete"
    elif any(f.metric == "flops" for f in found.discrepancy.select(status="unexplained")):
        outcome = "displaced"
    return replace(row, outcome=outcome, why=found.sentence[:_LONGEST])


def reference(target: GenericTarget, run: Any) -> int | str:
    """FLOPs of the runs of a target by torch's counter, or why they cannot be run."""
    import copy

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from costproof.ledger.progress import silent
    from costproof.patches.inference import inference_context
    from costproof.snapshots.copies import unchecked
    from costproof.tracers.cpu_fallback import with_numbers

    total = 0
    # The counter's list of modules fails on parameters that want gradients.
    model = target.build_run(run, silent).model.requires_grad_(requires_grad=False)
    for one in target.runs(model, run):
        refused = ""
        for place in (lambda run: run, with_numbers):
            try:
                made = place(one)
                kwargs = copy.deepcopy(dict(made.kwargs))
                counter, single = FlopCounterMode(display=False, custom_mapping=_rules()), _singles()
                with unchecked(), inference_context(made.model), torch.no_grad(), counter, single:
                    made.model(**kwargs)
            except Exception as error:
                refused = _line(error)
                continue
            total += int(counter.get_total_flops()) + single.flops
            break
        else:
            return f"does not run: {refused}"
    return total


def _singles() -> Any:
    """A mode that counts products of einsum over dimensions of size 1: torch runs them as elementwise products."""
    import math

    import torch
    from torch.overrides import TorchFunctionMode

    class Singles(TorchFunctionMode):
        flops = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.einsum and isinstance(args[0], str):
                operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
                inputs, _, output = args[0].replace(" ", "").partition("->")
                terms = inputs.split(",")
                sizes: dict[str, int] = {}
                for term, tensor in zip(terms, operands, strict=True):
                    for dim, size in zip(_dims(term, tensor.dim()), tensor.shape, strict=True):
                        sizes[dim] = max(sizes.get(dim, 1), int(size))
                summed = [n for d, n in sizes.items() if d not in _dims(output, len(output) + len(sizes))]
                if len(terms) == 2 and summed and set(summed) == {1}:
                    self.flops += 2 * math.prod(sizes.values())
            return func(*args, **(kwargs or {}))

    return Singles()


def _dims(term: str, count_sources: int) -> list[str]:
    """Names of so many dimensions of an operand of einsum; those of an ellipsis are numbered from behind."""
    before, dots, after = term.partition("...")
    more = count_sources - len(before) - len(after)
    return [*before, *(f"...{i}" for i in range(more, 0, -1) if dots), *after]


def _rules() -> dict[Any, Any]:
    """Operators that do products and that torch's counter has no rule for; shapes in, FLOPs out."""
    import torch

    aten = torch.ops.aten
    found: dict[Any, Any] = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten.mv: lambda a, b, **_: 2 * a[0] * a[1],
        aten.dot: lambda a, b, **_: 2 * a[0],
        aten.addmv: lambda bias, a, b, **_: 2 * a[0] * a[1],
        aten.addbmm: lambda bias, a, b, **_: 2 * a[0] * a[1] * a[2] * b[2],
        aten._grouped_mm: _grouped,
        aten.mkldnn_rnn_layer: _recurrent,
    }
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback] = _grouped
    return found


def _attention(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Two products of [B, heads, queries, width] with [B, heads, keys, width]."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def _grouped(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Rows [n, k], each with one of the matrices [groups, k, m]."""
    return 2 * a[0] * a[1] * b[2]


def _recurrent(x: Sequence[int], of_input: Sequence[int], of_state: Sequence[int], *_: Any, **__: Any) -> int:
    """Rows [steps, B, width] and states, each with the matrices of all gates; only some processors have it."""
    return 2 * x[0] * x[1] * (of_input[0] * of_input[1] + of_state[0] * of_state[1])


def _line(error: Exception) -> str:
    said = error.line if isinstance(error, CostproofError) else first_line(error)
    return said[:_LONGEST]


def _forget_peak() -> None:
    """Begin to measure the peak anew, where the system lets us."""
    with Path("/proc/self/clear_refs").open("w") as file:
        file.write("5")


def _peak_mib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
