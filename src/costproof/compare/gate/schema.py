"""The JSON Schema of the policies that people write: for editors. What it cannot say, reading says."""

from __future__ import annotations

from typing import Any

from costproof.compare.gate.policy import ALLOWED, AMOUNT, BOUNDS, MOST, PLACE, TOP, VERSION, metrics
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.schema import SCALAR, form_schema

MEANINGS = {
    "costproof_policy": f"The version of this form: {VERSION}.",
    "sources": "Those that decide; all that the base has, if left out.",
    "inputs": "any: target, workload and implementation may differ between base and head.",
    "versions": "any: base and head may be counted by other versions of costproof, torch, transformers and the like.",
    "limits": "What places may cost.",
    "allowed": "Increases that somebody has agreed to, for a time.",
    "metric": "What is limited.",
    "stage": "A stage, or a pattern that stands for each that matches; left out: all together.",
    "role": "A part of the model with all inside it, or a pattern; left out: the whole.",
    "increase": "At most so much more than the base: 0, 5300000, 310 G, 1.5 %.",
    "budget": "At most so much, whatever the base is: 3.1 T.",
    "reason": "Why more is allowed.",
    "until": "The last day on which it counts: YYYY-MM-DD.",
}


def policy_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a policy, as :func:`costproof.compare.gate.policy.read_policy` takes it."""
    amount = {"type": ["number", "string"], "minimum": 0, "pattern": rf"^\s*{AMOUNT.pattern}\s*$"}
    one = {"enum": list(ALL_SOURCES)}
    own: dict[str, Any] = {
        "metric": {"enum": metrics()},
        "increase": amount,
        "budget": amount,
        "until": {"type": "string", "format": "date"},
        "costproof_policy": {"enum": [int(VERSION), VERSION]},
        "sources": {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]},
        **{name: {"enum": ["same", "any"]} for name in ("inputs", "versions")},
    }

    def closed(names: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
        described = {name: own.get(name, SCALAR) | {"description": MEANINGS[name]} for name in names}
        return {
            "type": "object", "properties": described, "required": list(required), "additionalProperties": False,
        }  # fmt: skip

    limit = closed((*PLACE, *BOUNDS), ("metric",)) | {"anyOf": [{"required": [name]} for name in BOUNDS]}
    own["limits"] = {"type": "array", "items": limit, "minItems": 1, "maxItems": MOST}
    allowance = closed((*PLACE, *ALLOWED), ("metric", *ALLOWED))
    own["allowed"] = {"type": "array", "items": allowance, "maxItems": MOST}
    return form_schema("policy.yaml", closed(TOP, ("costproof_policy", "limits")))
