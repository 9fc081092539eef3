"""The Python interface: capture, compare, report, explain, read. The command line is built on it alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.metrics import Metric
from costproof.ledger.run import run_options
from costproof.ledger.workload import Workload

if TYPE_CHECKING:
    from costproof.models.registry import TargetFactory
    from costproof.models.target import Target
    from costproof.plugins import Plugin
    from costproof.reports.explain import Explanation
    from costproof.reports.report import Report

SOURCES: Final = ("analytic", "static", "dynamic")
"""What counts unless somebody says otherwise."""
ALL_SOURCES: Final = (*SOURCES, "isolated")
"""``isolated`` traces every stage alone, where ``dynamic`` traces the whole model and splits the trace."""
RUN_SETTINGS: Final = ("run", "weights", "seed", "layers", "profile", "convention")

Progress = Callable[[str, int, int], None]
"""``(phase, done, total)``; phases are load, analytic, static, dynamic, isolated, compare, write."""
Path_ = str | os.PathLike[str]


def silent(phase: str, done: int, total: int) -> None:
    """No progress at all."""


def targets() -> dict[str, Plugin[TargetFactory]]:
    """The models that can be counted, by name."""
    from costproof.models.registry import TARGETS

    return TARGETS.all()


def workload(
    preset: str | None = None, *, target: str = "deepseek-ocr", config: Path_ | None = None, **settings: Any
) -> Workload:
    """A preset with changes: ``workload("gundam", grid="3x2", batch=4)``.

    Args:
        settings: ``base_size``, ``image_size``, ``grid``, ``image``, ``text_tokens``, ``seq_len``, ``new_tokens``,
            ``batch``, ``dtype``, ``attention``, ``logits``, ``experts``; ``None`` leaves the preset's value.

    Raises:
        BadInput: everything that is wrong with the settings, at once.
    """
    return _workload(_load(target, config), preset, settings)


def capture(
    target: str = "deepseek-ocr",
    *,
    workload: Workload | None = None,
    config: Path_ | None = None,
    sources: Iterable[str] = SOURCES,
    all_calls: bool = False,
    progress: Progress | None = None,
    preset: str | None = None,
    **settings: Any,
) -> Capture:
    """Count a target at a workload.

    Args:
        target: a name of :func:`targets`.
        workload: what to run; or ``preset`` and settings as for :func:`workload`.
        config: a configuration file; the published one unless given.
        sources: of analytic, static, dynamic, isolated.
        all_calls: the callgraph tells what went in and out of every call of a module, not of the first alone.
        settings: as for :func:`workload`, and how the dynamic source runs: ``run`` (``"meta"``, ``"cpu"``,
            ``"cuda"``), ``weights`` (``"random"`` or a checkpoint's folder), ``seed``, ``layers``; ``convention``:
            what else is counted (``"fvcore-macs"``, by stages alone and within the whole run); for a snapshot
            folder ``trust_remote_code=True``, which lets its code run; ``rules``: Python files with operator rules,
            which are run.

    Raises:
        BadInput: target, configuration, workload or sources are wrong.
        Incomplete: a source failed.
    """
    counted = _count(target, workload, config, sources, all_calls, None, progress or silent, preset, settings)
    return counted.capture


def _count(
    target: str,
    workload: Workload | None,
    config: Path_ | None,
    sources: Iterable[str],
    all_calls: bool,
    counters: Iterable[str] | None,
    say: Progress,
    preset: str | None,
    settings: dict[str, Any],
) -> Report:
    from costproof.models.target import run_with
    from costproof.run.capture import count_and_measure
    from costproof.run.counters import counter_names, with_counters

    wanted = _sources(sources)
    say("load", 0, 1)
    options = run_options({k: settings.pop(k, None) for k in RUN_SETTINGS})
    if options.profile and "dynamic" not in wanted:
        raise BadInput("only the dynamic source can be measured", where="--profile", expected="--sources with dynamic")
    if options.convention:
        wanted = _sources((*wanted, "dynamic", "isolated"))
    trusted = bool(settings.pop("trust_remote_code", False))
    rules = tuple(os.path.abspath(path) for path in settings.pop("rules", None) or ())
    model = run_with(_load(target, config, trusted=trusted), options)
    run = _given(model, workload, preset, settings)
    others = None if counters is None else counter_names(counters)
    say("load", 1, 1)
    from costproof.graph.rules.files import rules_from

    with rules_from(rules):
        counted = count_and_measure(model, run, wanted, say, all_calls=all_calls, rules=rules)
    return counted if others is None else with_counters(counted, model, run, others, say, rules)


def compare(capture: Capture | Path_) -> Report:
    """Compare the sources of a capture; needs no torch.

    Args:
        capture: a capture, or the file that holds one.
    """
    from costproof.reports.report import Report

    return Report(capture if isinstance(capture, Capture) else read(capture))


def report(
    target: str = "deepseek-ocr",
    *,
    out: Path_ | None = None,
    workload: Workload | None = None,
    config: Path_ | None = None,
    sources: Iterable[str] = SOURCES,
    all_calls: bool = False,
    counters: Iterable[str] | None = None,
    progress: Progress | None = None,
    preset: str | None = None,
    **settings: Any,
) -> Report:
    """Count, compare, and if ``out`` is given write the folder of reports.

    Args:
        counters: other people's counters to run beside the sources, or ``"all"``; none if ``None``.
        settings: as for :func:`capture`, and ``profile``: how often a real run is measured.

    Raises:
        BadInput, Incomplete: as :func:`capture`; and ``out`` cannot be written.
    """
    from costproof.reports.folder import check_folder
    from costproof.reports.report import write_report

    say = progress or silent
    if out is not None:
        check_folder(Path(out))
    found = _count(target, workload, config, sources, all_calls, counters, say, preset, settings)
    say("compare", 0, 1)
    found.discrepancy  # noqa: B018  (computed here, so that the phase is the comparison's)
    say("compare", 1, 1)
    if out is not None:
        write_report(found, Path(out), say)
    return found


def read(path: Path_) -> Capture:
    """Read a capture file and check it.

    Raises:
        BadInput: the file is no whole capture of a version that this costproof reads.
    """
    return read_capture(Path(path))


def explain(
    target: str,
    stage: str,
    *,
    module: str | None = None,
    metric: Metric = "flops",
    graph: Capture | None = None,
    workload: Workload | None = None,
    config: Path_ | None = None,
    preset: str | None = None,
    **settings: Any,
) -> Explanation:
    """Take one metric of a stage apart, formula by formula; needs no torch.

    Args:
        module: glob on module paths.
        graph: a capture whose graph nodes are shown beside the formulas; ignored where it is of
            another configuration or workload.

    Raises:
        BadInput: no such target, stage, metric or module.
    """
    from costproof.reports import explain as explaining
    from costproof.run.capture import count

    model = _load(target, config)
    explaining.check_stage(stage, model.info().stages)
    counted = count(model, _given(model, workload, preset, settings), ("analytic",), silent)
    fits = graph is not None and (graph.target, graph.workload) == (counted.target, counted.workload)
    return explaining.explain(counted, stage, module=module, metric=metric, graph=graph if fits else None)


def _load(target: str, config: Path_ | None, *, trusted: bool = False) -> Target:
    from costproof.models.registry import load_target

    return load_target(target, None if config is None else Path(config), trusted=trusted)


def _given(model: Target, run: Workload | None, preset: str | None, settings: dict[str, Any]) -> Workload:
    if run is None:
        return _workload(model, preset, settings)
    if preset is not None or any(v is not None for v in settings.values()):
        raise BadInput(
            "a workload and settings exclude each other",
            where=", ".join(sorted(k for k, v in {"preset": preset, **settings}.items() if v is not None)),
            fix="put the settings into costproof.workload(...)",
        )
    model.check(run)
    return run


def _workload(model: Target, preset: str | None, settings: dict[str, Any]) -> Workload:
    image = settings.get("image")
    if image is not None:
        settings = {**settings, "image": Path(image)}
    made = model.workload(preset, **settings)
    model.check(made)
    return made


def _sources(wanted: Iterable[str]) -> tuple[str, ...]:
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in asked:
        if name not in ALL_SOURCES:
            raise BadInput(
                "no such source",
                where="--sources",
                expected="of " + ", ".join(ALL_SOURCES),
                got=name,
                fix=did_you_mean(name, ALL_SOURCES),
            )
    if not asked:
        raise BadInput(
            "no source to count with", where="--sources", expected="of " + ", ".join(ALL_SOURCES), got="nothing"
        )
    return tuple(s for s in ALL_SOURCES if s in asked)
