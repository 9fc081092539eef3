"""Names are data: no text may leave its table cell, its line or its code span."""

from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from costproof.reports.escape import code, markdown, table, visible

NASTY = st.text(alphabet="ab_|`<>&\n\r\x1b[]()*\\~$#!\"'{}\u202e\u2028@/:", max_size=30)


@given(NASTY)
def test_prose_has_no_live_markup(text: str) -> None:
    shown = markdown(text)
    assert not re.search(r"[<>|`*\\~$\n\r\x1b\u202e\u2028]", shown)
    assert "](" not in shown
    assert html.unescape(shown) == visible(text)


@given(NASTY)
def test_a_code_span_shows_the_text_and_closes(text: str) -> None:
    shown = code(text)
    if shown == "—":
        assert visible(text) == ""
        return
    inside = re.fullmatch(r"`([^`|]+)`|<code>([^<>|`\n]*)</code>", shown)
    assert inside is not None
    assert html.unescape(inside[1] or inside[2] or "") == visible(text)


@given(st.lists(NASTY, min_size=1, max_size=4))
def test_a_row_keeps_its_cells(cells: list[str]) -> None:
    line = table((*(code(c) for c in cells), *(markdown(c) for c in cells)), "", [])[0]
    assert "\n" not in line
    assert line.count("|") == 2 * len(cells) + 1


def test_usual_names_stay_readable_in_the_source() -> None:
    assert code("sam[crops]/layers.[0-1].lin:linear#flops") == "`sam[crops]/layers.[0-1].lin:linear#flops`"
    assert markdown("sam[crops]/layers.[0-1].mlp_in = -512") == "sam[crops]/layers.[0-1].mlp_in = -512"


def test_control_characters_become_visible() -> None:
    assert visible("a\x1b[31mb\nc\u202ed") == "a\\x1b[31mb\\nc\\u202ed"
