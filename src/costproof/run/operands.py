"""Read the operands of a diff, gate or estimate: a file, a file in git, or a target with settings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from costproof.configs.config import KEYS_IN_FILE, key_named, keys_of
from costproof.estimate.links import mean_of_experts
from costproof.estimate.routing import (
    ROUTINGS,
    RoutedRank,
    apply_routing,
    has_experts,
    is_table,
    no_formulas_error,
    stored_routing,
)
from costproof.ledger.baseline import Baseline, Folded, fold_capture
from costproof.ledger.capture import Capture, without_uncalled_stages
from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput, Recount, check_recounts, no_such
from costproof.ledger.mesh import DISPATCH, PAIRS, PLAN, RANK
from costproof.ledger.node import Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import ROWS, Workload
from costproof.models.generic.address import CONFIGURATION, names_function
from costproof.models.native import stored_formulas
from costproof.models.registry import TARGETS, load_target
from costproof.models.specs import RUNS_ALL
from costproof.models.target import Exportable, Target, WithKeys, sharded
from costproof.opgraph.rules.files import Files
from costproof.parametric.targets import GivenRank, count_given, evaluate_formulas, whole_prompt
from costproof.parametric.time_checks import (
    all_load_recounts,
    load_recounts,
    mean_recounts,
    ranks_of_experts,
    touched_recounts,
)
from costproof.run.count_lock import count_lock
from costproof.run.graph_limits import GraphRun
from costproof.run.operand_files import OperandInput, file_at, is_revision
from costproof.run.request import build_workload, request, settings
from costproof.snapshots.described import module_kinds
from costproof.tracers.cache import check_configuration_file


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a command such as diff or roofline: its baseline and, if known, the target that it is about."""

    baseline: Baseline
    target: WithKeys | None
    """The target with the baseline's configuration, to evaluate other settings; ``None`` if no formulas describe it."""
    counted: bool = False
    """Whether the numbers come from the formulas of this costproof, and not from a file."""
    exported: GraphRun | None = None
    """The run that was counted by exported graphs because the target has no formulas."""
    peaks: tuple[CallPeaks, ...] = ()
    """Peaks of live activations, if the operand is a capture with peaks."""
    origin: Target | None = None
    """The target that was counted; ``None`` if the operand is a file."""
    runs_all: bool = False
    """Whether the model class runs all experts for every token, although the configuration names fewer."""


def read_operand(
    given: OperandInput,
    config: str | os.PathLike[str] | None = None,
    *,
    rules: Files = (),
    trust_remote_code: bool = False,
    by_graph: bool = False,
    progress: Progress = silent,
) -> Operand:
    """Read one operand of a command: a baseline or capture from a file or git, or a target with settings.

    Args:
        given: see :data:`~costproof.run.operand_files.FORMS`; the name of a registered target takes precedence over a
            file of that name.
        config: a configuration file, for a target.
        rules: Python files with operator rules, which are executed, for a target.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        by_graph: count a target by its exported graph even if it has formulas.
        progress: is told how far exports are.

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
            return _count_target(text, config, trust_remote_code, by_graph, progress)
    if config is not None:
        raise BadInput("only a target takes a configuration file", where=text, got=os.fspath(config))
    return _of_file(*file_at(text))


def on_devices(found: Operand, given: OperandInput, count: int, read: Callable[[OperandInput], Operand]) -> Operand:
    """Return an operand for a number of devices; a target that names no mesh and can be split gets a ``tp`` of it.

    Args:
        found: the operand as it was read.
        given: what names it.
        count: number of devices.
        read: function that reads it.
    """
    one = found.baseline.workload.mesh.one
    if count == 1 or not one or not isinstance(given, str) or sharded(found.target) is None:
        return found
    found = read(f"{given},tp={count}")
    check_recounts([Recount("", "a run without a mesh", "tp", found.baseline.workload.mesh.tp, count)])
    return found


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
    preset, *pairs = _with_paths(rest.removeprefix("@").split(",")) if rest else [""]
    if "=" in preset.partition(":")[0]:
        fix = f"{name},{rest[1:]} for the default workload, {name}@PRESET,{rest[1:]} for another: costproof workloads"
        expected = "a preset, and the settings after commas"
        raise BadInput("a setting is in the place of a preset", where=text, expected=expected, got=preset[:80], fix=fix)
    target = load_target(name, None if config is None else Path(config), trusted=trusted)
    known = {s.name for s in settings(name)}
    workload: dict[str, str] = {}
    keys: dict[str, Any] = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not equals and (last := next(reversed(workload), "")) in (ROWS, PAIRS):  # which commas divide, too
            workload[last] += f",{pair}"
            continue
        if not equals:
            raise BadInput("this is not a setting", where=text, expected="NAME=VALUE", got=pair[:80])
        setting = option.replace("-", "_")
        of_run = setting in known
        if of_run:
            key = setting
        elif isinstance(target, WithKeys):
            key = key_named(target.config, option, text)
        else:
            raise no_such("setting", option[:80], sorted(known), where=text, fix=KEYS_IN_FILE)
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


def _with_paths(parts: list[str]) -> list[str]:
    """Return the parts of an operand between commas, with those joined that are the path of one file."""
    found: list[str] = []
    while parts:
        setting, _, path = parts[0].partition("=")
        ends = range(len(parts), 1, -1) if setting in (PAIRS, PLAN) else ()
        last = next((i for i in ends if os.path.exists(",".join((path, *parts[1:i])))), 1)
        found.append(",".join(parts[:last]))
        parts = parts[last:]
    return found


def read_routed(
    target: OperandInput, routing: str | os.PathLike[str], read: Callable[[OperandInput], Operand]
) -> tuple[Operand, str]:
    """Read an operand of which a routing is given, and return the file of its routing; empty without one.

    On a mesh whose ranks have batches of their own a routing file is the one that ``--pairs`` names, so both are one
    setting: the run has it, whichever option names it.

    Args:
        routing: ``bound``, ``uniform``, or a file.

    Raises:
        BadInput: the run has another routing already, or sends pairs, whose numbers uniform routing does not give.
    """
    file = "" if routing in ROUTINGS else os.fspath(routing)
    exchanges = isinstance(target, str) and bool(file) and f",{DISPATCH}=all-to-all" in target
    if exchanges and f",{PAIRS}=" not in str(target):  # which needs the pairs to be read at all
        return read(f"{target},{PAIRS}={file}"), stored_routing(file)
    found = read(target)
    mesh, known = found.baseline.workload.mesh, str(found.baseline.workload.inputs.get(PAIRS, ""))
    if routing == "uniform" and known:
        what = f"--{PAIRS} gives this run another routing"
        fix = f"leave out {'--routing' if DISPATCH in found.baseline.workload.inputs else f'--routing, or --{PAIRS}'}"
        raise BadInput(what, where="--routing", expected="a run without it", got=known[:160], fix=fix)
    if known and (is_table(known) or mesh.ep == 1):
        known = ""
    if not file or mesh.ep == 1:
        return found, known if routing == "bound" else ""
    stored = stored_routing(file)
    if known and known.partition(" sha256:")[2] != stored.partition(" sha256:")[2]:
        what = "two routings of one run"
        raise BadInput(what, where=f"--routing, --{PAIRS}", expected="one of them", got=f"{known}, {stored}"[:160])
    if mesh.batches > 1 and not known and isinstance(target, str):
        found = read(f"{target},{PAIRS}={file}")
    return found, stored


@dataclass(frozen=True, slots=True)
class GivenRouting:
    """A routing file of a run on a mesh with ``ep``, and the target whose ranks it is counted for."""

    target: WithKeys | None
    routing: str
    """As :func:`~costproof.estimate.routing.stored_routing` returns it."""
    node: int | None
    """Number of devices per node; ``None`` for one node."""

    def of_rank(self, workload: Workload, folded: Folded | None = None) -> GivenRank:
        """Return the counts of a rank under this routing.

        Raises:
            BadInput: the routing does not match the run, or no formulas describe it.
        """
        target = sharded(self.target)
        if target is None or self.target is None:
            raise no_formulas_error()
        if folded is None:
            folded = baseline_by_formulas(self.target, workload).sources["analytic"]
        found, whole = count_given(target, workload, folded, self.routing, self.node), whole_prompt(target, workload)
        of_rank = found.folded, found.experts, found.loads
        check_recounts(load_recounts(folded, *of_rank, whole, target.info().symbols, self.routing))
        return found

    def loads(self, workload: Workload) -> tuple[RoutedRank, ...]:
        """Return the loads of all ranks, stage by stage."""
        ranks = [replace(workload, inputs={**workload.inputs, RANK: rank}) for rank in range(workload.mesh.world)]
        found = [load for run in ranks for load in self.of_rank(run).loads]
        stages = {load.stage: i for i, load in reversed([*enumerate(found)])}
        check_recounts(all_load_recounts(found, whole_prompt(self.target, workload), self.routing))
        return tuple(sorted(found, key=lambda load: (stages[load.stage], load.rank)))


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """A routing of the tokens of each rank by itself, and the target whose ranks it is counted for.

    It is uniform, or a file of a rank that holds all experts.
    """

    target: WithKeys | None
    routing: str | os.PathLike[str]

    def of_rank(self, workload: Workload, folded: Folded | None = None) -> GivenRank:
        """Return the counts of a rank under this routing.

        Raises:
            BadInput: the routing does not match the run, or no formulas describe it.
        """
        if self.target is None:
            raise no_formulas_error()
        if folded is None:
            folded = baseline_by_formulas(self.target, workload).sources["analytic"]
        before, ledger = mean_counts(folded, workload), stored_formulas(self.target, workload)
        if not has_experts(ledger) and any(map(has_experts, self._of_stages(self.target, workload))):
            return GivenRank(before, (), ())  # other stages of the pipeline have them
        symbols = self.target.info().symbols
        sizes = {(c.stage, c.id): {**symbols, **c.symbols} for c in self.target.invocations(workload)}
        after, _, experts = apply_routing(before, ledger, sizes, self.routing)
        check_recounts(touched_recounts(ledger, sizes, experts, before, after, self.routing, workload))
        return GivenRank(after, experts, ())

    @staticmethod
    def _of_stages(target: WithKeys, workload: Workload) -> Iterator[Ledger]:
        """Yield the formulas of the first rank of each stage of a pipeline."""
        mesh = workload.mesh
        for first in range(0, mesh.world, mesh.world // mesh.pp) if mesh.pp > 1 else ():
            yield stored_formulas(target, replace(workload, inputs={**workload.inputs, RANK: first}))


def mean_counts(folded: Folded, workload: Workload) -> Folded:
    """Return the counts of a rank with the mean rows of routed experts, checked against an independent second count.

    They are unchanged if the workload gives the rows of each rank.
    """
    if (ranks := ranks_of_experts(workload)) == 1:
        return folded
    check_recounts(mean_recounts(folded, found := mean_of_experts(folded, ranks), workload))
    return found


def _count_target(
    text: str, config: str | os.PathLike[str] | None, trusted: bool, by_graph: bool, progress: Progress
) -> Operand:
    """Return the operand of a target, counted by its formulas or, without formulas, by its exports."""
    target, work = target_with_settings(text, config, trusted=trusted)
    if by_graph or not isinstance(target, WithKeys):
        return export_target(target, work, progress)
    return Operand(baseline_by_formulas(target, work), target, counted=True, origin=target)


def baseline_by_formulas(target: WithKeys, work: Workload) -> Baseline:
    """Return the baseline of a run, counted by the target's formulas."""
    check_configuration_file(target)
    calls = target.invocations(work)
    info, ledgers = without_uncalled_stages(target.info(), calls, (evaluate_formulas(target, work),))
    return fold_capture(Capture(target.conventions(work), info, work, environment(), calls, ledgers))


def export_target(target: Target, work: Workload, progress: Progress = silent) -> Operand:
    """Return the operand of a run that is counted by its exported graphs.

    Raises:
        Incomplete: torch is missing, or an export failed.
    """
    from costproof.run.capture import count_sources  # loads the tracers
    from costproof.run.prepare import Prepared

    require("trace", "counting by an exported graph")
    found = count_sources(Prepared(target, work, ("static",)), progress).capture
    if not found.modules and isinstance(target, Exportable):  # of a family: held against a model by part
        found = replace(found, modules=module_kinds(target.build(work)))
    run = None
    if isinstance(target, Exportable):
        run = GraphRun(target, work, found.ledger("static"), progress=progress)
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
    """Return the target of a baseline with its configuration; ``None`` if this version has no formulas for it."""
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
