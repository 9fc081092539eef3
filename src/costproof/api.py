"""The Python interface: every command is a function here, of the same name. The command line calls nothing beside it.

What a run needs is chosen by keywords, or by a :class:`~costproof.run.request.RunRequest` with keywords on top:
``config`` (a configuration file), ``preset`` and the settings of the target (``costproof.settings(target)`` lists
them) or ``workload``, ``sources``, ``run`` (``"meta"``, ``"cpu"``, ``"cuda"``), ``weights`` (``"random"`` or the
folder of a checkpoint), ``seed``, ``layers``, ``profile`` (timed runs), ``convention`` (``"fvcore-macs"``),
``all_calls`` (shapes of every call of a module), ``counters`` (names, or ``"all"``), ``rules`` (Python files with
operator rules, which are run), ``trust_remote_code``. ``None`` leaves the default. Messages name them as the
command line does: ``--text-tokens`` is ``text_tokens``. ``progress`` is called with the phase (the name of a source, or
load, counters, compare, write), how much of it is done, and of how much.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.errors import BadInput, no_such
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload

if TYPE_CHECKING:
    from costproof.claims import ClaimsReport
    from costproof.compare.proof.certificate import Certificate
    from costproof.graph.rules.registry import RuleInfo
    from costproof.models.registry import TargetFactory
    from costproof.models.target import NamedWorkload, Setting
    from costproof.plugins import Plugin
    from costproof.reports.callgraph_json import Drawable
    from costproof.reports.counters import CounterReport
    from costproof.reports.explain import Explanation
    from costproof.reports.report import Report
    from costproof.run.derive import Derivation
    from costproof.run.machine import Machine
    from costproof.run.request import RunRequest
    from costproof.run.verify import Verification

Path_ = str | os.PathLike[str]


def targets() -> dict[str, Plugin[TargetFactory]]:
    """The models that can be counted, by name."""
    from costproof.models.registry import TARGETS

    return TARGETS.all()


def workloads(target: str) -> tuple[NamedWorkload, ...]:
    """The named workloads of a target."""
    from costproof.models.registry import target_factory

    return target_factory(target).presets()


def settings(target: str) -> tuple[Setting, ...]:
    """What can be chosen about a run of a target beside the preset."""
    from costproof.models.registry import target_factory

    return target_factory(target).settings()


def stages(target: str, *, config: Path_ | None = None) -> tuple[str, ...]:
    """The stages of a target, in order."""
    from costproof.models.registry import load_target

    return load_target(target, None if config is None else Path(config)).info().stages


def claimed_target(claims: Path_) -> str | None:
    """The target that a claims file names.

    Raises:
        BadInput: it is not a claims file.
    """
    from costproof.claims import read_claims

    return read_claims(Path(claims)).target or None


def workload(target: str, preset: str | None = None, *, config: Path_ | None = None, **settings: Any) -> Workload:
    """A preset with changes: ``workload("deepseek-ocr", "gundam", grid="3x2", batch=4)``.

    Raises:
        BadInput: everything that is wrong with the settings, at once.
    """
    from costproof.run.prepare import chosen, loaded

    asked = request(target, config=config, preset=preset, **settings)
    return chosen(loaded(asked), asked.workload)


def request(target: str | RunRequest, **choices: Any) -> RunRequest:
    """A run as data, checked as far as nothing has to be loaded for it.

    Raises:
        BadInput: there is no such target.
        Problems: choices that do not exist or have the wrong type, all of them.
    """
    from costproof.run.request import request as made

    return made(target, **choices)


def read_request(path: Path_, target: str | None = None) -> RunRequest:
    """A run from a YAML file, such as ``costproof report --dry-run`` prints.

    Args:
        target: in place of the file's.

    Raises:
        Problems: everything that is wrong with the file, each with its place.
    """
    from costproof.run.request_file import read_request as read_file

    return read_file(Path(path), target)


def request_text(asked: RunRequest) -> str:
    """A run as YAML, for :func:`read_request`; it is prepared first, so that the file runs.

    Raises:
        BadInput, Incomplete: it cannot run here.
    """
    from costproof.run.prepare import prepare
    from costproof.run.request_file import request_yaml

    prepare(asked)
    return request_yaml(asked)


def capture(target: str | RunRequest, *, progress: Progress | None = None, **choices: Any) -> Capture:
    """Count a target at a workload.

    Raises:
        BadInput: target, configuration, workload or sources are wrong.
        Incomplete: a source failed.
    """
    return _count(request(target, **choices), progress or silent).capture


def report(
    target: str | RunRequest, *, out: Path_ | None = None, progress: Progress | None = None, **choices: Any
) -> Report:
    """Count, compare, and if ``out`` is given write the folder of reports.

    Raises:
        BadInput, Incomplete: as :func:`capture`; and ``out`` cannot be written.
    """
    from costproof.reports.folder import check_folder
    from costproof.reports.report import write_report

    say = progress or silent
    if out is not None:
        check_folder(Path(out))
    found = _count(request(target, **choices), say)
    say("compare", 0, 1)
    found.discrepancy  # noqa: B018  (computed here, so that the phase is the comparison's)
    say("compare", 1, 1)
    if out is not None:
        write_report(found, Path(out), say)
    return found


def _count(asked: RunRequest, say: Progress) -> Report:
    from costproof.run.capture import count
    from costproof.run.counters import with_counters
    from costproof.run.prepare import prepare

    say("load", 0, 1)
    prepared = prepare(asked)
    say("load", 1, 1)
    found = count(prepared, say)
    return with_counters(found, prepared, say) if prepared.counters else found


def read(path: Path_) -> Capture:
    """Read a capture and check it.

    Args:
        path: the file, or a folder of reports, which has it as ``capture.json``.

    Raises:
        BadInput: the file is not a whole capture of a version that this costproof reads.
    """
    file = Path(path)
    if file.is_dir():
        file /= "capture.json"
        if not file.is_file():
            raise BadInput(
                "the folder holds no capture",
                where=str(path),
                expected=file.name,
                fix="costproof report TARGET -o DIR writes one",
            )
    return read_capture(file)


def compare(capture: Capture | Path_) -> Report:
    """Compare the sources of a capture; needs no torch.

    Args:
        capture: a capture, the file that holds one, or a folder of reports.
    """
    from costproof.reports.report import Report

    return Report(capture if isinstance(capture, Capture) else read(capture))


def render(capture: Capture | Path_, format: str) -> str:  # noqa: A002  (the option is called so)
    """A capture as the text of a format, such as ``"static-md"``; ``costproof.formats()`` names them all."""
    return compare(capture).render(format)


def drawable(path: Path_) -> Drawable:
    """Read what :func:`graph` draws: a capture or a folder of reports, or a ``callgraph.json``, old ones too.

    Raises:
        BadInput: the file is neither, or of a version that this costproof does not read.
    """
    from costproof.reports.callgraph_json import read_drawable

    return read(path) if Path(path).is_dir() else read_drawable(Path(path))


def graph(
    capture: Drawable | Path_,
    kind: str = "svg",
    *,
    depth: int | None = None,
    stage: str | None = None,
    prefix: str | None = None,
    heavy: bool = False,
    link: str | None = None,
) -> str:
    """The callgraph of a capture as a picture: modules in families, and how they repeat.

    Args:
        capture: or a callgraph that was written apart, which has no numbers beside its calls.
        kind: ``"svg"``, ``"dot"`` or ``"mmd"``.
        depth: calls below the outermost modules; what fits on a page if ``None``.
        stage: only modules that work in this stage, with its costs.
        prefix: only this module and what is inside it.
        heavy: only modules with matmul-like work, and those that lead to them.
        link: where a click leads; ``{path}`` and ``{class}`` are filled in.

    Raises:
        BadInput: no such kind, stage or module.
        Incomplete: the capture has no callgraph.
    """
    from costproof.reports.graph.choice import Choice
    from costproof.reports.graph.view import graph_view
    from costproof.reports.outputs import variants

    known = variants("graph")
    if kind not in known:
        raise BadInput("no such kind of picture", where=kind, expected="one of " + ", ".join(known))
    found = drawable(capture) if isinstance(capture, str | os.PathLike) else capture
    return known[kind].text(graph_view(found, Choice(depth, stage, prefix, heavy, link)))


def explain(
    target: str | RunRequest | Capture,
    stage: str,
    *,
    module: str | None = None,
    metric: str = "flops",
    graph: Capture | None = None,
    **choices: Any,
) -> Explanation:
    """Break down one metric of a stage by formula; needs no torch.

    Args:
        target: what to run; or a capture, which has its own formulas and graphs.
        module: glob on module paths.
        graph: a capture whose graph nodes are shown beside the formulas; ignored where it is of
            another configuration or workload.

    Raises:
        BadInput: no such target, stage, metric or module.
    """
    from costproof.reports.explain import check_stage
    from costproof.reports.explain import explain as explained

    if isinstance(target, Capture):
        return explained(target, stage, module=module, metric=metric, graph=target)
    from costproof.run.capture import count
    from costproof.run.prepare import prepare

    prepared = prepare(request(target, **{**choices, "sources": ("analytic",)}))
    check_stage(stage, prepared.target.info().stages)
    counted = count(prepared).capture
    fits = graph is not None and (graph.target, graph.workload) == (counted.target, counted.workload)
    return explained(counted, stage, module=module, metric=metric, graph=graph if fits else None)


def check(
    claims: Path_, target: str | RunRequest | None = None, *, capture: Path_ | None = None, **choices: Any
) -> ClaimsReport:
    """Check the published numbers and formulas in a claims file against a target.

    Args:
        target: the file names it if ``None``.
        capture: a capture to hold the claims against, which has to be exact or explained; the formulas alone if
            ``None``.
        choices: they go before those that the file names.

    Raises:
        BadInput: the file, the target, the workload or a claim is wrong.
        Incomplete: the capture cannot be the truth.
    """
    from costproof.run.claims import check_claims

    truth = None if capture is None else Path(capture)
    return check_claims(Path(claims), target, capture=truth, **choices)


def counters(
    target: str | RunRequest,
    *,
    stages: Iterable[str] = (),
    only: Iterable[str] | None = None,
    own: Iterable[str] = (),
    seconds: int | None = None,
    memory_gib: int | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> CounterReport:
    """Run third-party FLOP counters on a target and explain the differences.

    Args:
        stages: of the target; all if empty.
        only: names of counters; all if ``None``.
        own: numbers of your own, ``"mine@sam=571.92G"``, or CSV files of them.
        seconds, memory_gib: what one counter may use.

    Raises:
        BadInput: target, stage, counter, number or workload are wrong.
        Incomplete: a counter that was asked for by name is not installed.
    """
    from costproof.run.counters import MEMORY_GIB, SECONDS, count_with_counters
    from costproof.run.prepare import prepare

    asked = request(target, **{**choices, "sources": ("analytic",)})
    names = only if only is not None else asked.counters or ("all",)
    return count_with_counters(
        prepare(request(asked, counters=names)),
        stages=stages,
        own=own,
        seconds=SECONDS if seconds is None else seconds,
        memory_gib=MEMORY_GIB if memory_gib is None else memory_gib,
        progress=progress or silent,
    )


def prove(
    target: str | RunRequest,
    *,
    config: Path_ | None = None,
    samples: int | None = None,
    seed: int | None = None,
    sides: tuple[int, int] | None = None,
    out: Path_ | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Prove that the formulas of a target equal its graphs.

    Args:
        samples: random configurations to draw.
        sides: least and most side of a view in pixels.
        out: the folder of the certificate; finished pieces are kept there, so that an interrupted proof goes on.
        jobs: processes; one per core unless given.

    Raises:
        BadInput: settings that make no proof, or a target that does not say what one ranges over.
    """
    from costproof.ledger.files import write_texts
    from costproof.reports.folder import check_folder
    from costproof.reports.outputs import variants
    from costproof.run import proof
    from costproof.run.prepare import loaded

    folder = None if out is None else Path(out)
    model = loaded(request(target, config=config))
    if folder is not None:
        check_folder(folder)
    made = proof.prove(
        model,
        samples=proof.SAMPLES if samples is None else samples,
        seed=proof.SEED if seed is None else seed,
        sides=sides,
        folder=folder,
        processes=_processes(jobs),
        progress=progress or silent,
    )
    if folder is not None:
        write_texts({folder / o.file: o.text(made) for o in variants("certificate").values()})
    return made


def verify(certificate: Path_, *, jobs: int | None = None, progress: Progress | None = None) -> Verification:
    """Repeat the proof of a certificate from its own settings, and compare.

    Raises:
        BadInput: the file is not a certificate, or about a target that is not known here.
    """
    from costproof.run.verify import verify as again

    return again(Path(certificate), processes=_processes(jobs), progress=progress or silent)


def _processes(jobs: int | None) -> int | None:
    if jobs is not None and not 1 <= jobs <= 256:
        raise BadInput("--jobs out of range", where="--jobs", expected="1 to 256", got=jobs)
    return jobs


def derive(target: str, stage: str | None = None, *, points: int = 5, rules: Iterable[Path_] = ()) -> Derivation:
    """Read the closed form of a model off its graph, and check it against fresh counts at random sizes.

    Args:
        target: a target (with ``stage``), a Hugging Face ``config.json`` or a folder with one, or
            ``module.path:factory`` of an ``nn.Module``.

    Raises:
        BadInput: there is no such target, stage, file or factory.
        Incomplete: it cannot be exported, or an operator has no cost rule.
    """
    from costproof.run.derive import derive as derived

    return derived(target, stage, points=points, rules=tuple(os.fspath(r) for r in rules))


def ops(pattern: str = "*") -> tuple[RuleInfo, ...]:
    """The operator rules whose operator matches a glob."""
    from fnmatch import fnmatchcase

    from costproof.graph.rules import rule_table

    return tuple(r for r in rule_table() if fnmatchcase(r.operator, pattern))


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file: ``"capture"``, ``"discrepancy"``, …

    Raises:
        BadInput: there is no such kind.
    """
    from costproof.ledger.schema import json_schema
    from costproof.reports.outputs import file_kinds

    kinds = file_kinds()
    short = name.removesuffix(".json").removeprefix("costproof/")
    if short not in kinds:
        raise no_such("kind of file", name, kinds)
    return json_schema(kinds[short])


def doctor() -> Machine:
    """Versions of the packages, and what can be used here; nothing heavy is imported."""
    from costproof.run.machine import doctor as examined

    return examined()
