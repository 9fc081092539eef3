"""The callgraph of a whole capture, from the runs that were traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from costproof.ledger.callgraph import CallGraph, Event, ValueAt
from costproof.tracers.constructor import constructor_params
from costproof.tracers.hooks import ROOT, Hooked
from costproof.tracers.paths import Paths


def call_graph(
    hooked: Sequence[Hooked],
    operators: Mapping[str, Mapping[str, int]],
    feeds: Mapping[tuple[str, str], int],
    *,
    all_calls: bool = False,
) -> CallGraph:
    """The callgraph of several runs of one model, in order; calls are counted through.

    Args:
        operators: innermost module -> operator -> calls, from the operator trace.
        feeds: (a, b) -> how often a fed b, from the operator trace.
        all_calls: keep what went in and out of every call, if the runs noted it.
    """
    model = hooked[0].run.model
    counts: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    inputs: dict[str, tuple[ValueAt, ...]] = {}
    outputs: dict[str, tuple[ValueAt, ...]] = {}
    events: list[Event] = []
    for part in hooked:
        for target, source in ((inputs, part.inputs), (outputs, part.outputs)):
            for path, values in source.items():
                if all_calls or path not in target:
                    target[path] = (*target.get(path, ()), *_renumbered(values, counts[path]))
        events += [_later(e, len(events) + i, counts[e.name]) for i, e in enumerate(part.events)]
        counts.update(part.call_counts)
        edges.update({f"{a}->{b}": n for (a, b), n in part.edges.items()})
    paths = Paths(model)
    modules = {path or ROOT: module for path, module in paths.modules.items()}
    return CallGraph(
        call_counts=dict(counts),
        edges=dict(edges),
        op_call_counts={k or ROOT: dict(v) for k, v in operators.items()},
        module_children={p or ROOT: k for p in paths.modules if (k := tuple(paths.children(p)))},
        module_types={path: type(module).__name__ for path, module in modules.items()},
        constructor_params={p: c for p, m in modules.items() if (c := constructor_params(m))},
        input_metadata=inputs,
        output_metadata=outputs,
        events=tuple(events),
        data_edges={f"{a or ROOT}->{b or ROOT}": n for (a, b), n in sorted(feeds.items())},
        module_aliases=paths.aliases,
        tied_parameters=paths.tied,
    )


def _renumbered(values: Iterable[ValueAt], before: int) -> tuple[ValueAt, ...]:
    return tuple(replace(v, call=v.call + before) if before else v for v in values)


def _later(event: Event, index: int, before: int) -> Event:
    call = event.data.get("call")
    data = {**event.data, "call": call + before} if isinstance(call, int) else event.data
    return replace(event, index=index, data=data)
