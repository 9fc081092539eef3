"""The committed baselines: which there are. ``python -m tests.baselines`` (``make baselines``) writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import costproof
from costproof.ledger.baseline import BASELINE, Baseline
from costproof.ledger.errors import Problems
from costproof.ledger.files import json_text
from costproof.ledger.schema import to_data
from costproof.ledger.writing import write_texts
from costproof.models.registry import load_target
from costproof.run.operands import read_operand

FOLDER: Final = Path(__file__).parents[1] / "baselines"


class Named(NamedTuple):
    """One committed baseline."""

    target: str
    preset: str
    usual: bool

    @property
    def path(self) -> Path:
        """``deepseek-ocr.json`` for the usual preset, ``deepseek-ocr@gundam.json`` for another."""
        return FOLDER / f"{self.target}{'' if self.usual else f'@{self.preset}'}.json"


def named() -> Iterator[Named]:
    """All that there should be: presets that a target cannot run, because its context is shorter, have none."""
    for name in costproof.targets():
        target = load_target(name)
        for preset in target.presets():
            try:
                target.workload(preset.name)
            except Problems:
                continue
            yield Named(name, preset.name, preset.default)


def made(which: Named) -> Baseline:
    """What the formulas say now."""
    return read_operand(f"{which.target}@{which.preset}").baseline


if __name__ == "__main__":
    texts = {which.path: json_text(to_data(BASELINE, made(which))) for which in named()}
    for old in set(FOLDER.glob("*.json")) - {*texts}:
        old.unlink()
    write_texts(texts)
    print(f"{len(texts)} baselines in {FOLDER.name}/, {sum(map(len, texts.values())):,} bytes")
