"""A gate for programs that run it: JUnit XML, SARIF, annotations of a job on GitHub."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from costproof.compare.gate.types import Gate
from costproof.ledger.environment import VERSION
from costproof.ledger.plural import plural
from costproof.reports.escape import visible
from costproof.reports.gate_words import Line, idle_text, lines, sentence

MOST: Final = 10
"""Annotations of a kind that GitHub shows for one step."""
_RULES: Final = {
    "over": (
        "costproof/over-the-limit",
        "The cost is above a limit of the policy.",
        "Make the change cheaper, raise the limit, or allow the increase with a reason and a last day.",
    ),
    "unknown": (
        "costproof/unknown",
        "A cost that a limit is about is not known.",
        "Count it with a source that knows it, or bring the conventions of base and head together.",
    ),
    "incomplete": (
        "costproof/incomplete",
        "Base and head cannot be held against the policy.",
        "Count both with the same sources at the same workload; inputs: any lets workloads and targets differ.",
    ),
}
"""Status -> rule, what it says, what to do."""
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _name(line: Line) -> str:
    return f"{line.check.metric} of {line.check.place}, {line.check.limit}"


def gate_junit(found: Gate) -> str:
    """One test case a check; what keeps the gate as a whole from a verdict is an error of its own."""
    every = lines(found, "unknown", "over", "allowed", "passed")
    unknown = sum(x.check.status == "unknown" for x in every)
    reasons = (*found.incomplete, *found.silent)
    counts = {
        "tests": len(every) + len(reasons),
        "failures": sum(x.check.status == "over" for x in every),
        "errors": unknown + len(reasons),
        "skipped": 0,
    }
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", {"name": "costproof gate", **{k: str(v) for k, v in counts.items()}})
    for reason in reasons:
        case = SubElement(suite, "testcase", {"classname": "costproof.gate", "name": "base and head"})
        SubElement(case, "error", {"type": "incomplete", "message": _xml(reason)}).text = _xml(reason)
    for x in every:
        classname = f"costproof.{', '.join(x.sources)}"
        case = SubElement(suite, "testcase", {"classname": _xml(classname), "name": _xml(_name(x))})
        if x.check.status in ("over", "unknown"):
            kind = "failure" if x.check.status == "over" else "error"
            SubElement(case, kind, {"type": x.check.status, "message": _xml(x.sentence)}).text = _xml(x.sentence)
        elif x.check.status == "allowed":
            SubElement(case, "system-out").text = _xml(x.sentence)
    indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("", visible(text))


def gate_sarif(found: Gate) -> str:
    """SARIF 2.1.0: one result for each limit that is passed, at its line in the policy."""
    results = [_result(found, "incomplete", 1, why, why) for why in (*found.incomplete, *found.silent)]
    results += [
        _result(found, x.check.status, x.check.line, x.sentence, f"{_name(x)}, {', '.join(x.sources)}")
        for x in lines(found, "unknown", "over")
    ]
    rules = [
        {"id": rule, "shortDescription": {"text": text}, "fullDescription": {"text": text}, "help": {"text": advice}}
        for rule, text, advice in _RULES.values()
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "costproof", "semanticVersion": VERSION, "rules": rules}},
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _result(found: Gate, status: str, line: int, message: str, about: str) -> dict[str, Any]:
    """A result with all that GitHub wants of one.

    Args:
        about: what tells it from others; a limit with a pattern has many at one line.
    """
    region = {"startLine": line, "startColumn": 1, "endLine": line, "endColumn": 2}
    place = {"artifactLocation": {"uri": quote(found.policy)}, "region": region}
    return {
        "ruleId": _RULES[status][0],
        "level": "error",
        "message": {"text": visible(message)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"primaryLocationLineHash": sha256(about.encode()).hexdigest()[:16]},
    }


def gate_github(found: Gate) -> str:
    """Workflow commands: errors for what does not pass, notices for what is allowed, warnings for idle allowances.

    GitHub shows ten of a kind; where there are more, the first one says how many.
    """
    errors = [(1, why) for why in (*found.incomplete, *found.silent)]
    errors += [(x.check.line, x.sentence) for x in lines(found, "unknown", "over")]
    waiting = [(a.line, idle_text(a)) for a in found.allowances if a.state != "used"]
    kinds = (
        ("error", errors),
        ("warning", waiting),
        ("notice", [(x.check.line, x.sentence) for x in lines(found, "allowed")]),
    )
    text = []
    for kind, items in kinds:
        shown = items
        if len(items) > MOST:
            first = f"{plural(len(items), kind)}, of which {MOST - 1} are shown. {sentence(found)}"
            shown = [(1, first), *items[: MOST - 1]]
        text += [
            f"::{kind} file={_property(found.policy)},line={line},title=costproof gate::{_data(said)}"
            for line, said in shown
        ]
    return "\n".join([*text, visible(sentence(found))]) + "\n"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
