"""Run a command, and turn every outcome into one message and one exit code."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

import click

from costproof.cli.entry import AGAIN
from costproof.cli.output import print_note
from costproof.cli.streams import ADVICE, ending_signals, held_advice, tolerant_streams
from costproof.foreign import as_command, blamed, line_of, skipped
from costproof.ledger.ending import ENDING
from costproof.ledger.environment import VERSION
from costproof.ledger.errors import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_INCOMPLETE,
    EXIT_OK,
    BadInput,
    Bug,
    CostproofError,
    Incomplete,
    by_its_name,
    did_you_mean,
    first_line,
    setting_fix,
)
from costproof.ledger.offline import offline
from costproof.reports.escape import visible

DEBUG = "COSTPROOF_DEBUG"
COMPLETE = "_COSTPROOF_COMPLETE"
"""Name of the environment variable by which click recognises shell completion."""
_OF_THE_SYSTEM: Final = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.EACCES)
"""Error numbers of file errors that costproof's code cannot avoid."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; no exception escapes.

    Exit codes: 0 all exact or explained, 1 findings, 2 wrong usage or bad input, 3 incomplete, 70 a bug of ours.

    Args:
        arguments: without the program's name (default: those of the process).
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with offline(), tolerant_streams(), ending_signals() as came, held_advice() as advice, as_command():
            code = _run(given)
            if advice.line and not advice.quiet:
                click.echo(visible(advice.line), err=True)
            for error in skipped():
                print_note(f"skipped: {error.line}")
            if came and code != EXIT_INCOMPLETE:  # foreign code swallowed the interrupt
                code = _interrupt(ENDING[came[0]])
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        code = _fail_at_last(error)
    if arguments is None:
        with suppress(OSError):
            os.dup2(2, 1)  # the report is complete: output of foreign code while the process ends is not part of it
    return code


def _run(given: Sequence[str]) -> int:
    try:
        for argument in given:
            if "\0" in argument:  # click asks the system about it
                raise BadInput("an argument holds a null character", where=visible(argument), expected="no null bytes")
        if COMPLETE in os.environ:
            import costproof.cli.params  # noqa: F401  (it adds our completion to click)
        result = cli.main(args=list(given), prog_name="costproof", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else EXIT_OK
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        return _fail(_usage_error(error, given))
    except (click.Abort, KeyboardInterrupt) as error:
        by = error.__context__ if isinstance(error, click.Abort) else error  # click's word for the same
        return _interrupt(str(by) if by is not None and str(by) else "Ctrl-C")
    except CostproofError as error:
        return _fail(error)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "costproof").partition(".")[0] != "costproof":
            fix = "install it; costproof doctor says which packages each source needs"
            return _fail(Incomplete("a package that this needs cannot be imported", got=first_line(error), fix=fix))
        if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
            where = "stdout" if error.filename is None else str(error.filename)
            return _fail(
                BadInput("the operating system refuses to read or write this file", where=where, got=error.strerror)
            )
        if (told := blamed(error)) is not None:
            told.__cause__ = error
            return _fail(told)
        bug = Bug(
            "costproof has a bug",
            got=first_line(error),
            fix=f"please report it with the command and the traceback that {DEBUG}=1 shows",
        )
        bug.__cause__ = error
        return _fail(bug)
    except BaseException as error:  # SystemExit and the like: none of ours
        if isinstance(error, SystemExit) and COMPLETE in os.environ:  # click answers a shell, and exits
            return error.code if isinstance(error.code, int) else EXIT_BAD_INPUT
        return _fail(_foreign_exit(error))


def _fail_at_last(error: BaseException) -> int:
    """Print an exception raised while another outcome was being reported, with as little code as possible."""
    ours = isinstance(error, Exception)
    what = "costproof has a bug" if ours else "code of the model or of a plug-in ends the program"
    lines = [f"error: {what}", f"  got:      {type(error).__name__}"]
    with suppress(BaseException):
        lines[1:] = [f"  where:    {line_of(error)}", f"  got:      {visible(first_line(error))}"]
    os.write(2, "\n".join((*lines, "")).encode())
    return EXIT_BUG if ours else EXIT_BAD_INPUT


def _foreign_exit(error: BaseException) -> CostproofError:
    """Return the error for foreign code that ended the program outside of guarded calls."""
    place = line_of(error)
    told = BadInput("code of the model or of a plug-in ends the program", where=place, got=first_line(error))
    told.__cause__ = error
    return told


def _usage_error(error: click.ClickException, arguments: Sequence[str]) -> CostproofError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "costproof"
    if path == "costproof" and arguments and arguments[0] in COMMANDS:
        path = f"costproof {arguments[0]}"  # click does not state the command whose option lacks a value
    what = error.format_message().rstrip(".")
    told = BadInput(what[:1].lower() + what[1:], where=path, fix=f"see {path} --help")
    if isinstance(error, click.NoSuchOption) and context is not None:
        from costproof.cli.params import OPERAND, TARGET_OF
        from costproof.ledger.mesh import AXES, PLAN, RANK, no_such_setting

        target, options = context.meta.get(TARGET_OF, ("", ()))
        name = error.option_name.lstrip("-")
        if options and name in (*AXES, RANK, PLAN):
            if path.endswith(" prove"):
                what, counts = "a proof of this model is one of a single device", "costproof report counts ranks"
                return BadInput(what, where=f"{path} {target} --{name}", expected="one device", fix=counts)
            return no_such_setting(name, f"{path} {target} --{name}", ())
        if name in (*AXES, RANK, PLAN):
            told.fix = f"a target takes it as a setting: TARGET@PRESET,{name}=2"
        elif not options and any(argument.type is OPERAND for argument in context.command.params):
            setting = name.replace("-", "_")
            told.fix = f"if it is a setting of the target, name it there: TARGET@PRESET,{setting}=VALUE; or {told.fix}"
        if options:
            told.expected = f"of {target}: " + ", ".join(name for p in options for name in p.opts)
            if fix := by_its_name(error.option_name, [option for p in options for option in p.opts]):
                return BadInput(f"no such option {error.option_name!r}", where=path, expected=told.expected, fix=fix)
            told.fix = setting_fix(name, "", ()) or f"see {path} {shlex.quote(target)} --help"
    return told


def _interrupt(by: str) -> int:
    return _fail(CostproofError("interrupted", got=by, fix=AGAIN), EXIT_INCOMPLETE)


def _fail(error: CostproofError, code: int | None = None) -> int:
    """Print an error, preceded by its traceback if ``COSTPROOF_DEBUG`` is set, and return the exit code."""
    from costproof.cli.output import error_text

    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error.__cause__ or error, file=sys.stderr)
    click.echo(error_text(error), err=True)
    return error.exit_code if code is None else code


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
    "stored": "Compute the size of a checkpoint on disk, to the byte.",
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
"""Short help of each command, in the order of a typical session."""
_MODULES: Final = {
    "compare": "check compare diff gate graph plot render",
    "count": "capture counters measure peaks report",
    "estimate": "fits machine machines roofline stored",
    "formula": "derive explain prove sweep",
    "list": "doctor ops schema targets workloads",
}
"""Commands of each module ``costproof.cli.NAME_commands``, by ``NAME``."""
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
    """A click group of :data:`COMMANDS` that imports a command only when it is called."""

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
