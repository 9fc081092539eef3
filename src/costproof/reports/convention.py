"""fvcore's convention on the stages: each traced alone, beside its part of the trace of the whole model."""

from __future__ import annotations

from typing import Final

from costproof.ledger.metrics import FVCORE
from costproof.views.numbers import exact
from costproof.views.static_compute import StaticCompute

LOUD: Final = (
    "These are MACs in the convention of fvcore 0.1.5.post20221221, which calls them flops. They are not FLOPs: a"
    " multiply-accumulate is 1, a norm is 5 per element, fused attention and grouped experts are 0."
)
_SIDES: Final = {"isolated": "isolated", "dynamic": "extracted"}
HEAD: Final = ("Stage", *(f"{name} {side}" for name in ("MACs", "Activations") for side in _SIDES.values()))


def convention_rows(static: StaticCompute) -> list[tuple[str, ...]]:
    """Cells under :data:`HEAD`, the total last; empty where the convention was not counted."""
    if not any(metric in said for said in static.sources.values() for metric in FVCORE):
        return []
    named = [(s.id, s.sources) for s in static.stages]
    named += [] if static.one_stage else [("total", static.sources)]
    return [
        (name, *(exact(sources.get(side, {}).get(metric)) for metric in FVCORE for side in _SIDES))
        for name, sources in named
    ]
