"""The second dynamic tracer: plain forward hooks on every module, independent of TorchLens.

It counts calls and caller-callee edges, notes the shapes and dtypes of what goes in and out, and
measures how far the key/value cache grows. Hooks are gone when the run is, however it ends.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costproof.ledger.callgraph import CallGraph, Event
from costproof.ledger.workload import TensorSpec
from costproof.models.target import Run

if TYPE_CHECKING:
    from torch import nn

ROOT = "(root)"
MAX_EVENTS = 20_000


@dataclass(frozen=True, slots=True)
class Hooked:
    """What the hooks saw of one run."""

    run: Run
    call_counts: dict[str, int]
    edges: dict[tuple[str, str], int]
    inputs: dict[str, tuple[TensorSpec, ...]]
    """Tensors of the first call."""
    outputs: dict[str, tuple[TensorSpec, ...]]
    events: tuple[Event, ...]
    cache_growth: tuple[int, ...]
    """Bytes appended to keys and values, per layer of the cache."""


def trace_hooks(run: Run) -> Hooked:
    """Run the model once with hooks on every module; the model is left without any."""
    import torch

    paths = {id(m): p or ROOT for p, m in run.model.named_modules()}
    counts: Counter[str] = Counter()
    edges: Counter[tuple[str, str]] = Counter()
    inputs: dict[str, tuple[TensorSpec, ...]] = {}
    outputs: dict[str, tuple[TensorSpec, ...]] = {}
    events: list[Event] = []
    stack: list[str] = []
    kwargs = copy.deepcopy(dict(run.kwargs))

    def note(event: str, name: str, **data: int | str) -> None:
        if len(events) < MAX_EVENTS:
            events.append(Event(len(events), event, name, data))

    def enter(module: nn.Module, args: Any, kw: Any) -> None:
        path = paths[id(module)]
        counts[path] += 1
        if stack:
            edges[stack[-1], path] += 1
        if path not in inputs:
            inputs[path] = specs((args, kw))
        stack.append(path)
        note("enter", path, call=counts[path])

    def leave(module: nn.Module, args: Any, kw: Any, output: Any) -> None:
        path = stack.pop()
        if path not in outputs:
            outputs[path] = specs(output)
        note("exit", path, call=counts[path])

    handles = []
    before = _cache_bytes(kwargs.get("past_key_values"))
    try:
        for module in run.model.modules():
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        note("mark", run.id if run.context is None else "decode_step", **_mark(run))
        with torch.no_grad():
            result = run.model(**kwargs)
    finally:
        for handle in handles:
            handle.remove()
    after = _cache_bytes(getattr(result, "past_key_values", None))
    growth = tuple(b - a for a, b in zip(before or [0] * len(after), after, strict=True))
    return Hooked(run, dict(counts), dict(edges), inputs, outputs, tuple(events), growth)


def call_graph(hooked: tuple[Hooked, ...], operators: Mapping[str, Mapping[str, int]]) -> CallGraph:
    """The callgraph of several runs of one model, in order.

    Args:
        operators: innermost module -> operator -> calls, from the operator trace.
    """
    model = hooked[0].run.model
    counts: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    inputs: dict[str, tuple[TensorSpec, ...]] = {}
    outputs: dict[str, tuple[TensorSpec, ...]] = {}
    events: list[Event] = []
    for part in hooked:
        counts.update(part.call_counts)
        edges.update({f"{a}->{b}": n for (a, b), n in part.edges.items()})
        inputs = {**part.inputs, **inputs}
        outputs = {**part.outputs, **outputs}
        events += [dataclasses.replace(e, index=len(events) + i) for i, e in enumerate(part.events)]
    modules = dict(model.named_modules())
    children = {
        path or ROOT: tuple(f"{path}.{name}" if path else name for name, _ in module.named_children())
        for path, module in modules.items()
        if any(True for _ in module.children())
    }
    return CallGraph(
        call_counts=dict(counts),
        edges=dict(edges),
        op_call_counts={k or ROOT: dict(v) for k, v in operators.items()},
        module_children=children,
        module_types={path or ROOT: type(module).__name__ for path, module in modules.items()},
        constructor_params={p or ROOT: c for p, m in modules.items() if (c := constructor_params(m))},
        input_metadata=inputs,
        output_metadata=outputs,
        events=tuple(events),
    )


def specs(value: Any) -> tuple[TensorSpec, ...]:
    """Shapes and dtypes of all tensors in nested arguments, in order; caches are left out."""
    import torch

    if isinstance(value, torch.Tensor):
        return (TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch.")),)
    if isinstance(value, Mapping):
        return tuple(s for v in value.values() for s in specs(v))
    if isinstance(value, list | tuple):
        return tuple(s for v in value for s in specs(v))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(s for f in dataclasses.fields(value) for s in specs(getattr(value, f.name, None)))
    return ()


def constructor_params(module: nn.Module) -> dict[str, int | float | str | bool | None]:
    """Plain attributes of a module that bear the name of a constructor argument, or are sizes by name."""
    try:
        wanted = set(inspect.signature(type(module).__init__).parameters)
    except (TypeError, ValueError):
        wanted = set()
    found: dict[str, int | float | str | bool | None] = {}
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name == "training":
            continue
        known = name in wanted or name.endswith(_SIZES) or name in _NAMES
        if known and isinstance(value, bool | int | float | str):
            found[name] = value
        elif known and isinstance(value, tuple) and all(isinstance(v, int) for v in value):
            found[name] = "x".join(map(str, value))
    return found


_SIZES = ("_size", "_dim", "_heads", "_features", "_channels", "_experts", "_groups", "_width", "_height")
_NAMES = frozenset({"eps", "variance_epsilon", "top_k", "scale", "scaling", "head_dim", "groups", "topk_method"})


def _mark(run: Run) -> dict[str, int | str]:
    data: dict[str, int | str] = {"run": run.id}
    if run.context is not None:
        data["context"] = run.context
    return data


def _cache_bytes(cache: Any) -> list[int]:
    """Bytes of keys and values that each layer of a cache holds."""
    import torch

    found = []
    for layer in getattr(cache, "layers", ()):
        tensors = {
            id(t): t.nbytes
            for t in vars(layer).values()
            if isinstance(t, torch.Tensor) and t.dim() == 4 and t.is_floating_point()
        }
        found.append(sum(tensors.values()))
    return found
