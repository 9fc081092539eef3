"""Report the result of a gate as text, pull-request comment, page, JUnit, SARIF and GitHub commands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from costproof.compare.gate.types import AllowanceUse, Check, CheckStatus, Gate
from costproof.ledger.environment import VERSION
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.plural import plural
from costproof.reports.diff import format_amount, format_change, format_delta, percent
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Number,
    Status,
    Table,
    TableRow,
)
from costproof.reports.escape import visible
from costproof.views.describe import counted_lines, versions_line
from costproof.views.numbers import first_names, truncate

HEAD: Final = ("Result", "Place", "Metric", "Δ %", "Δ", "Limit", "Base", "Head")
"""Headings of the table of checks, most important first, as a phone shows only the first columns."""
_ALIGN: Final = "lllrrrrr"
_REASON: Final = 300
_NAME: Final = 120
_MOST_ROWS: Final = 20
"""Maximum number of table rows and of reasons in the text."""
_MOST_COMMENTED: Final = 15
_MOST_REASONS: Final = 5
_MOST_FOLDED: Final = 200
MOST: Final = 10
"""Maximum number of annotations per kind that GitHub shows for one step."""
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
"""SARIF rules (id, description, advice) by status of a check."""
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(found: Gate, form: Form) -> Document:
    """Return the report of a gate: verdict, checks with remarks, allowances to remove, changed inputs."""
    shown, passed = merged_checks(found, "unknown", "over", "allowed"), merged_checks(found, "passed")
    notes, why = unused_allowances(found), reasons(found)
    names: tuple[str, ...] = tuple(dict.fromkeys((found.base.name, found.head.name)))
    about = counted_lines(found.base, found.head)
    changed = (*found.config.changed, *found.workload.changed)
    sign = "✅" if found.verdict == "passed" else "❌"
    if form == "md" and found.verdict == "passed" and not (notes or len(shown)):
        return Document("", (), found.verdict, gate_sentence(found), about, sign=sign)
    body: list[Block] = []
    if form in ("html", "cell"):
        rows = []
        for x in (*shown, *passed):
            why_ = (x.check.why,) if x.check.why else ()
            rows.append(TableRow((*_cells(x), ", ".join(x.sources)), x.check.status, why_, "Why"))
        body += [_reasons(found, why)] if why else []
        table = Table((*HEAD, "Source"), "lllrrlrrl", rows, noun="check", searchable=True)
        body.append(DocumentSection("Checks", [table], id="checks"))
        body += [DocumentSection("Allowances to remove", [Items(tuple(notes))])] if notes else []
        if changed:
            changes = Table(("Changed", "Base → head"), "l", [(c.key, format_change(c)) for c in changed])
            body.append(Details(plural(len(changed), "change"), [changes]))
        made = [f"{side.name} made with {versions_line(side.environment)}." for side in (found.base, found.head)]
        title = f"Cost gate: {' → '.join(names)}"
        return Document(title, body, found.verdict, gate_sentence(found), [*about, f"Policy: {found.policy}"], made)
    most, told = (_MOST_ROWS, why[1:_MOST_ROWS]) if form == "text" else (_MOST_COMMENTED, why[:_MOST_REASONS])
    if len(why) > 1:
        left = len(why) - _MOST_REASONS if form == "md" else 0
        more_reasons = [plural(left, "more reason")] if left > 0 else []
        body.append(Items((*(truncate(x, _REASON) for x in told), *more_reasons)))
    longest = _NAME if form == "md" else None
    body += [Table(HEAD, _ALIGN, [_cells(x, longest) for x in shown[:most]], keys=2)] if shown else []
    because = [f"{places}: {why}" for places, why in shared_reasons(shown[:most])]
    keys = [truncate(f"{c.key} {format_change(c)}", _NAME) for c in changed]
    if form == "text":
        more = len(shown) - most
        body += because
        body += [f"{plural(more, 'more check')} did not simply pass; -f json has them."] if more > 0 else []
        body += [f"Changed: {first_names([c.key for c in changed], 8)}."] if changed else []
        return Document(gate_sentence(found), [*body, *(f"Note: {note}." for note in notes)], about=about)
    body += [Items(tuple(f"{line}." for line in because))] if because else []
    body += [Items(tuple(f"{note[:1].upper()}{note[1:]}." for note in notes[:_MOST_REASONS]))] if notes else []
    body += [f"Changed: {first_names(keys, 8)}."] if changed else []
    later = (
        (f"{plural(len(shown) - most, 'more check')} that did not simply pass", shown[most:]),
        (f"{plural(len(passed), 'check')} passed", passed),
    )
    for title, rest in later:
        more_ = "" if len(rest) <= _MOST_FOLDED else f"; the first {_MOST_FOLDED}"
        table = Table(HEAD, _ALIGN, [_cells(x, _NAME) for x in rest[:_MOST_FOLDED]])
        body += [Details(title + more_, [table])] if rest else []
    coded = [piece for name in names for piece in (" → ", Code(truncate(name, _NAME)))]
    return Document(("Cost gate: ", *coded[1:]), body, found.verdict, gate_sentence(found), about, sign=sign)


def _reasons(found: Gate, why: list[str]) -> DocumentSection:
    title = "Incomplete" if len(why) > len(found.silent) else "Findings"
    return DocumentSection(title, [Items(tuple(why))], flagged=True)


def _cells(x: GateLine, longest: int | None = None) -> tuple[Cell, ...]:
    """Return the cells of a check, in the order of :data:`HEAD`."""
    c = x.check
    change_ = (percent(c.delta, c.base), Number(c.delta, format_delta(c.delta, c.metric)))
    sides = (Number(c.base, format_amount(c.base, c.metric)), Number(c.head, format_amount(c.head, c.metric)))
    place = Code(c.place if longest is None else truncate(c.place, longest))
    return (Status(c.status), place, EVERY_METRIC[c.metric].title, *change_, c.limit, *sides)


@dataclass(frozen=True, slots=True)
class GateLine:
    """A check of the gate; sources with equal results are merged into one line."""

    check: Check
    sources: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Return the check in words: ``prefill: FLOPs +310.20 GFLOP (+23.2 %), 1.34 → 1.65 TFLOP; increase 1 %``."""
        c = self.check
        name = f"{c.place}: {EVERY_METRIC[c.metric].title}"
        who = ", ".join(self.sources)
        if c.status == "unknown":
            return f"{name} unknown ({who}): {c.why}"
        share = percent(c.delta, c.base)
        size = f"{format_delta(c.delta, c.metric)}{f' ({share})' if share else ''}, " if c.delta is not None else ""
        over = f", {format_amount(c.over, c.metric)} over" if c.over else ""
        why = f"; {truncate(c.why, _REASON)}" if c.why else ""
        sides = f"{format_amount(c.base, c.metric)} → {format_amount(c.head, c.metric)}"
        return f"{name} {size}{sides}; {c.limit}{over} ({who}){why}"


def merged_checks(found: Gate, *statuses: CheckStatus) -> list[GateLine]:
    """Return the checks with these statuses, furthest above the limit first; sources with equal results are merged."""
    merged: dict[tuple[object, ...], list[Check]] = {}
    for c in found.of(*statuses):
        key = (c.metric, c.place, c.limit, c.base, c.head, c.status, c.why, c.line)
        merged.setdefault(key, []).append(c)
    return [GateLine(same[0], tuple(c.source for c in same)) for same in merged.values()]


def shared_reasons(found: Sequence[GateLine]) -> list[tuple[str, str]]:
    """Return (places, reason) of the checks in a table; checks with equal reasons are merged."""
    said: dict[str, dict[str, None]] = {}
    for x in found:
        if x.check.why:
            said.setdefault(truncate(x.check.why, _REASON), {})[truncate(x.check.place, _NAME)] = None
    return [(first_names([*places], 3), why) for why, places in said.items()]


def gate_sentence(found: Gate) -> str:
    """Return the verdict in one sentence."""
    over, allowed = merged_checks(found, "over"), merged_checks(found, "allowed")
    every = merged_checks(found, "passed", "allowed", "over", "unknown")
    by = f", {len(allowed):,} of them by an allowance" if allowed else ""
    why = reasons(found)
    more = f" and {plural(len(why) - 1, 'more reason')}" if len(why) > 1 else ""
    if found.verdict == "passed":
        return f"Passed: {plural(len(every), 'check')}{by} ({found.head.name})."
    if found.verdict == "over":
        which = "Incomplete" if len(why) > len(found.silent) else "A source fell silent"
        also = f"{which}: {truncate(why[0], _REASON)}{more}." if why else ""
        if not over:
            return also
        return f"Over the limit in {len(over):,} of {plural(len(every), 'check')}; {over[0].sentence}. {also}".rstrip()
    return f"Incomplete, so it does not pass: {truncate(why[0], _REASON)}{more}."


def reasons(found: Gate) -> list[str]:
    """Return every reason, apart from exceeded limits, why the gate does not pass."""
    return [*found.incomplete, *found.silent, *(x.sentence for x in merged_checks(found, "unknown"))]


def unused_allowances(found: Gate) -> list[str]:
    """Return the allowances of the policy that have expired or are not needed."""
    return [idle_text(a) for a in found.allowances if a.state != "used"]


def idle_text(a: AllowanceUse) -> str:
    """Return the sentence about one policy allowance that has expired or is not needed."""
    state = "has run out" if a.state == "expired" else "is not needed"
    return f"the allowance for {a.place} ({truncate(a.reason, 80)}, until {a.until}) {state}"


def _name(line: GateLine) -> str:
    return f"{line.check.metric} of {line.check.place}, {line.check.limit}"


def gate_junit(found: Gate) -> str:
    """Return JUnit XML with one test case per check; reasons for an undecided gate are errors of their own."""
    every = merged_checks(found, "unknown", "over", "allowed", "passed")
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
    """Return SARIF 2.1.0 with one result per violated limit, located at its line in the policy."""
    results = [_result(found, "incomplete", 1, why, why) for why in (*found.incomplete, *found.silent)]
    results += [
        _result(found, x.check.status, x.check.line, x.sentence, f"{_name(x)}, {', '.join(x.sources)}")
        for x in merged_checks(found, "unknown", "over")
    ]
    rules = [
        {"id": rule, "shortDescription": {"text": text}, "fullDescription": {"text": text}, "help": {"text": advice}}
        for rule, text, advice in _RULES.values()
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": {"name": "costproof", "semanticVersion": VERSION, "rules": rules}}, "results": results}
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _result(found: Gate, status: str, line: int, message: str, about: str) -> dict[str, Any]:
    """Return one SARIF result with the fields that GitHub requires.

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
    """Return workflow commands: errors for violations, notices for allowed increases, warnings for unused allowances.

    GitHub shows ten of a kind; where there are more, the first one says how many.
    """
    errors = [(1, why) for why in (*found.incomplete, *found.silent)]
    errors += [(x.check.line, x.sentence) for x in merged_checks(found, "unknown", "over")]
    waiting = [(a.line, idle_text(a)) for a in found.allowances if a.state != "used"]
    kinds = (
        ("error", errors),
        ("warning", waiting),
        ("notice", [(x.check.line, x.sentence) for x in merged_checks(found, "allowed")]),
    )
    text = []
    for kind, items in kinds:
        shown = items
        if len(items) > MOST:
            first = f"{plural(len(items), kind)}, of which {MOST - 1} are shown. {gate_sentence(found)}"
            shown = [(1, first), *items[: MOST - 1]]
        text += [
            f"::{kind} file={_property(found.policy)},line={line},title=costproof gate::{_data(said)}"
            for line, said in shown
        ]
    return "\n".join([*text, visible(gate_sentence(found))]) + "\n"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
