"""Whether the parts of a callgraph agree: counts of calls, edges, events, and what the events say went in."""

from __future__ import annotations

from collections import Counter

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import Capture
from costproof.ledger.plural import plural
from costproof.reports.graph.structure import arrows, ended


def problems(graph: CallGraph) -> list[str]:
    """Contradictions inside a callgraph, one sentence each; empty for a sound one.

    Calls must be as many as events that enter the module, and calls by callers as many as nested enters. Events
    that are cut off cover a part of the run and bound the counts from below.
    """
    said: list[str] = []
    calls = list(ended(graph.events))
    entered = Counter(call.module for call in calls)
    nested: Counter[tuple[str, str]] = Counter()
    for call in calls:
        nested.update({(call.module, callee): n for callee, n in call.callees.items()})
    partly = not all(c.whole for c in calls) or any(e.name == "left_out" for e in graph.events if e.event == "mark")
    incoming: Counter[str] = Counter()
    for (a, b), n in arrows(graph.edges, {*graph.call_counts, *graph.module_types}).items():
        incoming[b] += n
        if entered and (nested[a, b] > n if partly else nested[a, b] != n):
            said.append(f"{a} calls {b} {plural(n, 'time')} by the edges, {nested[a, b]} by the events")
    for path, count in graph.call_counts.items():
        if incoming[path] > count:
            said.append(f"{path} is called {plural(count, 'time')} by the counts, {incoming[path]} by the edges")
        if entered and (entered[path] > count if partly else entered[path] != count):
            said.append(f"{path} is called {plural(count, 'time')} by the counts, {entered[path]} by the events")
    return said


def mark_problems(capture: Capture) -> list[str]:
    """Where the marks of the events are not what the stages were counted for.

    A mark that has the name of a call among its data tells how many inputs that call had, ``{"crops": (4, 4)}``.
    """
    marks = [e.data for e in capture.callgraph.events if e.event == "mark"] if capture.callgraph else []
    said = []
    for call in capture.invocations:
        told = [v if isinstance(v, tuple) else (v,) for data in marks if (v := data.get(call.id)) is not None]
        numbers = [v for values in told for v in values if isinstance(v, int)]
        counted = sum(spec.shape[0] for spec in call.inputs[:1] if spec.shape) * call.calls
        if numbers and sum(numbers) != counted:
            said.append(f"{call.stage} was counted for {counted} {call.id}, the events tell of {sum(numbers)}")
    return said
