"""Define ``costproof sweep``, which evaluates formulas over grids of settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costproof import api
from costproof.cli.options import TargetCommand, options
from costproof.cli.output import check_apart, note_written, print_lines, print_note
from costproof.cli.params import FILE, STAGE, TARGET, AxisParam, IntParam, ListParam
from costproof.cli.progress import show_progress
from costproof.ledger.environment import installed
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, BadInput, worst_exit
from costproof.ledger.metrics import EVERY_METRIC
from costproof.ledger.plural import plural, verb
from costproof.ledger.writing import places, written_in_place
from costproof.reports.escape import visible

if TYPE_CHECKING:
    from costproof.run.sweep import ValidatedPoint
    from costproof.run.sweep_files import Tally

_EXAMPLES = 20
"""Maximum number of printed reasons."""


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.option(
    "--over",
    multiple=True,
    type=AxisParam(),
    metavar="NAME=VALUES",
    help="Vary a setting or a configuration key: 1,8 or 512:1280:64. Several --over give all combinations;"
    " NAME/NAME=1/2,3/4 varies names together.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="'NAME=VALUES …'",
    help="A further grid, all combinations of these values; its points follow those of --over.",
)
@click.option("--table", type=FILE, metavar="CSV", help="Further points: a column per name, a row per point.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=ListParam(offered=lambda: EVERY_METRIC),
    metavar="LIST",
    help="Metrics to evaluate; each has a column for every stage and one for the run."
    "  [default: flops,weight_bytes,kv_cache_bytes,output_bytes]",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=STAGE,
    metavar="NAME",
    help="Give columns of this stage and of the whole run only; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only count the points, and list the refused ones with reasons.")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Write FILE.csv, .json or .parquet.  [default: CSV on stdout]"
)
@click.option("--no-plot", is_flag=True, help="Do not draw FILE.svg, which needs matplotlib.")
@click.option(
    "--validate",
    "checked",
    type=IntParam(),
    metavar="N",
    help="Check N random points: export their graphs, count them, and compare with the formulas.",
)
@click.option(
    "--seed", type=IntParam(), default=1, show_default=True, metavar="N", help="Seed of the points of --validate."
)
@click.option("--jobs", type=IntParam(), metavar="N", help="Processes for --validate.  [default: one per core]")
@click.option("--cluster", metavar="ADDRESS", help="Count the points of --validate on workers of this Dask scheduler.")
@options("config", "preset", "trust-remote-code", "rules", "progress")
def sweep(
    target: str,
    over: tuple[str, ...],
    also: tuple[str, ...],
    metrics: tuple[tuple[str, ...], ...],
    stages: tuple[str, ...],
    dry_run: bool,
    output: Path | None,
    no_plot: bool,
    checked: int | None,
    seed: int,
    jobs: int | None,
    cluster: str | None,
    progress: str,
    **given: Any,
) -> int:
    """Evaluate the formulas of TARGET at many points.

    Any setting of the workload and any key of the configuration can be varied. Numbers are exact at any size. Points
    that are not a valid model or run have no row; stderr reports their number and the reasons, and the exit code is 3
    if no point is valid. An interrupted sweep that writes to a file resumes where it stopped.
    """
    products = [_product(over, "--over"), *(_product(one.split(), "--also") for one in also)]
    made = api.sweep(
        target, products, metrics=[m for words in metrics for m in words] or None, stages=stages or None, **given
    )
    print_note(visible(made.counted))
    if dry_run:
        tally = made.count()
        models = f"{tally.rows:,} of them {verb(tally.rows, 'is a model', 'are models')}"
        print_lines(f"{plural(tally.points, 'point')}, {models}; each row has {plural(len(made.titles), 'cost')}")
        _print_refused(tally, print_lines)
        return EXIT_OK
    code = EXIT_OK
    if output is not None:
        check_apart(output)
        picture = output.with_suffix(".svg")
        drawn = not no_plot and not written_in_place(output) and installed("matplotlib") is not None
        for path in places([picture] if drawn else ()):
            check_apart(path)
        with show_progress(progress) as say:
            tally = made.write(output, say)
        note_written(output)
        if drawn and tally.rows:
            made.plot(picture)
            note_written(picture)
        code = _print_refused(tally, print_note)
    elif checked is None:
        code = _print_refused(made.stream(lambda text: click.echo(text, nl=False)), print_note)
    code = EXIT_INCOMPLETE if made.incomplete else code
    if checked is None:
        return code
    with show_progress(progress) as say:
        found = made.validate(checked, seed=seed, jobs=jobs or -1, cluster=cluster, progress=say)
    return worst_exit(code, _print_validated(found))


def _print_validated(found: Iterable[ValidatedPoint]) -> int:
    """Print the results of validation and return the worst exit code."""
    codes = [EXIT_OK]
    for one in found:
        print_lines(f"{one.verdict}: {_point_text(one.point)}", *(f"  {line}" for line in one.wrong))
        codes.append(one.exit_code)
    return worst_exit(*codes)


def _product(words: Iterable[str], option: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise BadInput(
                "an axis of a sweep must be a name and its values", where=option, expected="NAME=VALUES", got=word[:80]
            )
        if name in found:
            raise BadInput("a name is varied twice in one product", where=option, got=name)
        found[name] = values
    return found


def _print_refused(tally: Tally, say: Any) -> int:
    """Print the refused points and return the exit code: 3 if all points were refused."""
    for reason, one in list(tally.refused.items())[:_EXAMPLES]:
        say(visible(f"refused {one['count']:,}: {reason}; such as {_point_text(one['example'])}: {one['says']}"))
    if len(tally.refused) > _EXAMPLES:
        say(f"and {plural(len(tally.refused) - _EXAMPLES, 'more reason')}")
    return EXIT_OK if tally.rows else EXIT_INCOMPLETE


def _point_text(values: Mapping[str, Any]) -> str:
    """Return a point as arguments: ``sam.global_layers 2+5, batch 3``."""
    return ", ".join(f"{n} {'+'.join(map(str, v)) if isinstance(v, (tuple, list)) else v}" for n, v in values.items())
