"""Define the command group, which imports commands when they are called, so that ``--help`` is fast."""

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
    "capture": "Count a target and write only the capture file.",
    "compare": "Compare the sources of a capture.",
    "diff": "Compare two captures, baselines or targets, and attribute every difference to a change.",
    "gate": "Check a change against limits.",
    "render": "Turn a capture into one of the report formats.",
    "graph": "Draw the callgraph of a capture: DOT, SVG, Mermaid.",
    "plot": "Draw a capture or a sweep: shares, curves, roofline, peaks, counters.",
    "check": "Check published numbers and formulas against a target.",
    "explain": "Break down the cost of a stage by formula.",
    "prove": "Prove that formulas equal graphs for all sizes and over configurations.",
    "derive": "Derive a closed formula from the graph of any model.",
    "sweep": "Evaluate formulas over ranges of configuration keys and settings.",
    "roofline": "Bound the time of a run on a device, and name the limiting resource.",
    "fits": "Check whether a run fits into memory, and up to which size.",
    "stored": "State what a checkpoint takes on disk, to the byte.",
    "peaks": "Find the peak of live activations of every stage and the tensors in it.",
    "measure": "Time a run stage by stage, and compare with bounds and isolated operators.",
    "machines": "List the devices with known peak rates.",
    "machine": "Show a device with the sources of its figures, or measure this machine.",
    "targets": "List the models that can be counted.",
    "workloads": "List the named workloads.",
    "counters": "Run third-party FLOP counters and explain the differences.",
    "ops": "List the operator rules, or the operators of a capture.",
    "schema": "List or print the JSON Schemas of the files.",
    "doctor": "Show versions, extras, plug-ins and available sources.",
}
"""Name -> short help, in the order of a typical session."""
_MODULES: Final = {
    "compare": "check compare diff gate graph plot render",
    "count": "capture counters measure peaks report",
    "estimate": "fits machine machines roofline stored",
    "formula": "derive explain prove",
    "list": "doctor ops schema targets workloads",
    "sweep": "sweep",
}
"""``NAME`` of a module ``costproof.cli.NAME_commands`` -> its commands."""
_MODULE_OF: Final = {command: name for name, commands in _MODULES.items() for command in commands.split()}

EPILOG: Final = """\b
Exit codes: 0 all exact or explained, 1 findings, 2 wrong usage or bad input,
3 incomplete (unknown operator, a source failed, interrupted), 70 a bug of ours.
stdout is the report, stderr is progress. COSTPROOF_DEBUG=1 shows tracebacks."""


def _flagged(context: click.Context, param: click.Parameter, value: bool) -> None:
    """Store the value of a global flag, which may precede or follow the command's name."""
    if value:
        context.meta[f"costproof.{param.name}"] = True
        ADVICE.shown |= param.name == "verbose"
        ADVICE.quiet |= param.name == "quiet"
        if param.name == "verbose":
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning")


_FLAGS: Final = (
    click.Option(
        ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_flagged,
        help="Print only the report and errors: no progress, no file names.",
    ),
    click.Option(
        ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_flagged,
        help="Print each step of the progress and the warnings of libraries.",
    ),
)  # fmt: skip
"""Options of the program and of every command."""


class LazyGroup(click.Group):
    """A group of the commands in :data:`COMMANDS`, which imports each when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"costproof.cli.{_MODULE_OF[cmd_name]}_commands"), cmd_name)
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
