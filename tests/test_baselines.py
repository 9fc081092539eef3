"""The code reproduces the committed baselines: a number that changes fails here, and the message names its node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path

import pytest

from costproof.ledger.baseline import Baseline, Folded, read_baseline
from tests.baselines import FOLDER, Named, made, named
from tests.cli.running import costproof

NAMED = tuple(named())
BY_TARGET = {target: tuple(which) for target, which in groupby(NAMED, key=lambda n: n.target)}
LONGEST = 40
"""Lines of a message."""


def differences(base: Baseline, head: Baseline) -> Iterator[str]:
    """Where two baselines differ, line by line; which versions counted is not compared."""
    for part in ("conventions", "target", "workload"):
        yield from _fields(part, getattr(base, part), getattr(head, part))
    for source in sorted({*base.sources, *head.sources}):
        mine, theirs = base.sources.get(source), head.sources.get(source)
        if mine is None or theirs is None:
            yield f"{source}: {'only in the code' if mine is None else 'only in the file'}"
        else:
            yield from _rows(source, mine, theirs)


def _rows(source: str, mine: Folded, theirs: Folded) -> Iterator[str]:
    before, after = dict(mine.items()), dict(theirs.items())
    for row in sorted({*before, *after}):
        if (row in before, before.get(row)) != (row in after, after.get(row)):
            values = (f"{rows[row]:,}" if rows.get(row) is not None else "nothing" for rows in (before, after))
            yield f"{source} {row}: {' -> '.join(values)}"
    yield from (line for line in _fields(source, mine, theirs) if not line.startswith(f"{source}.rows"))


def _fields(where: str, mine: object, theirs: object) -> Iterator[str]:
    for field in fields(mine):  # type: ignore[arg-type]
        a, b = getattr(mine, field.name), getattr(theirs, field.name)
        if isinstance(a, dict) and isinstance(b, dict):
            changed = [(f".{key}", a.get(key), b.get(key)) for key in sorted({*a, *b})]
        else:
            changed = [("", a, b)]
        yield from (f"{where}.{field.name}{key}: {x} -> {y}" for key, x, y in changed if x != y)


def check(which: Named, path: Path) -> None:
    found = list(differences(read_baseline(path), made(which)))
    if found:
        more = [f"and {len(found) - LONGEST} more"] if len(found) > LONGEST else []
        lines = "\n  ".join((*found[:LONGEST], *more))
        advice = "if that is meant: make baselines, and read git diff baselines/"
        pytest.fail(f"the code no longer reproduces baselines/{which.path.name}\n  {lines}\n{advice}", pytrace=False)


@pytest.mark.parametrize("target", BY_TARGET)
def test_the_code_reproduces_the_baselines(target: str) -> None:
    for which in BY_TARGET[target]:
        check(which, which.path)


def test_every_preset_has_a_baseline_and_nothing_else_has_one() -> None:
    assert {n.path.name for n in NAMED} == {p.name for p in FOLDER.iterdir()}


def test_a_baseline_is_small() -> None:
    assert max(p.stat().st_size for p in FOLDER.iterdir()) < 100_000


def test_one_integer_more_fails_and_the_message_names_the_node(tmp_path: Path) -> None:
    which = next(n for n in NAMED if n.target == "llama-3.2-1b")
    text = which.path.read_text(encoding="utf-8")
    folded = read_baseline(which.path).sources["analytic"]
    # By hand: 16 layers, each 2 * 512 tokens * 2048 * 8192.
    assert folded.rows["prefill"]["text.layer.mlp.up"]["linear"] == {"flops": 274_877_906_944}
    before, part, rest = text.rpartition('"text.layer.mlp.up"')
    path = tmp_path / "tampered.json"
    path.write_text(before + part + rest.replace("274877906944", "274877906945", 1), encoding="utf-8")
    with pytest.raises(pytest.fail.Exception) as failed:
        check(which, path)
    line = "analytic prefill/text.layer.mlp.up:linear, flops: 274,877,906,945 -> 274,877,906,944"
    assert str(failed.value).splitlines()[1:-1] == [f"  {line}"]


def test_the_command_writes_the_same_one(tmp_path: Path) -> None:
    line = ("capture", "llama-3.2-1b", "--sources", "analytic", "-f", "baseline", "-o", "mine.json")
    assert costproof(*line, cwd=tmp_path).code == 0
    assert not [*differences(read_baseline(FOLDER / "llama-3.2-1b.json"), read_baseline(tmp_path / "mine.json"))]


def test_a_row_that_is_gone_and_a_key_that_changed_are_told() -> None:
    base = read_baseline(FOLDER / "llama-3.2-1b.json")
    rows = {**base.sources["analytic"].rows, "decode": {}}
    assert base.target.config is not None
    head = replace(
        base,
        target=replace(base.target, config={**base.target.config, "hidden": 64}),
        sources={"analytic": replace(base.sources["analytic"], rows=rows)},
    )
    found = list(differences(base, head))
    assert found[0] == "target.config.hidden: 2048 -> 64"
    assert "analytic decode/text.norm, params: 2,048 -> nothing" in found
