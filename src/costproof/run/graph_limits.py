"""Find the first batch and length at which a run no longer fits, by its formulas or a model's exported graphs.

The graphs give the bytes of the cache as expressions of their symbols. They are evaluated at the sizes of other runs,
as long as the conditions of the exports hold; beyond them another graph may run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costproof.algebra.conditions import Condition
from costproof.algebra.crossing import FAR
from costproof.algebra.evaluation import evaluate
from costproof.algebra.identity import free_symbols
from costproof.algebra.symbols import FUNCTIONS, parse, text
from costproof.compare.diff.changes import WORKLOAD
from costproof.estimate.arithmetic import CallTerm, FormulaSum, MetricTerm
from costproof.estimate.memory import HeldKind, MemoryLimit, MemoryPoint
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import PAST, Workload
from costproof.models.cache_dtype import BlockedCache
from costproof.models.target import Exportable
from costproof.parametric.run_family import SettingCurve, Threshold
from costproof.run.count_lock import count_lock

LivePeak = Callable[..., int]
"""Function that returns the largest live peak of any stage, given changed settings."""
CACHE: Final = (MetricTerm("kv_cache_bytes", lambda node: True),)
_GROWING: Final = (*CACHE, MetricTerm("output_bytes", lambda node: True))
_PAST: Final = (MetricTerm("kv_read_bytes", lambda node: node.stage == "prefill"),)
"""The cache bytes present before the prefill, which are those that the prefill reads."""
_FAR: Final = 2**40
"""Largest setting value that is searched."""
_UNEVEN: Final = re.compile(r"\b(floor|ceiling|Mod)\(")
"""Matches a function of a size that grows in steps."""
_MOST_EXPORTS: Final = 20
"""Number of values that are tried with exported graphs before a limit counts as not solved."""
_Sizes = Mapping[tuple[str, str], Mapping[str, int]]
"""Values of the symbols of each call, by (stage, invocation)."""


class _NotKnownError(Exception):
    """Raised if the limit of a setting cannot be determined; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class GraphRun:
    """A run whose costs are known only from exported graphs, not from formulas."""

    target: Exportable
    workload: Workload
    ledger: Ledger
    forms: dict[tuple[int, int, str], tuple[CallPeaks, ...] | Incomplete] = field(default_factory=dict, compare=False)
    """Memoized live peaks in symbols, by the (batch, text tokens) of the workload whose graphs were exported and the
    stage, empty for all, or why there are none.
    """
    peaks: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict, compare=False)
    """Memoized graph peaks of the stages, by (batch, text tokens)."""
    highest: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict, compare=False)
    """Memoized graph peak of the stage with the highest one, where those of other stages are lower, as :attr:`peaks`.
    """
    holding: list[tuple[str, frozenset[str], tuple[Condition, ...]]] = field(default_factory=list, compare=False)
    """Memoized result of :meth:`_graphs`."""
    confirmed: dict[str, Mapping[int, int]] = field(default_factory=dict, compare=False)
    """What :func:`~costproof.tracers.peaks.calls.released_peaks` has shown of the whole model."""
    progress: Progress = field(default=silent, compare=False)
    in_parts: bool = False
    """Whether the cache of a batch is taken as that of batch 1 for each sequence, which is then shown where it counts.
    """

    def limits(self, setting: str, held: int, room: int) -> Iterator[MemoryLimit]:
        """Yield the first setting value at which the cache and the constant bytes together exceed the memory.

        Args:
            setting: ``batch`` or ``text_tokens``.
            held: bytes that do not depend on the setting.
            room: bytes of the memory.
        """
        own: int = getattr(self.workload, setting)
        try:
            if self._sizes(setting, own) == self._sizes(setting, own + 1):
                return  # the run has no such size
        except BadInput:  # or takes no other one
            return
        here: tuple[MemoryPoint, ...] = ()
        try:
            here = (MemoryPoint(own, held + self._cache(setting, own)),)
            if held > room and not self._refusal(setting, 1):  # whatever the cache of another graph is there
                yield MemoryLimit(setting, "weights and cache", "from", 1, here if own == 1 else ())
                return
            at = self._first(setting, own, room - held)
            if at is None:
                self._check_constant(setting, own)
                yield MemoryLimit(setting, "weights and cache", "never", None, here)
                return
            points = tuple(MemoryPoint(n, held + self._cache(setting, n)) for n in (at - 1, at) if n > 0)
            if (why := self._refusal(setting, at)) and (last := self._last_accepted(setting, at)):
                here = (MemoryPoint(last, held + self._cache(setting, last)),)
                yield MemoryLimit(setting, "weights and cache", "refused", at, here, why)
                return
            if why:  # no accepted value fits
                at = self._first_accepted(setting, at)
                points = (MemoryPoint(at, held + self._cache(setting, at)),)
            self._check_graphs(setting, [p.at for p in points])
        except _NotKnownError as error:
            yield MemoryLimit(setting, "weights and cache", "not solved", None, here, str(error))
            return
        yield MemoryLimit(setting, "weights and cache", "from", at, points)

    def token_bytes(self) -> int | None:
        """Return the bytes that one more token of text adds to the cache of a sequence; ``None`` if it is not known.

        Nor is it if the cache grows unevenly, as where every fourth token is compressed with those before it.
        """
        setting, own = "text_tokens", self.workload.text_tokens
        if any(_UNEVEN.search(node.exprs.get("kv_cache_bytes", "")) for node in self._cached()):
            return None
        try:
            self._check_graphs(setting, [own, own + 1])
            more = self._cache(setting, own + 1) - self._cache(setting, own)
        except (BadInput, _NotKnownError):
            return None
        return more // self.workload.batch if more % self.workload.batch == 0 else None

    def live_limit(self, setting: str, lasting: int, room: int) -> Iterator[MemoryLimit]:
        """Yield the first setting value at which the live peak and the constant bytes together exceed the memory.

        It is solved with the peaks of the graphs in symbols. Graphs that are exported at the limit and at the value
        below it, with constant sizes, confirm it.

        Args:
            setting: as for :meth:`limits`, also ``lasting`` and ``room``.
        """
        held: HeldKind = "weights and live peak"
        own: int = getattr(self.workload, setting)
        try:
            if self._sizes(setting, own) == self._sizes(setting, own + 1):
                return
        except BadInput:
            return
        try:
            found, points = self._first_over(setting, room - lasting)
            if not points:  # no accepted value fits
                found = self._first_accepted(setting, found)
                points = (MemoryPoint(found, self._highest(setting, found)),)
                if points[0].bytes <= room - lasting:
                    raise _NotKnownError(
                        f"its graph at {found:,}, the first accepted value, contradicts that of others"
                    )
        except (_NotKnownError, Incomplete) as error:
            why = error.line if isinstance(error, Incomplete) else str(error)
            yield MemoryLimit(setting, held, "not solved", None, (), why)
            return
        points = tuple(replace(point, bytes=lasting + point.bytes) for point in points)
        why = self._refusal(setting, found)
        yield MemoryLimit(setting, held, "refused" if why else "from", found, points, why)

    def _first_over(self, setting: str, room: int) -> tuple[int, tuple[MemoryPoint, ...]]:
        """Return the first setting value whose live peak exceeds the room, and the peaks at it and just below.

        The peaks in symbols propose a value, and graphs with constant sizes below and at it decide. If they disagree,
        the model takes another branch there, and the next proposal comes from graphs in symbols that are exported at
        that value, or is halfway between values that were decided. As a cache, a peak does not shrink as a run grows.

        Raises:
            _NotKnownError: no such value is found.
            Incomplete: a graph has no peak, or none in symbols.
        """
        # A size of 1 is a number in a graph.
        symbolic = self._at("batch", max(2, self.workload.batch))
        peaks: dict[int, int] = {}
        fits, over = 0, _FAR
        for _ in range(_MOST_EXPORTS):
            found = self._propose(setting, room, symbolic, peaks)
            if not fits < found <= over:
                found = (fits + over + 1) // 2
            last = self._last_accepted(setting, found)
            ends = (found, last) if last in (0, found - 1) and not self._refusal(setting, found) else (last,)
            for at in ends:
                if at and at not in peaks:
                    peaks[at] = self._highest(setting, at, found)
                if peaks.get(at, 0) <= room:
                    break  # so do those below it
            fits = max((at for at, peak in peaks.items() if peak <= room), default=0)
            over = min((at for at, peak in peaks.items() if peak > room), default=_FAR)
            if fits == last and over in (found, _FAR):
                return found, tuple(MemoryPoint(at, peaks[at]) for at in reversed(ends) if at)
            symbolic = self._at(setting, max(2, over if over <= last else fits))
        raise _NotKnownError(f"the peaks of graphs with constant sizes contradict {_MOST_EXPORTS} proposals")

    def _propose(self, setting: str, room: int, symbolic: Workload, peaks: Mapping[int, int]) -> int:
        """Return a value at which the peak may be the first that exceeds the room.

        It is that of the peaks in symbols, of graphs of another workload. If a batch has none, as where the code loops
        over the tokens, it is that of the line through the two known peaks next to the room.

        Args:
            peaks: the known peaks by value.
        """
        if room < 0:
            return 1
        forms = self._forms(symbolic, self._leading())
        if isinstance(forms, Incomplete):
            if setting != "batch":
                raise forms
            return _on_line(peaks, room) or self.workload.batch
        calls = [(parse(call.form), call) for call in forms]

        def held(at: int) -> int:
            sizes = self._sizes(setting, at)
            return max(evaluate(form, sizes[call.stage, call.invocation]) for form, call in calls)

        below, above = 0, max(1, int(getattr(self.workload, setting)))
        while held(above) <= room:
            below, above = above, 2 * above
            if above > _FAR:
                raise _NotKnownError(f"it fits at every value tried, up to {_FAR:,}; larger ones were not looked at")
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if held(middle) > room else (middle, above)
        return above

    def _leading(self) -> str:
        """Return the stage that had the highest peak in all runs whose peaks are known, or else an empty string.

        An export in symbols takes several times as long as one with constant sizes, and a proposal needs only the
        stage that decides: the prefill of almost all runs. The peaks at the own size are part of the answer anyway.
        """
        if len(self.ledger.stages) > 1 and not self.forms:
            with suppress(Incomplete):  # then it is reported where the peaks are needed
                self.graph_peaks(self.workload)
        leading = {max(of, key=of.__getitem__) for of in self.peaks.values() if of}
        return leading.pop() if len(leading) == 1 else ""

    def _highest(self, setting: str, at: int, above: int = 0) -> int:
        """Return the largest peak of any stage at a setting value.

        Args:
            above: a larger value, whose peaks may be known. No stage has a higher peak at a smaller value, so the
                highest stage there decides alone if its peak here is not below those of the others there.
        """
        workload = self._at(setting, at)
        key = self._key(workload)
        known = self.peaks.get(self._key(self._at(setting, above)), {}) if at < above else {}
        if key in self.peaks or len(known) < 2:
            return max(self.graph_peaks(workload).values())
        first = max(known, key=known.__getitem__)
        others = [stage for stage in known if stage != first]
        found = self.highest[key] = graph_peaks(self.target, workload, self.progress, self.confirmed, (first,))
        if found[first] < max(known[stage] for stage in others):
            self.peaks[key] = found | graph_peaks(self.target, workload, self.progress, self.confirmed, others)
            return max(self.peaks[key].values())
        return found[first]

    @staticmethod
    def _key(workload: Workload) -> tuple[int, int]:
        return workload.batch, workload.text_tokens

    def _forms(self, symbolic: Workload, stage: str) -> tuple[CallPeaks, ...] | Incomplete:
        """Return the memoized peaks in symbols of graphs of a workload, or why those of this or another have none.

        Args:
            stage: the only stage whose peaks are returned; empty for all.
        """
        for known in self.forms.values():
            if isinstance(known, Incomplete):
                return known
        key = *self._key(symbolic), stage
        if key not in self.forms:
            require("trace", "the peak of a graph")
            from costproof.tracers.peaks.calls import released_forms  # imports torch

            try:
                with count_lock():
                    self.forms[key] = released_forms(self.target, symbolic, (stage,) if stage else ())
            except Incomplete as error:
                self.forms[key] = error
        return self.forms[key]

    def _last_accepted(self, setting: str, below: int) -> int:
        """Return the largest setting value below a bound that the model accepts; 0 if there is none.

        The accepted values are taken to be a range that contains the run's own value.
        """
        own: int = getattr(self.workload, setting)
        low, high = min(below - 1, own), below - 1
        if low < own and self._refusal(setting, low):
            return 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if self._refusal(setting, middle) else (middle, high)
        return low

    def _first_accepted(self, setting: str, refused: int) -> int:
        """Return the smallest accepted setting value above a refused one that is below the run's own value."""
        own: int = getattr(self.workload, setting)
        while own - refused > 1:
            middle = (refused + own) // 2
            refused, own = (middle, own) if self._refusal(setting, middle) else (refused, middle)
        return own

    def graph_peaks(self, workload: Workload) -> dict[str, int]:
        """Return :func:`graph_peaks` of this run with the batch and the tokens of a workload, memoized."""
        key = self._key(workload)
        if key not in self.peaks:
            self.peaks[key] = graph_peaks(self.target, workload, self.progress, self.confirmed)
        return self.peaks[key]

    def _at(self, setting: str, at: int) -> Workload:
        there: dict[str, Any] = {setting: at}
        return replace(self.workload, **there)

    def _sizes(self, setting: str, at: int) -> _Sizes:
        return {(c.stage, c.id): c.symbols for c in self.target.invocations(self._at(setting, at))}

    def _refusal(self, setting: str, at: int) -> str:
        """Return the error with which the model rejects a run of this size, as text; empty if it accepts it."""
        try:
            self.target.check(self._at(setting, at))
        except BadInput as error:
            return (error.problems[0] if isinstance(error, Problems) else error).line
        return ""

    def _cached(self) -> list[CostNode]:
        """Return the cost nodes that have a key/value cache, also caches of unknown size."""
        return [n for n in self.ledger.nodes if n.cost("kv_cache_bytes") != 0]

    def _cache(self, setting: str, at: int) -> int:
        """Return the cache bytes at a setting value, by the formulas of the exported graphs.

        Raises:
            _NotKnownError: a size is not known.
        """
        sizes = self._sizes(setting, at)
        found = 0
        if self.in_parts and setting == "batch":
            return at * replace(self, in_parts=False)._cache(setting, 1)
        for node in self._cached():
            size = node.cost("kv_cache_bytes")
            if "kv_cache_bytes" in node.exprs:
                size = evaluate(parse(node.exprs["kv_cache_bytes"]), sizes[node.stage, node.invocation])
            if size is None:
                raise _NotKnownError(f"the cache of {node.module or node.stage} is not known")
            found += size
        return found

    def _check_constant(self, setting: str, own: int) -> None:
        """Check that neither the cache nor any condition of its graphs depends on the setting.

        Raises:
            _NotKnownError: one of them does, so that the values that were tried are not a proof.
        """
        before, after = self._sizes(setting, own), self._sizes(setting, own + 1)
        varied = {k for call, values in before.items() for k, v in values.items() if after[call].get(k) != v}
        texts = [n.exprs["kv_cache_bytes"] for n in self._cached() if "kv_cache_bytes" in n.exprs]
        self._check_graphs(setting, [own, _FAR])
        texts += [condition.margin for *_, conditions in self._graphs() for condition in conditions]
        if varied & frozenset().union(*map(free_symbols, texts)):
            raise _NotKnownError(f"it fits at every value tried, up to {_FAR:,}; larger ones were not looked at")

    def _first(self, setting: str, own: int, room: int) -> int | None:
        """Return the first value at which the cache exceeds the room, or ``None`` if no value up to 2**40 does.

        The search doubles, then bisects: a cache does not shrink as a run grows.
        """
        below, above = 0, own
        while self._cache(setting, above) <= room:
            below, above = above, 2 * above
            if above > _FAR:
                return None
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if self._cache(setting, middle) > room else (middle, above)
        return above

    def _check_graphs(self, setting: str, places: list[int]) -> None:
        """Check that the exported graphs are valid at other values of the setting.

        Raises:
            _NotKnownError: an export has a constant in place of the setting, or one of its conditions fails.
        """
        if self.in_parts and setting == "batch":
            self._check_parts(places)
            return
        own: int = getattr(self.workload, setting)
        before, after = self._sizes(setting, own), self._sizes(setting, own + 1)
        for stage, free, conditions in self._graphs():
            for at in places:
                if at == 1 < own:
                    raise _NotKnownError(f"a graph in symbols need not be that of {setting.replace('_', '-')} 1")
                for (name, invocation), values in self._sizes(setting, at).items():
                    if name != stage:
                        continue
                    varied = {k for k, v in after[name, invocation].items() if before[name, invocation].get(k) != v}
                    if not varied <= free:
                        option = setting.replace("_", "-")
                        raise _NotKnownError(
                            f"the graph of {stage} was exported at {option} {own}, as a number; "
                            f"a run of {option} {own + 1} or more may have a symbol"
                        )
                    if unmet := next((c.text for c in conditions if not c.holds(values)), ""):
                        raise _NotKnownError(f"the graph of {stage} holds only where {unmet}")

    def _check_parts(self, places: list[int]) -> None:
        """Check that the cache that a step gets has equal parts for all sequences, at batches and at batch 1.

        Raises:
            _NotKnownError: it has not, or no step gets one.
        """
        require("trace", "the cache of a step")
        from costproof.tracers.equal_layers import truncated_by_kinds
        from costproof.tracers.peaks.calls import cache_held  # imports torch

        with count_lock():
            cut = truncated_by_kinds(self.target, self.workload)
            target = self.target if cut is None else cut[0]
            one = cache_held(target, self._at("batch", 1))
            if not one or any(cache_held(target, self._at("batch", at)) != at * one for at in places):
                raise _NotKnownError("the cache of a batch is not that of each of its sequences")

    def _graphs(self) -> list[tuple[str, frozenset[str], tuple[Condition, ...]]]:
        """Return (stage, symbols, conditions) of each export with a cache; equal layers are exported once."""
        if self.holding:
            return self.holding
        from costproof.tracers.cache import cache_enabled, cached_export
        from costproof.tracers.derive.subject import size_limits
        from costproof.tracers.equal_layers import COUNTED_FROM, truncated_by_kinds

        stages = {n.stage for n in self._cached()}
        with count_lock(), cache_enabled(True):
            target = self.target
            if any(COUNTED_FROM in note for note in self.ledger.notes) and (
                cut := truncated_by_kinds(target, self.workload)
            ):
                target = cut[0]  # the costs are those of such a graph
            found = []
            for job in target.export_jobs(target.build(self.workload), self.workload):
                free = frozenset().union(*(free_symbols(size.symbol) for size in job.sizes))
                for stage in stages.intersection(job.stages):
                    try:
                        conditions = size_limits(cached_export(job), {})
                    except Incomplete as error:
                        raise _NotKnownError(error.line) from error
                    found.append((stage, free, conditions))
        self.holding.extend(found)
        return found


def graph_peaks(
    target: Exportable,
    workload: Workload,
    progress: Progress = silent,
    confirmed: dict[str, Mapping[int, int]] | None = None,
    stages: Sequence[str] = (),
) -> dict[str, int]:
    """Return the graph peak of each stage.

    Args:
        confirmed: what was shown of the whole model at other sizes, to which this call adds.
        stages: the only stages that are looked at; empty for all.

    Raises:
        Incomplete: a peak is unknown.
    """
    require("trace", "the peak of a graph")
    from costproof.tracers.peaks.calls import released_peaks  # imports torch

    with count_lock():
        return released_peaks(target, workload, progress, confirmed, stages)


def _on_line(peaks: Mapping[int, int], room: int) -> int:
    """Return the first value beyond the room on the line through two peaks next to it, or through 0 and the only one.

    0: there is no peak, or the two are equal.
    """
    fits = sorted((at, peak) for at, peak in peaks.items() if peak <= room)
    over = sorted((at, peak) for at, peak in peaks.items() if peak > room)
    near = [*fits[-1:], *over[:1]] if fits and over else [*fits[-2:], *over[:2]]
    (low, least), (high, most) = [(0, 0), *near][-2:] if near else [(0, 0)] * 2
    return low + (room - least) * (high - low) // (most - least) + 1 if most > least else 0


def memory_limits(
    along: Mapping[str, SettingCurve],
    weights: int,
    room: int,
    kept: FormulaSum | None,
    live: LivePeak | None,
    peaks: Sequence[CallPeaks],
    unpacked: int,
) -> Iterator[MemoryLimit]:
    """Yield the first setting values that do not fit, for weights with cache, graph peaks, and a bound of activations.

    Args:
        kept: the bound of activations; ``None`` if the live peak is known.
        unpacked: bytes of an unpacked matrix, which belong to the bound and the live peak.
    """
    for setting, of in along.items():
        cache = (*CACHE, *(_PAST if of.given.get(f"{WORKLOAD}{PAST}") else ()))
        held: dict[HeldKind, list[FormulaSum]] = {
            "weights and cache": [cache],
            "weights and graph peak": list(_moments(of, peaks)),
            "weights, cache and bound": [] if kept is None else [(*cache, *kept)],
        }
        if live is not None:
            yield from _live_limit(setting, of, weights + unpacked, room, live)
        for what, sums in held.items():
            grow = [terms for terms in sums if of.depends(terms)]
            if grow:
                lasting = weights + (unpacked if what == "weights, cache and bound" else 0)
                found = min((of.first(terms, (), room - lasting) for terms in grow), key=report_order)
                if what == "weights and graph peak":
                    found = _where_graphs_hold(found, of, peaks)
                places = found.places(of.own)
                points = tuple(MemoryPoint(at, lasting + max(of.value(at, terms) for terms in sums)) for at in places)
                yield MemoryLimit(setting, what, found.outcome, found.at, points, found.why)


def block_limits(
    along: Mapping[str, SettingCurve],
    lasting: int,
    room: int,
    live: LivePeak | None,
    blocked: BlockedCache,
    workload: Workload,
    unpacked: int,
) -> Iterator[MemoryLimit]:
    """Yield the first values of settings at which the blocks of the cache, or the live peak with them, do not fit."""
    for setting, of in along.items():
        if live is not None:
            yield from _live_limit(setting, of, lasting + unpacked, room, live)

        def held(at: int, setting: str = setting) -> int:
            changed: dict[str, Any] = {setting: at}
            return lasting + blocked.held(replace(workload, **changed))

        found = of.first_over(lambda at, held=held: held(at) > room)  # type: ignore[misc]
        points = tuple(MemoryPoint(at, held(at)) for at in found.places(of.own))
        yield MemoryLimit(setting, "weights and cache", found.outcome, found.at, points, found.why)


def _live_limit(setting: str, of: SettingCurve, lasting: int, room: int, live: LivePeak) -> Iterator[MemoryLimit]:
    """Yield the first setting value at which the live peak does not fit; the peak must grow with the setting."""

    def held(at: int) -> int:
        changed: dict[str, Any] = {setting: at}
        return lasting + live(**changed)

    if not of.depends(_GROWING):
        return
    found = of.first_over(lambda at: held(at) > room)
    points = tuple(MemoryPoint(at, held(at)) for at in found.places(of.own))
    yield MemoryLimit(setting, "weights and live peak", found.outcome, found.at, points, found.why)


def _symbolic_peaks(of: SettingCurve, peaks: Iterable[CallPeaks]) -> Iterator[CallPeaks]:
    """Yield the calls whose graph peak is a formula in symbols of the run."""
    sizes = of.sizes(of.own)
    for call in peaks:
        every = (symbol for source in (call.form, *call.holds) if call.form for symbol in parse(source).free_symbols)
        if call.form and {symbol.name for symbol in every} <= sizes.get((call.stage, call.invocation), {}).keys():
            yield call


def _moments(of: SettingCurve, peaks: Iterable[CallPeaks]) -> Iterator[FormulaSum]:
    """Yield the live bytes without inputs at each moment that a symbolic graph peak is the maximum of."""
    for call in _symbolic_peaks(of, peaks):
        peak, given = parse(call.form), parse(call.given or "0")
        for moment in peak.args if peak.func == FUNCTIONS["Max"] else (peak,):
            yield (CallTerm(text(moment - given), call.stage, call.invocation),)


def _where_graphs_hold(found: Threshold, of: SettingCurve, peaks: Iterable[CallPeaks]) -> Threshold:
    """Return the threshold, marked as unproved if the conditions of the exported graphs fail around it.

    If other formulas hold there, another graph may be exported.
    """
    if found.outcome == "not solved":
        return found
    ends = found.places(of.own) if found.outcome != "never" else (of.last(FAR),)
    for at in ends:
        if at == 1 < of.own:
            return Threshold("not solved", None, f"a graph in symbols need not be that of {of.setting} 1")
        if of.regime(at) is not of.regime(of.own):
            return Threshold("not solved", None, f"other formulas hold at {of.setting} {at:,}, and maybe another graph")
        for call in _symbolic_peaks(of, peaks):
            for source in call.holds:
                if of.value(at, (CallTerm(source, call.stage, call.invocation),)) < 0:
                    return Threshold("not solved", None, f"the graph of {call.stage} holds only where {source} >= 0")
    return found


def report_order(found: Threshold) -> tuple[int, int]:
    """Return a sort key that puts unsolved thresholds first, then the smallest value."""
    return ({"not solved": 0, "from": 1, "refused": 1, "never": 2}[found.outcome], found.at or 0)
