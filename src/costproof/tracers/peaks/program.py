"""Run an exported program operator by operator on fake CPU tensors to find the memory that each operator uses.

Each operator shows in which storage it returns a result, and what it holds before it returns: ``softmax`` in another
dtype is a cast and a softmax. When a tensor is freed is not measured here, but follows from its readers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.ledger.peaks import LiveTensor
from costproof.models.specs import ExportJob
from costproof.opgraph.graph import Size, path_renamer
from costproof.opgraph.liveness import MemoryEvent, MemoryProgram, ProgramStep, Timeline
from costproof.snapshots.copies import alike, with_tensors
from costproof.tracers.exporting import SizeTranslator, export_program, inputs_by_path, map_arguments
from costproof.tracers.paths import Paths, dtype_name, unwrapped

if TYPE_CHECKING:
    from torch import fx


class ExportedMemory(NamedTuple):
    """Memory that an exported program allocates and frees, by operator."""

    program: MemoryProgram
    """The memory of the exported program; its tensors have the example sizes in place of symbolic ones."""
    sizes: tuple[Size, ...]
    """Bytes of the program's tensors, as expressions in the symbolic sizes."""
    guards: tuple[str, ...]
    """The exporter's guards."""
    notes: tuple[str, ...]
    """Assumptions of the export, as sentences."""


def exported_memory(job: FakeCpuJob) -> ExportedMemory:
    """Return the memory of a job's exported program.

    Raises:
        Incomplete: it cannot be exported with these symbols, or the memory of a result is unknown.
    """
    exported, notes = export_program(job.job)
    in_symbols = SizeTranslator(job.job, exported)
    reader = _ProgramReader(job, exported)
    try:
        program = reader.read()
        return ExportedMemory(program, tuple(map(in_symbols, reader.seen.sizes)), in_symbols.guards, notes)
    except CostproofError:
        raise
    except Exception as error:  # operators of other packages may raise anything
        where = f"{job.job.stage}, export {job.job.id}"
        raise Incomplete(
            "an operator does not run on tensors without values", where=where, got=first_line(error)
        ) from error


class _ProgramReader:
    """Reader of an exported program, which runs it once on fake tensors and records the memory of its operators."""

    def __init__(self, job: FakeCpuJob, exported: torch.export.ExportedProgram) -> None:
        self.job, self.exported, self.name = job.job, exported, module_namer(job.job)
        self.inputs = {node: ".".join(map(str, path)) for path, node in inputs_by_path(job.job, exported).items()}
        self.module = ""
        self.seen = Storages(lambda: self.module, counted=job.counted)
        self.values: dict[fx.Node, Any] = {}

    def read(self) -> MemoryProgram:
        graph, steps = self.exported.graph, list[ProgramStep]()
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        given = len(self.seen.tensors)
        mode = torch._guards.detect_fake_mode(list(self.values.values()))
        assert mode is not None
        if not self.job.sizes:
            # An export of few layers does without this cache, which is slow on symbols and fast on concrete sizes.
            mode.cache_enabled = torch._dynamo.config.fake_tensor_cache_enabled
        # A result is kept for its readers; memory that is freed before belongs to the operator.
        with torch.no_grad(), mode, self.seen:
            for node in graph.nodes:
                if node.op == "get_attr":
                    self.values[node] = self._attribute(node)
                elif node.op == "call_function":
                    steps.append(self._step(node))
        (output,) = (n for n in graph.nodes if n.op == "output")
        results = self._numbers(map_arg(output.args, self.values.get))
        return MemoryProgram(tuple(self.seen.tensors), tuple(range(given)), tuple(steps), results)

    def _placeholder(self, node: fx.Node) -> None:
        value = self.values[node] = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return
        _forget_constant(value)
        if node in self.inputs:
            self.seen.given(self.inputs[node], value)
        else:
            self.seen.apart([value])

    def _attribute(self, node: fx.Node) -> Any:
        value = getattr(self.exported.graph_module, str(node.target))
        tensors = [t for t in tree_iter(value) if isinstance(t, torch.Tensor)]
        for tensor in tensors:
            _forget_constant(tensor)
        self.seen.apart(tensors)
        return value

    def _step(self, node: fx.Node) -> ProgramStep:
        self.module = self._place(node)
        before = len(self.seen.events)
        arguments, named = map_arg((node.args, node.kwargs), self.values.get)
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        # Composite operators specialize sizes unless they are decomposed in Python first, as the exporter does.
        with enable_python_dispatcher() if _in_symbols((arguments, named)) else nullcontext():
            self.values[node] = target(*arguments, **named)
        result = self.values[node]
        return ProgramStep(self._numbers((arguments, named, result)), tuple(self.seen.events[before:]), self.module)

    def _numbers(self, values: Any) -> tuple[int, ...]:
        found = (self.seen.number(v) for v in tree_iter(values) if isinstance(v, torch.Tensor))
        return tuple(dict.fromkeys(n for n in found if n is not None))

    def _place(self, node: fx.Node) -> str:
        """Return the path of the innermost module that runs a node."""
        frames = (node.meta.get("nn_module_stack") or {}).values()
        return next((p for path, _ in reversed(frames) if (p := self.name(str(path))) is not None), "")


def _in_symbols(values: Any) -> bool:
    """Return whether an argument is a symbolic size, or a tensor with a symbolic size."""
    return any(
        isinstance(size, torch.SymInt)
        for value in tree_iter(values)
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
    )


def _forget_constant(tensor: torch.Tensor) -> None:
    """Remove the concrete value of a fake tensor, if that value is a fake tensor too.

    The exporter stores an attribute that is neither a parameter nor a buffer as such a value, and ``FakeTensorMode``
    runs operators on it as if it had memory, which ends the process.
    """
    if isinstance(getattr(tensor, "constant", None), FakeTensor):
        tensor.constant = None  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class FakeCpuJob:
    """An export job whose module and inputs are fake CPU tensors, with the fake tensor mode that they belong to."""

    job: ExportJob
    mode: FakeTensorMode
    host_apart: bool = False
    """Whether host and device tensors are distinguished; if so, only device tensors count."""

    def counted(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's memory counts; with ``host_apart`` only memory on the model's device does."""
        return not self.host_apart or tensor.device.index is not None


def on_fake_cpu(job: ExportJob, *, host_apart: bool = False) -> FakeCpuJob:
    """Return the job with a copy of its module and with its inputs as fake tensors on the CPU.

    Operators take the branches of a CPU there, and nothing is computed or allocated. On meta some differ: fused
    attention becomes matrix products, which hold the scores.

    Args:
        host_apart: put the model on ``cpu:0``, which for fake tensors is another device than ``cpu``, where code
            creates tensors unless it names the model's device. Tensors of both can meet as on a GPU, or not at all.

    Raises:
        Incomplete: the module cannot be copied, or has sparse tensors.
    """
    mode, device = FakeTensorMode(), "cpu:0" if host_apart else "cpu"

    def imitated(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            what = "no peak is known of a model with sparse tensors"
            raise Incomplete(what, where=f"{job.stage}, export {job.id}", got=str(tensor.layout))
        with mode:
            return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device)

    module, given = with_tensors(job.module, imitated), alike(dict(job.args), imitated)
    there = replace(job, module=module, args=map_arguments(job, lambda _, tensor: given(tensor)))
    return FakeCpuJob(there, mode, host_apart)


class HostTensors(TorchFunctionMode):
    """Function mode that gives results of ``torch.tensor``, ``as_tensor`` and ``Tensor.to`` the requested device index.

    ``FakeTensorMode`` evaluates such calls on real data and returns the device ``cpu`` without the index of ``cpu:0``;
    this mode replaces the result by an empty tensor on the requested device, whose values are not known.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, device = func(*args, **(kwargs or {})), (kwargs or {}).get("device")
        if device is None and func in (torch.Tensor.new_tensor, torch.Tensor.to):
            first = args[0] if func is torch.Tensor.new_tensor else args[1] if len(args) > 1 else None
            device = first.device if isinstance(first, torch.Tensor) else first
        lost = func in _FROM_DATA and isinstance(device, str | torch.device) and torch.device(device).index is not None
        if not lost or result.device.index is not None:
            return result
        return torch.empty(result.shape, dtype=result.dtype, device=device).copy_(result)


_FROM_DATA: Final = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor, torch.Tensor.to)


def module_namer(job: ExportJob) -> Callable[[str], str | None]:
    """Return a function from paths inside a job's module to model paths, and to ``None`` for wrapper modules."""
    paths, rename = Paths(job.module), path_renamer({unwrapped(inner): outer for inner, outer in job.prefix.items()})
    return lambda path: rename(paths.module(path))


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records each storage that a run allocates and frees.

    Views and in-place results are in known storages; others are allocated. A storage is freed when its last tensor is
    deleted, which Python reports at once. Temporary memory inside an operator is not seen.

    Args:
        place: function that returns the active module.
        watch: function that is called with the number of each event that allocates memory.
        counted: whether the memory of a tensor counts, such as that on one device.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        place: Callable[[], str],
        watch: Callable[[int], None] = lambda event: None,
        counted: Callable[[torch.Tensor], bool] = lambda tensor: True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place, self.watch, self.counted = place, watch, counted
        self.tensors: list[LiveTensor] = []
        self.sizes: list[Any] = []
        """Bytes of each storage, symbolic if the run has symbolic sizes."""
        self.events: list[MemoryEvent] = []
        self._known: dict[int, tuple[int, Any]] = {}
        """Number of a live storage, -1 if it does not count, and a weak reference that reports its end, by ``id``."""

    def timeline(self) -> Timeline:
        """Return the allocations and releases so far."""
        return Timeline(tuple(self.tensors), tuple(self.events))

    def apart(self, tensors: Iterable[torch.Tensor]) -> None:
        """Exclude the storages of parameters, buffers and constants from the records."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[id(storage)] = (-1, storage)

    def given(self, name: str, tensor: torch.Tensor) -> None:
        """Record the storage of a program input as live from the start."""
        self._see(name, "", tensor, "")

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the number under which a tensor's storage is recorded; ``None`` if it is not counted."""
        found = self._known.get(id(_storage(tensor, "")), (-1, None))[0]
        return None if found < 0 else found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _IN_PLACE:
            return args[0]
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
                what = "an operator resizes the memory of a tensor, which peaks do not support"
                raise Incomplete(what, where=module or "(root)", got=operator)
            return
        if not self.counted(tensor):
            self._known[id(storage)] = (-1, weakref.ref(storage, partial(self._forget, id(storage))))
            return
        number = len(self.tensors)
        self.tensors.append(
            LiveTensor(name, tuple(map(_example, tensor.shape)), dtype_name(tensor.dtype), size, operator, module)
        )
        self.sizes.append(storage.nbytes())
        self._known[id(storage)] = (number, weakref.ref(storage, self._gone(id(storage), number)))
        self.events.append(MemoryEvent(number, made=True))
        self.watch(len(self.events) - 1)

    def _forget(self, key: int, _: Any) -> None:
        del self._known[key]

    def _gone(self, key: int, number: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            del self._known[key]
            self.events.append(MemoryEvent(number, made=False))

        return gone


_IN_PLACE: Final = frozenset(
    getattr(torch.ops._c10d_functional, name).default for name in ("wait_tensor", "all_reduce", "isend")
)
"""Collectives whose result shares memory with their argument, although fake tensors make a new storage.

A sum over ranks is a copy in graphs only, as it mutates nothing there; runs of transformers add up in place.
"""


def _example(size: Any) -> int:
    """Return a size, or the example value of a symbolic size, without adding guards."""
    return int(size if isinstance(size, int) else size.node.hint)


def _storage(tensor: torch.Tensor, operator: str) -> torch.UntypedStorage:
    """Return the storage of a tensor.

    Raises:
        Incomplete: it is unknown, as for a sparse tensor.
    """
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise Incomplete(
            "an operator returns a tensor without a storage, so its memory is not known",
            where=operator,
            expected="a dense tensor",
            got=type(tensor).__name__,
        ) from error
