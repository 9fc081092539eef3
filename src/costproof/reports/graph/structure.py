"""Derive facts about modules from a callgraph: kinds, calls per call of the caller, modules that never ran."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from costproof.compare.patterns import Mask, template
from costproof.ledger.callgraph import CallGraph, Event, TensorAt
from costproof.views.module_tree import below, natural

_LISTS = frozenset({"ModuleList", "ModuleDict"})
"""Container classes, which are never called themselves even if all modules in them run."""


@dataclass(frozen=True)
class CallStructure:
    """Facts derived from a callgraph without knowledge of the module names of any architecture."""

    graph: CallGraph

    @cached_property
    def order(self) -> dict[str, int]:
        """Return the position of each module's first call, or of its line in the file if there are no events."""
        entered = (e.name for e in self.graph.events if e.event == "enter")
        rest = sorted((*self.graph.call_counts, *self.graph.module_types), key=natural)
        return {path: i for i, path in enumerate(dict.fromkeys((*entered, *rest)))}

    @cached_property
    def edges(self) -> dict[tuple[str, str], int]:
        """Return the number of calls by (caller, callee), with callees in the order of their first call."""
        called = arrows(self.graph.edges, self.order)
        return dict(sorted(called.items(), key=lambda arrow: self.order[arrow[0][1]]))

    @cached_property
    def callers(self) -> dict[str, frozenset[str]]:
        """Return the callers of each module; for a module that never ran, those of its neighbours in a list."""
        found: dict[str, set[str]] = defaultdict(set)
        for caller, callee in self.edges:
            found[callee].add(caller)
        likes = {_place(path): callers for path, callers in sorted(found.items())}
        for path, top in self.idle.items():
            found[path] |= (likes.get(_place(path)) if top else None) or {self._holder(path)}
        return {path: frozenset(callers) for path, callers in found.items()}

    @cached_property
    def callees(self) -> dict[str, tuple[str, ...]]:
        """Return the modules that each module calls; callees that never ran come last."""
        found: dict[str, list[str]] = defaultdict(list)
        for caller, callee in (*self.edges, *((a, path) for path in self.idle for a in sorted(self.callers[path]))):
            found[caller].append(callee)
        return {a: tuple(b) for a, b in found.items()}

    @cached_property
    def flow(self) -> dict[str, dict[str, int]]:
        """Return how often each consumer module reads the output of each producer, by producer and consumer."""
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for (a, b), count in arrows(self.graph.data_edges, self.order).items():
            found[a][b] = count
        return dict(found)

    @cached_property
    def idle(self) -> dict[str, bool]:
        """Return the outermost modules in which nothing ran; the value says whether the enclosing module ran.

        Modules whose holder ran come first; the others follow, outermost first.
        """
        types = self.graph.module_types
        alive = {"(root)", *(around for path in self.graph.call_counts for around in _ancestors(path))}
        found: dict[str, bool] = {}
        for path in sorted(types, key=natural):
            if path in alive or types[path] in _LISTS:
                continue
            above = _ancestors(path)[1:]
            holder = next((p for p in above if p in alive or types.get(p) not in _LISTS), None)
            if holder is None or holder in alive:
                found[path] = True
            elif any(p in found for p in above):
                found[path] = False
        return dict(sorted(found.items(), key=lambda item: not item[1]))

    @cached_property
    def per_call(self) -> dict[tuple[str, str], set[int]]:
        """Return how often a single call of the caller calls the callee, as a set of counts, by (caller, callee).

        From the events; where they do not cover every call, from the counts, as evenly as they divide.
        """
        counts = self.graph.call_counts
        told = list(recorded_calls(self.graph.events))
        if Counter(call.module for call in told) == Counter(counts):
            said = (((call.module, callee), n) for call in told for callee, n in call.callees.items())
        else:
            said = ((pair, n // counts.get(pair[0], 1) or 1) for pair, n in self.edges.items())
        found: dict[tuple[str, str], set[int]] = defaultdict(set)
        for pair, n in said:
            found[pair].add(n)
        return found

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """Return the modules that ran but were not called by another module."""
        called = {b for a, b in self.edges if a != b}
        return tuple(p for p in sorted(self.graph.call_counts, key=lambda p: self.order[p]) if p not in called)

    @cached_property
    def likeness(self) -> dict[str, int]:
        """Return a kind number for each module, equal for modules of equal class, settings and submodules.

        Counts of calls do not matter, so that an expert which no token reached is like the others. Neither do
        floats (rates, scales), nor settings that only number the module (``layer_idx``).
        """
        kinds: dict[object, int] = {}
        found: dict[str, int] = {}
        inside: dict[str, list[str]] = defaultdict(list)
        for path in self.graph.module_types:
            if path != "(root)":
                inside[path.rpartition(".")[0] or "(root)"].append(path)
        for path in sorted(self.graph.module_types, key=lambda p: (p == "(root)", -p.count("."), natural(p))):
            settings = tuple(
                (k, v)
                for k, v in sorted(self.graph.constructor_params.get(path, {}).items())
                if not isinstance(v, float) and k not in self._numbering.get(unnumbered(path), ())
            )
            parts = tuple(sorted((p.rpartition(".")[2], found[p]) for p in inside[path]))
            key = (self.graph.module_types[path], settings, parts)
            found[path] = kinds.setdefault(key, len(kinds))
        return found

    @cached_property
    def _numbering(self) -> dict[Mask, frozenset[str]]:
        """Return the settings that only repeat a number of the path, such as ``layer_idx``, by path without numbers."""
        by_mask: dict[Mask, list[str]] = defaultdict(list)
        for path in self.graph.constructor_params:
            by_mask[unnumbered(path)].append(path)
        found = {}
        for mask, paths in by_mask.items():
            if len(paths) < 2:
                continue
            numbers = [template(p)[1] for p in paths]
            names = set.intersection(*(set(self.graph.constructor_params[p]) for p in paths))
            found[mask] = frozenset(
                name for name in names if _counts([self.graph.constructor_params[p][name] for p in paths], numbers)
            )
        return found

    def _holder(self, path: str) -> str:
        """Return the nearest enclosing module that has a box in the picture."""
        return next((p for p in _ancestors(path)[1:] if p in self.graph.call_counts or p in self.idle), "(root)")

    def fits(self, a: str, b: str) -> bool:
        """Return whether an output of the first call of ``a`` has the shape of an input of ``b``'s first call."""
        gave = {v.shape for v in self.graph.output_metadata.get(a, ()) if isinstance(v, TensorAt)}
        took = {v.shape for v in self.graph.input_metadata.get(b, ()) if isinstance(v, TensorAt)}
        return bool(gave & took)


class RecordedCall(NamedTuple):
    """One module call, reconstructed from the events of a callgraph."""

    module: str
    callees: Counter[str]
    """Number of calls that this call makes directly, by callee."""
    whole: bool
    """Whether the events include the end of the call."""


def recorded_calls(events: Iterable[Event]) -> Iterator[RecordedCall]:
    """Yield the calls that the events describe, innermost first."""
    stack: list[RecordedCall] = []
    for event in events:
        if event.event == "enter":
            if stack:
                stack[-1].callees[event.name] += 1
            stack.append(RecordedCall(event.name, Counter(), whole=True))
        elif event.event == "exit" and any(call.module == event.name for call in stack):
            # A module that raised has no exit: its caller's exit closes it too.
            while stack[-1].module != event.name:
                yield stack.pop()
            yield stack.pop()
    yield from (call._replace(whole=False) for call in reversed(stack))


def unnumbered(path: str) -> Mask:
    """Return a module path with its numbers replaced."""
    return template(path)[0]


def inside(graph: CallGraph, prefix: str) -> CallGraph:
    """Return the part of a callgraph at and below a module path."""
    kept = {p for p in (*graph.module_types, *graph.call_counts) if below(p, prefix)}

    def both(edges: Mapping[str, int]) -> dict[str, int]:
        known = {*graph.module_types, *graph.call_counts}
        return {f"{a}->{b}": n for (a, b), n in arrows(edges, known).items() if a in kept and b in kept}

    return replace(
        graph,
        call_counts={p: n for p, n in graph.call_counts.items() if p in kept},
        edges=both(graph.edges),
        module_types={p: c for p, c in graph.module_types.items() if p in kept},
        constructor_params={p: c for p, c in graph.constructor_params.items() if p in kept},
        events=tuple(e for e in graph.events if e.event == "mark" or e.name in kept),
        data_edges=both(graph.data_edges),
    )


def arrows(edges: Mapping[str, int], known: Container[str]) -> dict[tuple[str, str], int]:
    """Parse ``{"a->b": n}`` into pairs. A path that contains ``->`` itself is split where both halves are modules."""
    found = {}
    for text, count in edges.items():
        pairs = ((text[: m.start()], text[m.end() :]) for m in re.finditer("->", text))
        pair = next((p for p in pairs if p[0] in known and p[1] in known), None)
        if pair is not None:
            found[pair] = count
    return found


def _counts(values: Sequence[object], numbers: list[tuple[int, ...]]) -> bool:
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values) or len(set(values)) < 2:
        return False
    whole = [v for v in values if isinstance(v, int)]
    return any(len({v - n[i] for v, n in zip(whole, numbers, strict=True)}) == 1 for i in range(len(numbers[0])))


def _place(path: str) -> tuple[str, Mask]:
    """Return the path of the enclosing module, and the module's own name without numbers."""
    above, _, name = path.rpartition(".")
    return above, unnumbered(name)


def _ancestors(path: str) -> list[str]:
    """Return a module path and the paths of all enclosing modules, innermost first."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
