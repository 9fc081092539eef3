"""Declare options shared by several commands, and commands that add the settings of their target as options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_args

import click

from costproof import api
from costproof.cli.output import check_apart, emit, print_table, shown_on_terminal, terminal_width
from costproof.cli.params import DEVICE, FILE, PRESET, TARGET_OF, ChoiceParam, IntParam, ListParam
from costproof.cli.progress import show_progress
from costproof.ledger.errors import EXIT_OK, BadInput, CostproofError
from costproof.ledger.mesh import CP_PLAN, DISPATCH, PAIRS
from costproof.ledger.run import ALL_SOURCES, DEFAULT_SOURCES, Convention, RunDevice
from costproof.reports.escape import visible
from costproof.reports.outputs import variant, variants

if TYPE_CHECKING:
    from costproof.run.request import RunRequest

F = TypeVar("F", bound=Callable[..., Any])


_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "request": click.option(
        "--request", "file", type=FILE, metavar="FILE",
        help="Read the run from a YAML file; other options override it. Code that it names runs only if TARGET,"
        " --rules or --trust-remote-code name it here too.",
    ),
    "dry-run": click.option(
        "--dry-run", is_flag=True,
        help="Check what can be checked without tracing or running your code, and print the run as YAML.",
    ),
    "config": click.option(
        "--config", type=FILE, metavar="FILE", help="Configuration of the model.  [default: the published one]"
    ),
    "head-config": click.option(
        "--config", type=FILE, metavar="FILE", help="Configuration of HEAD, if that is a target."
    ),
    "base-config": click.option(
        "--base-config", type=FILE, metavar="FILE", help="Configuration of BASE, if that is a target."
    ),
    "math": click.option(
        "--math", metavar="DTYPE",
        help="Dtype of the matrix products, such as tf32, whose peak rate bounds them.  [default: dtype of the run]",
    ),
    "preset": click.option(
        "--preset", "--workload", "preset", type=PRESET, metavar="NAME",
        help="Named workload; see costproof workloads.",
    ),
    "run": click.option(
        "--run", type=ChoiceParam(*get_args(RunDevice)),
        help="Device of the dynamic source: meta computes only shapes; cpu and cuda run the model.",
    ),
    "weights": click.option(
        "--weights", metavar="random|DIR",
        help="Weights of a run on cpu or cuda: seeded random ones, or a folder of safetensors.",
    ),
    "layers": click.option(
        "--layers", type=IntParam(), metavar="N", help="Keep the first N layers; all sources count the smaller model."
    ),
    "seed": click.option("--seed", type=IntParam(), metavar="N", help="Seed of random weights and inputs."),
    "profile": click.option(
        "--profile", type=IntParam(), metavar="N",
        help="Time N runs on cpu or cuda; writes profile.json, profile.md and a Chrome trace.",
    ),
    "sources": click.option(
        "--sources", type=ListParam(offered=lambda: ALL_SOURCES), metavar="LIST",
        help="Sources to count with: analytic (formulas), static (exported graphs), dynamic (a traced run), isolated "
        "(each stage traced separately)."
        f"  [default: {','.join(DEFAULT_SOURCES)}]",
    ),
    "convention": click.option(
        "--convention", type=ChoiceParam(*get_args(Convention)),
        help="Also count FLOPs and activations by fvcore's definitions: of each stage alone, and of the whole run.",
    ),
    "all-calls": click.option(
        "--all-calls", is_flag=True, help="Record the shapes of every call of a module, not only of the first."
    ),
    "peaks": click.option(
        "--peaks", is_flag=True,
        help="Also find the peak of live activations of each stage, by an export and two runs of it.",
    ),
    "counters": click.option(
        "--counters", type=ListParam(metavar="LIST|all", offered=lambda: ("all", *api.counter_names())),
        help="Also run third-party counters: names separated by commas. They do not change the verdict.",
    ),
    "trust-remote-code": click.option(
        "--trust-remote-code", is_flag=True,
        help="Allow Python code that the target names to run, from its snapshot or next to its configuration.",
    ),
    "rules": click.option(
        "--rules", multiple=True, type=FILE, metavar="FILE",
        help="Load operator rules from this Python file, which is executed; may be repeated.",
    ),
    "no-cache": click.option(
        "--no-cache", is_flag=True, help="Export again instead of using the exports in the user's cache folder."
    ),
    "progress": click.option(
        "--progress", type=ChoiceParam("auto", "always", "never"), default="auto", show_default=True,
        help="When to show progress on stderr.",
    ),
    "output": click.option("-o", "--output", type=FILE, metavar="FILE", help="Write to FILE instead of stdout."),
}  # fmt: skip


def options(*names: str) -> Callable[[F], F]:
    """Return a decorator that adds shared options to a command, in this order."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def mesh_options(*operands: str) -> Callable[[F], F]:
    """Return a decorator that adds --tp and the other options of a mesh to a command.

    Their values are appended, as settings, to the arguments with these names: ``llama@chat,tp=2``.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def with_settings(*args: Any, **choices: Any) -> Any:
            given = {name: choices.pop(name) for name in (*_MESH, "rank", "plan", CP_PLAN, DISPATCH, PAIRS)}
            # Commas separate the settings of an operand.
            values = {name: str(value) for name, value in given.items() if value is not None}
            paths = {name for name in (PAIRS, "plan") if Path(values.get(name, "")).is_file()}
            settings = [f"{n}={v if n in paths else v.replace(',', '+')}" for n, v in values.items()]
            spread = {name: ",".join((choices[name], *settings)) for name in operands}
            for name in operands if settings else ():
                path = Path(choices[name])
                if (path.suffix == ".json" and not choices[name].startswith("hf:")) or (path / "capture.json").exists():
                    given_names = ", ".join(f"--{setting.partition('=')[0]}" for setting in settings)
                    what, fix = "a file has the mesh of its own run", "leave them out, or name targets with settings"
                    raise BadInput(what, where=given_names, got=choices[name], fix=fix)
            return command(*args, **{**choices, **spread})

        add: Any = with_settings
        pairs = (
            "Routing: numbers of (token, expert) pairs that ranks send each other, a row for each sender, 6,2;3,5; or "
            "a JSON file with the experts of each token, as of roofline --routing."
        )
        add = click.option("--pairs", metavar="N,..;N,..|FILE", help=pairs)(add)
        forms, ways = ("all-gather", "all-to-all"), ("ring", "zigzag", "ulysses")
        add = click.option(
            "--dispatch", type=ChoiceParam(*forms), help="Collective that takes tokens to experts on other ranks."
        )(add)
        add = click.option("--cp-plan", type=ChoiceParam(*ways), help="How --cp divides the attention of a sequence.")(
            add
        )
        add = click.option(
            "--plan",
            metavar="PLAN|FILE",
            help="How weights are split: the plan of transformers, vllm or megatron, or a YAML file.",
        )(add)
        add = click.option("--rank", type=IntParam(), metavar="N", help="Which of these devices to count, from 0.")(add)
        for name, what in reversed(_MESH.items()):
            add = click.option(f"--{name}", type=IntParam(), metavar="N", help=f"Number of devices that share {what}.")(
                add
            )
        return cast(F, add)

    return decorate


_MESH: Final = {
    "tp": "the weights of each layer (tensor parallelism)", "ep": "the experts of each layer (expert parallelism)",
    "pp": "the layers (pipeline parallelism)", "dp": "the batch (data parallelism)",
    "cp": "a sequence (context parallelism)",
    "fsdp": "the batch and store parts of all weights, gathered layer by layer",
}  # fmt: skip


def device_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Return the option ``--on``, as the parameter ``device``, with a help text."""
    text = f"{text} (see costproof machines)."
    return click.option("--on", "device", type=DEVICE, metavar="DEVICE|FILE", required=required, help=text)


def run_request(target: str | None, file: Path | None, choices: dict[str, Any]) -> RunRequest:
    """Return the request on a command line: that of a request file, overridden by the options.

    Raises:
        BadInput: no target is named, or an option is invalid.
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


def run_command(command: Callable[..., int], own: Iterable[str] = ()) -> Callable[..., int]:
    """Return a command that gets a request, built from the command line, as its first argument.

    With ``--dry-run`` the request is printed instead.

    Args:
        command: the command.
        own: names of its own parameters (default: those of its signature).
    """
    names = tuple(own) or tuple(signature(command).parameters)[1:]

    @wraps(command)
    def made(target: str | None, file: Path | None, dry_run: bool, **given: Any) -> int:
        taken = {name: given.pop(name) for name in names}
        run = run_request(target, file, given)
        if dry_run:
            emit(api.request_text(run, str(click.get_current_context().command.name)), None)
            return EXIT_OK
        return command(run, **taken)

    return made


def report_command(
    about: str,
    *names: str,
    table: bool = False,
    warnings: Callable[[Any], Iterable[str]] = lambda found: (),
) -> Callable[[Callable[..., Any]], Callable[..., int]]:
    """Return a decorator for commands whose result is printed or written to a file.

    It adds ``-f``, ``-o`` and the shared options ``names``, and returns the exit code of the result. The format and the
    file are checked before the command runs. With the option ``request`` the command gets a request, as by
    :func:`run_command`; with the option ``progress`` it gets a callback.

    Args:
        about: the subject of the outputs; see ``outputs.variant``.
        names: shared options, in their order.
        table: whether the default on a terminal is a table, not the first format.
        warnings: returns lines about a result for stderr.
    """
    known = tuple(variants(about))
    default = f"a table on a terminal and {known[0]} elsewhere" if table else known[0]
    text = f"Output format.  [default: by the suffix of -o, else {default}]"

    def add(command: Callable[..., Any]) -> Callable[..., int]:
        @wraps(command)
        def printed(*run: RunRequest, kind: str | None, output: Path | None, **given: Any) -> int:
            how = None if table and shown_on_terminal(kind, output) else variant(about, kind, output)
            check_apart(output)
            with show_progress(given.pop("progress", "never")) as say:
                found = command(*run, **given, **({"progress": say} if "progress" in names else {}))
            if how is None:
                print_table(about, found)
            else:
                emit(how.text(found, terminal_width(output)), output)
            for line in warnings(found):
                click.echo(visible(line), err=True)
            return getattr(found, "exit_code", EXIT_OK)

        own = [*signature(command).parameters][1:]
        made = run_command(printed, ["kind", "output", *own]) if "request" in names else printed
        made = options("output", *names)(made)
        return click.option("-f", "--format", "kind", type=ChoiceParam(*known), help=text)(made)

    return add


class TargetCommand(click.Command):
    """A command that adds the settings of its target as options before the arguments are parsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            target = self._named(list(args), ctx)
            if target is not None and not self._holds_a_run(target):
                _refuse_a_side(target, ctx.command_path)
                ctx.meta[TARGET_OF] = (target, list(_target_options(target, str(self.name))))
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
        "this command takes settings of the workload as options, not after the name of the target",
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


def _target_options(target: str, verb: str) -> Iterator[click.Option]:
    kinds: dict[str, Any] = {"integer": IntParam(), "file": FILE, "text": click.STRING, "list": click.STRING}
    for setting in api.settings(target, verb):
        kind = ChoiceParam(*setting.choices) if setting.kind == "choice" else kinds[setting.kind]
        shown = None if setting.kind == "choice" else setting.metavar
        names = ["--" + setting.name.replace("_", "-"), setting.name]
        yield click.Option(names, type=kind, metavar=shown, help=setting.what, multiple=setting.kind == "list")
