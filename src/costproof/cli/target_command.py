"""Define commands whose options depend on the target in their arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.params import FILE, TARGET_OF, ChoiceParam, IntParam
from costproof.ledger.errors import BadInput, CostproofError


class TargetCommand(click.Command):
    """A command that adds the settings of its target as options before the arguments are parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            target = self._named(list(args), ctx)
            if target is not None and not self._holds_a_run(target):
                _refuse_a_side(target, ctx.command_path)
                ctx.meta[TARGET_OF] = (target, list(_options(target, str(self.name))))
        except CostproofError:
            # The command knows better: a capture may be of a target that is not known here, claims may be named last.
            # And nobody wants errors while typing.
            if not ctx.resilient_parsing and "--capture" not in args and not self._claims_missing(args):
                raise
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, help_ = super().get_params(ctx)
        return [*own, *ctx.meta.get(TARGET_OF, (None, ()))[1], help_]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        target, added = ctx.meta.get(TARGET_OF, (None, []))
        shared = [p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in added]
        for title, params in (("Options", shared), (f"Options of {target}", added)):
            rows = [row for p in params if (row := p.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if target is None:
            formatter.write_paragraph()
            formatter.write_text("With TARGET, --help shows the options of the target too.")

    def _holds_a_run(self, target: str) -> bool:
        """Return whether an argument names a capture, for commands that accept one in place of a target."""
        return False

    def _claims_missing(self, args: list[str]) -> bool:
        return any(p.name == "claims" for p in self.params) and not any(Path(a).is_file() for a in args[:1])

    def _named(self, args: list[str], ctx: click.Context) -> str | None:
        """Return the target that the arguments name, before the options that depend on it are known."""
        known = {name: p for p in super().get_params(ctx) for name in (*p.opts, *p.secondary_opts)}
        values: dict[str, str] = {}
        trusted = "--trust-remote-code" in args
        words = list(_words(args, known, values))
        names = [str(p.name) for p in self.params if isinstance(p, click.Argument)]
        line = dict(zip(names, words, strict=False))
        if "target" in line:
            return line["target"]
        if "--request" in values:
            rules = [values["--rules"]] if "--rules" in values else ()
            return api.read_request(Path(values["--request"]), rules=rules, trust_remote_code=trusted).target
        return api.claimed_target(Path(line["claims"])) if "claims" in line else None


def _refuse_a_side(target: str, command: str) -> None:
    """Raise ``BadInput`` for ``TARGET@PRESET,NAME=VALUE``, a form that only other commands accept."""
    name, at, settings = target.partition("@")
    if not at or name not in api.targets() or Path(target).exists():
        return
    preset, *_ = parts = [part for part in settings.split(",") if part] or [""]
    given = [("workload", preset)] if preset and "=" not in preset else []
    given += [(key.replace("_", "-"), value) for key, equals, value in (p.partition("=") for p in parts) if equals]
    words = " ".join(shlex.quote(word) for key, value in given for word in (f"--{key}", value))
    raise BadInput(
        "this command takes settings of the workload as options, not behind the name of the target",
        where=target[:80],
        expected="TARGET and its options",
        fix=f"{command} {name} {words}".rstrip()[:200] + "; keys of the configuration go into a --config FILE",
    )


def _words(args: list[str], known: dict[str, click.Parameter], values: dict[str, str]) -> Iterator[str]:
    """Yield the arguments that are not options; store values of options in ``values``."""
    while args:
        word = args.pop(0)
        if word == "--":
            yield from args
            return
        if word == "-" or not word.startswith("-"):
            yield word
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        option = known.get(name)
        if equals:
            values[name] = value
        elif not (isinstance(option, click.Option) and option.is_flag) and args:
            values[name] = args.pop(0)


def _options(target: str, verb: str) -> Iterator[click.Option]:
    kinds: dict[str, Any] = {"integer": IntParam(), "file": FILE, "text": click.STRING, "list": click.STRING}
    for setting in api.settings(target, verb):
        kind = ChoiceParam(*setting.choices) if setting.kind == "choice" else kinds[setting.kind]
        shown = None if setting.kind == "choice" else setting.metavar
        names = ["--" + setting.name.replace("_", "-"), setting.name]
        yield click.Option(names, type=kind, metavar=shown, help=setting.what, multiple=setting.kind == "list")
