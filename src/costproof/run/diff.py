"""Implement ``costproof.diff``: compare the cost of two operands, and attribute the difference to settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Final

from costproof.compare.diff.attribution import Point
from costproof.compare.diff.changes import FORMULA_SOURCE, WORKLOAD, differences, settings
from costproof.compare.diff.diff import Levers, StageMetric, adds_up
from costproof.compare.diff.diff import diff as compared
from costproof.compare.diff.parts import one_sided_parts
from costproof.compare.diff.types import IMPLEMENTATION, Diff
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import Bug
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import ConfigValue
from costproof.models.target import WithKeys
from costproof.opgraph.rules.files import Files
from costproof.parametric.evaluator import Evaluator, PointChoices
from costproof.parametric.exact_arrays import ExactEvaluator
from costproof.parametric.targets import BlendedTarget
from costproof.run.operand_files import OperandInput, check_cut_alike, has_parts, of_stages
from costproof.run.operands import Operand, check_counted, read_operand

FAMILY: Final = "family"
"""Name of the change of model family, which stands for all costs that no common configuration key explains."""


def diff(
    base: OperandInput,
    head: OperandInput,
    *,
    config: str | os.PathLike[str] | None = None,
    base_config: str | os.PathLike[str] | None = None,
    rules: Files = (),
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Diff:
    """Compare the costs of two operands, and attribute the difference to changed parts; formulas need no torch.

    Args:
        base: a capture, a folder of reports, a ``static_compute.json`` or a baseline (the object or its file; also
            ``REVISION:FILE`` of git), or a target with settings and configuration keys:
            ``"deepseek-ocr@gundam:2x2,batch=4,text.topk=8"``, which its formulas count. If one side has no formulas
            (``"hf:opt,seq-len=8"``, ``"model.py:make"``), the exported graphs of both count.
        head: likewise.
        config: configuration file of the head, if that is a target.
        base_config: likewise, of the base.
        rules: Python files with operator rules, which are executed, if a graph is counted.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        progress: is told how far exports of targets without formulas are.

    Raises:
        BadInput: an operand is none of these.
        Incomplete: the two have no source in common.
    """
    check_counted(rules, trust_remote_code, base, head)
    read = partial(read_operand, rules=rules, trust_remote_code=trust_remote_code, progress=progress)
    sides = read(base, base_config), read(head, config)
    if (sides[0].exported is None) != (sides[1].exported is None):
        # One side has no formulas: compare the sources that both sides have.
        given = (base, base_config), (head, config)
        one, other = (read(*g, by_graph=True) if s.counted else s for s, g in zip(sides, given, strict=True))
        sides = one, other
    old, new = (side.baseline for side in sides)
    check_cut_alike(old, new)
    if has_parts(old) != has_parts(new):
        old, new = of_stages(old), of_stages(new)
    found = compared(old, new, levers(*sides))
    for wrong in adds_up(found):
        raise Bug("a difference does not add up", where=wrong)
    return found


def levers(base: Operand, head: Operand) -> Levers | None:
    """Return the formulas with the settings that differ, each of which can be set as in base or head; else ``None``."""
    if base.target is None or head.target is None:
        return None
    old, new = base.baseline, head.baseline
    changed = differences(old, new)
    keys = tuple(c.key for c in changed.config.changed)
    another = type(base.target) is not type(head.target)
    kernels = tuple(c.key for c in changed.implementation.changed)
    if another:  # keys that only one family has change with the family
        keys = tuple(k for k in keys if all(k in (side.target.config or {}) for side in (old, new)))
    players = (*keys, FAMILY) if another else keys
    players += tuple(c.key for c in changed.workload.changed if c.key.startswith(WORKLOAD))
    models = (base.target, head.target) if another else (base.target, None)
    implementation = "attention" in kernels or "experts" in kernels
    if not players and not implementation:
        return None
    whole = frozenset({*players, *([IMPLEMENTATION] if implementation else [])})
    ends = {
        changed: _totals(side.baseline)
        for changed, side in ((frozenset[str](), base), (whole, head))
        if side.counted and not another
    }
    folded = [side.sources.get(FORMULA_SOURCE) for side in (old, new)]
    one_sided = one_sided_parts(folded[0], folded[1]) if another and folded[0] and folded[1] else None
    between = _point(models, old, new, frozenset(keys), frozenset(one_sided.owners if one_sided else ()))
    # The formulas at hand have been evaluated there: to write them as polynomials too takes as long again.
    return Levers(
        players, lambda changed: ends[changed] if changed in ends else between(changed), implementation, one_sided
    )


def _totals(side: Baseline) -> Mapping[StageMetric, int | None]:
    """Return the totals by the formulas, by (stage, metric); the total over all stages has the stage ``""``."""
    folded = side.sources[FORMULA_SOURCE]
    return {(s, m): folded.total(m, s or None) for s in ("", *folded.stages) for m in folded.metrics}


def _point(
    models: tuple[WithKeys, WithKeys | None],
    base: Baseline,
    head: Baseline,
    keys: frozenset[str],
    without: frozenset[str],
) -> Point[StageMetric]:
    """Return a function that sums the formulas of base with a given set of keys and settings taken from head.

    Args:
        models: the base's, and the head's if that is another family.
        base, head: the two sides.
        keys: configuration keys that both families have.
        without: roles that are left out.
    """
    usual, other = models
    config: Mapping[str, ConfigValue] = head.target.config or {}
    before: Mapping[str, ConfigValue] = base.target.config or {}
    old, new = settings(base), settings(head)
    varied = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    evaluators: dict[tuple[bool, bool], Evaluator[BlendedTarget]] = {}

    def point(changed: frozenset[str]) -> Mapping[StageMetric, int | None]:
        another, kernels = other is not None and FAMILY in changed, IMPLEMENTATION in changed
        if (another, kernels) not in evaluators:
            model = other if another and other is not None else usual
            evaluators[another, kernels] = Evaluator(BlendedTarget(model, base, head, kernels, without))
        of = evaluators[another, kernels]
        now = before if another else of.keys()
        choices = PointChoices(
            keys={key: config[key] if key in changed else now[key] for key in sorted(keys)},
            preset=None,
            settings={name: (new if name in changed else old).get(name) for name in varied},
        )
        regime, numbers = of.regime(choices)
        if regime.ledger is None:
            raise of.refusal(choices, numbers)
        cells = [(stage, m) for stage in ("", *regime.ledger.stages) for m in regime.ledger.metrics]
        costs = {cell: regime.cost(cell) for cell in cells}
        exact = ExactEvaluator(regime.atoms.found, numbers)  # compiling a cost may find atoms
        return {cell: exact.number(cost) for cell, cost in costs.items()}

    return point
