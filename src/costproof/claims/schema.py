"""The JSON Schema of the claims that people write: for editors. What it cannot say, reading says."""

from __future__ import annotations

from typing import Any

from costproof.claims.catalogue import STATED
from costproof.claims.reading import PLACE, TABLE, TOP, VERSION
from costproof.ledger.metrics import METRICS, PEAK_METRICS
from costproof.ledger.schema import MAP, SCALAR, form_schema

MEANINGS = {
    "costproof_claims": f"The version of this form: {VERSION}.",
    "title": "What these claims are.",
    "source": "Where they come from.",
    "target": "What they are about; the command line may say it instead.",
    "workload": "The run that they were made on: settings of the target, as its options spell them.",
    "conventions": "How they were counted, as far as it is known. A claim may have its own.",
    "at": "Symbols at whose value alone the claims are made. A claim may have its own.",
    "holds": "Expressions in symbols, none of which is negative where the claims are made.",
    "id": "A name for messages; stage, invocation and module otherwise.",
    "stage": "A stage of the target, or total.",
    "invocation": "One of the runs of the stage.",
    "module": "A pattern of modules: *, ?, [0-3,12]; (root) is the model itself.",
    "file": "A .csv or .json below the folder of this file.",
    "columns": "Key of a claim -> column of the table.",
    "units": "Metric -> unit of its column, such as G.",
    "stages": "The table's words for stages -> ours; other rows are left out.",
    "claims": "One claim for each stage, invocation or module.",
    "tables": "Claims that stand in a file of their own.",
}


def claims_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a claims file, as :func:`costproof.claims.reading.read_claims` takes it."""
    words: dict[str, list[str]] = {}
    for name, value in STATED:
        words.setdefault(name, []).append(value)
    shared = {
        "conventions": _closed({name: {"enum": values} for name, values in words.items()}),
        "at": MAP | {"additionalProperties": {"type": ["integer", "string"], "pattern": "^[0-9]{1,18}$", "minimum": 0}},
    }
    metrics = {name: SCALAR | {"description": info.meaning} for name, info in (METRICS | PEAK_METRICS).items()}
    claim = _closed({name: shared.get(name, SCALAR) for name in PLACE} | metrics)
    claim |= {"required": ["stage"], "anyOf": [{"required": [name]} for name in metrics]}
    table = _closed({name: shared.get(name, SCALAR if name == "file" else MAP) for name in TABLE})
    table |= {"required": ["file", "columns"]}
    table["properties"]["columns"] |= {"required": ["stage"]}
    own = shared | {
        "costproof_claims": {"enum": [int(VERSION), VERSION]},
        "workload": MAP,
        "holds": {"type": "array", "items": SCALAR},
        "claims": {"type": "array", "items": claim},
        "tables": {"type": "array", "items": table},
    }
    schema = _closed({name: own.get(name, SCALAR) for name in TOP})
    some = [{"required": [name], "properties": {name: {"minItems": 1}}} for name in ("claims", "tables")]
    return form_schema("claims.yaml", schema | {"required": ["costproof_claims"], "anyOf": some})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    described = {k: v | ({"description": MEANINGS[k]} if k in MEANINGS else {}) for k, v in properties.items()}
    return {"type": "object", "properties": described, "additionalProperties": False}
