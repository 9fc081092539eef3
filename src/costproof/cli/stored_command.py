"""Define ``costproof stored``, which computes the size of a checkpoint on disk."""

from __future__ import annotations

from pathlib import Path

import click

from costproof import api
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, terminal_width
from costproof.cli.params import OPERAND
from costproof.reports.outputs import variant


@click.command()
@click.argument("target", type=OPERAND)
@click.option(
    "--mtp", "next_token", type=click.IntRange(0, 8), default=0, metavar="N",
    help="Number of multi-token prediction modules to count.  [default: 0]",
)  # fmt: skip
@click.option(
    "--files", type=click.Path(path_type=Path), metavar="FOLDER|FILE",
    help="Compare with the headers of a checkpoint: safetensors, or an index with its shards.",
)  # fmt: skip
@options("config")
@format_option("stored")
@options("output", "trust-remote-code")
def stored(
    target: str,
    next_token: int,
    files: Path | None,
    config: Path | None,
    kind: str | None,
    output: Path | None,
    trust_remote_code: bool,
) -> int:
    """State what the checkpoint of TARGET takes on disk, to the byte, from its configuration.

    TARGET is hf:CONFIG.json or hf:FOLDER, or a registered target, also with --config. The format of quantised weights
    is read from the configuration and the files beside it (fp8, int8, GPTQ, AWQ, compressed-tensors, bitsandbytes,
    MXFP4, NVFP4). With --files the layout is compared with the headers of the checkpoint; no weights are read.

    The exit code is 0 if all sizes are known and the headers agree, 1 if they differ, and 3 if the format is not known
    or leaves a size open.
    """
    how = variant("stored", kind, output)
    found = api.stored(target, config=config, next_token=next_token, files=files, trust_remote_code=trust_remote_code)
    emit(how.text(found, terminal_width(output)), output)
    return found.exit_code
