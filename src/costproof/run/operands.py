"""Read the operands of a diff, gate or estimate: a file, a file in git, or a target with settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from costproof.algebra.conditions import Condition
from costproof.algebra.evaluation import evaluate
from costproof.algebra.identity import free_symbols
from costproof.algebra.symbols import parse
from costproof.estimate.memory import MemoryLimit, MemoryPoint
from costproof.ledger.baseline import Baseline, fold_capture
from costproof.ledger.capture import Capture, without_uncalled_stages
from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput, Incomplete, Problems, no_such
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import Workload
from costproof.models.config import key_named, keys_of
from costproof.models.generic.address import CONFIGURATION, names_function
from costproof.models.generic.described import module_kinds
from costproof.models.registry import TARGETS, load_target
from costproof.models.specs import RUNS_ALL
from costproof.models.target import Exportable, Target, WithKeys
from costproof.opgraph.rules.files import Files
from costproof.parametric.targets import evaluate_formulas
from costproof.run.count_lock import count_lock
from costproof.run.operand_files import OperandInput, file_at, is_revision
from costproof.run.request import build_workload, request, settings
from costproof.tracers.cache import check_configuration_file


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a command such as diff or roofline: its baseline and, if known, the target that it is about."""

    baseline: Baseline
    target: WithKeys | None
    """The target of its configuration, to evaluate other points; ``None``: no formulas describe it."""
    counted: bool = False
    """Whether the formulas of this costproof made the numbers."""
    exported: GraphRun | None = None
    """The run that exported graphs counted, if there are no formulas."""
    peaks: tuple[CallPeaks, ...] = ()
    """Peaks of live activations, if the operand is a capture that has them."""
    origin: Target | None = None
    """The target that was counted; ``None``: the operand is a file."""
    runs_all: bool = False
    """Whether its class runs all experts for every token, where the configuration names fewer."""


def read_operand(
    given: OperandInput,
    config: str | os.PathLike[str] | None = None,
    *,
    rules: Files = (),
    trust_remote_code: bool = False,
    by_graph: bool = False,
) -> Operand:
    """Read one operand.

    Args:
        given: see :data:`~costproof.run.operand_files.FORMS`; the name of a registered target takes precedence over a
            file of that name.
        config: a configuration file, for a target.
        rules: Python files with operator rules, which are executed, for a target.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        by_graph: count a target by its exported graph even if it has formulas.

    Raises:
        BadInput: it is none of these, or several of them, or cannot be read or counted.
        Incomplete: it has no formulas, and its export failed.
    """
    if isinstance(given, Capture | Baseline):
        baseline = given if isinstance(given, Baseline) else fold_capture(given)
        return _of_file(baseline, given if isinstance(given, Capture) else None)
    text = os.fspath(given)
    if names_target(text):
        with count_lock(rules):
            return _count_target(text, config, trust_remote_code, by_graph)
    if config is not None:
        raise BadInput("only a target takes a configuration file", where=text, got=os.fspath(config))
    return _of_file(*file_at(text))


def _of_file(baseline: Baseline, capture: Capture | None) -> Operand:
    if capture is None:
        return Operand(baseline, target_of(baseline))
    return Operand(baseline, target_of(baseline), peaks=capture.peaks, runs_all=_runs_all(capture))


def _runs_all(capture: Capture) -> bool:
    return any(note.startswith(RUNS_ALL) for ledger in capture.ledgers for note in ledger.notes)


def names_target(text: str) -> bool:
    """Return whether an operand is a target with settings rather than a file or a file in git.

    Raises:
        BadInput: it names both a function, whose code would run, and a file.
    """
    name = _name_of(text)
    if name in TARGETS.all() or name.startswith(CONFIGURATION):
        return True
    if not names_function(name):
        return False
    place, _, function = name.rpartition(":")
    in_git = not place.endswith(".py") and is_revision(place)
    if in_git or Path(text).exists():
        code = name if place.endswith(".py") else f"{place.replace('.', '/')}.py:{function}"
        read = f"{place}~0:{function}" if in_git else f"./{text}"
        run = f"the absolute path of {code}" if place.endswith(".py") else code
        raise BadInput(
            "this may name a file to read or a function to run",
            where=text[:120],
            got=f"{'a revision of git' if in_git else 'a file'}, and Python code",
            fix=f"{read} reads the file, {run} runs the function"[:300],
        )
    return True


def _name_of(text: str) -> str:
    return text.partition(",")[0].partition("@")[0]


def check_counted(rules: Files, trust_remote_code: bool, *sides: OperandInput) -> None:
    """Check that options for targets were given only if some operand is a target.

    Raises:
        BadInput: nothing is counted, and there are rules or trust.
    """
    given = {"--rules": rules != (), "--trust-remote-code": trust_remote_code}
    if any(given.values()) and not any(isinstance(s, str | os.PathLike) and names_target(os.fspath(s)) for s in sides):
        where = ", ".join(name for name, on in given.items() if on)
        fix = "leave them out: files are already counted"
        raise BadInput("these options need a target to count", where=where, expected="a target as one side", fix=fix)


def is_without_formulas(
    given: OperandInput, config: str | os.PathLike[str] | None = None, *, trust_remote_code: bool = False
) -> bool:
    """Return whether an operand is a target without formulas, without building it.

    Raises:
        BadInput: there is no such target.
    """
    if isinstance(given, Capture | Baseline) or not names_target(os.fspath(given)):
        return False
    path = None if config is None else Path(config)
    return not isinstance(load_target(_name_of(os.fspath(given)), path, trusted=trust_remote_code), WithKeys)


def target_with_settings(
    text: str, config: str | os.PathLike[str] | None = None, *, trusted: bool = False
) -> tuple[Target, Workload]:
    """Return the target and the workload of ``TARGET@PRESET,NAME=VALUE,…``, with settings and configuration keys.

    A target without formulas has no keys.

    Raises:
        BadInput: there is no such target, setting or key, or the workload is invalid.
    """
    name = _name_of(text)
    rest = text.removeprefix(name)
    preset, *pairs = rest.removeprefix("@").split(",") if rest else [""]
    target = load_target(name, None if config is None else Path(config), trusted=trusted)
    known = {s.name for s in settings(name)}
    workload: dict[str, str] = {}
    keys: dict[str, Any] = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals:
            raise BadInput("this is not a setting", where=text, expected="NAME=VALUE", got=pair[:80])
        setting = option.replace("-", "_")
        of_run = setting in known
        if of_run:
            key = setting
        elif isinstance(target, WithKeys):
            key = key_named(target.config, option, text)
        else:
            raise no_such("setting", option[:80], sorted(known), where=text)
        if key in (workload if of_run else keys):
            raise BadInput("this is set twice", where=text, expected="each name once", got=key)
        if of_run:
            workload[key] = value
        else:
            keys[key] = _value(value)
    asked = request(name, place=lambda n: f"{n} of {text}", preset=preset or None, **workload)
    if isinstance(target, WithKeys):
        target = target.with_keys(keys) if keys else target
    return target, build_workload(target, asked.workload)


def _count_target(text: str, config: str | os.PathLike[str] | None, trusted: bool, by_graph: bool) -> Operand:
    """Return the operand of a target, counted by its formulas or, without formulas, by its exports."""
    target, work = target_with_settings(text, config, trusted=trusted)
    if by_graph or not isinstance(target, WithKeys):
        return _export_target(target, work)
    return Operand(baseline_by_formulas(target, work), target, counted=True, origin=target)


def baseline_by_formulas(target: WithKeys, work: Workload) -> Baseline:
    """Return the baseline of a run, counted by the target's formulas."""
    check_configuration_file(target)
    calls = target.invocations(work)
    info, ledgers = without_uncalled_stages(target.info(), calls, (evaluate_formulas(target, work),))
    return fold_capture(Capture(target.conventions(work), info, work, environment(), calls, ledgers))


def _export_target(target: Target, work: Workload) -> Operand:
    from costproof.run.capture import count_sources  # loads the tracers
    from costproof.run.prepare import Prepared

    require("trace", "counting by an exported graph")
    found = count_sources(Prepared(target, work, ("static",))).capture
    if not found.modules and isinstance(target, Exportable):  # of a family: held against a model by part
        found = replace(found, modules=module_kinds(target.build(work)))
    run = GraphRun(target, work, found.ledger("static")) if isinstance(target, Exportable) else None
    return Operand(fold_capture(found), None, exported=run, origin=target, runs_all=_runs_all(found))


def _value(text: str) -> Any:
    """Parse the value of a configuration key: JSON, ``2+5+8`` for a list, or else text."""
    if "+" in text and all(part.isdecimal() for part in text.split("+")):
        return tuple(int(part) for part in text.split("+"))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not isfinite(value) else value


def target_of(side: Baseline) -> WithKeys | None:
    """Return the target of a baseline, with its configuration; ``None`` if it has no formulas here."""
    if side.target.name not in TARGETS.all() or side.target.implementation != "native" or side.target.config is None:
        return None
    usual = load_target(side.target.name)
    if not isinstance(usual, WithKeys):
        return None
    known = keys_of(usual.config)
    own = side.target.config
    if own.keys() != known.keys():
        return None  # written by another version, of which the formulas here know nothing
    try:
        return usual.with_keys({k: v for k, v in own.items() if v != known[k]})
    except BadInput:
        return None


_FAR: Final = 2**40
"""Upper end of the search."""
_Sizes = Mapping[tuple[str, str], Mapping[str, int]]
"""(stage, invocation) -> the values of its symbols."""


class _NotKnownError(Exception):
    """Raised if the limit of a setting cannot be determined; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class GraphRun:
    """A run whose costs are known only from exported graphs, not from formulas."""

    target: Exportable
    workload: Workload
    ledger: Ledger

    def limits(self, setting: str, held: int, room: int) -> Iterator[MemoryLimit]:
        """Yield the first value of a setting at which the cache no longer fits next to the other bytes.

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
            at = self._first(setting, own, room - held)
            if at is None:
                self._check_constant(setting, own)
                yield MemoryLimit(setting, "weights and cache", "never", None, here)
                return
            points = tuple(MemoryPoint(n, held + self._cache(setting, n)) for n in (at - 1, at) if n > 0)
            if why := self._refusal(setting, at):
                yield MemoryLimit(setting, "weights and cache", "refused", at, here, why)
                return
            self._check_graphs(setting, [p.at for p in points])
        except _NotKnownError as error:
            yield MemoryLimit(setting, "weights and cache", "not solved", None, here, str(error))
            return
        yield MemoryLimit(setting, "weights and cache", "from", at, points)

    def _sizes(self, setting: str, at: int) -> _Sizes:
        there: dict[str, Any] = {setting: at}
        return {(c.stage, c.id): c.symbols for c in self.target.invocations(replace(self.workload, **there))}

    def _refusal(self, setting: str, at: int) -> str:
        """Return the error with which the model rejects a run of this size, as text; empty if it accepts it."""
        there: dict[str, Any] = {setting: at}
        try:
            self.target.check(replace(self.workload, **there))
        except BadInput as error:
            return (error.problems[0] if isinstance(error, Problems) else error).line
        return ""

    def _cached(self) -> list[CostNode]:
        """Return the cost nodes that have a cache, also those of unknown size."""
        return [n for n in self.ledger.nodes if n.cost("kv_cache_bytes") != 0]

    def _cache(self, setting: str, at: int) -> int:
        """Return the cache bytes at a value of the setting, by the formulas of the graphs.

        Raises:
            _NotKnownError: a size is not known.
        """
        sizes = self._sizes(setting, at)
        found = 0
        for node in self._cached():
            size = node.cost("kv_cache_bytes")
            if "kv_cache_bytes" in node.exprs:
                size = evaluate(parse(node.exprs["kv_cache_bytes"]), sizes[node.stage, node.invocation])
            if size is None:
                raise _NotKnownError(f"the cache of {node.module or node.stage} is not known")
            found += size
        return found

    def _check_constant(self, setting: str, own: int) -> None:
        """Check that neither the cache nor a condition of its graphs depends on the setting.

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

    def _graphs(self) -> list[tuple[str, frozenset[str], tuple[Condition, ...]]]:
        """Return (stage, symbols, conditions) of each export with a cache."""
        from costproof.tracers.cache import cache_enabled, cached_export
        from costproof.tracers.derive.subject import size_limits

        stages = {n.stage for n in self._cached()}
        with count_lock(), cache_enabled(True):
            model = self.target.build(self.workload)
            found = []
            for job in self.target.export_jobs(model, self.workload):
                free = frozenset().union(*(free_symbols(size.symbol) for size in job.sizes))
                for stage in stages.intersection(job.stages):
                    try:
                        conditions = size_limits(cached_export(job), {})
                    except Incomplete as error:
                        raise _NotKnownError(error.line) from error
                    found.append((stage, free, conditions))
        return found
