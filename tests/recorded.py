"""The record of which metrics each source gives: ``make recorded`` counts it anew, or only what FAMILIES names."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import costproof
from costproof.ledger.files import json_text
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.writing import write_texts
from costproof.models.known import RECORD, family_of
from costproof.models.proof import WithProof
from costproof.models.registry import load_target
from costproof.models.target import Target, lacking
from costproof.patches.flash_attention import FLASH
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared


def families() -> dict[str, Target]:
    """Return a target of every built-in family."""
    found = [load_target(name) for name in costproof.targets()]
    return {family: target for target in reversed(found) if (family := family_of(target))}


def given(target: Target, sources: Iterable[str] = ALL_SOURCES) -> dict[str, tuple[str, ...]]:
    """Return the metrics that each source gives of a small random configuration of a family."""
    assert isinstance(target, WithProof)
    pieces = (p for p in target.proof(8, 1).pieces if p.phase == "draws" and p.workload.attention != FLASH)
    piece = min(pieces, key=lambda p: sum(p.target.info().symbols.values()))
    able = tuple(s for s in sources if s not in lacking(piece.target, ALL_SOURCES))
    capture = count_sources(Prepared(piece.target, piece.workload, able, no_cache=True)).capture
    assert not capture.lacking, capture.lacking
    return {x.source: x.metrics for x in capture.ledgers if x.source in able}


def record(found: dict[str, dict[str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    """Return the groups of families that are alike."""
    groups: list[dict[str, Any]] = []
    for family, sources in sorted(found.items()):
        group = next((g for g in groups if g["sources"] == sources), None)
        if group is None:
            groups.append({"families": [family], "sources": sources})
        else:
            group["families"].append(family)
    return groups


if __name__ == "__main__":
    named, every = sys.argv[1:], families()
    old = (
        {f: g["sources"] for g in json.loads(RECORD.read_text(encoding="utf-8")) for f in g["families"]}
        if named
        else {}
    )
    made = {f: {source: tuple(metrics) for source, metrics in old[f].items()} for f in every if f in old}
    for family in named or every:
        made[family] = given(every[family])
        print(family, *(f"{source}: {len(metrics)}" for source, metrics in made[family].items()), flush=True)
    write_texts({RECORD: json_text(record(made))})
