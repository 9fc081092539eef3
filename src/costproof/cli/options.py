"""Options that several commands share, by name. What only some targets have, a target's command adds itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import click

from costproof import api
from costproof.cli.kinds import FILE, PRESET, Choice, Whole, Words
from costproof.cli.output import emit
from costproof.ledger.errors import EXIT_OK, BadInput
from costproof.ledger.run import ALL_SOURCES, DEFAULT_SOURCES, Convention, RunDevice
from costproof.reports.outputs import variants

if TYPE_CHECKING:
    from costproof.run.request import RunRequest

F = TypeVar("F", bound=Callable[..., Any])


_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "request": click.option(
        "--request", "file", type=FILE, metavar="FILE",
        help="A run as YAML; other options go before what it says. Code that it names runs only if TARGET, --rules or"
        " --trust-remote-code name it here too.",
    ),
    "dry-run": click.option(
        "--dry-run", is_flag=True,
        help="Check everything that needs no tracing and none of your code, and print the run as YAML.",
    ),
    "config": click.option(
        "--config", type=FILE, metavar="FILE", help="Configuration of the model; the published one unless given."
    ),
    "preset": click.option(
        "--preset", "--workload", "preset", type=PRESET, metavar="NAME",
        help="A named workload; see costproof workloads.",
    ),
    "run": click.option(
        "--run", type=Choice(*get_args(RunDevice)),
        help="Where the dynamic source runs: meta computes shapes alone; cpu and cuda really run.",
    ),
    "weights": click.option(
        "--weights", metavar="random|DIR",
        help="Weights of a real run: seeded random ones, or a folder of safetensors.",
    ),
    "layers": click.option(
        "--layers", type=Whole(), metavar="N", help="Keep the first N layers; all sources count the smaller model."
    ),
    "seed": click.option("--seed", type=Whole(), metavar="N", help="Seed of random weights and inputs."),
    "profile": click.option(
        "--profile", type=Whole(), metavar="N",
        help="Measure a real run N times: profile.json, profile.md and a Chrome trace.",
    ),
    "sources": click.option(
        "--sources", type=Words(offered=lambda: ALL_SOURCES), metavar="LIST",
        help=f"Of {', '.join(ALL_SOURCES)}; isolated traces every stage alone.  [default: {','.join(DEFAULT_SOURCES)}]",
    ),
    "convention": click.option(
        "--convention", type=Choice(*get_args(Convention)),
        help="Count also what fvcore calls flops and activations, for stages alone and within the whole run.",
    ),
    "all-calls": click.option(
        "--all-calls", is_flag=True, help="Note the shapes of every call of a module, not of the first alone."
    ),
    "peaks": click.option(
        "--peaks", is_flag=True, help="Find the peaks of live activations too, by an export and two runs of each stage."
    ),
    "counters": click.option(
        "--counters", type=Words(metavar="LIST|all", offered=lambda: ("all", *api.counter_names())),
        help="Run third-party counters too: names separated by commas. They do not change the verdict.",
    ),
    "trust-remote-code": click.option(
        "--trust-remote-code", is_flag=True,
        help="Run the Python code in the snapshot, or beside the configuration, that the target names.",
    ),
    "rules": click.option(
        "--rules", multiple=True, type=FILE, metavar="FILE",
        help="Run this Python file for the operator rules in it; may be given several times.",
    ),
    "no-cache": click.option(
        "--no-cache", is_flag=True, help="Export anew; without it exports are kept in the user's cache folder."
    ),
    "progress": click.option(
        "--progress", type=Choice("auto", "always", "never"), default="auto", show_default=True,
        help="Progress on stderr.",
    ),
    "output": click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout."),
}  # fmt: skip


def options(*names: str) -> Callable[[F], F]:
    """The shared options of these names, in this order."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def format_option(about: str, *, table: bool = False) -> Callable[[F], F]:
    """``-f``: which of the outputs about one thing; ``outputs.variant`` picks it.

    Args:
        table: whether a terminal has a table of its own.
    """
    known = tuple(variants(about))
    text = f"By the ending of -o unless given, else {'a table on a terminal and ' if table else ''}{known[0]}."
    return click.option("-f", "--format", "kind", type=Choice(*known), help=text)


def asked(target: str | None, file: Path | None, choices: dict[str, Any]) -> RunRequest:
    """The run that a line describes: the request file's, with the line's own choices on top.

    Raises:
        BadInput: neither names a target, or a choice is wrong.
    """
    context = click.get_current_context()
    repeated = ("rules", "input")  # options that may be given several times: () where they are not
    given = {k: v for k, v in choices.items() if v is not None and v is not False and (v != () or k not in repeated)}
    if target is None and file is None:
        path = context.command_path
        raise BadInput("missing argument 'TARGET'", where=path, fix=f"see {path} --help")
    base = (
        target
        if file is None
        else api.read_request(
            file, target, rules=given.get("rules", ()), trust_remote_code="trust_remote_code" in given
        )
    )
    return api.request(base or "", verb=str(context.command.name), **given)


def of_run(command: Callable[..., int]) -> Callable[..., int]:
    """A command of a run: its first argument is the request that the line makes of all that it does not take itself.

    With ``--dry-run`` the request is printed instead.
    """
    own = tuple(signature(command).parameters)[1:]

    @wraps(command)
    def made(target: str | None, file: Path | None, dry_run: bool, **given: Any) -> int:
        taken = {name: given.pop(name) for name in own}
        run = asked(target, file, given)
        if dry_run:
            emit(api.request_text(run, str(click.get_current_context().command.name)), None)
            return EXIT_OK
        return command(run, **taken)

    return made
