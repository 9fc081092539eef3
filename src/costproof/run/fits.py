"""The verb: whether a run fits into a memory, and from which batch and length on it does not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from costproof.estimate.hardware import Device
from costproof.estimate.memory import NEEDED, Fits, Limit, LimitPoint, StageMemory, size
from costproof.estimate.roofline import counted
from costproof.ledger.errors import BadInput
from costproof.ledger.node import exact_sum
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import FLOAT_BYTES
from costproof.run.activations import activations
from costproof.run.along import Along, Sum, Term
from costproof.run.devices import machine
from costproof.run.side_files import Given
from costproof.run.sides import read_side

SETTINGS: Final = ("batch", "text_tokens")
"""What is varied."""
_CACHE: Final = (Term("kv_cache_bytes", lambda node: True),)


def fits(
    target: Given,
    *,
    on: str | os.PathLike[str] | Device | None = None,
    memory: int | str | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Fits:
    """Whether a run fits into a memory; needs no torch.

    Args:
        target: a target with settings, ``"llama-3.1-8b@chat,batch=4"``, or what :func:`diff` takes for a side; of a
            capture with peaks these are taken too.
        on: a device, whose memory it is unless ``memory`` says how much there is.
        memory: bytes, or a text such as ``"80GB"`` (10^9) and ``"80GiB"`` (2^30).
        config: a configuration file, of a target.

    Raises:
        BadInput: there is no such target or device, or no memory is known.
        Incomplete: no source counts weights, caches and activations.
    """
    device = on if on is None or isinstance(on, Device) else machine(on)
    room = _room(device, memory)
    read = read_side(target, config)
    side = read.baseline
    name, folded = counted(side, needed=NEEDED)
    along = {} if read.target is None else {s: Along(side, read.target, s) for s in SETTINGS}
    element = FLOAT_BYTES[side.workload.dtype]
    stages = []
    for stage in folded.stages:
        held = along["batch"].value(along["batch"].own, activations(element, stage)) if along else None
        stages.append(StageMemory(stage, folded.total("kv_cache_bytes", stage), held, *_peaks(read.peaks, stage)))
    weights = folded.total("weight_bytes")
    return Fits(
        side.conventions, side.target, side.workload, side.environment, device, room, name,
        weights_bytes=weights,
        cache_bytes=exact_sum(s.cache_bytes for s in stages),
        activations_bytes=exact_sum(s.activations_bytes for s in stages),
        peak_bytes=max((s.peak_bytes for s in stages if s.peak_bytes is not None), default=None),
        stages=tuple(stages),
        limits=() if weights is None else tuple(_limits(along, weights, room, activations(element))),
    )  # fmt: skip


def _peaks(calls: Iterable[CallPeaks], stage: str) -> tuple[int | None, int | None]:
    """The largest known peak of the calls of a stage, arguments apart; all peaks together, where all are known.

    A step that is run alone has the cache from before as an argument, beside the one that it makes; in a run a layer
    gives its old one back.
    """
    here = [call.eager for call in calls if call.stage == stage]
    made = [e.bytes - sum(t.bytes for t in e.alive if not t.operator) for e in here if e is not None]
    whole = exact_sum(None if eager is None else eager.bytes for eager in here) if here else None
    return max(made, default=None), whole


def _room(device: Device | None, memory: int | str | None) -> int:
    if isinstance(memory, str):
        return size(memory, "--memory")
    if memory is not None:
        return memory
    if device is None:
        raise BadInput("no memory to fit into", where="costproof fits", expected="--on DEVICE or --memory SIZE")
    if device.memory is None:
        raise BadInput("the memory of this device is not known", where=device.name, fix="--memory SIZE")
    return device.memory.value


def _limits(along: Mapping[str, Along], weights: int, room: int, kept: Sum) -> Iterator[Limit]:
    """The first values that do not fit, with weights and cache alone and with the bound of activations."""
    for setting, of in along.items():
        for all_kept in (False, True):
            held = (*_CACHE, *kept) if all_kept else _CACHE
            if not of.depends(held):
                continue
            found = of.first(held, (), room - weights)
            points = tuple(LimitPoint(at, weights + of.value(at, held)) for at in found.places(of.own))
            yield Limit(setting, all_kept, found.outcome, found.at, points, found.why)
