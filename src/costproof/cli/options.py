"""Options that several commands share, and types whose errors read like all our errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from costproof.ledger.errors import BadInput, did_you_mean
from costproof.reports.outputs import variants

F = TypeVar("F", bound=Callable[..., Any])

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")


class Whole(click.ParamType[int]):
    """An integer in decimal digits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not _WHOLE.fullmatch(str(value).strip()):
            raise BadInput(
                "this option takes an integer",
                where=param.opts[0] if param else None,
                expected="decimal digits",
                got=repr(str(value)[:40]),
            )
        return int(value)


class Choice(click.ParamType[str]):
    """One of a few words."""

    name = "choice"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return "|".join(self.words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.words:
            raise BadInput(
                "this choice does not exist",
                where=param.opts[0] if param else None,
                expected=" or ".join(self.words),
                got=repr(str(value)[:40]),
                fix=did_you_mean(str(value), self.words),
            )
        return str(value)


FILE: Final = click.Path(path_type=Path)
"""A path; whether it can be read is said by whoever reads it, in our words."""


def format_option(about: str) -> Callable[[F], F]:
    """``-f``: which of the outputs about one thing; ``outputs.variant`` picks it."""
    known = tuple(variants(about))
    text = f"By the ending of -o unless given, else {known[0]}."
    return click.option("-f", "--format", "kind", type=Choice(*known), help=text)


def workload_options(command: F) -> F:
    """Everything that says what one run processes; left out, the preset decides."""
    whole = Whole()
    options = [
        click.option(
            "--preset", "--workload", "preset", metavar="NAME", help="A named workload; see costproof workloads."
        ),
        click.option(
            "--config",
            type=FILE,
            metavar="FILE",
            help="Configuration of the model, vendor's or native; the published one unless given.",
        ),
        click.option("--base-size", type=whole, metavar="PIXELS", help="Side of the global view."),
        click.option("--image-size", type=whole, metavar="PIXELS", help="Side of one crop."),
        click.option("--grid", metavar="CxR", help="Columns and rows of crops, such as 2x3."),
        click.option("--image", type=FILE, metavar="FILE", help="A page image; its size decides the grid."),
        click.option("--text-tokens", type=whole, metavar="N", help="Tokens of the prompt beside the vision tokens."),
        click.option(
            "--seq-len", type=whole, metavar="N", help="Tokens of the whole prompt, instead of --text-tokens."
        ),
        click.option("--new-tokens", type=whole, metavar="N", help="Decode steps."),
        click.option("--batch", type=whole, metavar="N", help="Pages at once."),
        click.option(
            "--dtype", type=Choice("bfloat16", "float16", "float32"), help="Element type of weights and activations."
        ),
        click.option(
            "--attention", type=Choice("sdpa", "eager", "flash_attention_2"), help="Attention implementation."
        ),
        click.option("--logits", type=Choice("all", "last"), help="Positions that lm_head maps in the prefill."),
        click.option(
            "--experts", type=Choice("grouped_mm", "batched_mm", "eager"), help="Kernel of the routed experts."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def sources_option(command: F) -> F:
    """Which sources count."""
    return click.option(
        "--sources",
        default="analytic,static,dynamic",
        show_default=True,
        metavar="LIST",
        help="Sources to count with, separated by commas; isolated traces every stage alone.",
    )(command)


def all_calls_option(command: F) -> F:
    """How much the callgraph tells about shapes."""
    return click.option(
        "--all-calls", is_flag=True, help="Note the shapes of every call of a module, not of the first alone."
    )(command)


def counters_option(command: F) -> F:
    """Which of other people's counters run beside the sources."""
    return click.option(
        "--counters",
        metavar="LIST|all",
        help="Run other people's counters too: names separated by commas. They do not change the verdict.",
    )(command)


def remote_code_option(command: F) -> F:
    """Whether a snapshot's own code may run."""
    return click.option(
        "--trust-remote-code", is_flag=True, help="Run the Python code in the snapshot folder that TARGET names."
    )(command)


def rules_option(command: F) -> F:
    """The user's own operator rules."""
    return click.option(
        "--rules",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Run this Python file for the operator rules in it; may be given several times.",
    )(command)


def progress_option(command: F) -> F:
    """How progress is shown."""
    return click.option(
        "--progress",
        type=Choice("auto", "always", "never"),
        default="auto",
        show_default=True,
        help="Progress on stderr.",
    )(command)


def listed(sources: str) -> list[str]:
    """The words of a comma-separated list."""
    return [word.strip() for word in sources.split(",") if word.strip()]


class Choices(Choice):
    """Some of a few words, separated by commas; the value is a text with commas, each word once."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        words = listed(str(value)) or [""]
        return ",".join(dict.fromkeys(super(Choices, self).convert(word, param, ctx) for word in words))
