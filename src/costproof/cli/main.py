"""The entry point: runs a command and turns every outcome into one message and one exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from costproof.cli.group import COMMANDS, cli
from costproof.ledger.errors import EXIT_BAD_INPUT, EXIT_INCOMPLETE, EXIT_OK, BadInput, Bug, CostproofError, first_line

DEBUG = "COSTPROOF_DEBUG"


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; gives the exit code and never raises.

    Args:
        arguments: without the program's name; ``None`` takes those of the process.

    Codes: 0 all exact or explained, 1 findings, 2 wrong usage or bad input, 3 incomplete, 70 a bug of ours.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = cli.main(args=given, prog_name="costproof", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else EXIT_OK
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error), err=True)
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        return _failed(_usage(error, given))
    except (click.Abort, KeyboardInterrupt):
        return _failed(
            CostproofError("interrupted", got="Ctrl-C", fix="run the command again; no file was left half written"),
            EXIT_INCOMPLETE,
        )
    except CostproofError as error:
        return _failed(error)
    except BrokenPipeError:
        # The reader of our output went away (`costproof ops | head`): not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:
        bug = Bug(
            "costproof has a bug",
            got=first_line(error),
            fix=f"please report it with the command and the traceback that {DEBUG}=1 shows",
        )
        bug.__cause__ = error
        return _failed(bug)


def _usage(error: click.ClickException, arguments: Sequence[str]) -> CostproofError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "costproof"
    if path == "costproof" and arguments and arguments[0] in COMMANDS:
        path = f"costproof {arguments[0]}"  # click does not say where an option lacks its value
    what = error.format_message().rstrip(".")
    return BadInput(what[:1].lower() + what[1:], where=path, fix=f"see {path} --help")


def _failed(error: CostproofError, code: int | None = None) -> int:
    """Print the message; with ``COSTPROOF_DEBUG`` the traceback before it."""
    from costproof.cli.message import message

    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error.__cause__ or error, file=sys.stderr)
    click.echo(message(error), err=True)
    return error.exit_code if code is None else code
