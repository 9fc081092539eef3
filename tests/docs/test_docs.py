"""Documentation that runs: examples in README and docs are executed, and what they name exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from click import Context, Group

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_give_what_they_show(page: Path) -> None:
    # The closing fence would be taken for output.
    text = re.sub(r"^```\w*$", "", page.read_text(), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, page.name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(examples)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_command_line_in_the_readme_is_understood() -> None:
    from costproof.cli.group import cli

    lines = [
        line.split("#")[0].split()
        for line in re.sub(r"'([^' ]*)'", r"\1", (ROOT / "README.md").read_text()).splitlines()
        if line.startswith("costproof ")
    ]
    assert len(lines) >= 5
    for _, name, *arguments in lines:
        context = Context(cli, **cli.context_settings)
        assert isinstance(cli, Group)
        command = cli.get_command(context, name)
        assert command is not None, name
        command.make_context(name, list(arguments), parent=context, resilient_parsing=True)


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_picture_in_the_readme_is_the_drawn_one() -> None:
    drawn = (ROOT / "docs" / "callgraph.mmd").read_text().rstrip()
    assert f"```mermaid\n{drawn}\n```" in (ROOT / "README.md").read_text()
