"""The verbs about devices: what is known of them, and what this machine reaches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

from costproof.estimate.hardware import Device, device, registry
from costproof.ledger.environment import require
from costproof.run.count_lock import count_lock


def machines() -> tuple[str, ...]:
    """Names of the devices that are known, each an exact one; no file is read."""
    return tuple(registry().listed())


def machine(name: str | os.PathLike[str]) -> Device:
    """A device, with the source of every figure.

    Args:
        name: one of :func:`machines`, or a file that describes a device.

    Raises:
        BadInput: there is neither, or the file is not such a description.
    """
    return device(os.fspath(name))


def measure_machine(
    run: Literal["cpu", "cuda"] = "cpu", *, name: str = "here", dtypes: Iterable[str] | None = None
) -> Device:
    """What this machine reaches: the best of some products per dtype, a large copy or read; how much memory it has.

    A roof of it is what was seen, not what the maker promises.

    Args:
        dtypes: whose peak is sought, as torch calls them; float32, bfloat16, float16 and float64 unless given.

    Raises:
        Incomplete: torch is missing, or there is no such device.
    """
    require("trace", "measuring a machine")
    from costproof.tracers.machine import DTYPES, measure_device

    with count_lock():
        return measure_device(run, name, DTYPES if dtypes is None else tuple(dtypes))
