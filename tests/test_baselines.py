"""The code reproduces the committed baselines: a number that changes fails here, and the message names its node."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from costproof.compare.diff.diff import diff
from costproof.ledger.baseline import BASELINE, Baseline, read_baseline
from costproof.views.numbers import exact
from tests.baselines import FOLDER, Named, made, named
from tests.support.running import costproof

NAMED = tuple(named())
BY_TARGET = {target: tuple(which) for target, which in groupby(NAMED, key=lambda n: n.target)}
LONGEST = 40
"""Lines of a message."""


def differences(base: Baseline, head: Baseline) -> list[str]:
    """Where two baselines differ, line by line; which versions counted is not compared."""
    # Bytes of a quantised checkpoint are labelled, and are numbers that the code must reproduce all the same.
    found = diff(base, head)
    kinds = (found.config, found.workload, found.conventions, found.implementation, found.formulas)
    changed = [f"{c.key}: {c.base} -> {c.head}" for k in kinds for c in k.changed if c.key != "costproof"]
    for source, part in found.by_source.items():
        rows = ((f"{source} {r.id}, {r.metric}", r.base, r.head) for r in part.rows)
        totals = ((f"{source} total, {m}", q.base, q.head) for m, q in part.totals.items() if q.delta != 0)
        changed += [f"{name}: {exact(a)} -> {exact(b)}" for name, a, b in (*rows, *totals)]
    changed += [why for why in found.incomplete if "the checkpoint is quantised" not in why]
    other = replace(head, environment=base.environment) != base
    return changed or (["something that is not a number"] if other else [])


def check(which: Named, path: Path) -> None:
    found = differences(read_baseline(path), made(which))
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
    assert {n.path.name for n in NAMED} == {p.name for p in FOLDER.iterdir()}, "make baselines"
    # An older version would make the next `make baselines` change files that have nothing to do with a new family.
    assert {json.loads(p.read_text())["schema_version"] for p in FOLDER.iterdir()} == {
        "{}.{}".format(*BASELINE.version)
    }


def test_a_baseline_is_small() -> None:
    assert max(p.stat().st_size for p in FOLDER.iterdir()) < 100_000


def test_one_integer_more_fails_and_the_message_names_the_node(tmp_path: Path) -> None:
    which = next(n for n in NAMED if n.target == "llama-3.2-1b")
    text = which.path.read_text(encoding="utf-8")
    folded = read_baseline(which.path).sources["analytic"]
    # By hand: 16 layers, each 2 * 512 tokens * 2048 * 8192.
    mlp = folded.rows["prefill"]["text.layer.mlp.up"]["linear"]
    assert mlp == dict.fromkeys(("flops", "kept_flops"), 274_877_906_944)
    before, part, rest = text.rpartition('"text.layer.mlp.up"')
    path = tmp_path / "tampered.json"
    path.write_text(before + part + rest.replace("274877906944", "274877906945", 1), encoding="utf-8")
    with pytest.raises(pytest.fail.Exception) as failed:
        check(which, path)
    line = "analytic prefill/text.layer.mlp.up:linear, flops: 274,877,906,945 -> 274,877,906,944"
    assert str(failed.value).splitlines()[1] == f"  {line}"


def test_the_command_writes_the_same_one(tmp_path: Path) -> None:
    line = ("capture", "llama-3.2-1b", "--sources", "analytic", "-f", "baseline", "-o", "mine.json")
    assert costproof(*line, cwd=tmp_path).code == 0
    assert not differences(read_baseline(FOLDER / "llama-3.2-1b.json"), read_baseline(tmp_path / "mine.json"))


def test_a_row_that_is_gone_and_a_key_that_changed_are_told() -> None:
    base = read_baseline(FOLDER / "llama-3.2-1b.json")
    rows = {**base.sources["analytic"].rows, "decode": {}}
    assert base.target.config is not None
    head = replace(
        base,
        target=replace(base.target, config={**base.target.config, "hidden": 64}),
        sources={"analytic": replace(base.sources["analytic"], rows=rows)},
    )
    found = differences(base, head)
    assert found[0] == "hidden: 2048 -> 64"
    assert "analytic decode/text.norm, params: 2,048 -> 0" in found
    assert differences(base, replace(base, target=replace(base.target, cut={"layers": "1 of 2"}))) == [
        "something that is not a number"
    ]
