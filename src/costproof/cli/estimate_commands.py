"""Define the commands that estimate: ``roofline``, ``fits``, ``stored``, ``machine`` and ``machines``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import click

from costproof import api
from costproof.cli.options import device_option, mesh_options, options, report_command
from costproof.cli.output import emit, terminal_width
from costproof.cli.params import DEVICE, OPERAND, ChoiceParam, IntParam
from costproof.ledger.errors import BadInput
from costproof.ledger.progress import Progress
from costproof.ledger.run import ALL_SOURCES
from costproof.reports.listing import devices_text

_MTP: Final = click.option(
    "--mtp", "next_token", type=click.IntRange(0, 8), default=0, metavar="N",
    help="Number of multi-token prediction modules to count; 0 with a GGUF file.  [default: 0]",
)  # fmt: skip


@click.command()
@click.argument("target", type=OPERAND)
@device_option("Device", required=True)
@mesh_options("target")
@options("math")
@click.option(
    "--source", type=ChoiceParam(*ALL_SOURCES),
    help="Source of the counts in a capture.  [default: the first that has them]",
)  # fmt: skip
@click.option(
    "--routing",
    default="bound",
    metavar="bound|uniform|FILE",
    help="Experts read per call: bound, min(experts, tokens x top-k); uniform, the mean of uniform routing; or a "
    "routing in FILE.  [default: bound]",
)
@click.option(
    "--microbatches", type=IntParam(), metavar="N",
    help="Microbatches that pass the stages of --pp in turn; also report the share of time in which a stage waits.",
)  # fmt: skip
@click.option(
    "--schedule",
    metavar="gpipe|1f1b|interleaved:V",
    help="Order of the microbatches; interleaved:V puts V parts of the model on each stage.  [default: 1f1b]",
)
@options("config")
@report_command("roofline", "trust-remote-code", "rules", "progress")
def roofline(target: str, device: str, **choices: Any) -> object:
    """Bound the time of TARGET on a device from below, and find where its settings change the limiting resource.

    TARGET is a target with settings (deepseek-ocr@gundam:2x2,batch=4), a capture, a folder of reports or a baseline.
    The roofline bound of each part is the longer of two times: its products at the peak rate, and its bytes at the
    memory bandwidth. This is a bound, not a prediction. Needs no torch.

    The exit code is 3 if a cost of the run is unknown.
    """
    return api.roofline(target, on=device, **choices)


@click.command()
@click.argument("target", type=OPERAND)
@device_option("Device whose memory is the limit")
@mesh_options("target")
@click.option("--memory", metavar="SIZE", help="Memory limit, in place of that of a device: 80GB, 80GiB, or bytes.")
@click.option("--reserve", metavar="SIZE", help="Memory left to the runtime: 2GB, 2GiB, bytes, or a fraction: 0.1.")
@_MTP
@options("config")
@report_command("fits", "trust-remote-code", "rules", "progress")
def fits(target: str, device: str | None, **choices: Any) -> object:
    """Check whether TARGET fits into the memory of a device, and up to which batch and length.

    TARGET is a target with settings (llama-3.1-8b@chat,batch=4,text_tokens=8000), a capture, a folder of reports or a
    baseline. Weights and caches are exact, and so is the live peak of a model with formulas for it; activations of
    others are an upper bound. Needs torch only for quantised weights.

    The exit code is 0 if it fits, 1 if it does not, and 3 if that is unknown.
    """
    return api.fits(target, on=device, **choices)


@click.command()
@click.argument("target", type=OPERAND)
@_MTP
@click.option(
    "--files", type=click.Path(path_type=Path), metavar="FOLDER|FILE",
    help="Compare with the headers of a checkpoint: safetensors, an index with its shards, or GGUF.",
)  # fmt: skip
@options("config")
@report_command("stored", "trust-remote-code")
def stored(target: str, **choices: Any) -> object:
    """Compute the size of TARGET's checkpoint on disk, to the byte, from its configuration.

    TARGET is hf:CONFIG.json or hf:FOLDER, or a registered target, also with --config. The format of quantised weights
    is read from the configuration and the files beside it (fp8, int8, GPTQ, AWQ, compressed-tensors, bitsandbytes,
    MXFP4, NVFP4). With --files the layout is compared with the headers of the checkpoint; no weights are read.

    The exit code is 0 if all sizes are known and the headers agree, 1 if they differ, and 3 if the format is not known
    or leaves a size open.
    """
    return api.stored(target, **choices)


@click.command()
def machines() -> int:
    """List the devices with known peak rates. Names are exact; costproof machine NAME shows the sources."""
    emit(devices_text((api.machine(name) for name in api.machines()), terminal_width()), None)
    return 0


@click.command()
@click.argument("name", required=False, type=DEVICE)
@click.option("--measure", is_flag=True, help="Measure this machine; NAME is the name of the result.  [default: here]")
@click.option(
    "--run", type=ChoiceParam("cpu", "cuda"), default="cpu", show_default=True, help="Device that --measure measures."
)
@report_command("device", "progress")
def machine(name: str | None, measure: bool, run: Literal["cpu", "cuda"], progress: Progress) -> object:
    """Show the figures of the device NAME, each with its quoted source.

    NAME is a name from costproof machines or a FILE.json. With --measure, matrix products and a convolution per dtype,
    a large copy and a large read are timed on this machine, which needs torch; -o FILE.json writes a file for --on.
    """
    if name is None and not measure:
        raise BadInput(
            "missing argument 'NAME'", where="costproof machine", fix="costproof machines lists them; or --measure"
        )
    return api.measure_machine(run, name=name or "here", progress=progress) if measure else api.machine(name or "")
