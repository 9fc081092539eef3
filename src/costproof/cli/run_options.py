"""Options that say how the dynamic source runs the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from costproof.cli.options import Choice, Whole

F = TypeVar("F", bound=Callable[..., Any])


def run_options(command: F) -> F:
    """On which device, with which weights, how much of the model."""
    whole = Whole()
    options = [
        click.option(
            "--run",
            type=Choice("meta", "cpu", "cuda"),
            help="Where the dynamic source runs: meta computes shapes alone; cpu and cuda really run.",
        ),
        click.option(
            "--weights",
            metavar="random|DIR",
            help="Weights of a real run: seeded random ones, or a folder of safetensors.",
        ),
        click.option(
            "--layers", type=whole, metavar="N", help="Keep N decoder layers, and cut the towers; all sources count it."
        ),
        click.option("--seed", type=whole, metavar="N", help="Seed of random weights, pixels and tokens."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def convention_option(command: F) -> F:
    """Whether another tool's convention is counted beside ours."""
    return click.option(
        "--convention",
        type=Choice("fvcore-macs"),
        help="Count also what fvcore calls flops and activations, for stages alone and within the whole run: macs.json "
        "and macs.md.",
    )(command)


def profile_option(command: F) -> F:
    """Whether a real run is measured."""
    return click.option(
        "--profile",
        type=Whole(),
        metavar="N",
        help="Measure a real run N times: profile.json, profile.md and a Chrome trace.",
    )(command)
