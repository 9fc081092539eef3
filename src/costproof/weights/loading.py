"""Load a checkpoint folder into a model, shard by shard, and check that it fits into memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems, first_line
from costproof.ledger.files import read_json
from costproof.ledger.plural import plural
from costproof.ledger.progress import Progress
from costproof.weights.stored import is_there

if TYPE_CHECKING:
    import torch
    from torch import nn


INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
SHOWN: Final = 60
"""Maximum number of problems that an error lists; the others are only counted."""

Transform = Literal["same", "split", "stack", "stack-gate", "stack-up", "unused"]
"""Kind of mapping from a checkpoint tensor to the model's parameters.

``same``: under another name. ``split``: thirds of the rows go to three parameters. ``stack``: one
slice of a parameter over all experts; ``stack-gate`` and ``stack-up``: the first and the second
half of its rows. ``unused``: the model has no such parameter, because no code runs it.
"""

Names = Callable[[str], tuple[tuple[str, ...], Transform] | None]
"""Function from a tensor name to the parameters that it fills and the transform; ``None`` for an unknown name."""

_STACKED: Final = {"stack": "down", "stack-gate": "gate", "stack-up": "up"}
"""Projection of an expert that is loaded into a slice of a stack, by transform."""
_EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")
_LAYER: Final = re.compile(r".+\.layers\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Placement:
    """A checkpoint tensor, with the parameters that it fills."""

    tensor: str
    targets: tuple[str, ...]
    transform: Transform
    expert: int | None = None


@dataclass(slots=True)
class WeightPlan:
    """Placements of checkpoint tensors by shard, and tensors that are not loaded."""

    shards: dict[Path, list[Placement]] = field(default_factory=dict)
    beyond: int = 0
    """Number of tensors in layers that the truncated model lacks."""
    never_run: list[str] = field(default_factory=list)
    recomputed: int = 0
    """Number of tensors for buffers that the model computes itself."""


def keep_in_float32(model: nn.Module) -> None:
    """Convert to float32 the buffers that the model class keeps in float32 whatever the model's dtype is.

    ``from_pretrained`` of transformers does so as it loads weights, ``_from_config`` does not.
    """
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name in kept:
                setattr(module, name, buffer.float())


def no_other_names(name: str) -> None:
    """Return ``None`` for every name, since the checkpoint uses the model's own parameter names."""


def plan(folder: str, model: nn.Module, names: Names = no_other_names, *, cut: bool) -> WeightPlan:
    """Match every tensor of a checkpoint with parameters, reading only the headers.

    Args:
        names: maps tensors whose names differ from those of the parameters.
        cut: whether the model is truncated, so that tensors of further layers are expected.

    Raises:
        Problems: all tensors that are missing, unexpected or of another shape.
        BadInput: the folder holds no checkpoint, or a shard cannot be read.
    """
    wanted = dict(model.named_parameters())
    buffers = {name for name, _ in model.named_buffers()}
    layers = {_layer(name) for name in wanted} | {None}
    found, problems = WeightPlan(), list[CostproofError]()
    filled: dict[str, set[tuple[int | None, str]]] = {name: set() for name in wanted}
    where: dict[str, Path] = {}
    for shard, name, shape in _headers(Path(folder), problems):
        if name in where:
            problems.append(
                BadInput("a tensor is in two shards", where=name, got=f"{where[name].name} and {shard.name}")
            )
            continue
        where[name] = shard
        if name in buffers or name.endswith((".inv_freq", ".position_ids")):
            found.recomputed += 1
            continue
        expert = _EXPERT.search(name)
        place = ((name,), "same") if name in wanted else names(name)
        placement = place and Placement(name, *place, int(expert[1]) if expert else None)
        if placement and placement.transform == "unused":
            found.never_run.append(name)
        elif placement and cut and _layer(placement.targets[0]) not in layers:
            found.beyond += 1
        elif placement is None or not wanted.keys() >= set(placement.targets):
            problems.append(
                BadInput(
                    "the checkpoint has a tensor that the model lacks", where=name, got=f"{list(shape)} in {shard.name}"
                )
            )
        else:
            problems += _misfit(placement, shape, wanted)
            found.shards.setdefault(shard, []).append(placement)
            for target in placement.targets:
                filled[target].add((placement.expert, placement.transform))
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


def load(found: WeightPlan, model: nn.Module, progress: Progress) -> tuple[str, ...]:
    """Copy every tensor to its parameter, in the model's dtype; return sentences that describe the checkpoint.

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
                    views = _views(placement, parameters)
                    for view, part in zip(views, data.chunk(len(views)) if len(views) > 1 else [data], strict=True):
                        view.copy_(part)
                    dtypes[_name(data.dtype), _name(parameters[placement.targets[0]].dtype)] += 1
                    done += 1
    notes = [f"checkpoint: {plural(total, 'tensor')} from {plural(len(found.shards), 'file')}"]
    notes += [f"{plural(n, 'tensor')} converted from {a} to {b}" for (a, b), n in sorted(dtypes.items()) if a != b]
    notes += [f"loaded by nobody, for no code runs it: {name}" for name in found.never_run]
    if found.beyond:
        notes.append(f"{found.beyond:,} tensors of layers that were cut off stay on disk")
    if found.recomputed:
        notes.append(f"{found.recomputed} buffers are computed, not loaded")
    return tuple(notes)


def _views(placement: Placement, parameters: dict[str, nn.Parameter]) -> list[torch.Tensor]:
    """Return the parameters, or the slice of one, that the rows of a checkpoint tensor fill, in order."""
    first, *others = (parameters[name] for name in placement.targets)
    if placement.transform not in _STACKED:
        return [first, *others]
    stack = first[placement.expert]
    half = stack.shape[0] // 2
    return [{"stack": stack, "stack-gate": stack[:half], "stack-up": stack[half:]}[placement.transform]]


def _misfit(placement: Placement, shape: tuple[int, ...], wanted: dict[str, nn.Parameter]) -> list[CostproofError]:
    """Return an error if a tensor's shape or expert index does not fit the model."""
    if placement.transform in _STACKED:
        experts = wanted[placement.targets[0]].shape[0]
        if placement.expert is None or placement.expert >= experts:
            return [
                BadInput(
                    "the checkpoint has an expert that the model lacks",
                    where=placement.tensor,
                    expected=f"experts 0 to {experts - 1}",
                )
            ]
    expected, *others = (list(view.shape) for view in _views(placement, wanted))
    if others:
        expected[0] += sum(rows for rows, *_ in others)
    if list(shape) == expected:
        return []
    return [BadInput("a tensor of the wrong shape", where=placement.tensor, expected=expected, got=list(shape))]


def _missing(
    filled: dict[str, set[tuple[int | None, str]]], wanted: dict[str, nn.Parameter]
) -> Iterator[CostproofError]:
    for name, parts in filled.items():
        kinds = {kind for _, kind in parts}
        if not parts:
            yield BadInput("the checkpoint lacks a tensor of the model", where=name, expected=list(wanted[name].shape))
        elif kinds & _STACKED.keys():
            experts = wanted[name].shape[0]
            for kind in ("stack",) if kinds == {"stack"} else ("stack-gate", "stack-up"):
                lost = [str(e) for e in range(experts) if (e, kind) not in parts]
                if lost:
                    yield BadInput(
                        "the checkpoint lacks experts of the model",
                        where=name,
                        expected=f"the {_STACKED[kind]} projection of {experts} experts",
                        got=f"none for expert {', '.join(lost[:8])}" + (" …" if len(lost) > 8 else ""),
                    )


def _headers(folder: Path, problems: list[CostproofError]) -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Yield (shard, name, shape) of every tensor, ordered by shard."""
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


def shards(folder: Path, problems: list[CostproofError]) -> dict[Path, set[str] | None]:
    """Return the shards of a checkpoint folder, with the tensor names that the index lists for each.

    The shards are not opened. Without an index, ``None`` is in place of the names.

    Args:
        problems: list to which missing shards are added.

    Raises:
        BadInput: the folder has no checkpoint, or its index is invalid.
    """
    fix = f"a folder with {SINGLE} or {INDEX}; --weights random needs none"
    if not folder.is_dir():
        raise BadInput("there is no such folder", where=f"--weights {folder}", expected=fix)
    index = folder / INDEX
    if not is_there(index):
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BadInput("the folder holds no checkpoint", where=f"--weights {folder}", expected=fix)
        problems += (BadInput("a shard is not a file", where=str(f)) for f in files if not f.is_file())
        return dict.fromkeys(f for f in files if f.is_file())
    try:
        weight_map = read_json(index, what="index")["weight_map"]
        found: dict[Path, set[str] | None] = {}
        for name, file in sorted(weight_map.items()):
            # A name with a path in it would reach outside the folder.
            listed = found.setdefault(folder / Path(str(file)).name, set())
            assert listed is not None
            listed.add(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            "this is not the index of a safetensors checkpoint", where=str(index), expected="a weight_map"
        ) from error
    if found and not any(s.is_file() for s in found):
        raise BadInput(
            "the folder holds the index of a checkpoint and none of its shards",
            where=f"--weights {folder}",
            expected=", ".join(s.name for s in sorted(found)[:3]) + (", …" if len(found) > 3 else ""),
            fix="download the shards as well, not the pointers to them; --weights random needs none",
        )
    for shard in [s for s in found if not s.is_file()]:
        problems.append(
            BadInput("a shard is missing", where=str(shard), expected=plural(len(found[shard] or ()), "tensor"))
        )
        del found[shard]
    return dict(sorted(found.items()))


def _opened(shard: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(shard), framework="pt")
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise BadInput(
            "a shard cannot be read", where=str(shard), got=first_line(error), fix="download it again"
        ) from error


def _layer(name: str) -> str | None:
    """Return the path of the layer that owns a parameter, such as ``model.layers.3``; ``None`` outside of layers."""
    match = _LAYER.match(name)
    return match and match[0]


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


FEWER: Final = "--layers N counts its first layers, and says what the whole costs if these say it"
"""Suggested fix for a model that is too large to be filled with values."""


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; ``None`` if the system does not report it."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
    except OSError:
        return None


def size_of(model: nn.Module, *, without_numbers: bool = False) -> int:
    """Return the bytes of parameters and buffers, with tied ones once; with ``without_numbers`` only those on meta."""
    tensors = (*model.parameters(), *model.buffers())
    return sum(t.nbytes for t in tensors if t.is_meta or not without_numbers)


def require_room(model: nn.Module, device: str) -> None:
    """Check before the allocation that parameters and buffers fit into the free memory of a device.

    Raises:
        Incomplete: they do not fit.
    """
    import torch

    size, free = size_of(model), free_bytes(torch.device(device))
    if free is not None and size > free:
        raise Incomplete(
            "the model does not fit into the memory that is free",
            where=f"--run {device}",
            expected=f"at most {free:,} bytes of parameters and buffers",
            got=f"{size:,}",
            fix=FEWER,
        )
