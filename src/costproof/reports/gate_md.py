"""A gate as one comment on a pull request, or as the summary of a job."""

from __future__ import annotations

from typing import Final

from costproof.compare.gate.types import Gate
from costproof.ledger.plural import plural
from costproof.reports.diff_words import change
from costproof.reports.escape import code, details, markdown, table, unbroken
from costproof.reports.gate_words import HEAD, LEFT, Line, changes, idle, lines, reasons, sentence, whys
from costproof.views.describe import counted_lines
from costproof.views.numbers import cut, some

BUDGET: Final = 60_000
"""Bytes of the text: a comment on GitHub may have 65,536 characters, a job's summary 1,024 k."""
_ROWS: Final = 15
_REASONS: Final = 5
_FOLDED: Final = 200
_NAME: Final = 120


def gate_md(found: Gate) -> str:
    """The report; one line where everything passed without an allowance."""
    notes = idle(found)
    failed, allowed = lines(found, "unknown", "over"), lines(found, "allowed")
    counted = [markdown(line) for line in counted_lines(found.base, found.head)]
    if found.verdict == "passed" and not allowed and not notes:
        return f"✅ {markdown(sentence(found))} {' '.join(counted)}\n"
    names = dict.fromkeys(code(cut(side.name, _NAME)) for side in (found.base, found.head))
    sign = "✅" if found.verdict == "passed" else "❌"
    text = [f"## {sign} Cost gate: {' → '.join(names)}", "", f"**{markdown(sentence(found))}**", ""]
    text += [line for one in counted for line in (one, "")]
    why = reasons(found)
    if len(why) > 1:
        text += [f"- {markdown(cut(x, 300))}" for x in why[:_REASONS]]
        text += [f"- {plural(len(why) - _REASONS, 'more reason')}"] if len(why) > _REASONS else []
        text.append("")
    shown = [*failed, *allowed]
    text += _table(shown[:_ROWS])
    because = [f"- {markdown(places)}: {markdown(why)}." for places, why in whys(shown[:_ROWS])]
    text += [*because, ""] if because else []
    text += [f"- {markdown(note[:1].upper() + note[1:])}." for note in notes[:_REASONS]] + ([""] if notes else [])
    if changes(found):
        keys = [f"{c.key} {change(c)}" for c in (*found.config.changed, *found.workload.changed)]
        text += [markdown(f"Changed: {some([cut(k, _NAME) for k in keys], 8)}."), ""]
    sections = [
        (f"{plural(len(rest), 'more check')} that did not simply pass", rest) for rest in [shown[_ROWS:]] if rest
    ]
    passed = lines(found, "passed")
    sections += [(f"{plural(len(passed), 'check')} passed", passed)] if passed else []
    size = sum(len(line.encode()) + 1 for line in text)
    for title, rows in sections:
        more = "" if len(rows) <= _FOLDED else f"; the first {_FOLDED}"
        section = details(title + more, _table(rows[:_FOLDED])[:-1])
        size += sum(len(line.encode()) + 1 for line in section)
        if size > BUDGET - 200:
            text.append(f"Left out, to stay below {BUDGET:,} bytes: {title}. The JSON has everything.")
            break
        text += section
    return "\n".join(text).rstrip() + "\n"


def _table(found: list[Line]) -> list[str]:
    rows = []
    for status, place, metric, *numbers in (x.cells for x in found):
        rows.append((status, code(cut(place, _NAME)), metric, *(unbroken(markdown(n)) for n in numbers)))
    align = "l" * LEFT + "r" * (len(HEAD) - LEFT)
    return [*table(HEAD, align, rows), ""] if rows else []
