"""Provide the Python interface: one function per command, of the same name.

The command line calls nothing else. A run is configured by keywords, or by a
:class:`~costproof.run.request.RunRequest` that keywords override: ``config`` (a configuration file), ``preset`` and the
settings of the target (``costproof.settings(target)`` lists them) or ``workload``, ``sources``, ``run`` (``"meta"``,
``"cpu"``, ``"cuda"``), ``weights`` (``"random"`` or the folder of a checkpoint), ``seed``, ``layers``, ``profile``
(timed runs), ``convention`` (``"fvcore-macs"``), ``all_calls`` (record the shapes of every call of a module), ``peaks``
(find peaks of live activations), ``counters`` (names, or ``"all"``), ``rules`` (Python files with operator rules, which
are executed), ``trust_remote_code``, ``no_cache`` (export again). ``None`` leaves the default. Messages name keywords
as the command line does: ``--text-tokens`` is ``text_tokens``. ``progress`` is called with the phase (the name of a
source, or load, counters, compare, write), the steps done, and the total.

All functions may be called from several threads. Tracing (``capture``, ``report``, ``count``, ``derive``) changes state
of the process, such as torch's default dtype, so it runs one call at a time; meanwhile other code of the process should
not build or run models.

Functions on files and captures are defined here; those that make a run are in :mod:`costproof.run`, which is imported
when one of them is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger import notebook
from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.environment import VERSION
from costproof.ledger.errors import no_such

if TYPE_CHECKING:
    from costproof.estimate.hardware import Device
    from costproof.estimate.hardware import machine as machine
    from costproof.estimate.hardware import machines as machines
    from costproof.models.registry import TargetFactory
    from costproof.models.target import NamedWorkload
    from costproof.opgraph.rules.registry import RuleInfo
    from costproof.opgraph.rules.registry import operator_rule as operator_rule
    from costproof.plugins import Plugin
    from costproof.reports.outputs import formats as formats
    from costproof.reports.report import Report as Report
    from costproof.run.capture import count as count
    from costproof.run.claims import check as check
    from costproof.run.counters import counters as counters
    from costproof.run.diff import diff as diff
    from costproof.run.doctor import doctor as doctor
    from costproof.run.fits import fits as fits
    from costproof.run.gate import gate as gate
    from costproof.run.graph import drawable as drawable
    from costproof.run.graph import graph as graph
    from costproof.run.graph import operator_graph as operator_graph
    from costproof.run.graph import operators as operators
    from costproof.run.measure import measure as measure
    from costproof.run.measure import measure_machine as measure_machine
    from costproof.run.peaks import peaks as peaks
    from costproof.run.plot import plot as plot
    from costproof.run.prepare import workload as workload
    from costproof.run.proof import derive as derive
    from costproof.run.proof import prove as prove
    from costproof.run.proof import verify as verify
    from costproof.run.report import capture as capture
    from costproof.run.report import explain as explain
    from costproof.run.report import report as report
    from costproof.run.request import RunRequest as RunRequest
    from costproof.run.request import request as request
    from costproof.run.request import settings as settings
    from costproof.run.request_file import read_request as read_request
    from costproof.run.request_file import request_text as request_text
    from costproof.run.roofline import roofline as roofline
    from costproof.run.schemas import schemas as schemas
    from costproof.run.stored import stored as stored
    from costproof.run.sweep import sweep as sweep
    from costproof.views.frames import frame as frame

_LAZY: Final = {
    "estimate.hardware": "machine machines",
    "opgraph.rules.registry": "operator_rule",
    "reports.outputs": "formats",
    "reports.report": "Report",
    "run.capture": "count",
    "run.claims": "check",
    "run.counters": "counters",
    "run.diff": "diff",
    "run.doctor": "doctor",
    "run.fits": "fits",
    "run.gate": "gate",
    "run.graph": "drawable graph operator_graph operators",
    "run.measure": "measure measure_machine",
    "run.peaks": "peaks",
    "run.plot": "plot",
    "run.prepare": "workload",
    "run.proof": "derive prove verify",
    "run.report": "capture explain report",
    "run.request": "RunRequest request settings",
    "run.request_file": "read_request request_text",
    "run.roofline": "roofline",
    "run.schemas": "schema_names schemas",
    "run.stored": "stored",
    "run.sweep": "sweep",
    "views.frames": "frame",
}
"""Names of the API that are imported when first used, by their module below ``costproof``."""
_MODULE_OF: Final = {name: module for module, names in _LAZY.items() for name in names.split()}

__version__ = VERSION
# Set through globals(): type checkers then export the imports above, and each lazy name occurs once in a table.
globals()["__all__"] = sorted({*_MODULE_OF} - {"schema_names"} | {
    "__version__", "compare", "families", "ops", "read", "render", "schema", "stages", "targets", "workloads",
})  # fmt: skip

Path_ = str | os.PathLike[str]


def _display(value: object, format: notebook.DisplayFormat) -> str:  # noqa: A002
    from costproof.reports.html.notebook import display

    return display(value, format)


notebook.display = _display


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'costproof' has no attribute {name!r}")
    return getattr(import_module(f"costproof.{_MODULE_OF[name]}"), name)


def targets() -> dict[str, Plugin[TargetFactory]]:
    """Return the models that can be counted, by name, without plug-ins that fail to load."""
    from costproof.models.registry import TARGETS

    return TARGETS.listed()


def families() -> tuple[str, ...]:
    """Return the names of model families; published models of a family (``llama-3.1-8b``) are not included."""
    from costproof.models.known import KNOWN

    known = {k.name for k in KNOWN}
    return tuple(name for name in targets() if name not in known)


def workloads(target: str) -> tuple[NamedWorkload, ...]:
    """Return the named workloads of a target."""
    from costproof.models.registry import target_factory

    return target_factory(target).presets()


def stages(target: str, *, config: Path_ | None = None) -> tuple[str, ...]:
    """Return the names of a target's stages in order."""
    from costproof.models.registry import load_target
    from costproof.run.count_lock import count_lock

    with count_lock():
        return load_target(target, None if config is None else Path(config)).info().stages


def claimed_target(claims: Path_) -> str | None:
    """Return the target that a claims file names, or ``None``.

    Raises:
        BadInput: it is not a claims file.
    """
    from costproof.claims import read_claims

    return read_claims(Path(claims)).target or None


def counter_names() -> tuple[str, ...]:
    """Return the names of third-party counters without loading them."""
    from costproof.tracers.counters.protocol import COUNTERS

    return tuple(COUNTERS.all())


def read(path: Path_) -> Capture:
    """Read a capture and check it.

    Args:
        path: the file, or a folder of reports with a ``capture.json``.

    Raises:
        BadInput: the file is not a complete capture of a supported version, or the folder has files of two runs.
    """
    from costproof.views.manifest import capture_file

    return read_capture(capture_file(Path(path)))


def compare(capture: Capture | Path_, *, on: Path_ | Device | None = None) -> Report:
    """Compare the sources of a capture, without torch.

    Args:
        capture: a capture, its file, or a folder of reports.
        on: a device whose roofline the page of the report shows; see :func:`roofline`.
    """
    from costproof.reports.report import Report

    found = capture if isinstance(capture, Capture) else read(capture)
    if on is None:
        return Report(found)
    from costproof.estimate.links import devices_in
    from costproof.parametric.targets import with_nodes
    from costproof.run.roofline import roofline

    return Report(with_nodes(found, devices_in(on)), roofline=roofline(found, on=on))


def render(capture: Capture | Path_, format: str, *, on: Path_ | Device | None = None) -> str:  # noqa: A002  (its option)
    """Return the text of a capture in a format such as ``"static-md"``; ``costproof.formats()`` lists the formats."""
    return compare(capture, on=on).render(format)


def ops(pattern: str = "*") -> tuple[RuleInfo, ...]:
    """Return the operator rules whose operator matches a glob."""
    from fnmatch import fnmatchcase

    from costproof.opgraph.rules.registry import rule_table

    return tuple(r for r in rule_table() if fnmatchcase(r.operator, pattern))


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, such as ``"capture"``.

    Files that people write are ``"claims.yaml"``, ``"policy.yaml"`` and ``"request.yaml"``; the suffix may be omitted
    if no other kind has the name.

    Raises:
        BadInput: there is no such kind.
    """
    from costproof.run.schemas import schema_names, schema_of

    short = name.removesuffix(".json").removeprefix("costproof/")
    if short not in schema_names() and f"{short}.yaml" in schema_names():
        short += ".yaml"
    if short not in schema_names():
        raise no_such("kind of file", name, schema_names())
    return schema_of(short)
