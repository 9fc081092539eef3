"""A checkpoint folder into a model, by name, shard by shard.

First every name and shape in every shard is compared with the model, from the headers alone, and all
that does not fit is told at once. Only then data is read, one tensor at a time, straight to its place.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from costproof.ledger.errors import BadInput, CostproofError, Problems, first_line
from costproof.ledger.progress import Progress
from costproof.models.checkpoint_files import shards

if TYPE_CHECKING:
    import torch
    from torch import nn

SHOWN: Final = 60
"""Problems that are told one by one; the rest is counted."""

Transform = Literal["same", "split", "stack", "stack-gate", "stack-up", "unused"]
"""How a tensor reaches its parameter.

``same``: under another name. ``split``: thirds of the rows go to three parameters. ``stack``: one
slice of a parameter over all experts; ``stack-gate`` and ``stack-up``: the first and the second
half of its rows. ``unused``: the model has no such parameter, for no code ever runs it.
"""

Names = Callable[[str], tuple[tuple[str, ...], Transform] | None]
"""Name of a tensor -> the parameters that it fills, and how; ``None`` for a name that nothing is known of."""

_STACKED: Final = {"stack": "down", "stack-gate": "gate", "stack-up": "up"}
"""Transforms into one slice of a parameter -> the projection of the experts."""
_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")
_LAYER: Final = re.compile(r".+\.layers\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Placement:
    """One tensor of the checkpoint and where it goes."""

    tensor: str
    targets: tuple[str, ...]
    transform: Transform
    expert: int | None = None


@dataclass(slots=True)
class Plan:
    """All placements, by shard, and what stays out."""

    shards: dict[Path, list[Placement]] = field(default_factory=dict)
    beyond: int = 0
    """Tensors of layers that were cut off."""
    never_run: list[str] = field(default_factory=list)
    recomputed: int = 0
    """Buffers that the model computes itself."""


def no_other_names(name: str) -> None:
    """The checkpoint has the model's own names."""


def plan(folder: str, model: nn.Module, names: Names = no_other_names, *, cut: bool) -> Plan:
    """Where every tensor of a checkpoint goes; reads headers only.

    Args:
        names: where tensors go whose names are not the model's.
        cut: whether layers were left out, so that tensors of layers that the model lacks are expected.

    Raises:
        Problems: tensors that are missing, unexpected or of another shape, all of them.
        BadInput: the folder holds no checkpoint, or a shard cannot be read.
    """
    wanted = {name: tuple(p.shape) for name, p in model.named_parameters()}
    buffers = {name for name, _ in model.named_buffers()}
    layers = {_layer(name) for name in wanted} | {None}
    found, problems = Plan(), list[CostproofError]()
    filled: dict[str, set[tuple[int, str]]] = {name: set() for name in wanted}
    where: dict[str, Path] = {}
    for shard, name, shape in _headers(Path(folder), problems):
        if name in where:
            problems.append(
                BadInput("a tensor is in two shards", where=name, got=f"{where[name].name} and {shard.name}")
            )
            continue
        where[name] = shard
        placement = _place(name, wanted, names)
        if placement is None:
            if name in buffers or name.endswith((".inv_freq", ".position_ids")):
                found.recomputed += 1
            else:
                problems.append(BadInput("an unexpected tensor", where=name, got=f"{list(shape)} in {shard.name}"))
        elif placement.transform == "unused":
            found.never_run.append(name)
        elif cut and _layer(placement.targets[0]) not in layers:
            found.beyond += 1
        else:
            wrong = _misfit(placement, shape, wanted)
            if wrong is not None:
                problems.append(wrong)
            found.shards.setdefault(shard, []).append(placement)
            for target in placement.targets:
                filled.get(target, set()).add((placement.expert or 0, placement.transform))
    problems += _missing(filled, wanted)
    if problems:
        left = len(problems) - SHOWN
        rest = [BadInput(f"and {left} more problems of this kind")] if left > 0 else []
        raise Problems(
            f"the checkpoint {folder} does not fit the model",
            [*problems[:SHOWN], *rest],
            fix="give the configuration of the checkpoint with --config, or the whole checkpoint with --weights",
        )
    return found


def load(found: Plan, model: nn.Module, progress: Progress) -> tuple[str, ...]:
    """Copy every tensor to its place, in the model's dtype; what was done, in sentences.

    Raises:
        BadInput: a shard is damaged.
    """
    import torch

    parameters = dict(model.named_parameters())
    dtypes: Counter[tuple[str, str]] = Counter()
    total, done = sum(map(len, found.shards.values())), 0
    with torch.no_grad():
        for shard in sorted(found.shards):
            with _opened(shard) as reader:
                for placement in found.shards[shard]:
                    progress("load the checkpoint", done, total)
                    data = reader.get_tensor(placement.tensor)
                    _copy(data, placement, parameters)
                    dtypes[_name(data.dtype), _name(parameters[placement.targets[0]].dtype)] += 1
                    done += 1
    notes = [f"checkpoint: {total:,} tensors from {len(found.shards)} file{'s' if len(found.shards) != 1 else ''}"]
    notes += [f"{n:,} tensors converted from {a} to {b}" for (a, b), n in sorted(dtypes.items()) if a != b]
    notes += [f"loaded by nobody, for no code runs it: {name}" for name in found.never_run]
    if found.beyond:
        notes.append(f"{found.beyond:,} tensors of layers that were cut off stay on disk")
    if found.recomputed:
        notes.append(f"{found.recomputed} buffers are computed, not loaded")
    return tuple(notes)


def _copy(data: torch.Tensor, placement: Placement, parameters: dict[str, nn.Parameter]) -> None:
    targets = [parameters[name] for name in placement.targets]
    if placement.transform == "split":
        for target, part in zip(targets, data.chunk(len(targets)), strict=True):
            target.copy_(part)
    elif placement.transform == "same":
        targets[0].copy_(data)
    else:
        assert placement.expert is not None
        stack, half = targets[0][placement.expert], data.shape[0]
        {"stack": stack, "stack-gate": stack[:half], "stack-up": stack[half:]}[placement.transform].copy_(data)


def _place(name: str, wanted: dict[str, tuple[int, ...]], names: Names) -> Placement | None:
    if name in wanted:
        return Placement(name, (name,), "same")
    found = names(name)
    expert = _EXPERT.search(name)
    return None if found is None else Placement(name, *found, int(expert[1]) if expert else None)


def _misfit(placement: Placement, shape: tuple[int, ...], wanted: dict[str, tuple[int, ...]]) -> CostproofError | None:
    """What is wrong with a tensor's shape, or with its place in the model."""
    known = [wanted[t] for t in placement.targets if t in wanted]
    if len(known) < len(placement.targets):
        return BadInput("an unexpected tensor", where=placement.tensor, got=list(shape))
    first = known[0]
    if placement.transform == "same":
        expected = first
    elif placement.transform == "split":
        expected = (sum(k[0] for k in known), *first[1:])
    elif placement.expert is None or placement.expert >= first[0]:
        return BadInput("an unexpected expert", where=placement.tensor, expected=f"experts 0 to {first[0] - 1}")
    else:
        expected = first[1:] if placement.transform == "stack" else (first[1] // 2, *first[2:])
    if shape == expected:
        return None
    return BadInput("a tensor of the wrong shape", where=placement.tensor, expected=list(expected), got=list(shape))


def _missing(filled: dict[str, set[tuple[int, str]]], wanted: dict[str, tuple[int, ...]]) -> list[CostproofError]:
    found: list[CostproofError] = []
    for name, parts in filled.items():
        if not parts:
            found.append(BadInput("a missing tensor", where=name, expected=list(wanted[name])))
            continue
        kinds = {kind for _, kind in parts}
        if not kinds & _STACKED.keys():
            continue
        for kind in ("stack",) if kinds == {"stack"} else ("stack-gate", "stack-up"):
            lost = [e for e in range(wanted[name][0]) if (e, kind) not in parts]
            if lost:
                found.append(
                    BadInput(
                        "missing experts",
                        where=name,
                        expected=f"the {_STACKED[kind]} projection of {wanted[name][0]} experts",
                        got=f"none for expert {', '.join(map(str, lost[:8]))}" + (" …" if len(lost) > 8 else ""),
                    )
                )
    return found


def _headers(folder: Path, problems: list[CostproofError]) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Shard, name and shape of every tensor, in the order of the names of the shards."""
    for shard, listed in shards(folder, problems).items():
        with _opened(shard) as reader:
            names = sorted(reader.keys())
            if listed is not None:
                problems += [
                    BadInput("the index names a tensor that its shard lacks", where=name, got=shard.name)
                    for name in sorted(listed - set(names))
                ]
            for name in names:
                yield shard, name, tuple(reader.get_slice(name).get_shape())


def _opened(shard: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(shard), framework="pt")
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise BadInput(
            "a shard cannot be read", where=str(shard), got=first_line(error), fix="download it again"
        ) from error


def _layer(name: str) -> str | None:
    """The layer that a parameter belongs to: ``model.layers.3``."""
    match = _LAYER.match(name)
    return match and match[0]


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
