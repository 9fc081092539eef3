"""An exported program as far as memory goes: every operator run by itself on tensors without numbers.

So each operator says what it returns in which memory, and what it holds before it returns: ``softmax`` in another type
is a cast and a softmax. When a tensor is given back is not measured here, but follows from who reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.node import map_arg
from torch.utils._pytree import tree_iter

from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.models.jobs import ExportJob
from costproof.opgraph.graph import Size
from costproof.opgraph.liveness import MemoryProgram, ProgramStep
from costproof.tracers.exporting import Sizes, exported_program, inputs_by_path
from costproof.tracers.peaks.memory import OnCpu, Storages, namer

if TYPE_CHECKING:
    from torch import fx


class Found(NamedTuple):
    """The export of a job as far as memory goes."""

    program: MemoryProgram
    """Of a job with symbolic sizes it has its tensors as they are at the example sizes."""
    sizes: tuple[Size, ...]
    """The bytes of its tensors in symbols."""
    guards: tuple[str, ...]
    """Where it holds."""
    notes: tuple[str, ...]
    """What was taken for granted."""


def program_of(job: OnCpu) -> Found:
    """The export of a job as far as memory goes.

    Raises:
        Incomplete: it cannot be exported with these symbols, or the memory of a result is not known.
    """
    exported, notes = exported_program(job.job)
    in_symbols = Sizes(job.job, exported)
    reader = _Reader(job.job, exported)
    try:
        program = reader.read()
        return Found(program, tuple(map(in_symbols, reader.seen.sizes)), in_symbols.guards, notes)
    except CostproofError:
        raise
    except Exception as error:  # operators of other packages raise what they like
        where = f"{job.job.stage}, export {job.job.id}"
        raise Incomplete("an operator does not run without numbers", where=where, got=first_line(error)) from error


class _Reader:
    """One pass over an exported program."""

    def __init__(self, job: ExportJob, exported: torch.export.ExportedProgram) -> None:
        self.job, self.exported, self.name = job, exported, namer(job)
        self.inputs = {node: ".".join(map(str, path)) for path, node in inputs_by_path(job, exported).items()}
        self.module = ""
        self.seen = Storages(lambda: self.module)
        self.values: dict[fx.Node, Any] = {}

    def read(self) -> MemoryProgram:
        graph, steps = self.exported.graph, list[ProgramStep]()
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
        given = len(self.seen.tensors)
        mode = torch._guards.detect_fake_mode(list(self.values.values()))
        assert mode is not None
        # Operators that are made of others fix sizes unless these are sought in Python first, as the exporter does.
        in_symbols = enable_python_dispatcher() if self.job.sizes else nullcontext()
        # A result stays here for as long as its readers may want it: what goes before that, the operator gave back.
        with torch.no_grad(), in_symbols, mode, self.seen:
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
        if node in self.inputs:
            self.seen.given(self.inputs[node], value)
        else:
            self.seen.apart([value])

    def _attribute(self, node: fx.Node) -> Any:
        value = getattr(self.exported.graph_module, str(node.target))
        self.seen.apart(t for t in tree_iter(value) if isinstance(t, torch.Tensor))
        return value

    def _step(self, node: fx.Node) -> ProgramStep:
        self.module = self._place(node)
        before = len(self.seen.events)
        arguments, named = map_arg((node.args, node.kwargs), self.values.get)
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        self.values[node] = target(*arguments, **named)
        result = self.values[node]
        return ProgramStep(self._numbers((arguments, named, result)), tuple(self.seen.events[before:]))

    def _numbers(self, values: Any) -> tuple[int, ...]:
        found = (self.seen.number(v) for v in tree_iter(values) if isinstance(v, torch.Tensor))
        return tuple(dict.fromkeys(n for n in found if n is not None))

    def _place(self, node: fx.Node) -> str:
        """Path of the innermost module of the model that runs a node."""
        frames = (node.meta.get("nn_module_stack") or {}).values()
        return next((p for path, _ in reversed(frames) if (p := self.name(str(path))) is not None), "")
