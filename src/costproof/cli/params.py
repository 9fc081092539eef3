"""Define click parameter types with costproof's error messages, and shell completion.

Bash splits ``deepseek-ocr@gundam`` and ``--over base=1`` into several words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from costproof import api
from costproof.ledger.errors import BadInput, CostproofError, invalid_choice
from costproof.ledger.run import parse_integer

TARGET_OF: Final = "costproof.target"
"""Key of (target, its options) in the metadata of the click context."""


def _option_name(param: click.Parameter | None) -> str | None:
    return param.opts[0] if param else None


def _completions(words: Iterable[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(typed)]


class IntParam(click.ParamType[int]):
    """Click parameter type of integers in decimal digits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return parse_integer(value, _option_name(param))


class ChoiceParam(click.ParamType[str]):
    """Click parameter type of one of a few choices."""

    name = "choice"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return "|".join(self.words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.words:
            raise invalid_choice(_option_name(param), value, self.words)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _completions(self.words, incomplete)


class ListParam(click.ParamType[tuple[str, ...]]):
    """Click parameter type of comma-separated lists; if ``known`` is given, other items are errors."""

    name = "list"

    def __init__(self, *known: str, metavar: str = "LIST", offered: Callable[[], Iterable[str]] | None = None) -> None:
        self.known = known
        self.metavar = metavar
        self.offered = offered or (lambda: known)
        """Items that shell completion offers; if ``known`` is empty, the library validates them later."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        words = value if isinstance(value, tuple) else tuple(w.strip() for w in str(value).split(",") if w.strip())
        if self.known and not words:
            raise BadInput("no format is named", where=_option_name(param), expected=" or ".join(self.known))
        return tuple(dict.fromkeys(ChoiceParam(*self.known).convert(w, param, ctx) if self.known else w for w in words))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + item.value) for item in _completions(self.offered(), last)]


class NameParam(click.ParamType[str]):
    """Click parameter type of names that the library validates, so that any text is accepted here."""

    name = "name"

    def __init__(self, known: Callable[[str | None], Iterable[str]], *, or_file: bool = False) -> None:
        self.known = known
        """Function that returns the valid names, given the target if the command line already names one."""
        self.or_file = or_file
        """Whether shell completion offers files if no name matches."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # Click gives up on a line that ends with an option; its target is known all the same.
        target = ctx.params.get("target") or ctx.meta.get(TARGET_OF, (None,))[0]
        try:
            found = _completions(self.known(_built_in_target(target)), incomplete)
        except CostproofError:
            found = []  # having nothing to offer is not an error while somebody types
        return [CompletionItem(incomplete, type="file")] if self.or_file and not found else found


def _names_a_function(target: str) -> bool:
    """Return whether a target is a function, which shell completion must not run."""
    return target not in api.targets() and ":" in target.removeprefix("hf:")


def _built_in_target(target: str | None) -> str | None:
    """Return the target if it is built in, since shell completion runs no foreign code."""
    plugin = api.targets().get(target) if target else None
    return target if plugin is not None and plugin.owner == "costproof" else None


class OperandParam(click.ParamType[str]):
    """Click parameter type of a target with settings, or a file."""

    name = "side"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        target, at, _ = incomplete.partition("@")
        try:
            names = (
                [f"{target}@{w.name}" for w in api.workloads(target)]
                if at and _built_in_target(target)
                else [*api.targets()]
            )
        except CostproofError:
            names = []
        found = _completions(names, incomplete)
        return found or [CompletionItem(incomplete, type="file")]


class AxisParam(click.ParamType[str]):
    """Click parameter type of a setting with values, ``NAME=VALUES``."""

    name = "varied"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        target = _built_in_target(ctx.params.get("target") or ctx.meta.get(TARGET_OF, (None,))[0])
        return _completions((f"{s.name}=" for s in api.settings(target)), incomplete) if target else []


FILE: Final = click.Path(path_type=Path, readable=False)
"""Click parameter type of a file path; a command checks whether the file can be read when it opens it."""
TARGET: Final = NameParam(lambda target: api.targets(), or_file=True)
PRESET: Final = NameParam(lambda target: [w.name for w in api.workloads(target)] if target else ())
STAGE: Final = NameParam(lambda target: api.stages(target) if target and not _names_a_function(target) else ())
DEVICE: Final = NameParam(lambda target: api.machines())
OPERAND: Final = OperandParam()


_SOURCE: Final = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local response

    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
%(complete_var)s=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
            if [[ $value == *= ]]; then
                compopt -o nospace 2> /dev/null
            fi
        fi
    done

    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""


class _Bash(BashComplete):
    """Bash completion, which joins words again that bash has split at ``@`` and ``=``."""

    source_template = _SOURCE

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(_line())
        last = words.pop() if words and not _line()[-1:].isspace() else ""
        return words[1:], last

    def format_completion(self, item: CompletionItem) -> str:
        _, last = self.get_completion_args()
        taken = max((last.rfind(mark) + 1 for mark in os.environ.get("COMP_BREAKS", "") if mark in "=:@"), default=0)
        value = item.value[taken:] if item.value.startswith(last[:taken]) else item.value
        return f"{item.type},{value}"


def _line() -> str:
    return os.environ.get("COMP_LINE", "")


add_completion_class(_Bash)
