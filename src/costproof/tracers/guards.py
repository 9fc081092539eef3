"""The conditions under which an export holds: torch's own guards, evaluated at given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate
from costproof.ledger.symbols import parse
from costproof.tracers.exported import Exported


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What guards ask of an input."""

    shape: tuple[int, ...]

    def size(self) -> tuple[int, ...]:
        return self.shape


def holds_at(exported: Exported, points: Sequence[Mapping[str, int]]) -> tuple[bool, ...]:
    """Whether the graph of an export describes the model at each point.

    A graph with symbols stands for all sizes that pass the exporter's guards; at others the model
    may take another way. Guards are Python text that torch made from shapes: no file, no user
    reaches it, and it gets nothing but shapes, ``min`` and ``max``.

    Args:
        points: values of the symbols of the export's sizes.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs.
    """
    guards = [compile(g, "guard", "eval") for g in exported.guards]
    return tuple(_holds(exported, guards, point) for point in points)


def _holds(exported: Exported, guards: Sequence[CodeType], point: Mapping[str, int]) -> bool:
    job = exported.job
    shapes = {name: list(v.shape) for name, v in job.args.items() if hasattr(v, "shape")}
    for size in job.sizes:
        value = evaluate(parse(size.symbol), point)
        # The exporter takes a symbol to be 2 or more.
        if value % size.step or value < 2 * size.step:
            return False
        shapes[str(size.argument[0])][size.dim] = value
    inputs = {name: _Tensor(tuple(shape)) for name, shape in shapes.items()}
    space: dict[str, Any] = {"__builtins__": {}, "L": inputs, "min": min, "max": max}
    try:
        return all(eval(guard, space) for guard in guards)
    except (NameError, AttributeError, KeyError, TypeError) as error:
        raise Incomplete(
            "a condition of an export is about something other than sizes",
            where=f"{job.stage}, export {job.id}",
            got=str(error),
        ) from error
