"""Sides that count multiply-accumulates, brought to FLOPs: the one convention that another number follows from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.baseline import Baseline, Folded

MAC: Final = "mac"


def unit_of(side: Baseline, source: str) -> str:
    """What a source of a side counts."""
    return side.sources[source].conventions.get("unit", side.conventions.unit)


def in_flops(side: Baseline) -> Baseline:
    """The side with two FLOPs for each multiply-accumulate. Vector work does not consist of these, and stays."""
    sources = {
        name: _doubled(folded) if unit_of(side, name) == MAC else folded for name, folded in side.sources.items()
    }
    return replace(side, sources=sources)


def _doubled(folded: Folded) -> Folded:
    rows = {
        stage: {
            part: {
                kind: {m: 2 * v if m == "flops" and v is not None else v for m, v in costs.items()}
                for kind, costs in kinds.items()
            }
            for part, kinds in parts.items()
        }
        for stage, parts in folded.rows.items()
    }
    return replace(folded, rows=rows)
