"""Reference pages, read off the program: every command with its help, every function of ``costproof``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from typing import Final

import click

from costproof import api
from costproof.cli.main import COMMANDS, cli
from costproof.ledger.environment import VERSION

_WIDTH: Final = 100
_ROLE: Final = re.compile(r":\w+:`~?(?:[\w.]*\.)?([\w]+)`")
_SECTION: Final = re.compile(r"(Args|Returns|Raises|Yields):")


def commands() -> str:
    """The command line: one section a command, its help as the program prints it."""
    sizes = {"max_content_width": _WIDTH, "terminal_width": _WIDTH - 2, **cli.context_settings}
    top = click.Context(cli, info_name="costproof", **sizes)
    lines = ["# Commands", "", f"Of costproof {VERSION}, as `--help` prints it.", ""]
    lines += ["```text", cli.get_help(top), "```", ""]
    for name, what in COMMANDS.items():
        command = cli.get_command(top, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=top, **sizes)
        lines += [f"## {name}", "", what, "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def functions() -> str:
    """The Python interface: one section a name, with signature and docstring."""
    head = inspect.getdoc(api) or ""
    lines = ["# Python interface", "", *_prose(head), ""]
    for name in sorted(api.__all__, key=str.lower):
        value = getattr(api, name)
        if isinstance(value, str):
            continue
        lines += [
            f"## {name}",
            "",
            "```python",
            _signature(name, value),
            "```",
            "",
            *_doc(inspect.getdoc(value) or ""),
            "",
            *(_members(value) if inspect.isclass(value) else ()),
        ]
    return "\n".join(lines)


def _signature(name: str, value: object) -> str:
    """``costproof.plot(what: …, kinds: … = 'svg') -> …``, an argument a line where it is long."""
    head = f"{'class ' if inspect.isclass(value) else ''}costproof.{name}("
    made, end = _arguments(value)
    line = f"{head}{', '.join(made)}){end}"
    return line if len(line) <= _WIDTH else "\n".join([head, *(f"    {one}," for one in made), f"){end}"])


def _arguments(value: object) -> tuple[list[str], str]:
    """The arguments of a function, or of the method of an object, and ``-> …``."""
    assert callable(value)
    shown = inspect.signature(value)
    parameters = [p for name, p in shown.parameters.items() if name != "self"]
    made = [_plain(str(p)) for p in parameters]
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        made.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = shown.return_annotation
    return made, "" if inspect.isclass(value) or result is inspect.Signature.empty else f" -> {result}"


def _members(value: type) -> Iterator[str]:
    """Yield methods and properties of a class and its bases, each with the first sentence of its docstring."""
    members = {
        n: m for c in reversed(value.__mro__) if c.__module__.startswith("costproof.") for n, m in vars(c).items()
    }
    for name, member in members.items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property | cached_property)):
            continue
        made, end = _arguments(member) if inspect.isfunction(member) else ([], "")
        shown = f"{name}({', '.join(made)}){end}" if inspect.isfunction(member) else name
        said = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
        yield f"- `{shown}`: {_inline(said)}"
    yield ""


def _plain(parameter: str) -> str:
    """A parameter without the quotes of its annotation; of a function as its default, the name."""
    named = re.sub(r"<function (\w+) at 0x\w+>", r"\1", parameter)
    return re.sub(r": '(.*?)'(?= =|$)", r": \1", named).replace("'", '"')


def _doc(text: str) -> Iterator[str]:
    """A docstring in Markdown: its sections become lists."""
    section: list[str] = []
    for line in [*text.splitlines(), ""]:
        if _SECTION.fullmatch(line):
            yield from _items(section)
            yield f"**{line.removesuffix(':')}**"
            yield ""
            section = [line]
        elif section and (line.startswith("    ") or not line):
            section.append(line)
        else:
            yield from _items(section)
            section = []
            yield _inline(line)
    yield from _items(section)


def _items(section: list[str]) -> Iterator[str]:
    """The entries of a section; a line that is indented further goes on with the one before it."""
    entries: list[str] = []
    for line in textwrap.dedent("\n".join(section[1:])).splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line.strip())
    named = (re.match(r"([\w*, ]+): (.*)", entry) for entry in entries)
    yield from (f"- `{m[1]}`: {_inline(m[2])}" if m else f"- {_inline(e)}" for m, e in zip(named, entries, strict=True))
    if entries:
        yield ""


def _prose(text: str) -> Iterator[str]:
    return map(_inline, text.splitlines())


def _inline(text: str) -> str:
    """Markdown of a line: roles become code, double backticks single ones."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")
