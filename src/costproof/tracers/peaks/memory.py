"""A job on the CPU without numbers: operators take the ways that they take there, and nothing is computed or held.

On meta some take others: attention that is fused on the CPU is made of matrix products there, which hold the scores.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from costproof.ledger.errors import Incomplete
from costproof.ledger.peaks import LiveTensor
from costproof.models.generic.alike import alike
from costproof.models.generic.copies import with_tensors
from costproof.models.jobs import ExportJob
from costproof.opgraph.graph import path_renamer
from costproof.opgraph.liveness import MemoryEvent, Timeline
from costproof.tracers.exporting import each_argument
from costproof.tracers.operands import dtype_name
from costproof.tracers.paths import Paths, unwrapped


@dataclass(frozen=True, slots=True)
class OnCpu:
    """A job, and the mode that its tensors belong to."""

    job: ExportJob
    mode: FakeTensorMode


def on_cpu(job: ExportJob) -> OnCpu:
    """The job with a copy of its module and its inputs on the CPU, without numbers.

    Raises:
        Incomplete: the module cannot be copied.
    """
    mode = FakeTensorMode()

    def imitated(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")

    module, given = with_tensors(job.module, imitated), alike(dict(job.args), imitated)
    return OnCpu(replace(job, module=module, args=each_argument(job, lambda _, tensor: given(tensor))), mode)


def namer(job: ExportJob) -> Callable[[str], str | None]:
    """From paths inside a job's module to paths from the root of the model; ``None`` for scaffolding."""
    paths, rename = Paths(job.module), path_renamer({unwrapped(inner): outer for inner, outer in job.prefix.items()})
    return lambda path: rename(paths.module(path))


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches while a model runs under it; changes nothing.

    Args:
        place: says which module runs now.
        watch: called after each event that makes something, with its number.
    """

    supports_higher_order_operators = True

    def __init__(self, place: Callable[[], str], watch: Callable[[int], None] = lambda event: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place, self.watch = place, watch
        self.tensors: list[LiveTensor] = []
        self.sizes: list[Any] = []
        """Bytes of each as torch has them: with symbols, where the run has."""
        self.events: list[MemoryEvent] = []
        self._known: dict[int, tuple[int, Any]] = {}
        """``id`` of memory that is alive -> its number (-1 for what is not counted), and what says that it is gone."""

    def timeline(self) -> Timeline:
        """What was seen so far."""
        return Timeline(tuple(self.tensors), tuple(self.events))

    def apart(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these: parameters, buffers, constants."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[id(storage)] = (-1, storage)

    def given(self, name: str, tensor: torch.Tensor) -> None:
        """Count an input."""
        self._see(name, "", tensor, "")

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's memory; ``None`` for what is not counted."""
        found = self._known.get(id(_storage(tensor, "")), (-1, None))[0]
        return None if found < 0 else found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_iter(result):
            if isinstance(made, torch.Tensor):
                name = str(func)
                self._see(name.split(".")[-2] if name.count(".") > 1 else name, name, made, self.place())
        return result

    def _see(self, name: str, operator: str, tensor: torch.Tensor, module: str) -> None:
        storage = _storage(tensor, operator)
        known, size = self._known.get(id(storage)), _example(storage.nbytes())
        if known is not None:
            if known[0] >= 0 and self.tensors[known[0]].bytes != size:
                raise Incomplete("memory that changes its size is not followed", where=module, got=operator)
            return
        number = len(self.tensors)
        self.tensors.append(
            LiveTensor(name, tuple(map(_example, tensor.shape)), dtype_name(tensor.dtype), size, operator, module)
        )
        self.sizes.append(storage.nbytes())
        self._known[id(storage)] = (number, weakref.ref(storage, self._gone(id(storage), number)))
        self.events.append(MemoryEvent(number, made=True))
        self.watch(len(self.events) - 1)

    def _gone(self, key: int, number: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            del self._known[key]
            self.events.append(MemoryEvent(number, made=False))

        return gone


def _example(size: Any) -> int:
    """A size; one with symbols at the example that the export was made of, which asks nothing of the symbols."""
    return int(size if isinstance(size, int) else size.node.hint)


def _storage(tensor: torch.Tensor, operator: str) -> torch.UntypedStorage:
    """The memory of a tensor.

    Raises:
        Incomplete: it is not known, as of a sparse one.
    """
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise Incomplete(
            "the memory of what an operator returns is not known", where=operator, got=type(tensor).__name__
        ) from error
