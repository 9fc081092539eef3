"""The second dynamic tracer: plain forward hooks on every module, independent of TorchLens.

It counts calls and caller-callee edges, notes the shapes and dtypes of what goes in and out, and
measures how far the key/value cache grows. Hooks are gone when the run is, however it ends.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.callgraph import Event, ValueAt
from costproof.models.target import Run
from costproof.tracers.direct import through_call
from costproof.tracers.metadata import given, taken
from costproof.tracers.paths import Paths
from costproof.tracers.readonly import uncompiled, watched

if TYPE_CHECKING:
    from torch import nn

ROOT: Final = "(root)"
MAX_EVENTS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Hooked:
    """What the hooks saw of one run."""

    run: Run
    call_counts: dict[str, int]
    edges: dict[tuple[str, str], int]
    inputs: dict[str, tuple[ValueAt, ...]]
    """Of the first call, or of all."""
    outputs: dict[str, tuple[ValueAt, ...]]
    events: tuple[Event, ...]
    cache_growth: tuple[int, ...]
    """Bytes appended to keys and values, per layer of the cache."""


def trace_hooks(run: Run, *, all_calls: bool = False) -> Hooked:
    """Run the model once with hooks on every module; the model is left without any.

    Args:
        all_calls: note what goes in and out of every call, not of each module's first alone.
    """
    import torch

    kwargs = copy.deepcopy(dict(run.kwargs))
    watch = _Watch(run, all_calls)
    before = _cache_bytes(kwargs.get("past_key_values"))
    with watch.hooked(), through_call(run.model), uncompiled(), torch.no_grad():
        result = run.model(**kwargs)
    after = _cache_bytes(getattr(result, "past_key_values", None))
    growth = tuple(b - a for a, b in zip(before or [0] * len(after), after, strict=True))
    return Hooked(run, dict(watch.counts), dict(watch.edges), watch.inputs, watch.outputs, watch.all_events(), growth)


@dataclass(slots=True)
class _Watch:
    """The hooks and what they note. A hook changes nothing and returns nothing."""

    run: Run
    all_calls: bool
    counts: Counter[str] = field(default_factory=Counter)
    edges: Counter[tuple[str, str]] = field(default_factory=Counter)
    inputs: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[ValueAt, ...]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    left_out: int = 0
    stack: list[tuple[str, int, BaseException | None]] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hooks on all modules for the time of the block."""
        paths = Paths(self.run.model)
        self.paths = {key: path or ROOT for key, path in paths.by_id.items()}
        with watched(paths.modules.values(), self.enter, self.leave, with_kwargs=True):
            run = self.run
            data: dict[str, Any] = {"run": run.id}
            if run.context is not None:
                data["context"] = run.context
            self.note("mark", run.id if run.context is None else "decode_step", data)
            yield

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        path = self.paths[id(module)]
        self.counts[path] += 1
        call = self.counts[path]
        if self.stack:
            self.edges[self.stack[-1][0], path] += 1
        if call == 1 or self.all_calls:
            self.inputs[path] = (*self.inputs.get(path, ()), *taken(args, kwargs, call))
        self.note("enter", path, {"call": call})
        self.stack.append((path, call, sys.exception()))
        for mark in self.run.marks:
            if (mark.module or ROOT) == path and mark.name not in self.marked:
                data = mark.read(module, args, kwargs)
                if data:
                    self.marked.add(mark.name)
                    self.note("mark", mark.name, dict(data))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path, call, before = self.stack.pop()
        error = sys.exception()
        if error is not None and error is not before:
            self.note("exit", path, {"call": call, "raised": type(error).__name__})
            return
        if path not in self.outputs or self.all_calls:
            self.outputs[path] = (*self.outputs.get(path, ()), *given(output, call))
        self.note("exit", path, {"call": call})

    def note(self, event: str, name: str, data: dict[str, Any]) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(len(self.events), event, name, data))
        else:
            self.left_out += 1

    def all_events(self) -> tuple[Event, ...]:
        """The events, with a mark at the end if there were too many."""
        if not self.left_out:
            return tuple(self.events)
        return (*self.events, Event(len(self.events), "mark", "left_out", {"events": self.left_out}))


def _cache_bytes(cache: Any) -> list[int]:
    """Bytes of keys and values that each layer of a cache holds."""
    import torch

    if isinstance(cache, tuple):  # ((keys, values) per layer): what caches were before they had a class
        return [sum(t.nbytes for t in layer) for layer in cache]
    found = []
    for layer in getattr(cache, "layers", ()):
        tensors = {
            id(t): t.nbytes
            for t in vars(layer).values()
            if isinstance(t, torch.Tensor) and t.dim() == 4 and t.is_floating_point()
        }
        found.append(sum(tensors.values()))
    return found
