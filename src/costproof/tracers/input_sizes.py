"""The sizes of a run by the shapes of what goes into its stages: the second place that sizes come from.

Formulas and graphs in symbols are both evaluated at the sizes that the target says for its calls, so a wrong one shows
in no difference between them. What a stage gets when it runs alone, or in a run, is made from the workload by other
code, and its shapes say the sizes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.series import CONTEXT, STEPS
from costproof.ledger.workload import Workload
from costproof.models.jobs import SymbolicSize
from costproof.models.target import Exportable, Runnable, Staged, WithFormulas

if TYPE_CHECKING:
    from torch import nn

_PAST, _STEPS = str(CONTEXT), str(STEPS)
_ROOT: Final = ("", 1)
"""The first call of the root of the model."""

_Call = tuple[tuple[str, str], Mapping[str, Any], Sequence[SymbolicSize], int | None]
"""Stage and invocation, arguments, the symbols of their dimensions, and tokens in the cache before a decode step."""


def input_sizes(target: Exportable, model: nn.Module, workload: Workload) -> dict[str, dict[str, int]]:
    """Return the sizes of the calls of a target with formulas: ``stage[invocation]`` -> symbol -> size.

    Empty where a target cannot say what goes in without numbers.

    Args:
        model: on the meta device; nothing is run.
    """
    try:
        calls = list(_calls(target, model, workload))
    except RuntimeError:  # what goes in depends on numbers, which there are none of on meta: the run counts alone
        return {}
    found: dict[str, dict[str, int]] = {}
    contexts: dict[str, list[int]] = {}
    for (stage, invocation), args, sizes, context in calls:
        call = f"{stage}[{invocation}]"
        here = found.setdefault(call, {})
        for size in sizes:
            shape = _shape(args, size.argument)
            if size.symbol.isidentifier() and size.symbol != _PAST and shape is not None:
                here[size.symbol] = shape[size.dim]
        if context is not None:
            contexts.setdefault(call, []).append(context)
    for call, before in contexts.items():
        found[call] |= {_PAST: min(before), _STEPS: max(before) - min(before) + 1}
    return {call: sizes for call, sizes in found.items() if sizes}


def _calls(target: Exportable, model: nn.Module, workload: Workload) -> Iterator[_Call]:
    described: object = target
    if not isinstance(described, WithFormulas):
        return
    exports = target.export_jobs(model, workload)
    if isinstance(target, Staged):
        sizes = {job.stage: job.sizes for job in exports if job.sizes}
        for job in target.stage_runs(model, workload):
            for invocation in job.invocations:
                yield (job.stage, invocation), job.args, job.sizes or sizes.get(job.stage, ()), job.context
    elif isinstance(target, Runnable):
        for run in target.runs(model, workload):
            yield run.locate(*_ROOT), run.kwargs, (), run.context
            if run.context is None:  # its arguments are those of all parts that are exported
                yield from (((job.stage, job.invocations[0]), run.kwargs, job.sizes, None) for job in exports)


def _shape(args: Mapping[str, Any], path: tuple[str | int, ...]) -> tuple[int, ...] | None:
    """Return the shape of an argument; ``None`` where there is none at that path."""
    value: Any = args
    for step in path:
        inside = step in value if isinstance(value, Mapping) else isinstance(step, int) and step < len(value)
        if not inside:
            return None
        value = value[step]
    return tuple(value.shape) if hasattr(value, "shape") else None
