"""Select the part of a grouped callgraph to draw, and add costs from the ledgers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Final
from urllib.parse import quote

from costproof.ledger.callgraph import CallGraph, TensorAt
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, did_you_mean, no_such
from costproof.ledger.metrics import TRAFFIC, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.plural import plural, verb
from costproof.ledger.run import DEFAULT_SOURCES
from costproof.ledger.workload import counted_line
from costproof.reports.graph.grouping import group
from costproof.reports.graph.picture import Edge, GraphView, Node
from costproof.reports.graph.structure import arrows, inside, recorded_calls
from costproof.views.describe import model_line, workload_line
from costproof.views.files import CallGraphFile, Drawable, callgraph_of
from costproof.views.quantities import with_quantity

ROOT: Final = "(root)"
MOVED: Final = "io_bytes"
"""Name of the bytes read plus written, derived from the metrics of :data:`~costproof.ledger.metrics.TRAFFIC`."""
EXPERTS: Final = "experts"
"""Last component of the role of a layer's routed experts."""
_SOURCES: Final = DEFAULT_SOURCES[::-1]
"""Sources in order of precedence; the dynamic one is first, as the callgraph records a run."""


@dataclass(frozen=True)
class ModuleNumbers:
    """Costs of the modules of a callgraph, in all stages or in one; ``None`` means unknown."""

    modules: frozenset[str]
    """Modules with cost nodes in these stages."""
    own: Mapping[Metric, Mapping[str, int | None]]
    """Costs of each module without its submodules, by metric; metrics that no source has are absent."""
    drawn: Mapping[str, frozenset[str]]
    """Submodules that run, by a module with costs that is never called itself, such as a list of experts."""
    experts: Mapping[str, str]
    """``64 experts, top 6``, by the module with the routed experts and by its parent, if formulas give the numbers."""

    @cached_property
    def _inside(self) -> Mapping[Metric, Mapping[str, int | None]]:
        found: dict[Metric, dict[str, int | None]] = {}
        for metric, own in self.own.items():
            sums = found.setdefault(metric, {})
            for module, value in own.items():
                for around in (ROOT, *([] if module == ROOT else _upwards(module))):
                    sums[around] = exact_sum((sums.get(around, 0), value))
        return found

    def inside(self, metric: Metric, instances: Sequence[str]) -> int | None:
        """Return a metric summed over modules and their submodules; ``None`` if a summand is unknown."""
        if metric not in self.own:
            return None
        chosen = set(instances)
        outer = {p for p in chosen if p == ROOT or not (chosen & {ROOT, *list(_upwards(p))[1:]})}
        return exact_sum([*(self._inside[metric].get(p, 0) for p in outer), *self._borne(metric, outer)])

    def owns_work(self, instances: Sequence[str]) -> bool:
        """Return whether the modules have FLOPs apart from their submodules; unknown FLOPs count as some."""
        if "flops" not in self.own:
            return False
        own = self.own["flops"]
        return exact_sum([*(own.get(p, 0) for p in instances), *self._borne("flops", set(instances))]) != 0

    def calls(self, instances: Sequence[str], traced: int | None) -> int | None:
        """Return the calls at the workload; if no source has them, the traced calls, maybe of fewer decode steps."""
        known = self.own.get("calls", {})
        return exact_sum(known.get(p, 0) for p in instances) if any(p in known for p in instances) else traced

    def _borne(self, metric: Metric, modules: set[str]) -> list[int | None]:
        """Return the costs that the ledgers record on a container module instead of on these modules in it.

        ``None`` for a list of which only a part is given.
        """
        own = self.own[metric]
        bare = modules - self._inside[metric].keys()
        lists = {above for p in bare for above in list(_upwards(p))[1:] if above in self.drawn and above in own}
        return [own[x] if self.drawn[x] <= bare else None for x in lists if own[x] != 0]


def module_numbers(
    ledgers: Sequence[Ledger], graph: CallGraph, stage: str | None, symbols: Mapping[str, int] | None = None
) -> ModuleNumbers:
    """Return the costs of modules, summed over all stages or for one stage.

    Args:
        symbols: the sizes of the configuration.
    """
    known = [x for s in _SOURCES for x in ledgers if x.source == s]
    own: dict[Metric, dict[str, int | None]] = {}
    for metric in ("params", "flops", "calls"):
        speaking = next((x for x in known if metric in x.metrics), None)
        if speaking is not None:
            own[metric] = _own_costs(speaking, metric, stage)
    moving = next((x for x in known if set(TRAFFIC) <= set(x.metrics)), None)
    if moving is not None:
        own[MOVED] = _own_costs(with_quantity(moving, MOVED), MOVED, stage)
    modules = frozenset(n.module or ROOT for x in known for n in x.nodes if stage in (None, n.stage))
    drawn = _idle_holders(graph, {p for sums in own.values() for p in sums} - graph.call_counts.keys())
    return ModuleNumbers(modules, own, drawn, _experts(known, symbols))


def _experts(ledgers: Sequence[Ledger], symbols: Mapping[str, int] | None) -> dict[str, str]:
    """Return a text such as ``8 of 64`` for modules with routed experts, from the ratio of parameter formulas."""
    found: dict[str, str] = {}
    for node in (n for x in ledgers for n in x.nodes):
        held, passed = node.exprs.get("params"), node.exprs.get("params_active")
        if node.role.rpartition(".")[2] == EXPERTS and held and passed and symbols:
            found[node.module] = _ratio(held, passed, tuple(sorted(symbols.items())))
    return {place: text for module, text in found.items() for place in (module, module.rpartition(".")[0]) if text}


@cache
def _ratio(held: str, passed: str, symbols: tuple[tuple[str, int], ...]) -> str:
    import sympy

    from costproof.algebra.symbols import parse

    experts, top = sympy.fraction(sympy.cancel(parse(held) / parse(passed)))
    known = dict(symbols)
    sizes = [part.subs({s: known[s.name] for s in part.free_symbols if s.name in known}) for part in (experts, top)]
    return f"{sizes[0]} experts, top {sizes[1]}" if all(s.is_Integer for s in sizes) else ""


def _own_costs(ledger: Ledger, metric: Metric, stage: str | None) -> dict[str, int | None]:
    """Return a metric of each module without its submodules."""
    nodes: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        if metric in node.costs and stage in (None, node.stage):
            nodes.setdefault(node.module or ROOT, []).append(node)
    found = {module: total(mine, metric) for module, mine in nodes.items()}
    if metric in ("flops", MOVED):
        found |= {op.module or ROOT: None for op in ledger.unknown_ops if stage in (None, op.stage)}
    return found


def _idle_holders(graph: CallGraph, idle: set[str]) -> dict[str, frozenset[str]]:
    """Return the direct submodules of each module that never ran but has a direct submodule that did."""
    inside: dict[str, set[str]] = {}
    for path in {*graph.call_counts, *graph.module_types}:
        inside.setdefault(path.rpartition(".")[0], set()).add(path)
    return {p: frozenset(inside[p]) for p in idle if not graph.call_counts.keys().isdisjoint(inside.get(p, ()))}


def _upwards(path: str) -> Iterable[str]:
    """Yield a path and the paths of all enclosing modules."""
    while path:
        yield path
        path = path.rpartition(".")[0]


_LINK: Final = re.compile(r"(?:https?://|(?![A-Za-z][A-Za-z0-9+.\-]*:)[^\s\x00-\x20:])[^\s\x00-\x20\"<>]*\Z")
"""Pattern of permitted links, with http(s) as the only scheme: an SVG would execute a ``javascript:`` address."""


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Choice of which part of a callgraph to show; by default, everything."""

    depth: int | None = None
    """Number of nested calls to show below the outermost nodes; ``None`` for as many as fit on one page."""
    stage: str | None = None
    prefix: str | None = None
    """Path of the module to show with all its submodules."""
    heavy: bool = False
    """Whether to show only modules with matmul-like FLOPs of their own, and their callers."""
    link: str | None = None
    """Address that each node links to; ``{path}`` and ``{class}`` are replaced by the module's."""


def check_choice(chosen: GraphChoice, stages: Sequence[str], modules: Collection[str]) -> None:
    """Check that the stage and the module of a choice exist.

    Args:
        stages: of the target.
        modules: paths in the callgraph.
    """
    if chosen.depth is not None and chosen.depth < 0:
        raise BadInput("a depth cannot be negative", where="--depth", expected="0 or more", got=chosen.depth)
    if chosen.stage is not None and chosen.stage not in stages:
        raise no_such("stage", chosen.stage, stages, where="--stage")
    if chosen.link is not None and not _LINK.match(chosen.link):
        raise BadInput(
            "this address cannot be linked to",
            where="--link",
            expected="http://, https://, or a relative address; {path} and {class} stand for the module's",
            got=chosen.link,
        )
    if chosen.prefix is not None and chosen.prefix not in modules:
        raise BadInput(
            "no such module",
            where="--prefix",
            expected="the path of a module, such as "
            + min(modules, default="(root)", key=lambda p: (-p.count("."), p)),
            got=chosen.prefix,
            fix=did_you_mean(chosen.prefix, sorted(modules)),
        )


_TOLD: Final = (Capture, CallGraphFile)
"""Types of inputs that identify the model and the workload."""
_MOST: Final = 5
"""Maximum number of contradictions that are spelled out."""
PAGE: Final = 60
"""Maximum number of nodes on one page, which limits the default depth."""


def graph_view(drawn: Drawable, choice: GraphChoice | None = None) -> GraphView:
    """Return the picture of the chosen part of a callgraph, from a capture or a ``callgraph.json``.

    Raises:
        Absent: the capture was made without the dynamic source.
        BadInput: no module is left to show, or the depth is negative.
    """
    chosen = choice or GraphChoice()
    whole, ledgers = (callgraph_of(drawn), drawn.ledgers) if isinstance(drawn, Capture) else (drawn, ())
    told = drawn if isinstance(drawn, _TOLD) else None
    of_run = (
        ()
        if told is None
        else (f"{told.workload.name}: {workload_line(told.workload)}", counted_line(told.target, told.workload))
    )
    about = (model_line(told.target), *of_run) if told else ()
    check_choice(chosen, told.target.stages if told else (), {*whole.module_types, *whole.call_counts})
    # Grouped anew inside a prefix: a block of a series is one block there.
    graph = whole if chosen.prefix is None else inside(whole, chosen.prefix)
    grouped = group(graph)
    symbols = drawn.target.symbols if isinstance(drawn, Capture) else None
    costs = module_numbers(ledgers, whole, chosen.stage, symbols)
    picked = [n for n in grouped.nodes if chosen.stage is None or not costs.modules.isdisjoint(n.instances)]
    if chosen.heavy:
        leading = _with_callers(grouped.calls, [n.id for n in picked if costs.owns_work(n.instances)])
        picked = [n for n in picked if n.id in leading]
    if not picked:
        raise BadInput(
            "no module is left to show", where="costproof graph", fix="leave out --stage, --prefix or --heavy"
        )
    depths = _depths(grouped.calls, [n.id for n in picked])
    deepest = _page(depths) if chosen.depth is None else chosen.depth
    shown = {i for i, depth in depths.items() if depth <= deepest}
    left = depths.keys() - shown
    hidden = Counter(e.source for e in grouped.calls if e.target in left)
    many = plural(len(left), "family", "families")
    lie, are = verb(len(left), "lies", "lie"), verb(len(left))
    deeper = [f"{many} of modules {lie} deeper than depth {deepest} and {are} left out"] if left else []
    found = [*contradictions(graph), *(mark_contradictions(drawn) if isinstance(drawn, Capture) else ())]
    return GraphView(
        title=_title(drawn, chosen),
        nodes=tuple(
            _add_numbers(replace(n, depth=depths[n.id], hidden=hidden[n.id]), whole, costs, chosen.link)
            for n in picked
            if n.id in shown
        ),
        calls=tuple(e for e in grouped.calls if {e.source, e.target} <= shown),
        flow=_flow(grouped, depths.keys(), shown),
        about=about,
        notes=(*deeper, *_notes(drawn, whole), *_contradictions(found)),
    )


def _title(drawn: Drawable, chosen: GraphChoice) -> str:
    parts = [f"{drawn.target.title} at {drawn.workload.name}" if isinstance(drawn, _TOLD) else "callgraph"]
    parts += [f"stage {chosen.stage}"] if chosen.stage else []
    parts += [f"below {chosen.prefix}"] if chosen.prefix else []
    parts += ["heavy modules only"] if chosen.heavy else []
    return ", ".join(parts)


def _with_callers(calls: Iterable[Edge], heavy: Sequence[str]) -> set[str]:
    """Return the given nodes and all their direct and indirect callers."""
    callers: dict[str, list[str]] = defaultdict(list)
    for edge in calls:
        callers[edge.target].append(edge.source)
    found: set[str] = set()
    todo = list(heavy)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += callers[name]
    return found


def _depths(calls: Iterable[Edge], picked: Sequence[str]) -> dict[str, int]:
    """Return the number of nested calls from the outermost picked node to each picked one, along picked callers."""
    inner = set(picked)
    callees: dict[str, list[str]] = defaultdict(list)
    called: set[str] = set()
    for edge in calls:
        if {edge.source, edge.target} <= inner and edge.source != edge.target:
            callees[edge.source].append(edge.target)
            called.add(edge.target)
    depths: dict[str, int] = {}
    # Families of a circle of calls are all called: the one found first leads.
    for start in [*(i for i in picked if i not in called), *picked]:
        if start in depths:
            continue
        depths[start] = 0
        todo = [start]
        for caller in todo:
            below = depths[caller] + 1
            for callee in callees[caller]:
                if callee not in depths:
                    todo.append(callee)
                depths[callee] = min(below, depths.get(callee, below))
    return depths


def _page(depths: Mapping[str, int]) -> int:
    """Return the greatest call depth at which all nodes fit on one page."""
    ordered = sorted(depths.values())
    return max((d for d in ordered if bisect_right(ordered, d) <= PAGE), default=0)


def _flow(grouped: GraphView, picked: Collection[str], shown: Collection[str]) -> tuple[Edge, ...]:
    """Return the data arrows between shown nodes; a path through nodes not picked becomes a single arrow."""
    place = {n.id: i for i, n in enumerate(grouped.nodes)}
    handed: dict[str, list[Edge]] = defaultdict(list)
    for edge in grouped.flow:
        handed[edge.source].append(edge)
    found: dict[tuple[str, str], int] = {}
    for source in shown:
        seen: set[str] = set()
        todo = list(handed[source])
        while todo:
            target, count = todo[0].target, todo.pop(0).count
            if target in shown and target != source:
                found[source, target] = max(count, found.get((source, target), 0))
            elif target not in picked and target not in seen:
                seen.add(target)
                todo += handed[target]
    ordered = sorted(found, key=lambda pair: (place[pair[0]], place[pair[1]]))
    return tuple(Edge(*pair, found[pair]) for pair in ordered)


def _add_numbers(node: Node, graph: CallGraph, costs: ModuleNumbers, link: str | None) -> Node:
    ran = next((p for p in node.instances if p in graph.call_counts), node.instances[0])
    return replace(
        node,
        calls=costs.calls(node.instances, node.calls),
        params=costs.inside("params", node.instances),
        flops=costs.inside("flops", node.instances),
        moved=costs.inside(MOVED, node.instances),
        whole=costs.inside("flops", [ROOT]),
        experts=", ".join(dict.fromkeys(costs.experts[p] for p in node.instances if p in costs.experts)),
        inputs=_tensor_labels(graph.input_metadata.get(ran, ())),
        outputs=_tensor_labels(graph.output_metadata.get(ran, ())),
        link=_fill_link(link or "", ran, node.class_name),
    )


def _fill_link(link: str, path: str, class_name: str) -> str:
    """Return a link with path and class inserted, quoted so that they cannot change the address it leads to."""
    names = {"{path}": path, "{class}": class_name}
    return re.sub(r"\{(path|class)\}", lambda m: quote(names[m.group()], errors="backslashreplace"), link)


def _tensor_labels(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(
        f"[{', '.join(map(str, v.shape))}] {v.dtype}"
        for v in values
        if isinstance(v, TensorAt) and v.call == 1 and v.kind == "tensor"
    )


def _notes(drawn: Drawable, graph: CallGraph) -> list[str]:
    said = []
    if not graph.data_edges:
        said.append("there is no data flow: series are guessed from the order of calls and the shapes")
    if not isinstance(drawn, Capture):
        said.append("a callgraph alone: no parameters and no FLOPs")
    steps = sum(1 for e in graph.events if e.name == "decode_step")
    every = drawn.workload.new_tokens if isinstance(drawn, _TOLD) else 0
    if 0 < steps < every:
        said.append(f"counts beside arrows are of {steps} traced decode steps, all others of {every}")
    return said


def _contradictions(found: Sequence[str]) -> list[str]:
    more = len(found) - _MOST
    return [f"contradiction: {p}" for p in found[:_MOST]] + ([f"and {more} more contradictions"] if more > 0 else [])


def contradictions(graph: CallGraph) -> list[str]:
    """Return the contradictions between the counts and events of a callgraph, one sentence each; or empty.

    Calls must be as many as events that enter the module, and calls by callers as many as nested enters. Events
    that are cut off cover a part of the run and bound the counts from below.
    """
    said: list[str] = []
    calls = list(recorded_calls(graph.events))
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


def mark_contradictions(capture: Capture) -> list[str]:
    """Return a sentence for each stage call counted with another number of inputs than the events recorded.

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
