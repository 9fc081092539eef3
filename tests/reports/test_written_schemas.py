"""Schemas of what people write: they take what reading takes, and refuse by themselves what an editor can see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from costproof import api
from costproof.claims.reading import claims_from_text
from costproof.compare.gate.policy import policy_from_text
from costproof.ledger.document import read_document
from costproof.ledger.errors import CostproofError
from costproof.run.request import RunRequest
from costproof.run.request_file import request_from, request_yaml
from costproof.run.schemas import schema_of
from tests.claims.test_document import GOOD

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
READERS = {"claims.yaml": claims_from_text, "policy.yaml": policy_from_text}


def request_from_text(text: str, where: str) -> RunRequest:
    return request_from(read_document(text, where=where, what="a request"), where=where)


CLAIM = "costproof_claims: 1\nclaims:\n- "
LIMIT = "costproof_policy: 1\nlimits:\n- "


def problems(name: str, text: str) -> list[Any]:
    """What an editor says of a text."""
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    seen = json.loads(json.dumps(yaml.safe_load(text), default=str))  # a day is a text to an editor
    return list(Draft202012Validator(schema).iter_errors(seen))


def kind(text: str) -> str:
    return "policy.yaml" if "costproof_policy" in text else "claims.yaml"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(costproof_.*?)^```$", (ROOT / "docs" / page).read_text(), flags=re.M | re.S)


@pytest.mark.parametrize(
    "text", [GOOD, *(p.read_text() for p in EXAMPLES), *blocks("claims.md"), *blocks("gate.md")], ids=lambda t: t[:19]
)
def test_what_docs_show_is_right(text: str) -> None:
    assert problems(kind(text), text) == []


@pytest.mark.parametrize(
    "text",
    [
        CLAIM + "{flops: 1}", CLAIM + "{stage: sam}", CLAIM + "{stage: sam, flpos: 1}", CLAIM + "7",
        CLAIM + "{stage: sam, flops: [1]}", CLAIM + "{stage: sam, flops: 1, conventions: {unit: macs}}",
        CLAIM + "{stage: sam, flops: 1, at: {N: x}}", "costproof_claims: 2\nclaims: [{stage: sam, flops: 1}]",
        "costproof_claims: 1\nclaims: []", "costproof_claims: 1", CLAIM + "{stage: sam, flops: 1}\nclams: []",
        "costproof_claims: 1\ntables:\n- {file: t.csv}", "costproof_claims: 1\ntables:\n- {columns: {stage: a}}",
        LIMIT + "{metric: flops}", LIMIT + "{increase: 1}", LIMIT + "{metric: calls, increase: 1}",
        LIMIT + "{metric: flops, increase: much}", LIMIT + "{metric: flops, increase: -1}", LIMIT + "3",
        LIMIT + "{metric: flops, budget: 1, reason: x}", "costproof_policy: 1\nlimits: []", "costproof_policy: 1",
        LIMIT + "{metric: flops, increase: 0}\nsources: [guess]", LIMIT + "{metric: flops, increase: 0}\ninputs: all",
        LIMIT + "{metric: flops, increase: 0}\nallowed: [{metric: flops, increase: 1, until: '2030-01-01'}]",
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_by_the_schema(text: str, tmp_path: Path) -> None:
    reader: Any = READERS[kind(text)]
    with pytest.raises(CostproofError):
        reader(text, where="f")
    assert problems(kind(text), text)


REQUEST = "target: deepseek-ocr\n"
RIGHT_REQUESTS = [
    "", "sources: analytic", "sources: [analytic, static]", "config:", "peaks: true\nno_cache: false",
    "workload: {preset: gundam, grid: 3x2, batch: 4, dtype: float16}",
    "run: {device: cpu, seed: 0, layers: 2, profile: 3}",
    "prove: {samples: 1, sides: 640-1024}", "derive: {stage: projector, points: 3}", "counters: all",
    "workload: {name: mine, text_tokens: 8, inputs: {base_size: 1024}}",
    "run: {weights: random, convention: fvcore-macs}",
]  # fmt: skip
WRONG_REQUESTS = [
    "sources: guess", "sources: [static, guess]", "run: {device: tpu}", "run: {layers: 0}", "run: {layers: many}",
    "run: {seed: -1}", "run: {divice: cpu}", "run: 3", "workload: 3", "peaks: perhaps", "worklod: {batch: 2}",
    "workload: {dtype: float8}", "workload: {attention: flash}", "config: [a]", "counters: [[a]]", "prove: 3",
    "target: [a]", "run: {convention: thop}",
]  # fmt: skip


@pytest.mark.parametrize("text", RIGHT_REQUESTS)
def test_requests_that_are_read(text: str) -> None:
    request_from_text(REQUEST + text, "f")
    assert problems("request.yaml", REQUEST + text) == []


@pytest.mark.parametrize("text", WRONG_REQUESTS)
def test_requests_that_are_refused(text: str) -> None:
    whole = text if text.startswith("target") else REQUEST + text
    with pytest.raises(CostproofError):
        request_from_text(whole, "f")
    assert problems("request.yaml", whole)


def test_what_a_dry_run_prints_follows_the_schema() -> None:
    asked = api.request("deepseek-ocr", preset="gundam", grid="3x2", sources=["analytic"], layers=2, all_calls=True)
    assert problems("request.yaml", request_yaml(asked)) == []
    assert api.schema("request") == schema_of("request.yaml")
