"""A module as it is written, run on the CPU without numbers: what it holds when, and which variables hold it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.as_it_runs import as_it_runs
from costproof.opgraph.liveness import Timeline
from costproof.patches.modules import hooked
from costproof.tracers.exporting import each_argument
from costproof.tracers.peaks.memory import OnCpu, Storages, namer

_DEEPEST: Final = 4
"""How far into lists, dictionaries and objects a variable is searched."""
_ONE_OPERATOR: Final = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_AS_MODULES: Final = (
    "torch.nn's layers of attention are run as the modules that they are made of, not as the one operator that may "
    "stand for them in evaluation on a CPU, which holds less"
)
_TORCH: Final = str(Path(torch.__file__).parent)
_OURS: Final = str(Path(__file__).parents[2])
_OF_ANY_MODULE: Final = frozenset(vars(torch.nn.Module()))

Holders = Mapping[int, tuple[str, ...]]
"""Number of a piece of memory -> variables that hold it, outermost first."""


def eager_run(job: OnCpu, watch: Callable[[Storages, int], None] | None = None) -> tuple[Timeline, tuple[str, ...]]:
    """What a module holds when, and what was taken for granted.

    Args:
        watch: called after each event that makes something, while the module runs.

    Raises:
        Incomplete: the module looks at numbers, or the memory of a result is not known.
    """
    module, name = job.job.module, namer(job.job)
    paths = {id(m): name(path) for path, m in module.named_modules()}
    stack: list[str] = []

    def enter(called: Any, *_: Any) -> None:
        here = paths.get(id(called))
        stack.append(here if here is not None else stack[-1] if stack else "")

    def leave(*_: Any) -> None:
        stack.pop()

    seen = Storages(lambda: stack[-1] if stack else "", lambda event: watch(seen, event) if watch else None)
    try:
        with as_it_runs(module) as assumed, hooked(module.modules(), enter, leave), job.mode, seen:
            seen.apart((*module.parameters(), *module.buffers()))
            each_argument(job.job, lambda path, tensor: seen.given(".".join(map(str, path)), tensor))
            result = module(**job.job.args)
            found = seen.timeline()
            del result
    except CostproofError:
        raise
    except Exception as error:  # code of other packages raises what it likes
        where = f"{job.job.stage}, {job.job.id}"
        raise Incomplete("the module does not run without numbers", where=where, got=first_line(error)) from error
    made_of = any(isinstance(m, _ONE_OPERATOR) for m in module.modules())
    return found, (*assumed, *([_AS_MODULES] if made_of else []))


def holders_at(job: OnCpu, expected: Timeline, event: int, wanted: Collection[int]) -> Holders:
    """Which variables hold some pieces of memory after an event, found by a second run; none if that runs otherwise."""
    found: dict[int, tuple[str, ...]] = {}

    def watch(seen: Storages, at: int) -> None:
        same = at == event and tuple(seen.events) == expected.events[: event + 1]
        if same and tuple(seen.tensors) == expected.tensors[: len(seen.tensors)]:
            found.update(_holders(seen, wanted))

    eager_run(job, watch)
    return found


def _holders(seen: Storages, wanted: Collection[int]) -> dict[int, tuple[str, ...]]:
    """The variables of all functions that are running, outermost first, and attributes of their modules.

    Those of torch's functions are told only where there are no others, and those of ours never.
    """
    ours: dict[int, list[str]] = {}
    torchs: dict[int, list[str]] = {}
    frame: FrameType | None = sys._getframe(2)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    for frame in reversed(frames):
        if frame.f_code.co_filename.startswith(_OURS):
            continue
        into = torchs if frame.f_code.co_filename.startswith(_TORCH) else ours
        for name, value in _named(frame.f_locals):
            for number in _inside(seen, value, _DEEPEST) & set(wanted):
                into.setdefault(number, []).append(f"{_function(frame)}: {name}")
    return {n: tuple(dict.fromkeys(ours.get(n) or torchs.get(n) or ())) for n in wanted}


def _named(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield variables by name, and in place of a module what it holds beside its parts, parameters and buffers."""
    for name, value in variables.items():
        if isinstance(value, torch.nn.Module):
            yield from ((f"{name}.{k}", v) for k, v in vars(value).items() if k not in _OF_ANY_MODULE)
        else:
            yield name, value


def _function(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name
    return name if owner is None else f"{type(owner).__name__}.{name}"


def _inside(seen: Storages, value: Any, depth: int) -> set[int]:
    """Numbers of the memory that a value holds; modules hold none that is counted."""
    if isinstance(value, torch.Tensor):
        number = seen.number(value)
        return set() if number is None else {number}
    if depth == 0 or isinstance(value, torch.nn.Module | Storages | type):
        return set()
    if isinstance(value, dict):
        parts: Any = list(value.values())
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    elif type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    else:
        return set()
    return set().union(*(_inside(seen, part, depth - 1) for part in parts))
