"""The command group. Commands are named here and imported when called, so that ``--help`` stays fast."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

import click

from costproof.cli.streams import ADVICE
from costproof.ledger.environment import VERSION
from costproof.ledger.errors import BadInput, did_you_mean

COMMANDS: Final[dict[str, str]] = {
    "report": "Count a target, compare the sources, write the folder of reports.",
    "capture": "Count a target and write the capture file alone.",
    "compare": "Compare the sources of a capture.",
    "diff": "Compare two captures, baselines or targets, and split every difference over what changed.",
    "gate": "Hold a change against limits: may it pass?",
    "render": "Turn a capture into one of the report formats.",
    "graph": "Draw the callgraph of a capture: DOT, SVG, Mermaid.",
    "plot": "Draw a capture or a sweep: shares, curves, roofline, peaks, counters.",
    "check": "Check published numbers and formulas against a target.",
    "explain": "Break down a stage's cost by formula.",
    "prove": "Prove formulas equal to graphs for all sizes, and over configurations.",
    "derive": "Read a closed formula off the graph of any model.",
    "sweep": "Evaluate formulas over ranges of configuration keys and settings.",
    "roofline": "Say what a run takes at least on a device, and what it waits for.",
    "fits": "Say whether a run fits into a memory, and from which size on it does not.",
    "peaks": "Find the peak of live activations of every stage, and name what holds it.",
    "measure": "Time a run stage by stage, beside its bounds and its operators alone.",
    "machines": "List the devices whose roofs are known.",
    "machine": "Show a device with its sources, or measure this one.",
    "targets": "List the models that can be counted.",
    "workloads": "List the named workloads.",
    "counters": "Run third-party FLOP counters and explain the differences.",
    "ops": "List the operator rules, and what a capture has of them.",
    "schema": "List or print the JSON Schemas of the files.",
    "doctor": "Show versions, extras, plug-ins, and what can be used here.",
}
"""Name -> short help, in the order of a session."""

EPILOG: Final = """\b
Exit codes: 0 all exact or explained, 1 findings, 2 wrong usage or bad input,
3 incomplete (unknown operator, a source failed, interrupted), 70 a bug of ours.
stdout is the report, stderr is progress. COSTPROOF_DEBUG=1 shows tracebacks."""


def _flagged(context: click.Context, param: click.Parameter, value: bool) -> None:
    """Note a flag of the whole program, on whichever side of the command's name it is."""
    if value:
        context.meta[f"costproof.{param.name}"] = True
        ADVICE.shown |= param.name == "verbose"
        ADVICE.quiet |= param.name == "quiet"
        if param.name == "verbose":
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning")


_FLAGS: Final = (
    click.Option(
        ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_flagged,
        help="Print the report and errors alone: no progress, no file names.",
    ),
    click.Option(
        ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_flagged,
        help="Print each step of the progress and what libraries advise.",
    ),
)  # fmt: skip
"""Options of the program and of every command."""


class LazyGroup(click.Group):
    """Commands from :data:`COMMANDS`; the module of one is ``costproof.cli.<name>_command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"costproof.cli.{cmd_name}_command"), cmd_name)
        assert isinstance(command, click.Command)
        if _FLAGS[0] not in command.params:
            command.params += _FLAGS
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            raise BadInput(
                "no such command",
                where=name,
                expected="one of " + ", ".join(COMMANDS),
                fix=did_you_mean(name, COMMANDS) or "see costproof --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(VERSION, prog_name="costproof", message="%(prog)s %(version)s")
def cli() -> None:
    """Count the work of a neural network three ways and account for every difference.

    Closed formulas (analytic), the exported graph (static) and the running model (dynamic) are lined
    up, module by module and operator by operator. What no cause explains is a finding.
    """


cli.params += _FLAGS
