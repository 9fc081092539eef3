"""YAML that a file could abuse is refused, with the place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from costproof import api
from costproof.claims.reading import claims_from_text, read_claims
from costproof.claims.types import Amount, Formula
from costproof.ledger.document import MAX_BYTES, read_document
from costproof.ledger.errors import BadInput, CostproofError, Problems


def test_scalars_stay_texts() -> None:
    assert read_document("{a: 1.10, b: yes, c: 2026-01-01, d: null, e: [0x10]}", where="f") == {
        "a": "1.10", "b": "yes", "c": "2026-01-01", "d": "null", "e": ["0x10"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("a: &x [1]\nb: *x", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: !!python/object/apply:os.system ['true']", "tags are not allowed"),
        ("!!int 1", "tags are not allowed"),
        ("<<: {a: 1}", "a key must be"),
        ("? [a]\n: 1", "a key must be"),
        ("a: 1\na: 2", "occurs twice"),
        ("x: {b: 1, b: 2}", "occurs twice"),
        ("[" * 50, "nested too deep"),
        ("- " * 50 + "1", "nested too deep"),
        ("--- 1\n--- 2", "one document"),
        ("", "empty"),
        ("a: [1", "not YAML"),
        ("a: \x01", "not YAML"),
        ('a: "\\ud800"', "unpaired surrogate"),
        ("x" * (MAX_BYTES + 1), "too large"),
        ("[" + "1," * 30_000 + "]", "too many parts"),
    ],
)
def test_refused(source: str, what: str) -> None:
    start = time.process_time()
    with pytest.raises(BadInput, match=what):
        read_document(source, where="f.yaml")
    assert time.process_time() - start < 20


def test_the_place_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        read_document("a: 1\nb:\n  c: 1\n  c: 2\n", where="f.yaml")
    assert caught.value.where == "f.yaml, line 4, column 3"


GOOD = """\
costproof_claims: 1
title: t
conventions: {unit: mac}
claims:
- {stage: sam, invocation: crops, flops: 2 G, params: 95_569_152}
- {id: x, stage: prefill, module: "*.mlp.*", flops: 2*B*S*text_hidden, conventions: {logits: last}}
"""


def test_a_good_file() -> None:
    found = claims_from_text(GOOD, where="f")
    by_id = {(c.id, c.metric): c for c in found.claims}
    assert by_id["sam.crops", "flops"].value == Amount("2 G", 1_500_000_000, 2_500_000_000)
    assert by_id["sam.crops", "params"].value == Amount("95_569_152", 95_569_152, 95_569_152)
    assert by_id["x", "flops"].value == Formula("2*B*S*text_hidden")
    assert by_id["x", "flops"].conventions == {"unit": "mac", "logits": "last"}


BAD = """\
costproof_claims: 1
clams: []
conventions: {unit: macs}
claims:
- {flops: 1}
- {stage: sam}
- {stage: sam, flops: "__import__('os')"}
- {stage: sam, flops: [1]}
- {stage: sam, flpos: 1}
- 7
"""


def test_all_problems_at_once() -> None:
    with pytest.raises(Problems) as caught:
        claims_from_text(BAD, where="f")
    said = str(caught.value)
    for part in (
        "$.clams", "$.conventions.unit", "$.claims[0]", "$.claims[1]", "$.claims[2].flops", "$.claims[3].flops",
        "$.claims[4].flpos", "$.claims[5]",
    ):  # fmt: skip
        assert part in said


@pytest.mark.parametrize("source", ["[]", "claims: []", "costproof_claims: 2", "costproof_claims: 1\nclaims: {}",
                                    "costproof_claims: 1\nclaims: []"])  # fmt: skip
def test_no_claims_file(source: str) -> None:
    with pytest.raises(CostproofError):
        claims_from_text(source, where="f")


TABLE = """\
costproof_claims: 1
tables:
- file: {file}
  columns: {{stage: part, flops: GF}}
  units: {{flops: G}}
  stages: {{SAM: sam}}
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "part,GF\nSAM,1.10\nother,7\n"),
        ("t.json", '[{"part": "SAM", "GF": 1.10}, {"part": "other", "GF": 7}]'),
    ],
)
def test_tables_keep_every_digit(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "c.yaml").write_text(TABLE.format(file=name))
    (claim,) = read_claims(tmp_path / "c.yaml").claims
    # 1.10, not 1.1: the last digit is 10^7.
    assert claim.value == Amount("1.10 G", 1_095_000_000, 1_105_000_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [("t.csv", "part,flops\nSAM,1\n"), ("t.json", "[[1]]"), ("t.json", "{"), ("t.csv", None), ("t.csv", 'part,GF\n"')],
)
def test_bad_tables(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    (tmp_path / "c.yaml").write_text(TABLE.format(file=name))
    with pytest.raises(CostproofError):
        read_claims(tmp_path / "c.yaml")


def test_one_problem_is_said_once_for_all_numbers_of_a_claim(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("costproof_claims: 1\nclaims:\n- {stage: nowhere, params: 8 G, flops: 12 G}\n")
    with pytest.raises(Problems) as caught:
        api.check(path, "llama-3.1-8b")
    assert [p.what for p in caught.value.problems] == ["no such stage"]
    assert "(1 problem)" in str(caught.value)
