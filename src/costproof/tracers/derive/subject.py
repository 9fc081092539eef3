"""What a formula is derived from: an export of one stage of a target, and the names that its constants may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.compare.identity import free_symbols
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.evaluate import compile_expression
from costproof.ledger.workload import Workload
from costproof.models.generic.huggingface import counts_layers
from costproof.models.jobs import ExportJob
from costproof.models.target import Derivable, Exportable, WithFormulas
from costproof.tracers.exporting import resized

if TYPE_CHECKING:
    from torch import nn

_SETTINGS: Final = {"B": "batch", "S": "text_tokens", "P": "text_tokens"}
"""Symbol -> the part of a workload that it is, where the prompt is all text."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to derive formulas of."""

    name: str
    stage: str
    job: ExportJob
    config: Mapping[str, int]
    """Numbers of the configuration by name, for constants that are one of them."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Symbols of the workload that the graph holds as numbers."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Symbols that must be multiples of a number."""
    at: Callable[[Mapping[str, int]], ExportJob | None] = lambda sizes: None
    """What the target itself makes at such sizes, all of them numbers; ``None`` where no workload has these symbols.

    Raises:
        Problems: it has no such run.
    """

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """Whether the target has a run of such sizes, as far as it says."""
        try:
            self.at(sizes)
        except (BadInput, Problems):
            return False
        return True


def subject(target: Exportable, stage: str, name: str = "") -> Subject:
    """The first export with symbols of a stage.

    Args:
        name: of the subject; the target's unless given.
    """
    made = target.derivable(stage) if isinstance(target, Derivable) else None
    source, workload, steps = made or (target, target.workload(), {})
    model = source.build(workload)
    jobs = source.export_jobs(model, workload)
    picked = next((j for j in jobs if stage in j.stages and j.sizes), None)
    if picked is None:
        raise Incomplete(
            "no size of this model can be a symbol",
            where=f"{target.name} {stage}",
            expected="inputs of which a batch or a sequence is above 1",
        )
    symbolic = {name for size in picked.sizes for name in free_symbols(size.symbol)}
    calls = [i for i in source.invocations(workload) if (i.stage, i.id) == (stage, picked.invocations[0])]
    fixed = {name: value for call in calls for name, value in call.symbols.items() if name not in symbolic}

    def at(sizes: Mapping[str, int]) -> ExportJob | None:
        return _at(source, model, workload, picked, sizes)

    names = _names(target, workload, stage) if of_tokens(picked) else {}
    return Subject(name or target.name, stage, picked, names, fixed, steps, at)


def _at(
    source: Exportable, model: nn.Module, workload: Workload, job: ExportJob, sizes: Mapping[str, int]
) -> ExportJob | None:
    if not sizes.keys() <= _SETTINGS.keys():
        return None
    steps = min(workload.new_tokens, 1)
    given: dict[str, Any] = {_SETTINGS[name]: size for name, size in sizes.items()}
    there = replace(workload, new_tokens=steps, **given)
    known = {(i.stage, i.id): i.symbols for i in source.invocations(there)}.get((job.stage, job.invocations[0]), {})
    if any(known.get(name) != size for name, size in sizes.items()):
        return None
    source.check(there)
    made = next((j for j in source.export_jobs(model, there) if j.id == job.id), None)
    return made and resized(made, sizes)


def _names(target: Exportable, workload: Workload, stage: str) -> dict[str, int]:
    """Sizes that the stage's formulas use, where there are any; those of other stages would fit by chance."""
    known = target.info().symbols
    if not isinstance(target, WithFormulas):
        return known
    formulas = {e for n in target.formulas(workload).nodes if n.stage == stage for e in n.exprs.values()}
    used = {name for e in formulas for name in compile_expression(e).symbols}
    return {n: v for n, v in known.items() if n in used and not counts_layers(n)}


def of_tokens(job: ExportJob) -> bool:
    """Whether constants in the costs of an export are products of widths, which have names.

    An image or a spectrum has a fixed number of positions, which is a factor of all constants and fits
    names by chance.
    """
    fixed = {s.argument[0]: 0 for s in job.sizes}
    for name, value in job.args.items():
        if hasattr(value, "shape"):
            fixed[name] = value.dim() - len({s.dim for s in job.sizes if s.argument[0] == name})
    return all(count <= 1 for count in fixed.values()) and not any("H" in s.symbol for s in job.sizes)
