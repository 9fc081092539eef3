"""Read gate policies from YAML: limits on metrics, and allowances to exceed them until a date.

A place is a metric, a stage and a role. A stage or role with ``*``, ``?`` or ``[…]`` expands to all that match, each
checked separately; a role without wildcards includes everything inside that part of the model; an omitted key means the
whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import yaml

from costproof.ledger.document import YamlValue, read_document, read_source
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, Problems, did_you_mean
from costproof.ledger.metrics import STAGE_WIDE, SUMMED, Metric
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.schema import SCALAR, form_schema

VERSION: Final = "1"
WHAT: Final = "a policy"
TOP: Final = ("costproof_policy", "sources", "inputs", "versions", "limits", "allowed")
PLACE: Final = ("metric", "stage", "role")
BOUNDS: Final = ("increase", "budget")
ALLOWED: Final = ("increase", "reason", "until")
AMOUNT: Final = re.compile(r"([0-9][0-9_]{0,40})(?:\.([0-9]{1,20}))?(?:[eE]\+?([0-9]{1,2}))?\s*([kMGTP%]?)")
_UNITS: Final = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "%": -2}
MOST: Final = 500
WILD: Final = "*?["
"""Characters that make the name of a stage or role a glob pattern."""


@dataclass(frozen=True, slots=True)
class PolicyAmount:
    """An exact number in a policy: an amount in units, or a percentage of the base."""

    text: str
    value: Fraction
    """The number of units; for a percentage, a fraction of the base: ``1.5 %`` is 3/200."""
    relative: bool = False

    def of(self, base: int) -> int:
        """Return the amount in units of the metric; a percentage is taken of ``base`` and rounded down."""
        return int(self.value * base if self.relative else self.value)


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """The metric, stage and role that a limit or an allowance applies to."""

    metric: Metric
    stage: str = ""
    role: str = ""
    line: int = 0
    """Line in the policy file that states the place."""
    alone: bool = False
    """Whether roles nested in the role are excluded."""

    def __str__(self) -> str:
        return f"{self.metric} of {' '.join(filter(None, (self.stage, self.role))) or 'all stages'}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on the cost at a place: an increase over the base, a budget, or both."""

    place: PolicyPlace
    increase: PolicyAmount | None = None
    """The largest permitted increase over the base."""
    budget: int | None = None
    """The largest permitted cost, independent of the base."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """An increase above a limit that was approved until a date."""

    place: PolicyPlace
    increase: PolicyAmount
    reason: str
    until: date
    """Last day on which the allowance is valid."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The content of a policy file: limits, allowances, and permitted differences between base and head."""

    file: str
    limits: tuple[Limit, ...]
    allowed: tuple[Allowance, ...] = ()
    sources: tuple[str, ...] = ()
    """Sources to check; empty for all sources of the base."""
    inputs: str = "same"
    """``any``: the target, the workload and the implementation may differ between base and head."""
    versions: str = "same"
    """``any``: base and head may be counted by different versions of costproof, torch, transformers and others."""


def read_policy(path: Path) -> Policy:
    """Read a policy from a YAML file.

    Raises:
        Problems: all errors in the policy.
        BadInput: the file cannot be read, or is not a policy.
    """
    return policy_from_text(read_source(path, WHAT), where=path.as_posix())


def policy_from_text(source: str, *, where: str) -> Policy:
    """Parse a policy as :func:`read_policy` does; ``where`` names it in errors."""
    data = read_document(source, where=where, what=WHAT)
    if not isinstance(data, dict) or data.get("costproof_policy") != VERSION:
        got = data.get("costproof_policy", "nothing") if isinstance(data, dict) else "no map"
        raise BadInput("not a policy of this version", where=where, expected=f"costproof_policy: {VERSION}", got=got)
    reader = _Reader(_lines(source))
    reader.known(data, TOP, "$")
    limits = tuple(reader.limit(item, where_) for item, where_ in reader.items(data, "limits"))
    allowed = tuple(reader.allowance(item, where_) for item, where_ in reader.items(data, "allowed"))
    sources = data.get("sources", [])
    words = tuple(map(str, sources)) if isinstance(sources, list) else (str(sources),)
    for word in words:
        if word not in ALL_SOURCES:
            reader.problem("no such source", "$.sources", "of " + ", ".join(ALL_SOURCES), word[:60])
    if "sources" in data and not words:
        reader.problem("no source decides", "$.sources", "of " + ", ".join(ALL_SOURCES))
    inputs, versions = (str(data.get(name, "same")) for name in ("inputs", "versions"))
    for name, value in (("inputs", inputs), ("versions", versions)):
        if value not in ("same", "any"):
            reader.problem("invalid choice", f"$.{name}", "same or any", value[:60])
    if not limits:
        reader.problem("a policy without limits lets everything pass", "$.limits")
    if reader.problems:
        raise Problems(f"the policy {where} is wrong", reader.problems[:20])
    return Policy(where, tuple(filter(None, limits)), tuple(filter(None, allowed)), words, inputs, versions)


def metrics() -> list[Metric]:
    """Return the metrics that a policy can limit: all but the number of calls."""
    return [name for name, info in SUMMED.items() if info.unit != "calls"]


def _lines(source: str) -> Mapping[tuple[str, int], int]:
    """Return the line of each item in a policy file, by (key, index of the item)."""
    root = yaml.compose(source, Loader=yaml.SafeLoader)
    return {
        (key.value, i): item.start_mark.line + 1
        for key, value in (root.value if isinstance(root, yaml.MappingNode) else ())
        if isinstance(value, yaml.SequenceNode)
        for i, item in enumerate(value.value)
    }


class _Reader:
    """Reads the sections of a policy, and collects all problems instead of raising the first."""

    def __init__(self, lines: Mapping[tuple[str, int], int]) -> None:
        self.lines = lines
        self.problems: list[CostproofError] = []

    def problem(
        self, what: str, where: str, expected: object = NOT_GIVEN, got: object = NOT_GIVEN, fix: str | None = None
    ) -> None:
        self.problems.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    def known(self, given: Mapping[str, YamlValue], allowed: tuple[str, ...], where: str) -> None:
        for name in given:
            if name not in allowed:
                expected = "one of " + ", ".join(allowed)
                self.problem("unknown key", f"{where}.{name[:60]}", expected, fix=did_you_mean(name, allowed))

    def items(self, data: Mapping[str, YamlValue], name: str) -> list[tuple[tuple[Mapping[str, YamlValue], int], str]]:
        """Return the mappings in the list under a key, each with its line and its path in the file."""
        given = data.get(name, [])
        if not isinstance(given, list) or len(given) > MOST:
            self.problem(f"this must be a list of at most {MOST} maps", f"$.{name}")
            return []
        found: list[tuple[tuple[Mapping[str, YamlValue], int], str]] = []
        for i, item in enumerate(given):
            if isinstance(item, dict):
                found.append(((item, self.lines.get((name, i), 1)), f"$.{name}[{i}]"))
            else:
                self.problem("this must be a map", f"$.{name}[{i}]", expected="metric: NAME, …")
        return found

    def place(self, item: Mapping[str, YamlValue], line: int, where: str) -> PolicyPlace:
        metric, stage, role = (self.text(item, name, where) for name in PLACE)
        for name in ("stage", "role"):
            if item.get(name) == "":
                self.problem("this must not be empty", f"{where}.{name}", fix="leave the key out for the whole")
        if metric not in metrics():
            fix = did_you_mean(metric, metrics())
            self.problem(
                "no such metric", f"{where}.metric", "one of " + ", ".join(metrics()), metric or "nothing", fix
            )
        if role and not stage and metric in STAGE_WIDE:
            # A module that works in two stages has rows in both; rows do not identify equal modules.
            self.problem(f"{metric} of a role needs a stage", where, "stage: NAME", fix="stage: '*' is each stage")
        return PolicyPlace(metric, stage, role, line)

    def limit(self, given: tuple[Mapping[str, YamlValue], int], where: str) -> Limit | None:
        item, line = given
        self.known(item, (*PLACE, *BOUNDS), where)
        place = self.place(item, line, where)
        if not any(name in item for name in BOUNDS):
            self.problem("a limit without a bound lets everything pass", where, "increase or budget")
        increase = self.amount(item, "increase", where) if "increase" in item else None
        budget = self.amount(item, "budget", where) if "budget" in item else None
        if budget is not None and budget.relative:
            self.problem("a budget must be a number of units", f"{where}.budget", "such as 3.1 T", budget.text)
        return Limit(place, increase, None if budget is None else budget.of(0))

    def allowance(self, given: tuple[Mapping[str, YamlValue], int], where: str) -> Allowance | None:
        item, line = given
        self.known(item, (*PLACE, *ALLOWED), where)
        place, increase = self.place(item, line, where), self.amount(item, "increase", where)
        if any(c in place.stage + place.role for c in WILD):
            self.problem("an allowance must name its place", where, "a stage, a role, or neither", str(place))
        reason, until = self.text(item, "reason", where), self.text(item, "until", where)
        if not reason.strip():
            self.problem("an allowance must have a reason", f"{where}.reason", "why more is allowed, in a few words")
        try:
            day = date.fromisoformat(until)
        except ValueError:
            self.problem("an allowance must end on a date", f"{where}.until", "YYYY-MM-DD", until or "nothing")
            return None
        return None if increase is None else Allowance(place, increase, reason, day)

    def text(self, item: Mapping[str, YamlValue], name: str, where: str) -> str:
        value = item.get(name, "")
        if isinstance(value, str) and len(value) <= 500:
            return value
        self.problem("this must be a short text", f"{where}.{name}")
        return ""

    def amount(self, item: Mapping[str, YamlValue], name: str, where: str) -> PolicyAmount | None:
        text = self.text(item, name, where).strip()
        match = AMOUNT.fullmatch(text)
        expected = "such as 0, 5300000, 5.3e6, 310 G, 1.5 %"
        if match is None:
            self.problem("not an amount", f"{where}.{name}", expected, text or "nothing")
            return None
        whole, decimals, exponent, unit = match.groups()
        number = Fraction(int(whole.replace("_", "") + (decimals or "")), 10 ** len(decimals or ""))
        found = PolicyAmount(text, number * Fraction(10) ** (_UNITS[unit] + int(exponent or 0)), unit == "%")
        if not found.relative and found.value.denominator != 1:
            self.problem("not an integer", f"{where}.{name}", expected, text)
        return found


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
    """Return the JSON Schema 2020-12 of a policy, as :func:`read_policy` accepts it."""
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
