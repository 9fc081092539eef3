"""The documentation as a site: all pages are in it, what the program writes is true, nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.site import pages, reference
from docs.site.nav import nav

from costproof import api
from costproof.cli.main import COMMANDS
from costproof.ledger.environment import installed
from tests.support.running import costproof

ROOT = pages.ROOT
MADE = {"index.md", "contributing.md", "gallery.md", "commands.md", "python.md"}


def test_every_page_is_in_the_navigation() -> None:
    named = [name for _, names in nav() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == {path.name for path in (ROOT / "docs").glob("*.md")} | MADE


def test_llms_txt_is_up_to_date() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text == pages.llms(nav()), "python -m docs.site.nav writes it anew"
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(list((ROOT / "docs").glob("*.md"))) + 2
    assert all((ROOT / link).is_file() for link in links)


def test_a_first_sentence() -> None:
    page = "# `Some` page\n\n![x](y.png)\n\n```sh\n# not a title\n```\n\nIt is [short](a.md), as\n0.5 is. More.\n"
    assert pages.first_sentence(page) == ("Some page", "It is short, as 0.5 is.")
    assert pages.first_sentence("# Title\n\n| a |\n") == ("Title", "")


def test_every_command_is_in_the_reference(tmp_path: Path) -> None:
    text = reference.commands()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == list(COMMANDS)
    assert "Usage: costproof plot [OPTIONS] FILE" in text
    shown = costproof("plot", "--help", cwd=tmp_path, columns=100).stdout
    assert shown.strip() in text
    assert text == reference.commands()


def test_every_function_is_in_the_reference() -> None:
    text = reference.functions()
    assert set(re.findall(r"^## (.*)$", text, flags=re.MULTILINE)) == set(api.__all__) - {"__version__"}
    assert not re.search(r" at 0x|:(func|class|data|mod):|``[^`\n]*``", text)
    assert "costproof.workloads(target: str) -> tuple[NamedWorkload, ...]" in text
    assert "- `findings(" in text.partition("## Report\n")[2].partition("\n## ")[0]
    assert "- `capture`: a capture, its file, or a folder of reports." in text


def test_a_docstring_becomes_lists() -> None:
    text = "Does it.\n\nMore of :func:`~a.b`.\n\nArgs:\n    x: what\n        goes on.\n\nReturns:\n    A ``y``.\n"
    assert [line for line in reference._doc(text) if line] == [
        "Does it.", "More of `b`.", "**Args**", "- `x`: what goes on.", "**Returns**", "- A `y`.",
    ]  # fmt: skip


def test_the_first_page_and_the_gallery_lead_somewhere() -> None:
    for text in (pages.home(), pages.contributing(), pages.gallery()):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert "://" in link or link in MADE or link.startswith("gallery/") or (pages.DOCS / link).exists(), link


def test_the_site_is_built_and_loads_nothing(tmp_path: Path) -> None:
    if installed("mkdocs-material") is None:
        assert not os.environ.get("CI"), "make docs installs what builds the site"
        pytest.skip("mkdocs-material is not installed: the extra [docs]")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = sorted((tmp_path / "site").glob("*.html"))
    assert {p.stem for p in built} >= {Path(name).stem for _, names in nav() for name in names}
    loaded = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//'
    )
    styles = (tmp_path / "site").rglob("*.css")
    assert not [p.name for p in built if loaded.search(p.read_text(encoding="utf-8"))]
    assert not [p.name for p in styles if re.search(r"url\([\"']?https?://|@import", p.read_text(encoding="utf-8"))]
