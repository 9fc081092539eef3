"""Load the target of a request, and check everything that can be checked without tracing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costproof.ledger.environment import advice, require
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems, did_you_mean
from costproof.ledger.run import ALL_SOURCES, DEFAULT_SOURCES, GRAPH_SOURCES, RANDOM, RunOptions
from costproof.ledger.workload import Workload
from costproof.models.registry import load_target, read_address
from costproof.models.target import Exportable, Target, lacking, require_device, run_with
from costproof.plugins import OURS
from costproof.run.count_lock import count_lock
from costproof.run.request import RunRequest, build_workload
from costproof.run.request import request as build_request
from costproof.tracers.counters.protocol import COUNTERS, ON_REQUEST, not_installed
from costproof.weights.loading import shards


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run whose target is loaded and whose choices are checked."""

    target: Target
    workload: Workload
    sources: tuple[str, ...] = DEFAULT_SOURCES
    """Sources in their canonical order."""
    all_calls: bool = False
    counters: tuple[str, ...] = ()
    no_cache: bool = False
    peaks: bool = False


def prepare(request: RunRequest, loaded: Target | None = None) -> Prepared:
    """Load everything that a request names, and check that it can run here; nothing is traced.

    Args:
        loaded: the request's target, if it is loaded already.

    Raises:
        BadInput: target, configuration, options or workload are invalid, or a file or folder does not exist.
        Incomplete: the device is not available.
    """
    target = load_run_target(request) if loaded is None else loaded
    work = build_workload(target, request.workload)
    if request.counters:
        require_exportable(target)
    return Prepared(
        target,
        work,
        check_without_loading(request),
        request.all_calls,
        resolve_counters(request.counters),
        request.no_cache,
        request.peaks,
    )


def check_without_loading(request: RunRequest) -> tuple[str, ...]:
    """Check everything about a request that needs no target; return its sources in canonical order.

    Raises:
        BadInput: options are invalid, or a file or folder does not exist.
        Incomplete: the device or a counter is not available.
    """
    options = request.run
    if options.profile and "dynamic" not in request.sources:
        raise BadInput("--profile needs the dynamic source", where="--profile", expected="--sources with dynamic")
    address = read_address(request.target)
    if address.kind == "file" and not Path(address.place).is_file():
        raise BadInput("there is no such file", where=address.place, expected="FILE.py:FUNCTION")
    for file in request.rules:
        if not Path(file).is_file():
            raise BadInput("there is no such Python file", where=file, expected="a file that ends in .py")
    resolve_counters(request.counters)
    wanted = {*request.sources, *(("dynamic", "isolated") if options.convention else ())}
    if wanted & set(GRAPH_SOURCES):
        require("trace", "counting with a graph or a run", otherwise="--sources analytic counts by the formulas alone")
        check_run(options)
    return tuple(s for s in ALL_SOURCES if s in wanted)


def require_exportable(model: Target) -> Exportable:
    """Return the target if it can be exported, which third-party counters need; else raise.

    Raises:
        BadInput: it cannot be exported.
    """
    if not isinstance(model, Exportable):
        raise BadInput(
            "counters need a model whose parts can be exported",
            where=model.name,
            got=lacking(model, ("static",))["static"],
        )
    return model


def resolve_counters(asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the requested counters; ``all`` leaves out those that run only on request.

    Raises:
        BadInput: there is no such counter.
        Incomplete: a counter is not installed.
    """
    known = tuple(COUNTERS.all() if asked != ("all",) else COUNTERS.listed())
    if asked == ("all",):
        return tuple(name for name in known if name not in ON_REQUEST)
    check_names("counter", asked, known, "the list of counters")
    absent = [n for n in asked if n in not_installed()]
    if absent:
        raise Incomplete(
            "a counter is not installed", where="the list of counters", got=", ".join(absent), fix=advice("counters")
        )
    for name in asked:
        if COUNTERS.all()[name].owner != OURS:
            COUNTERS.load(name)  # report a counter that cannot be loaded before counting
    return tuple(dict.fromkeys(asked))


def check_names(what: str, asked: tuple[str, ...], known: tuple[str, ...], where: str) -> None:
    """Check that every requested name is a known one."""
    for name in asked:
        if name not in known:
            expected, fix = "of " + ", ".join(known), did_you_mean(name, known)
            raise BadInput(f"there is no such {what}", where=where, expected=expected, got=name, fix=fix)


def workload(
    target: str, preset: str | None = None, *, config: str | os.PathLike[str] | None = None, **settings: Any
) -> Workload:
    """Return a preset with overrides: ``workload("deepseek-ocr", "gundam", grid="3x2", batch=4)``.

    Raises:
        BadInput: all problems of the settings.
    """
    asked = build_request(target, config=config, preset=preset, **settings)
    with count_lock():
        return build_workload(load_run_target(asked), asked.workload)


def load_run_target(request: RunRequest) -> Target:
    """Load the target of a request, with the request's run options.

    Raises:
        BadInput: it cannot be loaded, or does not support the options.
    """
    config = None if request.config is None else Path(request.config)
    return run_with(load_target(request.target, config, trusted=request.trust_remote_code), request.run)


def check_run(options: RunOptions) -> None:
    """Check that the device is available, and that the folder of a checkpoint contains one.

    Raises:
        BadInput: there is no checkpoint.
        Incomplete: the device is not available.
    """
    require_device(options.device)
    if options.weights != RANDOM:
        problems: list[CostproofError] = []
        shards(Path(options.weights), problems)
        if problems:
            raise Problems(f"the checkpoint {options.weights} is incomplete", problems)
