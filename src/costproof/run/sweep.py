"""``sweep``: the analytic numbers of a target over ranges of any keys of its configuration and settings of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, CostproofError, Problems, no_such
from costproof.opgraph.rules.files import Files
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.grid import MOST_POINTS, Over, axes_from_csv, grid_axes
from costproof.parametric.typed_settings import option, typed_settings
from costproof.run.count_lock import count_lock
from costproof.run.sweeping.driver import POINTS, Sweep
from costproof.run.sweeping.graphs import SWEPT, not_in_symbols, not_swept

if TYPE_CHECKING:
    from costproof.parametric.grid import GridAxis

USUAL: Final = ("flops", "weight_bytes", "kv_cache_bytes", "output_bytes")
"""Metrics that have columns unless others are asked for."""


def sweep(
    target: str,
    over: Over | Iterable[Over] = (),
    *,
    table: str | os.PathLike[str] | None = None,
    metrics: Iterable[str] | None = None,
    stages: Iterable[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    size: int = POINTS,
    rules: Files = (),
    trust_remote_code: bool = False,
    **settings: Any,
) -> Sweep:
    """Prepare a sweep; nothing is computed before its parts, its frame or a file is asked for.

    Args:
        target: one that formulas describe.
        over: name -> values, of which all combinations are points: ``{"batch": [1, 8], "base_size": "512:1280:64"}``.
            Names that are joined by ``/`` vary in step. Several such mappings are swept one after another.
        table: a CSV file whose rows are points, after those of ``over``.
        metrics: columns, for each stage and for the whole run; those of :data:`USUAL` unless given. For
            ``graph_peak_bytes`` the target is exported, with torch, once for each form that its graphs have.
        stages: those with columns of their own; all unless given.
        config: a configuration file; the published one unless given.
        preset: of the workload, and ``settings`` on top of it, where they do not vary.
        size: points of one part; it bounds the memory.
        rules: Python files with operator rules, which are run, where points are counted by their graphs.
        trust_remote_code: whether the code of a snapshot may run.

    Raises:
        BadInput, Problems: everything that is wrong with names and values.
        Incomplete: torch is not installed, for peaks.
    """
    with count_lock(rules):  # a wrong file is told before anything is evaluated
        points = Evaluator.of(target, None if config is None else Path(config), trusted=trust_remote_code)
        products: Iterable[Over] = [over] if isinstance(over, Mapping) else over
    found: list[tuple[GridAxis, ...]] = [grid_axes(points, one) for one in products if one]
    if table is not None:
        found.append(axes_from_csv(points, Path(table)))
    problems: list[CostproofError] = []
    chosen = typed_settings(
        points.target.settings(), {k: v for k, v in settings.items() if v is not None}, option, problems
    )
    known = points.target.info().stages
    wanted = USUAL if metrics is None else tuple(dict.fromkeys(metrics))
    named = known if stages is None else tuple(dict.fromkeys(stages))
    problems += [error for metric in wanted if (error := not_swept(metric)) is not None]
    problems += not_in_symbols(found) if SWEPT in wanted else []
    problems += [no_such("stage", s, known, where="--stage") for s in named if s not in known]
    fixed = {f"setting:{name}": name for name in chosen} | ({"preset": "preset"} if preset is not None else {})
    twice = {fixed[n.variable] for product in found for axis in product for n in axis.names if n.variable in fixed}
    problems += [BadInput("this is varied, and fixed too", where=option(name)) for name in sorted(twice)]
    if not found:
        problems.append(BadInput("nothing to vary", where="--over", expected="NAME=VALUES"))
    count = sum(prod(map(len, product)) for product in found)
    if count > MOST_POINTS:
        expected = f"at most {MOST_POINTS:,}"
        problems.append(BadInput("too many points", where="--over", expected=expected, got=f"{count:,}"))
    if problems:
        raise problems[0] if len(problems) == 1 else Problems("the sweep cannot be made so", problems)
    if SWEPT in wanted:
        require("trace", "a peak of a graph")
    cells = tuple((stage, metric) for metric in wanted for stage in ("", *named))
    files = (rules,) if isinstance(rules, str | os.PathLike) else rules
    return Sweep(points, tuple(found), cells, preset, chosen, size, rules=tuple(os.path.abspath(f) for f in files))
